//! An API server that goes away and comes back.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::audit::{Audit, Event};
use crate::support::control_plane::{ControlPlane, Options, User};
use crate::support::gate::{Gate, Way};
use crate::support::programs::Program;
use crate::support::{pause, say, turn, wait_for};

const INFORMERS: usize = 300;
const OUTAGE: Duration = Duration::from_secs(3);

/// A reflector lists again after a watch that ended within a second, for any reason.
const LONG_ENOUGH: Duration = Duration::from_secs(2);

/// A reflector that has failed a few times may wait half a minute.
const BACK: Duration = Duration::from_secs(90);

/// This many watches may have been about to end anyway.
const BY_CHANCE: usize = INFORMERS / 100;

/// Reads of collections back off at most 5 s.
const FORGOTTEN: Duration = Duration::from_secs(15);

#[test]
fn informers_come_through_an_outage_with_no_more_lists_than_without_the_gate() {
    let test = "informers_come_through_an_outage_with_no_more_lists_than_without_the_gate";
    let _turn = turn::alone();
    let Some(plane) = ControlPlane::own(test, Options { relay: true, ..Options::default() }) else { return };
    let gate = Gate::start(&plane, "");
    for (kind, outage) in [("restart", restart as fn(&ControlPlane)), ("cut", cut as fn(&ControlPlane))] {
        let direct = outage_under_informers(&plane, Way::Direct(&plane), &format!("{kind}-direct"), outage);
        let through = outage_under_informers(&plane, Way::Gate(&gate), &format!("{kind}-through"), outage);
        say(format_args!(
            "outage: {INFORMERS} informers, {kind}: directly {} lists and all watch within {:.1?}, through the gate {} and {:.1?}",
            direct.lists, direct.back, through.lists, through.back
        ));
        assert!(
            through.lists <= direct.lists + BY_CHANCE,
            "{kind}: {} lists, {} without the gate",
            through.lists,
            direct.lists
        );
        wait_for("no key backs off any more", FORGOTTEN, || (gate.failing_keys() == 0.0).then_some(()));
    }
}

/// The server crashes and comes back with the same data: its watch cache is new.
fn restart(plane: &ControlPlane) {
    plane.kill_api();
    pause(OUTAGE);
    plane.start_api();
}

/// Only the connection to the server is lost: a watch can go on where it was.
fn cut(plane: &ControlPlane) {
    plane.relay().cut();
    pause(OUTAGE);
    plane.relay().restore();
}

struct Recovery {
    lists: usize,
    /// The time from the first call after the outage to the last watch.
    back: Duration,
}

fn outage_under_informers(plane: &ControlPlane, way: Way<'_>, namespace: &str, outage: fn(&ControlPlane)) -> Recovery {
    plane.namespace(namespace);
    let user = plane.master();
    let args = ["informers", "-namespace", namespace, "-count", "300"];
    let informers = Program::start(plane, way, &user, &args);
    informers.wait_events("synced", 1, BACK);
    wait_for("every informer watches", BACK, || (watched(&plane.audit().of(&user.name)) == INFORMERS).then_some(()));
    pause(LONG_ENOUGH);
    let gone = last_arrival(plane, &user);
    outage(plane);
    let since = || plane.audit().of(&user.name).only(|event| event.received > gone);
    let back =
        wait_for("every informer watches again", BACK, || Some(since()).filter(|events| watched(events) == INFORMERS));
    // Each of them sees the next event.
    for number in [0, 150, 299] {
        plane.kubectl(&["create", "configmap", &format!("informed-{number}"), "-n", namespace]);
    }
    informers.wait_events("seen", 3, Duration::from_secs(10));
    let arrivals = back.arrivals();
    Recovery { lists: since().only(is_list).len(), back: arrivals[arrivals.len() - 1].saturating_sub(arrivals[0]) }
}

fn last_arrival(plane: &ControlPlane, user: &User) -> Duration {
    plane.audit().of(&user.name).0.last().expect("it has called").received
}

/// A plain list, or a watch that begins with one.
fn is_list(event: &Event) -> bool {
    event.resource == "configmaps" && (event.verb == "list" || event.uri.contains("sendInitialEvents=true"))
}

/// The number of different watches that have begun.
fn watched(events: &Audit) -> usize {
    let selector = |event: &Event| {
        event.uri.split('&').chain(event.uri.split('?')).find(|part| part.contains("informed-")).map(str::to_owned)
    };
    let begun = events.0.iter().filter(|event| event.verb == "watch" && event.code == 200);
    begun
        .filter_map(selector)
        .map(|part| part.rsplit("informed-").next().unwrap_or_default().to_owned())
        .collect::<HashSet<_>>()
        .len()
}
