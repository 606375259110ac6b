//! Classes, flows and keys of whole requests.

use super::*;
use crate::api::{Key, Verb};

mod matching;

const LEASES: ClassId = ClassId(0);
const HEALTH: ClassId = ClassId(1);
const EC2: ClassId = ClassId(2);
const DISCOVERY: ClassId = ClassId(3);
const REVIEWS: ClassId = ClassId(4);
const EVENTS: ClassId = ClassId(5);
const DEFAULT: ClassId = ClassId(6);

fn ec2() -> Matcher {
    let list = |patterns: &[&str]| patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
    Matcher::default()
        .with(PatternList::Verbs, list(&["create"]))
        .with(PatternList::Groups, list(&["ec2.*"]))
        .with(PatternList::Namespaces, list(&["prod-*"]))
}

fn rules_with(fair_by: FairBy, matcher: Matcher) -> Rules {
    let traits = |exempt, strictness| Traits { exempt, remembers: true, strictness, cost: CostBy::Number(1) };
    let classes = vec![
        traits(true, 9),
        traits(true, 9),
        traits(false, 2),
        traits(false, 2),
        traits(false, 1),
        traits(false, 3),
        traits(false, 2),
    ];
    let rule = |class, matching| Rule { class, matching };
    let rules = vec![
        rule(LEASES, RuleMatch::Leases),
        rule(HEALTH, RuleMatch::Health),
        rule(EC2, RuleMatch::Patterns(Box::new(matcher))),
        rule(DISCOVERY, RuleMatch::Discovery),
        rule(REVIEWS, RuleMatch::Reviews),
        rule(EVENTS, RuleMatch::Events),
        rule(DEFAULT, RuleMatch::Everything),
    ];
    Rules::new(ApiKind::Kubernetes, fair_by, classes, rules)
}

/// A request line with headers as `METHOD TARGET [NAME:VALUE]...`.
fn classify(rules: &Rules, line: &str, hasher: &Salt) -> ClassifiedCall {
    let (method, target, headers) = request(line);
    rules.classify(&method, &target, &headers, hasher)
}

fn request(line: &str) -> (Method, Uri, HeaderMap) {
    let mut words = line.split(' ');
    let method = words.next().unwrap();
    let target = words.next().unwrap();
    let mut headers = HeaderMap::new();
    for word in words {
        let (name, value) = word.split_once(':').unwrap();
        headers.append(name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap());
    }
    (method.parse().unwrap(), target.parse().unwrap(), headers)
}

fn class(line: &str) -> ClassId {
    classify(&rules_with(FairBy::Resource, ec2()), line, &Salt::random()).class
}

fn key(line: &str, hasher: &Salt) -> Key {
    classify(&Rules::single(ApiKind::Kubernetes), line, hasher).key.known().expect(line)
}

#[test]
fn classes_are_matched_in_the_order_of_the_design() {
    for (line, expected) in [
        ("PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/l", LEASES),
        ("PATCH /apis/zalando.org/v1/namespaces/a/kopfpeerings/default", LEASES),
        ("PATCH /apis/kopf.dev/v1/clusterkopfpeerings/default", LEASES),
        ("PATCH /apis/kopf.dev/v1/clusterkopfexamples/x", DEFAULT),
        ("GET /livez", HEALTH),
        ("GET /readyz/etcd?verbose", HEALTH),
        ("GET /healthz/", HEALTH),
        ("GET /version", HEALTH),
        ("GET /version/x", DEFAULT),
        ("GET /livezz", DEFAULT),
        ("POST /livez", DEFAULT),
        ("POST /apis/ec2.aws.upbound.io/v1/namespaces/prod-eu/instances", EC2),
        ("POST /apis/ec2.aws.upbound.io/v1/namespaces/test/instances", DEFAULT),
        ("GET /apis/ec2.aws.upbound.io/v1/namespaces/prod-eu/instances", DEFAULT),
        ("GET /apis/apps/v1", DISCOVERY),
        ("GET /openapi/v3", DISCOVERY),
        ("POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", REVIEWS),
        ("POST /api/v1/namespaces/a/events", EVENTS),
        ("PATCH /apis/events.k8s.io/v1/namespaces/a/events/e", EVENTS),
        ("GET /apis/example.com/v1/events", DEFAULT),
        ("GET /api/v1/pods", DEFAULT),
        ("GET /", DEFAULT),
    ] {
        assert_eq!(class(line), expected, "{line}");
    }
}

