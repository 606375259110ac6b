//! Pauses: after the upstream asked for one, no call in its scope leaves before it is over.
//!
//! A longer pause wins, a shorter one changes nothing, and only an operator can take one back. One
//! without a time grows each time it happens again, until a call that left after it has succeeded.
//! The number of credentials with a pause of their own is bounded; all others share one.

use std::time::Duration;

use super::Split;
use crate::moment::Moment;
use crate::outcome::{Pause, PauseLength, Scope};
use crate::{ClassId, Origins, PerClass, Policy};

/// The calls under a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PauseTarget {
    /// The calls of this class.
    Class(ClassId),
    /// The calls of this credential, by a salted hash: it distinguishes credentials and reveals
    /// nothing else.
    Credential(u64),
    /// The calls of all credentials without a pause of their own.
    OtherCredentials,
    /// Every call that is not exempt.
    Gate,
}

/// A pause in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseView {
    /// The calls under it.
    pub who: PauseTarget,
    /// The moment it ends.
    pub until: Moment,
    /// True if it came from another gate, by a shared bucket.
    pub heard: bool,
}

/// Every pause of a gate.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    by_credential: bool,
    gate: PauseState,
    classes: PerClass<PauseState>,
    credentials: Split<PauseState>,
    /// The latest end of a pause. Until the first pause, asking costs one comparison.
    last: Moment,
    /// True if a pause grows, so that successes must be reported.
    pub(crate) grows: bool,
    /// The number of changes so far.
    pub(crate) changes: u64,
}

/// The pause of one scope.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PauseState {
    pub(crate) until: Moment,
    /// True if it came from another gate.
    heard: bool,
    /// The length of the last pause without a time; zero once a call has succeeded since.
    pub(crate) grown: Duration,
    /// The number of departures before that pause. Those calls were under way together and count
    /// once.
    left: u64,
}

/// The call behind an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) class: ClassId,
    pub(crate) credential: u64,
    /// The number of the call among all departures.
    pub(crate) left: u64,
}

/// The ends of a call's pauses: of its class and its gate, and of its credential.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    pub(crate) shared: Moment,
    pub(crate) own: Moment,
}

// === impl Pauses ===

