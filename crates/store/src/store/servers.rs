//! The servers of a store: one, or the nodes of a cluster.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue, Value};

use super::cluster::{BucketCommand, Cluster};
use super::dial::Dialer;
use super::fault::Fault;
use super::node::Node;
use crate::spec::{Endpoint, StoreAddress};

/// Sends commands to the server with their bucket.
#[derive(Debug)]
pub(super) enum Servers {
    One(Arc<Dialer>, Node),
    Cluster(Cluster),
}

// === impl Servers ===

impl Servers {
    pub(super) fn of(dialer: &Arc<Dialer>) -> Self {
        match &dialer.store.address {
            StoreAddress::Cluster { seeds } => Self::Cluster(Cluster::new(Arc::clone(dialer), seeds.clone())),
            _ => Self::One(Arc::clone(dialer), Node::default()),
        }
    }

    /// Connects, if that is necessary. The nodes of a cluster are connected to as they are needed.
    ///
    /// # Errors
    /// There is no connection.
    pub(super) async fn connect(&self) -> Result<(), Fault> {
        match self {
            Self::Cluster(_) => Ok(()),
            Self::One(dialer, node) => node.connection(dialer, dialer.dial()).await.map(drop),
        }
    }

    /// Sends commands at once. Returns a reply for each.
    pub(super) async fn send(&self, commands: &[BucketCommand]) -> Vec<Result<Value, Fault>> {
        match self {
            Self::Cluster(cluster) => cluster.send(commands).await,
            Self::One(..) if commands.is_empty() => Vec::new(),
            Self::One(dialer, node) => match node.connection(dialer, dialer.dial()).await {
                Err(fault) => vec![Err(fault); commands.len()],
                Ok(connection) => {
                    let send =
                        async |each: &BucketCommand| Ok(each.command.query_async(&mut connection.clone()).await?);
                    join_all(commands.iter().map(send)).await
                }
            },
        }
    }

    /// Sends one command to the server with a bucket.
    ///
    /// # Errors
    /// The server's error, or the reason why there is no reply.
    pub(super) async fn query<T: FromRedisValue>(&self, bucket: &Arc<str>, command: &Cmd) -> Result<T, Fault> {
        let command = BucketCommand { bucket: Arc::clone(bucket), command: command.clone() };
        let reply = self.send(&[command]).await.pop().unwrap_or(Err(Fault::Nonsense))?;
        redis::from_redis_value(reply).map_err(|_| Fault::Nonsense)
    }

    /// Has the next request connect anew. A cluster does so itself for the node that failed.
    pub(super) fn break_off(&self) {
        if let Self::One(_, node) = self {
            node.break_off();
        }
    }

    /// Returns the servers with buckets.
    pub(super) fn at(&self) -> Vec<Endpoint> {
        match self {
            Self::Cluster(cluster) => cluster.homes(),
            Self::One(_, node) => node.at().into_iter().collect(),
        }
    }
}
