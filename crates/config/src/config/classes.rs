//! Reads the classes of a gate, built-in ones and the user's, in the order of matching.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::Value;

use super::cost;
use super::cursor::Cursor;
use super::matching::matching;
use super::per_key::{PerKey, per_key};
use super::presets::PresetClass;
use super::problems::did_you_mean;
use super::shared::Sharing;
use super::values::OrAuto;
use super::{limits, names, shared};
use crate::api::{Failures, PausePolicy};
use crate::classify::{ApiKind, CostBy, FairBy, KeyParts, Rule, RuleMatch, Traits};
use crate::dialect::Dialect;
use crate::limit::policy::{Backoff, BucketPolicy, ClassPolicy, Cost, Lane, SharedId, SharedPolicy, Strategy};
use crate::limit::{ClassId, Policy};

/// A class as it was read from the configuration.
#[derive(Clone, Debug)]
pub(super) struct Class<'a> {
    /// The class's limits. Their `within` is set later, by [`join`].
    policy: ClassPolicy,
    within: Option<String>,
    pub(super) matching: Option<RuleMatch>,
    pub(super) failures: Failures,
    pub(super) key: Option<KeyParts>,
    cost: CostBy,
    shared: Option<SharedPolicy>,
    /// True if the gate caches responses, and asks the upstream only whether they have changed.
    pub(super) revalidate: bool,
    /// The class's table in the file. For a built-in class not in the file, nothing is there.
    at: Cursor<'a>,
}

/// The limits of a gate; they are the defaults for its classes.
#[derive(Debug)]
pub(super) struct GateLimits {
    pub(super) kind: ApiKind,
    pub(super) dialect: Dialect,
    /// The gate's limits in the limiter's form; its list of classes is empty.
    pub(super) policy: Policy,
    pub(super) fair_by: FairBy,
    pub(super) throttling: PausePolicy,
    pub(super) backoff: (Backoff, Failures),
    pub(super) key: Option<KeyParts>,
    pub(super) per_key: Option<PerKey>,
    pub(super) sharing: Option<Sharing>,
}

/// A class before its table is read.
struct BareClass {
    name: String,
    /// The calls of a built-in class; `None` for the user's classes: these have patterns instead.
    matching: Option<RuleMatch>,
    /// The keys a preset sets for the class.
    keys: Value,
    hides_by_403: bool,
}

/// Reads the classes of a gate, in order.
pub(super) fn classes<'a>(gate: &Cursor<'a>, preset: Vec<PresetClass>, gate_limits: &GateLimits) -> Vec<Class<'a>> {
    let sections = gate.list("classes");
    let mut seen = BTreeMap::new();
    let named = sections.iter().enumerate().map(|(index, at)| {
        let name = name(at, &mut seen).unwrap_or_else(|| format!("unnamed {index}"));
        (name, at)
    });
    let named: Vec<(String, &Cursor<'a>)> = named.collect();
    let (before, after) = built_in(preset, gate_limits);
    let is_own = |name: &str| !before.iter().chain(&after).any(|class| class.name == name);
    let own = named.iter().filter(|(name, _)| is_own(name));
    let own: Vec<Class<'a>> =
        own.map(|(name, at)| Class::read(BareClass::built_in(name, None, ""), (*at).clone(), gate_limits)).collect();
    // Built-in classes that the file does not name come after all that it has.
    let mut nowhere = (sections.len()..).map(|index| gate.at("classes").item(index));
    let mut read = |class: BareClass| {
        let at = named.iter().find(|(name, _)| *name == class.name).map(|(_, at)| (*at).clone());
        Some(Class::read(class, at.or_else(|| nowhere.next())?, gate_limits))
    };
    let before: Vec<Class<'a>> = before.into_iter().filter_map(&mut read).collect();
    let after: Vec<Class<'a>> = after.into_iter().filter_map(&mut read).collect();
    let classes: Vec<Class<'a>> = before.into_iter().chain(own).chain(after).collect();
    for class in &classes {
        class.at.enter();
    }
    check_together(&classes);
    classes
}

