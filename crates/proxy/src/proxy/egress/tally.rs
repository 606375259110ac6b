//! The counters of the egress listener: tunnels by host, and refusals by reason.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

use metrics::Counter;

use super::reason::{EgressRefusal, HandshakeFailure, Why};
use crate::lock;
use crate::places::Warnings;
use crate::status;
use crate::telemetry::meters::as_f64;
use crate::telemetry::table;

/// Counts tunnels and refusals.
pub(super) struct Tally {
    tunnels: Mutex<BTreeMap<String, Arc<HostTunnels>>>,
    refusals: [AtomicU64; Why::ALL.len()],
    handshakes: Mutex<BTreeMap<HandshakeKey, FailedHandshakes>>,
    pub(super) warnings: Warnings,
}

/// A configured gate, a host and a reason, for counting failed handshakes.
type HandshakeKey = (Arc<str>, String, HandshakeFailure);

/// The failed handshakes of one host for one reason.
struct FailedHandshakes {
    count: u64,
    /// The User-Agent of the first client.
    agent: String,
}

/// The tunnels to one host.
pub(super) struct HostTunnels {
    pub(super) up: AtomicU64,
    pub(super) down: AtomicU64,
    open: AtomicUsize,
    total: AtomicU64,
    /// The gate that lists the host, if any. Its limits do not apply to the calls in these tunnels.
    gate: Option<Arc<str>>,
}

/// An open tunnel.
pub(super) struct OpenTunnel {
    pub(super) host: String,
    pub(super) row: Arc<HostTunnels>,
    /// The metrics of bytes carried by tunnels.
    pub(super) up: Counter,
    pub(super) down: Counter,
}

// === impl Tally ===

impl Tally {
    pub(super) fn new() -> Self {
        for how in ["intercepted", "tunnelled", "plain", "refused"] {
            table::EGRESS_CONNECTIONS.counter(&[how]).increment(0);
        }
        for why in Why::ALL {
            table::EGRESS_REFUSALS.counter(&[why.word()]).increment(0);
        }
        for direction in [UP, DOWN] {
            table::EGRESS_BYTES.counter(&[direction]).increment(0);
        }
        let refusals = std::array::from_fn(|_| AtomicU64::new(0));
        Self { tunnels: Mutex::default(), refusals, handshakes: Mutex::default(), warnings: Warnings::default() }
    }

    /// Counts a connection by what it was used for.
    pub(super) fn became(&self, how: &'static str) {
        table::EGRESS_CONNECTIONS.counter(&[how]).increment(1);
    }

    /// Counts a refusal.
    pub(super) fn refused(&self, refused: &EgressRefusal) {
        table::EGRESS_REFUSALS.counter(&[refused.why.word()]).increment(1);
        if let Some(count) = self.refusals.get(refused.why as usize) {
            count.fetch_add(1, Relaxed);
        }
        tracing::debug!(%refused, "the egress listener refused a request");
    }

    /// Starts the counters of failed handshakes of a gate at zero, so that the metrics show them
    /// from the start.
    pub(super) fn intercepts(&self, gate: &str) {
        for why in HandshakeFailure::ALL {
            table::EGRESS_HANDSHAKES.counter(&[gate, why.word()]).increment(0);
        }
    }

    /// Counts a failed handshake.
    pub(super) fn handshake_failed(&self, gate: &Arc<str>, host: &str, agent: &str, why: HandshakeFailure) {
        table::EGRESS_HANDSHAKES.counter(&[gate, why.word()]).increment(1);
        let mut handshakes = lock(&self.handshakes);
        let host = if handshakes.len() < HOSTS { host } else { OTHERS };
        let first = || FailedHandshakes { count: 0, agent: agent.to_owned() };
        handshakes.entry((Arc::clone(gate), host.to_owned(), why)).or_insert_with(first).count += 1;
    }

    /// Counts a tunnel until the result is dropped.
    pub(super) fn opened(&self, host: &str, gate: Option<&Arc<str>>) -> OpenTunnel {
        let mut tunnels = lock(&self.tunnels);
        let host = if tunnels.contains_key(host) || tunnels.len() < HOSTS { host } else { OTHERS };
        let row = tunnels.entry(host.to_owned()).or_insert_with(|| {
            Arc::new(HostTunnels {
                up: AtomicU64::new(0),
                down: AtomicU64::new(0),
                open: AtomicUsize::new(0),
                total: AtomicU64::new(0),
                gate: gate.cloned(),
            })
        });
        row.total.fetch_add(1, Relaxed);
        row.open.fetch_add(1, Relaxed);
        let bytes = |direction| table::EGRESS_BYTES.counter(&[direction]);
        OpenTunnel { host: host.to_owned(), row: Arc::clone(row), up: bytes(UP), down: bytes(DOWN) }
    }

    /// Updates the gauges.
    pub(super) fn sample(&self) {
        let open = lock(&self.tunnels).values().map(|row| row.open.load(Relaxed)).sum();
        table::EGRESS_TUNNELS.gauge(&[]).set(as_f64(open));
    }

    /// Fills in the status of the listener; the hosts with most tunnels come first.
    pub(super) fn tell(&self, egress: &mut status::EgressStatus) {
        let tunnels = lock(&self.tunnels);
        egress.tunnel_hosts = tunnels.len();
        let row = |(host, row): (&String, &Arc<HostTunnels>)| status::Tunnels {
            host: host.clone(),
            gate: row.gate.as_ref().map(ToString::to_string).unwrap_or_default(),
            open: row.open.load(Relaxed),
            total: row.total.load(Relaxed),
            bytes_up: row.up.load(Relaxed),
            bytes_down: row.down.load(Relaxed),
        };
        egress.tunnels = tunnels.iter().map(row).collect();
        egress.tunnels.sort_by_key(|row| std::cmp::Reverse((row.open, row.total)));
        egress.tunnels.truncate(SHOWN);
        let handshakes = lock(&self.handshakes);
        let row = |((gate, host, why), row): (&HandshakeKey, &FailedHandshakes)| {
            let gate = gate.to_string();
            let host = host.clone();
            let why = why.word().to_owned();
            status::EgressHandshakes { gate, host, why, client: row.agent.clone(), count: row.count }
        };
        egress.handshakes = handshakes.iter().map(row).collect();
        egress.handshakes.sort_by_key(|row| std::cmp::Reverse(row.count));
        egress.handshakes.truncate(SHOWN);
        let refusals = Why::ALL.into_iter().zip(&self.refusals);
        let refusals = refusals
            .map(|(why, count)| status::EgressRefusals { why: why.word().to_owned(), count: count.load(Relaxed) });
        egress.refusals = refusals.filter(|refusals| refusals.count > 0).collect();
    }
}

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        self.row.open.fetch_sub(1, Relaxed);
    }
}

const UP: &str = "up";
const DOWN: &str = "down";
/// The most hosts counted separately.
const HOSTS: usize = 1000;
/// The common name for counting all further hosts.
const OTHERS: &str = "all others";
/// The most hosts on the status page.
const SHOWN: usize = 20;
