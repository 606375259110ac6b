//! Reads a scenario file.

use std::path::Path;
use std::time::Duration;

use toml::Value;

use super::store::store;
use super::{
    Changes, ControllerModel, FailureSpan, Lease, LimitsOf, OverallBucket, Requeue, Scenario, Upstream, UpstreamQuota,
};
use crate::api::Verb;
use crate::config::cursor::{Cursor, TomlValue};
use crate::config::foreign;
use crate::config::problems::{Problem, Text, did_you_mean};
use crate::config::rate::Rate;
use crate::config::report::Report;
use crate::config::shape::Shape;
use crate::config::values::one_of;

/// Reads and checks a scenario file. Configuration files named in it are not read.
///
/// # Errors
/// All problems, from the top of the file.
pub fn load(file: &Path) -> Result<Scenario, Vec<Problem>> {
    let (name, text) = crate::config::read(file)?;
    load_text(name, text, file)
}

/// Reads and checks the text of a scenario file.
///
/// # Errors
/// All problems, from the top of the file.
pub fn load_text(name: String, text: String, file: &Path) -> Result<Scenario, Vec<Problem>> {
    let (text, syntax) = Text::new(name, text);
    if let Some(foreign) = foreign::scenario(&text, !syntax.is_empty()) {
        return Err(vec![foreign]);
    }
    if !syntax.is_empty() {
        return Err(syntax);
    }
    let root: toml::Table = toml::from_str(&text.text).map_err(|error| vec![text.problem_of(&error)])?;
    let root = Value::Table(root);
    let report = Report::new(&text, &[]);
    let scenario = scenario(&Cursor::root(&root, &report), file);
    report.finish(&root, Vec::new(), &[]).map(|_| scenario)
}

fn scenario(root: &Cursor<'_>, file: &Path) -> Scenario {
    let stem = || file.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let folder = file.parent().unwrap_or_else(|| Path::new(""));
    let title = root.read("title").unwrap_or_else(stem);
    let length = root.get("length", LENGTH);
    if length.is_zero() {
        root.at("length").problem("is 0, expected how long to simulate, such as \"60s\"");
    }
    let seed = root.get("seed", 1);
    let mut controllers: Vec<ControllerModel> = root.list("controllers").iter().map(controller).collect();
    for (index, one) in controllers.iter().enumerate() {
        if controllers.iter().take(index).any(|other| other.name == one.name) {
            let message = format!("is {:?}, the name of another controller too; expected another", one.name);
            root.at("controllers").item(index).at("name").problem(message);
        }
    }
    for (index, at) in root.list("controllers").iter().enumerate() {
        controllers[index].workers_of = owner(at, index, &controllers);
    }
    let gated = controllers.iter().filter(|one| one.gate > 0);
    let gates = gated.map(|one| one.gate + one.replicas - 1).max().unwrap_or(1);
    let leases: Vec<Lease> = root.list("leases").iter().map(lease).collect();
    if controllers.is_empty() && leases.is_empty() && root.is_right() {
        root.at("controllers").missing(", expected at least one [[controllers]] or [[leases]]");
    }
    let limits = root.list("limits").iter().filter_map(|at| limits(at, folder)).collect();
    Scenario {
        title,
        length,
        seed,
        upstream: upstream(&root.table("upstream"), &controllers),
        store: store(&root.table("store"), gates),
        controllers,
        leases,
        limits,
    }
}

fn upstream(at: &Cursor<'_>, controllers: &[ControllerModel]) -> Upstream {
    let latency = at.get("latency", Upstream::default().latency);
    let capacity = positive(at, "capacity");
    let why = "capacity is set, and seats with the latency would give another";
    let seats: Option<u32> = at.unused_if(capacity.is_some(), why, &at.at("capacity")).option("seats", None);
    let seats = seats.filter(|seats| {
        if *seats == 0 {
            at.at("seats").problem("is 0, expected how many calls the API serves at a time");
        }
        *seats > 0
    });
    let failures = at.list("failures").iter().map(|at| failure(at, controllers)).collect();
    let quota = at.optional("quota").and_then(|at| {
        let burst: u32 = at.get("burst", 1);
        if !at.has("rate") {
            at.at("rate").missing(", expected the calls per second that all gates may make together");
        }
        positive(&at, "rate").map(|rate| UpstreamQuota { rate, burst })
    });
    Upstream { latency, capacity, seats, failures, quota }
}

fn failure(at: &Cursor<'_>, controllers: &[ControllerModel]) -> FailureSpan {
    let from = at.get("from", Duration::ZERO);
    let to = at.read("to").unwrap_or(Duration::MAX);
    if to <= from {
        at.at("to").problem(format!("is {to:?}, expected a time after `from`, {from:?}"));
    }
    let fits = |status: &u32| (400..=599).contains(status);
    let status = u16::try_from(at.get_if("status", 503, fits, "a status from 400 to 599")).unwrap_or(503);
    let names: Vec<String> = at.get("controllers", Vec::new());
    let known: Vec<&str> = controllers.iter().map(|one| one.name.as_str()).collect();
    at.check_each("controllers", &names, |name| {
        (!known.contains(&name))
            .then(|| format!("which is not a controller of this file{}", did_you_mean(name, &known)))
    });
    let share = at.get_if("share", 1.0, |share| (0.0..=1.0).contains(share), "a fraction from 0 to 1");
    FailureSpan { from, to, status, controllers: names, share }
}

