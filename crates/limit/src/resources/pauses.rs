//! Pauses: after the upstream asked for one, no call that it concerns leaves before it is over.
//!
//! A pause is a moment. A longer one wins, a shorter one changes nothing, and only an operator can
//! take one back. One without a time grows each time it happens again, until a call that left after
//! it has succeeded. The number of credentials that are told apart is bounded; past it, all others
//! share one pause.

use std::time::Duration;

use super::Split;
use crate::moment::Moment;
use crate::outcome::{Pause, PauseLength, Scope};
use crate::{ClassId, Origins, PerClass, Policy};

/// The calls that wait while a pause is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PauseTarget {
    /// The calls of this class.
    Class(ClassId),
    /// The calls of this credential, by the salted hash that came with the call: it tells one
    /// credential from another and reveals nothing else.
    Credential(u64),
    /// The calls of all credentials past the number that is told apart.
    OtherCredentials,
    /// Every call that is not exempt.
    Gate,
}

/// A pause in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseView {
    /// The calls that wait.
    pub who: PauseTarget,
    /// The moment it ends.
    pub until: Moment,
    /// True if another gate told of it, with which this one shares a bucket.
    pub heard: bool,
}

/// Every pause of a gate.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    by_credential: bool,
    gate: PauseState,
    classes: PerClass<PauseState>,
    /// The rest is the pause of all credentials past the number that is told apart.
    credentials: Split<PauseState>,
    /// The moment at which the last of them ends. Until the first pause, asking costs one
    /// comparison.
    last: Moment,
    /// True if one of them grows, so that successes must be reported.
    pub(crate) grows: bool,
    /// The number of changes so far.
    pub(crate) changes: u64,
}

/// The pause of one scope.
#[derive(Clone, Copy, Debug, Default)]
struct PauseState {
    until: Moment,
    /// True if another gate told of it.
    heard: bool,
    /// The length of the last pause that had no time of its own; zero once a call has succeeded
    /// since.
    grown: Duration,
    /// The number of calls that had left when that pause was recorded: those were under way
    /// together and count once.
    left: u64,
}

/// The call to which an answer belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) class: ClassId,
    pub(crate) credential: u64,
    /// The number of the call among all that have left.
    pub(crate) left: u64,
}

