//! `tidegate audit`: every planted loop is named with its object and its caller, nobody who is well
//! is accused, and what cannot be read is said.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::num::NonZeroU32;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::api::{Key, Verb};
use tidegate::hot::{Act, CallNames, Content, HotCaller, Loops, News, ObjectCall, Pace, digest};
use tidegate::moment::Moment;
use tidegate::simulate::audit::{Audit, FoundLoop, LoopKind, audit, report};
use tidegate::simulate::replay::{LogSelection, RecordedLog};

use crate::command::tidegate;

/// An event of kube-apiserver's audit log.
pub(super) struct Event<'a> {
    pub(super) second: f64,
    pub(super) user: &'a str,
    pub(super) verb: &'a str,
    pub(super) resource: &'a str,
    pub(super) name: String,
    /// The version that a write was based on.
    pub(super) base: Option<u64>,
    pub(super) code: u16,
    pub(super) body: Option<Value>,
}

impl Event<'_> {
    fn line(&self) -> String {
        let time = |after: f64| {
            let at = self.second + after;
            let [hours, minutes] = [at / 3600.0, at % 3600.0 / 60.0].map(f64::floor);
            format!("2026-11-27T{:02}:{:02}:{:09.6}Z", 10.0 + hours, minutes, at % 60.0)
        };
        let mut event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "stage": "ResponseComplete",
            "verb": self.verb, "user": {"username": self.user}, "userAgent": format!("{}/v1 (linux)", self.user),
            "objectRef": {"resource": self.resource, "namespace": "n", "name": self.name, "apiGroup": "example.org"},
            "responseStatus": {"code": self.code},
            "requestReceivedTimestamp": time(0.0), "stageTimestamp": time(0.005),
        });
        if let Some(base) = self.base {
            event["objectRef"]["resourceVersion"] = json!(base.to_string());
        }
        if let Some(body) = &self.body {
            event["requestObject"] = body.clone();
        }
        format!("{event}\n")
    }
}

/// Returns a write by a user, of an object that is `based` on this version.
pub(super) fn write(second: f64, user: &str, name: String, base: Option<u64>) -> Event<'_> {
    Event { second, user, verb: "update", resource: "widgets", name, base, code: 200, body: None }
}

/// Returns an hour's log of these events.
pub(super) fn log(mut events: Vec<Event<'_>>) -> String {
    events.sort_by(|one, other| one.second.total_cmp(&other.second));
    events.iter().map(Event::line).collect()
}

/// Returns events at these seconds within an hour, each by its number.
pub(super) fn every<'a>(seconds: f64, event: impl Fn(f64, u32) -> Event<'a>) -> Vec<Event<'a>> {
    (0..)
        .map(|number| (f64::from(number) * seconds, number))
        .take_while(|(at, _)| *at < 3590.0)
        .map(|(at, number)| event(at, number))
        .collect()
}

fn audited(text: &str) -> Audit {
    let logs = vec![RecordedLog { name: "audit.log".to_owned(), input: Box::new(text.as_bytes()) }];
    audit(logs, &LogSelection::default()).expect("it has calls")
}

/// Returns the only loop of this caller.
fn of<'a>(found: &'a Audit, user: &str) -> &'a FoundLoop {
    let is_by = |one: &&FoundLoop| one.callers.iter().any(|caller| caller.name.starts_with(user));
    let loops: Vec<&FoundLoop> = found.loops.iter().filter(is_by).collect();
    assert_eq!(loops.len(), 1, "{user}: {:#?}", found.loops);
    loops[0]
}