fn controller(at: &Cursor<'_>) -> ControllerModel {
    let name: Option<String> = at.read("name");
    let whole = at.get("resource", "configmaps".to_owned());
    let (resource, group) = whole.split_once('.').unwrap_or((&whole, ""));
    check_segment(at, "resource", resource);
    let namespace = at.get("namespace", "default".to_owned());
    check_segment(at, "namespace", &namespace);
    let objects = few(at, "objects", 100, MOST_OBJECTS);
    let why = "the workers are those of the controller in `workers_of`";
    let workers: u32 = at.unused_if(at.has("workers_of"), why, &at.at("workers_of")).get("workers", 1);
    let replicas = few(at, "replicas", 1, MOST_GATES);
    let gate = at.get_if("gate", 1, |gate| *gate <= MOST_GATES, &format!("0 (none) to {MOST_GATES}"));
    ControllerModel {
        name: name.unwrap_or_else(|| resource.to_owned()),
        group: group.to_owned(),
        resource: resource.to_owned(),
        namespace,
        objects,
        workers: Some(usize::try_from(workers).unwrap_or(usize::MAX)).filter(|workers| *workers > 0),
        workers_of: None,
        changes: changes(at),
        verbs: verbs(at),
        requeue: requeue(at),
        replicas,
        gate: usize::try_from(gate.min(MOST_GATES)).unwrap_or(1),
    }
}

/// Reads `workers_of`. Returns the index of the controller with the queue and workers to use.
fn owner(at: &Cursor<'_>, index: usize, controllers: &[ControllerModel]) -> Option<usize> {
    let name: String = at.read("workers_of")?;
    let before = controllers.get(..index).unwrap_or_default();
    let owner = before.iter().position(|one| one.name == name && one.workers_of.is_none() && one.replicas == 1);
    if owner.is_none() {
        let expected = "expected a controller above this one that has workers of its own and no replicas";
        at.at("workers_of").problem(format!("is {name:?}, {expected}"));
    }
    owner
}

/// Reads a whole number from 1 to `most`; `usual` is the default.
fn few(at: &Cursor<'_>, name: &str, usual: u32, most: u32) -> usize {
    let number = at.get_if(name, usual, |number| (1..=most).contains(number), &format!("1 to {most}"));
    usize::try_from(number.clamp(1, most)).unwrap_or(1)
}

fn changes(at: &Cursor<'_>) -> Changes {
    let rate = positive(at, "changes");
    let from = at.get("from", Duration::ZERO);
    let why = "without `changes` all objects change once, at `from`";
    let to = at.unused_if(rate.is_none(), why, &at.at("changes")).option("to", None);
    let Some(rate) = rate else { return Changes::Together { at: from } };
    if to.is_some_and(|to| to <= from) {
        at.at("to").problem(format!("must be later than `from`, {from:?}"));
    }
    Changes::Steadily { rate, from, to }
}

fn verbs(at: &Cursor<'_>) -> Vec<Verb> {
    let verbs = at.get("verbs", vec![Verb::Update]);
    if verbs.is_empty() {
        at.at("verbs").problem("is an empty list, expected the calls of a reconcile, such as [\"get\", \"update\"]");
    }
    verbs
}

impl TomlValue for Verb {
    const SHAPE: Shape = Shape::Text;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        one_of(&VERBS, Self::word, value, at)
    }

    fn write(&self) -> Value {
        self.word().into()
    }
}

fn requeue(controller: &Cursor<'_>) -> Requeue {
    let Requeue::Backoff { base, max, .. } = Requeue::default() else { return Requeue::AtOnce };
    match controller.read("requeue") {
        None => Requeue::default(),
        Some(Value::String(word)) if word == "at_once" => Requeue::AtOnce,
        Some(Value::Table(_)) => {
            let at = controller.table("requeue");
            let base = at.get("base", base);
            let max = at.get("max", max);
            if base.is_zero() || max < base {
                at.problem(format!("has base {base:?} and max {max:?}, expected 0 < base <= max"));
            }
            let overall = at.optional("overall").and_then(|at| {
                let burst: u32 = at.get("burst", 100);
                positive(&at, "rate").map(|rate| OverallBucket { rate, burst })
            });
            Requeue::Backoff { base, max, overall }
        }
        Some(other) => {
            let expected = "\"at_once\" or a table such as { base = \"5ms\", max = \"1000s\" }";
            controller.at("requeue").expect(None, &other, expected).unwrap_or_default()
        }
    }
}

fn lease(at: &Cursor<'_>) -> Lease {
    let name = at.get("name", "leader".to_owned());
    check_segment(at, "name", &name);
    let every = at.get("every", Lease::EVERY);
    let deadline = at.get("deadline", Lease::DEADLINE);
    if every.is_zero() || deadline <= every {
        at.problem(format!("has every {every:?} and deadline {deadline:?}, expected 0 < every < deadline"));
    }
    Lease { name, every, deadline }
}

