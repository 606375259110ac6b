//! The servers of a store: one connection, or a cluster.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Value};

use super::cluster::{BucketCommand, Cluster};
use super::fault::Fault;

/// Sends commands to the server with their bucket. Cheap to clone.
#[derive(Clone)]
pub(super) enum Servers {
    One(MultiplexedConnection),
    Cluster(Arc<Cluster>),
}

// === impl Servers ===

impl Servers {
    /// Sends commands at once. Returns a reply for each.
    pub(super) async fn send(&self, commands: &[BucketCommand]) -> Vec<Result<Value, Fault>> {
        match self {
            Self::Cluster(cluster) => cluster.send(commands).await,
            Self::One(connection) => {
                let send = async |each: &BucketCommand| Ok(each.command.query_async(&mut connection.clone()).await?);
                join_all(commands.iter().map(send)).await
            }
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
}