impl Pauses {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self {
            by_credential: policy.pause_scope == Scope::Credential,
            classes: policy.per_class(|_| PauseState::default()),
            ..Self::default()
        }
    }

    /// Returns the credential of a call if pauses are by credential.
    #[inline]
    pub(crate) fn own(&self, credential: u64) -> Option<u64> {
        self.by_credential.then_some(credential)
    }

    /// True if any pause is in force.
    #[inline]
    pub(crate) fn any(&self, now: Moment) -> bool {
        self.last > now
    }

    /// Returns when a call's pauses end, or ended.
    #[inline]
    pub(crate) fn ends(&self, class: ClassId, own: Option<u64>) -> Ends {
        if self.last == Moment::ZERO {
            return Ends::default();
        }
        let class = self.classes.get(class).map_or(Moment::ZERO, |class| class.until);
        let own = own.map_or(Moment::ZERO, |who| self.credentials.own_or_rest(who).until);
        Ends { shared: self.gate.until.max(class), own }
    }

    /// Returns the end of the pause of the whole gate.
    pub(crate) fn gate_ends(&self) -> Moment {
        self.gate.until
    }

    /// Begins a pause of the upstream's. Returns its end, unless another lasts longer; `leaves` is
    /// the number of departures so far.
    pub(crate) fn begin(&mut self, pause: Pause, origin: Origin, leaves: u64, now: Moment) -> Option<Moment> {
        let target = match pause.scope {
            // A failure with a time: it has its place in the key table.
            Scope::Key => return None,
            Scope::Class => PauseTarget::Class(origin.class),
            // Without pauses by credential, the pause concerns every call.
            Scope::Credential => self.own(origin.credential).map_or(PauseTarget::Gate, PauseTarget::Credential),
            Scope::Gate => PauseTarget::Gate,
        };
        let state = self.state_mut(target, now)?;
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
        is_longer.then_some(until)
    }

    /// Records the success of a call. Earlier pauses stop growing.
    pub(crate) fn succeeded(&mut self, origin: Origin) {
        self.changes += 1;
        let heard = |state: &mut PauseState| {
            if origin.left > state.left {
                state.grown = Duration::ZERO;
            }
        };
        heard(&mut self.gate);
        self.classes.get_mut(origin.class).into_iter().for_each(heard);
        heard(self.credentials.own_or_rest_mut(origin.credential));
        let grows = self.all().any(|(_, state)| !state.grown.is_zero());
        self.grows = grows;
    }

    /// Ends every pause at once and forgets their growth. Returns how many there were.
    pub(crate) fn lift(&mut self, now: Moment) -> usize {
        let lifted = self.in_force(now).count();
        self.classes = self.classes.map(|_| PauseState::default());
        // A call that leaves now could not have left before this moment.
        self.gate = PauseState { until: now, ..PauseState::default() };
        self.credentials = Split::default();
        self.last = now;
        self.grows = false;
        self.changes += 1;
        lifted
    }

    /// Applies new limits; `origins` gives the old class of each new one. Pauses of credentials end
    /// if credentials have none of their own any more.
    pub(crate) fn reconfigure(&mut self, policy: &Policy, origins: &Origins) {
        self.classes.carry_over(origins);
        self.by_credential = policy.pause_scope == Scope::Credential;
        if !self.by_credential {
            self.credentials = Split::default();
        }
    }

    /// Returns the pauses in force, at most `most` of them.
    pub(crate) fn views(&self, now: Moment, most: usize) -> Vec<PauseView> {
        let views = self.in_force(now).take(most);
        views.map(|(who, state)| PauseView { who, until: state.until, heard: state.heard }).collect()
    }

    fn in_force(&self, now: Moment) -> impl Iterator<Item = (PauseTarget, &PauseState)> {
        self.all().filter(move |(_, state)| state.until > now)
    }

    /// Returns the pauses of all scopes.
    pub(crate) fn all(&self) -> impl Iterator<Item = (PauseTarget, &PauseState)> {
        let whole = [(PauseTarget::Gate, &self.gate), (PauseTarget::OtherCredentials, &self.credentials.rest)];
        let classes = self.classes.iter().map(|(class, state)| (PauseTarget::Class(class), state));
        let credentials = self.credentials.parts().map(|(who, state)| (PauseTarget::Credential(who), state));
        whole.into_iter().chain(classes).chain(credentials)
    }

    /// Begins a pause from another gate. Returns its end, unless a pause is in force until `surely`
    /// at least.
    pub(crate) fn hear(&mut self, who: PauseTarget, until: Moment, surely: Moment, now: Moment) -> Option<Moment> {
        let state = self.state_mut(who, now)?;
        if state.until >= surely || until <= now {
            return None;
        }
        state.until = until;
        state.heard = true;
        self.last = self.last.max(until);
        self.changes += 1;
        Some(until)
    }

    /// Ends a pause. Returns true if there was one.
    pub(crate) fn end(&mut self, who: PauseTarget, now: Moment) -> bool {
        if matches!(who, PauseTarget::Credential(who) if self.credentials.get(who).is_none()) {
            return false;
        }
        let state = self.state_mut(who, now).filter(|state| state.until > now);
        let was_there = state.map(|state| state.until = now).is_some();
        self.changes += u64::from(was_there);
        was_there
    }

    /// Goes on with a pause of before a restart.
    pub(crate) fn restore(&mut self, who: PauseTarget, until: Moment, grown: Duration, now: Moment) {
        let is_of_credentials = matches!(who, PauseTarget::Credential(_) | PauseTarget::OtherCredentials);
        if is_of_credentials && !self.by_credential {
            return;
        }
        if let Some(state) = self.state_mut(who, now) {
            state.until = state.until.max(until);
            state.grown = grown;
            self.last = self.last.max(until);
            self.grows |= !grown.is_zero();
        }
    }

    fn state_mut(&mut self, target: PauseTarget, now: Moment) -> Option<&mut PauseState> {
        Some(match target {
            PauseTarget::Class(class) => self.classes.get_mut(class)?,
            PauseTarget::Credential(who) => {
                // A pause is forgotten when it has been over for as long as it lasted.
                self.credentials.open(who, now, |state| state.until + state.grown > now);
                self.credentials.own_or_rest_mut(who)
            }
            PauseTarget::OtherCredentials => &mut self.credentials.rest,
            PauseTarget::Gate => &mut self.gate,
        })
    }
}

