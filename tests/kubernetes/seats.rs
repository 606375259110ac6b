//! Operators with more work than a real API server can do: priority and fairness gives its clients
//! 20 seats, and a webhook makes each write last 50 ms. Gates as they come find what it bears, share
//! it, and hold up neither a lease nor a neighbour without a gate.
//!
//! `TIDEGATE_SEATS=600` plays one gate and three gates for so many seconds each, and the neighbour
//! alone and some fixed rates for a fifth of that. Without the variable one gate is played for a
//! short time, and only what holds on any machine is checked.

use std::time::Duration;

use http::Method;
use serde_json::json;

use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::{ControlPlane, Options, User};
use crate::support::gate::{Gate, Way};
use crate::support::programs::Program;
use crate::support::webhook::Webhook;
use crate::support::{block_on, pause, quantile, say, turn, wait_for};

const SHORT: Duration = Duration::from_secs(20);
const WEBHOOK: Duration = Duration::from_millis(50);
/// With the levels of kube-apiserver, five shares of 250 are 20 of these 1,000 seats.
const FLAGS: [&str; 2] = ["--max-requests-inflight=600", "--max-mutating-requests-inflight=400"];
/// More than the seats and the places for a flow's waiting calls, which are 300.
const WORKERS: usize = 400;

/// A leader gives up when no renewal has succeeded for this time.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// A controller that is never done, and its own namespace.
struct Controller<'a> {
    plane: &'a ControlPlane,
    namespace: String,
    user: User,
    objects: usize,
    _webhook: Webhook,
}

/// What came of one play.
#[derive(Debug)]
struct Played {
    /// The writes of each operator in a second.
    writes: Vec<f64>,
    /// The share of the operators' calls that priority and fairness rejected; no number if there is
    /// no operator.
    rejected: f64,
    /// 99 of 100 writes of the neighbour took no longer.
    neighbour: Duration,
    /// The longest time between two renewals of the lease.
    lease: Duration,
}

impl<'a> Controller<'a> {
    fn new(plane: &'a ControlPlane, namespace: String, objects: usize) -> Self {
        plane.namespace(&namespace);
        let webhook = Webhook::of(plane, &namespace, "UPDATE", &json!({"": ["configmaps"]}));
        webhook.delay(WEBHOOK);
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        block_on(async {
            let mut connection = Connection::open(Way::Direct(plane), &ControlPlane::harness(), Protocol::Http2).await;
            for number in 0..objects {
                let object = json!({"metadata": {"name": format!("object-{number}")}}).to_string();
                let (status, answer) = connection.call(Method::POST, &path, &object).await;
                assert_eq!(status, 201, "{answer}");
            }
        });
        Self { plane, namespace, user: plane.tester(), objects, _webhook: webhook }
    }

    fn start(&self, way: Way<'_>, workers: usize, every: &str) -> Program {
        let [objects, workers] = [self.objects, workers].map(|count| count.to_string());
        let args = ["busy", "-namespace", &self.namespace, "-objects", &objects, "-workers", &workers, "-every", every];
        Program::start(self.plane, way, &self.user, &args)
    }
}

/// Plays one operator for each of the gates with these settings, a neighbour, and a leader behind
/// the first gate. The lease of a lone operator waits in the server with the operator's own calls.
/// That of several is a flow of its own, because three full queues can hold it for 10 s.
fn play(plane: &ControlPlane, name: &str, settings: &[&str], length: Duration) -> Played {
    let neighbour = Controller::new(plane, format!("{name}-neighbour"), 100);
    let gates: Vec<Gate> = settings.iter().map(|settings| Gate::start(plane, settings)).collect();
    let operator = |number| Controller::new(plane, format!("{name}-{number}"), WORKERS);
    let operators: Vec<Controller<'_>> = (0..gates.len()).map(operator).collect();
    let mut running = vec![neighbour.start(Way::Direct(plane), 5, "100ms")];
    let pairs = operators.iter().zip(&gates);
    running.extend(pairs.clone().map(|(operator, gate)| operator.start(Way::Gate(gate), WORKERS, "2ms")));
    let leader = pairs.clone().next().map(|(operator, gate)| {
        let args = ["leader", "-namespace", &operator.namespace];
        let user = if gates.len() == 1 { operator.user.clone() } else { plane.tester() };
        Program::start(plane, Way::Gate(gate), &user, &args)
    });
    pause(length);
    running.iter().for_each(|program| program.process.must_run());
    drop(running);

    let audit = plane.audit().only(|event| event.resource == "configmaps" && event.verb == "update");
    let calls: Vec<_> = operators.iter().map(|operator| audit.of(&operator.user.name)).collect();
    let with = |code| calls.iter().map(|calls| count(calls.only(|event| event.code == code).len())).collect::<Vec<_>>();
    let neighbours = audit.of(&neighbour.user.name).only(|event| event.code == 200);
    let latencies: Vec<Duration> = neighbours.0.iter().map(|event| event.answered - event.received).collect();
    let played = Played {
        writes: with(200).iter().map(|done| done / length.as_secs_f64()).collect(),
        rejected: with(429).iter().sum::<f64>() / calls.iter().map(|calls| count(calls.len())).sum::<f64>(),
        neighbour: quantile(&latencies, 0.99),
        lease: leader.as_ref().map(longest_between_renewals).unwrap_or_default(),
    };
    say(format_args!("seats, {name}: {:.0} writes/s, {played:.3?}", played.sum()));
    played
}

