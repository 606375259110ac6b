//! Pauses: while a pause is in force, no call of its upstream quota is sent.
//!
//! A longer pause replaces a shorter one, a shorter one changes nothing, and only an operator can
//! end one early. A pause without a length from the upstream grows each time it is repeated, until
//! a call sent after it has succeeded. The number of quotas is bounded: past the bound, the quota
//! whose pause ends first is dropped.

use std::collections::HashMap;
use std::time::Duration;

use super::levels::{MOST, QuotaLevels};
use crate::moment::Moment;
use crate::outcome::{Answer, Charged, Outcome, Pause, PauseLength, QuotaReading};
use crate::quota::{CallQuota, QuotaHint, QuotaId, ResourceId};
use crate::{ClassId, PerClass, Policy};

/// A pause in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseView {
    /// The quota of the paused calls.
    pub quota: QuotaId,
    /// The moment the pause ends.
    pub until: Moment,
    /// True if another gate reported the pause through a shared bucket.
    pub heard: bool,
}

/// Every pause of a gate.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    quotas: HashMap<QuotaId, PauseState>,
    pub(crate) levels: QuotaLevels,
    /// The resources named in responses, by a hash of class and action. They replace the resource
    /// expected from a request.
    learned: HashMap<u64, ResourceId>,
    /// The [`ResourceId`] made from each class's name; pauses of one class are stored under it.
    classes: PerClass<ResourceId>,
    /// The latest end of any pause. Until the first pause, a check costs one comparison.
    last: Moment,
    /// True if some pause has grown, so that successes must be reported to end the growth.
    grows: bool,
    /// The number of changes to the pauses so far.
    changes: u64,
    /// The number of quotas dropped because there were too many.
    dropped: u64,
}

/// The pause of one quota.
#[derive(Clone, Copy, Debug, Default)]
struct PauseState {
    until: Moment,
    /// True if the pause came from another gate.
    heard: bool,
    /// The length of the last pause without a length from the upstream; zero once a call has
    /// succeeded since.
    grown: Duration,
    /// The number of calls sent before that pause. Their answers do not make the pause grow again.
    left: u64,
}

/// A pause of a quota, as saved for a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrozenPause {
    /// The paused quota.
    pub quota: QuotaId,
    /// The time left of the pause.
    pub left: Duration,
    /// The length the pause has grown to, if the upstream named none.
    pub grown: Duration,
}

/// The answered call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) class: ClassId,
    pub(crate) quota: CallQuota,
    /// The call's number in the order of sending.
    pub(crate) left: u64,
}

/// The end of the pause of all calls, and the end of the pauses of a call's own quotas.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    pub(crate) shared: Moment,
    pub(crate) own: Moment,
}

// === impl Pauses ===

