//! The logs that `tidegate audit` reads: every form, whole or broken.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tidegate::simulate::audit::{Audit, audit};
use tidegate::simulate::replay::{LogSelection, RecordedLog, ReplayError};

use crate::command::{Ended, end, tidegate};

/// An update of `shop/NAME` by `acme`, in the tenth of a second `at`.
fn event(at: u32, name: &str) -> Value {
    let time = |micros: u32| format!("2026-11-27T10:{:02}:{:02}.{}{micros:05}Z", at / 600, at / 10 % 60, at % 10);
    json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "stage": "ResponseComplete", "verb": "update",
        "user": {"username": "acme"}, "userAgent": "acme/v1 (linux)", "responseStatus": {"code": 200},
        "objectRef": {"resource": "widgets", "namespace": "shop", "name": name, "apiGroup": "example.org", "resourceVersion": "7"},
        "requestReceivedTimestamp": time(0), "stageTimestamp": time(500),
    })
}

fn lines(tenths: impl Iterator<Item = u32>) -> String {
    tenths.map(|at| format!("{}\n", event(at, "web"))).collect()
}

fn read(content: &[u8]) -> Result<Audit, ReplayError> {
    let mut input: Box<dyn std::io::BufRead> = Box::new(content);
    if content.starts_with(b"\x1f\x8b") {
        input = Box::new(std::io::BufReader::new(flate2::bufread::MultiGzDecoder::new(content)));
    }
    audit(vec![RecordedLog { name: "audit.log".to_owned(), input }], &LogSelection::default())
}

fn calls(found: &Audit) -> u64 {
    found.callers.iter().map(|caller| caller.calls).sum()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text.as_bytes()).expect("in memory");
    gzip.finish().expect("in memory")
}

fn run(folder: &Path, arguments: &[&str]) -> Ended {
    let mut command = tidegate(["audit"]);
    command.current_dir(folder).args(arguments);
    end(command)
}

/// Returns the keys of an object, or of the first in a list, separated by commas.
fn keys(value: &Value) -> Vec<String> {
    let object = value.get(0).unwrap_or(value).as_object().expect("an object");
    object.iter().map(|(key, _)| key.clone()).collect()
}

/// One call in each of the forms.
fn forms() -> [String; 9] {
    let text = |at| event(at, "web").to_string();
    let gke = json!({
        "protoPayload": {
            "@type": "type.googleapis.com/google.cloud.audit.AuditLog", "serviceName": "k8s.io",
            "methodName": "io.k8s.example.org.v1.widgets.update", "resourceName": "example.org/v1/namespaces/shop/widgets/web",
            "authenticationInfo": {"principalEmail": "acme"},
            "requestMetadata": {"callerSuppliedUserAgent": "acme/v1 (linux)"},
        },
        "timestamp": "2026-11-27T10:00:01.5Z",
    });
    let trail = json!({"Records": [{
        "eventTime": "2026-11-27T10:00:02Z", "eventSource": "ec2.amazonaws.com", "eventName": "RunInstances",
        "awsRegion": "eu-west-1", "userIdentity": {"arn": "acme"}, "userAgent": "acme/v1", "errorCode": "ThrottlingException",
    }]});
    [
        text(1),
        format!("2026-11-27T10:00:00.200Z {}", text(2)),
        json!({"owner": "1", "logEvents": [{"id": "1", "timestamp": 1, "message": text(3)}]}).to_string(),
        format!("{:#}", json!({"events": [{"message": text(4)}], "searchedLogStreams": []})),
        json!({"category": "kube-audit", "properties": {"log": text(5) + "\n", "stream": "stdout"}}).to_string(),
        json!({"records": [{"category": "kube-audit", "properties": {"log": text(6)}}]}).to_string(),
        format!("{:#}", json!([gke, {"jsonPayload": event(7, "web"), "timestamp": "2026-11-27T10:00:01Z"}])),
        json!({"kind": "EventList", "apiVersion": "audit.k8s.io/v1", "items": [event(8, "web")]}).to_string(),
        trail.to_string(),
    ]
}

#[test]
fn every_form_is_read_from_one_file() {
    let text = forms().join("\n");
    let found = read(text.as_bytes()).expect("it has calls");
    assert_eq!((calls(&found), found.read.unreadable, found.read.other_logs), (10, 0, 0), "{:?}", found.read.examples);
    assert_eq!(found.callers.len(), 1, "{:?}", found.callers);
    assert_eq!((found.callers[0].throttled, &*found.callers[0].name), (1, "acme (acme/v1)"));
}

