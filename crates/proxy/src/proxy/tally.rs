//! A gate's counts since the start, its last ten minutes and its last refusals. They are only shown
//! to people; no limit depends on them.

mod callers;
mod errors;
mod hot;
mod latency;
mod shadow;

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) use self::callers::CallerRow;
use self::callers::Callers;
pub(crate) use self::errors::FailingAnswer;
use self::errors::LastErrors;
use self::hot::Hot;
use self::latency::Latency;
pub(crate) use self::shadow::Comparison;
use self::shadow::Shadow;
use super::quotas::Quotas;
use crate::api::Rejection;
use crate::classify::ClassifiedCall;
use crate::clock::Clock;
use crate::limit::{Reason, Refusal};
use crate::lock;
use crate::moment::Moment;
use crate::status;
use crate::telemetry::table;

/// The counters of a gate's calls, for the status page.
#[derive(Debug)]
pub(crate) struct Tally {
    /// The host or cluster, if the gate is one of several made for single ones.
    pub(crate) host: Option<Arc<str>>,
    /// The calls to that host or cluster in the metrics.
    pub(crate) exported: Option<CallCounters>,
    clock: Clock,
    admitted: AtomicU64,
    refused: AtomicU64,
    bypassed: Bypassed,
    revalidated: AtomicU64,
    pub(crate) callers: Callers,
    pub(crate) latency: Latency,
    lately: Mutex<Lately>,
    /// The upstream's quotas, as its answers last gave them.
    pub(crate) quotas: Quotas,
    /// The objects called too often, or in vain.
    pub(crate) hot: Hot,
    /// The latest error of each failing key.
    pub(crate) errors: LastErrors,
    /// What the limits would have done to calls in shadow mode.
    pub(crate) shadow: Shadow,
    /// The comparison with a candidate's limits, if the gate has a candidate.
    pub(crate) comparison: Mutex<Option<Arc<Comparison>>>,
}

/// The calls to one host or cluster in the metrics, by decision.
#[derive(Debug)]
pub(crate) struct CallCounters {
    pub(crate) sent: metrics::Counter,
    pub(crate) refused: metrics::Counter,
}

/// The number of calls sent without limits during a bypass, as a count and as a metric.
#[derive(Debug)]
struct Bypassed {
    calls: AtomicU64,
    exported: metrics::Counter,
}

#[derive(Debug, Default)]
struct Lately {
    /// The latest refusals first.
    refusals: VecDeque<RefusalRow>,
    history: status::History,
    /// Seconds since the start.
    second: u64,
    /// The number of seconds in the history's current step so far.
    seconds: u32,
    counted: (u64, u64),
    waiting: usize,
    /// For each kind of rejection by the upstream, the number of calls and the moment of the last.
    rejections: [(u64, Moment); Rejection::ALL.len()],
}

/// Refused calls of the same class, reason and object, counted together.
#[derive(Debug)]
struct RefusalRow {
    at: Moment,
    reason: Reason,
    /// Verb and resource, shown in place of the object's name on a status page without names.
    what: String,
    shown: status::Refusal,
}

// === impl Tally ===

impl Tally {
    pub(crate) fn new(gate: &str, clock: Clock) -> Self {
        Self {
            host: None,
            exported: None,
            clock,
            admitted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            bypassed: Bypassed { calls: AtomicU64::new(0), exported: table::BYPASSED.counter(&[gate]) },
            revalidated: AtomicU64::new(0),
            callers: Callers::default(),
            latency: Latency::default(),
            lately: Mutex::default(),
            quotas: Quotas::default(),
            hot: Hot::default(),
            errors: LastErrors::default(),
            shadow: Shadow::default(),
            comparison: Mutex::default(),
        }
    }

    /// Counts a call sent upstream.
    pub(crate) fn admitted(&self) {
        self.admitted.fetch_add(1, Relaxed);
        self.exported.iter().for_each(|exported| exported.sent.increment(1));
    }

    /// Counts a call sent without limits during a bypass.
    pub(crate) fn bypassed(&self) {
        self.bypassed.calls.fetch_add(1, Relaxed);
        self.bypassed.exported.increment(1);
    }

