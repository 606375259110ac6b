//! Replaying logs that are written here line by line.

use std::time::Duration;

use tidegate::config;
use tidegate::simulate::replay::{LogSelection, RecordedLog, ReplayError, Replays, replay, report};
use tidegate::simulate::{Limits, Row};

/// The limits of a gate with this configuration.
pub(super) fn limits(name: &str, lines: &str) -> Limits {
    let text = format!("[gates.api]\nupstream = \"http://127.0.0.1:9\"\n{lines}");
    let loaded = config::load_text(name.to_owned(), text, &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
    let gate = loaded.settings.gates.into_values().next().expect("a gate");
    Limits { name: name.to_owned(), gate }
}

pub(super) fn replayed(log: &str, limits: &[Limits]) -> Result<Replays, ReplayError> {
    replayed_of(log, "api", limits)
}

/// The same for another gate of the log.
pub(super) fn replayed_of(log: &str, gate: &str, limits: &[Limits]) -> Result<Replays, ReplayError> {
    let recorded = RecordedLog { name: "calls.jsonl".to_owned(), input: Box::new(log.as_bytes()) };
    replay(vec![recorded], &LogSelection { gate: gate.to_owned(), caller: None }, limits)
}

/// A call that came at `at` ms, left at once, and was answered 10 ms later.
fn line(at: u64, more: &str) -> String {
    let (arrived, wall) = (at * 1_000_000, 1_700_000_000_000 + at);
    format!(
        "{{\"arrived_ns\":{arrived},\"wall_ms\":{wall},\"gate\":\"api\",\"class\":\"default\",\"lane\":\"normal\",\"flow\":\"01\",\
         \"verb\":\"update\",\"group\":\"apps\",\"resource\":\"deployments\",\"namespace\":\"prod\",{more}}}\n"
    )
}

fn answered(at: u64, key: u64, status: u16) -> String {
    let sent = at * 1_000_000;
    line(
        at,
        &format!(
            "\"key\":\"{key:016x}\",\"collection\":\"0c\",\"facet\":\"0f\",\"sent_ns\":{sent},\"upstream_ns\":10000000,\"status\":{status}"
        ),
    )
}

fn row<'a>(replays: &'a Replays, limits: &str, class: &str) -> &'a Row {
    let one = replays.replayed.iter().find(|one| one.limits == limits).expect("these limits");
    one.rows.iter().find(|row| row.name == class).unwrap_or_else(|| panic!("no {class} in {:?}", one.rows))
}

#[test]
fn a_slower_bucket_adds_the_wait_that_it_must() {
    let log: String = (0..100).map(|n| answered(0, n, 200)).collect();
    let wide = limits("wide", "preset = \"none\"\n");
    let narrow = limits("narrow", "preset = \"none\"\nbucket = { rate = 20, burst = 20 }\n");
    let replays = replayed(&log, &[wide, narrow]).expect("it can be replayed");
    for free in ["recorded", "wide"] {
        assert_eq!(
            (row(&replays, free, "default").sent, row(&replays, free, "default").waits.max),
            (100, Duration::ZERO)
        );
    }
    let slow = row(&replays, "narrow", "default");
    assert_eq!((slow.sent, slow.waits.max), (100, Duration::from_secs(4)), "80 of 100 wait for a token each 50 ms");
}

#[test]
fn a_failing_key_is_refused_by_the_candidates_backoff() {
    // Five tries of one object 200 ms apart, all failing, and one of another.
    let log: String = (0..5).map(|n| answered(n * 200, 7, 503)).chain([answered(900, 8, 200)]).collect();
    let strict = limits(
        "strict",
        "preset = \"none\"\nbackoff = { strategy = \"exponential\", base = \"30s\", max = \"60s\" }\n",
    );
    let deaf = limits("deaf", "preset = \"none\"\n");
    let replays = replayed(&log, &[strict, deaf]).expect("it can be replayed");
    let strict = row(&replays, "strict", "default");
    let refused: Vec<_> = strict.refusals_by_reason().map(|(reason, count)| (reason.word(), count)).collect();
    assert_eq!((strict.sent, &refused[..]), (2, &[("backoff", 4)][..]));
    assert_eq!(row(&replays, "deaf", "default").refusals(), 0);
}

#[test]
fn the_upstreams_own_retry_after_is_kept() {
    let throttled = answered(0, 7, 429).replace("\"status\"", "\"retry_after_ns\":5000000000,\"status\"");
    let log = format!("{throttled}{}{}", answered(4000, 7, 200), answered(6000, 7, 200));
    let quick =
        limits("quick", "preset = \"none\"\nbackoff = { strategy = \"exponential\", base = \"1ms\", max = \"1ms\" }\n");
    let replays = replayed(&log, &[quick]).expect("it can be replayed");
    assert_eq!((row(&replays, "quick", "default").sent, row(&replays, "quick", "default").refusals()), (2, 1));
}