#[test]
fn a_file_cut_anywhere_loses_one_call_and_says_so() {
    let text = lines(0..3);
    let line = text.len() / 3;
    for cut in 1..text.len() {
        let part = &text.as_bytes()[..cut];
        // Without its line break a line is whole.
        let whole = (cut + 1) / line;
        match read(part) {
            Ok(found) => {
                let is_cut = !(cut + 1).is_multiple_of(line) && !cut.is_multiple_of(line);
                assert_eq!((calls(&found), found.read.unreadable), (whole as u64, u64::from(is_cut)), "{cut}");
            }
            Err(error) => {
                assert_eq!(whole, 0, "{cut}: {error}");
                assert!(error.to_string().contains("audit.log:1: (the file ends here)"), "{error}");
            }
        }
    }
}

#[test]
fn a_gzip_member_cut_anywhere_is_named() {
    let [older, newer] = [gzip(&lines(0..300)), gzip(&lines(300..600))];
    let both = [&older[..], &newer].concat();
    let found = read(&both).expect("two members are one log");
    assert_eq!((calls(&found), found.read.unreadable), (600, 0));
    for cut in (older.len() + 1..both.len() - 8).step_by(97) {
        let found = read(&both[..cut]).expect("the first member is whole");
        assert!((300..600).contains(&calls(&found)), "{cut}: {}", calls(&found));
        let examples = found.read.examples.join("\n");
        assert!(found.read.unreadable == 1 && examples.ends_with("(the file ends here)"), "{cut}: {examples}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("audit.log.gz"), &both[..both.len() - 9]).expect("it can be written");
    let ended = run(folder.path(), &["audit.log.gz"]);
    assert_eq!(ended.code, Some(65), "{}", ended.err);
    assert!(ended.out.contains("1 lines cannot be read: audit.log.gz:"), "{}", ended.out);
    assert_eq!(ended.err, "tidegate: the findings lack 1 line that cannot be read\n");
}

#[test]
fn events_of_several_versions_are_read_or_counted() {
    let alpha = json!({"kind": "Event", "apiVersion": "audit.k8s.io/v1alpha1", "timestamp": "2026-11-27T10:00:01Z", "verb": "get"});
    let beta = event(2, "web").to_string().replace("audit.k8s.io/v1", "audit.k8s.io/v1beta1");
    let found = read(format!("{}{alpha}\n{beta}\n", lines(0..1)).as_bytes()).expect("it has calls");
    assert_eq!((calls(&found), found.read.examples), (2, vec!["audit.log:2: JSON of an unknown kind".to_owned()]));
}

#[test]
fn a_log_without_calls_says_what_it_is_and_what_to_change() {
    let received = lines(0..3).replace("ResponseComplete", "RequestReceived");
    let other = json!({"message": "I1127 10:00:00.000000 1 httplog.go:132] HTTP"}).to_string();
    for (content, said) in [
        ("", "it is empty; expected the call log of a gate (log.calls), an audit log of kube-apiserver"),
        ("", "a rule of level None keeps calls out: set Metadata"),
        (
            &*received,
            "3 events are of another stage than ResponseComplete; take that one out of the audit policy's omitStages",
        ),
        (
            "apiVersion: audit.k8s.io/v1\nkind: Policy\n",
            "2 lines cannot be read, the first at audit.log:1: expected JSON",
        ),
        ("\u{1}\u{0}PNG\"{[\n\"}", "lines cannot be read, the first at audit.log:1: "),
        (
            "{\"kind\":\"PodList\",\"items\":[{\"kind\":\"Pod\"}]}",
            "the first at audit.log:1: JSON of an unknown kind; expected",
        ),
        (&*other, "only 1 lines of other logs; expected"),
    ] {
        let error = read(content.as_bytes()).expect_err("no call").to_string();
        assert!(error.contains(said), "{said}\n{error}");
    }
}

#[test]
fn a_folder_of_rotated_files_is_one_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let below = folder.path().join("27/10");
    fs::create_dir_all(&below).expect("ours");
    fs::write(folder.path().join("audit.log"), lines(400..600)).expect("it can be written");
    fs::write(folder.path().join("audit.log.1"), lines(200..400)).expect("it can be written");
    fs::write(below.join("audit.log.2.gz"), gzip(&lines(0..200))).expect("it can be written");
    let ended = run(folder.path(), &["."]);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{}", ended.out);
    assert!(ended.out.starts_with("600 calls of 1 caller in 1 m"), "{}", ended.out);
    let empty = tempfile::tempdir().expect("a folder");
    let ended = run(empty.path(), &["."]);
    assert_eq!((ended.code, &*ended.err), (Some(1), "tidegate: . is a folder without files, expected logs\n"));
    let ended = run(empty.path(), &["absent"]);
    assert!(
        ended.err.starts_with("tidegate: cannot read absent, expected a log, a folder of logs, or -: "),
        "{}",
        ended.err
    );
}

#[test]
fn redacted_findings_have_no_names_and_stay_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let two = (0..900).map(|at| format!("{}\n", event(at, if at % 3 == 0 { "db" } else { "web" })));
    let text = two.collect::<String>() + "{\"secret\": \n";
    fs::write(folder.path().join("audit.log"), text).expect("it can be written");
    let ended = run(folder.path(), &["audit.log", "--redact", "--json", "found.json"]);
    let json = fs::read_to_string(folder.path().join("found.json")).expect("it was written");
    for name in ["acme", "shop", "web", "secret"] {
        assert!(!ended.out.contains(name) && !json.contains(name), "{name}\n{}\n{json}", ended.out);
    }
    let found: Value = serde_json::from_str(&json).expect("JSON");
    let objects = [&found["loops"][0]["object"], &found["loops"][1]["object"]];
    assert_eq!(objects, [&json!("name-1/name-2"), &json!("name-1/name-3")], "{json}");
    assert_eq!(
        (&found["callers"][0]["name"], &found["loops"][0]["callers"][0]),
        (&json!("caller-1"), &json!("caller-1"))
    );
}

