//! The gates of the egress listener: one for each origin that was met, made of its section's
//! settings and dropped when it has not been used for a while.
//!
//! Their number is bounded. If none can go, a new origin is refused: a host that a gate lists is
//! never let through without its limits.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::uri::{Authority, Scheme};

use super::reason::{Refused, Why};
use super::target::Origin;
use crate::clock::Clock;
use crate::credentials::Proxy;
use crate::moment::Moment;
use crate::proxy::gate::Gate;
use crate::telemetry::meters::{LabelCap, RESOURCES, as_f64};
use crate::telemetry::table;
use crate::upstream::{Dns, Target};

/// The gates by their section and origin.
pub(super) struct Origins {
    /// The templates of the gates, by the names of their sections.
    sections: BTreeMap<Arc<str>, Arc<Gate>>,
    via: Option<Proxy>,
    clock: Clock,
    known: Mutex<BTreeMap<(Arc<str>, Origin), Known>>,
    /// The hosts that are label values.
    labels: LabelCap,
}

/// An origin whose gate was made.
struct Known {
    met: Arc<Met>,
    /// The calls that were counted: sent and refused.
    counted: (u64, u64),
}

/// The gate of an origin. A connection may remember it weakly, and so does not keep it.
pub(super) struct Met {
    gate: Arc<Gate>,
    /// The nanoseconds until its last use. They change while the origins are locked.
    used: AtomicU64,
}

/// The way to an origin.
pub(super) struct Way<'a> {
    pub(super) section: &'a Arc<str>,
    pub(super) origin: Origin,
    pub(super) scheme: Scheme,
    /// The host and port that is dialled in its place.
    pub(super) connect_to: Option<&'a str>,
}

// === impl Origins ===

impl Origins {
    pub(super) fn new(sections: Vec<Arc<Gate>>, via: Option<Proxy>, clock: Clock) -> Self {
        let sections = sections.into_iter().map(|gate| (Arc::clone(gate.name()), gate)).collect();
        Self { sections, via, clock, known: Mutex::default(), labels: LabelCap::new(RESOURCES) }
    }

    /// Returns the gate of an origin, of which there are at most `most`.
    pub(super) fn gate(&self, way: Way<'_>, most: usize) -> Result<Arc<Gate>, Refused> {
        self.meet(way, most).map(|met| met.0)
    }

    /// The same, with what a connection may remember for [`Origins::again`].
    pub(super) fn meet(&self, way: Way<'_>, most: usize) -> Result<(Arc<Gate>, Weak<Met>), Refused> {
        let mut known = self.lock();
        let at = (Arc::clone(way.section), way.origin);
        if let Some(Known { met, .. }) = known.get(&at) {
            return Ok((met.again(self.clock.now()), Arc::downgrade(met)));
        }
        if known.len() >= most && !self.drop_idle(&mut known, |_| true) {
            tracing::warn!(
                gate = &*at.0,
                host = %at.1.host,
                origins = known.len(),
                "a call was refused: every origin is in use; raise egress.max_origins"
            );
            return Err(Refused::new(Why::Crowded, "too many hosts at once; raise egress.max_origins"));
        }
        let section = self.sections.get(way.section);
        let section = section.ok_or_else(|| Refused::new(Why::Crowded, "the gate is being changed"))?;
        let target = self.target(&at.1, way.scheme, way.connect_to)?;
        // The operator's own address is not judged.
        let dns = way.connect_to.map(|_| Dns { judge: None, ..section.dns() });
        let gate = Arc::new(section.sibling(target, dns));
        if let Some(until) = section.own().driver.bypassed_until() {
            gate.own().driver.bypass(Some(until));
        }
        tracing::debug!(gate = &*at.0, host = %at.1, "an origin was met");
        let used = AtomicU64::new(self.clock.now().as_nanos());
        let met = Arc::new(Met { gate: Arc::clone(&gate), used });
        let remembered = Arc::downgrade(&met);
        known.insert(at, Known { met, counted: (0, 0) });
        Ok((gate, remembered))
    }

