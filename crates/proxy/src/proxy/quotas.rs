//! The upstream's own quotas, by its last responses: when each runs out, and its main users. They
//! are shown to people and decide nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use crate::api::signals::Quota;
use crate::limit::Policy;
use crate::limit::policy::ClassPolicy;
use crate::limit::quota::{QuotaId, ResourceId, UseRate};
use crate::lock;
use crate::moment::Moment;
use crate::status::{self, QuotaSpender};

/// The upstream's quotas, by resource and by the hash of their owner.
#[derive(Debug, Default)]
pub(crate) struct Quotas(Mutex<BTreeMap<(String, u64), QuotaLevel>>);

/// A quota by the last response about it.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuotaLevel {
    pub(crate) limit: Option<u64>,
    pub(crate) remaining: u64,
    /// The moment the quota is full again.
    pub(crate) resets_at: Option<Moment>,
    pub(crate) at: Moment,
    /// When the quota is used up at the present rate; `None` if it is full again earlier.
    pub(crate) runs_out: Option<Moment>,
    /// The net use.
    used: UseRate,
    /// The calls by the row of their caller.
    spenders: BTreeMap<usize, u32>,
}

/// A quota with little left; a pause saves the rest for other users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaReserve {
    pub(crate) left: u64,
    pub(crate) limit: u64,
}

// === impl Quotas ===

impl Quotas {
    /// Records the quotas in a response; `caller` is the row of the call's caller, and `whose` the
    /// hash of its credential or account, or zero.
    pub(crate) fn note(&self, quotas: Vec<Quota>, whose: u64, caller: usize, now: Moment) {
        if quotas.is_empty() {
            return;
        }
        let mut known = lock(&self.0);
        for Quota { resource, limit, remaining, resets_in } in quotas {
            let resets_at = resets_in.map(|wait| now + wait);
            let seen = known.entry((resource.into_owned(), whose)).or_default();
            seen.limit = limit;
            seen.note(remaining, resets_at, caller, now);
        }
        while known.len() > MOST {
            let oldest = known.iter().min_by_key(|(_, seen)| seen.at).map(|(key, _)| key.clone());
            oldest.map(|key| known.remove(&key));
        }
    }

    /// Returns the quotas reported in the last day, each with its resource and its owner. The
    /// owner's name is empty if the gate does not tell callers apart.
    pub(crate) fn list(&self, now: Moment) -> Vec<(String, String, QuotaLevel)> {
        let mut known = lock(&self.0);
        known.retain(|_, seen| now - seen.at < REMEMBERED);
        let row =
            |((resource, whose), seen): (&(String, u64), &QuotaLevel)| (resource.clone(), name(*whose), seen.clone());
        known.iter().map(row).collect()
    }

    /// Returns the quota saved for other users by a pause: some of it is left, but at most the
    /// fraction `reserve`, and the pause ends when it is full again, or earlier. `None` for other
    /// pauses: the upstream asked for them.
    pub(crate) fn kept(&self, of: QuotaId, reserve: f64, ends: Moment, now: Moment) -> Option<QuotaReserve> {
        let known = lock(&self.0);
        let is_named = known.keys().any(|(resource, _)| ResourceId::named(resource) == of.resource);
        let is_meant = |(resource, whose): &(String, u64)| {
            [0, *whose].contains(&of.holder) && (!is_named || ResourceId::named(resource) == of.resource)
        };
        let meant = known.iter().filter(|(key, _)| is_meant(key));
        meant.filter_map(|(_, seen)| seen.kept(reserve, ends, now)).min_by_key(|kept| kept.left)
    }

    /// Returns a description of a paused quota: `gate`, `class reads`, `core of credential 1a2b3c`.
    pub(crate) fn describe(&self, quota: QuotaId, policy: &Policy) -> String {
        let QuotaId { holder, resource } = quota;
        let is_of = |class: &&ClassPolicy| ResourceId::of_class(&class.name) == resource;
        let class = || Some(format!("class {}", policy.classes.iter().find(is_of)?.name));
        let word =
            || lock(&self.0).keys().map(|(word, _)| word).find(|word| ResourceId::named(word) == resource).cloned();
        let what = class().or_else(word).unwrap_or_else(|| "one resource".to_owned());
        match (resource, holder) {
            (ResourceId::ALL, 0) => "gate".to_owned(),
            (ResourceId::ALL, _) => format!("credential {}", name(holder)),
            (_, 0) => what,
            (_, _) => format!("{what} of credential {}", name(holder)),
        }
    }

