//! The control plane fails: the API server dies and comes back under a controller with a lease, 200
//! watches and writes, and etcd stalls. The losses are compared with those of a direct connection
//! in the same test.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use http::Method;

use crate::support::audit::{Audit, Event, worst_excess};
use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::{ControlPlane, Options, User};
use crate::support::gate::{Gate, Way};
use crate::support::programs::Program;
use crate::support::{block_on, now, pause, say, turn, wait_for, widgets};

const WATCHES: usize = 200;
const OBJECTS: usize = 120;

/// A rate at which the test's writes are still going on when the server dies.
const SETTINGS: &str = "preset = \"none\"\n[gates.kubernetes.bucket]\nrate = 20.0\nburst = 30\n[gates.kubernetes.queue]\nmax_wait = \"30s\"\n\
                        [gates.kubernetes.backoff]\nstrategy = \"exponential\"\nbase = \"100ms\"\nmax = \"5s\"\n";

/// The time that a late driver may make up for, by the gate's own clock.
const LATENESS: Duration = Duration::from_millis(2);

/// The lease is given up after 10 s without renewal. It is renewed every 2 s, plus a random time.
const SURELY_KEPT: Duration = Duration::from_secs(7);

/// A reflector waits 0.8 s or more between two watches.
const SURELY_RESTED: Duration = Duration::from_millis(500);

/// A reflector that has failed a few times may wait half a minute.
const BACK: Duration = Duration::from_secs(120);

#[test]
fn an_api_server_killed_under_a_leader_watches_and_writes_costs_no_more_than_directly() {
    let test = "an_api_server_killed_under_a_leader_watches_and_writes_costs_no_more_than_directly";
    let _turn = turn::alone();
    let Some(plane) = ControlPlane::own(test, Options::default()) else { return };
    widgets::install(&plane);
    let gate = Gate::start(&plane, SETTINGS);
    // Both at once, so that both meet the same outage.
    let both = [(Way::Direct(&plane), "killed-direct"), (Way::Gate(&gate), "killed-through")]
        .map(|(way, namespace)| Crew::start(&plane, way, namespace));
    for crew in &both {
        widgets::set(&plane, crew.namespace, &widgets::names("widget", OBJECTS), 1);
    }
    wait_for("a third is written", BACK, || both.iter().all(|crew| crew.written(&plane) > OBJECTS / 3).then_some(()));
    let gone = plane.audit().0.last().expect("they have called").received;
    let begun = now();
    plane.kill_api();
    plane.start_api();
    let outage = begun.elapsed();
    let [direct, through] = both.each_ref().map(|crew| crew.recovered(&plane, gone));
    let left = gate.metered_departures(OBJECTS / 3);
    let excess = worst_excess(&left, 20.0, 30.0, LATENESS);
    say(format_args!("killed: {outage:.1?} of outage; directly {direct}"));
    say(format_args!("killed: through the gate {through}; {} metered calls, fullest window {excess:+.2}", left.len()));
    assert!(excess <= 1e-6, "{excess:.2} calls too many left in one window");
    assert!(through.kept || outage > SURELY_KEPT, "the lease was lost in an outage of {outage:?}");
    // Each reflector waits for its own random time, directly too. It is chance how many fall into
    // one second, and which of them meet a server that has only begun to listen. But each waits,
    // and none comes again and again.
    let allowed = direct.watches + 2 * WATCHES;
    assert!(through.watches <= allowed, "{} watches were opened, directly {}", through.watches, direct.watches);
    let least = direct.closest.min(SURELY_RESTED);
    assert!(
        through.closest >= least,
        "one watch came twice in {:.1?}, directly in {:.1?}",
        through.closest,
        direct.closest
    );
    assert!(through.lists <= direct.lists + WATCHES / 100, "{} lists, directly {}", through.lists, direct.lists);
    wait_for("no key backs off any more", Duration::from_secs(30), || (gate.failing_keys() == 0.0).then_some(()));
}

/// The clients of one API server in one way: informers, and a controller that leads.
struct Crew {
    namespace: &'static str,
    watcher: User,
    informers: Program,
    manager: Program,
}

struct Recovered {
    /// True if the manager led before and after.
    kept: bool,
    /// The time from the first call after the kill until every watch was back.
    back: Duration,
    /// The watches opened until then, those in the fullest second, and the shortest time between
    /// two openings of the same watch.
    watches: usize,
    densest: usize,
    closest: Duration,
    lists: usize,
    written: usize,
}