/// Operators that are well, and others that no log accuses.
pub(super) fn healthy() -> Vec<Event<'static>> {
    let mut events =
        every(0.2, |at, number| write(at, "busy", format!("object-{}", number % 500), Some(number.into())));
    // A job that writes each minute something else.
    events.extend(every(60.0, |at, number| Event {
        body: Some(json!({"lines": number})),
        ..write(at, "cron", "report".to_owned(), Some(1_000_000 + u64::from(number)))
    }));
    events.extend(every(2.0, |at, number| Event {
        resource: "leases",
        ..write(at, "leader", "lock".to_owned(), Some(number.into()))
    }));
    events.extend(every(10.0, |at, _| Event { verb: "patch", ..write(at, "kubelet", "node".to_owned(), None) }));
    events.extend(every(20.0, |at, number| Event {
        verb: "create",
        resource: "events",
        ..write(at, "talker", format!("e{number}"), None)
    }));
    // One write in ten changes nothing.
    events.extend(every(1.0, |at, number| {
        write(at, "careless", format!("careless-{}", number % 100), Some((number - number / 100 % 10 / 9 * 100).into()))
    }));
    // Two that change different things of one object, now and then.
    events.extend(every(90.0, |at, number| {
        write(at, "spec", "shared".to_owned(), Some(2_000_000 + u64::from(number) * 2))
    }));
    events.extend(every(90.0, |at, number| {
        write(at + 45.0, "scale", "shared".to_owned(), Some(2_000_001 + u64::from(number) * 2))
    }));
    events.extend(every(30.0, |at, _| Event {
        verb: "get",
        code: 404,
        ..write(at, "poller", "not-there-yet".to_owned(), None)
    }));
    events
}

/// A loop as it is named: kind, object and callers.
type Named = (String, String, Vec<String>);

/// Returns the loops that a gate has named at the end of an hour of these calls, and all that it
/// ever named.
fn gated(mut events: Vec<Event<'_>>) -> (BTreeSet<Named>, usize) {
    events.sort_by(|one, other| one.second.total_cmp(&other.second));
    let salt = RandomState::new();
    let mut loops = Loops::default();
    let mut begun = 0;
    let mut second = 0;
    for event in &events {
        let at = Moment::ZERO + Duration::from_secs_f64(event.second);
        while second < at.since_start().as_secs() {
            second += 1;
            let news = loops.tick(Moment::from_millis(second * 1000));
            begun += news.iter().filter(|news| matches!(news, News::Began(_))).count();
        }
        event.pass(&mut loops, &salt, at);
    }
    let list = loops.list();
    let named = list.iter().map(|report| {
        let object = report.names.object.split_once(' ').map_or("", |(_, name)| name).to_owned();
        let mut callers: Vec<_> = report.callers.iter().map(|caller| caller.name.to_string()).collect();
        callers.sort();
        (report.kind.to_string(), object, callers)
    });
    (named.collect(), begun)
}

impl Event<'_> {
    /// Shows the call to a gate's detector, as the gate does.
    fn pass(&self, loops: &mut Loops, salt: &RandomState, at: Moment) {
        let verb = Verb::ALL.into_iter().find(|verb| verb.word() == self.verb).expect("a verb");
        let act = Act::of(verb, self.resource);
        if act == Act::Other {
            return;
        }
        let collection = salt.hash_one(self.resource);
        // A gate does not read the name of what was created.
        let is_known = act != Act::Create && act != Act::CreateEvent || self.code >= 400;
        let object = if is_known { salt.hash_one((collection, &self.name)) } else { collection };
        let key = Key { object, collection, facet: salt.hash_one((act == Act::Read, act == Act::Delete)) };
        let names = || CallNames {
            object: format!("{}.example.org n/{}", self.resource, self.name).into(),
            kind: format!("{}.example.org", self.resource).into(),
            caller: self.user.into(),
            verb: self.verb.into(),
            ..CallNames::default()
        };
        let pace = Some(Pace::new(1.0, NonZeroU32::new(10).expect("ten"))).filter(|_| act != Act::Read && is_known);
        let is_read = loops.samples(key, at);
        let body = self.body.as_ref().filter(|_| is_read).map(Value::to_string);
        let call = ObjectCall {
            object,
            collection,
            kind: collection,
            facet: key.facet,
            act,
            at,
            caller: salt.hash_one(self.user),
            status: self.code,
            is_upstreams: true,
            content: Content {
                version: self.base.filter(|_| is_read),
                ..body.map(|body| digest(body.as_bytes(), salt)).unwrap_or_default()
            },
            ..ObjectCall::default()
        };
        if let Some(too_soon) = loops.count(key, act, pace, at, self.code >= 400) {
            loops.learn(&call, too_soon, &names);
        }
    }
}

