//! Reads the classes: the built-in ones and the user's, in the order in which they are matched.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cost;
use super::cursor::Cursor;
use super::matching::matching;
use super::per_key::{PerKey, per_key};
use super::presets::{DENIALS, Preset, PresetClass, bucket};
use super::problems::did_you_mean;
use super::unmet::{Reach, reach};
use super::{limits, names, shared};
use crate::api::Failures;
use crate::classify::{ApiKind, CostBy, KeyParts, Rule, RuleMatch, Traits};
use crate::dialect::Dialect;
use crate::limit::policy::{Backoff, BucketPolicy, ClassPolicy, Cost, Lane, Per, SharedId, SharedPolicy, Strategy};
use crate::limit::{ClassId, Policy};

/// A class as it was read.
#[derive(Clone, Debug)]
pub(super) struct Class<'a> {
    /// Without the class that it is within.
    policy: ClassPolicy,
    within: Option<String>,
    matching: Option<RuleMatch>,
    failures: Failures,
    key: Option<KeyParts>,
    cost: CostBy,
    per_key: Option<PerKey>,
    shared: Option<SharedPolicy>,
    /// True if its answers are kept, to ask only if they have changed.
    revalidate: bool,
    /// Its table, which is absent for a built-in class that the file does not name.
    at: Cursor<'a>,
}

/// The settings of a gate that its classes start from.
#[derive(Debug)]
pub(super) struct GateDefaults {
    pub(super) kind: ApiKind,
    pub(super) preset: Preset,
    /// The share of the provider's figures that the preset's buckets take.
    pub(super) share: f64,
    pub(super) dialect: Dialect,
    pub(super) bucket: Option<BucketPolicy>,
    pub(super) backoff: (Backoff, Failures),
    pub(super) key: Option<KeyParts>,
    pub(super) per_key: Option<PerKey>,
}

/// Reads the classes of a gate, in order.
pub(super) fn classes<'a>(gate: &Cursor<'a>, defaults: &GateDefaults) -> Vec<Class<'a>> {
    let sections = gate.list("classes");
    // Built-in classes that the file does not name come after all that it has.
    let nowhere = |index| gate.at("classes").item(sections.len() + index);
    let new = |name: &str, matching, at| Class::new(name, matching, defaults, at);
    let (mut before, mut after) = builtin(defaults, &|name, matching| new(name, Some(matching), nowhere(0)));
    let mut own: Vec<Class<'a>> = Vec::new();
    let mut seen = BTreeMap::new();
    for (index, at) in sections.iter().enumerate() {
        let name = name(at, &mut seen);
        match before.iter_mut().chain(&mut after).find(|class| Some(class.name()) == name.as_deref()) {
            Some(class) => class.read(at.clone(), defaults),
            None => {
                let name = name.unwrap_or_else(|| format!("unnamed {index}"));
                let mut class = new(&name, None, at.clone());
                class.read(at.clone(), defaults);
                own.push(class);
            }
        }
    }
    let unnamed = before.iter_mut().chain(&mut after).filter(|class| !class.at.is_present());
    for (index, class) in unnamed.enumerate() {
        class.read(nowhere(index), defaults);
    }
    let classes: Vec<Class<'a>> = before.into_iter().chain(own).chain(after).collect();
    for class in &classes {
        class.at.enter();
    }
    check_together(&classes);
    classes
}

fn name(at: &Cursor<'_>, seen: &mut BTreeMap<String, String>) -> Option<String> {
    let name: Option<String> = at.read("name");
    let at_name = at.at("name");
    if !at_name.is_present() {
        at_name.missing(", expected the class's name");
    }
    let name = name?;
    if !names::is_snake_case(&name) {
        at_name.problem(format!("is {name:?}, expected {}", names::SNAKE_CASE));
    }
    if let Some(first) = seen.insert(name.clone(), at.path.to_string()) {
        at_name.problem(format!("is {name:?}, which {first} has already"));
    }
    Some(name)
}

impl<'a> Class<'a> {
    fn new(name: &str, matching: Option<RuleMatch>, defaults: &GateDefaults, at: Cursor<'a>) -> Self {
        let (backoff, failures) = defaults.backoff.clone();
        let policy = ClassPolicy {
            name: Arc::from(name),
            lane: Lane::Normal,
            bucket: None,
            within: None,
            own_bucket_only: false,
            backoff,
            in_flight: None,
            meter_long_running: false,
            cost: Cost::default(),
            per_key: None,
        };
        let key = defaults.key.clone();
        let cost = CostBy::Number(1);
        let per_key = defaults.per_key;
        let revalidate = defaults.preset.revalidates();
        Self { policy, within: None, matching, failures, key, cost, per_key, shared: None, revalidate, at }
    }

