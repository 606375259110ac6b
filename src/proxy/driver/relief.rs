//! What an operator may ask of a gate at work.

use super::{Driver, Stale};
use crate::{
    limit::{Arrival, Foresight},
    moment::Moment,
};

// === impl Driver ===

impl Driver {
    /// Lets everything through until then; `None` for no longer.
    pub(crate) fn bypass(&self, until: Option<Moment>) {
        self.operate(|state, now| {
            state.bypass_until = until;
            state.limiter.set_bypass(until.is_some(), now);
        });
    }

    /// Until when everything is let through, if it is.
    pub(crate) fn bypassed_until(&self) -> Option<Moment> {
        self.lock().bypass_until
    }

    /// Forgets the failing keys that are meant, and says how many there were.
    pub(crate) fn forget(&self, is_meant: &dyn Fn(&str) -> bool) -> usize {
        self.operate(|state, now| state.limiter.forget(is_meant, now))
    }

    /// What would happen to a call that came now, read under the terms of this number.
    ///
    /// # Errors
    /// There are other terms now.
    pub(crate) fn foresee(&self, terms: u64, arrival: &Arrival<'_>) -> Result<Foresight, Stale> {
        self.operate(
            |state, now| {
                if state.terms == terms { Ok(state.limiter.foresee(arrival, now)) } else { Err(Stale) }
            },
        )
    }
}