#[test]
fn nobody_who_is_well_is_accused() {
    let found = audited(&log(healthy()));
    assert!(found.loops.is_empty(), "{:#?}", found.loops);
    assert!(found.late.is_empty(), "{:?}", found.late);
    assert_eq!(gated(healthy()), (BTreeSet::new(), 0));
}

/// Healthy operators, and ten loops.
fn planted() -> Vec<Event<'static>> {
    let mut events = healthy();
    events.extend(every(0.125, |at, _| write(at, "fast", "same".to_owned(), Some(7))));
    events.extend(every(3.0, |at, _| write(at, "slow", "same-too".to_owned(), Some(8))));
    events.extend(every(60.0 / 38.0, |at, number| write(at, "spread", format!("pod-{}", number % 38), Some(9))));
    events.extend(every(0.5, |at, _| Event { verb: "patch", ..write(at, "patcher", "hot".to_owned(), None) }));
    events.extend(every(5.0, |at, number| Event {
        verb: "create",
        code: 409,
        ..write(at, "creator", format!("c{number}"), None)
    }));
    events.extend(every(5.0, |at, number| Event {
        verb: "delete",
        code: 404,
        ..write(at, "deleter", format!("d{number}"), None)
    }));
    events.extend(every(10.0, |at, _| Event {
        verb: "patch",
        code: 403,
        ..write(at, "denied", "mine".to_owned(), None)
    }));
    events.extend(every(0.5, |at, number| Event {
        verb: "create",
        resource: "events",
        ..write(at, "flood", format!("f{number}"), None)
    }));
    events.extend(every(60.0, |at, number| Event {
        body: Some(
            json!({"status": {"checked": format!("2026-11-27T{:02}:{:02}:00Z", 10 + number / 60, number % 60)}}),
        ),
        ..write(at, "stamper", "stamped".to_owned(), Some(3_000_000 + u64::from(number)))
    }));
    for (user, after, value) in [("one", 0.0, 1), ("other", 10.0, 2)] {
        let body = Some(json!({"metadata": {"name": "fought", "resourceVersion": value}, "spec": value}));
        events.extend(every(20.0, |at, _| Event {
            body: body.clone(),
            ..write(at + after, user, "fought".to_owned(), None)
        }));
    }
    events
}

#[test]
fn a_gate_names_the_loops_that_the_log_shows() {
    let found = audited(&log(planted()));
    let user = |caller: &HotCaller| caller.name.split(' ').next().unwrap_or_default().to_owned();
    let in_log = found.loops.iter().map(|one| {
        let mut callers: Vec<_> = one.callers.iter().map(user).collect();
        callers.sort();
        (one.kind.to_string(), one.names.object.to_string(), callers)
    });
    let (named, begun) = gated(planted());
    assert_eq!(named, in_log.collect());
    assert_eq!((named.len(), begun), (10, 10), "each is named once");
}

#[test]
fn every_loop_is_named_with_its_object_and_caller() {
    let found = audited(&log(planted()));
    assert_eq!(found.loops.len(), 10, "{:#?}", found.loops);
    for (user, kind, object) in [
        ("fast", LoopKind::Unchanged, "n/same"),
        ("slow", LoopKind::Unchanged, "n/same-too"),
        ("stamper", LoopKind::Unchanged, "n/stamped"),
        ("spread", LoopKind::Spread, "n"),
        ("patcher", LoopKind::Fast, "n/hot"),
        ("creator", LoopKind::AlreadyThere, "n"),
        ("deleter", LoopKind::AlreadyGone, "n"),
        ("denied", LoopKind::Denied, "n/mine"),
        ("flood", LoopKind::EventFlood, "n"),
        ("one", LoopKind::TwoWriters, "n/fought"),
        ("other", LoopKind::TwoWriters, "n/fought"),
    ] {
        let one = of(&found, user);
        assert_eq!((one.kind, &*one.names.object), (kind, object), "{one:?}");
    }
    assert_eq!((of(&found, "denied").status, of(&found, "spread").objects), (Some(403), 38));
    let said = report::sentences(&found).join("\n");
    assert!(
        said.contains(" by stamper (stamper/v1); 100% of the writes repeated an earlier one, times aside."),
        "{said}"
    );
    let page = include_str!("../../../docs/audit.md");
    let shown = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    for sentence in shown.trim().split("\n\n") {
        assert!(said.contains(sentence), "docs/audit.md: {sentence}\n{said}");
    }
}

