//! `tidegate recommend`: what it recommends holds for calls that it has not seen, and what it says
//! of logs from which it recommends nothing.

use std::fs;
use std::io::Write as _;
use std::time::Duration;

use tidegate::simulate::recommend::{CurvePoint, Goal, recommend};
use tidegate::simulate::replay::{LogSelection, RecordedLog, replay};
use tidegate::simulate::usual;

use super::days::log;
use super::replayed::limits;
use crate::command::{Ended, end, tidegate};

/// All calls of a log.
const ALL: LogSelection = LogSelection { gate: String::new(), caller: None };

fn recorded(text: &str) -> Vec<RecordedLog<'_>> {
    vec![RecordedLog { name: "calls.jsonl".to_owned(), input: Box::new(text.as_bytes()) }]
}

/// Recommends from the first half of each day, and replays the second.
fn holds(hours: u32, waits: &[Duration]) {
    for seed in 1..=10_u32 {
        let text = log(seed.into(), hours);
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let (seen, held_out) = lines.split_at(lines.len() / 2);
        let wait = waits[usize::try_from(seed).expect("few") % waits.len()];
        let found = recommend(recorded(&seen.concat()), &ALL, &usual(), Goal { wait, headroom: 25, per: None });
        let found = found.expect("two hours are enough");
        let late = |point: CurvePoint| {
            let bucket = usual().with_bucket(point);
            let replays = replay(recorded(&held_out.concat()), &ALL, &[bucket]).expect("it has calls");
            let rows = &replays.replayed[1].rows;
            let calls: u64 = rows.iter().map(|row| row.arrived).sum();
            assert!(calls > 10_000, "{calls}");
            let late: u64 = rows.iter().map(|row| row.waits.over(wait) + row.refusals()).sum();
            println!("day {seed}, {wait:?}, {point:?}: {late} of {calls} wait longer");
            late * 1000 > calls
        };
        let knee = found.buckets[0].knee;
        let CurvePoint { rate, burst } = knee;
        assert!(!late(knee) && late(CurvePoint { rate: rate / 2, burst: burst / 2 }), "day {seed}");
    }
}

#[test]
fn one_call_in_a_thousand_waits_too_long_in_a_half_not_seen() {
    holds(4, &[Duration::ZERO, Duration::from_millis(100), Duration::from_secs(2)]);
}

#[test]
fn the_real_limiter_lets_no_call_wait_longer_with_the_burst_and_some_with_one_less() {
    let text = log(1, 2);
    for wait in [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1)] {
        let goal = Goal { wait, headroom: 0, per: None };
        let found = recommend(recorded(&text), &ALL, &usual(), goal).expect("it is long enough");
        let knee = found.buckets[0].knee;
        // First in, first out: fair turns make one call wait less and another more.
        let fifo = limits("fifo", "queue = { fair_by = \"none\" }\n");
        let longest = |burst| {
            let bucket = fifo.with_bucket(CurvePoint { burst, ..knee });
            let replays = replay(recorded(&text), &ALL, &[bucket]).expect("it has calls");
            replays.replayed[1].rows.iter().map(|row| row.waits.max).max().expect("a class")
        };
        let microsecond = Duration::from_micros(1);
        assert!(longest(knee.burst) <= wait + microsecond, "{wait:?}: {knee:?}");
        assert!(longest(knee.burst - 1) > wait + microsecond, "{wait:?}: {knee:?}");
    }
}

/// A line of a call at `at` ms.
fn line(at: u64, more: &str) -> String {
    let nanos = at * 1_000_000;
    format!(
        "{{\"arrived_ns\":{nanos},\"wall_ms\":{at},\"gate\":\"api\",\"class\":\"default\",\"lane\":\"normal\",\"verb\":\"get\",\
         \"group\":\"apps\",\"resource\":\"deployments\",\"namespace\":\"n\",\"user_agent\":\"operator/v1\",\
         \"sent_ns\":{nanos},\"upstream_ns\":1000000,\"status\":200{more}}}\n"
    )
}

/// Two hours of calls in herds of three each ten seconds, `more` in each line.
fn herds(more: &str) -> String {
    (0..720).flat_map(|herd| (0..3).map(move |call| line(herd * 10_000 + call * call, more))).collect()
}

/// Runs the command for a log with this content.
fn of(content: impl AsRef<[u8]>, arguments: &[&str]) -> Ended {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("calls.jsonl");
    fs::write(&path, content).expect("it can be written");
    let mut command = tidegate(["recommend"]);
    command.current_dir(folder.path()).arg("calls.jsonl").args(arguments);
    end(command)
}

