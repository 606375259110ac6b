//! Pauses: the upstream said wait, and nobody whom that concerns leaves before it is over.
//!
//! A pause is a moment. A longer one wins, a shorter one changes nothing, and none is ever taken back but by hand. One without a time
//! grows each time it happens again, until a call that left after it has succeeded. How many credentials are told apart is bounded; past
//! that number all others share one pause.

use std::{collections::HashMap, time::Duration};

use super::{
    policy::Policy,
    slots::INSTANCES,
    snapshot::{PauseView, Paused},
    verdict::ClassId,
};
use crate::{
    api::{Pause, PauseLength, Scope},
    moment::Moment,
};

/// Every pause of a gate.
#[derive(Debug)]
pub(super) struct Pauses {
    by_credential: bool,
    gate: Pausing,
    classes: Vec<Pausing>,
    credentials: HashMap<u64, Pausing>,
    others: Pausing,
    /// When the last of all of them ends: until the first pause, asking costs one comparison.
    last: Moment,
    /// Whether one of them grows, so that a success must be heard of.
    grows: bool,
}

/// The pause of one scope.
#[derive(Clone, Copy, Debug, Default)]
struct Pausing {
    until: Moment,
    /// How long the last one was that had no time of its own; zero once a call has succeeded since.
    grown: Duration,
    /// How many calls had left when that one was written down: those were under way together and count once.
    left: u64,
}

/// Whose answer it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) class: usize,
    pub(super) credential: u64,
    /// The number of the call among all that have left.
    pub(super) left: u64,
}

/// When the pauses of a call end: what it shares with its class and its gate, and what is its credential's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) shared: Moment,
    pub(super) own: Moment,
}

// === impl Pauses ===

impl Pauses {
    pub(super) fn new(policy: &Policy) -> Self {
        Self {
            by_credential: policy.pause_scope == Scope::Credential,
            gate: Pausing::default(),
            classes: vec![Pausing::default(); policy.classes.len()],
            credentials: HashMap::new(),
            others: Pausing::default(),
            last: Moment::ZERO,
            grows: false,
        }
    }

    /// What of a call decides which of many pauses is its own; `None` where there is only one.
    #[inline]
    pub(super) fn own(&self, credential: u64) -> Option<u64> {
        self.by_credential.then_some(credential)
    }

    /// Whether any pause is in force.
    #[inline]
    pub(super) fn any(&self, now: Moment) -> bool {
        self.last > now
    }

    /// Whether a success may end the growth of a pause.
    pub(super) fn any_grows(&self) -> bool {
        self.grows
    }

    /// When the pauses end, or ended, that concern a call.
    #[inline]
    pub(super) fn ends(&self, class: usize, own: Option<u64>) -> Ends {
        if self.last == Moment::ZERO {
            return Ends { shared: Moment::ZERO, own: Moment::ZERO };
        }
        let class = self.classes.get(class).map_or(Moment::ZERO, |class| class.until);
        let own = own.map_or(Moment::ZERO, |who| self.credentials.get(&who).unwrap_or(&self.others).until);
        Ends { shared: self.gate.until.max(class), own }
    }

    /// When the pause ends that all calls of the gate share.
    pub(super) fn gate_ends(&self) -> Moment {
        self.gate.until
    }

    /// The upstream said wait. Says until when, unless that was so already; `leaves` is how many calls have left so far.
    pub(super) fn begin(&mut self, pause: Pause, origin: Origin, leaves: u64, now: Moment) -> Option<Moment> {
        let pausing = self.scoped(pause.scope, origin, now)?;
        let length = match pause.length {
            PauseLength::Known(length) => length,
            PauseLength::Growing { .. } if pausing.left > 0 && origin.left <= pausing.left => return None,
            PauseLength::Growing { first, most } => {
                let length = if pausing.grown.is_zero() { first } else { pausing.grown.saturating_mul(2) };
                (pausing.grown, pausing.left) = (length.min(most), leaves);
                pausing.grown
            }
        };
        let (before, until) = (pausing.until, now + length);
        if until > before && until > now {
            pausing.until = until;
            self.last = self.last.max(until);
        }
        self.grows |= matches!(pause.length, PauseLength::Growing { .. });
        (until > before && until > now).then_some(until)
    }

    /// A call succeeded: what grew before it left grows no more.
    pub(super) fn succeeded(&mut self, origin: Origin) {
        let heard = |pausing: &mut Pausing| {
            if origin.left > pausing.left {
                pausing.grown = Duration::ZERO;
            }
        };
        heard(&mut self.gate);
        self.classes.get_mut(origin.class).into_iter().for_each(heard);
        heard(self.credentials.get_mut(&origin.credential).unwrap_or(&mut self.others));
        let all = self.credentials.values().chain(&self.classes).chain([&self.gate, &self.others]);
        self.grows = all.into_iter().any(|pausing| !pausing.grown.is_zero());
    }

    /// Ends every pause at once, and forgets what has grown.
    pub(super) fn lift(&mut self, now: Moment) -> usize {
        let lifted = self.views(now, usize::MAX).len();
        self.classes.fill(Pausing::default());
        self.credentials.clear();
        (self.gate, self.others) = (Pausing::default(), Pausing::default());
        // Whoever leaves now could have left only from now on.
        (self.gate.until, self.last, self.grows) = (now, now, false);
        lifted
    }

