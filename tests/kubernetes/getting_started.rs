//! Follows docs/getting-started.md, and asks the API server's audit log if what the page says of the
//! rate is so.

use std::time::Duration;

use crate::follow::follow;
use crate::pages::{harness, page_folder};

use crate::support::audit::{Audit, worst_excess};
use crate::support::cluster::Cluster;
use crate::support::{now, say, turn};

const PAGE: &str = include_str!("../../docs/getting-started.md");

/// The limits that the page sets, and how much later than the gate the audit log may see a call.
const RATE: f64 = 5.0;
const BURST: f64 = 10.0;
const SLACK: Duration = Duration::from_millis(200);

#[test]
fn whoever_follows_the_page_gets_an_operator_behind_a_gate() {
    let Some(cluster) = Cluster::shared("whoever_follows_the_page_gets_an_operator_behind_a_gate") else { return };
    let _turn = turn::light();
    let plane = &cluster.plane;
    let folder = page_folder(plane);
    let begin = now();
    let told = follow(PAGE, folder.path(), &[("KUBECONFIG", harness(plane))]);
    if std::env::var_os("TIDEGATE_SHOW_STEPS").is_some() {
        say(format!("\n{told}"));
    }
    let took = begin.elapsed();

    // The API server's own log confirms what the page says about the rate: free at first, held by
    // the gate, free again.
    let writes = plane
        .audit()
        .of("system:serviceaccount:getting-started:operator")
        .only(|event| event.resource == "widgets" && event.is_metered());
    let started = cluster.wait_container("up", "getting-started", "tidegate").at;
    let ended = cluster.wait_container("asked to stop", "getting-started", "tidegate").at;
    let (from, to) = (Duration::from_micros(started), Duration::from_micros(ended));
    let held = writes.only(|event| event.received >= from && event.received <= to);
    let free = writes.only(|event| event.received < from);
    let excess = |calls: &Audit| worst_excess(&calls.arrivals(), RATE, BURST, SLACK);
    assert!(excess(&free) > 0.0, "{} calls before the gate, and none too many for it: nothing was shown", free.len());
    assert!(held.len() > 10 && excess(&held) <= 0.0, "{} calls, {:.1} of them too many", held.len(), excess(&held));
    say(format!(
        "getting started: the whole page in {:.0} s; {} calls without the gate ({:.0} more than its limits allow), {} with it (none more)",
        took.as_secs_f64(),
        free.len(),
        excess(&free),
        held.len()
    ));
}
