//! The tokens that were judged a short time ago.
//!
//! A token is known by a digest under a secret key, so that none is kept and none can be aimed at
//! another's. What is remembered is bounded, and tokens that are wrong never take the place of
//! those that are right.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::moment::Moment;

/// A token, as what is remembered of it.
pub(super) type Digest = [u8; 32];

/// A verdict on a token, as the cache has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It is this client's. It is `due` for another look before it must be had.
    Right { client: Arc<str>, due: bool },
    /// It is nobody's.
    Wrong,
    /// Nothing.
    Nothing,
}

/// The tokens that were judged, and when they were shown to the judge.
#[derive(Debug)]
pub(super) struct Cache {
    right: Recent<Arc<str>>,
    wrong: Recent<()>,
    /// The time for which a right one is let in.
    lasts: Duration,
}

/// Entries of which the oldest half goes when there are too many.
#[derive(Debug)]
struct Recent<T> {
    young: HashMap<Digest, (Moment, T)>,
    old: HashMap<Digest, (Moment, T)>,
    most: usize,
}

// === impl Cache ===

impl Cache {
    pub(super) fn new(lasts: Duration) -> Self {
        Self { right: Recent::new(MOST_RIGHT), wrong: Recent::new(MOST_WRONG), lasts }
    }

    /// Returns what is known of a token.
    pub(super) fn look(&self, token: &Digest, now: Moment) -> Seen {
        if let Some((asked, client)) = self.right.get(token).filter(|(asked, _)| now < *asked + self.lasts) {
            return Seen::Right { client: Arc::clone(client), due: now >= *asked + self.lasts / 2 };
        }
        match self.wrong.get(token) {
            Some((asked, ())) if now < *asked + WRONG_LASTS.min(self.lasts) => Seen::Wrong,
            _ => Seen::Nothing,
        }
    }

    /// Notes the answer to a question that was asked at `asked`: whose the token is, if it is
    /// anyone's.
    pub(super) fn learn(&mut self, token: Digest, client: Option<Arc<str>>, asked: Moment) {
        match client {
            Some(client) => {
                self.wrong.remove(&token);
                self.right.insert(token, (asked, client));
            }
            None => {
                self.right.remove(&token);
                self.wrong.insert(token, (asked, ()));
            }
        }
    }
}

// === impl Recent ===

impl<T> Recent<T> {
    fn new(most: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), most }
    }

    fn get(&self, token: &Digest) -> Option<&(Moment, T)> {
        self.young.get(token).or_else(|| self.old.get(token))
    }

    fn remove(&mut self, token: &Digest) {
        self.young.remove(token);
        self.old.remove(token);
    }

    fn insert(&mut self, token: Digest, entry: (Moment, T)) {
        self.old.remove(&token);
        if self.young.len() >= self.most / 2 && !self.young.contains_key(&token) {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(token, entry);
    }
}

/// One for each pod of a large cluster: 2 MiB.
const MOST_RIGHT: usize = 16_384;
const MOST_WRONG: usize = 2_048;
/// As short as a client's own retry may be told to wait: a token that was made a moment ago may be
/// unknown to one API server of several.
const WRONG_LASTS: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const LASTS: Duration = Duration::from_secs(10);

    fn digest(token: u16) -> Digest {
        let mut digest = [7; 32];
        digest[..2].copy_from_slice(&token.to_be_bytes()); // of one beginning, as tokens have
        digest
    }

    #[test]
    fn what_is_remembered_is_bounded_and_wrong_tokens_displace_no_right_one() {
        let mut cache = Cache::new(LASTS);
        cache.learn(digest(0), Some("one".into()), Moment::ZERO);
        for token in 1..=u16::MAX {
            cache.learn(digest(token), None, Moment::ZERO);
        }
        assert_eq!(cache.look(&digest(0), Moment::ZERO), Seen::Right { client: "one".into(), due: false });
        assert!(cache.wrong.young.len() + cache.wrong.old.len() <= MOST_WRONG);
        for token in 0..=u16::MAX {
            cache.learn(digest(token), Some("many".into()), Moment::ZERO);
        }
        assert!(cache.right.young.len() + cache.right.old.len() <= MOST_RIGHT);
        assert_eq!(cache.look(&digest(0), Moment::ZERO), Seen::Nothing, "it is asked for again");
        assert_eq!(cache.look(&digest(u16::MAX), Moment::ZERO), Seen::Right { client: "many".into(), due: false });
    }

    proptest! {
        /// Against a list of all that was ever said: an answer is that token's own, the last one,
        /// and never older than it may be.
        #[test]
        fn an_identity_is_never_another_s(steps in vec((0_u16..6, 0_u64..4_000, any::<bool>(), any::<bool>()), 0..200)) {
            let (mut cache, mut now) = (Cache::new(LASTS), Moment::ZERO);
            let mut said: HashMap<u16, (Moment, Option<String>)> = HashMap::new();
            for (number, (token, millis, learns, is_right)) in steps.into_iter().enumerate() {
                now += Duration::from_millis(millis);
                if learns {
                    let client = is_right.then(|| format!("client {token} of {number}"));
                    cache.learn(digest(token), client.as_deref().map(Arc::from), now);
                    said.insert(token, (now, client));
                }
                for token in 0..6 {
                    let expected = match said.get(&token) {
                        Some((at, Some(client))) if now.since(*at) < LASTS => {
                            Seen::Right { client: client.as_str().into(), due: now.since(*at) >= LASTS / 2 }
                        }
                        Some((at, None)) if now.since(*at) < WRONG_LASTS => Seen::Wrong,
                        _ => Seen::Nothing,
                    };
                    prop_assert_eq!(cache.look(&digest(token), now), expected);
                }
            }
        }
    }
}
