//! An API server that goes away and comes back.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::audit::{Audit, Event};
use crate::support::control_plane::{ControlPlane, Options, User};
use crate::support::gate::{Gate, Way};
use crate::support::programs::Program;
use crate::support::{pause, say, turn, wait_for};

const INFORMERS: usize = 300;
const OUTAGE: Duration = Duration::from_secs(4);

/// A reflector that has failed a few times may rest half a minute.
const BACK: Duration = Duration::from_secs(90);

#[test]
fn informers_resume_after_an_outage_without_listing_again() {
    let test = "informers_resume_after_an_outage_without_listing_again";
    let Some(plane) = ControlPlane::own(test, Options::default()) else { return };
    let _turn = turn::alone();
    let direct = restart_under_informers(&plane, Way::Direct(&plane), "direct");
    let gate = Gate::start(&plane, "");
    let through = restart_under_informers(&plane, Way::Gate(&gate), "through");
    say(format_args!(
        "outage: {INFORMERS} informers over a restart: {} lists and all watching after {:.1?} directly, {} lists and {:.1?} through the gate",
        direct.lists, direct.back, through.lists, through.back
    ));
    assert!(through.lists <= direct.lists, "{} lists, {} without the gate", through.lists, direct.lists);
    wait_for("no key backs off any more", Duration::from_secs(15), || (gate.failing_keys() == 0.0).then_some(()));
}

struct Restart {
    lists: usize,
    /// From the server's return to the last watch.
    back: Duration,
}

fn restart_under_informers(plane: &ControlPlane, way: Way<'_>, namespace: &str) -> Restart {
    plane.namespace(namespace);
    let user = plane.master();
    let args = ["informers", "-namespace", namespace, "-count", "300"];
    let informers = Program::start(plane, way, &user, &args);
    informers.wait_events("synced", 1, BACK);
    wait_for("every informer watches", BACK, || (watched(&plane.audit().of(&user.name)) == INFORMERS).then_some(()));
    plane.kill_api();
    let gone = last_arrival(plane, &user);
    pause(OUTAGE);
    plane.start_api();
    let since = || plane.audit().of(&user.name).only(|event| event.received > gone);
    let back =
        wait_for("every informer watches again", BACK, || Some(since()).filter(|events| watched(events) == INFORMERS));
    // Every one of them sees what happens next.
    for number in [0, 150, 299] {
        plane.kubectl(&["create", "configmap", &format!("informed-{number}"), "-n", namespace]);
    }
    informers.wait_events("seen", 3, Duration::from_secs(10));
    let arrivals = back.arrivals();
    Restart { lists: since().only(is_list).len(), back: arrivals[arrivals.len() - 1].saturating_sub(arrivals[0]) }
}

fn last_arrival(plane: &ControlPlane, user: &User) -> Duration {
    plane.audit().of(&user.name).0.last().expect("it has called").received
}

/// A plain list, or a watch that begins with one.
fn is_list(event: &Event) -> bool {
    event.resource == "configmaps" && (event.verb == "list" || event.uri.contains("sendInitialEvents=true"))
}

/// How many different watches have begun.
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
