//! What an operator may ask of a gate at work, and calls that no limit is asked about.

use std::sync::atomic::Ordering;

use super::{BOUNDLESS, Driver, HeldPermit, Stale};
use crate::{
    api::Group,
    limit::{Arrival, Foresight, Policy},
    moment::Moment,
};

// === impl Driver ===

impl Driver {
    /// New limits, and with them new terms: `swap` is given their number and puts them in force, under the lock, so that no call can come
    /// between the two.
    pub(crate) fn reconfigure(&self, policy: Policy, swap: impl FnOnce(u64)) {
        self.operate(|state, now| {
            state.terms += 1;
            swap(state.terms);
            state.limiter.reconfigure(policy, now);
        });
    }

    /// A call that no limit is asked about.
    pub(crate) fn let_by(&self, arrival: &Arrival<'_>) -> HeldPermit {
        let (permit, now) = self.operate(|state, now| (state.limiter.let_by(arrival, now), now));
        HeldPermit::new(self.clone(), permit, now)
    }

    /// Whether the limiter only plays: the calls find connections for themselves, so that for the limiter there is always room.
    pub(crate) fn cast_shadow(&self, shadow: bool) {
        if self.shared.shadow.swap(shadow, Ordering::SeqCst) != shadow {
            let change = if shadow { BOUNDLESS } else { -BOUNDLESS };
            for group in [Group::Leases, Group::Short, Group::LongRunning] {
                self.operate(|state, now| state.limiter.add_room(group, change, now));
            }
        }
    }

    /// Gives back the room that a permit took whose call found a connection for itself.
    pub(crate) fn give_room(&self, permit: &HeldPermit, group: Group) {
        if !permit.is_exempt() {
            self.operate(|state, now| state.limiter.add_room(group, 1, now));
        }
    }

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

    /// Ends every pause, and says how many there were.
    pub(crate) fn lift_pauses(&self) -> usize {
        self.operate(|state, now| state.limiter.lift_pauses(now))
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
