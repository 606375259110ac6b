//! The egress listener's past: tunnels by host, and refusals by their reason.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::Counter;

use super::reason::{HandshakeFailure, Refused, Why};
use crate::moment::Moment;
use crate::status;
use crate::telemetry::meters::as_f64;
use crate::telemetry::table;

/// Counts connections, tunnels and refusals.
pub(super) struct Tally {
    connections: AtomicUsize,
    tunnels: Mutex<BTreeMap<String, Arc<Row>>>,
    refusals: [AtomicU64; Why::ALL.len()],
    meters: Arc<Meters>,
    handshakes: Mutex<BTreeMap<Failed, Handshakes>>,
    /// The time of the last warning of each kind.
    warned: Mutex<BTreeMap<&'static str, Moment>>,
}

/// The gate, the host and the reason of handshakes that failed.
type Failed = (Arc<str>, String, HandshakeFailure);

/// Handshakes that failed for one reason.
struct Handshakes {
    count: u64,
    /// The first client's name for itself.
    agent: String,
}

/// The bytes of all tunnels, as metrics.
pub(super) struct Meters {
    pub(super) up: Counter,
    pub(super) down: Counter,
}

/// The tunnels to one host.
pub(super) struct Row {
    pub(super) up: AtomicU64,
    pub(super) down: AtomicU64,
    open: AtomicUsize,
    total: AtomicU64,
    /// The gate that lists the host, and whose limits do not hold for tunnels.
    gate: Option<Arc<str>>,
    pub(super) meters: Arc<Meters>,
}

/// A tunnel that is open.
pub(super) struct Open {
    pub(super) host: String,
    pub(super) row: Arc<Row>,
}

/// A connection of a client, counted for as long as it is there.
pub(super) struct Connection<'a>(&'a Tally);

// === impl Tally ===

impl Tally {
    pub(super) fn new() -> Self {
        for how in ["intercepted", "tunnelled", "plain", "refused"] {
            table::EGRESS_CONNECTIONS.counter(&[how]).increment(0);
        }
        for why in Why::ALL {
            table::EGRESS_REFUSALS.counter(&[why.word()]).increment(0);
        }
        let bytes = |direction| {
            let counter = table::EGRESS_BYTES.counter(&[direction]);
            counter.increment(0);
            counter
        };
        let meters = Arc::new(Meters { up: bytes("up"), down: bytes("down") });
        let (tunnels, handshakes, warned) = Default::default();
        let refusals = std::array::from_fn(|_| AtomicU64::new(0));
        Self { connections: AtomicUsize::new(0), tunnels, refusals, meters, handshakes, warned }
    }

    /// Counts a client's connection.
    pub(super) fn connected(&self) -> Connection<'_> {
        self.connections.fetch_add(1, Relaxed);
        Connection(self)
    }

    /// Counts a connection by what became of it.
    pub(super) fn became(&self, how: &'static str) {
        table::EGRESS_CONNECTIONS.counter(&[how]).increment(1);
    }

    /// Counts a refusal.
    pub(super) fn refused(&self, refused: &Refused) {
        table::EGRESS_REFUSALS.counter(&[refused.why.word()]).increment(1);
        if let Some(count) = self.refusals.get(refused.why as usize) {
            count.fetch_add(1, Relaxed);
        }
        tracing::debug!(%refused, "the egress listener refused a request");
    }

    /// Begins to count for a gate that intercepts.
    pub(super) fn intercepts(&self, gate: &str) {
        for why in HandshakeFailure::ALL {
            table::EGRESS_HANDSHAKES.counter(&[gate, why.word()]).increment(0);
        }
    }

    /// Counts a handshake that failed.
    pub(super) fn handshake_failed(&self, gate: &Arc<str>, host: &str, agent: &str, why: HandshakeFailure) {
        table::EGRESS_HANDSHAKES.counter(&[gate, why.word()]).increment(1);
        let mut handshakes = self.handshakes.lock().unwrap_or_else(PoisonError::into_inner);
        let host = if handshakes.len() < HOSTS { host } else { OTHERS };
        let first = || Handshakes { count: 0, agent: agent.to_owned() };
        handshakes.entry((Arc::clone(gate), host.to_owned(), why)).or_insert_with(first).count += 1;
    }

    /// Counts a tunnel that opens.
    pub(super) fn opened(&self, host: &str, gate: Option<&Arc<str>>) -> Open {
        let mut tunnels = self.lock();
        let host = if tunnels.contains_key(host) || tunnels.len() < HOSTS { host } else { OTHERS };
        let row = tunnels.entry(host.to_owned()).or_insert_with(|| {
            let (up, down, open, total) = Default::default();
            Arc::new(Row { up, down, open, total, gate: gate.cloned(), meters: Arc::clone(&self.meters) })
        });
        row.total.fetch_add(1, Relaxed);
        row.open.fetch_add(1, Relaxed);
        Open { host: host.to_owned(), row: Arc::clone(row) }
    }

    /// True once a minute for each kind of warning.
    pub(super) fn may_warn(&self, kind: &'static str, now: Moment) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = warned.get(kind).is_none_or(|last| now.since(*last) >= WARN_AGAIN);
        if is_due {
            warned.insert(kind, now);
        }
        is_due
    }

    /// Sets the gauges.
    pub(super) fn sample(&self) {
        let open = self.lock().values().map(|row| row.open.load(Relaxed)).sum();
        table::EGRESS_TUNNELS.gauge(&[]).set(as_f64(open));
    }

    /// Tells what there was: the hosts with most tunnels first.
    pub(super) fn tell(&self, egress: &mut status::EgressStatus) {
        egress.connections = self.connections.load(Relaxed);
        let tunnels = self.lock();
        egress.tunnel_hosts = tunnels.len();
        let row = |(host, row): (&String, &Arc<Row>)| status::Tunnels {
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
        let handshakes = self.handshakes.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |((gate, host, why), row): (&Failed, &Handshakes)| {
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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Row>>> {
        self.tunnels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.row.open.fetch_sub(1, Relaxed);
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

/// The hosts whose tunnels are counted apart.
const HOSTS: usize = 1000;
/// Stands for all further hosts.
const OTHERS: &str = "all others";
/// The hosts that are shown.
const SHOWN: usize = 20;
const WARN_AGAIN: Duration = Duration::from_secs(60);