    /// Returns the hashes of the credentials with a known quota.
    pub(crate) fn credentials(&self) -> BTreeSet<u64> {
        lock(&self.0).keys().map(|(_, whose)| *whose).filter(|whose| *whose != 0).collect()
    }

    /// Returns the quotas for the status page; `wall` gives the time of day in milliseconds, `agent` the
    /// caller of a row.
    pub(crate) fn tell(
        &self,
        now: Moment,
        wall: impl Fn(Moment) -> u64,
        agent: impl Fn(usize) -> String,
    ) -> Vec<status::UpstreamQuota> {
        let rows = self.list(now).into_iter().map(|(resource, account, seen)| status::UpstreamQuota {
            resource,
            account,
            limit: seen.limit,
            remaining: seen.remaining,
            resets_ms: seen.resets_at.map(&wall),
            runs_out_ms: seen.runs_out.map(&wall),
            per_second: seen.used.per_second(now),
            spenders: seen.spenders(&agent),
            seen_ms: wall(seen.at),
        });
        rows.collect()
    }
}

// === impl QuotaLevel ===

impl QuotaLevel {
    #[expect(clippy::cast_precision_loss, reason = "quotas stay far below 2^52")]
    fn note(&mut self, remaining: u64, resets_at: Option<Moment>, caller: usize, now: Moment) {
        let whole_in = resets_at.map_or(Duration::ZERO, |at| at - now);
        let moved = resets_at.zip(self.resets_at).is_some_and(|(new, old)| new > old + SLACK);
        let is_new = self.at == Moment::ZERO || moved && remaining > self.remaining;
        if is_new {
            self.spenders.clear();
        }
        let used = if is_new { 0.0 } else { self.remaining as f64 - remaining as f64 };
        self.used.add(used, whole_in, now);
        *self.spenders.entry(caller).or_default() += 1;
        let lasts = Duration::try_from_secs_f64(remaining as f64 / self.used.per_second(now)).ok();
        self.runs_out = lasts.filter(|lasts| *lasts < whole_in).map(|lasts| now + lasts);
        self.remaining = remaining;
        self.resets_at = resets_at;
        self.at = now;
    }

    /// Returns the callers spending most of the quota, each with its share.
    fn spenders(&self, agent: impl Fn(usize) -> String) -> Vec<QuotaSpender> {
        let all = self.spenders.values().map(|calls| f64::from(*calls)).sum::<f64>();
        let spender =
            |(row, calls): (&usize, &u32)| QuotaSpender { caller: agent(*row), part: f64::from(*calls) / all };
        let mut spenders: Vec<_> =
            self.spenders.iter().map(spender).filter(|spender| !spender.caller.is_empty()).collect();
        spenders.sort_by(|one, other| other.part.total_cmp(&one.part));
        spenders.truncate(SPENDERS);
        spenders
    }

    fn kept(&self, reserve: f64, ends: Moment, now: Moment) -> Option<QuotaReserve> {
        let limit = self.limit?;
        let whole = self.resets_at.filter(|at| *at > now)?;
        #[expect(clippy::cast_precision_loss, reason = "quotas stay far below 2^52")]
        let is_kept = self.remaining > 0 && self.remaining as f64 <= limit as f64 * reserve;
        (is_kept && ends <= whole + SLACK).then_some(QuotaReserve { left: self.remaining, limit })
    }
}

/// Returns a short name for an owner's hash, good for telling a handful of accounts apart and
/// nothing else.
fn name(whose: u64) -> String {
    if whose == 0 { String::new() } else { format!("{:06x}", whose & 0xff_ffff) }
}

