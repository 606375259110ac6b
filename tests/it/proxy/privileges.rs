//! Every way out of a limit, and who does not get it: the table of SECURITY.md ("Privileges of a
//! call"), held by the real classifier and the real limiter. What only the wire can tell has tests of
//! its own, which the table names.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderMap, HeaderName, Method, StatusCode, Uri};
use regex::Regex;
use tidegate::api::signals::Response;
use tidegate::api::{Group, Key, outcome};
use tidegate::classify::{ClassifiedCall, Salt};
use tidegate::dialect::{Head, LONGEST_FORM, Words};
use tidegate::limit::policy::{InFlight, Lane};
use tidegate::limit::{Arrival, ClassId, Flow, Limiter, Policy, Verdict};
use tidegate::moment::Moment;
use tidegate::{config, spec};

use self::Privilege::{Exempt, Keyless, Patient, Uncounted, Unmetered, Unslotted};
use crate::support::{Backend, Proxy, bucket, status};

/// A limit that does not apply to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Privilege {
    Exempt,
    Unmetered,
    Unslotted,
    Keyless,
    Patient,
    Uncounted,
}

impl Privilege {
    fn word(self) -> &'static str {
        match self {
            Exempt => "exempt",
            Unmetered => "no token",
            Unslotted => "no slot",
            Keyless => "no key",
            Patient => "not refused on arrival",
            Uncounted => "failures do not count",
        }
    }
}

/// A gate's kind, dialect and preset.
#[derive(Clone, Copy)]
enum At {
    Kubernetes,
    Http,
    Aws,
    Google,
    Github,
    Docker,
}

/// A request at a gate.
#[derive(Clone)]
struct Asked {
    at: At,
    line: String,
    headers: Vec<(&'static str, String)>,
    body: String,
}

fn asked(at: At, line: &str) -> Asked {
    Asked { at, line: line.to_owned(), headers: Vec::new(), body: String::new() }
}

fn k8s(line: &str) -> Asked {
    asked(At::Kubernetes, line)
}

impl Asked {
    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    fn signed(self, service: &str) -> Self {
        let scope = format!("AKID/20260101/eu-central-1/{service}/aws4_request");
        self.with("authorization", &format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=x"))
    }

    fn body(self, body: &str) -> Self {
        Self { body: body.to_owned(), ..self }
    }

    fn gate(&self) -> spec::Gate {
        load(match self.at {
            At::Kubernetes => "upstream = \"in_cluster\"",
            At::Http => "kind = \"http\"\nupstream = \"https://x\"",
            At::Aws => "kind = \"http\"\nupstream = \"https://x\"\npreset = \"aws\"",
            At::Google => "kind = \"http\"\nupstream = \"https://x\"\ndialect = \"google\"",
            At::Docker => "upstream = \"https://x\"\npreset = \"docker\"",
            At::Github => "kind = \"http\"\nupstream = \"https://x\"\ndialect = \"github\"",
        })
    }

    fn classify(&self, gate: &spec::Gate) -> (ClassifiedCall, Option<Key>) {
        let (method, target) = self.line.split_once(' ').expect("method and target");
        let (method, uri): (Method, Uri) = (method.parse().expect("a method"), target.parse().expect("a target"));
        let headers: HeaderMap = self
            .headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("a value")))
            .collect();
        let (salt, body) = (Salt::random(), self.body.as_bytes());
        let head = Head { method: &method, uri: &uri, headers: &headers };
        let beginning = if gate.rules.wants_body(&head) { body } else { &[] };
        let beginning = beginning.get(..LONGEST_FORM).unwrap_or(beginning);
        let call = gate.rules.classify_with(&head, beginning, &salt);
        let key = call.key.known().or_else(|| call.key.with_body(body, true, &salt));
        (call, key)
    }
}