fn name(at: &Cursor<'_>, seen: &mut BTreeMap<String, String>) -> Option<String> {
    let name: String = at.required("name", "the class's name")?;
    let at_name = at.at("name");
    if !names::is_snake_case(&name) {
        at_name.problem(format!("is {name:?}, expected {}", names::SNAKE_CASE));
    }
    if let Some(first) = seen.insert(name.clone(), at.path.to_string()) {
        at_name.problem(format!("is {name:?}, the name of {first} too; expected another"));
    }
    Some(name)
}

// === impl Class ===

impl<'a> Class<'a> {
    /// Reads the table of a class.
    fn read(class: BareClass, at: Cursor<'a>, gate_limits: &GateLimits) -> Self {
        let keys = at.with_preset(&class.keys);
        keys.in_force("name", &class.name);
        let matching = matching(&keys, class.matching, gate_limits.kind, gate_limits.dialect);
        let lane = keys.get("lane", Lane::Normal);
        let bucket_at = keys.limit("bucket");
        let mut bucket = limits::bucket(&bucket_at);
        let shared = shared::shared(&bucket_at, &mut bucket, gate_limits.sharing.as_ref());
        let within: Option<String> = keys.option("within", None);
        let own_bucket_only = keys.get("own_bucket_only", false);
        // A built-in class whose bucket is switched off falls back on the gate's.
        let own_bucket_only = own_bucket_only && (at.has("own_bucket_only") || bucket.is_some() || within.is_some());
        keys.in_force("own_bucket_only", &own_bucket_only);
        let backoff_at = keys.table_or_off("backoff");
        let mut of_gate = gate_limits.backoff.clone();
        of_gate.1.statuses.retain(|status| !(class.hides_by_403 && *status == 403));
        let (backoff, failures) = limits::backoff(&backoff_at, &of_gate);
        backoff_at.read::<usize>("max_keys");
        if backoff_at.has("max_keys") {
            backoff_at.at("max_keys").key_problem("holds for the whole gate, expected it in the gate's own [backoff]");
        }
        let in_flight = limits::in_flight(&keys.limit("in_flight"));
        let meter_long_running = keys.get("meter_long_running", false);
        let (by, cost) = cost::cost(&keys, gate_limits.kind, gate_limits.dialect);
        let OrAuto(key) = keys.get("key", OrAuto(gate_limits.key.clone()));
        let per_key = per_key(&keys, gate_limits.per_key.filter(|_| lane != Lane::Exempt)).map(PerKey::paces);
        let is_other = gate_limits.kind != ApiKind::Http;
        let of_http = keys.unused_if(is_other, "it is for kind = \"http\" only", &at.at("revalidate"));
        let revalidate = of_http.get("revalidate", gate_limits.policy.uncounted.is_some());
        let shadow = keys.get("shadow", false);
        let policy = ClassPolicy {
            name: Arc::from(class.name),
            lane,
            bucket,
            within: None,
            own_bucket_only,
            backoff,
            in_flight,
            meter_long_running,
            cost,
            per_key,
            shadow,
        };
        Self { policy, within, matching, failures, key, cost: by, shared, revalidate, at }
    }

    fn name(&self) -> &str {
        &self.policy.name
    }

    /// Returns true if a response 401 or 403, a denial of the caller, counts as a failure.
    pub(super) fn counts_denials(&self) -> bool {
        [401, 403].iter().any(|status| self.failures.statuses.contains(status))
    }
}

// === impl BareClass ===

impl BareClass {
    /// Makes a built-in class with these keys, written as in a file.
    fn built_in(name: &str, matching: Option<RuleMatch>, keys: &str) -> Self {
        let keys = Value::Table(toml::from_str(keys).unwrap_or_default());
        Self { name: name.to_owned(), matching, keys, hides_by_403: false }
    }

    fn of_preset(PresetClass { keys, hides_by_403, .. }: PresetClass) -> Self {
        let name = keys.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        Self { name, matching: None, keys: Value::Table(keys), hides_by_403 }
    }
}