#[test]
fn a_bucket_is_recommended_as_toml_with_its_proof() {
    let ended = of(herds(""), &["--headroom", "0"]);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    for said in [
        "2,160 calls of gate api in 1 h 59 m; 0 more take no token",
        "bucket = { rate = 0.4, burst = 3 }\n# burst: the smallest with which 0 of 2,160 calls, each counted as 1 (--headroom 0), wait over 100 ms\n",
        "# rate: the lowest that refills it in 8 s, with calls in one second within a tenth of the least: at most 4; 3 came\n",
        "Replayed under it: 0 of 2,160 calls wait over 100 ms, the longest 0.",
    ] {
        assert!(ended.out.contains(said), "{said}\n{}", ended.out);
    }
    assert!(ended.out.lines().all(|line| line.chars().count() <= 80 || line.starts_with('#')), "{}", ended.out);
}

/// Returns two programs in two namespaces, and a third with few calls.
fn three_programs() -> String {
    let second: String = (0..720).map(|call| line(call * 10_000 + 5_000, "")).collect();
    let few: String = (0..9).map(|call| line(call * 1_000, "")).collect();
    let of = |text: String, namespace: &str, program: &str| {
        text.replace("\"namespace\":\"n\"", &format!("\"namespace\":\"{namespace}\"")).replace("operator/v1", program)
    };
    herds("") + &of(second, "kube-system", "robot/v2") + &of(few, "few", "curl")
}

#[test]
fn calls_of_more_portions_than_are_counted_are_said() {
    let one = |number: u64| {
        line(8_000_000 + number, "").replace("\"namespace\":\"n\"", &format!("\"namespace\":\"n{number}\""))
    };
    let ended = of(herds("") + &(0..10_002).map(one).collect::<String>(), &["--per", "namespace"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("3 calls of more namespaces are left out."), "{}", ended.out);
}

#[test]
fn each_portion_has_a_class_to_paste() {
    for (per, said) in [
        (
            "namespace",
            "name = \"in_kube_system\"\nmatch = { namespaces = [\"kube-system\"] }\nbucket = { rate = 0.15, burst = 1 }\n",
        ),
        (
            "namespace",
            "name = \"in_n\"\nmatch = { namespaces = [\"n\"] }\nbucket = { rate = 0.4, burst = 3 }\n# burst: the smallest with which 0 of 2,160 calls, each",
        ),
        (
            "caller",
            "name = \"of_robot\"\nmatch = { user_agents = [\"robot\", \"robot/*\"] }\nbucket = { rate = 0.15, burst = 1 }\n",
        ),
        ("class", "[[gates.api.classes]]\nname = \"default\"\nbucket = { rate = 1.2, burst = 4 }"),
    ] {
        let ended = of(three_programs(), &["--headroom", "0", "--per", per]);
        assert!(ended.code == Some(0) && ended.out.contains(said), "{said}\n{}{}", ended.out, ended.err);
        let replayed = ended.out.split("\nReplayed under them, each alone: 0 of ").nth(1).expect("a replay");
        assert_eq!(per == "class", replayed.starts_with("2,889 calls"), "{replayed}");
        let few = format!("No bucket for 1 {per}, such as \"{}\": ", if per == "caller" { "curl" } else { "few" });
        assert_eq!(per != "class", replayed.contains(&few), "{replayed}");
        let (printed, _) = ended.out.split_once("\nReplayed").expect("a replay after the classes");
        let (_, classes) = printed.split_once("[[").expect("a class");
        let file = format!("[gates.api]\nupstream = \"http://127.0.0.1:9\"\n[[{classes}");
        assert!(tidegate::config::load_text("pasted".to_owned(), file.clone(), &[]).is_ok(), "{file}");
    }
}

#[test]
fn the_curve_is_drawn_with_the_numbers_of_the_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("curve.svg");
    let ended = of(herds(""), &["--svg", &file.display().to_string()]);
    let bucket = ended.out.lines().find(|line| line.starts_with("bucket = ")).expect("it is there");
    let svg = fs::read_to_string(file).expect("it is written");
    for said in [
        bucket,
        "2,160 calls of gate api in 1 h 59 m, each counted as 1.25 (--headroom 25); none waits over 100 ms",
        ">rate in calls per second<",
    ] {
        assert!(svg.contains(said), "{said}\n{svg}");
    }
}

#[test]
fn from_too_little_nothing_is_recommended() {
    for (content, said) in [
        (
            herds("").lines().take(300).map(|line| format!("{line}\n")).collect(),
            "300 calls that take tokens, in 16 m 30 s;",
        ),
        (
            line(0, "") + &line(7_200_000, ""),
            "the log is too short to recommend limits from: 2 calls that take tokens, in 2 h;",
        ),
        (String::new(), "the log has no call: it is empty; expected the call log of a gate"),
        ("a: b\n".repeat(9), "9 lines cannot be read, the first at calls.jsonl:1: expected JSON"),
    ] {
        let ended = of(content, &[]);
        assert_eq!((ended.code, &*ended.out), (Some(1), ""));
        assert!(ended.err.contains(said), "{said}\n{}", ended.err);
    }
}

