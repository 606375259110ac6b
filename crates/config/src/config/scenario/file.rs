//! Reads a scenario file, and checks what its values mean together.

use std::fmt::Debug;
use std::path::Path as FilePath;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};

use super::{Changes, ControllerModel, Lease, Requeue, Scenario};
use crate::api::Verb;
use crate::config::path::Path;
use crate::config::problems::{Problem, Text, alternatives, did_you_mean};
use crate::config::values::{A_DURATION, with_unit};

/// Reads and checks a scenario file. Configuration files named in it are not read.
///
/// # Errors
/// The first value of a wrong type, or all values that make no sense.
pub fn load(file: &FilePath) -> Result<Scenario, Vec<Problem>> {
    let (name, text) = crate::config::read(file)?;
    load_text(name, text, file)
}

/// Reads and checks the text of a scenario file.
///
/// # Errors
/// As [`load`].
pub fn load_text(name: String, text: String, file: &FilePath) -> Result<Scenario, Vec<Problem>> {
    let (text, _) = Text::new(name, text);
    let scenario: Result<Scenario, _> = toml::from_str(&text.text);
    let mut scenario = scenario.map_err(|error| vec![text.problem_of(&error)])?;
    if scenario.title.is_empty() {
        scenario.title = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    }
    for of in &mut scenario.limits {
        if of.name.is_empty() {
            of.name = of.config.display().to_string();
        }
        of.config = file.parent().unwrap_or_else(|| FilePath::new("")).join(&of.config);
    }
    let mut faults = Faults(Vec::new());
    faults.of_scenario(&scenario);
    let problem = |(path, message): (Path, String)| {
        let located = text.problem_with(&path, &path, false, &message);
        located.unwrap_or_else(|| Problem::of_file(&text.name, path, message))
    };
    let problems: Vec<Problem> = faults.0.into_iter().map(problem).collect();
    if problems.is_empty() { Ok(scenario) } else { Err(problems) }
}

/// The values of a scenario that make no sense, with their keys.
struct Faults(Vec<(Path, String)>);

impl Faults {
    fn unless(&mut self, fits: bool, at: Path, value: impl Debug, expected: &str) {
        if !fits {
            self.0.push((at, format!("is {value:?}, expected {expected}")));
        }
    }

    fn of_scenario(&mut self, scenario: &Scenario) {
        let Scenario { length, upstream, store, controllers, leases, .. } = scenario;
        let root = Path::default();
        self.unless(!length.is_zero(), root.key("length"), length, "how long to simulate, such as \"60s\"");
        if controllers.is_empty() && leases.is_empty() {
            self.0.push((root.clone(), "has nothing to simulate, expected [[controllers]] or [[leases]]".to_owned()));
        }
        let names: Vec<&str> = controllers.iter().map(|one| one.name.as_str()).collect();
        for (index, one) in controllers.iter().enumerate() {
            let at = root.key("controllers").index(index);
            self.unless(!names[..index].contains(&&*one.name), at.key("name"), &one.name, "another name for each");
            let lends = |other: &ControllerModel| {
                Some(&other.name) == one.workers_of.as_ref() && other.workers_of.is_none() && other.replicas == 1
            };
            let has_workers = one.workers_of.is_none() || controllers[..index].iter().any(lends);
            self.unless(has_workers, at.key("workers_of"), one.workers_of.as_deref().unwrap_or_default(), AN_OWNER);
            self.of_controller(one, &at);
        }
        for (index, Lease { name, every, deadline }) in leases.iter().enumerate() {
            let at = root.key("leases").index(index);
            self.unless(is_segment(name), at.key("name"), name, A_SEGMENT);
            self.unless(!every.is_zero() && every < deadline, at.key("every"), every, "0 < every < deadline");
        }
        let at = root.key("upstream");
        self.rate(upstream.capacity, at.key("capacity"));
        self.rate(upstream.quota.map(|quota| quota.rate), at.key("quota").key("rate"));
        let has_one = upstream.seats.is_none_or(|seats| seats > 0 && upstream.capacity.is_none());
        self.unless(has_one, at.key("seats"), upstream.seats, "1 or more, and no capacity beside it");
        for (index, failure) in upstream.failures.iter().enumerate() {
            let at = at.key("failures").index(index);
            self.unless(failure.from < failure.to, at.key("to"), failure.to, "a time after `from`");
            self.unless((400..=599).contains(&failure.status), at.key("status"), failure.status, "400 to 599");
            self.unless((0.0..=1.0).contains(&failure.share), at.key("share"), failure.share, "0 to 1");
            for (index, name) in failure.controllers.iter().enumerate() {
                let expected = format!("a controller of this file{}", did_you_mean(name, &names));
                self.unless(names.contains(&&**name), at.key("controllers").index(index), name, &expected);
            }
        }
        let at = root.key("store");
        self.unless(!store.timeout.is_zero(), at.key("timeout"), store.timeout, "a time such as \"250ms\"");
        for (index, outage) in store.outages.iter().enumerate() {
            let at = at.key("outages").index(index).key("to");
            self.unless(outage.from < outage.to, at, outage.to, "a time after `from`");
        }
    }

