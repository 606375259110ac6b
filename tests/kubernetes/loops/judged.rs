//! Random writes of many objects by several clients at once, before a real API server. etcd counts
//! the changes: no more writes may be said to have changed nothing than really did so, by the gate,
//! by its detector when it judges every write, and from an audit log of each level.
//!
//! `TIDEGATE_WRITES=100000` makes as many writes.

use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};
use tidegate::hot::{Act, CallNames, Content, Detector, FoundLoop, ObjectCall, Proof, digest};
use tidegate::moment::Moment;

use super::operator::{Operator, log_of};
use super::{audit, hot};
use crate::support::control_plane::ControlPlane;
use crate::support::fake_clock::FakeClock;
use crate::support::gate::{Gate, Way};
use crate::support::{block_on, say, turn, wait_for};

const NAMESPACE: &str = "judged";
const OBJECTS: usize = 40;
/// Of so many writes of object number n, n are meant to change nothing.
const SHARES: usize = 44;
const CLIENTS: usize = 4;
const WRITES: u64 = 4000;
/// The reads before each write that no gate sees, so that there are not too many.
const READS: usize = 4;
/// The gate's clock goes on by a second after so many writes.
const A_SECOND: u64 = 5;

/// What is known of an object.
#[derive(Clone, Default)]
struct Object {
    value: u64,
    version: String,
    writes: u64,
    /// Those that passed the gate.
    through: u64,
}

/// All that the clients share.
struct Judged<'a> {
    clock: &'a FakeClock,
    salt: RandomState,
    inner: Mutex<Inner>,
}

struct Inner {
    objects: Vec<Object>,
    detector: Detector,
    /// The number of the last write.
    writes: u64,
    seed: u64,
}

/// A write, and what it sends.
struct Write {
    object: usize,
    value: u64,
    method: Method,
    path: String,
    body: Value,
}

impl Inner {
    fn random(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        usize::try_from(self.seed >> 11).expect("a word") % below
    }

    /// A write that no gate sees always changes its object.
    fn next(&mut self, is_seen: bool) -> Write {
        self.writes += 1;
        let object = self.random(OBJECTS);
        let is_change = !is_seen || self.random(SHARES) >= object;
        let Object { value, version, .. } = self.objects[object].clone();
        let value = if is_change { self.writes } else { value };
        let (name, data) = (format!("object-{object}"), json!({"k": value.to_string()}));
        let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{name}");
        let put = |metadata| (Method::PUT, path.clone(), json!({"metadata": metadata, "data": data}));
        let (method, path, body) = match self.random(6) {
            0 | 1 => put(json!({"name": name, "resourceVersion": version})),
            2 => put(json!({"name": name})),
            3 => (Method::PATCH, path, json!({"data": data})),
            4 => (Method::PATCH, path, json!([{"op": "add", "path": "/data/k", "value": value.to_string()}])),
            _ => {
                let manager = self.random(2);
                let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
                (Method::PATCH, format!("{path}?fieldManager=manager-{manager}&force=true"), body)
            }
        };
        Write { object, value, method, path, body }
    }
}

impl Judged<'_> {
    /// Writes until there are so many writes of all.
    async fn client(&self, mut operator: Operator<'_>, is_seen: bool, most: u64) {
        loop {
            let write = {
                let mut inner = self.inner.lock().expect("no panic");
                if inner.writes >= most {
                    return;
                }
                inner.next(is_seen)
            };
            let body = write.body.to_string();
            for _ in 0..if is_seen { 0 } else { READS } {
                operator.call(&Method::GET, &write.path, "").await;
            }
            let (status, answer) = operator.call(&write.method, &write.path, &body).await;
            if status == 200 {
                self.answered(&write, is_seen, &body, &answer);
            } else {
                assert_eq!(status, 409, "{answer}");
            }
        }
    }

    fn answered(&self, write: &Write, is_seen: bool, body: &str, answer: &Value) {
        let mut inner = self.inner.lock().expect("no panic");
        let version = answer["metadata"]["resourceVersion"].as_str().expect("an object");
        let object = &mut inner.objects[write.object];
        object.value = write.value;
        version.clone_into(&mut object.version);
        object.writes += 1;
        object.through += u64::from(is_seen);
        if is_seen {
            let number = write.object as u64;
            let call = ObjectCall {
                object: number + 1,
                kind: number + 1,
                act: Act::Write,
                at: Moment::from_millis(inner.writes),
                status: 200,
                is_upstreams: true,
                content: Content { version: version.parse().ok(), ..digest(body.as_bytes(), &self.salt) },
                ..ObjectCall::default()
            };
            let name = format!("object-{number}");
            inner.detector.count(&call, &|| CallNames { object: name.as_str().into(), ..CallNames::default() });
        }
        self.clock.set(&format!("+{}", inner.writes / A_SECOND));
    }
}

/// What is said of one object.
struct Claims {
    who: String,
    unchanged: HashMap<String, u64>,
}

