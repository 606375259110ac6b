//! Get-or-create loops whose write fails: the 404s that they read in between do not shorten the
//! backoff of the write.
//!
//! The real API server answers each read with a 404, and each write with the 500 or 429 of an
//! admission webhook. The audit log tells when the writes arrived.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use crate::support::audit::Event;
use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::{ControlPlane, User};
use crate::support::gate::{Gate, Way};
use crate::support::installed::{self, CLIENTS};
use crate::support::process::{Process, scratch_dir};
use crate::support::programs::Program;
use crate::support::webhook::Webhook;
use crate::support::{block_on, pause, say, turn, wait_for, widgets};

const NAMESPACE: &str = "get-or-create";
const NAMED: &str = "get-or-create-named";
const BASE: Duration = Duration::from_millis(200);
const MAX: Duration = Duration::from_millis(3_200);

/// Six attempts take at least 6.2 s.
const ATTEMPTS: usize = 6;

const LIMIT: Duration = Duration::from_secs(60);

/// The time between two reads of the audit log, which is long.
const LOOK: Duration = Duration::from_millis(500);

/// One client that tries to make one object. Both have the same name.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: &'static str,
    pub(crate) user: User,
    resource: &'static str,
    verb: &'static str,
}

impl Wanted {
    pub(crate) fn new(plane: &ControlPlane, name: &'static str, resource: &'static str, verb: &'static str) -> Self {
        Self { name, user: plane.master(), resource, verb }
    }

    /// Returns the calls about the object that reached the API server, in order.
    pub(crate) fn calls(&self, plane: &ControlPlane) -> Vec<Event> {
        let seen = plane.audit().of(&self.user.name);
        seen.only(|event| event.resource == self.resource && event.name == self.name).0
    }

    /// Starts the Go client that makes the object.
    fn ensured(&self, plane: &ControlPlane, way: Way<'_>) -> Program {
        Program::start(plane, way, &self.user, &["ensure", "-namespace", NAMESPACE, "-how", self.name])
    }

    pub(crate) fn attempts(&self, plane: &ControlPlane) -> usize {
        self.calls(plane).iter().filter(|event| event.verb == self.verb).count()
    }
}

/// The gate's settings. The bucket allows five loops that are much faster than the backoff.
const SETTINGS: &str = "preset = \"none\"\n[gates.kubernetes.bucket]\nrate = 200.0\nburst = 200\n\
    [gates.kubernetes.backoff]\nstrategy = \"exponential\"\nbase = \"200ms\"\nmax = \"3200ms\"\nforget_after = \"1m\"";

const KOPF: [&str; 6] = ["-m", "kopf", "run", "--standalone", "--namespace", NAMESPACE];

#[test]
fn get_or_create_loops_write_as_often_as_backoff_allows() {
    let test = "get_or_create_loops_write_as_often_as_backoff_allows";
    let Some(plane) = ControlPlane::shared(test) else { return };
    let Some(python) = installed::or_skip(test, installed::python()) else { return };
    let _turn = turn::light();
    widgets::install(plane);
    plane.namespace(NAMESPACE);
    let resources = json!({"": ["configmaps", "limitranges"], "apps": ["deployments"]});
    let webhook = Webhook::of(plane, NAMESPACE, "CREATE", &resources);
    let wanted = [
        Wanted::new(plane, "created", "configmaps", "create"),
        Wanted::new(plane, "applied", "deployments", "patch"),
        Wanted::new(plane, "put", "limitranges", "update"),
        Wanted::new(plane, "entry", "configmaps", "create"),
        Wanted::new(plane, "kopf", "configmaps", "create"),
    ];
    webhook.fail(wanted.iter().map(|wanted| wanted.name.to_owned()));
    wait_until_it_fails(plane, NAMESPACE, "created");
    let gate = Gate::start(plane, SETTINGS);
    let way = Way::Gate(&gate);
    let [go @ .., entry, kopf] = &wanted;
    let go: Vec<Program> = go.iter().map(|wanted| wanted.ensured(plane, way)).collect();
    let dir = scratch_dir();
    let mut run = way.command(&python, &kopf.user, &KOPF);
    run.arg(format!("{CLIENTS}/kopf_ensures.py")).env("HOME", dir.path());
    let operator = Process::start("kopf", dir.path(), run);
    widgets::set(plane, NAMESPACE, &[kopf.name.to_owned()], 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| block_on(get_or_insert(&way.kubeconfig(&entry.user), entry.name, &stop)));
        // This also ends the loop when an assertion below fails.
        let _stop = Stop(&stop);
        wait_for("every client has written six times", LIMIT, || {
            operator.must_run();
            pause(LOOK);
            wanted.iter().all(|wanted| wanted.attempts(plane) >= ATTEMPTS).then_some(())
        });
        for wanted in &wanted {
            let reads = assert_spaced(wanted, &wanted.calls(plane), [BASE, MAX]);
            assert!(reads >= ATTEMPTS, "{}: {reads} reads are no loop", wanted.name);
        }
        webhook.fail([]);
        wait_for("every object is there", LIMIT, || {
            pause(LOOK);
            let there =
                |wanted: &Wanted| wanted.calls(plane).iter().any(|event| event.verb == wanted.verb && event.code < 300);
            wanted.iter().all(there).then_some(())
        });
    });
    for program in go {
        program.finish(Duration::from_secs(10));
    }
}