    /// Returns the gate of an origin that was met before; `None` if it was dropped since.
    pub(super) fn again(&self, met: &Weak<Met>) -> Option<Arc<Gate>> {
        // Held, so that an origin that goes is not taken up in the same moment.
        let _known = self.lock();
        met.upgrade().map(|met| met.again(self.clock.now()))
    }

    fn target(&self, origin: &Origin, scheme: Scheme, connect_to: Option<&str>) -> Result<Target, Refused> {
        let usual = if scheme == Scheme::HTTPS { 443 } else { 80 };
        let own = if origin.port == usual { origin.host.to_string() } else { origin.to_string() };
        let authority: Authority = connect_to
            .unwrap_or(&own)
            .parse()
            .map_err(|_| Refused::new(Why::Malformed, "the host cannot be called"))?;
        let server_name = connect_to.map(|_| origin.name());
        let base_path = String::new();
        let proxy = self.via.clone();
        Ok(Target { scheme, authority, base_path, server_name, proxy, unused_proxy: None })
    }

    /// Drops the origin that was used least lately, if it is idle and `is_over` says so of the time
    /// since then. True if there was one.
    fn drop_idle(&self, known: &mut BTreeMap<(Arc<str>, Origin), Known>, is_over: impl Fn(Duration) -> bool) -> bool {
        let now = self.clock.now();
        // Calls under way have it too.
        let is_idle = |met: &Met| is_over(now - met.used()) && Arc::strong_count(&met.gate) == 1 && met.gate.is_quiet();
        let idle = known.iter().filter(|(_, known)| is_idle(&known.met)).min_by_key(|(_, known)| known.met.used());
        let Some(at) = idle.map(|(at, _)| at.clone()) else { return false };
        if let Some(mut gone) = known.remove(&at) {
            self.count(&at, &mut gone);
            tracing::debug!(gate = &*at.0, host = %at.1, "an origin was not used for a while and is forgotten");
        }
        true
    }

    /// Drops all that were idle for this long.
    pub(super) fn tidy(&self, idle: Duration) {
        let mut known = self.lock();
        while self.drop_idle(&mut known, |time| time >= idle) {}
    }

    /// Counts calls by host, just before the metrics are read.
    pub(super) fn sample(&self) {
        let mut known = self.lock();
        table::EGRESS_ORIGINS.gauge(&[]).set(as_f64(known.len()));
        for (at, known) in &mut *known {
            self.count(at, known);
        }
    }

    fn count(&self, (section, origin): &(Arc<str>, Origin), known: &mut Known) {
        let host = origin.host.to_string();
        let host = self.labels.value(&host);
        let now = known.met.gate.own().tally.counts();
        for (decision, now, before) in [("go", now.0, known.counted.0), ("refuse", now.1, known.counted.1)] {
            table::EGRESS_CALLS.counter(&[section, host, decision]).increment(now.saturating_sub(before));
        }
        known.counted = now;
    }

    /// The gates of a section, by origin.
    pub(super) fn of(&self, section: &str) -> Vec<(Origin, Arc<Gate>)> {
        let known = self.lock();
        let of = known.iter().filter(|((name, _), _)| **name == *section);
        of.map(|((_, origin), known)| (origin.clone(), Arc::clone(&known.met.gate))).collect()
    }

    /// The number of origins.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// The sections.
    pub(super) fn sections(&self) -> impl Iterator<Item = &Arc<Gate>> {
        self.sections.values()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Arc<str>, Origin), Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Met ===

impl Met {
    /// Notes a use.
    fn again(&self, now: Moment) -> Arc<Gate> {
        self.used.store(now.as_nanos(), Relaxed);
        Arc::clone(&self.gate)
    }

    fn used(&self) -> Moment {
        Moment::from_nanos(self.used.load(Relaxed))
    }
}
