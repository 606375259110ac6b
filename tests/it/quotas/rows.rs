//! A pause belongs to a quota: no call waits for what another holder has used up, nor another
//! resource, with a preset and without. Each row was once wrong. In virtual time.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use tidegate::api::{outcome, signals};
use tidegate::classify::{ClassifiedCall, Salt};
use tidegate::config;
use tidegate::limit::{Limiter, Permit, Reason, Verdict};
use tidegate::moment::Moment;
use tidegate::spec;

const DATE: &str = "Thu, 26 Nov 2026 10:00:00 GMT";
/// The same in seconds since 1970.
const SENT: u64 = 1_795_687_200;
const HOUR: u64 = 3600;

/// A gate that holds no call, and what comes of each.
struct Door {
    gate: spec::Gate,
    limiter: Limiter,
    hasher: Salt,
    now: Moment,
}

/// A call that left.
struct Sent {
    call: ClassifiedCall,
    permit: Permit,
}

/// A request: its sender's credential, method and target.
#[derive(Clone, Copy, Debug)]
struct Ask<'a>(&'a str, &'a str);

impl Door {
    fn open(config: &str) -> Self {
        let text = format!("[gates.g]\nkind = \"http\"\nupstream = \"https://x\"\n{config}\n");
        let loaded = config::load_text("f.toml".to_owned(), text, &[]);
        let loaded = loaded.unwrap_or_else(|problems| panic!("{problems:?}"));
        let mut gate = loaded.settings.gates.into_values().next().expect("one");
        gate.policy.queue.max_wait = Duration::ZERO;
        let mut limiter = Limiter::new(gate.policy.clone(), 7, Moment::ZERO);
        limiter.add_room(tidegate::api::Group::Short, 1000, Moment::ZERO);
        Self { gate, limiter, hasher: Salt::random(), now: Moment::ZERO }
    }

    /// Makes a call, long enough after the last one for its token.
    fn call(&mut self, Ask(token, line): Ask<'_>) -> Result<Sent, Reason> {
        self.now += Duration::from_secs(8);
        let (method, target) = line.split_once(' ').expect("a method");
        let (method, target): (Method, Uri) = (method.parse().expect("one"), target.parse().expect("one"));
        let mut headers = HeaderMap::new();
        if !token.is_empty() {
            headers.insert("authorization", HeaderValue::from_str(token).expect("a value"));
        }
        let call = self.gate.rules.classify(&method, &target, &headers, &self.hasher);
        match self.limiter.arrive(&call.arrival(call.key.known(), &"flow"), self.now) {
            Verdict::Admit(permit) => Ok(Sent { call, permit }),
            Verdict::Refuse(refusal) => Err(refusal.reason),
            Verdict::Wait(_) => unreachable!("nobody waits"),
        }
    }

    /// The upstream answers, as the proxy reads it.
    fn answer(&mut self, Sent { call, permit }: Sent, status: u16, fields: &[(&str, &str)]) {
        let field = |(name, value): &(&str, &str)| {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            (name, HeaderValue::from_str(value).expect("a value"))
        };
        let headers: HeaderMap = [("date", DATE)].iter().chain(fields).map(field).collect();
        let status = StatusCode::from_u16(status).expect("a status");
        let response = signals::Response { status, headers: &headers, body: &[], wall: None };
        let answers = &self.gate.answers;
        let failures = &answers.failures[usize::from(call.class.0)];
        let told = outcome::answer(failures, &answers.throttling, &call.call, &response);
        let (_, receipt, slot) = permit.admit(());
        if let Some(word) = told.charged.filter(|word| !receipt.was_predicted(*word)) {
            self.limiter.learn_resource(&receipt, call.quota.action, word, self.now);
        }
        if let Err(receipt) = receipt.settle(self.limiter.keys(), told.answer) {
            self.limiter.finish(receipt, told.answer, None, &String::new, self.now);
        }
        self.limiter.release(slot, self.now);
        self.limiter.add_room(tidegate::api::Group::Short, 1, self.now);
    }

    /// The answer to a call that goes.
    fn told(&mut self, ask: Ask<'_>, status: u16, fields: &[(&str, &str)]) {
        let sent = self.call(ask).unwrap_or_else(|reason| panic!("{ask:?} was refused: {reason}"));
        self.answer(sent, status, fields);
    }