/// Returns the built-in classes to match before the user's, and those after.
fn built_in(preset: Vec<PresetClass>, gate_limits: &GateLimits) -> (Vec<BareClass>, Vec<BareClass>) {
    let class = |name, matching, keys| BareClass::built_in(name, Some(matching), keys);
    let exempt = "lane = \"exempt\"";
    let default = class("default", RuleMatch::Everything, "");
    if gate_limits.kind == ApiKind::Http {
        let before = (gate_limits.dialect != Dialect::Plain).then(|| class("health", RuleMatch::GrpcHealth, exempt));
        return (before.into_iter().collect(), preset.into_iter().map(BareClass::of_preset).chain([default]).collect());
    }
    let before = vec![class("leases", RuleMatch::Leases, exempt), class("health", RuleMatch::Health, exempt)];
    // Discovery comes in one large burst, which must not empty the gate's bucket. Where that is
    // off, nothing is to be spared.
    let discovery = if gate_limits.policy.bucket.is_some() {
        "bucket = { rate = 50, burst = 300 }\nown_bucket_only = true"
    } else {
        ""
    };
    let after = vec![
        class("discovery", RuleMatch::Discovery, discovery),
        class("reviews", RuleMatch::Reviews, "lane = \"high\""),
        class("events", RuleMatch::Events, "lane = \"low\""),
        default,
    ];
    (before, after)
}

/// Records in each bucket the largest cost of one call, and reports costs above its burst.
pub(super) fn fit_costs(classes: &mut [Class<'_>], gate_bucket: &mut Option<BucketPolicy>) {
    let charged = |class: &Class<'_>| class.policy.lane != Lane::Exempt;
    let of_gate = classes.iter().filter(|class| charged(class) && !class.policy.own_bucket_only);
    cost::fit(gate_bucket, "the gate's bucket", of_gate.map(|class| (class.policy.cost, &class.at)));
    for place in 0..classes.len() {
        let Some(mut bucket) = classes.get(place).map(|class| class.policy.bucket) else { continue };
        let name = classes[place].name().to_owned();
        let inside =
            classes.iter().filter(|class| charged(class) && outward(class, classes).any(|outer| outer.name() == name));
        cost::fit(&mut bucket, &format!("the bucket of {name:?}"), inside.map(|class| (class.policy.cost, &class.at)));
        classes[place].policy.bucket = bucket;
    }
}

/// Returns a class, then the class around it (its `within`), then the next class around that, ...
fn outward<'c, 'a>(class: &'c Class<'a>, classes: &'c [Class<'a>]) -> impl Iterator<Item = &'c Class<'a>> {
    let find = |name: &str| classes.iter().find(|class| class.name() == name);
    // A circle is reported elsewhere.
    std::iter::successors(Some(class), move |class| find(class.within.as_deref()?)).take(classes.len())
}