#[test]
fn a_gate_would_have_made_the_loudest_caller_even() {
    let folder = tempfile::tempdir().expect("a folder");
    // 100 calls in a tenth of a second, once a minute.
    let herd = |minute: u32| (0..100).map(move |call| format!("{}\n", event(minute * 600, &format!("w{call}"))));
    fs::write(folder.path().join("audit.log"), (0..30).flat_map(herd).collect::<String>()).expect("it can be written");
    let config =
        "[gates.api]\nupstream = \"http://127.0.0.1:9\"\npreset = \"none\"\nbucket = { rate = 10, burst = 20 }\n";
    fs::write(folder.path().join("gate.toml"), config).expect("it can be written");
    let ended = run(folder.path(), &["audit.log", "--caller", "acme", "--config", "gate.toml", "--json", "found.json"]);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    let said = ended.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = "A gate before acme with gate.toml would have sent at most 29 calls in one second in place of 100; \
                    2,400 of 3,000 calls would have waited, the longest 8.0 s, 99 of 100 no longer than 7.9 s; none refused";
    assert!(said.contains(expected), "{said}");
    let found: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("found.json")).expect("written")).expect("JSON");
    let what_if = &found["what_if"][0];
    assert_eq!((&what_if["peak"], &what_if["waited"], &what_if["refused"]), (&json!(100), &json!(2400), &json!({})));

    let ended = run(folder.path(), &["audit.log"]);
    let said = ended.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, sentence) = said.split_once("A gate before acme (acme/v1) with bucket = { rate = ").expect("it is there");
    let sent = sentence
        .split_once("sent at most ")
        .and_then(|(_, rest)| rest.split_once(" calls in one second in place of 100"));
    let sent: u32 = sent.and_then(|(sent, _)| sent.parse().ok()).expect("a number");
    assert!(sent <= 60, "{said}");
}

#[test]
fn the_page_lists_all_that_programs_get() {
    let mut events: Vec<Value> = (0..9000).step_by(60).map(|at| event(at, "web")).collect();
    // A leader that is late once.
    let renewals = (0..40_u32).map(|number| number * 20 + if number > 20 { 80 } else { 0 });
    events.extend(renewals.map(|at| {
        let mut renewal = event(at, "lock");
        renewal["objectRef"]["resource"] = json!("leases");
        renewal
    }));
    events.extend((0..100).map(|call| event(9001, &format!("w{call}"))));
    let text: String = events.iter().map(|event| format!("{event}\n")).collect();
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("audit.log"), text).expect("it can be written");
    let ended = run(folder.path(), &["audit.log", "--json", "found.json"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let found: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("found.json")).expect("written")).expect("JSON");
    let page = include_str!("../../../docs/audit.md");
    let shown = page.rsplit("```text\n").next().and_then(|rest| rest.split("```").next()).expect("a list");
    let mut lines = shown.lines();
    let sorted = |names: &str| {
        let mut names: Vec<String> = names.split(", ").map(|name| name.trim().to_owned()).collect();
        names.sort_unstable();
        names
    };
    let mut top = sorted(lines.next().expect("the first line"));
    for line in lines {
        let (part, names) = line.split_once(' ').expect("a part and its fields");
        assert_eq!(keys(&found[part]), sorted(names), "{part}");
        top.push(part.to_owned());
    }
    top.sort_unstable();
    assert_eq!(keys(&found), top);
}
