//! The limits in force, and how they apply to a call.

use std::time::Duration;

use super::{
    Arrival, CallFacts, ClassId, ClassPolicy, Combine, Demand, Lane, Lasts, Mode, Origins, PerClass, Policy, QueueKey,
    Strategy,
};
use crate::key::Key;
use crate::moment::Moment;
use crate::quota::CallQuota;
use crate::sketch::in_class;

/// The limits in force.
#[derive(Debug)]
pub(crate) struct Rules {
    policy: Policy,
    /// For each class, a number that stays the same when the configuration is reloaded.
    serials: PerClass<u32>,
    /// Set while an operator lets every call pass without limits.
    bypassed: bool,
    /// Set once quotas are paced, so that sent calls must be reported.
    slowed: bool,
    /// Set in rare cases: `bypassed`, `slowed`, or classes with enforced rates per object.
    is_unusual: bool,
    /// The usual time from sending a call until its answer, for failed calls.
    failing_for: Option<Duration>,
}

// === impl Rules ===

impl Rules {
    pub(crate) fn new(policy: Policy) -> Self {
        let mut serials = 0..;
        Self {
            serials: policy.per_class(|_| serials.next().unwrap_or(u32::MAX)),
            is_unusual: policy.enforces_per_key(),
            bypassed: false,
            slowed: false,
            failing_for: None,
            policy,
        }
    }

    #[inline]
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Gives each class of a new policy the serial number of the old class with the same name.
    /// Returns the old class of each new one.
    pub(crate) fn adopt_classes(&mut self, policy: &Policy) -> Origins {
        let mut fresh = self.serials.iter().map(|(_, serial)| serial.wrapping_add(1)).max().unwrap_or(0)..;
        let old = &self.policy.classes;
        let origins = policy.per_class(|class| (0..).map(ClassId).zip(old).find(|(_, old)| old.name == class.name));
        let origins = origins.map(|origin| origin.map(|(id, _)| id));
        let kept = |origin: &Option<ClassId>| origin.and_then(|origin| self.serials.get(origin).copied());
        self.serials = origins.map(|origin| kept(origin).or_else(|| fresh.next()).unwrap_or(u32::MAX));
        origins
    }

    /// Puts a new policy in force, after [`Self::adopt_classes`].
    pub(crate) fn replace(&mut self, policy: Policy) {
        self.policy = policy;
        self.note_unusual();
    }

    fn note_unusual(&mut self) {
        self.is_unusual = self.bypassed || self.slowed || self.policy.enforces_per_key();
    }

    pub(crate) fn set_bypass(&mut self, on: bool) {
        self.bypassed = on;
        self.note_unusual();
    }

    pub(crate) fn set_slowed(&mut self, slowed: bool) {
        self.slowed = slowed;
        self.note_unusual();
    }

    pub(crate) fn is_bypassed(&self) -> bool {
        self.bypassed
    }

    #[inline]
    pub(crate) fn is_unusual(&self) -> bool {
        self.is_unusual
    }

    /// Returns an arriving call in the form the limiter works with. An unknown class becomes the
    /// default class.
    pub(crate) fn read(&self, arrival: &Arrival<'_>, quota: CallQuota, now: Moment) -> CallFacts {
        let exists = usize::from(arrival.class.0) < self.policy.classes.len();
        let class = if exists { arrival.class } else { self.policy.default_class() };
        let policy = self.policy.class(class);
        let forgetful = policy.lane == Lane::Exempt || policy.backoff.strategy == Strategy::Off;
        let alone = policy.lane != Lane::Exempt && self.policy.one_at_a_time && arrival.write;
        let Arrival { flow, credential, group, .. } = *arrival;
        let lasts = Lasts::new(arrival.long_running, arrival.lists_first);
        CallFacts {
            demand: Demand { class, flow: flow.id, credential, quota, group, lasts, cost: arrival.cost },
            serial: *self.serials.of(class),
            key: arrival.key.filter(|_| !forgetful || alone),
            write: arrival.write,
            patient: arrival.patient,
            arrived: now,
            half_time: arrival.timeout.map_or(Moment::MAX, |timeout| now + timeout / 2),
        }
    }

    /// Returns the hash for counting calls of an object in the call's class.
    pub(crate) fn counted_as(&self, key: &Key, arrival: &Arrival<'_>) -> u64 {
        let serial = self.serials.get(arrival.class).copied().unwrap_or(u32::MAX);
        in_class(key.object, serial, arrival.reads)
    }

