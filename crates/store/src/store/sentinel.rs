//! Finds the server of a store, and asks sentinels where the primary is.
//!
//! All of them are asked at once. As soon as most of them name the same server, that is it, so that
//! a sentinel that is gone costs no time, and one that was cut off from the others is outvoted.
//! After half of the timeout the server that most of those named that have answered is taken.

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::Value;

use super::dial::{Connection, Dialer};
use super::fault::Fault;
use crate::spec::{Endpoint, StoreAddress};

/// The sentinels' answers so far.
#[derive(Default)]
struct Votes {
    named: Vec<(Endpoint, usize)>,
    fault: Option<Fault>,
}

// === impl Dialer ===

impl Dialer {
    /// Connects to the server that has every bucket. Sentinels are asked for it each time.
    ///
    /// # Errors
    /// There is no connection within the timeout.
    pub(super) async fn dial(&self) -> Result<Connection, Fault> {
        match &self.store.address {
            StoreAddress::Unix(path) => self.dial_socket(path).await,
            StoreAddress::Tcp(at) => self.dial_at(at).await,
            StoreAddress::Sentinel { sentinels, primary: name } => {
                self.dial_at(&primary(self, sentinels, name).await?).await
            }
            StoreAddress::Cluster { .. } => Err(Fault::SentOn), // each bucket has a node of its own
        }
    }
}

/// Returns the server that the sentinels name.
async fn primary(dialer: &Dialer, sentinels: &[Endpoint], name: &str) -> Result<Endpoint, Fault> {
    let mut answers: FuturesUnordered<_> = sentinels.iter().map(|at| ask(dialer, at, name)).collect();
    let mut votes = Votes::default();
    let most = async {
        while let Some(answer) = answers.next().await {
            if votes.take(answer) * 2 > sentinels.len() {
                break;
            }
        }
    };
    _ = tokio::time::timeout(dialer.store.timeout / 2, most).await;
    while votes.named.is_empty() {
        let Some(answer) = answers.next().await else { break };
        votes.take(answer);
    }
    votes.result()
}

/// Asks one sentinel for the primary of this name.
pub(super) async fn ask(dialer: &Dialer, at: &Endpoint, name: &str) -> Result<Endpoint, Fault> {
    let mut connection = dialer.dial_sentinel(at).await?;
    let mut question = redis::cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(name);
    let answer = dialer.in_time(async { Ok(question.query_async::<Value>(&mut connection.redis).await?) }).await?;
    match answer {
        Value::Nil => Err(Fault::NoPrimary(name.to_owned())),
        answer => {
            let (host, port) = redis::from_redis_value::<(String, u16)>(answer).map_err(|_| Fault::Nonsense)?;
            let fits =
                !host.is_empty() && host.len() <= LONGEST_HOST && host.bytes().all(|byte| byte.is_ascii_graphic());
            if fits { Ok(Endpoint { host, port }) } else { Err(Fault::Nonsense) }
        }
    }
}

// === impl Votes ===

impl Votes {
    /// Takes an answer. Returns how many have named the same server.
    fn take(&mut self, answer: Result<Endpoint, Fault>) -> usize {
        match answer {
            Ok(at) => match self.named.iter_mut().find(|(named, _)| *named == at) {
                Some((_, count)) => {
                    *count += 1;
                    *count
                }
                None => {
                    self.named.push((at, 1));
                    1
                }
            },
            Err(fault) => {
                // A sentinel that answers knows more than one that cannot be reached.
                if self.fault.as_ref().is_none_or(|fault| matches!(fault, Fault::Timeout | Fault::Io(_))) {
                    self.fault = Some(fault);
                }
                0
            }
        }
    }

    /// Returns the server that most have named; of several, the one that was named first.
    fn result(self) -> Result<Endpoint, Fault> {
        let most = self.named.iter().map(|(_, count)| *count).max();
        let named = self.named.into_iter().find(|(_, count)| Some(*count) == most);
        named.map(|(at, _)| at).ok_or_else(|| match self.fault {
            Some(fault @ Fault::NoPrimary(_)) => fault,
            fault => Fault::Sentinels(Box::new(fault.unwrap_or(Fault::Timeout))),
        })
    }
}

const LONGEST_HOST: usize = 255;
