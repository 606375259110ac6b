//! Classes: the built-in ones and the user's, in the order in which they are matched.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    field::Section,
    file,
    leaf::Word,
    limits, matching,
    path::Path,
    presets::{Preset, bucket},
    problems::{Report, did_you_mean},
    settings::Failures,
};
use crate::{
    classify::{KeyParts, Kind, Matcher, Matching, Rule, Traits},
    limit::{
        ClassId,
        policy::{Backoff, BucketPolicy, ClassPolicy, InFlight, Lane, Per, Strategy},
    },
};

/// Everything that is known of a class.
#[derive(Clone, Debug)]
pub(super) struct Class {
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
    /// Where it stands in the file; `None` for a built-in class that the file does not name.
    pub(super) at: Option<Path>,
}

/// What the classes of a gate start from.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) kind: Kind,
    pub(super) preset: Preset,
    pub(super) bucket: Option<BucketPolicy>,
    pub(super) backoff: (Backoff, Failures),
    pub(super) key: Option<KeyParts>,
}

/// The classes of a gate, in order.
pub(super) fn classes(
    sections: &[Section<file::Class>],
    at: &Path,
    ground: &Ground,
    report: &mut Report<'_>,
) -> Vec<Class> {
    let (mut before, mut after) = builtin(ground);
    let mut own: Vec<Class> = Vec::new();
    let mut seen: BTreeMap<String, Path> = BTreeMap::new();
    for (index, section) in sections.iter().enumerate() {
        let at = at.index(index);
        let keys = section.open(&at, report);
        let name = name(keys, &at, &mut seen, report);
        let known = before.iter_mut().chain(&mut after).find(|class| Some(&*class.name) == name.as_deref());
        match known {
            Some(class) => *class = class_of(keys, &at, class.clone(), ground, report),
            None => {
                let name = Arc::from(name.unwrap_or_else(|| format!("unnamed {index}")));
                own.push(class_of(keys, &at, Class::new(name, None, ground), ground, report));
            }
        }
    }
    let classes: Vec<Class> = before.into_iter().chain(own).chain(after).collect();
    check_together(&classes, report);
    classes
}

fn name(keys: &file::Class, at: &Path, seen: &mut BTreeMap<String, Path>, report: &mut Report<'_>) -> Option<String> {
    let name = keys.name.get(&at.key("name"), report);
    if name.is_none() && !keys.name.is_present() {
        report.problem(&at.key("name"), "is missing, expected the class's name");
    }
    let name = name?;
    if !super::names::is_snake_case(&name) {
        report.problem(
            &at.key("name"),
            format!("is {name:?}, expected snake_case: lower-case letters, digits and single underscores"),
        );
    }
    if let Some(first) = seen.insert(name.clone(), at.clone()) {
        report.problem(&at.key("name"), format!("is {name:?}, which {first} has already"));
    }
    Some(name)
}

impl Class {
    fn new(name: Arc<str>, matching: Option<Matching>, ground: &Ground) -> Self {
        let (backoff, failures) = ground.backoff.clone();
        Self {
            name,
            matching,
            lane: Lane::Normal,
            bucket: None,
            within: None,
            own_bucket_only: false,
            backoff,
            failures,
            in_flight: None,
            meter_long_running: false,
            key: ground.key.clone(),
            at: None,
        }
    }
}

/// The built-in classes before and after the user's.
fn builtin(ground: &Ground) -> (Vec<Class>, Vec<Class>) {
    let class = |name: &str, matching| Class::new(Arc::from(name), Some(matching), ground);
    let default = class("default", Matching::Everything);
    if ground.kind == Kind::Http {
        let mut after = if ground.preset == Preset::Github { github(ground) } else { Vec::new() };
        after.push(default);
        return (Vec::new(), after);
    }
    let before = [class("leases", Matching::Leases), class("health", Matching::Health)];
    let before = before.into_iter().map(|class| Class { lane: Lane::Exempt, ..class }).collect();
    // Discovery comes in one large burst, which must not empty the gate's bucket. Where that is off, nothing is to be spared.
    let own = ground.bucket.map(|_| bucket(50.0, 300, Per::Gate));
    let discovery = class("discovery", Matching::Discovery);
    let after = vec![
        Class { bucket: own, own_bucket_only: own.is_some(), ..discovery },
        Class { lane: Lane::High, ..class("reviews", Matching::Reviews) },
        Class { lane: Lane::Low, ..class("events", Matching::Events) },
        default,
    ];
    (before, after)
}