fn limits(at: &Cursor<'_>, folder: &Path) -> Option<LimitsOf> {
    let name = at.read("name");
    let config = at.read("config");
    let gate = at.read("gate");
    if !at.has("config") {
        at.at("config").missing(", expected a configuration file");
    }
    let config: String = Option::flatten(config)?;
    Some(LimitsOf { name: name.unwrap_or_else(|| config.clone()), config: folder.join(config), gate })
}

/// Reads a rate above zero; `None` if the key is not set.
fn positive(at: &Cursor<'_>, name: &str) -> Option<f64> {
    let rate: Rate = at.read(name)?;
    let number = rate.in_a_second();
    let fits = number.is_finite() && number > 0.0 && number <= MOST_PER_SECOND;
    if !fits {
        let shown = rate.describe();
        let message = format!("is {shown}, expected a number per second above 0 and at most {MOST_PER_SECOND}");
        at.at(name).problem(message);
    }
    fits.then_some(number)
}

/// Checks a text for use as one segment of a URL path.
fn check_segment(at: &Cursor<'_>, name: &str, text: &str) {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if text.is_empty() || !text.bytes().all(is_good) {
        at.at(name).problem(format!("is {text:?}, expected a name of letters, digits, '-' and '.'"));
    }
}

impl Lease {
    /// The default interval of lease renewals: client-go's retry period.
    pub const EVERY: Duration = Duration::from_secs(2);
    /// The default deadline of a lease: client-go's renew deadline.
    pub const DEADLINE: Duration = Duration::from_secs(10);
}

/// The verbs the calls of a reconcile can have.
const VERBS: [Verb; 6] = [Verb::Get, Verb::List, Verb::Create, Verb::Update, Verb::Patch, Verb::Delete];
const LENGTH: Duration = Duration::from_secs(60);
/// The most objects of a controller. The limit is arbitrary; each object costs memory.
const MOST_OBJECTS: u32 = 1_000_000;
const MOST_PER_SECOND: f64 = 1e6;
const MOST_GATES: u32 = 100;

/// Returns the JSON Schema of a scenario file.
#[cfg(test)]
pub(in crate::config) fn schema() -> serde_json::Value {
    use crate::config::tests;
    const WHOLE: &str = "[[controllers]]\n[upstream]\nfailures = [{}]\nquota = { rate = 1 }\n[store]\noutages = [{ to = \"1s\" }]\nlosses = [{}]\nclock = [{ ahead = \"1s\" }]\n[[leases]]\n[[limits]]\nconfig = \"x\"\n";
    let (text, _) = Text::new("s.toml".to_owned(), WHOLE.to_owned());
    let root = toml::from_str(WHOLE).map(Value::Table).expect("it is TOML");
    let report = Report::new(&text, &[]);
    scenario(&Cursor::root(&root, &report), Path::new("s.toml"));
    let record = report.finish(&root, Vec::new(), &[]).expect("it is right").record;
    let mut schema = tests::schema::of(&record, "A scenario for tidegate simulate");
    let verbs: Vec<&str> = VERBS.iter().map(|verb| verb.word()).collect();
    let span = tests::schema::of_value(Duration::SHAPE);
    for (path, more) in [
        ("controllers.verbs", serde_json::json!({ "items": { "enum": verbs }, "minItems": 1 })),
        ("controllers.objects", serde_json::json!({ "minimum": 1, "maximum": MOST_OBJECTS })),
        ("controllers.changes", serde_json::json!({ "exclusiveMinimum": 0, "maximum": MOST_PER_SECOND })),
        (
            "controllers.requeue",
            serde_json::json!({
                "type": ["object", "string"], "pattern": "^at_once$",
                "properties": {
                    "base": span, "max": span,
                    "overall": { "type": "object", "properties": { "rate": { "type": "number" }, "burst": { "type": "integer" } } }
                },
                "additionalProperties": false
            }),
        ),
        ("controllers.replicas", serde_json::json!({ "minimum": 1, "maximum": MOST_GATES })),
        ("controllers.gate", serde_json::json!({ "minimum": 0, "maximum": MOST_GATES })),
        ("upstream.quota", serde_json::json!({ "required": ["rate"] })),
        ("upstream.quota.rate", serde_json::json!({ "exclusiveMinimum": 0, "maximum": MOST_PER_SECOND })),
        ("store.outages", serde_json::json!({ "items": { "required": ["to"] } })),
        ("upstream.capacity", serde_json::json!({ "exclusiveMinimum": 0, "maximum": MOST_PER_SECOND })),
        ("upstream.failures.status", serde_json::json!({ "minimum": 400, "maximum": 599 })),
        ("upstream.failures.share", serde_json::json!({ "minimum": 0, "maximum": 1 })),
        ("limits", serde_json::json!({ "items": { "required": ["config"] } })),
    ] {
        tests::schema::narrow(&mut schema, path, more);
    }
    schema
}