    fn name(&self) -> &str {
        &self.policy.name
    }

    /// True if it counts answers that are about the caller.
    fn counts_denials(&self) -> bool {
        DENIALS.iter().any(|status| self.failures.statuses.contains(status))
    }

    fn with(mut self, change: impl FnOnce(&mut ClassPolicy)) -> Self {
        change(&mut self.policy);
        self
    }

    /// Changes what the table at `at` changes.
    fn read(&mut self, at: Cursor<'a>, defaults: &GateDefaults) {
        at.in_force("name", &self.name().to_owned());
        let policy = &mut self.policy;
        self.matching = matching(&at, self.matching.take(), defaults.kind, defaults.dialect);
        policy.lane = at.get("lane", policy.lane);
        let bucket_at = at.limit("bucket");
        policy.bucket = limits::bucket(&bucket_at, policy.bucket);
        self.shared = shared::shared(&bucket_at, policy.bucket.as_ref());
        self.within = at.option("within", self.within.take());
        // A built-in class whose bucket is switched off falls back on the gate's.
        policy.own_bucket_only =
            at.get("own_bucket_only", policy.own_bucket_only && (policy.bucket.is_some() || self.within.is_some()));
        let backoff_at = at.table_or_off("backoff");
        (policy.backoff, self.failures) = limits::backoff(&backoff_at, &(policy.backoff, self.failures.clone()));
        backoff_at.read::<usize>("max_keys");
        if backoff_at.has("max_keys") {
            backoff_at.at("max_keys").key_problem("is for the whole gate, expected in its own [backoff]");
        }
        policy.in_flight = limits::in_flight(&at.limit("in_flight"), policy.in_flight);
        policy.meter_long_running = at.get("meter_long_running", policy.meter_long_running);
        (self.cost, policy.cost) = cost::cost(&at, (self.cost, policy.cost), defaults.kind, defaults.dialect);
        self.key = at.get("key", self.key.take());
        let of_gate = self.per_key.filter(|_| policy.lane != Lane::Exempt);
        self.per_key = per_key(&at.limit("per_key"), of_gate);
        policy.per_key = self.per_key.map(PerKey::paces);
        let is_other = defaults.kind != ApiKind::Http;
        let of_http = at.unused_if(is_other, "it is for kind = \"http\" only", &at.at("revalidate"));
        self.revalidate = of_http.get("revalidate", self.revalidate);
        self.at = at;
    }
}

/// Returns the built-in classes before and after the user's.
fn builtin<'a>(
    defaults: &GateDefaults,
    class: &impl Fn(&str, RuleMatch) -> Class<'a>,
) -> (Vec<Class<'a>>, Vec<Class<'a>>) {
    let default = class("default", RuleMatch::Everything);
    if defaults.kind == ApiKind::Http {
        let of_preset = defaults.preset.classes().into_iter().map(|one| of_preset(one, defaults, class));
        let health = class("health", RuleMatch::GrpcHealth).with(|policy| policy.lane = Lane::Exempt);
        let before = if defaults.dialect == Dialect::Plain { Vec::new() } else { vec![health] };
        return (before, of_preset.chain([default]).collect());
    }
    let before = [class("leases", RuleMatch::Leases), class("health", RuleMatch::Health)];
    let before = before.into_iter().map(|class| class.with(|policy| policy.lane = Lane::Exempt)).collect();
    // Discovery comes in one large burst, which must not empty the gate's bucket. Where that is
    // off, nothing is to be spared.
    let own = defaults.bucket.map(|_| bucket(50.0, 300, Per::Gate));
    let discovery = class("discovery", RuleMatch::Discovery).with(|policy| {
        policy.bucket = own;
        policy.own_bucket_only = own.is_some();
    });
    let reviews = class("reviews", RuleMatch::Reviews).with(|policy| policy.lane = Lane::High);
    let events = class("events", RuleMatch::Events).with(|policy| policy.lane = Lane::Low);
    let after = vec![discovery, reviews, events, default];
    (before, after)
}

