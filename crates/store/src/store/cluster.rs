//! The nodes of a cluster as one store.
//!
//! All keys of one bucket are in one slot, so a bucket is at home at one node. That is learned from
//! the nodes themselves: any of them is asked, and sends the question on to the right one (`MOVED`,
//! which is remembered, or `ASK` while a slot moves, which is followed once). No topology is read.
//! A node that fails is forgotten as the home of its buckets, so that another is asked next; one
//! that is not ready is forgotten as the home of the bucket in question.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};

use super::dial::{Connection, Dialer};
use super::fault::Fault;
use crate::moment::Moment;
use crate::spec::Endpoint;

/// A cluster, with a connection to each node that is in use.
#[derive(Debug)]
pub(super) struct Cluster {
    dialer: Arc<Dialer>,
    seeds: Vec<Endpoint>,
    known: Mutex<Known>,
}

/// A command, and the name of its bucket.
pub(super) type Command = (Arc<str>, Cmd);

/// The nodes' answers.
#[derive(Debug, Default)]
struct Known {
    /// The nodes that were asked, and when that was last.
    nodes: BTreeMap<Endpoint, (Arc<Node>, Moment)>,
    /// The node of each bucket.
    homes: BTreeMap<Arc<str>, Endpoint>,
    /// Counts the nodes that failed, so that another is asked for the way.
    failed: usize,
}

/// The connection to a node.
#[derive(Debug, Default)]
struct Node {
    connection: tokio::sync::Mutex<Option<(u64, Connection)>>,
    /// The connections that could not be made. Those who have waited for one do not try it again.
    failed: AtomicU64,
    made: AtomicU64,
}

/// A command that has no reply yet.
#[derive(Clone, Debug)]
struct Open {
    index: usize,
    /// The node that was said to have its key while its slot moves.
    asking: Option<Endpoint>,
}

/// A node's word that another has the key.
enum SentOn {
    Moved(Endpoint),
    Ask(Endpoint),
}

// === impl Cluster ===

impl Cluster {
    pub(super) fn new(dialer: Arc<Dialer>, seeds: Vec<Endpoint>) -> Self {
        Self { dialer, seeds, known: Mutex::default() }
    }

    /// Sends each command to the node that has its key. Returns what came of each.
    pub(super) async fn send(&self, commands: &[Command]) -> Vec<Result<Value, Fault>> {
        let mut replies: Vec<Result<Value, Fault>> = commands.iter().map(|_| Err(Fault::SentOn)).collect();
        let mut open: Vec<Open> = (0..commands.len()).map(|index| Open { index, asking: None }).collect();
        for _ in 0..=SENT_ON {
            let mut trips: BTreeMap<Endpoint, Vec<Open>> = BTreeMap::new();
            for one in open.drain(..) {
                let Some((name, _)) = commands.get(one.index) else { continue };
                let at = one.asking.clone().unwrap_or_else(|| self.known().home(name, &self.seeds));
                trips.entry(at).or_default().push(one);
            }
            if trips.is_empty() {
                break;
            }
            let trips = trips.into_iter().map(async |(at, trip)| (self.ask(&at, &trip, commands).await, at, trip));
            for (answers, at, trip) in join_all(trips).await {
                open.extend(self.sort(&at, trip, answers, (commands, &mut replies)));
            }
        }
        self.tidy();
        replies
    }

    /// Puts answers into their places. Returns the commands that are to be sent again.
    fn sort(
        &self,
        at: &Endpoint,
        trip: Vec<Open>,
        answers: Result<Vec<RedisResult<Value>>, Fault>,
        (commands, replies): (&[Command], &mut [Result<Value, Fault>]),
    ) -> Vec<Open> {
        let mut again = Vec::new();
        let mut is_not_ready = false;
        let answers = match answers {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(fault) => {
                self.known().lost(at);
                vec![Err(fault); trip.len()]
            }
        };
        for (one, answer) in trip.into_iter().zip(answers) {
            let (Some(reply), Some((name, _))) = (replies.get_mut(one.index), commands.get(one.index)) else {
                continue;
            };
            let answer = match answer {
                // Nothing listens there. Another node may know better, at once.
                Err(fault @ Fault::Io(_)) => {
                    *reply = Err(fault);
                    again.push(Open { asking: None, ..one });
                    continue;
                }
                Err(fault) => {
                    *reply = Err(fault);
                    continue;
                }
                Ok(answer) => answer,
            };
            match answer.as_ref().err().and_then(|error| sent_on(error, at)) {
                Some(SentOn::Moved(to)) => {
                    self.known().homes.insert(Arc::clone(name), to);
                    again.push(Open { asking: None, ..one });
                }
                Some(SentOn::Ask(to)) => again.push(Open { asking: Some(to), ..one }),
                None => {
                    let answer = answer.map_err(Fault::from);
                    if answer.as_ref().is_err_and(Fault::is_not_ready) {
                        let is_first = !std::mem::replace(&mut is_not_ready, true);
                        if self.known().other_home(name, (at, is_first), &self.seeds) {
                            again.push(Open { asking: None, ..one });
                        }
                    } else if answer.is_ok() && one.asking.is_none() {
                        self.known().homes.insert(Arc::clone(name), at.clone());
                    }
                    *reply = answer;
                }
            }
        }
        again
    }

