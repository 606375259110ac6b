//! Warns of valid keys without effect, because of other keys.
//!
//! Keys of a preset cause no warning: only those in the file or in a variable do.

use super::cursor::Cursor;
use crate::classify::{Matcher, PatternList, RuleMatch};
use crate::limit::Policy;
use crate::limit::policy::{BucketPolicy, ClassPolicy, Combine, InFlight, Lane, Per, Strategy};
use crate::spec::{Hosts, PlainHttp, Settings};

/// A gate's limits, to be checked for limits without effect.
pub(super) struct LimitsInUse<'a> {
    policy: &'a Policy,
    /// For each class, whether calls can get into it.
    reach: &'a [Reach],
    at: &'a Cursor<'a>,
}

/// Whether calls can get into a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The class gets every matching call.
    Calls,
    /// The class gets no calls: the earlier class at this index matches all of them.
    Covered(usize),
    /// The class gets no calls: it matches none, and serves only as the outer class of others.
    Within,
}

/// Returns for each class whether calls can get into it. `matchings` are in the order of matching.
pub(super) fn reach<'m>(matchings: impl Iterator<Item = Option<&'m RuleMatch>>) -> Vec<Reach> {
    let matchings: Vec<_> = matchings.collect();
    let covering = |narrow: &RuleMatch, place| {
        let mut before = matchings.iter().take(place);
        before.position(|wide| wide.is_some_and(|wide| covers(wide, narrow)))
    };
    let reach = |(place, matching): (usize, &Option<&RuleMatch>)| match matching {
        None => Reach::Within,
        Some(narrow) => covering(narrow, place).map_or(Reach::Calls, Reach::Covered),
    };
    matchings.iter().enumerate().map(reach).collect()
}

/// Returns true if every call matching `narrow` also matches `wide`. Patterns are compared only as
/// texts.
fn covers(wide: &RuleMatch, narrow: &RuleMatch) -> bool {
    let (wide, narrow) = match (wide, narrow) {
        (RuleMatch::Everything, _) => return true,
        (RuleMatch::Patterns(wide), _) if **wide == Matcher::default() => return true,
        (RuleMatch::Patterns(wide), RuleMatch::Patterns(narrow)) => (wide, narrow),
        _ => return wide == narrow,
    };
    let has_all = |list| {
        let among = wide.get(list);
        let patterns = narrow.get(list);
        among.is_empty() || !patterns.is_empty() && patterns.iter().all(|pattern| among.contains(pattern))
    };
    PatternList::ALL.into_iter().all(has_all)
        && wide.headers.iter().all(|header| narrow.headers.contains(header))
        && wide.query.iter().all(|parameter| narrow.query.contains(parameter))
        && (wide.unfiltered.is_none() || wide.unfiltered == narrow.unfiltered)
}

// === impl LimitsInUse ===

impl<'a> LimitsInUse<'a> {
    pub(super) fn new(policy: &'a Policy, reach: &'a [Reach], at: &'a Cursor<'a>) -> Self {
        Self { policy, reach, at }
    }

    /// Warns of every limit without effect.
    pub(super) fn warn(&self) {
        self.of_gate();
        self.passed_by();
        self.of_queue();
        for (class, reach) in self.policy.classes.iter().zip(self.reach) {
            if let Some(at) = self.table(class) {
                self.of_class(class, &at, *reach);
            }
        }
    }

    /// Returns the classes with limited calls: not exempt, and reached by calls.
    fn waiting(&self) -> impl Iterator<Item = &ClassPolicy> {
        let classes = self.policy.classes.iter().zip(self.reach);
        classes.filter(|(class, reach)| **reach == Reach::Calls && class.lane != Lane::Exempt).map(|(class, _)| class)
    }

