//! Reads a scenario file, and checks what its values mean together.

use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use super::{
    ControllerModel, FailureSpan, Lease, LimitsOf, Outage, OverallBucket, Requeue, Scenario, StoreModel, Upstream,
};
use crate::api::Verb;
use crate::config::cursor::Cursor;
use crate::config::layers::layered;
use crate::config::problems::{Problem, Text, alternatives, did_you_mean};
use crate::config::report::Report;

/// Reads and checks a scenario file. Configuration files named in it are not read.
///
/// # Errors
/// All problems.
pub fn load(file: &FilePath) -> Result<Scenario, Vec<Problem>> {
    let (name, text) = crate::config::read(file)?;
    load_text(name, text, file)
}

/// Reads and checks the text of a scenario file.
///
/// # Errors
/// As [`load`].
pub fn load_text(name: String, text: String, file: &FilePath) -> Result<Scenario, Vec<Problem>> {
    let (text, syntax) = Text::new(name, text);
    if !syntax.is_empty() {
        return Err(syntax);
    }
    let root = layered(&text, &[])?;
    let report = Report::new(&text, &[]);
    let scenario = scenario(&Cursor::root(&root, &report), file);
    report.finish(&root, Vec::new(), &[]).map(|_| scenario)
}

fn scenario(at: &Cursor<'_>, file: &FilePath) -> Scenario {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let title = at.get("title", stem);
    let how_long = "how long to simulate, such as \"60s\"";
    let length = at.get_if("length", Duration::from_secs(60), |length| !length.is_zero(), how_long);
    let seed = at.get("seed", 1);
    let mut controllers = Vec::new();
    for at in at.list("controllers") {
        let controller = controller(&at, &controllers);
        controllers.push(controller);
    }
    let leases: Vec<Lease> = at.list("leases").iter().map(lease).collect();
    if controllers.is_empty() && leases.is_empty() {
        at.problem("has nothing to simulate, expected [[controllers]] or [[leases]]");
    }
    let upstream = upstream(&at.table("upstream"), &controllers);
    let store = store(&at.table("store"));
    let limits = at.list("limits").iter().map(|at| limits(at, file)).collect();
    Scenario { title, length, seed, upstream, store, controllers, leases, limits }
}

/// Reads a controller; `before` are those above it.
fn controller(at: &Cursor<'_>, before: &[ControllerModel]) -> ControllerModel {
    let of_group: String = at.get("resource", "configmaps".to_owned());
    let (resource, group) = of_group.split_once('.').unwrap_or((&of_group, ""));
    if !is_segment(resource) {
        at.at("resource").problem(format!("is {resource:?}, expected {A_SEGMENT}"));
    }
    let is_new = |name: &String| before.iter().all(|other| other.name != *name);
    let from = at.get("from", Duration::ZERO);
    ControllerModel {
        name: at.get_if("name", resource.to_owned(), is_new, "another name for each"),
        group: group.to_owned(),
        resource: resource.to_owned(),
        namespace: at.get_if("namespace", "default".to_owned(), |name| is_segment(name), A_SEGMENT),
        objects: at.get_if("objects", 100, |objects| (1..=MOST_OBJECTS).contains(objects), "1 to 1000000"),
        workers: at.get("workers", 1),
        workers_of: workers_of(at, before),
        changes: rate(at, "changes"),
        from,
        to: end(at, from),
        verbs: verbs(at),
        requeue: requeue(at),
        replicas: at.get_if("replicas", 1, |replicas| (1..=MOST_GATES).contains(replicas), "1 to 1000"),
        gate: at.get_if("gate", 1, |gate| *gate <= MOST_GATES, "0 (none) to 1000"),
    }
}

fn workers_of(at: &Cursor<'_>, before: &[ControllerModel]) -> Option<String> {
    let owner: Option<String> = at.option("workers_of", None);
    let lends = |other: &ControllerModel| {
        Some(&other.name) == owner.as_ref() && other.workers_of.is_none() && other.replicas == 1
    };
    if let Some(owner) = owner.as_ref().filter(|_| !before.iter().any(lends)) {
        let expected = "a controller above this one that has workers of its own and no replicas";
        at.at("workers_of").problem(format!("is {owner:?}, expected {expected}"));
    }
    owner
}

fn verbs(at: &Cursor<'_>) -> Vec<Verb> {
    let usual = vec![Verb::Update.word().to_owned()];
    let words: Vec<String> = at.get_if("verbs", usual, |verbs| !verbs.is_empty(), "the calls of a reconcile");
    let known = VERBS.map(Verb::word);
    at.check_each("verbs", &words, |word| {
        let expected = || format!("which is not a verb, expected {}", alternatives(&known));
        (!known.contains(&word)).then(|| expected() + &did_you_mean(word, &known))
    });
    words.iter().filter_map(|word| Verb::named(word)).collect()
}

fn requeue(at: &Cursor<'_>) -> Requeue {
    let whole = at.at("requeue");
    if whole.is_present() && !whole.is_table() {
        let word: Option<String> = at.read("requeue");
        if let Some(word) = word.filter(|word| word != "at_once") {
            let expected = "\"at_once\" or a table such as { base = \"5ms\", max = \"1000s\" }";
            whole.problem(format!("is {word:?}, expected {expected}"));
        }
        return Requeue::AtOnce;
    }
    let at = at.table("requeue");
    let base = at.get_if("base", Duration::from_millis(5), |base| !base.is_zero(), "a time such as \"5ms\"");
    let max = at.get_if("max", Duration::from_secs(1000), |max| base <= *max, "a time not before `base`");
    Requeue::Backoff { base, max, overall: bucket(&at, "overall", 100) }
}