impl Pauses {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self { classes: resources(policy), ..Self::default() }
    }

    /// Returns the quota a call will probably be charged to. Earlier answers to calls of the same
    /// class and action count more than the request itself.
    #[inline]
    pub(crate) fn predict(&self, hint: QuotaHint) -> CallQuota {
        let QuotaHint { holder, word, action } = hint;
        let is_told = self.learned.is_empty() || word == ResourceId::FREE;
        let learned = if is_told { None } else { self.learned.get(&action) };
        CallQuota { holder, word: learned.copied().unwrap_or(word) }
    }

    /// Remembers the resource a call was charged to according to its answer, for later calls of the
    /// same action. The resource known before stays while its pause lasts: a call may be charged to
    /// several quotas, and the pause that ends last counts.
    pub(crate) fn learn(&mut self, action: u64, word: ResourceId, predicted: CallQuota, now: Moment) {
        let known = QuotaId { holder: predicted.holder, resource: predicted.word };
        if predicted.is_free() || self.quotas.get(&known).is_some_and(|state| state.until > now) {
            return;
        }
        if self.learned.len() >= MOST {
            self.learned.clear(); // their next answers tell again
        }
        self.learned.insert(action, word);
    }

    /// Returns true if any pause is in force.
    #[inline]
    pub(crate) fn any(&self, now: Moment) -> bool {
        self.last > now
    }

    /// Returns when a call's pauses end, or ended.
    #[inline]
    pub(crate) fn ends(&self, class: ClassId, quota: CallQuota) -> Ends {
        if self.last == Moment::ZERO || quota.is_free() {
            return Ends::default();
        }
        let until = |quota: &QuotaId| self.until(*quota).max(self.levels.next(*quota));
        let [all, own @ ..] = self.of_call(class, quota);
        Ends { shared: until(&all), own: own.iter().map(until).max().unwrap_or_default() }
    }

    /// Returns the end of a call's last pause, counting only pauses asked for by the upstream.
    pub(crate) fn asked_until(&self, class: ClassId, quota: CallQuota) -> Moment {
        let all = self.of_call(class, quota).into_iter().filter(|_| !quota.is_free());
        all.map(|quota| self.until(quota)).max().unwrap_or_default()
    }

    fn until(&self, quota: QuotaId) -> Moment {
        self.quotas.get(&quota).map_or(Moment::ZERO, |state| state.until)
    }

    /// Records the sending of a call. Returns when its last pause ended.
    pub(crate) fn depart(&mut self, class: ClassId, quota: CallQuota, now: Moment) -> Moment {
        let ends = self.ends(class, quota).all();
        if self.levels.slows() && !quota.is_free() {
            let mut all = self.of_call(class, quota);
            all.sort_unstable();
            // Without a holder or a resource some are the same, and are charged once.
            let mut last = None;
            for quota in all.into_iter().filter(|quota| last.replace(*quota) != Some(*quota)) {
                let grown = self.quotas.get(&quota).map_or(Duration::ZERO, |state| state.grown);
                self.last = self.last.max(self.levels.depart(quota, grown, now));
            }
        }
        ends
    }

    /// Returns the earliest moment to send a call after `turns` other calls of its paced quotas.
    pub(crate) fn paced_after(&self, turns: usize, class: ClassId, quota: CallQuota, now: Moment) -> Moment {
        let all = self.of_call(class, quota).into_iter().filter(|_| self.levels.slows());
        all.map(|quota| self.levels.after(quota, turns, now)).max().unwrap_or_default()
    }

    /// Records the reading of a quota in a response.
    pub(crate) fn observe(&mut self, told: &QuotaReading, origin: Origin, outcome: Outcome, now: Moment) {
        let pause = Pause { charged: told.charged, length: PauseLength::Known(told.resets_in) };
        let Some(quota) = self.quota_of(pause, origin).filter(|_| !origin.quota.is_free()) else { return };
        let state = self.quotas.get(&quota).copied().unwrap_or_default();
        let went = outcome == Outcome::Success && !state.grown.is_zero() && origin.left > state.left;
        self.levels.observe(quota, told, went, now);
        self.last = self.last.max(self.levels.next(quota));
    }

    /// Returns a pause with the length its used-up quota needs.
    pub(crate) fn fitted(&self, pause: Pause, told: Option<QuotaReading>, origin: Origin) -> Pause {
        let told = told.filter(|told| told.is_used_up() && told.charged == pause.charged);
        match (told.zip(self.quota_of(pause, origin)), pause.length) {
            (Some((told, quota)), PauseLength::Known(most)) => {
                Pause { length: self.levels.pause(quota, &told, most), ..pause }
            }
            _ => pause,
        }
    }

    /// Limits the wait of an answer to the time left of its used-up quota's pause.
    pub(crate) fn retime(&self, answer: &mut Answer, origin: Origin, now: Moment) {
        let pause = answer.quota.filter(QuotaReading::is_used_up).and(answer.pause);
        let quota = pause.and_then(|pause| self.quota_of(pause, origin));
        if let (Outcome::Throttled { after }, Some(quota)) = (&mut answer.outcome, quota) {
            *after = (*after).min(self.until(quota) - now);
        }
    }

    /// Returns when the pause of the whole gate ends.
    pub(crate) fn gate_ends(&self) -> Moment {
        self.until(QuotaId::ALL).max(self.levels.next(QuotaId::ALL))
    }

    /// Returns the quotas of a call, the whole gate's first. A pause of any one stops the call.
    fn of_call(&self, class: ClassId, quota: CallQuota) -> [QuotaId; 6] {
        let CallQuota { holder, word } = quota;
        let class = self.class(class);
        let word = if word == ResourceId::ALL { class } else { word };
        let of = |holder, resource| QuotaId { holder, resource };
        [QuotaId::ALL, of(0, class), of(0, word), of(holder, ResourceId::ALL), of(holder, class), of(holder, word)]
    }

    /// Returns the quota of a class for all holders together.
    pub(crate) fn of_class(&self, class: ClassId) -> QuotaId {
        QuotaId { holder: 0, resource: self.class(class) }
    }

    fn class(&self, class: ClassId) -> ResourceId {
        self.classes.get(class).copied().unwrap_or_default()
    }

    /// Returns the quota a pause applies to; `None` if the pause concerns only its own call.
    pub(crate) fn quota_of(&self, pause: Pause, origin: Origin) -> Option<QuotaId> {
        let CallQuota { holder, word } = origin.quota;
        let resource = match pause.charged {
            Charged::All => ResourceId::ALL,
            Charged::Named(word) => word,
            Charged::Predicted if word == ResourceId::FREE => return None,
            Charged::Predicted if word != ResourceId::ALL => word,
            Charged::Predicted | Charged::Class => self.class(origin.class),
        };
        Some(QuotaId { holder, resource })
    }

    /// Begins a pause the upstream asked for, and returns its end; `None` if a longer pause is in
    /// force or the pause does not apply. `leaves` is the number of calls sent so far: their
    /// answers do not make the pause grow again.
    pub(crate) fn begin(&mut self, pause: Pause, origin: Origin, leaves: u64, now: Moment) -> Option<Moment> {
        let quota = self.quota_of(pause, origin)?;
        let state = self.quotas.entry(quota).or_default();
        let length = match pause.length {
            PauseLength::Known(length) => length,
            PauseLength::Growing { .. } if state.left > 0 && origin.left <= state.left => return None,
            PauseLength::Growing { first, most } => {
                let length = if state.grown.is_zero() { first } else { state.grown.saturating_mul(2) };
                state.grown = length.min(most);
                state.left = leaves;
                state.grown
            }
        };
        let until = now + length;
        let is_longer = until > state.until.max(now);
        if is_longer {
            state.until = until;
            state.heard = false;
            self.last = self.last.max(until);
        }
        self.grows |= matches!(pause.length, PauseLength::Growing { .. });
        self.changes += 1;
        self.bound(now);
        is_longer.then_some(until)
    }

    /// Drops the quota with the first pause to end, if there are too many, and the learned
    /// resources leading to it.
    fn bound(&mut self, now: Moment) {
        if self.quotas.len() <= MOST {
            return;
        }
        let first = self.quotas.iter().min_by_key(|(quota, state)| (state.until, **quota));
        let Some(first) = first.map(|(quota, _)| *quota) else { return };
        let gone = self.quotas.remove(&first);
        self.learned.retain(|_, word| *word != first.resource);
        self.dropped += u64::from(gone.is_some_and(|state| state.until > now));
    }

    /// Records the success of a call. Earlier pauses of its quota stop growing.
    pub(crate) fn succeeded(&mut self, origin: Origin) {
        self.changes += 1;
        for quota in self.of_call(origin.class, origin.quota) {
            if let Some(state) = self.quotas.get_mut(&quota).filter(|state| origin.left > state.left) {
                state.grown = Duration::ZERO;
            }
        }
        self.grows = self.quotas.values().any(|state| !state.grown.is_zero());
    }

    /// Ends every pause at once and forgets how long they had grown. Returns how many there were.
    pub(crate) fn lift(&mut self, now: Moment) -> usize {
        let lifted = self.in_force(now).count();
        self.quotas.clear();
        self.levels = QuotaLevels::default();
        // A call that leaves now could not have left before this moment.
        self.quotas.insert(QuotaId::ALL, PauseState { until: now, ..PauseState::default() });
        self.last = now;
        self.grows = false;
        self.changes += 1;
        lifted
    }

    /// Applies new limits. Pauses stay with the class of the same name.
    pub(crate) fn reconfigure(&mut self, policy: &Policy) {
        self.classes = resources(policy);
    }

    /// Returns the pauses in force, at most `most` of them, those of the most calls first.
    pub(crate) fn views(&self, now: Moment, most: usize) -> Vec<PauseView> {
        let view = |(quota, state): (&QuotaId, &PauseState)| PauseView {
            quota: *quota,
            until: state.until,
            heard: state.heard,
        };
        let mut views: Vec<_> = self.in_force(now).map(view).collect();
        views.sort_unstable_by_key(|view| view.quota);
        views.truncate(most);
        views
    }

    fn in_force(&self, now: Moment) -> impl Iterator<Item = (&QuotaId, &PauseState)> {
        self.quotas.iter().filter(move |(_, state)| state.until > now)
    }

    /// Returns true if some pause has grown, so that successes must be reported.
    #[inline]
    pub(crate) fn grows(&self) -> bool {
        self.grows
    }

    /// Returns the number of changes to the pauses so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the number of quotas dropped because there were too many.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Begins a pause reported by another gate, and returns its end. `None` if the pause known so
    /// far lasts until `surely` or longer, or the reported one is over. `surely` is a moment
    /// certainly before the end of the reported pause.
    pub(crate) fn hear(&mut self, quota: QuotaId, until: Moment, surely: Moment, now: Moment) -> Option<Moment> {
        if until <= now {
            return None;
        }
        let state = self.quotas.entry(quota).or_default();
        if state.until >= surely {
            return None;
        }
        state.until = until;
        state.heard = true;
        self.last = self.last.max(until);
        self.changes += 1;
        self.bound(now);
        Some(until)
    }

    /// Ends the pause of a quota. Returns true if there was one.
    pub(crate) fn end(&mut self, quota: QuotaId, now: Moment) -> bool {
        let state = self.quotas.get_mut(&quota).filter(|state| state.until > now);
        let was_there = state.map(|state| state.until = now).is_some();
        self.changes += u64::from(was_there);
        was_there
    }

    /// Returns the pauses to save for a restart.
    pub(crate) fn freeze(&self, now: Moment) -> Vec<FrozenPause> {
        let all = self.quotas.iter();
        let all = all.map(|(quota, state)| FrozenPause { quota: *quota, left: state.until - now, grown: state.grown });
        let mut kept: Vec<_> = all.filter(|pause| !pause.left.is_zero() || !pause.grown.is_zero()).collect();
        kept.sort_unstable_by_key(|pause| pause.quota);
        kept
    }

    /// Continues a pause saved before a restart. `gap` is the time since it was saved.
    pub(crate) fn restore(&mut self, pause: &FrozenPause, gap: Duration, now: Moment) {
        let until = now + pause.left.saturating_sub(gap);
        let state = self.quotas.entry(pause.quota).or_default();
        state.until = state.until.max(until);
        state.grown = pause.grown;
        self.last = self.last.max(until);
        self.grows |= !pause.grown.is_zero();
        self.bound(now);
    }
}

// === impl Ends ===

impl Ends {
    /// Returns the latest of the ends of the pauses.
    pub(crate) fn all(self) -> Moment {
        self.shared.max(self.own)
    }
}

fn resources(policy: &Policy) -> PerClass<ResourceId> {
    policy.per_class(|class| ResourceId::of_class(&class.name))
}

#[cfg(test)]
mod tests;
