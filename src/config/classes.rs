//! Reads the classes: the built-in ones and the user's, in the order in which they are matched.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    cursor::Cursor,
    limits,
    matching::matching,
    names,
    presets::{Preset, bucket},
    problems::did_you_mean,
};
use crate::{
    api::Failures,
    classify::{KeyParts, Kind, Matcher, Matching, Rule, Traits},
    limit::{
        ClassId,
        policy::{Backoff, BucketPolicy, ClassPolicy, InFlight, Lane, Per, Strategy},
    },
};

/// A class as it was read.
#[derive(Clone, Debug)]
pub(super) struct Class<'a> {
    pub(super) name: Arc<str>,
    pub(super) matching: Option<Matching>,
    pub(super) lane: Lane,
    pub(super) bucket: Option<BucketPolicy>,
    pub(super) within: Option<String>,
    pub(super) own_bucket_only: bool,
    pub(super) backoff: Backoff,
    pub(super) failures: Failures,
    pub(super) in_flight: Option<InFlight>,
    pub(super) meter_long_running: bool,
    pub(super) key: Option<KeyParts>,
    /// Its table, which is absent for a built-in class that the file does not name.
    at: Cursor<'a>,
}

/// What the classes of a gate start from.
#[derive(Debug)]
pub(super) struct GateDefaults {
    pub(super) kind: Kind,
    pub(super) preset: Preset,
    pub(super) bucket: Option<BucketPolicy>,
    pub(super) backoff: (Backoff, Failures),
    pub(super) key: Option<KeyParts>,
}

/// Reads the classes of a gate, in order.
pub(super) fn classes<'a>(gate: &Cursor<'a>, defaults: &GateDefaults) -> Vec<Class<'a>> {
    let sections = gate.list("classes");
    // Built-in classes that the file does not name come after all that it has.
    let nowhere = gate.at("classes").item(sections.len());
    let new = |name: &str, matching, at: &Cursor<'a>| Class::new(name, matching, defaults, at.clone());
    let (mut before, mut after) = builtin(defaults, &|name, matching| new(name, Some(matching), &nowhere));
    let mut own: Vec<Class<'a>> = Vec::new();
    let mut seen = BTreeMap::new();
    for (index, at) in sections.iter().enumerate() {
        let name = name(at, &mut seen);
        match before.iter_mut().chain(&mut after).find(|class| Some(&*class.name) == name.as_deref()) {
            Some(class) => *class = Class { at: at.clone(), ..class.clone() }.read(defaults.kind),
            None => {
                let name = name.unwrap_or_else(|| format!("unnamed {index}"));
                own.push(new(&name, None, at).read(defaults.kind));
            }
        }
    }
    let unnamed = before.iter_mut().chain(&mut after).filter(|class| !class.at.is_present());
    for (index, class) in (sections.len()..).zip(unnamed) {
        *class = Class { at: gate.at("classes").item(index), ..class.clone() }.read(defaults.kind);
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
        at_name.problem("is missing, expected the class's name");
    }
    let name = name?;
    if !names::is_snake_case(&name) {
        at_name.problem(format!("is {name:?}, expected {}", names::SNAKE_CASE));
    }
    if let Some(first) = seen.insert(name.clone(), at.path().to_string()) {
        at_name.problem(format!("is {name:?}, which {first} has already"));
    }
    Some(name)
}

impl<'a> Class<'a> {
    fn new(name: &str, matching: Option<Matching>, defaults: &GateDefaults, at: Cursor<'a>) -> Self {
        let (backoff, failures) = defaults.backoff.clone();
        Self {
            name: Arc::from(name),
            matching,
            lane: Lane::Normal,
            bucket: None,
            within: None,
            own_bucket_only: false,
            backoff,
            failures,
            in_flight: None,
            meter_long_running: false,
            key: defaults.key.clone(),
            at,
        }
    }