fn lease(at: &Cursor<'_>) -> Lease {
    let name = at.get_if("name", "leader".to_owned(), |name| is_segment(name), A_SEGMENT);
    let deadline = at.get("deadline", Lease::DEADLINE);
    let fits = |every: &Duration| !every.is_zero() && *every < deadline;
    Lease { name, every: at.get_if("every", Lease::EVERY, fits, "0 < every < deadline"), deadline }
}

fn upstream(at: &Cursor<'_>, controllers: &[ControllerModel]) -> Upstream {
    let capacity = rate(at, "capacity");
    let seats: Option<u32> = at.option("seats", None);
    if let Some(seats) = seats.filter(|seats| *seats == 0 || capacity.is_some()) {
        at.at("seats").problem(format!("is {seats}, expected 1 or more; seats and capacity exclude each other"));
    }
    Upstream {
        latency: at.get("latency", Upstream::default().latency),
        capacity,
        seats,
        failures: at.list("failures").iter().map(|at| failures(at, controllers)).collect(),
        quota: bucket(at, "quota", 1),
    }
}

fn failures(at: &Cursor<'_>, controllers: &[ControllerModel]) -> FailureSpan {
    let from = at.get("from", Duration::ZERO);
    let to = end(at, from).unwrap_or(Duration::MAX);
    let status: u32 = at.get_if("status", 503, |status| (400..=599).contains(status), "400 to 599");
    let of: Vec<String> = at.get("controllers", Vec::new());
    let names: Vec<&str> = controllers.iter().map(|one| one.name.as_str()).collect();
    at.check_each("controllers", &of, |name| {
        let near = || did_you_mean(name, &names);
        (!names.contains(&name)).then(|| format!("expected a controller of this file{}", near()))
    });
    let share = at.get_if("share", 1.0, |share| (0.0..=1.0).contains(share), "0 to 1");
    FailureSpan { from, to, status: u16::try_from(status).unwrap_or_default(), controllers: of, share }
}

fn store(at: &Cursor<'_>) -> StoreModel {
    let usual = StoreModel::default();
    let outage = |at: &Cursor<'_>| {
        let from = at.get("from", Duration::ZERO);
        if !at.has("to") {
            at.at("to").missing(", expected the end of the outage");
        }
        Outage { from, to: end(at, from).unwrap_or(from) }
    };
    StoreModel {
        rtt: at.get("rtt", usual.rtt),
        cost: at.get("cost", usual.cost),
        timeout: at.get_if("timeout", usual.timeout, |timeout| !timeout.is_zero(), "a time such as \"250ms\""),
        outages: at.list("outages").iter().map(outage).collect(),
    }
}

/// Reads the limits to simulate. Paths start at the folder of `file`.
fn limits(at: &Cursor<'_>, file: &FilePath) -> LimitsOf {
    let config = at.required::<Option<PathBuf>>("config", "the path of a configuration file");
    let config = config.flatten().unwrap_or_default();
    let name = at.get("name", config.display().to_string());
    LimitsOf { name, config: file.with_file_name("").join(config), gate: at.get("gate", None) }
}

/// Reads the end of a time that begins at `from`.
fn end(at: &Cursor<'_>, from: Duration) -> Option<Duration> {
    let to = at.option("to", None);
    if let Some(to) = to.filter(|to| *to <= from) {
        at.at("to").problem(format!("is {to:?}, expected a time after `from`"));
    }
    to
}

/// Reads a number per second.
fn rate(at: &Cursor<'_>, key: &str) -> Option<f64> {
    let rate = at.option(key, None);
    let is_wrong = |rate: &f64| !(*rate > 0.0 && *rate <= MOST_PER_SECOND);
    if let Some(rate) = rate.filter(is_wrong) {
        at.at(key).problem(format!("is {rate:?}, expected a number per second above 0 and at most 1000000"));
    }
    rate
}

/// Reads a bucket, if there is one. `burst` is its burst unless the file has another.
fn bucket(at: &Cursor<'_>, key: &str, burst: u32) -> Option<OverallBucket> {
    let at = at.optional(key)?;
    if !at.has("rate") {
        at.at("rate").missing(", expected a number per second");
    }
    let rate = rate(&at, "rate");
    let burst = at.get("burst", burst);
    Some(OverallBucket { rate: rate?, burst })
}

/// Returns true if a text can be one segment of a URL path.
fn is_segment(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

/// The verbs the calls of a reconcile can have.
const VERBS: [Verb; 6] = [Verb::Get, Verb::List, Verb::Create, Verb::Update, Verb::Patch, Verb::Delete];
const A_SEGMENT: &str = "a name of letters, digits, '-' and '.'";
/// The most objects of a controller. The limit is arbitrary; each object costs memory.
const MOST_OBJECTS: usize = 1_000_000;
const MOST_PER_SECOND: f64 = 1e6;
const MOST_GATES: usize = 1_000;
