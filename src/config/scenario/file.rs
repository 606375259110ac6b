//! Reads a scenario file.

use std::path::Path as FilePath;

use serde::Deserialize;

use super::{Changes, Controller, Failure, Lease, LimitsOf, Requeue, Scenario, Upstream};
use crate::{
    api::Verb,
    config::{
        field::{self, Field, Listed, Section},
        leaf::{Anything, List, Span, one_of},
        path::Path,
        problems::{Problem, Report, Text, did_you_mean},
    },
};

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
struct Keys {
    title: Field<String>,
    length: Field<Span>,
    seed: Field<u64>,
    upstream: Section<UpstreamKeys>,
    controllers: Listed<ControllerKeys>,
    leases: Listed<LeaseKeys>,
    limits: Listed<LimitsKeys>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
struct UpstreamKeys {
    latency: Field<Span>,
    capacity: Field<f64>,
    failures: Listed<FailureKeys>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
struct FailureKeys {
    from: Field<Span>,
    to: Field<Span>,
    status: Field<u32>,
    controllers: Field<List>,
    share: Field<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
struct ControllerKeys {
    name: Field<String>,
    resource: Field<String>,
    namespace: Field<String>,
    objects: Field<u32>,
    workers: Field<u32>,
    changes: Field<f64>,
    from: Field<Span>,
    to: Field<Span>,
    verbs: Field<List>,
    requeue: Field<Anything>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
struct LeaseKeys {
    name: Field<String>,
    every: Field<Span>,
    deadline: Field<Span>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
struct LimitsKeys {
    name: Field<String>,
    config: Field<String>,
    gate: Field<String>,
}

/// Reads and checks a scenario file. Configurations that it names are not looked at.
///
/// # Errors
/// Every problem there is, from the top of the file.
pub fn load(file: &FilePath) -> Result<Scenario, Vec<Problem>> {
    let (name, text) = crate::config::read(file)?;
    let (text, syntax) = Text::new(name, text);
    if !syntax.is_empty() {
        return Err(syntax);
    }
    let mut report = Report::new(&text, &[]);
    let section: Section<Keys> = toml::from_str(text.text()).map_err(|error| vec![text.problem_of(&error)])?;
    let scenario = scenario(section.open(&Path::default(), &mut report), file, &mut report);
    if report.problems.is_empty() {
        return Ok(scenario);
    }
    let mut problems = report.problems;
    problems.sort_by(|one, other| one.order().cmp(&other.order()));
    Err(problems)
}

fn scenario(keys: &Keys, file: &FilePath, report: &mut Report<'_>) -> Scenario {
    let root = Path::default();
    let stem = || file.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let at = root.key("controllers");
    let sections = keys.controllers.open(&at, report);
    let mut controllers: Vec<Controller> = Vec::new();
    for (index, section) in sections.iter().enumerate() {
        let at = at.index(index);
        let one = controller(section.open(&at, report), &at, report);
        if controllers.iter().any(|other| other.name == one.name) {
            report.problem(&at.key("name"), format!("is {:?}, which another controller has already", one.name));
        }
        controllers.push(one);
    }
    let at = root.key("leases");
    let sections = keys.leases.open(&at, report);
    let leases: Vec<Lease> = sections.iter().enumerate().map(|(n, one)| lease(one, &at.index(n), report)).collect();
    if controllers.is_empty() && leases.is_empty() && report.problems.is_empty() {
        report.problem(&root.key("controllers"), "is missing, expected at least one [[controllers]] or [[leases]]");
    }
    let at = root.key("limits");
    let folder = file.parent().unwrap_or_else(|| FilePath::new(""));
    let sections = keys.limits.open(&at, report);
    let limits = sections.iter().enumerate().filter_map(|(n, one)| limits(one, folder, &at.index(n), report)).collect();
    let length = keys.length.get(&root.key("length"), report).map_or(LENGTH, |span| span.0);
    if length.is_zero() {
        report.problem(&root.key("length"), "is 0, expected how long to play");
    }
    Scenario {
        title: keys.title.get(&root.key("title"), report).unwrap_or_else(stem),
        length,
        seed: keys.seed.get(&root.key("seed"), report).unwrap_or(1),
        upstream: upstream(&keys.upstream, &root.key("upstream"), &controllers, report),
        controllers,
        leases,
        limits,
    }
}

fn upstream(
    section: &Section<UpstreamKeys>,
    at: &Path,
    controllers: &[Controller],
    report: &mut Report<'_>,
) -> Upstream {
    let keys = section.open(at, report);
    let usual = Upstream::default();
    let latency = keys.latency.get(&at.key("latency"), report).map_or(usual.latency, |span| span.0);
    let capacity = positive(&keys.capacity, &at.key("capacity"), report);
    let at = at.key("failures");
    let sections = keys.failures.open(&at, report);
    let failures = sections.iter().enumerate().map(|(n, one)| failure(one, &at.index(n), controllers, report));
    let failures = failures.collect();
    Upstream { latency, capacity, failures }
}

fn failure(section: &Section<FailureKeys>, at: &Path, controllers: &[Controller], report: &mut Report<'_>) -> Failure {
    let keys = section.open(at, report);
    let from = keys.from.get(&at.key("from"), report).map_or(std::time::Duration::ZERO, |span| span.0);
    let to = keys.to.get(&at.key("to"), report).map_or(std::time::Duration::MAX, |span| span.0);
    if to <= from {
        report.problem(&at.key("to"), format!("is {to:?}, expected an end after {from:?}"));
    }
    let status = keys.status.get(&at.key("status"), report).unwrap_or(503);
    let fits = u16::try_from(status).ok().filter(|status| (400..=599).contains(status));
    if fits.is_none() {
        report.problem(&at.key("status"), format!("is {status}, expected a status from 400 to 599"));
    }
    let names = keys.controllers.get(&at.key("controllers"), report).unwrap_or_default().0;
    let known: Vec<&str> = controllers.iter().map(|one| one.name.as_str()).collect();
    for (index, name) in names.iter().enumerate().filter(|(_, name)| !known.contains(&name.as_str())) {
        let near = did_you_mean(name, &known);
        report.problem(&at.key("controllers").index(index), format!("is {name:?}, which is no controller here{near}"));
    }
    let share = keys.share.get(&at.key("share"), report).unwrap_or(1.0);
    if !(0.0..=1.0).contains(&share) {
        report.problem(&at.key("share"), format!("is {share:?}, expected a fraction from 0 to 1"));
    }
    Failure { from, to, status: fits.unwrap_or(503), controllers: names, share }
}

fn controller(keys: &ControllerKeys, at: &Path, report: &mut Report<'_>) -> Controller {
    let whole = keys.resource.get(&at.key("resource"), report).unwrap_or_else(|| "configmaps".to_owned());
    let (resource, group) = whole.split_once('.').unwrap_or((&whole, ""));
    let name = keys.name.get(&at.key("name"), report).unwrap_or_else(|| resource.to_owned());
    let namespace = keys.namespace.get(&at.key("namespace"), report).unwrap_or_else(|| "default".to_owned());
    for (key, text) in [("resource", resource), ("namespace", &namespace)] {
        if !is_path_segment(text) {
            report.problem(&at.key(key), format!("is {text:?}, expected a name of letters, digits, '-' and '.'"));
        }
    }
    let objects = keys.objects.get(&at.key("objects"), report).unwrap_or(100);
    if objects == 0 || objects > MOST_OBJECTS {
        report.problem(&at.key("objects"), format!("is {objects}, expected 1 to {MOST_OBJECTS}"));
    }
    let workers = keys.workers.get(&at.key("workers"), report).unwrap_or(1);
    Controller {
        group: group.to_owned(),
        resource: resource.to_owned(),
        namespace,
        objects: usize::try_from(objects.clamp(1, MOST_OBJECTS)).unwrap_or(1),
        workers: Some(usize::try_from(workers).unwrap_or(usize::MAX)).filter(|workers| *workers > 0),
        changes: changes(keys, at, report),
        verbs: verbs(keys, &at.key("verbs"), report),
        requeue: requeue(keys, &at.key("requeue"), report),
        name,
    }
}

fn changes(keys: &ControllerKeys, at: &Path, report: &mut Report<'_>) -> Changes {
    let from = keys.from.get(&at.key("from"), report).map_or(std::time::Duration::ZERO, |span| span.0);
    let to = keys.to.get(&at.key("to"), report).map(|span| span.0);
    match positive(&keys.changes, &at.key("changes"), report) {
        Some(rate) => {
            if to.is_some_and(|to| to <= from) {
                report.problem(&at.key("to"), format!("is no end after {from:?}"));
            }
            Changes::Steadily { rate, from, to }
        }
        None => {
            if to.is_some() {
                report
                    .key_problem(&at.key("to"), "has no effect: without `changes` all objects change once, at `from`");
            }
            Changes::Together { at: from }
        }
    }
}

fn verbs(keys: &ControllerKeys, at: &Path, report: &mut Report<'_>) -> Vec<Verb> {
    let Some(words) = keys.verbs.get(at, report).map(|list| list.0) else { return vec![Verb::Update] };
    if words.is_empty() {
        report.problem(at, "is empty, expected the calls of a reconcile, such as [\"get\", \"update\"]");
    }
    let mut verbs = Vec::new();
    for (index, word) in words.iter().enumerate() {
        match VERBS.iter().find(|verb| verb.word() == word) {
            Some(verb) => verbs.push(*verb),
            None => {
                let known = VERBS.map(Verb::word);
                let near = did_you_mean(word, &known);
                report.problem(&at.index(index), format!("is {word:?}, expected {}{near}", one_of(&known)));
            }
        }
    }
    verbs
}

fn requeue(keys: &ControllerKeys, at: &Path, report: &mut Report<'_>) -> Requeue {
    #[derive(Clone, Debug, Default, Deserialize)]
    #[serde(default)]
    struct RequeueKeys {
        base: Field<Span>,
        max: Field<Span>,
    }
    let Requeue::Backoff { base, max } = Requeue::default() else { return Requeue::AtOnce };
    match keys.requeue.get(at, report) {
        None => Requeue::default(),
        Some(Anything(toml::Value::String(word))) if word == "at_once" => Requeue::AtOnce,
        Some(Anything(table @ toml::Value::Table(_))) => {
            let Ok(section) = Section::<RequeueKeys>::deserialize(table) else { return Requeue::default() };
            let keys = section.open(at, report);
            let base = keys.base.get(&at.key("base"), report).map_or(base, |span| span.0);
            let max = keys.max.get(&at.key("max"), report).map_or(max, |span| span.0);
            if base.is_zero() || max < base {
                report.problem(at, format!("has base {base:?} and max {max:?}, expected 0 < base <= max"));
            }
            Requeue::Backoff { base, max }
        }
        Some(Anything(other)) => {
            let shown = field::shown(&other);
            report.problem(
                at,
                format!("is {shown}, expected \"at_once\" or a table such as {{ base = \"5ms\", max = \"1000s\" }}"),
            );
            Requeue::default()
        }
    }
}

fn lease(section: &Section<LeaseKeys>, at: &Path, report: &mut Report<'_>) -> Lease {
    let keys = section.open(at, report);
    let name = keys.name.get(&at.key("name"), report).unwrap_or_else(|| "leader".to_owned());
    if !is_path_segment(&name) {
        report.problem(&at.key("name"), format!("is {name:?}, expected a name of letters, digits, '-' and '.'"));
    }
    let every = keys.every.get(&at.key("every"), report).map_or(Lease::EVERY, |span| span.0);
    let deadline = keys.deadline.get(&at.key("deadline"), report).map_or(Lease::DEADLINE, |span| span.0);
    if every.is_zero() || deadline <= every {
        report.problem(
            at,
            format!("is renewed every {every:?} and lost after {deadline:?}, expected 0 < every < deadline"),
        );
    }
    Lease { name, every, deadline }
}

fn limits(section: &Section<LimitsKeys>, folder: &FilePath, at: &Path, report: &mut Report<'_>) -> Option<LimitsOf> {
    let keys = section.open(at, report);
    let config = keys.config.get(&at.key("config"), report).filter(|path| !path.is_empty());
    let gate = keys.gate.get(&at.key("gate"), report);
    let Some(config) = config else {
        if !keys.config.is_present() {
            report.problem(&at.key("config"), "is missing, expected a configuration file");
        }
        return None;
    };
    let name = keys.name.get(&at.key("name"), report).unwrap_or_else(|| config.clone());
    Some(LimitsOf { name, config: folder.join(config), gate })
}

/// A number above zero, if there is one.
fn positive(field: &Field<f64>, at: &Path, report: &mut Report<'_>) -> Option<f64> {
    let number = field.get(at, report)?;
    if number.is_finite() && number > 0.0 && number <= MOST_PER_SECOND {
        return Some(number);
    }
    report.problem(at, format!("is {number:?}, expected a number per second above 0 and at most {MOST_PER_SECOND}"));
    None
}

fn is_path_segment(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

impl Lease {
    /// client-go's retry period.
    pub const EVERY: std::time::Duration = std::time::Duration::from_secs(2);
    /// client-go's renew deadline.
    pub const DEADLINE: std::time::Duration = std::time::Duration::from_secs(10);
}

/// What a reconcile can do with its object.
const VERBS: [Verb; 6] = [Verb::Get, Verb::List, Verb::Create, Verb::Update, Verb::Patch, Verb::Delete];
const LENGTH: std::time::Duration = std::time::Duration::from_secs(60);
/// Each costs memory.
const MOST_OBJECTS: u32 = 1_000_000;
const MOST_PER_SECOND: f64 = 1e6;

/// The JSON Schema of a scenario file.
#[cfg(test)]
pub(in crate::config) fn schema() -> serde_json::Value {
    use crate::config::tests;
    let mut schema = tests::schema::of::<Keys>("A scenario for tidegate simulate");
    let verbs: Vec<&str> = VERBS.iter().map(|verb| verb.word()).collect();
    let span = tests::schema::shape_of::<Span>();
    for (path, more) in [
        ("controllers.verbs", serde_json::json!({ "items": { "enum": verbs }, "minItems": 1 })),
        ("controllers.objects", serde_json::json!({ "minimum": 1, "maximum": MOST_OBJECTS })),
        ("controllers.changes", serde_json::json!({ "exclusiveMinimum": 0, "maximum": MOST_PER_SECOND })),
        (
            "controllers.requeue",
            serde_json::json!({
                "type": ["object", "string"], "pattern": "^at_once$",
                "properties": { "base": span, "max": span }, "additionalProperties": false
            }),
        ),
        ("upstream.capacity", serde_json::json!({ "exclusiveMinimum": 0, "maximum": MOST_PER_SECOND })),
        ("upstream.failures.status", serde_json::json!({ "minimum": 400, "maximum": 599 })),
        ("upstream.failures.share", serde_json::json!({ "minimum": 0, "maximum": 1 })),
        ("limits", serde_json::json!({ "items": { "required": ["config"] } })),
    ] {
        tests::schema::narrow(&mut schema, path, more);
    }
    schema
}
