//! An operator's commands to a running gate, and admission without limits.

use super::{Driver, HeldPermit, ShadowEntry, Stale};
use crate::api::Group;
use crate::limit::snapshot::{FrozenLimiter, Gap};
use crate::limit::{Arrival, Limiter, LongestQueues, Policy, Preview, Snapshot, Walk};
use crate::moment::Moment;

// === impl Driver ===

impl Driver {
    /// Puts new limits in force, as the configuration number `generation`. `swap` replaces the old
    /// configuration while the limiter is locked, so that no call sees new limits with an old
    /// configuration.
    pub(crate) fn reconfigure(&self, policy: Policy, generation: u64, swap: impl FnOnce()) {
        self.operate(|state, now| {
            state.generation = generation;
            swap();
            state.limiter.reconfigure(policy, now);
        });
    }

    /// Restores the limiter's state from an earlier process; `gap` is the time since its end.
    pub(crate) fn thaw(&self, frozen: &FrozenLimiter, gap: Gap) {
        self.operate(|state, now| state.limiter.thaw(frozen, gap, now));
    }

    /// Admits a call without asking a limit. Its outcome and end go to the shadow entry.
    pub(crate) fn admit_unmetered(&self, arrival: &Arrival<'_>, entry: ShadowEntry) -> HeldPermit {
        let (permit, now) = self.operate(|state, now| (state.limiter.admit_unmetered(arrival, now), now));
        HeldPermit::new(self, permit, now, entry)
    }

    /// Switches to shadow mode: each call finds a connection by itself, so the limiter always
    /// counts enough connections. Call it once.
    pub(crate) fn cast_shadow(&self) {
        self.shared.key_log.cast_shadow();
        for group in [Group::Exempt, Group::Short, Group::LongRunning] {
            self.operate(|state, now| state.limiter.add_room(group, BOUNDLESS, now));
        }
    }

    /// Gives back a permit's room on a connection, because the call gets its connection by other
    /// means.
    pub(crate) fn give_room(&self, permit: &HeldPermit, group: Group) {
        if !permit.is_exempt() {
            self.operate(|state, now| state.limiter.add_room(group, 1, now));
        }
    }

    /// Lets every call pass without limits until this moment; `None` puts the limits in force
    /// again.
    pub(crate) fn bypass(&self, until: Option<Moment>) {
        self.operate(|state, now| {
            state.bypass_until = until;
            state.limiter.set_bypass(until.is_some(), now);
        });
    }

    /// Returns the end of a bypass, if calls pass without limits now.
    pub(crate) fn bypassed_until(&self) -> Option<Moment> {
        self.lock().bypass_until
    }

    /// Forgets the failing keys with names accepted by `is_meant`, a few at a time. Returns their
    /// number.
    pub(crate) async fn forget(&self, is_meant: &(dyn Fn(&str) -> bool + Sync)) -> usize {
        let mut walk = Walk::default();
        let mut forgotten = 0;
        while !walk.is_over() {
            forgotten += self.operate(|state, now| state.limiter.forget_some(&|name| is_meant(name), &mut walk, now));
            tokio::task::yield_now().await;
        }
        forgotten
    }

    /// Forgets expired keys, a few at a time, even while there are no calls.
    pub(crate) async fn tidy(&self) {
        if !self.keys().is_empty() {
            self.advance_while(Limiter::has_expired_keys).await;
        }
    }

    /// Waits until the waiting calls are in the queues of the last reloaded configuration.
    pub(crate) async fn caught_up(&self) {
        self.advance_while(|limiter, _| limiter.is_behind()).await;
    }

    async fn advance_while(&self, is_due: impl Fn(&Limiter, Moment) -> bool) {
        while self.look(&is_due) {
            self.operate(|state, now| state.limiter.advance(now));
            tokio::task::yield_now().await;
        }
    }

    /// Returns the state of the limiter, with its longest queues; these are found a few at a time.
    pub(crate) async fn snapshot(&self) -> Snapshot {
        let mut longest = LongestQueues::default();
        while self.look(|limiter, _| limiter.look_at_queues(&mut longest)) {
            tokio::task::yield_now().await;
        }
        self.look(|limiter, now| Snapshot { queues: limiter.queue_views(&longest, now), ..limiter.overview(now) })
    }

    /// Ends every pause, and returns how many there were.
    pub(crate) fn lift_pauses(&self, everywhere: bool) -> usize {
        self.operate(|state, now| state.limiter.lift_pauses(everywhere, now))
    }

    /// Returns what would happen to a call now. `generation` is the number of the configuration
    /// that classified the call.
    ///
    /// # Errors
    /// The configuration was replaced meanwhile.
    pub(crate) fn preview(&self, generation: u64, arrival: &Arrival<'_>) -> Result<Preview, Stale> {
        self.operate(|state, now| {
            let is_current = state.generation == generation;
            is_current.then(|| state.limiter.preview(arrival, now)).ok_or(Stale)
        })
    }
}

/// The room on connections in shadow mode: more than calls can use up.
const BOUNDLESS: i64 = 1 << 40;