#[test]
fn from_a_log_that_a_limit_shaped_nothing_is_recommended() {
    let even = (0..400).map(|call| line(3_000_000 + call * 50 + call % 3, "")).collect::<String>();
    for (content, said) in [
        (
            herds(",\"waited_ns\":5,\"waited_for\":\"bucket\""),
            "2,160 of 2,160 calls met the gate's own limit (`bucket`)",
        ),
        (herds("").replacen("\"status\":200", "\"status\":429", 5), "5 of 2,160 calls met a 429 of the API"),
        (herds("") + &even, "calls met an even pace, as of a limit in the client"),
    ] {
        let ended = of(content, &[]);
        assert_eq!((ended.code, &*ended.out), (Some(1), ""));
        assert!(ended.err.contains(said), "{said}\n{}", ended.err);
    }
    let backoff = of(herds(",\"waited_ns\":5,\"waited_for\":\"backoff\""), &[]);
    assert_eq!(backoff.code, Some(0), "a failing key is not a limit: {}", backoff.err);
}

#[test]
fn broken_lines_are_counted_and_named() {
    let ended = of(herds("") + "{\"arrived_ns\":1", &[]);
    let said = "1 lines cannot be read: calls.jsonl:2161:";
    assert!(ended.code == Some(0) && ended.out.contains(said), "{}{}", ended.out, ended.err);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(herds("").as_bytes()).expect("in memory");
    let whole = gzip.finish().expect("in memory");
    let ended = of(&whole, &[]);
    assert!(ended.code == Some(0) && ended.out.contains("2,160 calls"), "{}{}", ended.out, ended.err);
    let cut = of(&whole[..whole.len() - 100], &[]);
    assert!(cut.code == Some(0) && cut.out.contains("1 lines cannot be read"), "{}{}", cut.out, cut.err);
}

#[test]
fn standard_input_is_read_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("calls.jsonl");
    fs::write(&path, herds("")).expect("it can be written");
    let mut command = tidegate(["recommend", "-"]);
    command.stdin(fs::File::open(&path).expect("it is there"));
    let ended = end(command);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    assert!(ended.out.contains("\nbucket = { rate = ") && !ended.out.contains("Replayed"), "{}", ended.out);
}

#[test]
fn gates_and_callers_are_chosen() {
    let two = herds("") + &line(0, "").replace("\"api\"", "\"github\"");
    let ended = of(&two, &["--caller", "operator"]);
    let said = ["2,160 calls of gate api", "1 lines are of other gates: github."];
    assert!(said.iter().all(|said| ended.out.contains(said)), "{}{}", ended.out, ended.err);
    let ended = of(&two, &["--gate", "github"]);
    assert!(ended.err.contains("1 calls that take tokens"), "{}", ended.err);
    let ended = of(&two, &["--gate", "api", "--caller", "bob"]);
    assert!(ended.code == Some(1) && ended.err.contains("no call of gate \"api\" of caller \"bob\""), "{}", ended.err);
}

#[test]
fn an_audit_log_is_read_as_its_calls() {
    let event = |minute: u64, user: &str, resource: &str, stage: &str| {
        let hour = 10 + minute / 60;
        let minute = minute % 60;
        let group = if resource == "leases" { "coordination.k8s.io" } else { "example.com" };
        format!(
            "{{\"kind\":\"Event\",\"apiVersion\":\"audit.k8s.io/v1\",\"stage\":\"{stage}\",\"verb\":\"update\",\
             \"user\":{{\"username\":\"{user}\"}},\"userAgent\":\"{user}/v1 (linux)\",\
             \"objectRef\":{{\"resource\":\"{resource}\",\"apiGroup\":\"{group}\",\"namespace\":\"n\",\"name\":\"a\"}},\
             \"responseStatus\":{{\"code\":200}},\"requestReceivedTimestamp\":\"2026-11-27T{hour}:{minute:02}:00.100000Z\",\
             \"stageTimestamp\":\"2026-11-27T{hour}:{minute:02}:00.200000Z\"}}\n"
        )
    };
    let log: String = (0..150)
        .flat_map(|minute| {
            [("operator", "widgets"), ("operator", "leases"), ("other", "widgets")].map(|(user, resource)| {
                event(minute, user, resource, "RequestReceived") + &event(minute, user, resource, "ResponseComplete")
            })
        })
        .collect();
    let ended = of(&log, &["--caller", "operator"]);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    for said in ["150 calls in 2 h 29 m; 150 more take no token", "150 calls are of other callers."] {
        assert!(ended.out.contains(said), "{said}\n{}", ended.out);
    }
}
