//! A controller of AWS Controllers for Kubernetes (ACK) as its project builds it, with a real API
//! server, before a server that verifies signatures: by itself it exceeds what AWS publishes of
//! Elastic Load Balancing, and behind a gate, with nothing but the variables that `inject` writes,
//! it does not.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tidegate::inject::Client as Kind;

use crate::fetched::{install, run, say};
use crate::intercepted::variables;
use crate::live::or_skip;
use crate::operators::{encrypted, set_up, sidecar};
use crate::pod;
use crate::ports::free_port;
use crate::programs;
use crate::relay::{Exchange, Relay};
use crate::signed::Judge;
use crate::wait::wait_for;
use crate::window::worst_excess;
use testing::control_plane::{ControlPlane, Options};
use testing::process::Process;

/// What AWS publishes for an account and region: the size of a bucket, and what comes back in a
/// second. All actions share the first, and those that write the second.
const ALL: (f64, f64) = (40.0, 10.0);
const WRITES: (f64, f64) = (20.0, 3.0);
/// The target groups that are made in each run.
const GROUPS: usize = 40;

/// The folder with the controller and the definitions of its resources.
fn controller() -> Result<PathBuf, String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdks/ack");
    install("ack", &[&module.join("go.sum"), &module.join("controller.go")], |dir| {
        let mut go = Command::new("go");
        go.current_dir(&module).env("CGO_ENABLED", "0");
        go.args(["build", "-p", "2", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o"]);
        run("go", go.arg(dir.join("controller")).arg(format!("{MODULE}/cmd/controller")))?;
        let mut copy = Command::new("sh");
        copy.current_dir(&module).args(["-ec", DEFINITIONS, "sh", MODULE]).arg(dir.join("definitions"));
        run("sh", &mut copy)
    })
}

/// Lets the controller make target groups in a namespace, and returns the calls that it took.
fn make_groups(
    (dir, plane): (&Path, &ControlPlane),
    (judge, relay): (&Judge, &Relay),
    namespace: &str,
    variables: &[(String, String)],
) -> Vec<Exchange> {
    plane.namespace(namespace);
    let mut groups = String::new();
    for number in 0..GROUPS {
        writeln!(
            groups,
            "---\n{{apiVersion: elbv2.services.k8s.aws/v1alpha1, kind: TargetGroup, \
             metadata: {{name: {namespace}-{number}, namespace: {namespace}}}, spec: {{name: {namespace}-{number}, \
             protocol: HTTP, port: 80, targetType: ip, vpcID: vpc-00000001}}}}"
        )
        .expect("memory");
    }
    plane.apply(&groups);
    let mut command = Command::new(controller().expect("it was built").join("controller"));
    set_up(&mut command, judge, variables);
    command.env("KUBECONFIG", plane.kubeconfig(&plane.master()));
    command.args(["--aws-region=eu-central-1", "--reconcile-default-max-concurrent-syncs=10"]);
    command.arg(format!("--watch-namespace={namespace}"));
    for flag in ["metrics-addr", "healthz-addr"] {
        command.arg(format!("--{flag}=127.0.0.1:{}", free_port()));
    }
    let controller = Process::start(namespace, dir, command);
    wait_for("every target group is made", Duration::from_secs(240), || {
        controller.must_run();
        let template = "-o=jsonpath={.items[*].status.ackResourceMetadata.arn}";
        let made = plane.kubectl(&["get", "targetgroups.elbv2.services.k8s.aws", "-n", namespace, template]);
        (made.split_whitespace().count() == GROUPS).then_some(())
    });
    controller.kill();
    relay.watch(Box::new(|_| {}))
}

/// The number of calls by which the fullest window exceeds a bucket, of those that `counts` picks.
fn excess(exchanges: &[Exchange], (burst, rate): (f64, f64), counts: impl Fn(&str) -> bool) -> f64 {
    let of_elb = exchanges.iter().filter(|exchange| {
        let form = String::from_utf8_lossy(&exchange.bytes);
        let action = form.rsplit("Action=").next().filter(|_| form.contains("elasticloadbalancing"));
        action.is_some_and(&counts)
    });
    let arrived: Vec<_> = of_elb.map(|exchange| exchange.arrived).collect();
    let since: Vec<Duration> = arrived.iter().map(|at| at.duration_since(arrived[0])).collect();
    worst_excess(&since, rate, burst, Duration::ZERO)
}

#[test]
fn an_ack_controller_exceeds_elb_by_itself_and_not_behind_the_gate() {
    // What has to be fetched is out of reach in a pod.
    let Some(dir) = or_skip("ACK", controller()) else { return };
    if or_skip("the judge of signatures", programs::judge()).is_none()
        || testing::binaries::Binaries::or_skip("ACK").is_none()
        || !pod::is_in_pod("ack::an_ack_controller_exceeds_elb_by_itself_and_not_behind_the_gate")
    {
        return;
    }
    let scratch = tempfile::tempdir().expect("a temporary folder can be made");
    let hosts =
        ["elasticloadbalancing.eu-central-1.amazonaws.com", "sts.eu-central-1.amazonaws.com", "sts.amazonaws.com"];
    let tls = pod::make(scratch.path(), &hosts.map(|host| (pod::API, host.to_owned())));
    let judge = Judge::start().expect("it was fetched");
    let relay = Relay::start(judge.plain);
    encrypted(tls, relay.port);
    let plane = ControlPlane::own("ACK", Options::default()).expect("it was built");
    plane.kubectl(&["apply", "--server-side", "-f", &dir.join("definitions").display().to_string()]);
    plane.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]);

    let (place, before) = ((scratch.path(), &plane), (&judge, &relay));
    let alone = make_groups(place, before, "alone", &[]);
    let is_write = |action: &str| !action.starts_with("Describe");
    let (all, writes) = (excess(&alone, ALL, |_| true), excess(&alone, WRITES, is_write));
    assert!(all > 0.0 && writes > 0.0, "it exceeds what is published: by {all} and {writes} of {}", alone.len());

    let gates = sidecar(scratch.path());
    let behind = make_groups(place, before, "behind", &variables(8003, "/run/tidegate", &[Kind::Go]));
    assert!(behind.iter().all(|exchange| exchange.status() == 200), "every signature is good:\n{}", gates.log());
    assert_eq!(gates.metric("tidegate_calls_total", "aws"), behind.len() as f64, "every call went through the gate");
    let (kept, kept_writes) = (excess(&behind, ALL, |_| true), excess(&behind, WRITES, is_write));
    assert!(kept <= 0.0 && kept_writes <= 0.0, "by {kept} and {kept_writes}:\n{}", gates.log());
    say(format_args!(
        "ACK: {} calls, {all:.0} and {writes:.0} writes over; behind the gate {}, {:.0} and {:.0} below",
        alone.len(),
        behind.len(),
        -kept,
        -kept_writes
    ));
}

const MODULE: &str = "github.com/aws-controllers-k8s/elbv2-controller";
/// Copies the definitions of resources from the module named first into the folder named second.
const DEFINITIONS: &str = r#"
module="$(go list -mod=readonly -m -f '{{.Dir}}' "$1")"
mkdir -p "$2"
cp "$module"/config/crd/bases/*.yaml "$module"/config/crd/common/bases/*.yaml "$2"
chmod u+w "$2"/*
"#;