impl std::fmt::Display for Recovered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kept, back, watches, densest, closest, lists, written } = self;
        let rested = if *closest == Duration::MAX {
            "none twice".to_owned()
        } else {
            format!("none again within {closest:.1?}")
        };
        let kept = if *kept { "kept" } else { "lost" };
        write!(
            f,
            "the lease was {kept}, {WATCHES} watches were back within {back:.1?} ({watches} opened, at most {densest} in a second, {rested}; \
             {lists} lists), {written} of {OBJECTS} objects converged"
        )
    }
}

impl Crew {
    fn start(plane: &ControlPlane, way: Way<'_>, namespace: &'static str) -> Self {
        plane.namespace(namespace);
        let (watcher, writer) = (plane.master(), plane.master());
        let count = WATCHES.to_string();
        let informers = Program::start(plane, way, &watcher, &["informers", "-namespace", namespace, "-count", &count]);
        informers.wait_events("synced", 1, BACK);
        wait_for("every informer watches", BACK, || {
            (watches(&plane.audit().of(&watcher.name)) >= WATCHES).then_some(())
        });
        let manager = Program::start(plane, way, &writer, &["manage", "-namespace", namespace]);
        manager.wait_events("leading", 1, Duration::from_secs(60));
        Self { namespace, watcher, informers, manager }
    }

    /// The number of writes, read from the API server: the controller does not know about a write
    /// that was carried out and whose answer was lost.
    fn written(&self, plane: &ControlPlane) -> usize {
        let observed = "jsonpath={range .items[*]}{.status.observed}{\"\\n\"}{end}";
        let written = plane.kubectl(&["get", "widgets", "-n", self.namespace, "-o", observed]);
        written.lines().filter(|line| *line == "1").count()
    }

    fn leads(&self) -> bool {
        self.manager.events("stopped").is_empty()
    }

    /// Waits until everything is as before. A manager that lost its lease ends, as it does without
    /// the gate.
    fn recovered(&self, plane: &ControlPlane, gone: Duration) -> Recovered {
        let since = || plane.audit().of(&self.watcher.name).only(|event| event.received > gone);
        let events = wait_for("every informer watches again", BACK, || {
            self.informers.process.must_run();
            Some(since()).filter(|events| distinct_watches(events) >= WATCHES)
        });
        wait_for("the controller has caught up, or ended", BACK, || {
            (!self.leads() || self.written(plane) == OBJECTS).then_some(())
        });
        let calls = events.arrivals();
        let watches = events.only(|event| event.verb == "watch");
        let arrivals = watches.arrivals();
        Recovered {
            kept: self.leads(),
            back: calls[calls.len() - 1].saturating_sub(calls[0]),
            watches: arrivals.len(),
            densest: densest(&arrivals),
            closest: closest(&watches),
            lists: events.only(|event| event.verb == "list").len(),
            written: self.written(plane),
        }
    }
}

/// Half of the time that a leader has to renew its lease.
const CUT: Duration = Duration::from_secs(5);

#[test]
fn a_leader_keeps_its_lease_through_an_outage_that_is_shorter_than_the_lease_allows() {
    let test = "a_leader_keeps_its_lease_through_an_outage_that_is_shorter_than_the_lease_allows";
    let _turn = turn::alone();
    let Some(plane) = ControlPlane::own(test, Options { relay: true, ..Options::default() }) else { return };
    plane.namespace("cut");
    let gate = Gate::start(&plane, SETTINGS);
    let leaders = [("direct", Way::Direct(&plane)), ("through", Way::Gate(&gate))].map(|(name, way)| {
        let args = ["leader", "-namespace", "cut", "-retry", "500ms", "-name", name];
        Program::start(&plane, way, &plane.master(), &args)
    });
    for leader in &leaders {
        leader.wait_events("leading", 1, Duration::from_secs(60));
    }
    plane.relay().cut();
    pause(CUT);
    plane.relay().restore();
    let failed = leaders.each_ref().map(|leader| {
        let restored = leader.events("lease").len();
        wait_for("it renews again", Duration::from_secs(30), || {
            leader.events("lease")[restored..].iter().any(|line| line.number("code") == 200).then_some(())
        });
        leader.events("lease").iter().filter(|line| line.number("code") != 200).count()
    });
    say(format_args!("cut: for {CUT:.0?}; {} renewals failed directly, {} through the gate", failed[0], failed[1]));
    for (leader, way) in leaders.iter().zip(["directly", "through the gate"]) {
        assert!(leader.events("stopped").is_empty(), "the lease was lost {way}");
        assert_eq!(leader.events("leading").len(), 1, "{way}");
    }
}