    fn of_controller(&mut self, one: &ControllerModel, at: &Path) {
        self.unless(is_segment(&one.resource), at.key("resource"), &one.resource, A_SEGMENT);
        self.unless(is_segment(&one.namespace), at.key("namespace"), &one.namespace, A_SEGMENT);
        self.unless((1..=MOST_OBJECTS).contains(&one.objects), at.key("objects"), one.objects, "1 to 1000000");
        self.unless((1..=MOST_GATES).contains(&one.replicas), at.key("replicas"), one.replicas, "1 to 1000");
        self.unless(one.gate <= MOST_GATES, at.key("gate"), one.gate, "0 (none) to 1000");
        self.unless(!one.verbs.is_empty(), at.key("verbs"), &one.verbs, "the calls of a reconcile");
        if let Changes::Steadily { rate, from, to } = one.changes {
            self.rate(Some(rate), at.key("changes"));
            self.unless(to.is_none_or(|to| from < to), at.key("to"), to, "a time after `from`");
        }
        if let Requeue::Backoff { base, max, overall } = one.requeue {
            self.unless(!base.is_zero() && base <= max, at.key("requeue"), base, "0 < base <= max");
            self.rate(overall.map(|overall| overall.rate), at.key("requeue"));
        }
    }

    fn rate(&mut self, rate: Option<f64>, at: Path) {
        let fits = rate.is_none_or(|rate| rate > 0.0 && rate <= MOST_PER_SECOND);
        self.unless(fits, at, rate.unwrap_or_default(), "a number per second above 0 and at most 1000000");
    }
}

/// Returns true if a text can be one segment of a URL path.
fn is_segment(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

/// A controller as it is written in a file.
#[derive(serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ControllerFile {
    name: Option<String>,
    resource: String,
    namespace: String,
    objects: usize,
    workers: usize,
    workers_of: Option<String>,
    changes: Option<f64>,
    #[serde(deserialize_with = "time")]
    from: Duration,
    #[serde(deserialize_with = "some_time")]
    to: Option<Duration>,
    #[serde(deserialize_with = "verbs")]
    verbs: Vec<Verb>,
    requeue: Requeue,
    replicas: usize,
    gate: usize,
}

impl Default for ControllerFile {
    fn default() -> Self {
        Self {
            name: None,
            resource: "configmaps".to_owned(),
            namespace: "default".to_owned(),
            objects: 100,
            workers: 1,
            workers_of: None,
            changes: None,
            from: Duration::ZERO,
            to: None,
            verbs: vec![Verb::Update],
            requeue: Requeue::default(),
            replicas: 1,
            gate: 1,
        }
    }
}

impl From<ControllerFile> for ControllerModel {
    fn from(file: ControllerFile) -> Self {
        let ControllerFile { name, namespace, objects, verbs, requeue, replicas, gate, from, to, .. } = file;
        let (resource, group) = file.resource.split_once('.').unwrap_or((&file.resource, ""));
        let changes = file.changes.map(|rate| Changes::Steadily { rate, from, to });
        Self {
            name: name.unwrap_or_else(|| resource.to_owned()),
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace,
            objects,
            workers: Some(file.workers).filter(|workers| *workers > 0),
            workers_of: file.workers_of,
            changes: changes.unwrap_or(Changes::Together { at: from }),
            verbs,
            requeue,
            replicas,
            gate,
        }
    }
}

pub(super) fn time<'de, D: Deserializer<'de>>(value: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(value)?;
    with_unit(&text).ok_or_else(|| D::Error::custom(format!("is {text:?}, expected {A_DURATION}")))
}

fn some_time<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Duration>, D::Error> {
    time(value).map(Some)
}

/// Reads the word for no backoff.
pub(super) fn at_once<'de, D: Deserializer<'de>>(value: D) -> Result<(), D::Error> {
    let is_word = String::deserialize(value)? == "at_once";
    if is_word { Ok(()) } else { Err(D::Error::custom("expected \"at_once\"")) }
}

fn verbs<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<Verb>, D::Error> {
    let known = VERBS.map(Verb::word);
    let verb = |word: &String| {
        let found = VERBS.into_iter().find(|verb| verb.word() == word);
        found.ok_or_else(|| {
            D::Error::custom(format!(
                "{word:?} is not a verb, expected {}{}",
                alternatives(&known),
                did_you_mean(word, &known)
            ))
        })
    };
    Vec::<String>::deserialize(value)?.iter().map(verb).collect()
}

pub(super) const fn one() -> u32 {
    1
}

pub(super) const fn hundred() -> u32 {
    100
}

pub(super) const fn requeue_base() -> Duration {
    Duration::from_millis(5)
}

pub(super) const fn requeue_max() -> Duration {
    Duration::from_secs(1000)
}

impl Lease {
    /// The default interval of lease renewals: client-go's retry period.
    pub const EVERY: Duration = Duration::from_secs(2);
    /// The default deadline of a lease: client-go's renew deadline.
    pub const DEADLINE: Duration = Duration::from_secs(10);
}

/// The verbs the calls of a reconcile can have.
const VERBS: [Verb; 6] = [Verb::Get, Verb::List, Verb::Create, Verb::Update, Verb::Patch, Verb::Delete];
const AN_OWNER: &str = "a controller above this one that has workers of its own and no replicas";
const A_SEGMENT: &str = "a name of letters, digits, '-' and '.'";
/// The most objects of a controller. The limit is arbitrary; each object costs memory.
const MOST_OBJECTS: usize = 1_000_000;
const MOST_PER_SECOND: f64 = 1e6;
const MOST_GATES: usize = 1_000;