    /// The call goes, and nothing is learned of it.
    fn goes(&mut self, ask: Ask<'_>, why: &str) {
        match self.call(ask) {
            Ok(Sent { permit, .. }) => self.limiter.retract(permit, self.now),
            Err(reason) => panic!("{ask:?} was refused ({reason}), though {why}"),
        }
    }

    fn waits(&mut self, ask: Ask<'_>, why: &str) {
        match self.call(ask) {
            Ok(_) => panic!("{ask:?} went, though {why}"),
            Err(reason) => assert_eq!(reason, Reason::Pause, "{ask:?}: {why}"),
        }
    }
}

/// A configuration, a request, and the status and fields of its answer.
type Told<'a> = (String, &'a str, u16, Vec<(&'a str, &'a str)>);

/// GitHub's answer about a resource: the calls left of so many, and the seconds to its reset.
fn quota(resource: &str, limit: u64, left: u64, resets: u64) -> Vec<(&'static str, String)> {
    vec![
        ("x-ratelimit-resource", resource.to_owned()),
        ("x-ratelimit-limit", limit.to_string()),
        ("x-ratelimit-remaining", left.to_string()),
        ("x-ratelimit-reset", (SENT + resets).to_string()),
    ]
}

fn fields<'a>(owned: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    owned.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

/// What `GET /rate_limit` lists, each with a call that is charged to it.
const RESOURCES: [(&str, &str); 11] = [
    ("core", "GET /repos/o/r/issues"),
    ("search", "GET /search/issues?q=x"),
    ("code_search", "GET /search/code?q=x"),
    ("graphql", "POST /graphql"),
    ("integration_manifest", "POST /app-manifests/c/conversions"),
    ("dependency_snapshots", "POST /repos/o/r/dependency-graph/snapshots"),
    ("dependency_sbom", "GET /repos/o/r/dependency-graph/sbom"),
    ("code_scanning_upload", "POST /repos/o/r/code-scanning/sarifs"),
    ("code_scanning_autofix", "POST /repos/o/r/code-scanning/alerts/1/autofix"),
    ("actions_runner_registration", "POST /repos/o/r/actions/runners/registration-token"),
    ("audit_log", "GET /orgs/o/audit-log"),
];

const PRESET: &str = "preset = \"github\"";
const PLAIN: &str = "signals = { honour = [\"github\"], scope = \"credential\", reserve = 0.1, max_pause = \"65m\" }";
/// A resource of tomorrow: only answers tell.
const NEW: (&str, &str) = ("galaxies", "GET /repos/o/r/galaxies/7");

#[test]
fn a_small_quota_at_its_reserve_stops_its_own_calls_alone() {
    for (resource, limit, left) in
        [("dependency_sbom", 100, 10), ("audit_log", 1750, 175), ("code_scanning_autofix", 10, 1)]
    {
        for config in [PRESET, PLAIN] {
            let mut door = Door::open(config);
            let line = RESOURCES.iter().find(|(name, _)| *name == resource).expect("listed").1;
            door.told(Ask("A", line), 200, &fields(&quota(resource, limit, left, HOUR - 120)));
            door.waits(Ask("A", line), "it is charged to what is at its reserve");
            door.goes(Ask("A", "GET /repos/o/r/pulls"), "core has plenty");
            door.goes(Ask("A", "POST /repos/o/r/issues"), "core has plenty");
            door.goes(Ask("B", line), "B has a quota of its own");
        }
    }
}

#[test]
fn each_resource_of_githubs_stops_no_other_and_nobody_else() {
    for config in [PRESET, PLAIN] {
        for (resource, line) in RESOURCES.into_iter().chain([NEW]) {
            for status in [200, 403, 429] {
                let mut door = Door::open(config);
                door.told(Ask("A", line), status, &fields(&quota(resource, 5000, 0, HOUR)));
                // Until an answer tells otherwise the new one counts as core.
                let new = Some(NEW).filter(|_| resource != "core");
                for (other, other_line) in RESOURCES.into_iter().chain(new).filter(|(other, _)| *other != resource) {
                    door.goes(Ask("A", other_line), &format!("{other} is not {resource}"));
                }
                // Other calls of its path may have failed.
                let sibling = line.replace("/o/", "/p/").replace("/c/", "/d/").replace("/issues?", "/users?");
                if sibling == line && status != 200 {
                    assert!(door.call(Ask("A", line)).is_err(), "{resource} is used up");
                } else if config == PRESET || resource != "galaxies" || status == 200 {
                    door.waits(Ask("A", &sibling), &format!("{resource} is used up"));
                }
                door.goes(Ask("B", line), &format!("B has {resource} left"));
            }
        }
    }
}

