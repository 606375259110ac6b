//! The quotas of the upstream as its answers told them last. They are for people who look, not for
//! decisions.

use std::collections::BTreeMap;
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
            known.insert((resource, whose), seen);
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

    /// Returns the same for the status page; `wall` gives the time of day in milliseconds.
    pub(crate) fn tell(&self, now: Moment, wall: impl Fn(Moment) -> u64) -> Vec<status::Quota> {
        let rows = self.list(now).into_iter().map(|(resource, account, seen)| status::Quota {
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

/// Returns a name that tells a handful of accounts apart, and is useless for anything else.
fn name(whose: u64) -> String {
    if whose == 0 { String::new() } else { format!("{:06x}", whose & 0xff_ffff) }
}

/// The most quotas that are remembered.
const MOST: usize = 100;
/// The time for which one is.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(resource: &str, remaining: u64) -> Vec<Quota> {
        vec![Quota { resource: resource.into(), limit: Some(10), remaining, resets_in: Some(Duration::from_secs(60)) }]
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
}