#[test]
fn a_late_lease_the_worst_second_and_a_bucket_are_named() {
    let mut events = healthy();
    events.retain(|event| event.resource != "leases" || !(1000.0..1012.0).contains(&event.second));
    events.extend((0..600).map(|number| Event {
        verb: "list",
        ..write(1001.0 + f64::from(number) / 1000.0, "starter", String::new(), None)
    }));
    let found = audited(&log(events));
    assert_eq!(found.late[0].lease, "n/lock");
    assert_eq!((found.worst.at.as_secs(), found.worst.lists), (1001, 600));
    let said = report::sentences(&found).join("\n");
    assert!(said.contains("Lease n/lock was not renewed for 14.0 s until 10:16:52 UTC"), "{said}");
    assert!(said.contains("Worst second, 10:16:41 UTC: 60"), "{said}");
    let starter = found.callers.iter().find(|caller| caller.name.starts_with("starter")).expect("it is there");
    assert_eq!((starter.calls, starter.peak), (600, 600));
}

/// A gate's log has hashes for names.
#[test]
fn in_a_gates_log_one_object_is_told_from_another() {
    let line = |second: u64, key: &str, status: u16| {
        let at = second * 1_000_000_000;
        format!(
            "{{\"arrived_ns\":{at},\"wall_ms\":{},\"gate\":\"k\",\"class\":\"default\",\"verb\":\"update\",\
             \"resource\":\"widgets\",\"namespace\":\"n\",\"user_agent\":\"operator/1\",\"key\":\"{key}\",\
             \"sent_ns\":{at},\"upstream_ns\":1,\"status\":{status}}}\n",
            1_000_000 + second * 1000
        )
    };
    let text: String = (1..360).map(|number| line(number * 10, "0a", 403) + &line(number * 10, "0b", 200)).collect();
    let found = audited(&text);
    let one = of(&found, "operator");
    assert_eq!((one.kind, &*one.names.object, one.calls), (LoopKind::Denied, "n/000000000000000a", 359));
}

#[test]
fn a_log_on_standard_input_is_read_and_one_that_tells_nothing_says_what_to_change() {
    let run = |arguments: &[&str], text: &str| {
        let mut command = tidegate(arguments.iter().copied());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(text.as_bytes()).expect("it reads");
        drop(input);
        let out = child.wait_with_output().expect("it ends");
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr))
    };
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("found.json");
    let text = log(every(3.0, |at, _| write(at, "slow", "same".to_owned(), Some(8)))) + "{\"half\": ";
    let (code, said) = run(&["audit", "-", "--json", &json.display().to_string()], &text);
    assert_eq!(code, Some(65), "{said}");
    assert!(said.starts_with("1,197 calls of 1 caller in 59 m 48 s\n"), "{said}");
    assert!(said.contains("lines cannot be read: -:1198: "), "{said}");
    let found: Value = serde_json::from_str(&std::fs::read_to_string(&json).expect("written")).expect("JSON");
    assert_eq!((&found["loops"][0]["kind"], &found["loops"][0]["object"]), (&json!("unchanged"), &json!("n/same")));
    assert_eq!((&found["unreadable"], &found["callers"][0]["writes"]), (&json!(1), &json!(1197)));

    let received = text.replace("ResponseComplete", "RequestReceived");
    let (code, said) = run(&["audit", "-"], &received);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("1197 events are of another stage than ResponseComplete"), "{said}");
}