#[test]
fn with_no_more_than_the_signals_another_token_is_not_refused_for_the_same_path() {
    let mut door = Door::open("signals.honour = [\"github\"]");
    door.told(Ask("A", "GET /user"), 403, &fields(&quota("core", 5000, 0, 3000)));
    assert_eq!(door.call(Ask("A", "GET /user")).err(), Some(Reason::Backoff));
    door.goes(Ask("B", "GET /user"), "its quota is its own");
}

#[test]
fn what_github_does_not_count_waits_for_no_quota_and_spends_no_token() {
    for config in [PRESET, PLAIN, "signals.honour = [\"github\"]"] {
        let mut door = Door::open(config);
        door.told(Ask("A", "GET /repos/o/r/issues"), 403, &fields(&quota("core", 5000, 0, HOUR)));
        for _ in 0..3 {
            door.told(Ask("A", "GET /rate_limit"), 200, &fields(&quota("core", 5000, 0, HOUR)));
        }
        let before = door.limiter.changes().takes;
        door.goes(Ask("A", "GET /rate_limit"), "it tells when to go on");
        assert!(door.limiter.changes().takes <= before + 1, "{config}");
    }
    let bucket = "bucket = { rate = 0.001, burst = 1 }\nsignals.honour = [\"github\"]";
    let mut door = Door::open(bucket);
    for _ in 0..5 {
        door.told(Ask("A", "GET /rate_limit"), 200, &[]);
    }
    door.told(Ask("A", "GET /user"), 200, &[]);
    assert_eq!(door.call(Ask("A", "POST /rate_limit")).err(), Some(Reason::Bucket), "another call");
}

#[test]
fn a_holder_of_no_provider_waits_for_another() {
    // What may refill is tried soon.
    let honour =
        |word: &str| format!("signals = {{ honour = [\"{word}\"], scope = \"credential\", quota = \"window\" }}");
    let one = "GET /subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines";
    let google = "GET /compute/v1/projects/p/zones/z/instances";
    let list = ("ratelimit", "\"default\";r=0;t=60");
    let triple = [("ratelimit-limit", "100"), ("ratelimit-remaining", "0"), ("ratelimit-reset", "60")];
    let epoch = (SENT + 60).to_string();
    let okta = [("x-rate-limit-limit", "600"), ("x-rate-limit-remaining", "0"), ("x-rate-limit-reset", epoch.as_str())];
    let pulls = [("ratelimit-limit", "100;w=21600"), ("ratelimit-remaining", "0;w=21600")];
    let reads = ("x-ms-ratelimit-remaining-subscription-reads", "0");
    let after = ("retry-after", "60");
    let cases: Vec<Told<'_>> = vec![
        ("preset = \"azure_arm\"".into(), one, 429, vec![after]),
        ("preset = \"azure_arm\"".into(), one, 429, vec![after, reads]),
        (honour("azure"), one, 429, vec![after]),
        ("preset = \"gcp\"".into(), google, 429, vec![after]),
        ("preset = \"aws\"\nhost = \"preserve\"".into(), "GET /a", 429, vec![after]),
        (honour("google"), google, 429, vec![after]),
        (honour("okta"), "GET /api/v1/users", 200, okta.to_vec()),
        ("preset = \"okta\"".into(), "GET /api/v1/users", 200, okta.to_vec()),
        ("preset = \"docker\"".into(), "GET /v2/library/x/manifests/1", 429, pulls.to_vec()),
        ("preset = \"gitlab\"".into(), "GET /api/v4/projects", 429, triple.to_vec()),
        (honour("okta"), "GET /api/v1/users", 429, okta.to_vec()),
        (honour("docker"), "GET /v2/library/x/manifests/1", 429, pulls.to_vec()),
        (honour("gitlab"), "GET /api/v4/projects", 429, triple.to_vec()),
        (honour("ietf"), "GET /a", 429, vec![list]),
        (honour("ietf"), "GET /a", 200, triple.to_vec()),
        (honour("ietf"), "GET /a", 200, vec![("ratelimit", "limit=100, remaining=0, reset=60")]),
        (honour("retry_after"), "GET /a", 503, vec![after]),
    ];
    for (config, line, status, said) in &cases {
        let mut door = Door::open(config);
        door.told(Ask("A", line), *status, said);
        // Google counts for projects, whoever calls, and a 503 counts for its path.
        let others = match config {
            config if config.contains("gcp") => line.replace("/p/", "/q/"),
            config if config.contains("retry_after") => "GET /b".to_owned(),
            _ => (*line).to_owned(),
        };
        door.goes(Ask("B", &others), &format!("{config} {status} {said:?}: B has a quota of its own"));
        door.goes(Ask("", &others), "nor is one without a credential A");
        let refused = door.call(Ask("A", line)).err();
        assert!(refused.is_some(), "{config} {status} {said:?}: A has used it up");
    }
}