    /// Counts a call answered with a stored answer, after the upstream confirmed it.
    pub(crate) fn revalidated(&self) {
        self.revalidated.fetch_add(1, Relaxed);
    }

    /// Counts a call rejected by the upstream for this reason.
    pub(crate) fn rejected(&self, by: Rejection) {
        let now = self.clock.now();
        if let Some((count, at)) = lock(&self.lately).rejections.get_mut(by as usize) {
            (*count, *at) = (*count + 1, now);
        }
    }

    /// Counts and remembers a call the limiter refused.
    pub(crate) fn refused(&self, class: &str, refusal: &Refusal, call: &ClassifiedCall, by: CallerRow) {
        self.refused.fetch_add(1, Relaxed);
        self.exported.iter().for_each(|exported| exported.refused.increment(1));
        self.callers.refused(by);
        let at = self.clock.now();
        let name = shortened(call.key_name(None));
        let mut lately = lock(&self.lately);
        let alike = |known: &RefusalRow| {
            known.reason == refusal.reason && known.shown.class == *class && known.shown.call == name
        };
        let known = lately.refusals.iter().position(alike).and_then(|index| lately.refusals.remove(index));
        let mut refused = known.unwrap_or_else(|| {
            let class = class.to_owned();
            let reason = refusal.reason.word().to_owned();
            let shown = status::Refusal { class, reason, call: name, ..status::Refusal::default() };
            RefusalRow { at, reason: refusal.reason, what: what(call), shown }
        });
        refused.at = at;
        refused.shown.count += 1;
        refused.shown.retry_in_seconds = (refusal.retry_at - at).as_secs_f64();
        lately.refusals.push_front(refused);
        lately.refusals.truncate(REFUSALS);
    }

    /// Counts a wait, or a refusal if `wait` is `None`, under the gate's own limits, if they are
    /// compared with a candidate's. In shadow mode it is a would-be one.
    pub(crate) fn count_in_force(&self, class: &str, reason: Reason, wait: Option<Duration>) {
        lock(&self.comparison).iter().for_each(|comparison| comparison.in_force.count(class, reason, wait));
    }

    /// Adds the last second to the history; `waiting` is the number of calls waiting now. Called
    /// every second.
    pub(crate) fn second(&self, waiting: usize) {
        let admitted = self.admitted.load(Relaxed);
        let refused = self.refused.load(Relaxed);
        let lately = &mut *lock(&self.lately);
        lately.waiting = lately.waiting.max(waiting);
        lately.seconds += 1;
        lately.second += 1;
        if lately.second.is_multiple_of(60) {
            self.latency.turn();
        }
        if lately.seconds < STEP {
            return;
        }
        let most = u64::try_from(std::mem::take(&mut lately.waiting)).unwrap_or(u64::MAX);
        let history = &mut lately.history;
        for (points, point) in [
            (&mut history.admitted, admitted - lately.counted.0),
            (&mut history.refused, refused - lately.counted.1),
            (&mut history.waiting, most),
        ] {
            points.push(point);
            points.drain(..points.len().saturating_sub(POINTS));
        }
        (lately.seconds, lately.counted) = (0, (admitted, refused));
    }

    /// Adds all counts to the gate's status. Without `names`, object names are left out.
    pub(crate) fn tell(&self, gate: &mut status::GateStatus, names: bool) {
        gate.admitted = self.admitted.load(Relaxed);
        gate.refused = self.refused.load(Relaxed);
        gate.bypassed = self.bypassed.calls.load(Relaxed);
        let agent = |row| if names { self.callers.agent_at(row) } else { String::new() };
        gate.quotas = self.quotas.tell(self.clock.now(), |at| self.clock.wall(at), agent);
        gate.revalidated = self.revalidated.load(Relaxed);
        gate.hot = self.hot.tell(self.clock, names);
        gate.latency = self.latency.tell();
        gate.candidate = lock(&self.comparison).as_ref().map(|comparison| comparison.tell(self.clock));
        gate.callers = if names { self.callers.tell(self.clock) } else { Vec::new() };
        let lately = lock(&self.lately);
        let refusal = |refused: &RefusalRow| status::Refusal {
            at_ms: self.clock.wall(refused.at),
            call: if names { &refused.shown.call } else { &refused.what }.clone(),
            ..refused.shown.clone()
        };
        gate.refusals = lately.refusals.iter().map(refusal).collect();
        let rejection = |(by, (count, at)): (Rejection, (u64, Moment))| {
            let by = by.word().to_owned();
            let at_ms = self.clock.wall(at);
            (count > 0).then_some(status::Rejection { by, count, at_ms })
        };
        gate.rejections = std::iter::zip(Rejection::ALL, lately.rejections).filter_map(rejection).collect();
        gate.history = status::History { step_seconds: STEP, ..lately.history.clone() };
    }
}

