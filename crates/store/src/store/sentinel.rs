//! Finds the server of a store, through its sentinels if it has any.
//!
//! All sentinels are asked at once, and the primary is the server that most of them name. So a
//! sentinel that is gone costs no time, and one that was cut off from the others is outvoted. After
//! half of the timeout, the answers so far decide.

use std::cmp::Reverse;
use std::pin::pin;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::Value;

use super::dial::{Dialer, StoreConnection};
use super::fault::Fault;
use crate::spec::{Endpoint, StoreAddress};

// === impl Dialer ===

impl Dialer {
    /// Connects to the server with all buckets. Sentinels are asked for it each time.
    ///
    /// # Errors
    /// No connection could be made within the timeout.
    pub(super) async fn dial(&self) -> Result<StoreConnection, Fault> {
        match &self.store.address {
            StoreAddress::Unix(path) => self.dial_socket(path).await,
            StoreAddress::Tcp(at) => self.dial_at(at).await,
            StoreAddress::Sentinel { sentinels, primary: name } => {
                let at = primary(self, sentinels, name).await?;
                let connection = self.dial_at(&at).await?;
                tracing::info!(store = &*self.store.name, primary = %at, "the sentinels have named the primary");
                Ok(connection)
            }
            StoreAddress::Cluster { .. } => Err(Fault::Redirected), // each bucket has a node of its own
        }
    }
}

/// Returns the server most sentinels name as primary.
async fn primary(dialer: &Dialer, sentinels: &[Endpoint], name: &str) -> Result<Endpoint, Fault> {
    let mut answers: FuturesUnordered<_> = sentinels.iter().map(|at| ask(dialer, at, name)).collect();
    let mut half = pin!(dialer.clock.sleep(dialer.store.timeout / 2));
    let mut named = Vec::new();
    let mut fault = None;
    loop {
        tokio::select! {
            answer = answers.next() => match answer {
                Some(Ok(at)) => {
                    named.push(at);
                    if named.iter().any(|at| votes(&named, at) * 2 > sentinels.len()) {
                        break;
                    }
                }
                // A sentinel that answers knows more than one that cannot be reached.
                Some(Err(other)) if matches!(fault, None | Some(Fault::Timeout | Fault::Io(_))) => fault = Some(other),
                Some(Err(_)) => {}
                None => break,
            },
            () = &mut half, if !named.is_empty() => break,
        }
    }
    // Of equals, the one that was named first.
    let most = named.iter().min_by_key(|at| Reverse(votes(&named, at)));
    most.cloned().ok_or_else(|| match fault {
        Some(fault @ Fault::NoPrimary(_)) => fault,
        fault => Fault::Sentinels(Box::new(fault.unwrap_or(Fault::Timeout))),
    })
}

fn votes(named: &[Endpoint], at: &Endpoint) -> usize {
    named.iter().filter(|other| *other == at).count()
}

/// Asks one sentinel for the primary of this name.
pub(super) async fn ask(dialer: &Dialer, at: &Endpoint, name: &str) -> Result<Endpoint, Fault> {
    let mut connection = dialer.dial_sentinel(at).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("get-master-addr-by-name").arg(name);
    let reply = dialer.in_time(async { Ok(command.query_async::<Value>(&mut connection.redis).await?) }).await?;
    if reply == Value::Nil {
        return Err(Fault::NoPrimary(name.to_owned()));
    }
    let (host, port) = redis::from_redis_value::<(String, u16)>(reply).map_err(|_| Fault::Nonsense)?;
    super::endpoint(&host, port).ok_or(Fault::Nonsense)
}
