//! A call's copies at the twins of its gate.

use std::sync::Arc;
use std::time::Duration;

use super::super::{Driver, DriverState, Learning, Stale, Verdict};
use super::{Fate, Stage, Twin};
use crate::api::{Answer, Key};
use crate::limit::{self, Arrival, Limiter, Preview, Receipt};
use crate::moment::Moment;
use crate::proxy::gate_config::GateConfig;

/// A call's copy at a twin. Dropping it reports the end of the call to the twin.
#[derive(derive_more::Debug)]
#[debug("TwinCall {number:?}")]
pub(crate) struct TwinCall {
    driver: Driver,
    is_candidate: bool,
    /// The start of this copy's twin: after a reload there may be a new twin.
    twin: Moment,
    /// The call's number at the twin; `None` once the twin needs nothing more of the real call.
    number: Option<usize>,
}

/// The upstream's answer to a call, for the twins.
#[derive(Clone, Debug)]
pub(crate) struct TwinAnswer {
    pub(crate) answer: Answer,
    /// The call's key, if it was not known before.
    pub(crate) key: Option<Key>,
    /// The readable name of the key, if the call failed.
    pub(crate) name: String,
    /// The time from sending the call to the response head.
    pub(crate) after: Duration,
}

// === impl Driver ===

impl Driver {
    /// Returns what the gate decides about a new call, with the call's copies at the twin of calls in
    /// shadow mode and at the candidate's; both get the arrival as at `at`. A call in shadow mode is
    /// sent without limits. `bytes` returns the bytes that it would hold while it waits.
    ///
    /// # Errors
    /// The configuration was replaced meanwhile.
    pub(crate) fn play(
        &self,
        config: &Arc<GateConfig>,
        arrival: &Arrival<'_>,
        bytes: &dyn Fn() -> usize,
        at: Moment,
    ) -> Result<(Verdict, [Option<TwinCall>; 2]), Stale> {
        let (verdict, shadow, candidate) = self.operate(|state, now| {
            if state.generation != config.generation {
                return Err(Stale);
            }
            let copy = |twin: &mut Twin, bytes| Some((twin.arrive(config, arrival, bytes, at)?, twin.since));
            let shadow = config.has_shadow.then(|| copy(state.decider(true), bytes)).flatten();
            let candidate = state.candidate.as_deref_mut().and_then(|twin| copy(twin, &|| 0));
            let is_shadow = state.own.is_shadow();
            let limiter = &mut state.own.limiter;
            let verdict = if config.is_in_shadow(arrival.class) {
                let learns = if is_shadow { Learning::Nothing } else { Learning::Pauses };
                self.held(limit::Verdict::Admit(limiter.admit_unmetered(arrival, now)), learns, now)
            } else {
                self.held(limiter.arrive(arrival, now), Learning::All, now)
            };
            Ok((verdict, shadow, candidate))
        })?;
        // Made without the lock, which the end of one takes, in a panic too.
        let call =
            |is_candidate, (number, twin)| TwinCall { driver: self.clone(), is_candidate, twin, number: Some(number) };
        Ok((verdict, [shadow.map(|copy| call(false, copy)), candidate.map(|copy| call(true, copy))]))
    }

    /// Returns what would happen to a call now, under the gate's limits or the candidate's. `config`
    /// is the configuration that classified the call; `None` if it was replaced meanwhile.
    pub(crate) fn preview(&self, config: &GateConfig, arrival: &Arrival<'_>, is_candidate: bool) -> Option<Preview> {
        self.operate(|state, now| {
            let is_current = state.generation == config.generation;
            let is_in_shadow = config.is_in_shadow(arrival.class);
            let twin = if is_candidate { state.candidate.as_deref_mut()? } else { state.decider(is_in_shadow) };
            is_current.then(|| twin.preview(arrival, now))
        })
    }
}

// === impl DriverState ===

impl DriverState {
    /// Returns the twin of a call's copy, unless a reload has replaced it.
    fn twin_of(&mut self, copy: &TwinCall) -> Option<&mut Twin> {
        let twin = if copy.is_candidate { self.candidate.as_deref_mut() } else { Some(self.decider(true)) };
        twin.filter(|twin| twin.since == copy.twin)
    }
}

// === impl TwinCall ===

impl TwinCall {
    /// Applies a function to the limiter and the call's receipt, if the twin has sent the call and
    /// does not know its outcome.
    pub(crate) fn tell(&self, apply: &dyn Fn(&mut Limiter, &Receipt, Moment)) {
        self.driver.operate(|state, now| {
            let twin = state.twin_of(self)?;
            let copy = twin.copies.get(self.number?)?;
            if let Stage::Sent { receipt, .. } = &copy.stage {
                apply(&mut twin.limiter, receipt, now);
            }
            Some(())
        });
    }

    /// Reports what has become of the call.
    pub(crate) fn report(&mut self, fate: Fate, at: Moment) {
        let Some(number) = self.number else { return };
        let report = |state: &mut DriverState| state.twin_of(self).is_some_and(|twin| twin.report(number, fate, at));
        // A candidate needs no timer, and no call waits for it.
        let has_end = if self.is_candidate {
            report(&mut self.driver.lock())
        } else {
            self.driver.operate(|state, _| report(state))
        };
        self.number = self.number.filter(|_| has_end);
    }
}

impl Drop for TwinCall {
    fn drop(&mut self) {
        self.report(Fate::Ended, self.driver.clock().now());
    }
}