/// Returns verb and resource of a call, without any name.
fn what(call: &ClassifiedCall) -> String {
    let verb = call.call.verb.word();
    let resource = call.call.resource();
    let group = call.call.group();
    match (resource, group) {
        ("", _) => verb.to_owned(),
        (resource, "") => format!("{verb} {resource}"),
        (resource, group) => format!("{verb} {resource}.{group}"),
    }
}

/// Cuts a name to a readable length: a client may send a path of any length.
pub(crate) fn shortened(mut name: String) -> String {
    if let Some((end, _)) = name.char_indices().nth(NAME) {
        name.truncate(end);
        name.push('\u{2026}');
    }
    name
}

/// The seconds of one step of the history: 120 of them are ten minutes.
const STEP: u32 = 5;
const POINTS: usize = 120;
/// The most refusals to remember.
const REFUSALS: usize = 20;
/// The most characters of a name in the status.
const NAME: usize = 200;

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use super::*;
    use crate::classify::{ApiKind, Rules};

    fn refuse(tally: &Tally, path: &str, reason: Reason) {
        let (hasher, uri) = (crate::classify::Salt::random(), path.parse().expect("a path"));
        let call = Rules::single(ApiKind::Kubernetes).classify(&Method::PUT, &uri, &HeaderMap::new(), &hasher);
        let refusal = Refusal { reason, retry_at: Moment::ZERO, waited: Duration::ZERO, key: None };
        tally.refused("default", &refusal, &call, tally.callers.called(["controller/1", "", ""], Moment::ZERO));
    }

    fn told(tally: &Tally, names: bool) -> status::GateStatus {
        let mut gate = status::GateStatus::default();
        tally.tell(&mut gate, names);
        gate
    }

    #[tokio::test]
    async fn equal_refusals_are_one_line_and_names_are_left_out_where_they_must_be() {
        let tally = Tally::new("tallied", Clock::start());
        let web = "/apis/apps/v1/namespaces/prod/deployments/web";
        for _ in 0..3 {
            refuse(&tally, web, Reason::Backoff);
        }
        refuse(&tally, web, Reason::Bucket);
        let shown = told(&tally, true);
        let lines: Vec<_> = shown.refusals.iter().map(|it| (it.count, &*it.reason, &*it.call)).collect();
        let name = "write deployments.apps/prod/web";
        assert_eq!(lines, [(1, "bucket", name), (3, "backoff", name)]);
        assert_eq!((shown.refused, told(&tally, false).refusals[0].call.as_str()), (4, "update deployments.apps"));
        for object in 0..100 {
            refuse(&tally, &format!("{web}{object}"), Reason::Backoff);
        }
        assert_eq!(told(&tally, true).refusals.len(), REFUSALS);
        let callers = told(&tally, true).callers;
        assert_eq!((callers.len(), callers[0].calls, callers[0].refused), (1, 104, 104));
        assert!(told(&tally, false).callers.is_empty(), "a user agent may name anything");
        refuse(&tally, &format!("/{}", "x".repeat(60_000)), Reason::Bucket);
        assert!(told(&tally, true).refusals[0].call.chars().count() <= NAME + 1);
    }

    #[tokio::test]
    async fn history_is_ten_minutes_of_five_seconds_each() {
        let tally = Tally::new("tallied", Clock::start());
        for second in 0..700 {
            tally.admitted();
            tally.second(second % 10);
        }
        let history = told(&tally, false).history;
        assert_eq!((history.admitted.len(), history.waiting.len()), (POINTS, POINTS));
        assert!(history.admitted.iter().all(|admitted| *admitted == 5));
        assert_eq!(history.waiting[..2], [4, 9]);
    }
}