/// Checks the classes of a gate against each other.
fn check_together(classes: &[Class<'_>]) {
    for class in classes.iter().filter(|class| class.at.is_present()) {
        let at = |key| class.at.at(key);
        check_within(class, classes);
        let policy = &class.policy;
        if policy.lane == Lane::Exempt && policy.bucket.is_some() {
            at("bucket").key_problem("has no effect: calls of an exempt class wait for nothing and take no tokens");
        }
        if policy.lane == Lane::Exempt && policy.cost != Cost::default() {
            at("cost").key_problem("has no effect: calls of an exempt class take no tokens");
        }
        if policy.lane == Lane::Exempt && at("per_key").is_table() {
            at("per_key").key_problem("has no effect: calls of an exempt class are never held");
        }
        if policy.lane == Lane::Exempt && policy.in_flight.is_some() {
            at("in_flight").key_problem("has no effect: calls of an exempt class never wait");
        }
        if policy.lane == Lane::Exempt && policy.shadow {
            at("shadow").key_problem("has no effect: calls of an exempt class never wait; expected another lane");
        }
        if policy.own_bucket_only && policy.bucket.is_none() && class.within.is_none() {
            at("own_bucket_only")
                .given(&[&at("bucket"), &at("within")])
                .key_problem("is true, but the class has no bucket, so nothing would limit it; expected a bucket, or lane = \"exempt\" for no limit");
        }
        let is_charged = classes.iter().any(|other| other.within.as_deref() == Some(class.name()));
        if class.matching.is_none() && !is_charged {
            let within: Vec<Cursor<'_>> = classes.iter().map(|other| other.at.at("within")).collect();
            let at_match = at("match");
            let given: Vec<&Cursor<'_>> = within.iter().chain([&at_match]).collect();
            at_match
                .given(&given)
                .problem("is missing, so no call belongs to the class; expected a table such as { verbs = [\"list\"] }, or another class `within` this one");
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
        class.at.at("within").given(&[&bucket]).problem(format!("is {within:?}, which has no bucket: give it one"));
    }
    let mut chain = vec![class.name()];
    let mut next = Some(outer);
    while let Some(outer) = next {
        if chain.contains(&outer.name()) {
            return problem(format!("leads back to itself: {} within {}", chain.join(" within "), outer.name()));
        }
        chain.push(outer.name());
        next = outer.within.as_deref().and_then(find);
    }
}

fn id_of(classes: &[Class<'_>], name: &str) -> Option<ClassId> {
    let place = classes.iter().position(|class| class.name() == name)?;
    u16::try_from(place).ok().map(ClassId)
}

/// Adds the classes to their gate's policy, with references to each other by index.
pub(super) fn join(classes: &[Class<'_>], policy: &mut Policy) {
    for class in classes {
        let within = class.within.as_deref().and_then(|name| id_of(classes, name));
        let mut joined = ClassPolicy { within, ..class.policy.clone() };
        if let (Some(bucket), Some(shared)) = (&mut joined.bucket, &class.shared) {
            bucket.shared = u16::try_from(policy.shared.len()).ok().map(SharedId);
            policy.shared.push(Arc::new(shared.clone()));
        }
        policy.classes.push(joined);
    }
}

/// Returns for each class the properties needed by the classifier.
pub(super) fn traits(classes: &[Class<'_>], gate: &Policy) -> Vec<Traits> {
    let remembers =
        |class: &ClassPolicy| gate.one_at_a_time || class.per_key.is_some() || class.backoff.strategy != Strategy::Off;
    let traits = |(class, strictness): (&Class<'_>, u16)| Traits {
        exempt: class.policy.lane == Lane::Exempt,
        remembers: remembers(&class.policy),
        strictness,
        cost: class.cost,
    };
    classes.iter().zip(strictness(classes, gate.bucket)).map(traits).collect()
}

/// Returns the classes' rules for matching calls.
pub(super) fn rules(classes: &[Class<'_>]) -> Vec<Rule> {
    let rule =
        |class: &Class<'_>| Some(Rule { class: id_of(classes, class.name())?, matching: class.matching.clone()? });
    classes.iter().filter_map(rule).collect()
}

/// Returns the strictness of each class. A call with an ambiguous path gets the strictest class.
///
/// A class of a lower lane is stricter; within a lane, a class with a smaller rate. Exempt classes
/// and classes in shadow mode are the least strict.
fn strictness(classes: &[Class<'_>], gate_bucket: Option<BucketPolicy>) -> Vec<u16> {
    let rate = |class: &Class<'_>| {
        let gate = gate_bucket.filter(|_| !class.policy.own_bucket_only).map(|bucket| bucket.rate);
        let own = outward(class, classes).filter_map(|class| class.policy.bucket).map(|bucket| bucket.rate);
        own.fold(gate.unwrap_or(f64::INFINITY), f64::min)
    };
    let lane = |class: &Class<'_>| if class.policy.shadow { Lane::Exempt } else { class.policy.lane };
    let mut order: Vec<(usize, Lane, f64)> =
        classes.iter().enumerate().map(|(place, class)| (place, lane(class), rate(class))).collect();
    order.sort_by(|a, b| a.1.cmp(&b.1).then(b.2.total_cmp(&a.2)).then(a.0.cmp(&b.0)));
    let mut ranks = vec![0; classes.len()];
    for ((place, ..), rank) in order.into_iter().zip(0_u16..) {
        if let Some(slot) = ranks.get_mut(place) {
            *slot = rank;
        }
    }
    ranks
}