/// How far the end of a pause and the reset of its quota may differ: each is computed from its own
/// reading of the clock, and upstreams send whole seconds.
const SLACK: Duration = Duration::from_secs(2);
/// The most spenders to show.
const SPENDERS: usize = 3;
/// The most quotas to remember.
const MOST: usize = 100;
/// How long a quota is remembered.
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
        quotas.note(quota("core", 9), 1, 0, at(1000));
        quotas.note(quota("core", 8), 1, 0, at(2000));
        quotas.note(quota("core", 3), 2, 0, at(3000));
        let told = quotas.tell(at(4000), |at| at.as_nanos() / 1_000_000, |_| String::new());
        let rows: Vec<_> = told.iter().map(|quota| (&*quota.account, quota.remaining, quota.seen_ms)).collect();
        assert_eq!(rows, [("000001", 8, 2000), ("000002", 3, 3000)]);
        assert_eq!(told[0].resets_ms, Some(62_000));
        for n in 0..MOST {
            quotas.note(quota(&format!("r{n}"), 1), 0, 0, at(5000));
        }
        assert_eq!(quotas.list(at(5000)).len(), MOST);
        assert!(quotas.list(at(5000)).iter().all(|(resource, ..)| resource != "core"));
        assert!(quotas.list(at(5000 + 86_400_000)).is_empty());
    }

    #[test]
    fn half_of_a_window_tells_when_it_runs_out_and_who_spends_it() {
        // Two calls a second, not evenly: 5,000 last for 2,500 s of 3,600.
        let quotas = Quotas::default();
        let mut dice = 7_u64;
        for call in 0..3600_u64 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = Moment::from_millis(call * 500 + (dice >> 33) % 400);
            let resets_in = Some(Duration::from_secs(3600 - call / 2));
            let left = Quota { resource: "core".into(), limit: Some(5000), remaining: 5000 - call, resets_in };
            quotas.note(vec![left], 1, usize::from(call % 5 > 2), at);
        }
        let now = Moment::from_millis(1_800_000);
        let told = quotas.tell(now, |at| at.as_nanos() / 1_000_000, |row| ["renovate", "argo"][row].to_owned());
        let left = told[0].runs_out_ms.expect("it runs out") as f64 / 1000.0 - 1800.0;
        println!("runs out in {left} s of 700 s, {} a second", told[0].per_second);
        assert!((left - 700.0).abs() <= 70.0, "{left}");
        let spender = |caller: &str, part| QuotaSpender { caller: caller.to_owned(), part };
        assert_eq!(told[0].spenders, [spender("renovate", 0.6), spender("argo", 0.4)]);
    }

    #[test]
    fn a_use_that_fits_runs_out_at_no_time() {
        let quotas = Quotas::default();
        for call in 0..360_u64 {
            let resets_in = Some(Duration::from_secs(3600 - call * 5));
            let left = Quota { resource: "core".into(), limit: Some(5000), remaining: 5000 - call, resets_in };
            quotas.note(vec![left], 1, 0, Moment::from_millis(call * 5000));
        }
        let rows = quotas.list(Moment::from_millis(1_800_000));
        assert_eq!(rows[0].2.runs_out, None);
    }

    #[test]
    fn a_reserve_is_told_from_a_longer_pause_of_the_upstreams() {
        let (quotas, at) = (Quotas::default(), Moment::from_millis);
        quotas.note(quota("core", 1), 1, 0, at(1000));
        let of = |holder, word| QuotaId { holder, resource: ResourceId::named(word) };
        let kept = |quota, reserve, ends| quotas.kept(quota, reserve, at(ends), at(2000));
        let told = Some(QuotaReserve { left: 1, limit: 10 });
        assert_eq!((kept(of(1, "core"), 0.1, 61_000), kept(QuotaId::ALL, 0.1, 61_000)), (told, told));
        assert_eq!(kept(of(1, "core"), 0.1, 5_000), told, "max_pause may end it sooner");
        assert_eq!(kept(of(1, "core"), 0.1, 70_000), None, "the upstream asked for a longer one");
        assert_eq!(kept(of(2, "core"), 0.1, 61_000), None, "another credential");
        assert_eq!(kept(of(1, "core"), 0.0, 61_000), None, "nothing is kept");
        quotas.note(quota("search", 1), 1, 0, at(1000));
        quotas.note(quota("core", 0), 1, 0, at(1000));
        assert_eq!(kept(of(1, "search"), 0.1, 61_000), told, "each resource has its own");
        assert_eq!(kept(of(1, "core"), 0.1, 61_000), None, "nothing is left");
    }

    #[test]
    fn a_quota_is_named_by_its_class_or_the_upstreams_word() {
        let class = ClassPolicy { name: "reads".into(), ..ClassPolicy::default() };
        let policy = Policy { classes: vec![class], ..Policy::default() };
        let quotas = Quotas::default();
        quotas.note(quota("core", 1), 7, 0, Moment::from_millis(1));
        let of = |holder, resource| quotas.describe(QuotaId { holder, resource }, &policy);
        assert_eq!(of(0, ResourceId::ALL), "gate");
        assert_eq!(of(0x1a_2b3c, ResourceId::ALL), "credential 1a2b3c");
        assert_eq!(of(0, ResourceId::of_class("reads")), "class reads");
        assert_eq!(of(7, ResourceId::named("core")), "core of credential 000007");
        assert_eq!(of(7, ResourceId::named("other")), "one resource of credential 000007");
    }
}
