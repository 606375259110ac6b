//! The gates of the egress listener, one for each host and port. Each is made at the first call
//! from the settings of the gate that lists the host, and dropped when it is not used for a while.
//!
//! Their number is bounded. If none can be dropped, calls to a new host are refused: a host that a
//! gate lists is never let through without its limits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::uri::{Authority, Scheme};

use super::reason::{EgressRefusal, Why};
use super::target::Origin;
use crate::clock::Clock;
use crate::credentials::Proxy;
use crate::lock;
use crate::moment::Moment;
use crate::proxy::gate::Gate;
use crate::telemetry::meters::{LabelCap, RESOURCES, as_f64};
use crate::telemetry::table;
use crate::upstream::{Dns, Target};

/// The gates made so far for single hosts and ports.
pub(super) struct Origins {
    /// The gates in the configuration, by name: templates for the gates made.
    sections: BTreeMap<Arc<str>, Arc<Gate>>,
    via: Option<Proxy>,
    clock: Clock,
    known: Mutex<OriginGates>,
    /// Bounds the number of hosts used as metric labels.
    labels: LabelCap,
}

/// The gates made so far, by the name of the configured gate and by host and port.
type OriginGates = BTreeMap<(Arc<str>, Origin), KnownOrigin>;

/// A host and port with its gate.
struct KnownOrigin {
    gate: Arc<Gate>,
    used: Moment,
    /// The numbers of sent and refused calls already added to the metrics.
    counted: (u64, u64),
}

/// A host and port, and how to reach it.
pub(super) struct Way<'a> {
    pub(super) section: &'a Arc<str>,
    pub(super) origin: Origin,
    pub(super) scheme: Scheme,
    /// Another host and port to connect to in its place, if configured.
    pub(super) connect_to: Option<&'a str>,
}

// === impl Origins ===

impl Origins {
    pub(super) fn new(sections: Vec<Arc<Gate>>, via: Option<Proxy>, clock: Clock) -> Self {
        let sections = sections.into_iter().map(|gate| (Arc::clone(gate.name()), gate)).collect();
        Self { sections, via, clock, known: Mutex::default(), labels: LabelCap::new(RESOURCES) }
    }

    /// Returns the gate of a host and port. If there is none yet, it is made, but at most `most`
    /// gates exist.
    pub(super) fn meet(&self, way: Way<'_>, most: usize) -> Result<Arc<Gate>, EgressRefusal> {
        let mut known = lock(&self.known);
        let at = (Arc::clone(way.section), way.origin);
        if let Some(known) = known.get_mut(&at) {
            known.used = self.clock.now();
            return Ok(Arc::clone(&known.gate));
        }
        if known.len() >= most && !self.drop_idle(&mut known, |_| true) {
            tracing::warn!(
                gate = &*at.0,
                host = %at.1.host,
                origins = known.len(),
                "refused a call to another host: too many hosts are in use at once; raise egress.max_origins"
            );
            return Err(EgressRefusal::new(
                Why::Crowded,
                "too many hosts are in use at once; raise egress.max_origins",
            ));
        }
        let section = self.sections.get(way.section);
        let section = section.ok_or_else(|| EgressRefusal::new(Why::Crowded, "the gate is changing; try again"))?;
        let target = self.target(&at.1, way.scheme, way.connect_to)?;
        // The operator's own address is not judged.
        let dns = way.connect_to.map(|_| Dns { judge: None, ..section.dns() });
        let gate = Arc::new(section.sibling(target, dns));
        if let Some(until) = section.own().driver.bypassed_until() {
            gate.own().driver.bypass(Some(until));
        }
        tracing::debug!(gate = &*at.0, host = %at.1, "first call to a host: it gets limits of its own");
        known.insert(at, KnownOrigin { gate: Arc::clone(&gate), used: self.clock.now(), counted: (0, 0) });
        Ok(gate)
    }

    fn target(&self, origin: &Origin, scheme: Scheme, connect_to: Option<&str>) -> Result<Target, EgressRefusal> {
        let usual = if scheme == Scheme::HTTPS { 443 } else { 80 };
        let own = if origin.port == usual { origin.host.to_string() } else { origin.to_string() };
        let authority: Authority = connect_to
            .unwrap_or(&own)
            .parse()
            .map_err(|_| EgressRefusal::new(Why::Malformed, "the target is not a host and port"))?;
        let server_name = connect_to.map(|_| origin.name());
        let base_path = String::new();
        let proxy = self.via.clone();
        Ok(Target { scheme, authority, base_path, server_name, proxy })
    }

    /// Drops the gate that has not been used for longest, and returns true. Returns false if no
    /// gate is idle, or if `is_over` rejects the time since its last use.
    fn drop_idle(&self, known: &mut OriginGates, is_over: impl Fn(Duration) -> bool) -> bool {
        let now = self.clock.now();
        // Calls under way hold the gate.
        let is_idle = |KnownOrigin { gate, used, .. }: &KnownOrigin| {
            is_over(now - *used) && Arc::strong_count(gate) == 1 && gate.is_quiet()
        };
        let idle = known.iter().filter(|(_, known)| is_idle(known)).min_by_key(|(_, known)| known.used);
        let Some(at) = idle.map(|(at, _)| at.clone()) else { return false };
        if let Some(mut gone) = known.remove(&at) {
            self.count(&at, &mut gone);
            tracing::debug!(gate = &*at.0, host = %at.1, "a host was not called for a while: its limits are forgotten");
        }
        true
    }

    /// Drops all gates not used for this time.
    pub(super) fn tidy(&self, idle: Duration) {
        let mut known = lock(&self.known);
        while self.drop_idle(&mut known, |time| time >= idle) {}
    }

    /// Adds the calls since the last time to the metrics by host; run just before the metrics are
    /// read.
    pub(super) fn sample(&self) {
        let mut known = lock(&self.known);
        table::EGRESS_ORIGINS.gauge(&[]).set(as_f64(known.len()));
        for (at, known) in &mut *known {
            self.count(at, known);
        }
    }

    fn count(&self, (section, origin): &(Arc<str>, Origin), known: &mut KnownOrigin) {
        let host = origin.host.to_string();
        let host = self.labels.value(&host);
        let now = known.gate.own().tally.counts();
        for (decision, now, before) in [("go", now.0, known.counted.0), ("refuse", now.1, known.counted.1)] {
            table::EGRESS_CALLS.counter(&[section, host, decision]).increment(now.saturating_sub(before));
        }
        known.counted = now;
    }

    /// Returns the gates made from a configured gate, by host and port.
    pub(super) fn of(&self, section: &str) -> Vec<(Origin, Arc<Gate>)> {
        let known = lock(&self.known);
        let of = known.iter().filter(|((name, _), _)| **name == *section);
        of.map(|((_, origin), known)| (origin.clone(), Arc::clone(&known.gate))).collect()
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.known).len()
    }

    pub(super) fn sections(&self) -> impl Iterator<Item = &Arc<Gate>> {
        self.sections.values()
    }
}