    /// Returns the class with what its table changes.
    fn read(self, kind: Kind) -> Self {
        let at = self.at;
        at.in_force("name", &self.name.to_string());
        let matching = matching(&at, self.matching, kind);
        let lane = at.get("lane", self.lane);
        let bucket = limits::bucket(&at.limit("bucket"), self.bucket);
        let within = at.option("within", self.within);
        // A built-in class whose bucket is switched off falls back on the gate's.
        let own_bucket_only = at.get("own_bucket_only", self.own_bucket_only && bucket.is_some());
        let backoff_at = at.table_or_off("backoff");
        let (backoff, failures) = limits::backoff(&backoff_at, &(self.backoff, self.failures));
        backoff_at.read::<usize>("max_keys");
        if backoff_at.has("max_keys") {
            backoff_at.at("max_keys").key_problem("is for the whole gate, expected in its own [backoff]");
        }
        let in_flight = limits::in_flight(&at.limit("in_flight"), self.in_flight);
        let meter_long_running = at.get("meter_long_running", self.meter_long_running);
        let key = at.get("key", self.key);
        Self {
            name: self.name,
            matching,
            lane,
            bucket,
            within,
            own_bucket_only,
            backoff,
            failures,
            in_flight,
            meter_long_running,
            key,
            at,
        }
    }
}

/// Returns the built-in classes before and after the user's.
fn builtin<'a>(
    defaults: &GateDefaults,
    class: &impl Fn(&str, Matching) -> Class<'a>,
) -> (Vec<Class<'a>>, Vec<Class<'a>>) {
    let default = class("default", Matching::Everything);
    if defaults.kind == Kind::Http {
        let mut after = if defaults.preset == Preset::Github { github(class) } else { Vec::new() };
        after.push(default);
        return (Vec::new(), after);
    }
    let before = [class("leases", Matching::Leases), class("health", Matching::Health)];
    let before = before.into_iter().map(|class| Class { lane: Lane::Exempt, ..class }).collect();
    // Discovery comes in one large burst, which must not empty the gate's bucket. Where that is off, nothing is to be spared.
    let own = defaults.bucket.map(|_| bucket(50.0, 300, Per::Gate));
    let discovery = class("discovery", Matching::Discovery);
    let after = vec![
        Class { bucket: own, own_bucket_only: own.is_some(), ..discovery },
        Class { lane: Lane::High, ..class("reviews", Matching::Reviews) },
        Class { lane: Lane::Low, ..class("events", Matching::Events) },
        default,
    ];
    (before, after)
}

/// Returns GitHub's limits on what changes things: one write a second, less than 500 new things in any
/// hour. A bucket lets `burst + rate * 3600` out in an hour: 20 + 0.133 * 3600 = 498.8 (with 0.138 it
/// would be 516.8). A GraphQL query is a POST that makes nothing. It and the searches have quotas of
/// their own, so that a pause of theirs must not stop the rest.
fn github<'a>(class: &impl Fn(&str, Matching) -> Class<'a>) -> Vec<Class<'a>> {
    let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let posts = |paths: &[&str]| Matcher { methods: list(&["POST"]), paths: list(paths), ..Matcher::default() };
    let writes = Matcher { methods: list(&["PUT", "PATCH", "DELETE"]), ..Matcher::default() };
    let class = |name: &str, matcher| class(name, Matching::Patterns(Box::new(matcher)));
    vec![
        class("graphql", posts(&["/graphql", "*/graphql"])),
        class(
            "searches",
            Matcher { methods: list(&["GET"]), paths: list(&["/search/*", "/api/v3/search/*"]), ..Matcher::default() },
        ),
        Class {
            bucket: Some(bucket(0.133, 20, Per::Gate)),
            within: Some("writes".to_owned()),
            ..class("creates", posts(&["*"]))
        },
        Class { bucket: Some(bucket(1.0, 1, Per::Gate)), ..class("writes", writes) },
    ]
}