    /// Returns the table of a class, if the file has one.
    fn table(&self, class: &ClassPolicy) -> Option<Cursor<'a>> {
        self.at.at("classes").named(&class.name)
    }

    /// Warns of the gate's own limits if no call is subject to them.
    fn of_gate(&self) {
        let idle = |key: &str, is_met: bool, why: &str| {
            let at = self.at.at(key);
            if at.is_asked_for() && !is_met {
                at.warn(format!("has no effect: {why}"));
            }
        };
        let exempt = "all calls are in exempt classes; expected another lane for one of them";
        let has_calls = self.waiting().next().is_some();
        let remembers = self.waiting().any(|class| class.backoff.strategy != Strategy::Off);
        let why = "no call takes tokens of it, because every class is exempt or has own_bucket_only = true; expected own_bucket_only = false in one of them";
        idle("bucket", self.waiting().any(|class| !class.own_bucket_only), why);
        let why =
            "no failures are remembered, so no call counts as a retry; expected a backoff of the gate or of a class";
        idle("retry_bucket", remembers, why);
        let why = "no class remembers failures: the strategy is \"off\" in the preset, or in each class that is not exempt; expected strategy = \"exponential\"";
        idle("backoff", remembers || self.at.at("backoff").at("strategy").is_off(), why);
        idle("in_flight", has_calls, exempt);
        idle("one_at_a_time", has_calls, exempt);
        let why = "each class is exempt or has per_key = \"off\"; expected it in one of them";
        idle("per_key", self.waiting().any(|class| class.per_key.is_some()), why);
    }

    /// Warns if the preset's classes take no tokens of the gate's own bucket, but only of their
    /// own.
    fn passed_by(&self) {
        let at = self.at.at("bucket");
        let is_of_preset = |class: &&ClassPolicy| {
            let says_so = self.table(class).is_some_and(|table| table.has("own_bucket_only"));
            class.own_bucket_only && !says_so && &*class.name != "discovery"
        };
        let names: Vec<&str> = self.waiting().filter(is_of_preset).map(|class| &*class.name).collect();
        let (Some(first), true) = (names.first(), at.is_table()) else { return };
        let more = names.len().saturating_sub(FEW);
        let listed = names.iter().take(FEW).copied().collect::<Vec<_>>().join(", ");
        let listed = if more > 0 { format!("{listed} and {more} more") } else { listed };
        at.warn(format!(
            "does not limit every call: the preset's classes {listed} have buckets of their own; to lower those, set share; \
             to put them under this limit too, name each in [[classes]] with own_bucket_only = false, such as {{ name = {first:?}, own_bucket_only = false }}"
        ));
    }

    /// Warns of keys about queueing without effect, as when no call ever waits.
    fn of_queue(&self) {
        let (queue, at) = (&self.policy.queue, self.at.at("queue"));
        if queue.combine == Combine::MaxOf && at.has("combine") && self.policy.retry_bucket.is_none() {
            at.at("combine").warn("has no effect: there is no retry_bucket; expected one, or \"sequential\"");
        }
        let is_split = |per: Per| per == Per::Flow;
        let by_flow = |bucket: &Option<BucketPolicy>, slots: &Option<InFlight>| {
            bucket.is_some_and(|bucket| is_split(bucket.per)) || slots.is_some_and(|slots| is_split(slots.per))
        };
        let of_classes = self.policy.classes.iter().any(|class| by_flow(&class.bucket, &class.in_flight));
        let gate = by_flow(&self.policy.bucket, &self.policy.in_flight) || by_flow(&self.policy.retry_bucket, &None);
        let acts = gate || of_classes;
        if queue.max_wait.is_zero() && !acts && at.at("fair_by").is_asked_for() {
            at.at("fair_by").warn(
                "has no effect: with max_wait = \"0s\" no call waits; expected a longer max_wait; or remove this key",
            );
        }
    }

    /// Warns of keys without effect in one class.
    fn of_class(&self, class: &ClassPolicy, at: &Cursor<'_>, reach: Reach) {
        let idle = |key: &str, why: &str| {
            if at.at(key).is_asked_for() {
                at.at(key).warn(format!("has no effect: {why}"));
            }
        };
        if at.at("bucket").is_table()
            && !self.waiting().any(|other| self.policy.outward(other).any(|outer| outer.name == class.name))
        {
            idle("bucket", "no call takes tokens of it; expected a class with calls `within` this one");
        }
        if let Reach::Covered(by) = reach {
            let by = self.policy.classes.get(by).map_or("", |class| &class.name);
            let at = if at.has("match") { at.at("match") } else { at.at("name") };
            at.warn(format!("is never used: class {by:?} comes first and matches all calls of this class; move this class before {by:?}, or give {by:?} a narrower match"));
        }
        if reach != Reach::Calls {
            let why = "no call is of this class, so only its bucket counts, for the classes within it; expected this key in those classes";
            ["in_flight", "backoff", "per_key", "key", "cost", "meter_long_running", "revalidate", "shadow"]
                .iter()
                .for_each(|key| idle(key, why));
            return;
        }
        if class.lane == Lane::Exempt {
            let why = "calls of an exempt class never wait and take no tokens, and their failures are not remembered; expected another lane";
            ["backoff", "key", "meter_long_running", "within", "own_bucket_only"].iter().for_each(|key| idle(key, why));
            return;
        }
        if class.shadow {
            idle("revalidate", IN_SHADOW);
        }
        if class.own_bucket_only && self.policy.bucket.is_none() {
            idle("own_bucket_only", "the gate has no bucket; expected one; or remove this key");
        }
        let charged = self.charged(class);
        if charged.is_empty() {
            let why = "no bucket limits the class; expected a bucket of the gate or of the class";
            idle("meter_long_running", why);
            idle("cost", why);
        } else if charged.iter().all(|bucket| !bucket.counts_costs) {
            idle("cost", "the buckets of the class count calls; expected counts = \"tokens\" in one of them");
        }
        let forgets = class.backoff.strategy == Strategy::Off && class.per_key.is_none() && !self.policy.one_at_a_time;
        if forgets {
            idle("key", "the class remembers nothing of its calls; expected backoff, per_key or one_at_a_time");
        }
    }

    /// Returns the buckets a class's calls take tokens from, its own first.
    fn charged(&self, class: &ClassPolicy) -> Vec<BucketPolicy> {
        let gate = self.policy.bucket.filter(|_| !class.own_bucket_only);
        self.policy.outward(class).filter_map(|class| class.bucket).chain(gate).collect()
    }
}

