//! The nodes of a Redis cluster as one store.
//!
//! All keys of one bucket are in one hash slot, so a bucket is on one node. The gate finds this
//! node by redirections: any other node redirects a command to it. The redirection `MOVED` is
//! remembered; `ASK`, sent while a slot moves, is followed once. The cluster's topology is not
//! read. After a node fails, the next node is asked for its buckets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tidegate_upstream::lock;

use super::dial::Dialer;
use super::fault::Fault;
use super::node::Node;
use crate::moment::Moment;
use crate::spec::Endpoint;

/// A cluster, with a connection to each node in use.
#[derive(Debug)]
pub(super) struct Cluster {
    dialer: Arc<Dialer>,
    seeds: Vec<Endpoint>,
    layout: Mutex<Layout>,
}

/// A command, and the shared bucket it is for.
pub(super) struct BucketCommand {
    pub(super) bucket: Arc<str>,
    pub(super) command: Cmd,
}

/// The nodes of a cluster and their buckets, as far as they are known.
#[derive(Debug, Default)]
struct Layout {
    /// The nodes asked so far, each with the moment of its last request.
    nodes: BTreeMap<Endpoint, (Arc<Node>, Moment)>,
    /// For each bucket, the node it is on.
    homes: BTreeMap<Arc<str>, Endpoint>,
    /// The index of the node to ask about a bucket on an unknown node.
    guide: usize,
}

/// A node's answer that another node has the bucket.
struct Redirection {
    to: Endpoint,
    /// True for `ASK`: the other node is to be used for this command only, while its slot moves.
    is_once: bool,
}

// === impl Cluster ===

impl Cluster {
    pub(super) fn new(dialer: Arc<Dialer>, seeds: Vec<Endpoint>) -> Self {
        Self { dialer, seeds, layout: Mutex::default() }
    }

    /// Sends each command to the node of its bucket. Returns a reply for each.
    pub(super) async fn send(&self, commands: &[BucketCommand]) -> Vec<Result<Value, Fault>> {
        let replies = join_all(commands.iter().map(|command| self.send_one(command))).await;
        self.close_unused();
        replies
    }

    /// Sends one command, and follows redirections.
    async fn send_one(&self, BucketCommand { bucket, command }: &BucketCommand) -> Result<Value, Fault> {
        let mut asking = None;
        let mut last = Fault::Redirected;
        for _ in 0..=REDIRECTIONS {
            let is_asking = asking.is_some();
            let at = asking.take().unwrap_or_else(|| lock(&self.layout).node_of(bucket, &self.seeds));
            let fault = match self.exchange(&at, command, is_asking).await {
                Ok(Ok(value)) => {
                    if !is_asking {
                        lock(&self.layout).homes.insert(Arc::clone(bucket), at);
                    }
                    return Ok(value);
                }
                Ok(Err(error)) => match redirection(&error, &at) {
                    Some(Redirection { to, is_once }) => {
                        if is_once {
                            asking = Some(to);
                        } else {
                            lock(&self.layout).homes.insert(Arc::clone(bucket), to);
                        }
                        continue;
                    }
                    None => Fault::from(error),
                },
                Err(fault) => {
                    lock(&self.layout).pass_over(&at, &self.seeds);
                    fault
                }
            };
            if fault.is_not_ready() {
                lock(&self.layout).pass_over(&at, &self.seeds);
            }
            // Another node may know better, at once.
            let has_another = fault.is_not_ready() && lock(&self.layout).node_of(bucket, &self.seeds) != at;
            if !(has_another || matches!(fault, Fault::Io(_))) {
                return Err(fault);
            }
            last = fault;
        }
        Err(last)
    }

    /// Sends a command to one node. The outer error is that of the connection, the inner one the
    /// node's reply.
    async fn exchange(&self, at: &Endpoint, command: &Cmd, is_asking: bool) -> Result<RedisResult<Value>, Fault> {
        let node = lock(&self.layout).node(at, self.dialer.clock.now());
        let mut connection = node.connection(&self.dialer, self.dialer.dial_at(at)).await?;
        let mut pipeline = Pipeline::new();
        if is_asking {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(command.clone()).ignore_errors();
        let replies = async { Ok(pipeline.query_async::<Vec<RedisResult<Value>>>(&mut connection).await?) };
        let replies = self.dialer.in_time(replies).await.inspect_err(|_| node.break_off())?;
        replies.into_iter().reduce(RedisResult::and).ok_or(Fault::Nonsense)
    }

    fn close_unused(&self) {
        let now = self.dialer.clock.now();
        let Layout { nodes, homes, .. } = &mut *lock(&self.layout);
        nodes.retain(|at, (_, used)| now - *used < UNUSED || homes.values().any(|home| home == at));
    }

    /// Returns the nodes with buckets.
    pub(super) fn homes(&self) -> Vec<Endpoint> {
        let mut homes: Vec<_> = lock(&self.layout).homes.values().cloned().collect();
        homes.sort_unstable();
        homes.dedup();
        homes
    }
}

// === impl Layout ===

impl Layout {
    /// Returns the node of a bucket or, if it is unknown, the node to ask for the bucket.
    fn node_of(&self, bucket: &str, seeds: &[Endpoint]) -> Endpoint {
        self.homes.get(bucket).cloned().unwrap_or_else(|| self.guide(seeds))
    }

    fn guide(&self, seeds: &[Endpoint]) -> Endpoint {
        let others = self.nodes.keys().filter(|at| !seeds.contains(at));
        let all: Vec<&Endpoint> = seeds.iter().chain(others).collect();
        let guide = all.get(self.guide % all.len().max(1)).copied();
        guide.cloned().unwrap_or_else(|| Endpoint { host: String::new(), port: 0 })
    }

    fn node(&mut self, at: &Endpoint, now: Moment) -> Arc<Node> {
        let (node, used) = self.nodes.entry(at.clone()).or_insert_with(|| (Arc::default(), now));
        *used = now;
        Arc::clone(node)
    }

    /// Forgets which buckets were on a failed node. From now on the next node is asked for them.
    fn pass_over(&mut self, at: &Endpoint, seeds: &[Endpoint]) {
        self.homes.retain(|_, home| home != at);
        // Of several requests that failed at a node, the first moves on.
        if self.guide(seeds) == *at {
            self.guide = self.guide.wrapping_add(1);
        }
    }
}

/// Reads `MOVED` and `ASK`. For a node without a known name they have only the port.
fn redirection(error: &RedisError, from: &Endpoint) -> Option<Redirection> {
    let (at, _slot) = error.redirect_node()?;
    let (host, port) = at.rsplit_once(':')?;
    let host = if matches!(host, "" | "?") { &from.host } else { host.trim_matches(['[', ']']) };
    let to = super::endpoint(host, port.parse().ok()?)?;
    Some(Redirection { to, is_once: error.kind() == ErrorKind::Server(ServerErrorKind::Ask) })
}

/// The most redirections to follow for one command.
const REDIRECTIONS: u32 = 5;
/// How long a connection to a node without buckets is kept.
const UNUSED: Duration = Duration::from_secs(60);