/// One way out of a limit.
struct Way {
    /// As SECURITY.md has it.
    call: &'static str,
    gets: &'static [Privilege],
    /// The answer of the upstream, where that matters.
    answer: (u16, &'static str),
    /// Calls that have it rightly.
    rightly: Vec<Asked>,
    /// Calls that look alike, and have nothing.
    alike: Vec<Asked>,
}

const LOST: (u16, &str) = (500, "");
const WRONG_TYPE: &str =
    r#"{"message":"failed to create typed patch object (a/d; apps/v1, Kind=Deployment): .x: field not declared"}"#;

fn way(call: &'static str, gets: &'static [Privilege], rightly: Vec<Asked>, alike: Vec<Asked>) -> Way {
    Way { call, gets, answer: LOST, rightly, alike }
}

/// The ways on kubernetes gates.
fn of_kubernetes() -> Vec<Way> {
    const POD: &str = "/api/v1/namespaces/n/pods/p";
    const OBJECT: &str = "/api/v1/namespaces/n/configmaps/c";
    let each = |lines: &[&str]| lines.iter().map(|line| k8s(line)).collect::<Vec<_>>();
    let pod = |lines: &[&str]| lines.iter().map(|line| k8s(&line.replace("POD", POD))).collect::<Vec<_>>();
    let leader = r#"{"metadata":{"annotations":{"control-plane.alpha.kubernetes.io/leader":"{}"}}}"#;
    vec![
        way(
            "a call for `coordination.k8s.io`, or for kopf's peerings",
            &[Exempt],
            each(&[
                "PUT /apis/coordination.k8s.io/v1/namespaces/n/leases/l",
                "PATCH /apis/kopf.dev/v1/namespaces/n/kopfpeerings/p",
                "PATCH /apis/zalando.org/v1/clusterkopfpeerings/p",
            ]),
            [
                each(&[
                    "PUT /apis/Coordination.k8s.io/v1/namespaces/n/leases/l",
                    "PUT /apis/apps/v1/namespaces/n/leases/l",
                    "PUT /api/v1/namespaces/coordination.k8s.io/configmaps/leases",
                    "PUT /apis/coordination.k8s.io/v1/../../../api/v1/namespaces/n/configmaps/c",
                    "PUT /apis/coordination.k8s.io%2Fv1/namespaces/n/leases/l",
                    "PUT /apis/coordination.k8s.io//v1/namespaces/n/leases/l",
                    "PATCH /apis/kopf.dev/v1/namespaces/n/others/p",
                ]),
                vec![k8s(&format!("PUT {OBJECT}")).body(leader)],
            ]
            .concat(),
        ),
        way(
            "GET or HEAD of `/livez`, `/readyz`, `/healthz` and below, and of `/version`",
            &[Exempt],
            each(&["GET /livez", "HEAD /readyz", "GET /healthz/etcd", "GET /version"]),
            each(&[
                "POST /livez",
                "GET /livezx",
                "GET /version/x",
                "GET /livez/../api/v1/pods",
                "GET /livez%2F..%2Fapi/v1/pods",
                "GET /api/v1/namespaces/livez/configmaps/healthz",
            ]),
        ),
        way(
            "GET of a collection with `watch`",
            &[Unmetered, Unslotted],
            each(&["GET /api/v1/pods?watch=true", "GET /api/v1/watch/namespaces/n/pods"]),
            each(&[
                "GET /api/v1/pods?watch=false",
                "HEAD /api/v1/pods?watch=true",
                "DELETE /api/v1/namespaces/n/pods?watch=true",
                "GET /api/v1/namespaces/n/pods/p?watch=true",
                "PUT /api/v1/namespaces/n/configmaps/c?watch=true",
                "POST /api/v1/watch/namespaces/n/configmaps/c",
                "GET /apis/x.test/v1/watch",
                "GET /watch/pods",
            ]),
        ),
        way(
            "GET of a `log` with `follow`",
            &[Unmetered, Unslotted],
            pod(&["GET POD/log?follow=true"]),
            pod(&["GET POD/log", "GET POD/log?follow=false", "GET POD?follow=true", "POST POD/log?follow=true"]),
        ),
        way(
            "GET or POST of `exec`, `attach`, `portforward`; any method of `proxy`",
            &[Unmetered, Unslotted, Keyless, Patient, Uncounted],
            pod(&["POST POD/exec?command=sh", "GET POD/attach", "POST POD/portforward", "PUT POD/proxy/x"]),
            pod(&[
                "PUT POD/exec",
                "PATCH POD/attach",
                "DELETE POD/portforward",
                "GET /api/v1/namespaces/n/pods/exec",
                "GET /api/v1/proxy/namespaces/n/pods/p",
                "GET POD?subresource=exec",
                "POST /exec",
            ]),
        ),
        way(
            "a create without a name in the first 64 KiB of its body",
            &[Keyless],
            vec![k8s("POST /api/v1/namespaces/n/configmaps").body(r#"{"metadata":{"generateName":"c-"}}"#)],
            vec![
                k8s("POST /api/v1/namespaces/n/configmaps").body(r#"{"metadata":{"generateName":"c-","name":"c"}}"#),
                k8s("POST /api/v1/namespaces/n/pods/p/binding").body("{}"),
                k8s(&format!("PUT {OBJECT}")).body("{}"),
            ],
        ),
        way(
            "a write with `dryRun`",
            &[Uncounted],
            each(&["PUT /api/v1/namespaces/n/configmaps/c?dryRun=All"]),
            each(&[
                "GET /api/v1/namespaces/n/configmaps/c?dryRun=All",
                "PUT /api/v1/namespaces/n/configmaps/c?dryRun=",
            ]),
        ),
        Way {
            answer: (500, WRONG_TYPE),
            ..way(
                "a server-side apply that the API server says does not fit its type",
                &[Uncounted],
                vec![k8s(&format!("PATCH {OBJECT}")).with("content-type", "application/apply-patch+yaml")],
                vec![
                    k8s(&format!("PATCH {OBJECT}")).with("content-type", "application/merge-patch+json"),
                    k8s(&format!("PUT {OBJECT}")).with("content-type", "application/apply-patch+yaml"),
                ],
            )
        },
        Way {
            answer: (429, ""),
            ..way(
                "a POST of `eviction` that is answered with 429",
                &[Uncounted],
                pod(&["POST POD/eviction"]),
                pod(&["PUT POD/eviction", "POST /api/v1/namespaces/n/pods/eviction/status", "DELETE POD"]),
            )
        },
    ]
}

/// The ways on gates for external APIs.
fn of_external_apis() -> Vec<Way> {
    const HEALTH: &str = "POST /grpc.health.v1.Health/Check";
    let grpc = |at, line| asked(at, line).with("content-type", "application/grpc");
    let receive = |service| {
        let sent = asked(At::Aws, "POST /").signed(service).with("x-amz-target", "AmazonSQS.ReceiveMessage");
        sent.body(r#"{"QueueUrl":"q","WaitTimeSeconds":20}"#)
    };
    let long = "x".repeat((64 << 10) + 1);
    vec![
        way(
            "a gRPC health check, on a gate with a dialect",
            &[Exempt],
            vec![grpc(At::Google, HEALTH), grpc(At::Google, "POST /grpc.health.v1.Health/Watch")],
            vec![
                grpc(At::Http, HEALTH),
                grpc(At::Google, "GET /grpc.health.v1.Health/Check"),
                grpc(At::Google, "POST /grpc.health.v1.Health/Check?x=1"),
                grpc(At::Google, "POST /grpc.health.v1.Health/Other"),
                grpc(At::Google, "POST /grpc.health.v1.Health/Check/../../x"),
                grpc(At::Google, "POST /p.Service/Check"),
                asked(At::Google, HEALTH),
                asked(At::Google, HEALTH).with("content-type", "application/grpcish"),
                grpc(At::Aws, HEALTH).signed("s3"),
                grpc(At::Aws, "PUT /grpc.health.v1.Health/Check").signed("s3"),
            ],
        ),
        way(
            "GET or HEAD of GitHub's `/rate_limit`, and HEAD at Docker Hub: no pause either",
            &[Unmetered],
            vec![
                asked(At::Github, "GET /rate_limit"),
                asked(At::Github, "HEAD /api/v3/rate_limit?x=1"),
                asked(At::Docker, "HEAD /v2/library/nginx/manifests/latest"),
            ],
            vec![
                asked(At::Docker, "GET /v2/library/nginx/manifests/latest"),
                asked(At::Docker, "HEAD /v2/library/../nginx/manifests/latest"),
                asked(At::Http, "HEAD /v2/library/nginx/manifests/latest"),
                asked(At::Http, "GET /rate_limit"),
                asked(At::Github, "POST /rate_limit"),
                asked(At::Github, "GET /rate_limit/"),
                asked(At::Github, "GET //rate_limit"),
                asked(At::Github, "GET /rate_limit/../user"),
                asked(At::Github, "GET /search/rate_limit"),
            ],
        ),
        way(
            "SQS's `ReceiveMessage` with a `WaitTimeSeconds`",
            &[Unslotted],
            vec![receive("sqs"), asked(At::Aws, "GET /?Action=ReceiveMessage&WaitTimeSeconds=20").signed("sqs")],
            vec![
                receive("sqs").body(r#"{"QueueUrl":"q","WaitTimeSeconds":0}"#),
                receive("dynamodb"),
                receive("s3"),
                asked(At::Aws, "GET /?Action=ReceiveMessage&WaitTimeSeconds=20").signed("ec2"),
                asked(At::Aws, "GET /?Action=SendMessage&WaitTimeSeconds=20").signed("sqs"),
            ],
        ),
        way(
            "a POST with a body of more than 64 KiB (for AWS also PUT and PATCH)",
            &[Keyless],
            vec![asked(At::Http, "POST /graphql").body(&long), asked(At::Aws, "PUT /x").signed("lambda").body(&long)],
            vec![
                asked(At::Http, "POST /graphql").body(&"x".repeat(64 << 10)),
                asked(At::Http, "PUT /graphql").body(&long),
                asked(At::Aws, "PUT /b/k").signed("s3").body(&long),
            ],
        ),
    ]
}

/// The ways that only the wire can tell: what they give, and the tests that hold them.
const ON_THE_WIRE: &[(&str, &str, &[&str])] = &[
    (
        "`Upgrade`, once the upstream answers 101",
        "the slot comes back",
        &[
            "an_offered_upgrade_passes_no_bucket",
            "an_offered_upgrade_passes_no_failing_key",
            "an_offered_upgrade_passes_no_pause",
            "an_offered_upgrade_passes_no_limit_of_the_egress_listener",
            "an_offered_upgrade_is_bound_by_the_response_timeout",
            "the_slot_of_an_upgrade_comes_back_at_the_101",
        ],
    ),
    (
        "a gRPC call that is answered as gRPC, on a gate with a dialect",
        "the slot comes back at the head",
        &["a_grpc_stream_gives_its_slot_back_at_its_head", "only_a_grpc_answer_gives_its_slot_back_at_its_head"],
    ),
    (
        "a call with a credential that GitHub answers with 304",
        "its token comes back, 7 a second at most",
        &["a_304_gives_its_token_back_to_callers_that_the_upstream_knows"],
    ),
    (
        "a create or a POST whose body is not there 100 ms after its head",
        "no key until its answer",
        &["a_create_whose_body_dawdles_is_sent_once"],
    ),
];

/// The words by which a request may be told from another, besides its path; each with the reason
/// why that is no way out. A new one needs a line here, and perhaps a row.
const HEADERS: &[(&str, &str)] = &[
    ("AUTHORIZATION", "splits limits by credential, 1,000 of them apart; the refund of a 304, above"),
    ("CACHE_CONTROL", "keeps its call from being answered with a kept or shared answer"),
    ("CONNECTION", "`Upgrade`, above"),
    ("CONTENT_ENCODING", "of answers"),
    ("CONTENT_LENGTH", "bodies past 64 KiB, above"),
    ("CONTENT_TYPE", "apply patches and gRPC, above; the form of a body that is read for its action"),
    ("COOKIE", "is not shown"),
    ("DATE", "of answers"),
    ("EXPECT", "hides no failing key: `an_expectation_hides_no_failing_key`"),
    ("HOST", "the service of an unsigned call to AWS"),
    ("IF_MATCH", "keeps its call from being answered with a kept answer"),
    ("IF_MODIFIED_SINCE", "the same"),
    ("IF_NONE_MATCH", "the same; the refund of a 304, above"),
    ("IF_RANGE", "the same"),
    ("IF_UNMODIFIED_SINCE", "the same"),
    ("ORIGIN", "refuses requests of web pages"),
    ("PRAGMA", "the same"),
    ("PROXY_AUTHORIZATION", "is not shown"),
    ("RANGE", "keeps its call from being answered with a kept answer"),
    ("TRANSFER_ENCODING", "the same"),
    ("UPGRADE", "above"),
    ("USER_AGENT", "only where a class or `fair_by` of the configuration says so"),
    ("amz-sdk-request", "says that a call is a retry, which is only shown"),
    ("content-length", "may not be named by Connection"),
    ("content-type", "may not be named by Connection"),
    ("grpc-previous-rpc-attempts", "says that a call is a retry, which is only shown"),
    ("private-token", "splits limits by credential"),
    ("sec-fetch-site", "refuses requests of web pages"),
    ("smithy-protocol", "where the action of a call to AWS is, except for EC2 and S3, which ignore it"),
    ("x-amz-copy-source", "the action of a call to S3"),
    ("x-amz-region-set", "the region of a call to AWS"),
    ("x-amz-security-token", "is not shown"),
    ("x-amz-target", "the action of a call to AWS, except to EC2 and S3, which ignore it"),
    ("x-amzn-trace-id", "does not tell answers that are kept apart"),
    ("x-api-key", "splits limits by credential"),
    ("x-b3-spanid", "as x-amzn-trace-id"),
    ("x-b3-traceid", "as x-amzn-trace-id"),
    ("x-correlation-id", "as x-amzn-trace-id"),
    ("x-goog-user-project", "the account of a call to Google"),
    ("x-request-id", "as x-amzn-trace-id"),
];
/// Header fields of answers, and words that look like header fields.
const NO_HEADERS: &[&str] = &[
    "100-continue",
    "CONTENT_RANGE",
    "CONTENT_SECURITY_POLICY",
    "CONTENT_SECURITY_POLICY_REPORT_ONLY",
    "ETAG",
    "LAST_MODIFIED",
    "RETRY_AFTER",
    "SET_COOKIE",
    "TRAILER",
    "VARY",
    "cross-site",
    "grpc-retry-pushback-ms",
    "grpc-status",
    "grpc-status-details-bin",
    "no-store",
    "rpc-v2-cbor",
    "s3-control",
    "s3-object-lambda",
    "s3-outposts",
    "tidegate-cache",
    "x-kubernetes-pf-flowschema-uid",
    "x-kubernetes-pf-prioritylevel-uid",
    "x-www-form-urlencoded",
];
/// The query parameters that change how a Kubernetes call is read.
const QUERY: &[(&str, &str)] = &[
    ("dryRun", "above"),
    ("fieldSelector", "names the object of a list, and so its key"),
    ("follow", "above"),
    ("limit", "with `cost = \"list\"` a list costs what it asks for; a list that is cut short is no name's"),
    ("sendInitialEvents", "a watch that has it costs a token"),
    ("timeout", "shortens the wait"),
    ("timeoutSeconds", "one that is no number keeps fieldSelector from naming the object"),
    ("watch", "above"),
];

fn load(text: &str) -> spec::Gate {
    let text = format!("[gates.g]\n{text}\n");
    let loaded = config::load_text("f.toml".to_owned(), text.clone(), &[]);
    let loaded = loaded
        .unwrap_or_else(|problems| panic!("{text}: {}", problems.iter().map(|p| format!("{p}\n")).collect::<String>()));
    loaded.settings.gates.into_values().next().expect("a gate")
}

/// The call as the limiter gets it. A new field is a new way to be told apart: see to it that what
/// it gives has a row.
fn arrival<'a>(call: &ClassifiedCall, key: Option<Key>) -> Arrival<'a> {
    Arrival {
        class: call.class,
        flow: Flow { id: call.flow(), name: &"a flow" },
        key,
        key_in_body: call.key.needs_body(),
        credential: call.credential,
        quota: call.quota,
        write: call.goes_alone,
        reads: call.reads(),
        group: call.group,
        long_running: call.call.is_long_running,
        lists_first: call.call.lists_first,
        patient: call.is_patient(),
        timeout: call.call.timeout,
        cost: call.cost,
    }
}

/// A gate's classes, without any limit.
fn without_limits(gate: &spec::Gate) -> Policy {
    let mut policy = gate.policy.clone();
    (policy.bucket, policy.retry_bucket, policy.in_flight, policy.one_at_a_time) = (None, None, None, false);
    policy.queue.max_wait = Duration::from_secs(1);
    for class in &mut policy.classes {
        (class.bucket, class.in_flight, class.within, class.per_key) = (None, None, None, None);
        (class.own_bucket_only, class.meter_long_running) = (false, false);
    }
    policy
}

/// What the limiter says to a call after another that took the only token and the only slot.
fn verdict(policy: Policy, call: &Arrival<'_>) -> Verdict {
    let last = ClassId(u16::try_from(policy.classes.len() - 1).expect("few"));
    let mut limiter = Limiter::new(policy, 1, Moment::ZERO);
    for group in [Group::Exempt, Group::Short, Group::LongRunning] {
        limiter.add_room(group, 1000, Moment::ZERO);
    }
    let first = limiter.arrive(&Arrival::new(last, Flow { id: 1, name: &"another" }), Moment::ZERO);
    assert!(matches!(first, Verdict::Admit(_)), "{first:?}");
    limiter.arrive(call, Moment::ZERO)
}

/// Every privilege that a call has.
fn privileges(asked: &Asked, (status, body): (u16, &str)) -> BTreeSet<Privilege> {
    let gate = asked.gate();
    let (call, key) = asked.classify(&gate);
    let call_arrives = arrival(&call, key);
    let policy = || without_limits(&gate);
    let is_exempt = |verdict: &Verdict| matches!(verdict, Verdict::Admit(permit) if permit.is_exempt());
    if is_exempt(&verdict(policy(), &call_arrives)) {
        return BTreeSet::from([Exempt]);
    }
    let (one_token, one_slot) = (Some(bucket(0.000_001, 1)), Some(InFlight::new(NonZeroU32::MIN)));
    let goes = |policy| matches!(verdict(policy, &call_arrives), Verdict::Admit(_));
    let mut metered = Policy { bucket: one_token, ..policy() };
    metered.classes.iter_mut().for_each(|class| class.meter_long_running = true);
    let response = Response {
        status: StatusCode::from_u16(status).expect("a status"),
        headers: &HeaderMap::new(),
        body: body.as_bytes(),
        wall: None,
    };
    let failures = &gate.answers.failures[usize::from(call.class.0)];
    let told = outcome::answer(failures, &gate.answers.throttling, &call.call, &response);
    let all = [
        (Unmetered, goes(Policy { bucket: one_token, ..policy() })),
        (Unslotted, goes(Policy { in_flight: one_slot, ..policy() })),
        (Keyless, key.is_none()),
        (Patient, matches!(verdict(metered, &call_arrives), Verdict::Wait(_))),
        (Uncounted, !told.answer.outcome.counts()),
    ];
    all.into_iter().filter(|(_, has)| *has).map(|(privilege, _)| privilege).collect()
}

fn ways() -> Vec<Way> {
    of_kubernetes().into_iter().chain(of_external_apis()).collect()
}

#[test]
fn only_the_call_itself_has_a_privilege_and_nothing_alike() {
    let mut wrong = Vec::new();
    for way in ways() {
        let gets: BTreeSet<_> = way.gets.iter().copied().collect();
        assert!(way.alike.len() >= 2 && !way.rightly.is_empty(), "{}: too few calls", way.call);
        let each = way.rightly.iter().map(|asked| (asked, &gets));
        let none = BTreeSet::new();
        for (asked, expected) in each.chain(way.alike.iter().map(|asked| (asked, &none))) {
            let has = privileges(asked, way.answer);
            if has != *expected {
                wrong.push(format!("{}: {} {:?}: has {has:?}, not {expected:?}", way.call, asked.line, asked.headers));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The rows of the table in SECURITY.md: the call, and what it gets.
fn documented() -> BTreeSet<(String, String)> {
    let text = fs::read_to_string("SECURITY.md").expect("it is there");
    let (_, text) = text.split_once("### Privileges of a call\n").expect("the section");
    let (text, _) = text.split_once("\n### ").expect("a section after it");
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    rows.map(cells).map(|cells| (cells[1].clone(), cells[2].clone())).collect()
}

#[test]
fn the_page_has_every_way_out_of_a_limit() {
    let words = |way: &Way| way.gets.iter().map(|privilege| privilege.word()).collect::<Vec<_>>().join(", ");
    let probed = ways().into_iter().map(|way| (way.call.to_owned(), words(&way)));
    let on_the_wire = ON_THE_WIRE.iter().map(|(call, gets, _)| ((*call).to_owned(), (*gets).to_owned()));
    assert_eq!(documented(), probed.chain(on_the_wire).collect());
    let all_tests: String = files("tests/it").iter().map(|path| fs::read_to_string(path).expect("text")).collect();
    for test in ON_THE_WIRE.iter().flat_map(|(.., tests)| *tests) {
        assert!(all_tests.contains(&format!("fn {test}()")), "{test} is gone");
    }
}

/// The sources below a file or folder.
fn files(path: &str) -> Vec<PathBuf> {
    let path = Path::new(path);
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let inside = fs::read_dir(path).expect("a folder").map(|entry| entry.expect("readable").path());
    inside
        .flat_map(|path| files(path.to_str().expect("text")))
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}

/// The code of a source: without comments, and without its tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("text");
    let before_tests = text.split("#[cfg(test)]").next().unwrap_or_default();
    before_tests.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect()
}

fn found(text: &str, pattern: &str) -> BTreeSet<String> {
    let pattern = Regex::new(pattern).expect("a pattern");
    pattern.captures_iter(text).map(|found| found[1].to_owned()).collect()
}

fn named<'a>(known: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    known.into_iter().map(str::to_owned).collect()
}

#[test]
fn every_header_that_the_gate_reads_is_in_the_table() {
    let read = [
        "crates/call/src/classify",
        "crates/call/src/classify.rs",
        "crates/call/src/dialect",
        "crates/call/src/dialect.rs",
        "crates/call/src/api",
        "crates/proxy/src/proxy/admission.rs",
        "crates/proxy/src/proxy/admission",
        "crates/proxy/src/proxy/forward.rs",
        "crates/proxy/src/proxy/revalidate",
        "crates/proxy/src/proxy/revalidate.rs",
        "crates/proxy/src/proxy/stack.rs",
        "crates/proxy/src/proxy/guard/request.rs",
        "crates/proxy/src/proxy/tunnel.rs",
        "crates/proxy/src/proxy/observe",
        "crates/proxy/src/proxy/listener/connection.rs",
        "crates/upstream/src/upstream/protocol.rs",
        "crates/upstream/src/upstream/inbound.rs",
    ];
    let only_of_answers = ["crates/call/src/api/signals", "crates/call/src/dialect/refusal.rs"];
    let is_of_requests = |path: &PathBuf| {
        !only_of_answers.iter().any(|other| path.starts_with(other)) && !path.to_str().expect("text").contains("tests")
    };
    let code: String =
        read.iter().flat_map(|path| files(path)).filter(is_of_requests).map(|path| code(&path)).collect();
    let imported = found(&code, r"header::(\{[^}]*\}|[A-Z][A-Z_]+)");
    let constants: BTreeSet<_> = imported.iter().flat_map(|names| found(names, r"\b([A-Z][A-Z_]+)\b")).collect();
    let texts = found(&code, r#""([a-z0-9]+(?:-[a-z0-9]+)+)""#);
    let known = named(HEADERS.iter().map(|(name, _)| *name).chain(NO_HEADERS.iter().copied()));
    assert_eq!(constants.union(&texts).cloned().collect::<BTreeSet<_>>(), known);
}

#[test]
fn every_other_word_that_frees_a_call_is_in_the_table() {
    let kubernetes = code(Path::new("crates/call/src/api/kubernetes.rs"));
    let function = kubernetes.split("fn is_long_running").nth(1).and_then(|rest| rest.split("\n}").next()).expect("it");
    let subresources = named(["attach", "exec", "log", "portforward", "proxy"]);
    assert_eq!(found(function, "\"([a-z]+)\""), subresources);
    assert_eq!(found(function, r"Verb::(\w+)"), named(["Proxy", "Watch"]));
    let query = code(Path::new("crates/call/src/api/query.rs"));
    assert_eq!(found(&query, r#""(\w+)" => &mut found"#), named(QUERY.iter().map(|(name, _)| *name)));
    let outcomes = code(Path::new("crates/call/src/api/outcome.rs"));
    let facts = named(["is_dry_run", "is_long_running", "is_resource", "is_tunnel"]);
    assert_eq!(found(&outcomes, r"call\.(is_\w+)"), facts, "what keeps a failure from counting");
    let Words {
        service: _,
        region: _,
        account: _,
        action: _,
        reads: _,
        unfiltered: _,
        is_retry: _,
        waits_upstream: _, // the only one that frees a call: SQS, above
        instances: _,
        serial: _,
        is_grpc: _, // health checks, above
    } = Words::default();
}

#[test]
fn no_other_class_is_exempt_unless_a_configuration_says_so() {
    let exempt = |text: &str| {
        let classes = load(text).policy.classes;
        named(classes.iter().filter(|class| class.lane == Lane::Exempt).map(|class| &*class.name))
    };
    assert_eq!(exempt("upstream = \"in_cluster\""), named(["leases", "health"]));
    let presets = fs::read_dir("config/presets").expect("a folder").map(|entry| entry.expect("readable").path());
    for preset in presets {
        let preset = preset.file_stem().expect("a name").to_str().expect("text");
        for (kind, allowed) in [
            ("kind = \"http\"\nupstream = \"https://x\"", vec!["health"]),
            ("upstream = \"in_cluster\"", vec!["leases", "health"]),
        ] {
            let text = format!("[gates.g]\n{kind}\npreset = {preset:?}\n");
            if config::load_text("f.toml".to_owned(), text, &[]).is_ok() {
                let found = exempt(&format!("{kind}\npreset = {preset:?}"));
                assert!(found.is_subset(&named(allowed)), "{preset}: {found:?}");
            }
        }
    }
}

/// The class for ConfigMap and Endpoints locks that docs/tuning.md gives. Their annotation is no way
/// out: any client can write it.
#[tokio::test]
async fn a_lock_that_is_named_is_exempt_and_no_other_object() {
    let page = fs::read_to_string("docs/tuning.md").expect("it is there");
    let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let locks = blocks.into_iter().find(|block| block.contains("name = \"locks\"")).expect("the class");
    let class = locks.replace("gates.kubernetes", "gates.g");
    let gate = load(&format!(
        "upstream = \"in_cluster\"\nbucket = {{ rate = 0.001, burst = 1 }}\nqueue.max_wait = \"0s\"\n{class}"
    ));
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).with(|options| {
        (options.gate.rules, options.gate.policy) = (gate.rules.clone(), gate.policy.clone());
        options.gate.answers.failures.clone_from(&gate.answers.failures);
    });
    let proxy = proxy.start().await;
    let leader = r#"{"metadata":{"annotations":{"control-plane.alpha.kubernetes.io/leader":"{}"}}}"#;
    let send = |line: &str| {
        let (length, proxy) = (leader.len(), &proxy);
        let head = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}");
        async move { status(&proxy.exchange(&format!("{head}\r\n\r\n{leader}")).await) }
    };
    assert_eq!(send("PUT /api/v1/namespaces/operators/configmaps/other").await, 200, "the only token");
    for line in [
        "GET /api/v1/namespaces/operators/configmaps/",
        "PUT /api/v1/namespaces/operators/configmaps/",
        "PATCH /api/v1/namespaces/operators/endpoints/",
    ] {
        assert_eq!(send(&format!("{line}my-operator-leader")).await, 200, "{line}");
    }
    for line in [
        "PUT /api/v1/namespaces/operators/configmaps/other",
        "PUT /api/v1/namespaces/elsewhere/configmaps/my-operator-leader",
        "PUT /api/v1/namespaces/operators/secrets/my-operator-leader",
        "DELETE /api/v1/namespaces/operators/configmaps/my-operator-leader",
        "GET /api/v1/namespaces/operators/configmaps?watch=false",
    ] {
        assert_eq!(send(line).await, 429, "{line}");
    }
}

#[test]
fn an_unclear_path_finds_no_class_in_shadow() {
    for (gate, line) in [
        ("upstream = \"in_cluster\"", "PUT /api/v1//namespaces/n/pods/p"),
        ("kind = \"http\"\nupstream = \"https://x\"", "PUT /a/../b"),
        ("kind = \"http\"\nupstream = \"https://x\"", "PUT /bulk%2Fa/b"),
    ] {
        let class = |shadow: &str| {
            let bulk =
                "name = \"bulk\"\nmatch = { paths = [\"/bulk/*\"] }\nlane = \"low\"\nbucket = { rate = 1, burst = 1 }";
            let gate = load(&format!("{gate}\n[[gates.g.classes]]\n{bulk}\n{shadow}"));
            let (call, _) = k8s(line).classify(&gate);
            gate.policy.classes[usize::from(call.class.0)].name.to_string()
        };
        assert_eq!(class(""), "bulk", "the strictest: {line}");
        assert_ne!(class("shadow = true"), "bulk", "{line}");
    }
}