#[test]
fn an_ambiguous_path_never_gets_a_lenient_class() {
    for line in [
        "PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/../../secrets/s",
        "GET /livez/..%2fapi/v1/secrets",
        "GET /healthz//x",
        "GET /livez;x",
        "POST /apis/ec2.aws.upbound.io/v1/namespaces/prod-eu//instances",
        "GET /api/v1/../v1/pods",
    ] {
        assert_eq!(class(line), EVENTS, "{line}: the highest rank that is not exempt");
    }
    let all_exempt = Rules::new(
        ApiKind::Http,
        FairBy::None,
        vec![Traits { exempt: true, remembers: true, strictness: 0, cost: CostBy::Number(1) }],
        vec![],
    );
    assert_eq!(classify(&all_exempt, "GET /a//b", &Salt::random()).class, ClassId(0));
}

#[test]
fn every_field_of_a_matcher_is_looked_at() {
    let one = |text: &str| vec![text.to_owned()];
    let pair = |name: &str, value: &str| vec![(name.parse().unwrap(), value.to_owned())];
    let cases = [
        (
            Matcher::default().with(PatternList::Verbs, one("deletecollection")),
            "DELETE /api/v1/pods",
            "DELETE /api/v1/namespaces/a/pods/b",
        ),
        (Matcher::default().with(PatternList::Verbs, one("delete*")), "DELETE /api/v1/pods", "GET /api/v1/pods"),
        (Matcher::default().with(PatternList::Groups, one("")), "GET /api/v1/pods", "GET /apis/apps/v1/deployments"),
        (Matcher::default().with(PatternList::Groups, one("*")), "GET /apis/apps/v1/deployments", "GET /debug/pprof"),
        (Matcher::default().with(PatternList::Resources, one("pods")), "GET /api/v1/pods", "GET /api/v1/nodes"),
        (
            Matcher::default().with(PatternList::Namespaces, one("")),
            "GET /api/v1/pods",
            "GET /api/v1/namespaces/a/pods",
        ),
        (
            Matcher::default().with(PatternList::Names, one("web-*")),
            "GET /api/v1/namespaces/a/pods/web-1",
            "GET /api/v1/namespaces/a/pods/db-1",
        ),
        (
            Matcher::default().with(PatternList::Subresources, one("status")),
            "PUT /api/v1/namespaces/a/pods/b/status",
            "PUT /api/v1/namespaces/a/pods/b",
        ),
        (Matcher::default().with(PatternList::Methods, one("HEAD")), "HEAD /api/v1/pods", "GET /api/v1/pods"),
        (Matcher::default().with(PatternList::Paths, one("/debug/*")), "GET /debug/pprof", "GET /metrics"),
        (
            Matcher::default().with(PatternList::UserAgents, one("kubectl/*")),
            "GET /a user-agent:kubectl/v1",
            "GET /a user-agent:manager",
        ),
        (Matcher::default().with(PatternList::UserAgents, one("*")), "GET /a user-agent:x", "GET /a"),
        (Matcher { headers: pair("x-a", "b*"), ..Matcher::default() }, "GET /a X-A:c x-a:bc", "GET /a x-a:c"),
        (
            Matcher { query: vec![("A".into(), "b*".into())], ..Matcher::default() },
            "GET /a?x=1&A=c&%41=%62c",
            "GET /a?a=bc",
        ),
    ];
    for (matcher, yes, no) in cases {
        let rules = rules_with(FairBy::Resource, matcher.clone());
        assert_eq!(classify(&rules, yes, &Salt::random()).class, EC2, "{matcher:?} {yes}");
        assert_ne!(classify(&rules, no, &Salt::random()).class, EC2, "{matcher:?} {no}");
    }
}