/// Checks what classes mean to each other.
fn check_together(classes: &[Class<'_>]) {
    for class in classes.iter().filter(|class| class.at.is_present()) {
        let at = |key| class.at.at(key);
        check_within(class, classes);
        if class.lane == Lane::Exempt && class.bucket.is_some() {
            at("bucket").key_problem("has no effect: an exempt class never waits and never spends");
        }
        if class.lane == Lane::Exempt && class.in_flight.is_some() {
            at("in_flight").key_problem("has no effect: an exempt class never waits");
        }
        if class.own_bucket_only && class.bucket.is_none() && class.within.is_none() {
            at("own_bucket_only")
                .key_problem("needs a bucket of the class, or nothing limits it; for that: lane = \"exempt\"");
        }
        let is_charged = classes.iter().any(|other| other.within.as_deref() == Some(&*class.name));
        if class.matching.is_none() && !is_charged {
            at("match").problem("is missing: expected what belongs to the class (or another class `within` it)");
        }
    }
}

fn check_within(class: &Class<'_>, classes: &[Class<'_>]) {
    let Some(within) = &class.within else { return };
    let find = |name: &str| classes.iter().find(|class| &*class.name == name);
    let problem = |message: String| class.at.at("within").problem(message);
    let Some(outer) = find(within) else {
        let names: Vec<&str> = classes.iter().map(|class| &*class.name).collect();
        return problem(format!("is {within:?}, which is no class of this gate{}", did_you_mean(within, &names)));
    };
    if outer.bucket.is_none() && outer.within.is_none() {
        problem(format!("is {within:?}, a class without a bucket"));
    }
    let mut chain = vec![&*class.name];
    let mut next = Some(outer);
    while let Some(outer) = next {
        if chain.contains(&&*outer.name) {
            return problem(format!("goes round in a circle: {} within {}", chain.join(" within "), outer.name));
        }
        chain.push(&outer.name);
        next = outer.within.as_deref().and_then(find);
    }
}

/// The classes as the limiter and the classifier want them.
#[derive(Debug)]
pub(super) struct Numbered {
    pub(super) policies: Vec<ClassPolicy>,
    pub(super) traits: Vec<Traits>,
    pub(super) rules: Vec<Rule>,
    pub(super) failures: Vec<Failures>,
    pub(super) keys: Vec<Option<KeyParts>>,
}

/// Numbers checked classes by their place.
pub(super) fn numbered(classes: &[Class<'_>], gate_bucket: Option<BucketPolicy>) -> Numbered {
    let id = |name: &str| {
        let ids = classes.iter().zip(0_u16..);
        ids.clone().find(|(class, _)| &*class.name == name).map(|(_, id)| ClassId(id))
    };
    let policies = classes.iter().map(|class| ClassPolicy {
        name: Arc::clone(&class.name),
        lane: class.lane,
        bucket: class.bucket,
        within: class.within.as_deref().and_then(id),
        own_bucket_only: class.own_bucket_only,
        backoff: class.backoff,
        in_flight: class.in_flight,
        meter_long_running: class.meter_long_running,
    });
    let strictness = strictness(classes, gate_bucket);
    let traits = classes.iter().zip(strictness).map(|(class, strictness)| Traits {
        exempt: class.lane == Lane::Exempt,
        remembers: class.backoff.strategy != Strategy::Off,
        strictness,
    });
    let rules = classes.iter().zip(0_u16..).filter_map(|(class, id)| {
        let matching = class.matching.clone()?;
        Some(Rule { class: ClassId(id), matching })
    });
    Numbered {
        policies: policies.collect(),
        traits: traits.collect(),
        rules: rules.collect(),
        failures: classes.iter().map(|class| class.failures.clone()).collect(),
        keys: classes.iter().map(|class| class.key.clone()).collect(),
    }
}

/// Ranks classes for calls with an ambiguous path: a lower lane is stricter, and in a lane a smaller rate; exempt is never strict.
fn strictness(classes: &[Class<'_>], gate_bucket: Option<BucketPolicy>) -> Vec<u16> {
    let rate = |class: &Class<'_>| {
        let gate = gate_bucket.filter(|_| !class.own_bucket_only).map(|bucket| bucket.rate);
        let mut least = gate.unwrap_or(f64::INFINITY);
        let mut next = Some(class);
        // As long as the chain can be at all.
        for _ in classes {
            let Some(class) = next else { break };
            least = class.bucket.map_or(least, |bucket| least.min(bucket.rate));
            next = class.within.as_deref().and_then(|name| classes.iter().find(|class| &*class.name == name));
        }
        least
    };
    let mut order: Vec<(usize, Lane, f64)> =
        classes.iter().enumerate().map(|(place, class)| (place, class.lane, rate(class))).collect();
    order.sort_by(|a, b| a.1.cmp(&b.1).then(b.2.total_cmp(&a.2)).then(a.0.cmp(&b.0)));
    let mut ranks = vec![0; classes.len()];
    for ((place, ..), rank) in order.into_iter().zip(0_u16..) {
        if let Some(slot) = ranks.get_mut(place) {
            *slot = rank;
        }
    }
    ranks
}