#[test]
fn a_call_is_put_into_the_class_that_the_candidate_has_for_it() {
    let log: String = (0..10).map(|n| answered(n, n, 200)).collect();
    let lines = "[[gates.api.classes]]\nname = \"deployments\"\nmatch = { groups = [\"apps\"], namespaces = [\"prod\"] }\n\
                 bucket = { rate = 1, burst = 1 }\n";
    let replays = replayed(&log, &[limits("classes", lines)]).expect("it can be replayed");
    assert_eq!(row(&replays, "recorded", "default").arrived, 10);
    let own = row(&replays, "classes", "deployments");
    assert_eq!((own.arrived, own.sent, own.waits.max), (10, 9, Duration::from_millis(8000 - 8)));
}

#[test]
fn clients_that_give_up_leave_and_calls_that_were_refused_may_now_go() {
    let gone = line(0, "\"gave_up_ns\":100000000");
    let refused = line(1, "\"refused\":\"bucket\",\"status\":429");
    let log = format!("{}{gone}{refused}", answered(0, 1, 200));
    let narrow = limits("narrow", "preset = \"none\"\nbucket = { rate = 1, burst = 1 }\n");
    let wide = limits("wide", "preset = \"none\"\n");
    let replays = replayed(&log, &[narrow, wide]).expect("it can be replayed");
    // The call that gave up gave its place back: the last one waits for one token, not for two.
    assert_eq!(
        (row(&replays, "narrow", "default").sent, row(&replays, "narrow", "default").waits.max),
        (2, Duration::from_millis(999))
    );
    assert_eq!(row(&replays, "wide", "default").sent, 3);
    assert_eq!(row(&replays, "recorded", "default").refusals(), 1);
}

#[test]
fn slots_are_held_until_bodies_end() {
    let slow = |at| answered(at, at, 200).replace("\"status\"", "\"body_ns\":990000000,\"status\"");
    let log = format!("{}{}{}", slow(0), slow(1), slow(2));
    let one = limits("one", "preset = \"none\"\nin_flight = { max = 1 }\n");
    let replays = replayed(&log, &[one]).expect("it can be replayed");
    assert_eq!(row(&replays, "one", "default").waits.max, Duration::from_millis(1998));
}

#[test]
fn a_candidate_that_makes_leases_wait_shows_the_risk() {
    let renewals = (0..30_u64).map(|n| {
        answered(n * 2000 + 1, 99, 200)
            .replace("\"default\"", "\"leases\"")
            .replace("\"apps\"", "\"coordination.k8s.io\"")
            .replace("\"deployments\"", "\"leases\"")
    });
    let flood = (0..3000).map(|n| answered(0, n, 200));
    let log: String = flood.chain(renewals).collect();
    let bucket = "preset = \"none\"\nbucket = { rate = 20, burst = 20 }\n[gates.api.queue]\nmax_wait = \"1000s\"\n";
    let slow = format!(
        "{bucket}[[gates.api.classes]]\nname = \"leases\"\nlane = \"normal\"\nbucket = {{ rate = 0.05, burst = 1 }}\n"
    );
    let replays = replayed(&log, &[limits("exempt", bucket), limits("slow", &slow)]).expect("it can be replayed");
    let [recorded, exempt, slow] = &replays.replayed[..] else { panic!("three columns") };
    for safe in [recorded, exempt] {
        assert_eq!((safe.holders, safe.leases.renewals, safe.leases.lost), (1, 29, 0));
        assert_eq!(safe.leases.longest, Duration::from_secs(2));
    }
    let waits = row(&replays, "slow", "leases").waits.max;
    assert!(waits > Duration::from_secs(10), "{waits:?}");
    assert_eq!((slow.leases.longest, slow.leases.lost), (Duration::from_secs(20), 29));
}

#[test]
fn what_cannot_be_read_or_is_not_meant_is_counted_and_named() {
    let other = answered(3, 1, 200).replace("\"gate\":\"api\"", "\"gate\":\"github\"");
    let log = format!("{}not a line\n{other}{}", answered(0, 1, 200), answered(5, 1, 200).trim_end_matches("200}\n"));
    let replays = replayed(&log, &[limits("none", "preset = \"none\"\n")]).expect("one call is enough");
    let remarks = report::remarks(&replays.read).join("\n");
    for said in [
        "1 lines are of other gates: github",
        "2 lines cannot be read",
        "calls.jsonl:2:",
        "calls.jsonl:4:",
        "(the file ends here)",
    ] {
        assert!(remarks.contains(said), "no {said:?} in {remarks}");
    }
    let nothing = replayed(&other, &[limits("none", "preset = \"none\"\n")]).expect_err("no call of this gate");
    assert!(nothing.to_string().contains("only of github"), "{nothing}");
}

#[test]
fn the_table_fits_eighty_columns_with_three_of_them() {
    let log: String = (0..200).map(|n| answered(0, n, 200)).collect();
    let both = [
        limits("a-rather-long-name-of-a-file.toml", "preset = \"none\"\n"),
        limits("candidate", "bucket = { rate = 1, burst = 1 }\n"),
    ];
    let table = report::table(&replayed(&log, &both).expect("it can be replayed"));
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    for word in ["recorded", "wait p99", "refused", "bucket"] {
        assert!(table.contains(word), "no {word} in\n{table}");
    }
}