#[test]
fn flows_follow_fair_by() {
    let named = |fair_by, line: &str| {
        let classified = classify(&rules_with(fair_by, ec2()), line, &Salt::random());
        let (_, _, headers) = request(line);
        classified.flow_name(&headers).to_string()
    };
    let line = "GET /apis/apps/v1/namespaces/prod/deployments/web user-agent:manager/v1 authorization:Bearer-secret";
    assert_eq!(named(FairBy::None, line), "all");
    assert_eq!(named(FairBy::Resource, line), "deployments.apps");
    assert_eq!(named(FairBy::Resource, "GET /api/v1/pods"), "pods");
    assert_eq!(named(FairBy::Resource, "GET /openapi/v3"), "openapi");
    assert_eq!(named(FairBy::Resource, "GET /api/v1//pods"), "none", "a resource between two slashes");
    assert_eq!(named(FairBy::Namespace, line), "prod");
    assert_eq!(named(FairBy::Namespace, "GET /api/v1/nodes"), "none");
    assert_eq!(named(FairBy::UserAgent, line), "manager/v1");
    assert!(named(FairBy::Credential, line).starts_with("credential "));
    assert!(!named(FairBy::Credential, line).contains("secret"), "P12");
    assert_eq!(named(FairBy::Credential, "GET /api/v1/pods"), "no credential");

    let hasher = Salt::random();
    let rules = rules_with(FairBy::Credential, ec2());
    let flow = |line: &str| classify(&rules, line, &hasher).flow();
    assert_eq!(flow("GET /api/v1/pods authorization:a"), flow("GET /api/v1/nodes authorization:a"));
    assert_ne!(flow("GET /api/v1/pods authorization:a"), flow("GET /api/v1/pods authorization:b"));
}

#[test]
fn keys_tell_objects_and_their_parts_apart() {
    let hasher = Salt::random();
    let put = key("PUT /apis/apps/v1/namespaces/a/deployments/web", &hasher);
    assert_eq!(put, key("PATCH /apis/apps/v1/namespaces/a/deployments/web?x=1", &hasher), "writes share a key");
    assert_eq!(put, key("PUT /apis/apps/v1beta1/namespaces/a/deployments/web", &hasher), "whatever the version");
    let delete = key("DELETE /apis/apps/v1/namespaces/a/deployments/web", &hasher);
    assert_eq!((put.object, put.collection), (delete.object, delete.collection));
    assert_ne!(put.facet, delete.facet, "what cannot be written can still be deleted");
    assert_eq!(put.facet, crate::api::written_facet(delete.facet), "and is one of the writes");
    let get = key("GET /apis/apps/v1/namespaces/a/deployments/web", &hasher);
    assert_eq!((put.object, put.collection), (get.object, get.collection));
    assert_ne!(put.facet, get.facet);
    let status = key("PUT /apis/apps/v1/namespaces/a/deployments/web/status", &hasher);
    assert_eq!(put.object, status.object);
    assert_ne!(put.facet, status.facet);
    for other in [
        "/apis/apps/v1/namespaces/a/deployments/db",
        "/apis/apps/v1/namespaces/b/deployments/web",
        "/apis/x/v1/namespaces/a/deployments/web",
    ] {
        assert_ne!(put.object, key(&format!("PUT {other}"), &hasher).object, "{other}");
    }
    assert!(!put.is_collection_read() && !get.is_collection_read());
}

#[test]
fn a_collection_is_a_key_of_its_own() {
    let hasher = Salt::random();
    let list = key("GET /api/v1/namespaces/a/pods", &hasher);
    let watch = key("GET /api/v1/namespaces/a/pods?watch=1&fieldSelector=metadata.name=p", &hasher);
    let remove = key("DELETE /api/v1/namespaces/a/pods", &hasher);
    let pod = key("GET /api/v1/namespaces/a/pods/p", &hasher);
    assert_eq!([list.collection; 3], [watch.collection, remove.collection, pod.collection]);
    assert_eq!(list.object, watch.object);
    assert_ne!(list.facet, watch.facet, "a list that works must not forget a watch that does not");
    assert!(list.is_collection_read() && watch.is_collection_read() && !remove.is_collection_read());
    assert!(key("GET /apis/apps/v1", &hasher).is_collection_read(), "discovery too");
    assert!(!key("GET /metrics", &hasher).is_collection_read());
    assert_eq!(list.longest_delay().as_secs(), 5);
    assert_eq!(pod.longest_delay(), std::time::Duration::MAX);
}