/// The most arrivals in any one second.
fn densest(arrivals: &[Duration]) -> usize {
    let from =
        |begin: Duration| arrivals.iter().filter(|at| (begin..begin + Duration::from_secs(1)).contains(*at)).count();
    arrivals.iter().map(|begin| from(*begin)).max().unwrap_or_default()
}

/// Returns the number of watches that began.
fn watches(audit: &Audit) -> usize {
    audit.only(|event| event.verb == "watch" && event.code == 200).len()
}

/// Returns the number of different watches that began.
fn distinct_watches(audit: &Audit) -> usize {
    let begun = audit.only(|event| event.verb == "watch" && event.code == 200);
    begun.0.iter().filter_map(watched).collect::<HashSet<_>>().len()
}

/// Returns the shortest time between two watches of the same object.
fn closest(audit: &Audit) -> Duration {
    let mut last = HashMap::new();
    let gaps = audit.0.iter().filter_map(|event| Some(event.received - last.insert(watched(event)?, event.received)?));
    gaps.min().unwrap_or(Duration::MAX)
}

/// The one object that a watch of these informers selects.
fn watched(event: &Event) -> Option<&str> {
    let rest = event.uri.split("informed-").nth(1)?;
    rest.split('&').next()
}

/// Shorter than the lease allows, longer than a lease call waits.
const STALL: Duration = Duration::from_secs(6);

#[test]
fn an_etcd_that_stalls_costs_through_the_gate_what_it_costs_directly() {
    let test = "an_etcd_that_stalls_costs_through_the_gate_what_it_costs_directly";
    let _turn = turn::alone();
    let Some(plane) = ControlPlane::own(test, Options::default()) else { return };
    plane.namespace("stalled");
    let gate = Gate::start(&plane, SETTINGS);
    let ways = [("directly", Way::Direct(&plane)), ("through the gate", Way::Gate(&gate))];
    let programs = ways.map(|(_, way)| {
        let user = plane.master();
        let name = if matches!(way, Way::Gate(_)) { "through" } else { "direct" };
        let leader = ["leader", "-namespace", "stalled", "-retry", "500ms", "-name", name];
        let leader = Program::start(&plane, way, &user, &leader);
        let watches = Program::start(&plane, way, &user, &["watches", "-namespace", "stalled", "-count", "50"]);
        (leader, watches)
    });
    for (leader, watches) in &programs {
        leader.wait_events("leading", 1, Duration::from_secs(60));
        watches.wait_events("probe", 3, Duration::from_secs(60));
    }
    let before = programs.each_ref().map(|(leader, _)| leader.events("lease").len());
    plane.stall_etcd();
    pause(STALL);
    plane.resume_etcd();
    // Calls in flight have had an answer by the time that both have renewed again; a write then
    // goes through at once.
    for ((leader, _), before) in programs.iter().zip(before) {
        wait_for("it renews again", Duration::from_secs(30), || {
            let since = leader.events("lease").split_off(before);
            let failed = since.iter().rposition(|line| line.number("code") != 200);
            (since.len() > failed.map_or(0, |at| at + 3)).then_some(())
        });
    }
    let begun = now();
    let user = plane.master();
    let status = block_on(async {
        let mut connection = Connection::open(Way::Gate(&gate), &user, Protocol::Http2).await;
        let map = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"afterwards"}}"#;
        connection.call(Method::POST, "/api/v1/namespaces/stalled/configmaps", map).await.0
    });
    assert_eq!(status, 201);
    let wrote = begun.elapsed();
    let [direct, through] = programs.each_ref().map(|(leader, watches)| {
        let failed = leader.events("lease").iter().filter(|line| line.number("code") != 200).count();
        (leader.events("stopped").is_empty(), failed, watches.events("interrupted").len())
    });
    for ((name, _), (kept, failed, interrupted)) in ways.iter().zip([direct, through]) {
        let kept = if kept { "kept" } else { "lost" };
        say(format_args!(
            "stalled: etcd for {STALL:.0?}, {name}: the lease was {kept} ({failed} renewals failed), {interrupted} of 50 watches interrupted"
        ));
    }
    say(format_args!("stalled: afterwards a write through the gate took {wrote:.1?}"));
    assert!(through.0 || !direct.0, "the lease was lost, and directly kept");
    assert!(through.2 <= direct.2, "{} watches were interrupted, directly {}", through.2, direct.2);
    wait_for("no key backs off any more", Duration::from_secs(30), || (gate.failing_keys() == 0.0).then_some(()));
}
