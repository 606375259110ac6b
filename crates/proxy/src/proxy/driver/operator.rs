//! An operator's commands to a running gate, and admission without limits.

use std::sync::Arc;

use super::twin::{Twin, TwinCounts};
use super::{Driver, DriverState, HeldPermit, Learning};
use crate::limit::snapshot::{FrozenLimiter, Gap};
use crate::limit::{Arrival, LongestQueues, Snapshot, Walk};
use crate::lock;
use crate::moment::Moment;
use crate::proxy::gate_config::GateConfig;
use crate::proxy::tally::{Comparison, Tally};

// === impl Driver ===

impl Driver {
    /// Puts the limits of a configuration in force, after those of `before`. `swap` replaces the old
    /// configuration while the limiter is locked, so that no call sees new limits with an old
    /// configuration.
    pub(crate) fn reconfigure(
        &self,
        config: &GateConfig,
        before: &GateConfig,
        tally: &Arc<Tally>,
        swap: impl FnOnce(),
    ) {
        self.operate(|state, now| {
            state.generation = config.generation;
            swap();
            state.own.limiter.reconfigure(config.options.gate.policy.clone(), now);
            state.renew_twins(config, Some(before), tally, now);
        });
    }

    /// Makes the twins that this configuration needs. If `is_shadow`, the whole gate is in shadow
    /// mode: its own limiter decides about copies. Call it once.
    pub(crate) fn add_twins(&self, config: &GateConfig, is_shadow: bool, tally: &Arc<Tally>) {
        self.operate(|state, now| {
            if is_shadow {
                state.own.cast_shadow(TwinCounts::Shadow(Arc::clone(tally)), now);
            }
            state.renew_twins(config, None, tally, now);
        });
    }

    /// Restores the limiter's state from an earlier process; `gap` is the time since its end.
    pub(crate) fn thaw(&self, frozen: &FrozenLimiter, gap: Gap) {
        self.operate(|state, now| state.own.limiter.thaw(frozen, gap, now));
    }

    /// Admits a call without asking a limit.
    pub(crate) fn admit_unmetered(&self, arrival: &Arrival<'_>) -> HeldPermit {
        let (permit, now) = self.operate(|state, now| (state.own.limiter.admit_unmetered(arrival, now), now));
        HeldPermit::new(self, permit, now, Learning::All)
    }

    /// Lets every call pass without limits until this moment; `None` puts the limits in force
    /// again.
    pub(crate) fn bypass(&self, until: Option<Moment>) {
        self.operate(|state, now| {
            state.bypass_until = until;
            state.own.limiter.set_bypass(until.is_some(), now);
        });
    }

    /// Returns the end of a bypass, if calls pass without limits now.
    pub(crate) fn bypassed_until(&self) -> Option<Moment> {
        self.lock().bypass_until
    }

    /// Forgets the failing keys with names accepted by `is_meant`, a few at a time. Returns their
    /// number.
    pub(crate) async fn forget(&self, is_meant: &(dyn Fn(&str) -> bool + Sync)) -> usize {
        let mut most = 0;
        for decider in 0..2 {
            let mut walk = Walk::default();
            let mut forgotten = 0;
            while !walk.is_over() {
                let some = self.operate(|state, now| {
                    let limiter = &mut state.deciders().nth(decider)?.limiter;
                    Some(limiter.forget_some(&|name| is_meant(name), &mut walk, now))
                });
                let Some(some) = some else { break };
                forgotten += some;
                tokio::task::yield_now().await;
            }
            most = most.max(forgotten); // a call in force is known to both
        }
        most
    }

    /// Forgets expired keys and plays the twins' events, a few at a time, even while there are no
    /// calls.
    pub(crate) async fn tidy(&self) {
        let advance = |state: &mut DriverState, now| {
            let is_behind = state.deciders().filter_map(|twin| twin.advance(now).then_some(())).count() > 0;
            state.candidate.as_mut().is_some_and(|twin| twin.advance(now)) || is_behind
        };
        while self.operate(advance) {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until the waiting calls are in the queues of the last reloaded configuration.
    pub(crate) async fn caught_up(&self) {
        while self.look(|limiter, _| limiter.is_behind()) {
            self.operate(|state, now| state.own.limiter.advance(now));
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
        let lift = |twin: &mut Twin, now| twin.limiter.lift_pauses(everywhere, now);
        self.operate(|state, now| state.deciders().map(|twin| lift(twin, now)).max()).unwrap_or_default()
    }
}

// === impl DriverState ===

impl DriverState {
    /// Applies a configuration to the twins. If neither the limits nor the candidate have changed
    /// since `before`, a running comparison continues.
    ///
    /// The twin for classes in shadow mode decides as if all classes were enforced. Its tokens,
    /// slots, keys and pauses are its own, so that no enforced call waits for a call in shadow mode.
    /// It sends no requests to stores of shared buckets.
    pub(super) fn renew_twins(
        &mut self,
        config: &GateConfig,
        before: Option<&GateConfig>,
        tally: &Arc<Tally>,
        now: Moment,
    ) {
        let gate = &config.options.gate;
        let policy = (config.has_shadow && !self.own.is_shadow()).then(|| gate.policy.alone());
        self.shadow = match (self.shadow.take(), policy) {
            (Some(mut twin), Some(policy)) => {
                twin.limiter.reconfigure(policy, now);
                Some(twin)
            }
            (_, policy) => policy.map(|policy| Twin::beside(policy, TwinCounts::Shadow(Arc::clone(tally)), now)),
        };
        let is_same = |before: &GateConfig| {
            let before = &before.options.gate;
            before.candidate == gate.candidate && before.policy == gate.policy
        };
        if !before.is_some_and(is_same) {
            let comparison = gate.candidate.as_ref().map(|_| Arc::new(Comparison::new(now)));
            (*lock(&tally.comparison)).clone_from(&comparison);
            let twin = |(policy, counts)| Twin::beside(policy, TwinCounts::Candidate(counts), now);
            self.candidate = gate.candidate.as_deref().cloned().zip(comparison).map(twin);
        }
    }
}