#[test]
fn azures_kinds_of_operation_and_its_providers_are_quotas_apart() {
    let at = |kind: &str| format!("GET /subscriptions/s/providers/microsoft.{kind}/x");
    let mut door = Door::open("preset = \"azure_arm\"\nsignals.max_pause = \"15m\"");
    let left = [("retry-after", "600"), ("x-ms-ratelimit-remaining-subscription-reads", "0")];
    door.told(Ask("A", &at("compute")), 429, &left);
    door.waits(Ask("A", &at("network")), "reads of the subscription are used up");
    door.goes(Ask("A", "PUT /subscriptions/s/providers/microsoft.compute/x"), "writes are not");
    door.goes(Ask("A", "GET /subscriptions/t/providers/microsoft.compute/x"), "another subscription has its own");
    door.goes(Ask("A", "GET /tenants/t/providers/microsoft.compute/x"), "nor are those of a tenant");
}

#[test]
fn each_class_of_oktas_is_a_quota_of_its_own() {
    let reset = (SENT + 60).to_string();
    let spent = [("x-rate-limit-limit", "600"), ("x-rate-limit-remaining", "0"), ("x-rate-limit-reset", &reset)];
    let lines = ["users", "users/1", "users/1/groups", "apps", "apps/1", "groups", "groups/1", "logs", "policies"]
        .map(|path| format!("GET /api/v1/{path}"));
    for line in &lines {
        let mut door = Door::open("preset = \"okta\"");
        door.told(Ask("A", line), 200, &spent);
        door.waits(Ask("A", line), "it is used up");
        let began = door.now;
        for other in lines.iter().filter(|other| *other != line) {
            door.now = began;
            door.goes(Ask("A", other), &format!("{line} is another endpoint"));
        }
    }
}

#[test]
fn retry_after_in_decimals_and_as_a_time_of_day_is_waited_for() {
    let epoch = (SENT + 29).to_string();
    for (value, seconds) in [("30.0", 30), ("29.5", 30), ("30", 30), (&epoch, 30)] {
        let mut door = Door::open("signals.scope = \"gate\"");
        let sent = door.call(Ask("A", "GET /a")).expect("nothing stops it");
        door.answer(sent, 429, &[("retry-after", value)]);
        let until = door.limiter.pauses(door.now)[0].until;
        let began = door.now;
        assert_eq!(until - began, Duration::from_secs(seconds), "{value}");
        for other in 0..11 {
            let line = format!("GET /b/{other}");
            door.now = began;
            door.waits(Ask("B", &line), "everybody is asked to wait");
        }
        door.now = until;
        door.goes(Ask("B", "GET /b"), "it is over");
    }
    let mut door = Door::open("signals.scope = \"gate\"");
    door.told(Ask("A", "GET /a"), 429, &[("retry-after", "1.5s")]);
    door.goes(Ask("B", "GET /b"), "what is malformed says nothing");
}