fn longest_between_renewals(leader: &Program) -> Duration {
    assert!(leader.events("stopped").is_empty(), "the lease was lost");
    let mut renewals: Vec<Duration> =
        leader.events("lease").iter().filter(|call| call.number("code") < 300).map(|call| call.at()).collect();
    renewals.sort_unstable();
    assert!(renewals.len() > 2, "{renewals:?}");
    renewals.windows(2).map(|two| two[1] - two[0]).max().unwrap_or_default()
}

fn count(calls: usize) -> f64 {
    f64::from(u32::try_from(calls).expect("few"))
}

impl Played {
    fn sum(&self) -> f64 {
        self.writes.iter().sum()
    }

    fn jain(&self) -> f64 {
        let squares: f64 = self.writes.iter().map(|writes| writes * writes).sum();
        self.sum() * self.sum() / (count(self.writes.len()) * squares)
    }

    /// Checks a play that is long enough for the first seconds not to count.
    fn check(&self) {
        assert!(self.rejected <= 0.02 && self.jain() >= 0.95, "{self:?}");
        assert!(self.lease < RENEW_DEADLINE, "{self:?}");
    }
}

/// Puts all testers into a priority level with 20 seats, in which each is a flow.
fn limit_seats(plane: &ControlPlane) {
    plane.apply(
        "{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: PriorityLevelConfiguration, metadata: {name: few-seats}, spec: {type: Limited, \
         limited: {nominalConcurrencyShares: 5, lendablePercent: 0, borrowingLimitPercent: 0, \
         limitResponse: {type: Queue, queuing: {queues: 128, handSize: 6, queueLengthLimit: 50}}}}}",
    );
    plane.apply(
        "{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: FlowSchema, metadata: {name: few-seats}, spec: {matchingPrecedence: 100, \
         priorityLevelConfiguration: {name: few-seats}, distinguisherMethod: {type: ByUser}, rules: [{\
         subjects: [{kind: Group, group: {name: 'tidegate:testers'}}], \
         resourceRules: [{verbs: ['*'], apiGroups: ['*'], resources: ['*'], namespaces: ['*'], clusterScope: true}]}]}}",
    );
    let metric = "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"few-seats\"} 20\n";
    wait_for("20 seats", Duration::from_secs(30), || {
        plane.kubectl(&["get", "--raw", "/metrics"]).contains(metric).then_some(())
    });
}

#[test]
fn default_gates_share_the_seats_of_an_api_server_and_no_lease_is_late() {
    let test = "default_gates_share_the_seats_of_an_api_server_and_no_lease_is_late";
    let _turn = turn::alone();
    let options = Options { flags: FLAGS.map(str::to_owned).to_vec(), ..Options::default() };
    let Some(plane) = ControlPlane::own(test, options) else { return };
    limit_seats(&plane);
    let asked = std::env::var("TIDEGATE_SEATS").ok();
    let Some(asked) = asked else {
        let played = play(&plane, "default", &[""], SHORT);
        assert!(played.rejected <= 0.2 && played.lease < RENEW_DEADLINE, "{played:?}");
        return;
    };
    let length = Duration::from_secs(asked.parse().expect("TIDEGATE_SEATS is a number of seconds"));
    let alone = play(&plane, "alone", &[], length / 5);
    let default = play(&plane, "default", &[""], length);
    let fixed = [300, 330, 360].map(|rate| {
        let bucket = format!("bucket = {{ rate = {rate}, burst = 100 }}");
        play(&plane, &format!("fixed-{rate}"), &[&bucket], length / 5).sum()
    });
    let best = fixed.into_iter().fold(0.0, f64::max);
    let three = play(&plane, "three", &[""; 3], length);
    say(format_args!(
        "seats: {:.2} of the best fixed rate's writes; a neighbour waits {:.2} of what it waits alone; Jain {:.3}",
        default.sum() / best,
        default.neighbour.as_secs_f64() / alone.neighbour.as_secs_f64(),
        three.jain(),
    ));
    [default, three].iter().for_each(Played::check);
}
