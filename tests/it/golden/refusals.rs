//! Every 429 and 503 of kube-apiserver, and the 5xx that stand for the same troubles: what the gate
//! learns from each. The answers are in `refusals.txt`, as kube-apiserver 1.29 to 1.36 write them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tidegate::api::outcome::{Failures, PausePolicy, answer, wants_body};
use tidegate::api::signals::{Response, Signal};
use tidegate::api::{Call, Outcome, Scope, kubernetes};
use tidegate::limit::quota::QuotaKind;

use crate::live::{self, or_skip};

/// A refusal, and what the gate learns from it.
struct Refusal {
    name: String,
    /// The files of kube-apiserver that write it, each once for each place in it.
    sources: Vec<String>,
    call: Call,
    learns: String,
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

fn refusals() -> Vec<Refusal> {
    let text = include_str!("refusals.txt");
    text.split("=== ").skip(1).map(Refusal::read).collect()
}

// === impl Refusal ===

impl Refusal {
    fn read(text: &str) -> Self {
        let mut parts = text.splitn(3, "\n\n");
        let mut part = || parts.next().unwrap_or_else(|| panic!("a part is missing: {text}"));
        let (about, head, body) = (part(), part(), part());
        let (name, about) = about.split_once('\n').expect("a name and more");
        let field = |name: &str| {
            let lines = about.lines().filter_map(|line| line.split_once(": "));
            lines.filter(|(found, _)| *found == name).map(|(_, value)| value.to_owned()).collect::<Vec<_>>()
        };
        let call = field("call").concat();
        let (method, target) = call.split_once(' ').expect("a method and a target");
        let (status, headers) = head.split_once('\n').expect("a status line and headers");
        let header = |line: &str| {
            let (name, value) = line.split_once(": ").expect("a name and a value");
            (name.parse::<HeaderName>().expect("a name"), value.parse::<HeaderValue>().expect("a value"))
        };
        Self {
            name: name.to_owned(),
            sources: field("source").iter().flat_map(|source| places(source)).collect(),
            call: kubernetes::read(&method.parse().expect("a method"), &target.parse().expect("a target")),
            learns: field("learns").concat(),
            status: status.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status"),
            headers: headers.lines().map(header).collect(),
            body: body.to_owned(),
        }
    }