/// Returns a class of the gate's preset.
fn of_preset<'a>(
    preset: PresetClass,
    defaults: &GateDefaults,
    class: &impl Fn(&str, RuleMatch) -> Class<'a>,
) -> Class<'a> {
    let PresetClass { name, matcher, bucket, lane, within, own_bucket_only, hold, cost, hides_by_403 } = preset;
    let (by, cost) = cost::of_preset(cost, defaults.kind, defaults.dialect);
    let class = class(name, RuleMatch::Patterns(Box::new(matcher))).with(|policy| {
        policy.cost = cost;
        policy.bucket = bucket.map(|bucket| bucket.at(defaults.share));
        (policy.lane, policy.own_bucket_only) = (lane, own_bucket_only);
        policy.backoff.hold = hold.unwrap_or(policy.backoff.hold);
    });
    let mut failures = class.failures.clone();
    failures.statuses.retain(|status| !(hides_by_403 && *status == 403));
    Class { within: within.map(str::to_owned), cost: by, failures, ..class }
}

/// Tells each bucket the largest cost of a call that it is charged for.
pub(super) fn fit_costs(classes: &mut [Class<'_>], gate_bucket: &mut Option<BucketPolicy>) {
    let charged = |class: &Class<'_>| class.policy.lane != Lane::Exempt;
    let of_gate = classes.iter().filter(|class| charged(class) && !class.policy.own_bucket_only);
    cost::fit(gate_bucket, "the gate's bucket", of_gate.map(|class| (class.policy.cost, &class.at)));
    for place in 0..classes.len() {
        let Some(mut bucket) = classes.get(place).map(|class| class.policy.bucket) else { continue };
        let name = classes[place].name().to_owned();
        let inside = classes.iter().filter(|class| charged(class) && is_within(class, &name, classes));
        cost::fit(&mut bucket, &format!("the bucket of {name:?}"), inside.map(|class| (class.policy.cost, &class.at)));
        classes[place].policy.bucket = bucket;
    }
}

/// True if a class is the one of this name, or is within it through others.
fn is_within(class: &Class<'_>, name: &str, classes: &[Class<'_>]) -> bool {
    let find = |name: &str| classes.iter().find(|class| class.name() == name);
    let mut chain = std::iter::successors(Some(class), |class| class.within.as_deref().and_then(find));
    chain.by_ref().take(classes.len()).any(|class| class.name() == name)
}

/// Checks what classes mean to each other.
fn check_together(classes: &[Class<'_>]) {
    for class in classes.iter().filter(|class| class.at.is_present()) {
        let at = |key| class.at.at(key);
        check_within(class, classes);
        let policy = &class.policy;
        if policy.lane == Lane::Exempt && policy.bucket.is_some() {
            at("bucket").key_problem("has no effect: an exempt class never waits and never spends");
        }
        if policy.lane == Lane::Exempt && policy.cost != Cost::default() {
            at("cost").key_problem("has no effect: an exempt class never spends");
        }
        if policy.lane == Lane::Exempt && at("per_key").is_table() {
            at("per_key").key_problem("has no effect: an exempt class is never held, and no key of it is remembered");
        }
        if policy.lane == Lane::Exempt && policy.in_flight.is_some() {
            at("in_flight").key_problem("has no effect: an exempt class never waits");
        }
        if policy.own_bucket_only && policy.bucket.is_none() && class.within.is_none() {
            at("own_bucket_only")
                .given(&[&at("bucket"), &at("within")])
                .key_problem("needs a bucket of the class, or nothing limits it; for that: lane = \"exempt\"");
        }
        let is_charged = classes.iter().any(|other| other.within.as_deref() == Some(class.name()));
        if class.matching.is_none() && !is_charged {
            let within: Vec<Cursor<'_>> = classes.iter().map(|other| other.at.at("within")).collect();
            let at_match = at("match");
            let given: Vec<&Cursor<'_>> = within.iter().chain([&at_match]).collect();
            at_match
                .given(&given)
                .problem("is missing: expected what belongs to the class (or another class `within` it)");
        }
    }
}

fn check_within(class: &Class<'_>, classes: &[Class<'_>]) {
    let Some(within) = &class.within else { return };
    let find = |name: &str| classes.iter().find(|class| class.name() == name);
    let problem = |message: String| class.at.at("within").problem(message);
    let Some(outer) = find(within) else {
        let names: Vec<&str> = classes.iter().map(|class| class.name()).collect();
        let message = format!("is {within:?}, which is not a class of this gate{}", did_you_mean(within, &names));
        let at_names: Vec<Cursor<'_>> = classes.iter().map(|class| class.at.at("name")).collect();
        return class.at.at("within").given(&at_names.iter().collect::<Vec<_>>()).problem(message);
    };
    if outer.policy.bucket.is_none() && outer.within.is_none() {
        let bucket = outer.at.at("bucket");
        class.at.at("within").given(&[&bucket]).problem(format!("is {within:?}, a class without a bucket"));
    }
    let mut chain = vec![class.name()];
    let mut next = Some(outer);
    while let Some(outer) = next {
        if chain.contains(&outer.name()) {
            return problem(format!("goes round in a circle: {} within {}", chain.join(" within "), outer.name()));
        }
        chain.push(outer.name());
        next = outer.within.as_deref().and_then(find);
    }
}