/// GitHub's limits on what changes things: one write a second, less than 500 new things in any hour. A bucket lets `burst + rate * 3600` out in
/// an hour: 20 + 0.133 * 3600 = 498.8 (with 0.138 it would be 516.8). A GraphQL query is a POST that makes nothing. It and the searches have quotas of their own, so that a pause of theirs must not stop the rest.
fn github(ground: &Ground) -> Vec<Class> {
    let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let posts = |paths: &[&str]| Matcher { methods: list(&["POST"]), paths: list(paths), ..Matcher::default() };
    let writes = Matcher { methods: list(&["PUT", "PATCH", "DELETE"]), ..Matcher::default() };
    let class = |name: &str, matcher| Class::new(Arc::from(name), Some(Matching::Patterns(Box::new(matcher))), ground);
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

/// A class with what its section changes.
fn class_of(keys: &file::Class, at: &Path, base: Class, ground: &Ground, report: &mut Report<'_>) -> Class {
    let matching = match keys
        .matching
        .is_present()
        .then(|| matching::matching(&keys.matching, &at.key("match"), ground.kind, report))
    {
        Some(_) if base.matching == Some(Matching::Everything) => {
            report.key_problem(
                &at.key("match"),
                "has no effect: the class \"default\" takes whatever no other class matches",
            );
            base.matching
        }
        None => base.matching,
        Some(matching) => Some(matching),
    };
    let lane = keys.lane.get(&at.key("lane"), report).map_or(base.lane, |Word(lane)| lane);
    let bucket = limits::bucket(&keys.bucket, &at.key("bucket"), base.bucket, report);
    let (backoff, failures) =
        limits::backoff(&keys.backoff, &at.key("backoff"), &(base.backoff, base.failures), report);
    if keys.backoff.keys().max_keys.is_present() {
        report.key_problem(&at.key("backoff").key("max_keys"), "is for the whole gate, expected in its own [backoff]");
    }
    let key = super::key::key(&keys.key, &at.key("key"), report);
    let own_bucket_only = keys.own_bucket_only.get(&at.key("own_bucket_only"), report);
    Class {
        matching,
        lane,
        bucket,
        within: keys.within.get(&at.key("within"), report).or(base.within),
        // A built-in class whose bucket is switched off falls back on the gate's.
        own_bucket_only: own_bucket_only.unwrap_or_else(|| base.own_bucket_only && bucket.is_some()),
        backoff,
        failures,
        in_flight: limits::in_flight(&keys.in_flight, &at.key("in_flight"), base.in_flight, report),
        meter_long_running: keys
            .meter_long_running
            .get(&at.key("meter_long_running"), report)
            .unwrap_or(base.meter_long_running),
        key: key.unwrap_or(base.key),
        at: Some(at.clone()),
        name: base.name,
    }
}

/// What classes mean to each other.
fn check_together(classes: &[Class], report: &mut Report<'_>) {
    let find = |name: &str| classes.iter().find(|class| &*class.name == name);
    for class in classes {
        let Some(at) = &class.at else { continue };
        check_within(class, at, &find, classes, report);
        if class.lane == Lane::Exempt && class.bucket.is_some() {
            report.key_problem(&at.key("bucket"), "has no effect: an exempt class never waits and never spends");
        }
        if class.lane == Lane::Exempt && class.in_flight.is_some() {
            report.key_problem(&at.key("in_flight"), "has no effect: an exempt class never waits");
        }
        if class.own_bucket_only && class.bucket.is_none() && class.within.is_none() {
            report.key_problem(
                &at.key("own_bucket_only"),
                "needs a bucket of the class, or nothing limits it; for that: lane = \"exempt\"",
            );
        }
        let is_charged = classes.iter().any(|other| other.within.as_deref() == Some(&*class.name));
        if class.matching.is_none() && !is_charged {
            report.problem(
                &at.key("match"),
                "is missing: expected what belongs to the class (or another class `within` it)",
            );
        }
    }
}

fn check_within<'a>(
    class: &Class,
    at: &Path,
    find: &impl Fn(&str) -> Option<&'a Class>,
    classes: &[Class],
    report: &mut Report<'_>,
) {
    let Some(within) = &class.within else { return };
    let at = at.key("within");
    let Some(outer) = find(within) else {
        let names: Vec<&str> = classes.iter().map(|class| &*class.name).collect();
        report.problem(&at, format!("is {within:?}, which is no class of this gate{}", did_you_mean(within, &names)));
        return;
    };
    if outer.bucket.is_none() && outer.within.is_none() {
        report.problem(&at, format!("is {within:?}, a class without a bucket"));
    }
    let mut chain = vec![&*class.name];
    let mut next = Some(outer);
    while let Some(outer) = next {
        if chain.contains(&&*outer.name) {
            report.problem(&at, format!("goes round in a circle: {} within {}", chain.join(" within "), outer.name));
            return;
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
pub(super) fn numbered(classes: &[Class], gate_bucket: Option<BucketPolicy>) -> Numbered {
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
fn strictness(classes: &[Class], gate_bucket: Option<BucketPolicy>) -> Vec<u16> {
    let rate = |class: &Class| {
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
