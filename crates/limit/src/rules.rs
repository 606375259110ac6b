//! The limits in force, and what they say about a call.

use super::{
    Arrival, Call, ClassId, ClassPolicy, Combine, Demand, Lane, Lasts, Mode, Origins, PerClass, Policy, QueueKey,
    Strategy,
};
use crate::key::Key;
use crate::moment::Moment;
use crate::sketch::in_class;

/// The limits in force.
#[derive(Debug)]
pub(crate) struct Rules {
    policy: Policy,
    /// For each class, a number that stays the same over a reload.
    serials: PerClass<u32>,
    /// True while every call is admitted without limits.
    bypassed: bool,
    /// True if arrivals must check the bypass or the rates per object.
    is_unusual: bool,
}

// === impl Rules ===

impl Rules {
    pub(crate) fn new(policy: Policy) -> Self {
        let mut serials = 0..;
        Self {
            serials: policy.per_class(|_| serials.next().unwrap_or(u32::MAX)),
            is_unusual: policy.enforces_per_key(),
            bypassed: false,
            policy,
        }
    }

    #[inline]
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Gives the classes of a new policy the lasting numbers of the old ones of their name. Returns
    /// which old class each one was.
    pub(crate) fn adopt_classes(&mut self, policy: &Policy) -> Origins {
        let mut fresh = self.serials.iter().map(|(_, serial)| serial.wrapping_add(1)).max().unwrap_or(0)..;
        let old = &self.policy.classes;
        let origins = policy.per_class(|class| (0..).map(ClassId).zip(old).find(|(_, old)| old.name == class.name));
        let origins = origins.map(|origin| origin.map(|(id, _)| id));
        let kept = |origin: &Option<ClassId>| origin.and_then(|origin| self.serials.get(origin).copied());
        self.serials = origins.map(|origin| kept(origin).or_else(|| fresh.next()).unwrap_or(u32::MAX));
        origins
    }

    /// Replaces the policy, whose classes have been adopted.
    pub(crate) fn replace(&mut self, policy: Policy) {
        self.policy = policy;
        self.is_unusual = self.bypassed || self.policy.enforces_per_key();
    }

    pub(crate) fn set_bypass(&mut self, on: bool) {
        self.bypassed = on;
        self.is_unusual = on || self.policy.enforces_per_key();
    }

    pub(crate) fn is_bypassed(&self) -> bool {
        self.bypassed
    }

    #[inline]
    pub(crate) fn is_unusual(&self) -> bool {
        self.is_unusual
    }

    /// Reads an arrival. A class that does not exist is the default class.
    pub(crate) fn read(&self, arrival: &Arrival<'_>, now: Moment) -> Call {
        let exists = usize::from(arrival.class.0) < self.policy.classes.len();
        let class = if exists { arrival.class } else { self.policy.default_class() };
        let policy = self.policy.class(class);
        let forgetful = policy.lane == Lane::Exempt || policy.backoff.strategy == Strategy::Off;
        let alone = policy.lane != Lane::Exempt && self.policy.one_at_a_time && arrival.write;
        let Arrival { flow, credential, group, .. } = *arrival;
        let lasts = Lasts::new(arrival.long_running, arrival.lists_first);
        Call {
            demand: Demand { class, flow: flow.id, credential, group, lasts, cost: arrival.cost },
            serial: *self.serials.of(class),
            key: arrival.key.filter(|_| !forgetful || alone),
            write: arrival.write,
            patient: arrival.patient,
            arrived: now,
            half_time: arrival.timeout.map_or(Moment::MAX, |timeout| now + timeout / 2),
        }
    }

    /// Returns the number under which the object of a call is counted for its class.
    pub(crate) fn counted_as(&self, key: &Key, arrival: &Arrival<'_>) -> u64 {
        let serial = self.serials.get(arrival.class).copied().unwrap_or(u32::MAX);
        in_class(key.object, serial, arrival.reads)
    }

    /// Returns the class of a call, which a reload may have moved. A class that is gone has become
    /// the default class.
    pub(crate) fn class_of(&self, call: &Call) -> ClassId {
        self.find_class(call.serial, call.demand.class).unwrap_or_else(|| self.policy.default_class())
    }

    /// Returns the class of a lasting number, or `None` if it is gone. It is looked for first where
    /// it was: only a reload moves classes, and there may be a thousand of them.
    pub(crate) fn find_class(&self, serial: u32, was: ClassId) -> Option<ClassId> {
        let stays = self.serials.get(was) == Some(&serial);
        if stays { Some(was) } else { self.serials.find(|other| *other == serial) }
    }

    /// Returns the lasting number of a class.
    pub(crate) fn serial(&self, class: ClassId) -> Option<u32> {
        self.serials.get(class).copied()
    }

    #[inline]
    pub(crate) fn class(&self, call: &Call) -> &ClassPolicy {
        self.policy.class(call.demand.class)
    }

    /// Returns the tokens that a call takes from each bucket that counts costs.
    #[inline]
    pub(crate) fn cost(&self, call: &Call) -> u16 {
        self.class(call).cost.of(call.demand.cost)
    }

    /// True if a call waits for nothing: its class is exempt, or a bypass is on.
    pub(crate) fn is_exempt(&self, call: &Call) -> bool {
        self.bypassed || self.class(call).lane == Lane::Exempt
    }

    /// Returns the moment at which the gate would end the call's wait.
    #[inline]
    pub(crate) fn longest_wait(&self, call: &Call) -> Moment {
        call.arrived + self.policy.queue.max_wait
    }

    /// Returns the moment at which the call's wait ends in any case.
    #[inline]
    pub(crate) fn ends(&self, call: &Call) -> Moment {
        call.half_time.min(self.longest_wait(call))
    }

    /// Returns the moment at which a call that its key begins to hold now is released or refused.
    #[inline]
    pub(crate) fn hold_ends(&self, call: &Call, now: Moment) -> Moment {
        now + self.class(call).backoff.hold
    }

    /// True if at most one call like this one may be past the key stage.
    #[inline]
    pub(crate) fn goes_alone(&self, call: &Call) -> bool {
        self.policy.one_at_a_time && call.write && call.key.is_some()
    }

    /// True if a retry token is reserved when the call arrives instead of taken when it leaves.
    #[inline]
    pub(crate) fn reserves(&self, call: &Call) -> bool {
        self.is_metered(call) && self.policy.queue.combine == Combine::MaxOf
    }

    /// True if a call takes tokens.
    #[inline]
    pub(crate) fn is_metered(&self, call: &Call) -> bool {
        call.demand.lasts != Lasts::Long || self.class(call).meter_long_running
    }

    /// Returns the key of the call's queue, split by credential if buckets, slots or pauses are.
    pub(crate) fn queue_key(&self, call: &Call, retry: bool) -> QueueKey {
        let Demand { class, flow, credential, group, lasts, .. } = call.demand;
        let credential = if self.policy.splits_by_credential(class) { credential } else { 0 };
        QueueKey { class, flow, mode: Mode { group, lasts, retry }, credential }
    }
}
