//! Many streams at a time: watches, GOAWAYs, and readers that do not read.

use std::time::Duration;

use http_body_util::BodyExt;

use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::gate::{Gate, Way};
use crate::support::programs::{Line, Program};
use crate::support::{block_on, large, now, quantile, say, turn};

const LIMIT: Duration = Duration::from_secs(180);

#[test]
fn a_thousand_watches_block_neither_a_read_nor_a_lease() {
    let Some(plane) = ControlPlane::shared("a_thousand_watches_block_neither_a_read_nor_a_lease") else { return };
    let _turn = turn::alone();
    plane.namespace("watched");
    let gate = Gate::start(plane, "");
    let user = plane.master();
    let args = ["watches", "-namespace", "watched", "-count", "1000"];
    let watches = Program::start(plane, Way::Gate(&gate), &user, &args);
    let probes = watches.wait_events("probe", 3, LIMIT);
    let opened = watches.events("open")[0].took();
    assert!(watches.events("refused").is_empty(), "{:?}", watches.events("refused").first());
    let seen = plane.audit().of(&user.name).only(|event| event.verb == "watch" && event.code == 200).len();
    assert_eq!(seen, 1_000);
    let times: Vec<String> = probes.iter().map(|line| format!("{} {:.1?}", line.text("call"), line.took())).collect();
    say(format_args!(
        "streams: 1,000 watches open in {opened:.1?}; then {}; the gate holds {} MiB",
        times.join(", "),
        gate.resident_kib() / 1024
    ));
    for line in &probes {
        assert_eq!(line.text("error"), "", "{}", line.text("call"));
        assert!(line.took() < Duration::from_secs(1), "{} took {:?}", line.text("call"), line.took());
    }
    // An event still reaches its watch among the thousand.
    plane.kubectl(&["create", "configmap", "watched-777", "-n", "watched"]);
    watches.wait_events("seen", 1, Duration::from_secs(5));
    assert!(watches.events("interrupted").is_empty());
}

#[test]
fn a_server_that_says_goaway_costs_no_client_an_error() {
    let _turn = turn::alone();
    let flags = vec!["--goaway-chance=0.02".to_owned()];
    let options = Options { flags, ..Options::default() };
    let Some(plane) = ControlPlane::own("a_server_that_says_goaway_costs_no_client_an_error", options) else { return };
    let direct = herd(&plane, Way::Direct(&plane), "direct");
    let gate = Gate::start(&plane, "preset = \"none\"");
    let through = herd(&plane, Way::Gate(&gate), "through");
    say(format_args!(
        "streams: goaway-chance 0.02, 10,000 calls, 200 at a time: directly {direct}; through the gate {through}"
    ));
    assert!(through.errors <= direct.errors, "the gate added errors: {:?}", through.first);
    assert_eq!(through.applied, through.puts, "each PUT is applied once");
}

struct Herded {
    took: Duration,
    gets: u64,
    puts: u64,
    errors: u64,
    /// PUTs that were applied, according to the audit log.
    applied: u64,
    first: Option<Line>,
}

impl std::fmt::Display for Herded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { took, gets, puts, errors, applied, .. } = self;
        write!(f, "{took:.1?}, {gets} GETs, {puts} PUTs ({applied} applied), {errors} errors")
    }
}

fn herd(plane: &ControlPlane, way: Way<'_>, namespace: &str) -> Herded {
    plane.namespace(namespace);
    let user = plane.master();
    let args = ["herd", "-namespace", namespace, "-count", "10000", "-concurrency", "200"];
    let program = Program::start(plane, way, &user, &args);
    let lines = program.finish(LIMIT);
    assert!(program.events("miscounted").is_empty(), "{:?}", program.events("miscounted").first());
    let done = lines.last().expect("it reports when it is done");
    let applied = plane.audit().of(&user.name).only(|event| event.verb == "update" && event.code == 200).len();
    Herded {
        took: done.took(),
        gets: done.number("gets"),
        puts: done.number("puts"),
        errors: done.number("errors"),
        applied: u64::try_from(applied).expect("some thousands"),
        first: program.events("failed").into_iter().next(),
    }
}

#[test]
fn ten_readers_stalled_in_large_lists_slow_nobody() {
    let Some(plane) = ControlPlane::shared("ten_readers_stalled_in_large_lists_slow_nobody") else { return };
    let _turn = turn::alone();
    large::fill(plane, "large");
    let gate = Gate::start(plane, "preset = \"none\"");
    let user = plane.master();
    block_on(async {
        let way = Way::Gate(&gate);
        let mut shared = Connection::open(way, &user, Protocol::Http2).await;
        let mut other = Connection::open(way, &user, Protocol::Http2).await;
        let before = times(&mut shared).await;
        let mut connections = Vec::new();
        let mut stalled = Vec::new();
        for _ in 0..5 {
            let mut own = Connection::open(way, &user, Protocol::Http1).await;
            stalled.push(large::stall(&mut own, "large").await);
            connections.push(own);
            stalled.push(large::stall(&mut shared, "large").await);
        }
        let beside = times(&mut shared).await;
        let elsewhere = times(&mut other).await;
        let show = |samples: &[Duration]| {
            format!("{:.1?} (p50) {:.1?} (p99)", quantile(samples, 0.5), quantile(samples, 0.99))
        };
        say(format_args!(
            "streams: a GET takes {} before, {} on the connection of five stalled readers, {} on another; the gate holds {} MiB",
            show(&before),
            show(&beside),
            show(&elsewhere),
            gate.resident_kib() / 1024
        ));
        let most = (quantile(&before, 0.5) * 2).max(Duration::from_millis(20));
        assert!(quantile(&beside, 0.5) <= most && quantile(&elsewhere, 0.5) <= most, "more than {most:?}");
        // They were only slow: each gets its whole list in the end.
        for body in stalled {
            let bytes = body.collect().await.expect("the rest of the list").to_bytes();
            assert!(bytes.ends_with(b"}\n") && bytes.len() > large::LIST_BYTES, "{} bytes", bytes.len());
        }
    });
}

async fn times(connection: &mut Connection) -> Vec<Duration> {
    let mut samples = Vec::new();
    for _ in 0..200 {
        let begin = now();
        connection.get("/api/v1/namespaces/default").await;
        samples.push(begin.elapsed());
    }
    samples
}