    /// New limits; `origins` says for each new class which old one it was. Pauses of credentials end where these are told apart no more.
    pub(super) fn reconfigure(&mut self, policy: &Policy, origins: &[Option<usize>]) {
        let old = std::mem::take(&mut self.classes);
        let kept = |origin: &Option<usize>| origin.and_then(|origin| old.get(origin)).copied().unwrap_or_default();
        self.classes = origins.iter().map(kept).collect();
        self.by_credential = policy.pause_scope == Scope::Credential;
        if !self.by_credential {
            self.credentials = HashMap::new();
            self.others = Pausing::default();
        }
    }

    /// The pauses in force.
    pub(super) fn views(&self, now: Moment, most: usize) -> Vec<PauseView> {
        let class = |(place, pausing)| (Paused::Class(ClassId(place)), pausing);
        let classes = (0_u16..).zip(&self.classes).map(class);
        let credentials = self.credentials.iter().map(|(who, pausing)| (Paused::Credential(*who), pausing));
        let whole = [(Paused::Gate, &self.gate), (Paused::OtherCredentials, &self.others)];
        let all = whole.into_iter().chain(classes).chain(credentials).filter(|(_, pausing)| pausing.until > now);
        all.take(most).map(|(who, pausing)| PauseView { who, until: pausing.until }).collect()
    }

    /// The pause that an answer speaks of.
    fn scoped(&mut self, scope: Scope, origin: Origin, now: Moment) -> Option<&mut Pausing> {
        match scope {
            Scope::Key => None, // that is a failure with a time, and has its place in the key table
            Scope::Class => self.classes.get_mut(origin.class),
            Scope::Credential if self.by_credential => Some(self.of_credential(origin.credential, now)),
            // A credential that is not told apart is everybody's.
            Scope::Credential | Scope::Gate => Some(&mut self.gate),
        }
    }

    fn of_credential(&mut self, who: u64, now: Moment) -> &mut Pausing {
        if !self.credentials.contains_key(&who) && self.credentials.len() >= INSTANCES {
            // What has been over for as long as it lasted is forgotten.
            self.credentials.retain(|_, pausing| pausing.until + pausing.grown > now);
        }
        if !self.credentials.contains_key(&who) && self.credentials.len() >= INSTANCES {
            return &mut self.others;
        }
        self.credentials.entry(who).or_default()
    }
}

// === impl Ends ===

impl Ends {
    /// When nothing of it holds the call any more.
    pub(super) fn all(self) -> Moment {
        self.shared.max(self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::policy::{Backoff, ClassPolicy, Combine, Lane, QueuePolicy, Strategy};

    fn policy(pause_scope: Scope) -> Policy {
        let backoff = Backoff { strategy: Strategy::Off, hold: Duration::ZERO, forget_after: Duration::ZERO };
        let class = ClassPolicy {
            name: "default".into(),
            lane: Lane::Normal,
            bucket: None,
            within: None,
            own_bucket_only: false,
            backoff,
            in_flight: None,
            meter_long_running: false,
        };
        let queue = QueuePolicy {
            max_wait: Duration::ZERO,
            max_waiting: 0,
            max_waiting_bytes: 0,
            combine: Combine::Sequential,
        };
        Policy {
            bucket: None,
            retry_bucket: None,
            queue,
            in_flight: None,
            max_keys: 1,
            pause_scope,
            one_at_a_time: false,
            classes: vec![class],
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    fn growing(scope: Scope) -> Pause {
        Pause { scope, length: PauseLength::Growing { first: MINUTE, most: 4 * MINUTE } }
    }

    fn from(credential: u64, left: u64) -> Origin {
        Origin { class: 0, credential, left }
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
        assert!(pauses.any_grows(), "that call had left before");
        assert_eq!(again(&mut pauses, 40), Some(4 * MINUTE));
        pauses.succeeded(from(0, 50));
        assert!(!pauses.any_grows());
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
        assert_eq!(pauses.ends(0, None).all(), at(11_000));
    }

    #[test]
    fn past_a_thousand_credentials_all_others_share_one_pause() {
        let mut pauses = Pauses::new(&policy(Scope::Credential));
        for who in 0..INSTANCES as u64 {
            pauses.begin(growing(Scope::Credential), from(who, 1), 1, Moment::ZERO);
        }
        assert_eq!(pauses.ends(0, Some(1_000_000)).all(), Moment::ZERO);
        for who in 0..10_000 {
            pauses.begin(growing(Scope::Credential), from(1_000_000 + who, 1), 1, Moment::from_millis(1));
        }
        assert_eq!(pauses.credentials.len(), INSTANCES);
        assert!(pauses.ends(0, Some(77_777_777)).own > Moment::ZERO, "a stranger shares it");
        assert_eq!(pauses.views(Moment::ZERO, 100).len(), 100);
        let later = Moment::ZERO + 3 * MINUTE;
        pauses.begin(growing(Scope::Credential), from(5_000_000, 9), 9, later);
        assert_eq!(pauses.credentials.len(), 1, "what was over for long is forgotten");
    }

    #[test]
    fn a_credential_that_is_not_told_apart_pauses_the_gate() {
        let mut pauses = Pauses::new(&policy(Scope::Gate));
        pauses.begin(growing(Scope::Credential), from(7, 1), 1, Moment::ZERO);
        assert_eq!(pauses.ends(0, None).shared, Moment::ZERO + MINUTE);
    }
}