#[test]
fn the_key_of_a_create_is_finished_from_its_body() {
    let hasher = Salt::random();
    let rules = Rules::single(ApiKind::Kubernetes);
    let create = classify(&rules, "POST /api/v1/namespaces/a/configmaps", &hasher);
    assert!(create.key.needs_body() && create.key.known().is_none());
    let body = br#"{"metadata":{"name":"c"}}"#;
    assert_eq!(create.key.with_body(body, true, &hasher), Some(key("PUT /api/v1/namespaces/a/configmaps/c", &hasher)));
    assert_eq!(create.key.with_body(br#"{"metadata":{"generateName":"c-"}}"#, true, &hasher), None);
    assert_eq!(create.key.collection(), Some(key("GET /api/v1/namespaces/a/configmaps", &hasher).collection));
    assert_eq!(create.key_name(Some(body)), "write configmaps/a/c");
    let evict = classify(&rules, "POST /api/v1/namespaces/a/pods/p/eviction", &hasher);
    assert!(evict.key.known().is_some() && !evict.key.needs_body());
}

#[test]
fn an_operation_of_an_external_api_is_keyed_by_its_body() {
    let hasher = Salt::random();
    let rules = Rules::single(ApiKind::Http);
    let post = classify(&rules, "POST /graphql", &hasher);
    let with = |body: &[u8], whole| post.key.with_body(body, whole, &hasher);
    assert_eq!(with(b"a", true), with(b"a", true));
    assert_ne!(with(b"a", true), with(b"b", true));
    assert!(with(b"", true).is_some());
    assert_eq!(with(b"a", false), None);
    assert_eq!(with(&vec![b'a'; 64 * 1024 + 1], true), None);
    assert_eq!(with(b"a", true).map(|key| key.collection), post.key.collection());
    assert_eq!(post.key_name(Some(b"a")), "write /graphql (body e40c292c)");
    let get = |line: &str| classify(&rules, line, &hasher).key.known().unwrap();
    assert_eq!(get("GET /repos/a?page=1"), get("HEAD /repos/a?page=2"), "the query is left out");
    assert_ne!(get("GET /repos/a"), get("PUT /repos/a"));
    let put = get("PUT /repos/a");
    let delete = get("DELETE /repos/a");
    assert_eq!((put, put.object), (get("PATCH /repos/a"), delete.object));
    assert_ne!(put.facet, delete.facet, "what cannot be written can still be deleted");
    assert!(!get("GET /repos/a").is_collection_read());
}

#[test]
fn names_of_keys_are_readable() {
    let hasher = Salt::random();
    let rules = Rules::single(ApiKind::Kubernetes);
    for (line, name) in [
        ("PUT /apis/apps/v1/namespaces/prod/deployments/web/status", "write deployments.apps/prod/web (status)"),
        ("GET /api/v1/namespaces/prod/pods", "list pods/prod"),
        ("GET /api/v1/nodes?watch=1", "watch nodes"),
        ("GET /api/v1/nodes/n", "read nodes/n"),
        ("GET /apis/apps/v1", "read /apis/apps/v1"),
        ("POST /api/v1/namespaces/a/configmaps", "write configmaps/a"),
        ("DELETE /api/v1/namespaces/a/configmaps/c", "delete configmaps/a/c"),
        ("DELETE /api/v1/namespaces/a/configmaps", "delete configmaps/a"),
    ] {
        assert_eq!(classify(&rules, line, &hasher).key_name(None), name, "{line}");
    }
}

#[test]
fn connections_and_patience_follow_the_call() {
    for (line, group, patient, remembered) in [
        ("GET /api/v1/pods", Group::Short, false, true),
        ("GET /api/v1/pods?watch=1", Group::LongRunning, false, true),
        ("GET /api/v1/namespaces/a/pods/p/log?follow=1", Group::LongRunning, false, true),
        ("POST /api/v1/namespaces/a/pods/p/exec", Group::LongRunning, true, false),
        ("GET /api/v1/namespaces/a/services/s/proxy/x", Group::LongRunning, true, false),
        ("PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/l", Group::Exempt, false, false),
        ("GET /livez", Group::Exempt, false, false),
    ] {
        let classified = classify(&rules_with(FairBy::Resource, ec2()), line, &Salt::random());
        assert_eq!((classified.group, classified.is_patient()), (group, patient), "{line}");
        assert_eq!(classified.key != KeySource::None, remembered, "{line}");
        assert_eq!(classified.exempt, group == Group::Exempt, "{line}");
    }
}

#[test]
fn a_class_that_remembers_nothing_has_no_keys() {
    let forgetful = Traits { exempt: false, remembers: false, strictness: 0, cost: CostBy::Number(1) };
    let rules = Rules::new(ApiKind::Kubernetes, FairBy::None, vec![forgetful], vec![]);
    assert_eq!(classify(&rules, "PUT /api/v1/namespaces/a/pods/p", &Salt::random()).key, KeySource::None);
}