/// Sets the flag when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until the API server asks the webhook, which it does from a moment after the registration
/// on.
pub(crate) fn wait_until_it_fails(plane: &ControlPlane, namespace: &str, name: &str) {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps?dryRun=All");
    let body = json!({"metadata": {"name": name}}).to_string();
    block_on(async {
        let mut connection = Connection::open(Way::Direct(plane), &ControlPlane::harness(), Protocol::Http2).await;
        for _ in 0..200 {
            if connection.call(Method::POST, &path, &body).await.0 >= 400 {
                return;
            }
            pause(Duration::from_millis(50));
        }
        panic!("the API server does not ask the webhook");
    });
}

/// Repeats kube-rs's own get-or-create until the object is there.
async fn get_or_insert(kubeconfig: &std::path::Path, name: &str, stop: &AtomicBool) {
    let file = Kubeconfig::read_from(kubeconfig).expect("a valid kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a valid kubeconfig");
    let maps: Api<ConfigMap> = Api::namespaced(Client::try_from(config).expect("a client"), NAMESPACE);
    while !stop.load(Ordering::Relaxed) {
        let Ok(entry) = maps.entry(name).await else { continue };
        if entry.or_insert(ConfigMap::default).commit(&PostParams::default()).await.is_ok() {
            return;
        }
    }
}

/// Asserts that each write came after the delay that the failures before it require. Returns the
/// number of reads that found nothing.
pub(crate) fn assert_spaced(wanted: &Wanted, calls: &[Event], [base, max]: [Duration; 2]) -> usize {
    let mut least = Duration::ZERO;
    let mut last: Option<Duration> = None;
    let (mut gaps, mut reads) = (Vec::new(), 0);
    for call in calls {
        if call.verb == "get" {
            assert_eq!(call.code, 404, "{call:?}");
            reads += 1;
        }
        if call.verb != wanted.verb {
            continue;
        }
        assert_eq!(call.code, 500, "{call:?}");
        if let Some(last) = last {
            // The gate counts from the failure to the next departure, and arrivals are further
            // apart than those.
            let gap = call.received.saturating_sub(last);
            gaps.push(gap);
            assert!(gap >= least, "{} wrote again after {gap:?}, before {least:?}: {gaps:.0?}", wanted.name);
        }
        least = if last.is_none() { base } else { (least * 2).min(max) };
        last = Some(call.received);
    }
    say(format_args!("get-or-create: {} found nothing {reads} times, and wrote after {gaps:.1?}", wanted.name));
    reads
}

#[test]
fn no_read_that_finds_nothing_shortens_the_time_that_the_api_server_named() {
    let Some(plane) = ControlPlane::shared("no_read_that_finds_nothing_shortens_the_time_that_the_api_server_named")
    else {
        return;
    };
    let _turn = turn::light();
    plane.namespace(NAMED);
    let webhook = Webhook::of(plane, NAMED, "CREATE", &json!({"": ["configmaps", "limitranges"]}));
    // The API server turns the seconds into a Retry-After header.
    let status =
        json!({"code": 429, "reason": "TooManyRequests", "message": "later", "details": {"retryAfterSeconds": 30}});
    webhook.fail_with(["created", "applied", "put"].map(str::to_owned), &status);
    wait_until_it_fails(plane, NAMED, "created");
    let gate = Gate::start(plane, "");
    let user = plane.master();
    let root = format!("/api/v1/namespaces/{NAMED}");
    let body =
        |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}).to_string();
    let writes = [
        ("created", Method::POST, format!("{root}/configmaps"), body("ConfigMap", "created")),
        (
            "applied",
            Method::PATCH,
            format!("{root}/configmaps/applied?fieldManager=test"),
            body("ConfigMap", "applied"),
        ),
        ("put", Method::PUT, format!("{root}/limitranges/put"), body("LimitRange", "put")),
    ];
    block_on(async {
        let mut connection = Connection::open(Way::Gate(&gate), &user, Protocol::Http2).await;
        for _ in 0..10 {
            for (name, method, path, body) in &writes {
                let kind = if *name == "put" { "limitranges" } else { "configmaps" };
                let (status, answer) = connection.call(Method::GET, &format!("{root}/{kind}/{name}"), "").await;
                assert_eq!(status, 404, "{answer}");
                let (status, answer) = connection.call(method.clone(), path, body).await;
                assert_eq!(status, 429, "{answer}");
            }
        }
    });
    let seen = plane.audit().of(&user.name);
    assert_eq!(seen.only(|event| event.verb == "get" && event.code == 404).len(), 30);
    for (name, ..) in &writes {
        let written = seen.only(|event| event.verb != "get" && event.name == *name);
        assert_eq!(written.len(), 1, "{name} was to wait for 30 s: {written:?}");
    }
}
