//! The servers of a store, as one that takes commands: a connection to the server that has every
//! bucket, or a cluster that finds the node of each.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline, RedisResult, Value};

use super::cluster::{Cluster, Command};
use super::fault::Fault;

/// Takes commands. Cheap to clone.
#[derive(Clone)]
pub(super) enum Servers {
    One(MultiplexedConnection),
    Cluster(Arc<Cluster>),
}

// === impl Servers ===

impl Servers {
    /// Sends commands at once. Returns what came of each.
    ///
    /// # Errors
    /// None of them was heard.
    pub(super) async fn send(&mut self, commands: Vec<Command>) -> Result<Vec<Result<Value, Fault>>, Fault> {
        let connection = match self {
            Self::Cluster(cluster) => return Ok(cluster.send(&commands).await),
            Self::One(connection) => connection,
        };
        let mut pipeline = Pipeline::new();
        let count = commands.len();
        commands.into_iter().for_each(|(_, command)| _ = pipeline.add_command(command));
        let replies: Vec<RedisResult<Value>> = pipeline.ignore_errors().query_async(connection).await?;
        if replies.len() != count {
            return Err(Fault::Nonsense);
        }
        Ok(replies.into_iter().map(|reply| reply.map_err(Fault::from)).collect())
    }

    /// Sends one command, to the server that has this bucket.
    ///
    /// # Errors
    /// The server's answer, or the reason why there is none.
    pub(super) async fn query<T: FromRedisValue>(&mut self, name: &Arc<str>, command: &Cmd) -> Result<T, Fault> {
        let mut replies = self.send(vec![(Arc::clone(name), command.clone())]).await?;
        let reply = replies.pop().unwrap_or(Err(Fault::Nonsense))?;
        redis::from_redis_value(reply).map_err(|_| Fault::Nonsense)
    }
}

impl From<&mut MultiplexedConnection> for Servers {
    fn from(connection: &mut MultiplexedConnection) -> Self {
        Self::One(connection.clone())
    }
}
