//! Repeated `helm upgrade --install` of a release whose writes fail. Each run is a new process, so
//! that only the gate can remember the failures.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use serde_json::json;

use crate::get_or_create::{Wanted, assert_spaced, wait_until_it_fails};
use crate::helm::Helm;
use crate::support::control_plane::ControlPlane;
use crate::support::gate::{Gate, Way};
use crate::support::process::scratch_dir;
use crate::support::webhook::Webhook;
use crate::support::{now, say, turn};

const NAMESPACE: &str = "helm-upgrade";

/// The base and max of the gate's default backoff.
const BACKOFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Four attempts take at least 7 s.
const ATTEMPTS: usize = 4;

const LIMIT: Duration = Duration::from_secs(60);

/// The bytes of noise in the chart. Helm keeps the chart, compressed, in a Secret, which this
/// makes much larger than 64 KiB.
const NOISE: usize = 100_000;

#[test]
fn helm_upgrades_that_fail_write_as_often_as_backoff_allows() {
    let test = "helm_upgrades_that_fail_write_as_often_as_backoff_allows";
    let Some(plane) = ControlPlane::shared(test) else { return };
    let Some(helm) = Helm::or_skip(test) else { return };
    let _turn = turn::light();
    plane.namespace(NAMESPACE);
    let webhook = Webhook::of(plane, NAMESPACE, "CREATE", &json!({"": ["configmaps", "secrets"]}));
    let wanted = [
        // An object of the chart: helm reads it, and creates it after a 404.
        ("small", "", Wanted::new(plane, "of-the-chart", "configmaps", "create")),
        // The record of the release, which helm creates first.
        ("large", &*noise(), Wanted::new(plane, "sh.helm.release.v1.large.v1", "secrets", "create")),
    ];
    webhook.fail(wanted.iter().map(|(.., wanted)| wanted.name.to_owned()));
    wait_until_it_fails(plane, NAMESPACE, "of-the-chart");
    let gate = Gate::start(plane, "");
    std::thread::scope(|scope| {
        for (release, noise, wanted) in &wanted {
            let (helm, gate) = (&helm, &gate);
            scope.spawn(move || {
                let runs = upgrade(plane, helm, gate, release, noise, wanted);
                assert_spaced(wanted, &wanted.calls(plane), BACKOFF);
                say(format_args!("helm: {runs} upgrades of {release}"));
            });
        }
    });
    webhook.fail([]);
}

/// Runs helm until the object was tried often enough, and returns the number of runs.
fn upgrade(plane: &ControlPlane, helm: &Helm, gate: &Gate, release: &str, noise: &str, wanted: &Wanted) -> usize {
    let chart = scratch_dir();
    let write = |path: &str, text: &str| fs::write(chart.path().join(path), text).expect("the folder is ours");
    fs::create_dir(chart.path().join("templates")).expect("the folder is ours");
    write("Chart.yaml", &format!("{{apiVersion: v2, name: {release}, version: 0.1.0}}"));
    write("noise", noise);
    let name = if release == "small" { wanted.name } else { release };
    write("templates/map.yaml", &format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}"));
    let (chart, kubeconfig) = (chart.path().display().to_string(), Way::Gate(gate).kubeconfig(&wanted.user));
    let kubeconfig = kubeconfig.display().to_string();
    let begin = now();
    let mut runs = 0;
    while wanted.attempts(plane) < ATTEMPTS {
        assert!(begin.elapsed() < LIMIT, "{release}: {} attempts in {runs} upgrades", wanted.attempts(plane));
        let args = ["upgrade", "--install", release, &chart, "--namespace", NAMESPACE, "--kubeconfig", &kubeconfig];
        let out = helm.run(&args);
        assert!(!out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
        runs += 1;
    }
    runs
}

/// Makes text that hardly compresses.
fn noise() -> String {
    let mut state = 1_u64;
    (0..NOISE / 16).fold(String::new(), |mut text, _| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        write!(text, "{:016x}", state ^ (state >> 29)).expect("text takes everything");
        text
    })
}