/// Warns if retries can leave healthy calls too few tokens. Retries take tokens of both buckets, so
/// the gate's own must have a much higher rate.
pub(super) fn warn_of_retries(
    bucket: Option<BucketPolicy>,
    retries: Option<BucketPolicy>,
    strategy: Strategy,
    at: &Cursor<'_>,
) {
    let (Some(bucket), Some(retries)) = (bucket, retries) else { return };
    if strategy != Strategy::Off && !retries.opens && retries.rate > bucket.rate / 2.0 {
        let rate = retries.rate;
        let least = 2.0 * retries.rate;
        at.warn(format!(
            "is {rate}, more than half of bucket.rate, which is {}: while many objects fail, retries leave less than half of it to other calls; \
             expected bucket.rate to be {least} or more, or this to be lower",
            bucket.rate
        ));
    }
}

/// Warns of keys without effect, because of other settings of the gate or process.
pub(super) fn warn_of_idle(settings: &Settings, root: &Cursor<'_>) {
    for (name, gate) in &settings.gates {
        let at = root.at("gates").at(name);
        let keeps = gate.answers.revalidation.classes.iter().any(|keeps| *keeps);
        let none = "no class keeps responses; expected revalidate = true in one of them";
        if !keeps && at.at("revalidation").is_table() {
            at.at("revalidation").warn(format!("has no effect: {none}"));
        } else if gate.shadow && at.at("revalidation").is_table() {
            at.at("revalidation").warn(format!("has no effect: {IN_SHADOW}"));
        }
        if !gate.injects() && at.at("impersonation").is_word("allow") {
            at.at("impersonation").warn("has no effect: the clients' own credentials are passed through, with their Impersonate-* headers; expected credentials = \"inject\"; or remove this key");
        }
        let signals = at.at("signals");
        for key in ["scope", "max_pause"] {
            if gate.answers.throttling.honour.iter().next().is_none() && signals.has(key) {
                signals.at(key).warn(
                    "has no effect: honour is empty, so the upstream cannot ask for a pause; expected a signal in it",
                );
            }
        }
        let is_closed = |hosts: &Hosts| !hosts.intercept && hosts.plain == PlainHttp::Refuse;
        if gate.hosts.as_ref().is_some_and(is_closed) {
            at.at("plain").warn("is \"refuse\", and without intercept the gate cannot read TLS, so its limits hold for no call; expected intercept = true, or \"upgrade\"");
        }
    }
    if settings.egress.is_some() && settings.intercepted_names().is_empty() && root.at("egress").at("ca").is_table() {
        root.at("egress").at("ca").warn(
            "has no effect: no gate has intercept = true; expected that at a gate with hosts; or remove this table",
        );
    }
}

/// The most classes to name in a warning.
const FEW: usize = 4;
/// The reason why kept answers need limits in force.
const IN_SHADOW: &str = "with shadow = true calls are sent unchanged; expected shadow = false; or remove this table";
