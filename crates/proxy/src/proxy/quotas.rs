//! The quotas of the upstream as its answers told them last. They are for people who look, not for
//! decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::api::signals::Quota;
use crate::moment::Moment;
use crate::status;

/// The quotas that answers told of, by resource and by owner.
#[derive(Debug, Default)]
pub(crate) struct Quotas(Mutex<BTreeMap<(String, u64), Seen>>);

/// A quota at the last answer that told it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) limit: Option<u64>,
    pub(crate) remaining: u64,
    /// The moment from which it is whole again.
    pub(crate) resets_at: Option<Moment>,
    pub(crate) at: Moment,
}

/// What is left of a quota, and kept for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) left: u64,
    pub(crate) limit: u64,
}

// === impl Quotas ===

impl Quotas {
    /// Notes what an answer told. `whose` is the salted hash of the credential or account that
    /// limits are split by, or zero.
    pub(crate) fn note(&self, quotas: Vec<Quota>, whose: u64, now: Moment) {
        if quotas.is_empty() {
            return;
        }
        let mut known = self.lock();
        for Quota { resource, limit, remaining, resets_in } in quotas {
            let seen = Seen { limit, remaining, resets_at: resets_in.map(|wait| now + wait), at: now };
            known.insert((resource.into_owned(), whose), seen);
        }
        while known.len() > MOST {
            let oldest = known.iter().min_by_key(|(_, seen)| seen.at).map(|(key, _)| key.clone());
            oldest.map(|key| known.remove(&key));
        }
    }

    /// Returns what is known, by resource: the name of whose quota it is, which is empty if the
    /// gate tells no callers apart, and the quota. One that was not told for a day is forgotten.
    pub(crate) fn list(&self, now: Moment) -> Vec<(String, String, Seen)> {
        let mut known = self.lock();
        known.retain(|_, seen| now - seen.at < REMEMBERED);
        let row = |((resource, whose), seen): (&(String, u64), &Seen)| (resource.clone(), name(*whose), *seen);
        known.iter().map(row).collect()
    }

    /// Returns the quota of a credential, or of any, for whose reserve a pause ends then: some of it
    /// is left, no more than this fraction, and the pause is over when it is whole again at the
    /// latest. A longer pause is the upstream's.
    pub(crate) fn kept(&self, whose: Option<u64>, reserve: f64, (ends, now): (Moment, Moment)) -> Option<Kept> {
        let known = self.lock();
        let of_whom = known.iter().filter(|((_, of), _)| whose.is_none_or(|whose| whose == *of));
        of_whom.filter_map(|(_, seen)| seen.kept(reserve, ends, now)).min_by_key(|kept| kept.left)
    }

    /// Returns the credentials of which a quota is known.
    pub(crate) fn credentials(&self) -> BTreeSet<u64> {
        self.lock().keys().map(|(_, whose)| *whose).filter(|whose| *whose != 0).collect()
    }

    /// Returns the same for the status page; `wall` gives the time of day in milliseconds.
    pub(crate) fn tell(&self, now: Moment, wall: impl Fn(Moment) -> u64) -> Vec<status::UpstreamQuota> {
        let rows = self.list(now).into_iter().map(|(resource, account, seen)| status::UpstreamQuota {
            resource,
            account,
            limit: seen.limit,
            remaining: seen.remaining,
            resets_ms: seen.resets_at.map(&wall),
            seen_ms: wall(seen.at),
        });
        rows.collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, u64), Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Seen ===

impl Seen {
    fn kept(&self, reserve: f64, ends: Moment, now: Moment) -> Option<Kept> {
        let limit = self.limit?;
        let whole = self.resets_at.filter(|at| *at > now)?;
        #[expect(clippy::cast_precision_loss, reason = "quotas stay far below 2^52")]
        let is_kept = self.remaining > 0 && self.remaining as f64 <= limit as f64 * reserve;
        (is_kept && ends <= whole + SLACK).then_some(Kept { left: self.remaining, limit })
    }
}

/// Returns a name that tells a handful of accounts apart, and is useless for anything else.
fn name(whose: u64) -> String {
    if whose == 0 { String::new() } else { format!("{:06x}", whose & 0xff_ffff) }
}

/// The difference between a pause and the quota that it is of: each is reckoned from its own look at the
/// clock, and upstreams tell whole seconds.
const SLACK: Duration = Duration::from_secs(2);
/// The most quotas that are remembered.
const MOST: usize = 100;
/// The time for which one is.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(resource: &str, remaining: u64) -> Vec<Quota> {
        vec![Quota {
            resource: resource.to_owned().into(),
            limit: Some(10),
            remaining,
            resets_in: Some(Duration::from_secs(60)),
        }]
    }

    #[test]
    fn the_last_word_on_each_quota_counts_and_the_oldest_go_first() {
        let quotas = Quotas::default();
        let at = Moment::from_millis;
        quotas.note(quota("core", 9), 1, at(1000));
        quotas.note(quota("core", 8), 1, at(2000));
        quotas.note(quota("core", 3), 2, at(3000));
        let told = quotas.tell(at(4000), |at| at.as_nanos() / 1_000_000);
        let rows: Vec<_> = told.iter().map(|quota| (&*quota.account, quota.remaining, quota.seen_ms)).collect();
        assert_eq!(rows, [("000001", 8, 2000), ("000002", 3, 3000)]);
        assert_eq!(told[0].resets_ms, Some(62_000));
        for n in 0..MOST {
            quotas.note(quota(&format!("r{n}"), 1), 0, at(5000));
        }
        assert_eq!(quotas.list(at(5000)).len(), MOST);
        assert!(quotas.list(at(5000)).iter().all(|(resource, ..)| resource != "core"));
        assert!(quotas.list(at(5000 + 86_400_000)).is_empty());
    }

    #[test]
    fn a_reserve_is_told_from_a_longer_pause_of_the_upstreams() {
        let (quotas, at) = (Quotas::default(), Moment::from_millis);
        quotas.note(quota("core", 1), 1, at(1000));
        let kept = |whose, reserve, ends| quotas.kept(whose, reserve, (at(ends), at(2000)));
        let told = Some(Kept { left: 1, limit: 10 });
        assert_eq!((kept(Some(1), 0.1, 61_000), kept(None, 0.1, 61_000)), (told, told));
        assert_eq!(kept(Some(1), 0.1, 5_000), told, "max_pause may end it sooner");
        assert_eq!(kept(Some(1), 0.1, 70_000), None, "the upstream asked for a longer one");
        assert_eq!(kept(Some(2), 0.1, 61_000), None, "another credential");
        assert_eq!(kept(Some(1), 0.0, 61_000), None, "nothing is kept");
        quotas.note(quota("core", 0), 1, at(1000));
        assert_eq!(kept(Some(1), 0.1, 61_000), None, "nothing is left");
    }
}