/// The moments at which the pauses of a call end: those that it shares with its class and its gate,
/// and its credential's own.
#[derive(Clone, Copy, Debug)]
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

    /// Returns the credential that decides which of many pauses applies; `None` if there is only
    /// one.
    #[inline]
    pub(crate) fn own(&self, credential: u64) -> Option<u64> {
        self.by_credential.then_some(credential)
    }

    /// True if any pause is in force.
    #[inline]
    pub(crate) fn any(&self, now: Moment) -> bool {
        self.last > now
    }

    /// Returns the moments at which a call's pauses end, or ended.
    #[inline]
    pub(crate) fn ends(&self, class: ClassId, own: Option<u64>) -> Ends {
        if self.last == Moment::ZERO {
            return Ends { shared: Moment::ZERO, own: Moment::ZERO };
        }
        let class = self.classes.get(class).map_or(Moment::ZERO, |class| class.until);
        let own = own.map_or(Moment::ZERO, |who| self.credentials.own_or_rest(who).until);
        Ends { shared: self.gate.until.max(class), own }
    }

    /// Returns the moment at which the pause of the whole gate ends.
    pub(crate) fn gate_ends(&self) -> Moment {
        self.gate.until
    }

    /// Begins the pause that the upstream asked for. Returns its end, unless that was so already;
    /// `leaves` is the number of calls that have left so far.
    pub(crate) fn begin(&mut self, pause: Pause, origin: Origin, leaves: u64, now: Moment) -> Option<Moment> {
        let pausing = self.scoped(pause.scope, origin, now)?;
        let length = match pause.length {
            PauseLength::Known(length) => length,
            PauseLength::Growing { .. } if pausing.left > 0 && origin.left <= pausing.left => return None,
            PauseLength::Growing { first, most } => {
                let length = if pausing.grown.is_zero() { first } else { pausing.grown.saturating_mul(2) };
                pausing.grown = length.min(most);
                pausing.left = leaves;
                pausing.grown
            }
        };
        let before = pausing.until;
        let until = now + length;
        if until > before && until > now {
            pausing.until = until;
            pausing.heard = false;
            self.last = self.last.max(until);
        }
        self.grows |= matches!(pause.length, PauseLength::Growing { .. });
        self.changes += 1;
        (until > before && until > now).then_some(until)
    }

    /// Records the success of a call: pauses that grew before it left stop growing.
    pub(crate) fn succeeded(&mut self, origin: Origin) {
        self.changes += 1;
        let heard = |pausing: &mut PauseState| {
            if origin.left > pausing.left {
                pausing.grown = Duration::ZERO;
            }
        };
        heard(&mut self.gate);
        self.classes.get_mut(origin.class).into_iter().for_each(heard);
        heard(self.credentials.own_or_rest_mut(origin.credential));
        let classes = self.classes.iter().map(|(_, pausing)| pausing);
        let mut all = self.credentials.all().chain(classes).chain([&self.gate]);
        self.grows = all.any(|pausing| !pausing.grown.is_zero());
    }

    /// Ends every pause at once and forgets their growth. Returns how many there were.
    pub(crate) fn lift(&mut self, now: Moment) -> usize {
        let lifted = self.views(now, usize::MAX).len();
        self.classes = self.classes.map(|_| PauseState::default());
        self.gate = PauseState::default();
        self.credentials = Split::default();
        // A call that leaves now could not have left before this moment.
        self.gate.until = now;
        self.last = now;
        self.grows = false;
        self.changes += 1;
        lifted
    }

    /// Applies new limits; `origins` gives for each new class which old one it was. Pauses of
    /// credentials end if credentials are no longer told apart.
    pub(crate) fn reconfigure(&mut self, policy: &Policy, origins: &Origins) {
        self.classes.carry_over(origins);
        self.by_credential = policy.pause_scope == Scope::Credential;
        if !self.by_credential {
            self.credentials = Split::default();
        }
    }

    /// Returns the pauses in force, at most `most` of them.
    pub(crate) fn views(&self, now: Moment, most: usize) -> Vec<PauseView> {
        let classes = self.classes.iter().map(|(class, pausing)| (PauseTarget::Class(class), pausing));
        let credentials = self.credentials.parts().map(|(who, pausing)| (PauseTarget::Credential(who), pausing));
        let whole = [(PauseTarget::Gate, &self.gate), (PauseTarget::OtherCredentials, &self.credentials.rest)];
        let all = whole.into_iter().chain(classes).chain(credentials).filter(|(_, pausing)| pausing.until > now);
        all.take(most).map(|(who, pausing)| PauseView { who, until: pausing.until, heard: pausing.heard }).collect()
    }

    /// Returns every pause that is in force or remembers how long it was: the calls it concerns,
    /// the time it has left and the length to which it has grown.
    pub(crate) fn kept(&self, now: Moment) -> impl Iterator<Item = (PauseTarget, Duration, Duration)> {
        let classes = self.classes.iter().map(|(class, pausing)| (PauseTarget::Class(class), pausing));
        let credentials = self.credentials.parts().map(|(who, pausing)| (PauseTarget::Credential(who), pausing));
        let whole = [(PauseTarget::Gate, &self.gate), (PauseTarget::OtherCredentials, &self.credentials.rest)];
        let all = whole.into_iter().chain(classes).chain(credentials);
        let all = all.map(move |(who, pausing)| (who, pausing.until - now, pausing.grown));
        all.filter(|(_, left, grown)| !left.is_zero() || !grown.is_zero())
    }

    /// Begins the pause of a gate, a class or a credential that another gate has told of. Returns
    /// its end, unless that was so already: then a pause is in force until `surely` at least.
    pub(crate) fn hear(&mut self, who: PauseTarget, until: Moment, surely: Moment, now: Moment) -> Option<Moment> {
        let pausing = match who {
            PauseTarget::Gate => &mut self.gate,
            PauseTarget::Class(class) => self.classes.get_mut(class)?,
            PauseTarget::Credential(who) => self.of_credential(who, now),
            PauseTarget::OtherCredentials => return None,
        };
        if pausing.until >= surely || until <= now {
            return None;
        }
        pausing.until = until;
        pausing.heard = true;
        self.last = self.last.max(until);
        self.changes += 1;
        Some(until)
    }

    /// Ends the pause of a gate, a class or a credential. Returns true if there was one.
    pub(crate) fn end(&mut self, who: PauseTarget, now: Moment) -> bool {
        let pausing = match who {
            PauseTarget::Class(class) => self.classes.get_mut(class),
            PauseTarget::Credential(who) => self.credentials.get_mut(who),
            PauseTarget::Gate | PauseTarget::OtherCredentials => Some(&mut self.gate),
        };
        let pausing = pausing.filter(|pausing| pausing.until > now);
        let was_there = pausing.map(|pausing| pausing.until = now).is_some();
        self.changes += u64::from(was_there);
        was_there
    }

    /// Goes on with a pause of before a restart.
    pub(crate) fn restore(&mut self, who: PauseTarget, until: Moment, grown: Duration, now: Moment) {
        let pausing = match who {
            PauseTarget::Gate => Some(&mut self.gate),
            PauseTarget::Class(class) => self.classes.get_mut(class),
            PauseTarget::Credential(who) if self.by_credential => Some(self.of_credential(who, now)),
            PauseTarget::OtherCredentials if self.by_credential => Some(&mut self.credentials.rest),
            PauseTarget::Credential(_) | PauseTarget::OtherCredentials => None,
        };
        if let Some(pausing) = pausing {
            pausing.until = pausing.until.max(until);
            pausing.grown = grown;
            self.last = self.last.max(until);
            self.grows |= !grown.is_zero();
        }
    }

    /// Returns the pause to which an answer refers.
    fn scoped(&mut self, scope: Scope, origin: Origin, now: Moment) -> Option<&mut PauseState> {
        match scope {
            // A failure with a time: it has its place in the key table.
            Scope::Key => None,
            Scope::Class => self.classes.get_mut(origin.class),
            Scope::Credential if self.by_credential => Some(self.of_credential(origin.credential, now)),
            // If credentials are not told apart, the pause concerns every call.
            Scope::Credential | Scope::Gate => Some(&mut self.gate),
        }
    }

    fn of_credential(&mut self, who: u64, now: Moment) -> &mut PauseState {
        // A pause is forgotten when it has been over for as long as it lasted.
        let kept = |pausing: &mut PauseState| pausing.until + pausing.grown > now;
        self.credentials.open(who, now, kept);
        self.credentials.own_or_rest_mut(who)
    }
}

// === impl Ends ===

impl Ends {
    /// Returns the moment from which no pause holds the call.
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
