//! Real controllers with nothing to do, through a gate: kube-controller-manager, kube-scheduler,
//! KWOK, external-dns, and an operator on controller-runtime. Neither the gate nor the audit log
//! accuses one.
//!
//! `TIDEGATE_REST=600` looks at them for so many seconds.

use std::time::Duration;

use serde_json::Value;

use super::{audit, hot};
use crate::fetched::external_dns;
use crate::ports::free_port;
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::gate::{Gate, Way};
use crate::support::process::{Process, command};
use crate::support::programs::Program;
use crate::support::{installed, pause, pods, say, turn, wait_for, widgets};

const REST: u64 = 60;
const LIMIT: Duration = Duration::from_secs(120);

/// What they have brought about before they rest.
const WORK: &str = r"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: rest}
spec:
  replicas: 5
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: none}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: rest}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: tick, namespace: rest}
spec:
  schedule: '* * * * *'
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: none}]}}}}
";

#[test]
fn five_real_controllers_at_rest_are_accused_of_nothing() {
    let test = "five_real_controllers_at_rest_are_accused_of_nothing";
    let Some(dns) = installed::or_skip(test, external_dns()) else { return };
    let _turn = turn::light();
    let Some(plane) = ControlPlane::own(test, Options::default()) else { return };
    widgets::install(&plane);
    let gate = Gate::start(&plane, "");
    let kubeconfig = || gate.kubeconfig(&plane.master());
    let run = |name: &str, program, flags: &[String]| {
        let mut run = command(program, flags);
        run.env("HOME", plane.file(""));
        Process::start(name, &plane.file(""), run)
    };
    let kubeconfig_flag = || format!("--kubeconfig={}", kubeconfig().display());
    let running = [
        plane.controller_manager(&kubeconfig()),
        pods::kwok(&plane, &kubeconfig(), free_port()),
        run(
            "kube-scheduler",
            plane.binaries().path("kube-scheduler"),
            &[kubeconfig_flag(), "--secure-port=0".to_owned()],
        ),
        run(
            "external-dns",
            dns,
            &[kubeconfig_flag(), format!("--metrics-address=127.0.0.1:{}", free_port())]
                .into_iter()
                .chain(["--source=service", "--provider=inmemory", "--interval=10s", "--events"].map(str::to_owned))
                .collect::<Vec<_>>(),
        ),
    ];
    for number in 0..3 {
        plane.apply(&format!("{{apiVersion: v1, kind: Node, metadata: {{name: node-{number}}}}}"));
    }
    plane.namespace("rest");
    plane.apply(WORK);
    let names = widgets::names("thing", 20);
    widgets::set(&plane, "rest", &names, 1);
    let manager = Program::start(&plane, Way::Gate(&gate), &plane.master(), &["manage", "-namespace", "rest"]);
    widgets::wait_written(&manager, &names, 1, LIMIT);
    wait_for("the pods run", LIMIT, || {
        running.iter().for_each(Process::must_run);
        let ready =
            plane.kubectl(&["get", "deployment", "web", "-n", "rest", "-o", "jsonpath={.status.readyReplicas}"]);
        (ready == "5").then_some(())
    });

    let rest = std::env::var("TIDEGATE_REST").ok().and_then(|rest| rest.parse().ok()).unwrap_or(REST);
    pause(Duration::from_secs(rest));
    running.iter().for_each(Process::must_run);
    manager.process.must_run();
    let log = plane.audit();
    let agents = ["kube-controller-manager", "kube-scheduler", "kwok", "external-dns", "widget-controller"];
    let calls = agents.map(|agent| (agent, log.only(|event| event.agent.starts_with(agent)).len()));
    say(format_args!("loops: {} calls, of controllers at rest for {rest} s: {calls:?}", log.len()));
    assert!(calls.iter().all(|(_, calls)| *calls > 5), "{calls:?}");
    let nobody: Vec<Value> = Vec::new();
    assert_eq!(hot(&gate), nobody, "the gate accuses nobody");
    assert_eq!(audit(&plane.audit_log()), nobody, "nor does the log");
}