/// The classes as the limiter and the classifier want them.
#[derive(Debug)]
pub(super) struct Numbered {
    policies: Vec<ClassPolicy>,
    /// The sharing of their buckets, by place.
    shared: Vec<Option<SharedPolicy>>,
    pub(super) traits: Vec<Traits>,
    pub(super) rules: Vec<Rule>,
    pub(super) failures: Vec<Failures>,
    pub(super) revalidate: Vec<bool>,
    pub(super) reach: Vec<Reach>,
    /// True for classes that remember failures for each credential.
    pub(super) callers_apart: Vec<bool>,
    pub(super) keys: Vec<Option<KeyParts>>,
}

// === impl Numbered ===

impl Numbered {
    /// Adds the classes to the policy of their gate.
    pub(super) fn join(&self, policy: Policy) -> Policy {
        let mut policy = Policy { classes: self.policies.clone(), ..policy };
        for (class, shared) in policy.classes.iter_mut().zip(&self.shared) {
            if let (Some(bucket), Some(shared)) = (&mut class.bucket, shared) {
                bucket.shared = u16::try_from(policy.shared.len()).ok().map(SharedId);
                policy.shared.push(Arc::new(shared.clone()));
            }
        }
        policy
    }
}

/// Numbers checked classes by their place.
pub(super) fn numbered(classes: &[Class<'_>], gate_bucket: Option<BucketPolicy>, one_at_a_time: bool) -> Numbered {
    let id = |name: &str| {
        let ids = classes.iter().zip(0_u16..);
        ids.clone().find(|(class, _)| class.name() == name).map(|(_, id)| ClassId(id))
    };
    let policies = classes
        .iter()
        .map(|class| ClassPolicy { within: class.within.as_deref().and_then(id), ..class.policy.clone() });
    let traits = classes.iter().zip(strictness(classes, gate_bucket)).map(|(class, strictness)| Traits {
        exempt: class.policy.lane == Lane::Exempt,
        remembers: one_at_a_time || class.policy.per_key.is_some() || class.policy.backoff.strategy != Strategy::Off,
        strictness,
        cost: class.cost,
    });
    let rules = classes.iter().zip(0_u16..).filter_map(|(class, id)| {
        let matching = class.matching.clone()?;
        Some(Rule { class: ClassId(id), matching })
    });
    Numbered {
        policies: policies.collect(),
        shared: classes.iter().map(|class| class.shared.clone()).collect(),
        traits: traits.collect(),
        rules: rules.collect(),
        failures: classes.iter().map(|class| class.failures.clone()).collect(),
        revalidate: classes.iter().map(|class| class.revalidate).collect(),
        reach: reach(classes.iter().map(|class| class.matching.as_ref())),
        // Of an object that is written by one at a time there is one key.
        callers_apart: classes.iter().map(|class| !one_at_a_time && class.counts_denials()).collect(),
        keys: classes.iter().map(|class| class.key.clone()).collect(),
    }
}

/// Ranks classes for calls with an ambiguous path: a lower lane is stricter, and in a lane a
/// smaller rate; exempt is never strict.
fn strictness(classes: &[Class<'_>], gate_bucket: Option<BucketPolicy>) -> Vec<u16> {
    let rate = |class: &Class<'_>| {
        let gate = gate_bucket.filter(|_| !class.policy.own_bucket_only).map(|bucket| bucket.rate);
        let mut least = gate.unwrap_or(f64::INFINITY);
        let mut next = Some(class);
        // As long as the chain can be at all.
        for _ in classes {
            let Some(class) = next else { break };
            least = class.policy.bucket.map_or(least, |bucket| least.min(bucket.rate));
            next = class.within.as_deref().and_then(|name| classes.iter().find(|class| class.name() == name));
        }
        least
    };
    let mut order: Vec<(usize, Lane, f64)> =
        classes.iter().enumerate().map(|(place, class)| (place, class.policy.lane, rate(class))).collect();
    order.sort_by(|a, b| a.1.cmp(&b.1).then(b.2.total_cmp(&a.2)).then(a.0.cmp(&b.0)));
    let mut ranks = vec![0; classes.len()];
    for ((place, ..), rank) in order.into_iter().zip(0_u16..) {
        if let Some(slot) = ranks.get_mut(place) {
            *slot = rank;
        }
    }
    ranks
}