    /// Sends these commands to one node, at once.
    async fn ask(&self, at: &Endpoint, trip: &[Open], commands: &[Command]) -> Result<Vec<RedisResult<Value>>, Fault> {
        let node = self.known().node(at, self.dialer.clock.now());
        let (number, mut connection) = node.connection(&self.dialer, at).await?;
        let mut pipeline = Pipeline::new();
        for one in trip {
            let Some((_, command)) = commands.get(one.index) else { return Err(Fault::Nonsense) };
            if one.asking.is_some() {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(command.clone());
        }
        let asked = async { Ok(pipeline.ignore_errors().query_async(&mut connection).await?) };
        let replies: Result<Vec<RedisResult<Value>>, Fault> = self.dialer.in_time(asked).await;
        let Ok(replies) = replies else {
            node.end(number).await;
            return replies;
        };
        let mut replies = replies.into_iter();
        let of_each = trip.iter().map(|one| {
            let asking = if one.asking.is_some() { replies.next()? } else { Ok(Value::Nil) };
            let reply = replies.next()?;
            Some(asking.and(reply))
        });
        of_each.collect::<Option<_>>().ok_or(Fault::Nonsense)
    }

    /// Drops the connections that are not in use.
    fn tidy(&self) {
        let now = self.dialer.clock.now();
        let Known { nodes, homes, .. } = &mut *self.known();
        nodes.retain(|at, (_, used)| now - *used < UNUSED || homes.values().any(|home| home == at));
    }

    /// Returns the nodes that buckets are at home at.
    pub(super) fn homes(&self) -> Vec<Endpoint> {
        let mut homes: Vec<_> = self.known().homes.values().cloned().collect();
        homes.sort_unstable();
        homes.dedup();
        homes
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Known ===

impl Known {
    /// Returns the node of a bucket, or one that will know it.
    fn home(&self, name: &str, seeds: &[Endpoint]) -> Endpoint {
        let others = self.nodes.keys().filter(|at| !seeds.contains(at));
        let all: Vec<&Endpoint> = seeds.iter().chain(others).collect();
        let any = all.get(self.failed % all.len().max(1)).copied();
        self.homes.get(name).or(any).cloned().unwrap_or_else(|| Endpoint { host: String::new(), port: 0 })
    }

    fn node(&mut self, at: &Endpoint, now: Moment) -> Arc<Node> {
        let (node, used) = self.nodes.entry(at.clone()).or_insert_with(|| (Arc::default(), now));
        *used = now;
        Arc::clone(node)
    }

    /// Forgets that a bucket is at home at a node that is not ready for it. For the first bucket of
    /// a trip the next node is the one to ask for the way. Returns true if that is another node.
    fn other_home(&mut self, name: &str, (at, is_first): (&Endpoint, bool), seeds: &[Endpoint]) -> bool {
        self.homes.remove(name);
        self.failed = self.failed.wrapping_add(usize::from(is_first));
        self.home(name, seeds) != *at
    }

    /// Forgets that any bucket is at home at a node.
    fn lost(&mut self, at: &Endpoint) {
        self.homes.retain(|_, home| home != at);
        self.failed = self.failed.wrapping_add(1);
    }
}

// === impl Node ===

impl Node {
    /// Returns the connection, with its number. It is made first if there is none, and told the
    /// password in force.
    async fn connection(&self, dialer: &Dialer, at: &Endpoint) -> Result<(u64, MultiplexedConnection), Fault> {
        let failed = self.failed.load(Ordering::SeqCst);
        let mut connection = self.connection.lock().await;
        connection.take_if(|(_, open)| open.has_ended());
        if connection.is_none() {
            if self.failed.load(Ordering::SeqCst) != failed {
                return Err(Fault::Timeout);
            }
            let made = dialer.dial_at(at).await.inspect_err(|fault| self.refused(dialer, fault))?;
            *connection = Some((self.made.fetch_add(1, Ordering::SeqCst), made));
        }
        let Some((number, open)) = &mut *connection else { return Err(Fault::Timeout) };
        if let Err(fault) = dialer.renew(open).await {
            self.refused(dialer, &fault);
            *connection = None;
            return Err(fault);
        }
        Ok((*number, open.redis.clone()))
    }

    fn refused(&self, dialer: &Dialer, fault: &Fault) {
        self.failed.fetch_add(1, Ordering::SeqCst);
        if fault.is_of_password() {
            dialer.refused();
        }
    }

    /// Ends a connection on which something failed, so that no late answer is used.
    async fn end(&self, number: u64) {
        let mut connection = self.connection.lock().await;
        if connection.as_ref().is_some_and(|(of, _)| *of == number) {
            *connection = None;
        }
    }
}

/// Reads `MOVED` and `ASK`. A node that does not know another's name says only its port.
fn sent_on(error: &RedisError, from: &Endpoint) -> Option<SentOn> {
    let (at, _slot) = error.redirect_node()?;
    let (host, port) = at.rsplit_once(':')?;
    let host = if matches!(host, "" | "?") { &from.host } else { host.trim_matches(['[', ']']) };
    let fits = host.len() <= LONGEST_HOST && host.bytes().all(|byte| byte.is_ascii_graphic());
    let to = Endpoint { host: fits.then(|| host.to_owned())?, port: port.parse().ok()? };
    let is_ask = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
    Some(if is_ask { SentOn::Ask(to) } else { SentOn::Moved(to) })
}

/// The most times that a command is sent on.
const SENT_ON: u32 = 5;
/// A connection to a node that is no bucket's home ends after this time.
const UNUSED: Duration = Duration::from_secs(60);
const LONGEST_HOST: usize = 255;