impl Claims {
    /// Compares them with what etcd says, and returns how much of that they have, in percent.
    fn check(&self, real: &HashMap<String, u64>) -> u64 {
        for (object, claimed) in &self.unchanged {
            let real = real[object];
            assert!(*claimed <= real, "{}: {claimed} writes of {object} changed nothing, and really {real}", self.who);
        }
        assert!(self.unchanged.len() > OBJECTS / 2, "{} names {}", self.who, self.unchanged.len());
        let really: u64 = self.unchanged.keys().map(|object| real[object]).sum();
        self.unchanged.values().sum::<u64>() * 100 / really
    }
}

#[test]
fn no_write_that_changed_an_object_is_said_to_have_changed_nothing() {
    let test = "no_write_that_changed_an_object_is_said_to_have_changed_nothing";
    let Some(plane) = ControlPlane::shared(test) else { return };
    let Some(clock) = FakeClock::or_skip(test) else { return };
    let _turn = turn::light();
    let most = std::env::var("TIDEGATE_WRITES").ok().and_then(|writes| writes.parse().ok()).unwrap_or(WRITES);
    plane.namespace(NAMESPACE);
    let map = |number| {
        let metadata = json!({"name": format!("object-{number}"), "namespace": NAMESPACE});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "0"}})
    };
    plane.apply(
        &json!({"apiVersion": "v1", "kind": "List", "items": (0..OBJECTS).map(map).collect::<Vec<_>>()}).to_string(),
    );
    let before = plane.stored("configmaps", NAMESPACE);
    let settings = "bucket = \"off\"\nretry_bucket = \"off\"\n[gates.kubernetes.backoff]\nhold = \"0s\"";
    let gate = Gate::start_with(plane, settings, |run| clock.put_under(run));

    let proof = Proof { calls: 10, lasts: Duration::ZERO, flood_lasts: Duration::ZERO };
    let inner =
        Inner { objects: vec![Object::default(); OBJECTS], detector: Detector::new(proof, 512), writes: 0, seed: 38 };
    let judged = Judged { clock: &clock, salt: RandomState::new(), inner: Mutex::new(inner) };
    let user = plane.master();
    block_on(async {
        let through = (0..CLIENTS).map(|_| judged.client(Operator::new(Way::Gate(&gate), &user, "writer"), true, most));
        let past = judged.client(Operator::new(Way::Direct(plane), &user, "writer"), false, most);
        tokio::join!(join_all(through), past);
    });

    // The gate judges a part of the writes of each minute, and says a percentage.
    let said = wait_for("the gate names those with most", Duration::from_secs(20), || {
        let said: Vec<(usize, u64)> = hot(&gate).iter().filter_map(percentage).collect();
        (said.len() > 5).then_some(said)
    });

    let Inner { objects, detector, .. } = judged.inner.into_inner().expect("no panic");
    let after = plane.stored("configmaps", NAMESPACE);
    let name = |number: usize| format!("object-{number}");
    let real: HashMap<String, u64> = objects
        .iter()
        .enumerate()
        .map(|(number, object)| (name(number), object.writes + before[&name(number)] - after[&name(number)]))
        .collect();
    let all: u64 = real.values().sum();
    let found = |one: &FoundLoop| (one.names.object.to_string(), one.unchanged);
    let detector = Claims { who: "the detector".to_owned(), unchanged: detector.found().iter().map(found).collect() };
    let mut shares = vec![detector.check(&real)];
    for level in ["RequestResponse", "Request", "Metadata"] {
        let found = audit(&log_of(plane, NAMESPACE, level, || None));
        let named = found.iter().filter_map(|one| {
            let object = one["object"].as_str()?.strip_prefix("judged/")?;
            Some((object.to_owned(), one["unchanged"].as_u64()?))
        });
        shares.push(Claims { who: format!("a log of {level}"), unchanged: named.collect() }.check(&real));
    }
    let writes: u64 = objects.iter().map(|object| object.writes).sum();
    say(format_args!(
        "loops: of {writes} writes {all} changed nothing; found by the detector, and in logs of RequestResponse, Request and Metadata: {shares:?}%"
    ));
    assert!(all * 5 > writes && shares[0] > 60 && shares[1] > 60 && shares[3] > 0, "too few to judge by");

    for (number, percent) in &said {
        let real = real[&name(*number)] * 100 / objects[*number].through;
        assert!(*percent <= real + 15, "object-{number}: the gate says {percent}%, and really {real}%");
    }
    say(format_args!("loops: the gate says {said:?} (object, percent that changed nothing)"));
}

/// The number of an object, and the percentage of its writes that changed nothing.
fn percentage(hot: &Value) -> Option<(usize, u64)> {
    let (_, number) = hot["object"].as_str()?.rsplit_once("object-")?;
    let (says, _) = hot["says"].as_str()?.split_once("% of the writes changed nothing")?;
    let (_, percent) = says.rsplit_once(' ')?;
    Some((number.parse().ok()?, percent.parse().ok()?))
}