    /// What the gate learns from the answer, in the words of `refusals.txt`.
    fn learnt(&self) -> String {
        let failures = Failures { statuses: vec![429, 500, 502, 503, 504], transport: true, left: true };
        let throttling = PausePolicy {
            kubernetes: true,
            honour: [Signal::RetryAfter].into_iter().collect(),
            scope: Scope::Gate,
            max_pause: Duration::from_secs(900),
            reserve: 0.0,
            quota: QuotaKind::Unknown,
            pace: false,
        };
        // As the proxy does: the body is read where it could tell more.
        let is_read = wants_body(&throttling, &self.call, self.status, &self.headers);
        let body = if is_read { self.body.as_bytes() } else { b"" };
        let response = Response { status: self.status, headers: &self.headers, body, wall: None };
        let told = answer(&failures, &throttling, &self.call, &response);
        let outcome = match told.answer.outcome {
            Outcome::Throttled { after } => format!("throttled {}s", after.as_secs()),
            other => format!("{other:?}").to_lowercase(),
        };
        let mut words = vec![outcome];
        words.extend(told.answer.pause.map(|_| "pauses".to_owned()));
        words.extend(told.answer.throttled.then(|| "adapts".to_owned()));
        words.push(told.rejection.map_or("-", |rejection| rejection.word()).to_owned());
        words.join(", ")
    }
}

/// A file, as many times as a source says: `FILE x3`.
fn places(source: &str) -> Vec<String> {
    let (file, times) = source.split_once(" x").unwrap_or((source, "1"));
    vec![file.to_owned(); times.parse().expect("a number")]
}

#[test]
fn only_fair_queueing_slows_the_gate_down() {
    let mut wrong = Vec::new();
    for refusal in refusals() {
        let learnt = refusal.learnt();
        if learnt != refusal.learns {
            wrong.push(format!("{}: {learnt}, expected {}", refusal.name, refusal.learns));
        }
    }
    super::none(&wrong, refusals().len());
    let adapts = refusals().iter().filter(|refusal| refusal.learns.contains("adapts")).count();
    assert_eq!(adapts, 1, "priority and fairness alone");
}

/// Every place in the sources of kube-apiserver that makes a 429 or a 503 has its row. Needs Go.
#[test]
fn each_429_and_503_of_the_sources_has_a_row() {
    let Some(folders) = or_skip("kube-apiserver's sources", live::required().and_then(|()| folders())) else { return };
    let (mut found, mut named) = (BTreeMap::new(), BTreeMap::new());
    for (module, folder) in &folders {
        for (file, _) in refusals_in(folder) {
            *found.entry(format!("{module}/{file}")).or_insert(0) += 1;
        }
    }
    refusals().into_iter().flat_map(|refusal| refusal.sources).for_each(|file| *named.entry(file).or_insert(0) += 1);
    assert!(found.len() > 15, "the sources were not found: {found:?}");
    assert_eq!(found, named, "left: places in the sources; right: places that refusals.txt has rows for");
}

/// The oldest version that is supported refuses in no other words. Needs Go.
#[test]
fn the_oldest_version_refuses_in_the_same_words() {
    let sources = live::required().and_then(|()| Ok((folders()?, download_oldest()?)));
    let Some((folders, ())) = or_skip("kube-apiserver's sources", sources) else { return };
    let known: BTreeSet<_> = folders.iter().flat_map(|(_, folder)| refusals_in(folder)).map(|(_, line)| line).collect();
    let old = |(_, folder): &(String, String)| {
        let (module, rest) = folder.split_once("@v").expect("a module's folder");
        let (major, rest) = rest.split_once('.').expect("a version");
        let inside = rest.split_once('/').map_or("", |(_, inside)| inside);
        refusals_in(&format!("{module}@v{major}.{OLDEST}/{inside}"))
    };
    let found: Vec<_> = folders.iter().flat_map(old).collect();
    assert!(found.len() > 20, "the sources were not found: {found:?}");
    let other: Vec<_> = found.iter().filter(|(_, line)| !known.contains(line)).collect();
    assert!(other.is_empty(), "refusals of 1.{OLDEST} without a row: {other:#?}");
}

/// Downloads the modules of the oldest version that make refusals.
fn download_oldest() -> Result<(), String> {
    let modules = ["kubernetes@v1", "apiserver@v0", "apiextensions-apiserver@v0", "kube-aggregator@v0"];
    let modules = modules.map(|module| format!("k8s.io/{module}.{OLDEST}"));
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes");
    let done = Command::new("go").args(["mod", "download"]).args(modules).current_dir(module).output();
    let done = done.map_err(|error| format!("go cannot be run: {error}"))?;
    let why = || format!("the sources cannot be had: {}", String::from_utf8_lossy(&done.stderr).trim());
    done.status.success().then_some(()).ok_or_else(why)
}

/// Returns the lines of a folder's Go files that make a refusal, each with its file; none if there
/// is no such folder.
fn refusals_in(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for file in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("read").path()) {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".go") && !name.ends_with("_test.go") {
            let text = fs::read_to_string(&file).expect("Go source is text");
            let lines = text.lines().filter(|line| makes_refusal(line));
            found.extend(lines.map(|line| (name.clone(), line.trim().to_owned())));
        }
    }
    found
}

/// The minor and the patch of the oldest version that is supported (docs/releases.md), of its last
/// release.
const OLDEST: &str = "29.15";

/// True for a line that makes an answer with one of the statuses, not for one that reads it.
fn makes_refusal(line: &str) -> bool {
    let line = line.trim_start();
    let makes = [
        "NewTooManyRequests(",
        "NewTooManyRequestsError(",
        "NewServiceUnavailable(",
        "NewGenericServerResponse(resp.StatusCode",
        "tooManyRequests(",
        "StatusTooManyRequests)",
        "StatusServiceUnavailable)",
    ];
    let reads = ["//", "func ", "case ", "if ", "epmetrics.", "metrics.", "requestCounter."];
    makes.iter().any(|word| line.contains(word)) && !reads.iter().any(|word| line.starts_with(word))
}

/// The folders of the packages that kube-apiserver is made of, with their module's short name and
/// their path in it.
fn folders() -> Result<Vec<(String, String)>, String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes");
    let format = "{{.ImportPath}} {{.Dir}}";
    let listed = Command::new("go")
        .args(["list", "-deps", "-f", format, "k8s.io/kubernetes/cmd/kube-apiserver"])
        .current_dir(module)
        .output()
        .map_err(|error| format!("go cannot be run: {error}"))?;
    if !listed.status.success() {
        return Err(format!("the sources cannot be had: {}", String::from_utf8_lossy(&listed.stderr).trim()));
    }
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let packages = listed.lines().filter_map(|line| line.strip_prefix("k8s.io/")?.split_once(' '));
    // client-go is a client, and this file of apimachinery has the constructors.
    let is_server = |path: &str| !path.starts_with("client-go/") && path != "apimachinery/pkg/api/errors";
    Ok(packages.filter(|(path, _)| is_server(path)).map(|(path, folder)| (path.into(), folder.into())).collect())
}
