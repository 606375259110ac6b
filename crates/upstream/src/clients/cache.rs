//! A cache of the results of token reviews.
//!
//! Instead of a token, it stores a digest made with a secret key. So nobody can read tokens from
//! it, or find two tokens with the same digest. The cache is limited in size, and invalid tokens
//! never displace valid ones.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::moment::Moment;

/// A digest of a token, made with a secret key.
pub(super) type Digest = [u8; 32];

/// The cached result for a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CachedVerdict {
    /// The token is valid, and belongs to this client. If `due`, it should be reviewed again.
    Right { client: Arc<str>, due: bool },
    /// The token is not valid.
    Wrong,
    /// There is no result, or it is too old.
    Unknown,
}

/// The results of recent reviews, each with the time it was requested.
#[derive(Debug)]
pub(super) struct VerdictCache {
    right: HashMap<Digest, (Moment, Arc<str>)>,
    wrong: HashMap<Digest, Moment>,
    /// How long a valid token is cached.
    lasts: Duration,
}

// === impl VerdictCache ===

impl VerdictCache {
    pub(super) fn new(lasts: Duration) -> Self {
        Self { right: HashMap::new(), wrong: HashMap::new(), lasts }
    }

    /// Returns the cached result for a token.
    pub(super) fn look(&self, token: &Digest, now: Moment) -> CachedVerdict {
        if let Some((asked, client)) = self.right.get(token).filter(|(asked, _)| now < *asked + self.lasts) {
            return CachedVerdict::Right { client: Arc::clone(client), due: now >= *asked + self.lasts / 2 };
        }
        match self.wrong.get(token) {
            Some(asked) if now < *asked + WRONG_LASTS.min(self.lasts) => CachedVerdict::Wrong,
            _ => CachedVerdict::Unknown,
        }
    }

    /// Records the result of a review: `client` is `None` for an invalid token. `asked` is the time
    /// at which the review was requested.
    pub(super) fn learn(&mut self, token: Digest, client: Option<Arc<str>>, asked: Moment) {
        self.right.remove(&token);
        self.wrong.remove(&token);
        let Some(client) = client else {
            if self.wrong.len() >= MOST_WRONG {
                self.wrong.clear();
            }
            self.wrong.insert(token, asked);
            return;
        };
        if self.right.len() >= MOST_RIGHT {
            self.right.retain(|_, (then, _)| asked < *then + self.lasts);
        }
        if self.right.len() >= MOST_RIGHT {
            self.right.clear();
        }
        self.right.insert(token, (asked, client));
    }
}

/// The most valid tokens to cache: one for each pod of a large cluster, 2 MiB.
const MOST_RIGHT: usize = 16_384;
const MOST_WRONG: usize = 2_048;
/// How long an invalid token is cached. It is short because one API server of several may not know
/// a new token yet.
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
        let mut cache = VerdictCache::new(LASTS);
        cache.learn(digest(0), Some("one".into()), Moment::ZERO);
        for token in 1..=u16::MAX {
            cache.learn(digest(token), None, Moment::ZERO);
        }
        assert_eq!(cache.look(&digest(0), Moment::ZERO), CachedVerdict::Right { client: "one".into(), due: false });
        assert!(cache.wrong.len() <= MOST_WRONG);
        for token in 0..=u16::MAX {
            cache.learn(digest(token), Some("many".into()), Moment::ZERO);
        }
        assert!(cache.right.len() <= MOST_RIGHT);
        assert_eq!(cache.look(&digest(0), Moment::ZERO), CachedVerdict::Unknown, "it is asked for again");
        assert_eq!(
            cache.look(&digest(u16::MAX), Moment::ZERO),
            CachedVerdict::Right { client: "many".into(), due: false }
        );
    }

    proptest! {
        /// Against a list of all that was ever said: an answer is that token's own, the last one,
        /// and never older than it may be.
        #[test]
        fn an_identity_is_never_another_s(steps in vec((0_u16..6, 0_u64..4_000, any::<bool>(), any::<bool>()), 0..200)) {
            let mut cache = VerdictCache::new(LASTS);
            let mut now = Moment::ZERO;
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
                            CachedVerdict::Right { client: client.as_str().into(), due: now.since(*at) >= LASTS / 2 }
                        }
                        Some((at, None)) if now.since(*at) < WRONG_LASTS => CachedVerdict::Wrong,
                        _ => CachedVerdict::Unknown,
                    };
                    prop_assert_eq!(cache.look(&digest(token), now), expected);
                }
            }
        }
    }
}
