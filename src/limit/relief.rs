//! What an operator may do at night: forget failing keys, and let everything through for a while.

use super::{
    limiter::Limiter,
    table::KeyId,
    waiter::{State, Waiter},
};
use crate::moment::Moment;

// === impl Limiter ===

impl Limiter {
    /// Forgets every failing key whose name `is_meant`; whoever waited for one goes on. Says how many there were.
    pub fn forget(&mut self, is_meant: &dyn Fn(&str) -> bool, now: Moment) -> usize {
        let now = self.catch_up(now);
        let failing = self.keys().list(now);
        let meant: Vec<_> =
            failing.iter().filter(|(name, ..)| is_meant(name)).map(|(_, key, _)| KeyId::from(key)).collect();
        for key in &meant {
            self.table.forget(*key);
            self.stirred.push(*key);
        }
        self.run(now);
        meant.len()
    }

    /// While on, every call leaves at once and spends nothing, and whoever waits is let go. Buckets fill and keys are remembered as ever, so
    /// that all limits hold again from the moment it is off.
    pub fn set_bypass(&mut self, on: bool, now: Moment) {
        let now = self.catch_up(now);
        self.bypassed = on;
        if !on {
            return;
        }
        let waiting: Vec<u32> =
            self.waiters.iter().filter(|(_, waiter)| waiter.is_waiting()).map(|(index, _)| index).collect();
        for index in waiting {
            // One may be gone already: its key's trial was among them.
            if self.waiters.get(index).is_some_and(Waiter::is_waiting) {
                self.let_go(index, now);
            }
        }
        self.run(now);
    }

    /// Whether everything is let through.
    #[must_use]
    pub fn is_bypassed(&self) -> bool {
        self.bypassed
    }

    /// A waiting call leaves as an exempt one does.
    pub(super) fn let_go(&mut self, index: u32, now: Moment) {
        self.withdraw(index, now);
        let mut grant = self.exempt_grant();
        if let Some(waiter) = self.waiters.get(index) {
            grant.waited = waiter.held_for.map(|reason| (reason, now - waiter.call.arrived));
        }
        self.conclude(index, State::Granted(Box::new(grant)));
    }
}