    /// Returns the present index of a call's class. A reload may have moved the class, or removed
    /// it: then it is the default class.
    pub(crate) fn class_of(&self, call: &CallFacts) -> ClassId {
        self.find_class(call.serial, call.demand.class).unwrap_or_else(|| self.policy.default_class())
    }

    /// Returns the present index of the class with this serial number. The former index `was` is
    /// tried first, because only a reload moves classes, and there may be a thousand.
    pub(crate) fn find_class(&self, serial: u32, was: ClassId) -> Option<ClassId> {
        let stays = self.serials.get(was) == Some(&serial);
        if stays { Some(was) } else { self.serials.find(|other| *other == serial) }
    }

    /// Returns the number of a class that stays the same when the configuration is reloaded.
    pub(crate) fn serial(&self, class: ClassId) -> Option<u32> {
        self.serials.get(class).copied()
    }

    #[inline]
    pub(crate) fn class(&self, call: &CallFacts) -> &ClassPolicy {
        self.policy.class(call.demand.class)
    }

    /// Returns the cost of a call in tokens.
    #[inline]
    pub(crate) fn cost(&self, call: &CallFacts) -> u16 {
        self.class(call).cost.of(call.demand.cost)
    }

    /// Returns true if a call waits for nothing: its class is exempt, or an operator has lifted all
    /// limits.
    pub(crate) fn is_exempt(&self, call: &CallFacts) -> bool {
        self.bypassed || self.class(call).lane == Lane::Exempt
    }

    /// Returns the end of a call's wait under the gate's own limit, `max_wait`.
    #[inline]
    pub(crate) fn longest_wait(&self, call: &CallFacts) -> Moment {
        call.arrived + self.policy.queue.max_wait
    }

    /// Returns the end of a call's wait: under the gate's limit, or at half of the client's
    /// deadline if that is sooner.
    #[inline]
    pub(crate) fn ends(&self, call: &CallFacts) -> Moment {
        call.half_time.min(self.longest_wait(call))
    }

    /// Returns until when a call may wait for its key, if its wait begins now.
    #[inline]
    pub(crate) fn hold_ends(&self, call: &CallFacts, now: Moment) -> Moment {
        now + self.class(call).backoff.hold
    }

    /// Records the duration of a failed call. A shorter one than usual counts at once and a longer
    /// one only a little, because a retry refused too late blocks a controller's worker for
    /// nothing.
    pub(crate) fn note_failure(&mut self, after: Duration) {
        if self.policy.slow_refusals {
            let usual = self.failing_for.unwrap_or(after);
            self.failing_for = Some(after.min(usual + after.saturating_sub(usual) / SLOWLY));
        }
    }

    /// Returns when to refuse a call of a failing key arriving now; `None` to refuse it at once.
    pub(crate) fn refused_at(&self, call: &CallFacts, now: Moment) -> Option<Moment> {
        let usual = self.failing_for.filter(|usual| self.policy.slow_refusals && !usual.is_zero())?;
        let at = now + usual.min(self.class(call).backoff.hold);
        (at > now).then_some(at)
    }

    /// Returns true if a call must wait until `hold_ends` before it may be refused.
    pub(crate) fn holds_on(&self, hold_ends: Moment, now: Moment) -> bool {
        self.policy.slow_refusals && hold_ends > now
    }

    /// Returns true if the call is a write, and writes of its key go one at a time.
    #[inline]
    pub(crate) fn goes_alone(&self, call: &CallFacts) -> bool {
        self.policy.one_at_a_time && call.write && call.key.is_some()
    }

    /// Returns true if a retry token is reserved when the call arrives, instead of taken when the
    /// call is sent.
    #[inline]
    pub(crate) fn reserves(&self, call: &CallFacts) -> bool {
        self.is_metered(call) && self.policy.queue.combine == Combine::MaxOf
    }

    /// Returns true if a call takes tokens.
    #[inline]
    pub(crate) fn is_metered(&self, call: &CallFacts) -> bool {
        call.demand.lasts != Lasts::Long || self.class(call).meter_long_running
    }

    /// Returns the identity of a call's queue. It contains the credential only where buckets or
    /// slots are split by it.
    pub(crate) fn queue_key(&self, call: &CallFacts, retry: bool) -> QueueKey {
        let Demand { class, flow, credential, quota, group, lasts, .. } = call.demand;
        let credential = if self.policy.splits_by_credential(class) { credential } else { 0 };
        QueueKey { class, flow, mode: Mode { group, lasts, retry }, credential, quota }
    }
}

/// A failure slower than usual lengthens the usual time by one part in this many. The usual time is
/// then that of quick failures: a client also waits for the gate itself.
const SLOWLY: u32 = 64;