const IETF: &str = "signals = { honour = [\"ietf\"], scope = \"gate\" }";

/// The fields of an answer about a quota of 3,600 calls.
fn hourly(left: u64, resets: u64) -> Vec<(&'static str, String)> {
    let number = |value: u64| value.to_string();
    vec![("ratelimit-limit", number(HOUR)), ("ratelimit-remaining", number(left)), ("ratelimit-reset", number(resets))]
}

// === impl Door ===

impl Door {
    /// The time until the end of the pause in force.
    fn pauses_for(&self) -> u64 {
        self.limiter.pauses(self.now).first().map_or(0, |pause| (pause.until - self.now).as_secs())
    }

    /// Moves time so that the next call arrives so many seconds after the last.
    fn pass(&mut self, seconds: u64) {
        self.now = Moment::from_millis((self.now.as_nanos() / 1_000_000) + seconds * 1000 - 8000);
    }
}

const A: Ask<'_> = Ask("A", "GET /a");

#[test]
fn a_quota_that_refills_is_tried_a_second_later_and_then_goes_at_its_rate() {
    let mut door = Door::open(IETF);
    door.told(A, 429, &fields(&hourly(0, HOUR)));
    assert_eq!(door.pauses_for(), 1);
    door.pass(1);
    let trial = door.call(A).expect("it is tried, though its key failed");
    door.pass(0);
    door.waits(Ask("B", "GET /b"), "one call is the trial");
    door.answer(trial, 200, &fields(&hourly(0, HOUR)));
    for _ in 0..10 {
        assert_eq!(door.pauses_for(), 1, "one token");
        door.pass(1);
        door.told(A, 200, &fields(&hourly(0, HOUR)));
    }
}

#[test]
fn two_answers_of_a_quota_that_refills_are_enough() {
    for config in [IETF, "signals = { honour = [\"ietf\"], scope = \"gate\", quota = \"refill\" }"] {
        let mut door = Door::open(config);
        door.told(A, 200, &fields(&hourly(3591, 9)));
        door.told(A, 200, &fields(&hourly(3576, 19)));
        door.told(A, 429, &fields(&hourly(0, HOUR)));
        assert_eq!(door.pauses_for(), 1, "{config}");
    }
}

#[test]
fn a_used_up_window_is_waited_for() {
    for config in [IETF, "signals = { honour = [\"ietf\"], scope = \"gate\", quota = \"window\" }"] {
        let mut door = Door::open(config);
        door.told(A, 200, &fields(&hourly(3000, 1800)));
        door.told(A, 200, &fields(&hourly(2900, 1792)));
        door.told(A, 429, &fields(&hourly(0, 600)));
        assert_eq!(door.pauses_for(), 600, "{config}");
    }
}

#[test]
fn a_quota_of_neither_kind_is_tried_ever_more_seldom_up_to_its_reset() {
    let mut door = Door::open(IETF);
    let mut waits = Vec::new();
    for _ in 0..9 {
        door.told(A, 429, &fields(&hourly(0, 100 - waits.iter().sum::<u64>())));
        waits.push(door.pauses_for());
        door.pass(waits[waits.len() - 1]);
        if waits.iter().sum::<u64>() >= 100 {
            break;
        }
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 37]);
}

#[test]
fn a_trial_that_takes_of_the_reserve_says_nothing_of_its_kind() {
    let mut door = Door::open("signals = { honour = [\"ietf\"], scope = \"gate\", reserve = 0.1 }");
    door.told(A, 200, &fields(&hourly(360, 1800)));
    let mut waits = Vec::new();
    for spent in 1..9 {
        waits.push(door.pauses_for());
        door.pass(1);
        door.told(A, 200, &fields(&hourly(360 - spent, 1800 - spent)));
    }
    assert_eq!(waits[..5], [1; 5], "trials");
    assert!(door.pauses_for() > 800, "two answers told that it is a window: {waits:?}");
}

#[test]
fn retry_after_goes_before_a_guess() {
    let mut door = Door::open(IETF);
    let mut said = hourly(0, HOUR);
    said.push(("retry-after", "30".to_owned()));
    door.told(A, 429, &fields(&said));
    assert_eq!(door.pauses_for(), 30);
}