// === impl Ends ===

impl Ends {
    /// Returns the end of the last of them.
    pub(crate) fn all(self) -> Moment {
        self.shared.max(self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::split::MOST;

    fn policy(pause_scope: Scope) -> Policy {
        Policy { pause_scope, ..Policy::default() }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    fn growing(scope: Scope) -> Pause {
        Pause { scope, length: PauseLength::Growing { first: MINUTE, most: 4 * MINUTE } }
    }

    fn from(credential: u64, left: u64) -> Origin {
        Origin { class: ClassId(0), credential, left }
    }

    #[test]
    fn a_pause_without_a_time_doubles_until_a_later_call_succeeds() {
        let mut pauses = Pauses::new(&policy(Scope::Gate));
        let (mut now, mut leaves) = (Moment::ZERO, 10);
        let mut again = |pauses: &mut Pauses, left: u64| {
            leaves += 1;
            let until = pauses.begin(growing(Scope::Gate), from(0, left), leaves, now);
            let length = until.map(|until| until - now);
            now = until.unwrap_or(now);
            length
        };
        assert_eq!(again(&mut pauses, 10), Some(MINUTE));
        assert_eq!(again(&mut pauses, 11), None, "it was under way when the pause began");
        assert_eq!(again(&mut pauses, 13), Some(2 * MINUTE));
        assert_eq!(again(&mut pauses, 20), Some(4 * MINUTE));
        assert_eq!(again(&mut pauses, 30), Some(4 * MINUTE), "no longer than the longest");
        pauses.succeeded(from(0, 14));
        assert!(pauses.grows, "that call had left before");
        assert_eq!(again(&mut pauses, 40), Some(4 * MINUTE));
        pauses.succeeded(from(0, 50));
        assert!(!pauses.grows);
        assert_eq!(again(&mut pauses, 60), Some(MINUTE));
    }

    #[test]
    fn a_longer_pause_wins_and_a_shorter_one_changes_nothing() {
        let mut pauses = Pauses::new(&policy(Scope::Gate));
        let known = |secs| Pause { scope: Scope::Gate, length: PauseLength::Known(Duration::from_secs(secs)) };
        let at = Moment::from_millis;
        assert_eq!(pauses.begin(known(10), from(0, 1), 5, at(0)), Some(at(10_000)));
        assert_eq!(pauses.begin(known(3), from(0, 1), 5, at(1000)), None);
        assert_eq!(pauses.begin(known(10), from(0, 1), 5, at(1000)), Some(at(11_000)));
        assert_eq!(pauses.begin(known(0), from(0, 9), 9, at(20_000)), None);
        assert_eq!(pauses.ends(ClassId(0), None).all(), at(11_000));
    }

    #[test]
    fn past_a_thousand_credentials_all_others_share_one_pause() {
        let mut pauses = Pauses::new(&policy(Scope::Credential));
        for who in 0..MOST as u64 {
            pauses.begin(growing(Scope::Credential), from(who, 1), 1, Moment::ZERO);
        }
        assert_eq!(pauses.ends(ClassId(0), Some(1_000_000)).all(), Moment::ZERO);
        for who in 0..10_000 {
            pauses.begin(growing(Scope::Credential), from(1_000_000 + who, 1), 1, Moment::from_millis(1));
        }
        assert_eq!(pauses.credentials.parts().count(), MOST);
        assert!(pauses.ends(ClassId(0), Some(77_777_777)).own > Moment::ZERO, "a stranger shares it");
        assert_eq!(pauses.views(Moment::ZERO, 100).len(), 100);
        let later = Moment::ZERO + 3 * MINUTE;
        pauses.begin(growing(Scope::Credential), from(5_000_000, 9), 9, later);
        assert_eq!(pauses.credentials.parts().count(), 1, "what was over for long is forgotten");
    }

    #[test]
    fn a_credential_that_is_not_told_apart_pauses_the_gate() {
        let mut pauses = Pauses::new(&policy(Scope::Gate));
        pauses.begin(growing(Scope::Credential), from(7, 1), 1, Moment::ZERO);
        assert_eq!(pauses.ends(ClassId(0), None).shared, Moment::ZERO + MINUTE);
    }
}
