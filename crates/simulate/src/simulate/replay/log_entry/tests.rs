//! Lines of every log that is read: a gate's own, an audit log, and the envelopes of the clouds.

use serde_json::{Value, json};

use super::*;

fn read(text: &str) -> LogEntry {
    serde_json::from_str(text).expect("a line")
}

#[test]
fn lines_are_read_with_fields_that_are_new() {
    let text = r#"{"arrived_ns":5,"wall_ms":9,"gate":"g","class":"default","lane":"normal","flow":"0a","verb":"update","group":"apps",
        "resource":"deployments","key":"0b","facet":"02","waited_ns":3,"waited_for":"bucket","sent_ns":8,"upstream_ns":2,"status":503}"#;
    let line = read(text);
    assert_eq!(
        line.hashes(),
        Hashes { key: Some(Key { object: 11, collection: 0, facet: 2 }), flow: 10, credential: 0 }
    );
    let body = Duration::ZERO;
    assert_eq!(
        line.ending(),
        CallEnd::Answered { after: Duration::from_nanos(2), body, status: 503, retry_after: None }
    );
    let newer =
        r#"{"arrived_ns":5,"wall_ms":9,"gate":"g","class":"c","verb":"frob","refused":"mood","wind":{"from":"west"}}"#;
    assert_eq!((read(newer).verb(), read(newer).ending()), (Verb::Other, CallEnd::NotReplayed));
}

#[test]
fn every_end_is_told_apart() {
    let line = |rest: &str| {
        read(format!(r#"{{"arrived_ns":5,"wall_ms":9,"gate":"g","class":"c","verb":"get"{rest}}}"#).leak()).ending()
    };
    assert_eq!(line(r#","sent_ns":6,"status":502"#), CallEnd::Lost);
    assert_eq!(line(r#","status":502"#), CallEnd::NotReplayed, "no connection");
    assert_eq!(line(r#","gave_up_ns":7"#), CallEnd::GaveUp { after: Duration::from_nanos(7) });
    assert_eq!(line(r#","sent_ns":6,"gave_up_ns":7"#), CallEnd::GaveUp { after: Duration::from_nanos(7) });
    assert_eq!(line(r#","refused":"slot","status":429"#), CallEnd::Refused(Reason::Slot));
}

fn call(text: &str) -> LogEntry {
    match LogEntry::read(text.as_bytes()) {
        Ok(Contents::Call(entry)) => *entry,
        other => panic!("{other:?}: {text}"),
    }
}

fn event(stage: &str, verb: &str) -> String {
    format!(
        r#"{{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"a","stage":"{stage}",
        "requestURI":"/apis/apps/v1/namespaces/n/deployments/web","verb":"{verb}",
        "user":{{"username":"system:serviceaccount:n:operator","groups":["g"]}},"sourceIPs":["10.0.0.1"],
        "userAgent":"operator/v1 (linux/amd64) kubernetes/1","objectRef":{{"resource":"deployments","namespace":"n","name":"web",
        "apiGroup":"apps","apiVersion":"v1"}},"responseStatus":{{"metadata":{{}},"code":409}},
        "requestReceivedTimestamp":"2026-11-27T10:00:00.250000Z","stageTimestamp":"2026-11-27T10:00:00.257000Z"}}"#
    )
}

/// What the findings need of a call: caller, object, verb and ending.
fn seen(entry: &LogEntry) -> Value {
    let CallEnd::Answered { after, status, .. } = entry.ending() else { panic!("{entry:?}") };
    json!([
        entry.arrived_ns / 1_000_000,
        after.as_millis(),
        entry.client,
        entry.user_agent,
        entry.verb().word(),
        entry.group,
        entry.resource,
        entry.subresource,
        entry.namespace,
        entry.object.name.as_ref(),
        status
    ])
}

#[test]
fn the_answer_of_an_audit_event_is_a_call() {
    let entry = call(&event("ResponseComplete", "update"));
    let after = Duration::from_millis(7);
    let body = Duration::ZERO;
    assert_eq!(entry.ending(), CallEnd::Answered { after, body, status: 409, retry_after: None });
    assert_eq!(entry.arrived_ns, 1_795_773_600_250_000_000);
    for caller in ["operator", "operator/v1", "system:serviceaccount:n:operator"] {
        assert!(entry.is_of(caller), "{caller}");
    }
    assert!(!entry.is_of("another") && entry.hashes().key.is_some());
    let dry = event("ResponseComplete", "update").replace("deployments/web\"", "deployments/web?dryRun=All\"");
    assert_eq!((entry.dry_run, call(&dry).dry_run), (Some(false), Some(true)), "GitOps asks so what a write would do");
}

#[test]
fn each_call_of_an_audit_log_counts_once() {
    let is_call =
        |stage, verb| matches!(LogEntry::read(event(stage, verb).as_bytes()).expect("it is read"), Contents::Call(_));
    assert!(!is_call("RequestReceived", "update") && !is_call("ResponseComplete", "watch"));
    assert!(is_call("ResponseStarted", "watch"));
}

#[test]
fn a_broken_event_and_an_unknown_one_are_named() {
    let broken = event("ResponseComplete", "get").replace("2026-11-27T10:00:00.25", "yesterday ");
    let error = |text: &str| LogEntry::read(text.as_bytes()).expect_err("no call");
    assert_eq!(error(&broken), "expected a time such as 2026-11-27T10:00:00Z");
    assert_eq!(error("{\"kind\":\"List\"}"), "JSON of an unknown kind");
    let cut = json!({ "message": broken.get(..99) }).to_string();
    assert!(error(&cut).starts_with("EOF while parsing"), "{}", error(&cut));
}

#[test]
fn an_event_in_an_envelope_is_the_same_call() {
    let text = event("ResponseComplete", "update");
    let own = call(&text);
    let object: Value = serde_json::from_str(&text).expect("JSON");
    for envelope in [
        json!({"id": "3", "timestamp": 1_795_773_600_257_u64, "message": text}),
        json!({"@timestamp": "2026-11-27 10:00:00.257", "@message": text}),
        json!({"time": "2026-11-27T10:00:00Z", "category": "kube-audit", "properties": {"log": format!("{text}\n"), "pod": "a"}}),
        json!({"category": "kube-audit", "properties": json!({"log": text}).to_string()}),
        json!({"insertId": "1", "timestamp": "2026-11-27T10:00:01Z", "jsonPayload": object}),
    ] {
        let inside = call(&envelope.to_string());
        assert_eq!((seen(&inside), inside.hashes()), (seen(&own), own.hashes()), "{envelope}");
    }
    let line = r#"{"arrived_ns":5,"wall_ms":9,"gate":"g","class":"c","verb":"get","sent_ns":6,"status":502}"#;
    assert_eq!(call(&json!({ "message": line }).to_string()).ending(), CallEnd::Lost);
}

#[test]
fn what_is_beside_the_events_of_an_envelope_is_another_log() {
    for other in [
        json!({"message": "I1127 10:00:00.000000 1 httplog.go:132] \"HTTP\""}),
        json!({"category": "guard", "properties": {"log": "started", "pod": "a"}}),
        json!({"timestamp": "2026-11-27T10:00:01Z", "textPayload": "hello"}),
        json!({"timestamp": "2026-11-27T10:00:01Z", "protoPayload": {"serviceName": "container.googleapis.com"}}),
    ] {
        let read = LogEntry::read(other.to_string().as_bytes());
        assert!(matches!(read, Ok(Contents::OtherLog)), "{other}: {read:?}");
    }
}

fn of_gke(verb: &str, resource: &str, status: &Value) -> LogEntry {
    call(
        &json!({
            "insertId": "1", "logName": "projects/p/logs/cloudaudit.googleapis.com%2Factivity",
            "operation": {"id": "1", "first": true, "last": true, "producer": "k8s.io"},
            "protoPayload": {
                "@type": "type.googleapis.com/google.cloud.audit.AuditLog", "serviceName": "k8s.io",
                "methodName": format!("io.k8s.core.v1.pods.{verb}"), "resourceName": resource,
                "authenticationInfo": {"principalEmail": "system:serviceaccount:n:operator"},
                "requestMetadata": {"callerIp": "10.0.0.1", "callerSuppliedUserAgent": "operator/v1 (linux/amd64)"},
                "status": status, "response": {"metadata": {"resourceVersion": "7"}},
            },
            "timestamp": "2026-11-27T10:00:00.250Z", "receiveTimestamp": "2026-11-27T10:00:01Z",
        })
        .to_string(),
    )
}

#[test]
fn gkes_own_form_is_read_as_a_call() {
    let at = 1_795_773_600_250_u64;
    let operator = "system:serviceaccount:n:operator";
    for (name, group, resource, subresource, namespace, object) in [
        ("core/v1/namespaces/n/pods/web", "", "pods", "", "n", "web"),
        ("core/v1/namespaces/n/pods", "", "pods", "", "n", ""),
        ("apps/v1/namespaces/n/deployments/web/status", "apps", "deployments", "status", "n", "web"),
        ("core/v1/nodes/one/status", "", "nodes", "status", "", "one"),
        ("core/v1/namespaces/n", "", "namespaces", "", "", "n"),
        ("readyz", "readyz", "", "", "", ""),
    ] {
        let expected =
            json!([at, 0, operator, "operator/v1", "update", group, resource, subresource, namespace, object, 200]);
        assert_eq!(seen(&of_gke("update", name, &json!({}))), expected, "{name}");
    }
    let status =
        |code: u16| seen(&of_gke("create", "core/v1/namespaces/n/pods/web", &json!({"code": code})))[10].clone();
    assert_eq!([0, 6, 7, 8, 409].map(status), [200, 409, 403, 429, 409]);
    assert!(of_gke("create", "core/v1/namespaces/n/pods/web", &json!({})).object.content.version.is_some());
}

#[test]
fn a_record_of_cloudtrail_is_a_call() {
    let record = |error: Option<&str>| {
        json!({
            "eventVersion": "1.08", "eventTime": "2026-11-27T10:00:00Z", "eventSource": "ec2.amazonaws.com",
            "eventName": "DescribeInstances", "awsRegion": "eu-west-1", "recipientAccountId": "123456789012",
            "userIdentity": {"type": "AssumedRole", "arn": "arn:aws:sts::123456789012:assumed-role/crossplane/1"},
            "userAgent": "aws-sdk-go/1.44 (go)", "errorCode": error, "readOnly": true, "responseElements": null,
        })
    };
    let expected = json!([
        1_795_773_600_000_u64,
        0,
        "arn:aws:sts::123456789012:assumed-role/crossplane/1",
        "aws-sdk-go/1.44",
        "get",
        "ec2.amazonaws.com",
        "DescribeInstances",
        "",
        "123456789012/eu-west-1",
        "",
        200
    ]);
    assert_eq!(seen(&call(&record(None).to_string())), expected);
    assert_eq!(seen(&call(&json!({"CloudTrailEvent": record(None).to_string()}).to_string())), expected);
    for (code, status) in [
        ("ThrottlingException", 429),
        ("Client.RequestLimitExceeded", 429),
        ("Client.UnauthorizedOperation", 403),
        ("NoSuchEntityException", 400),
        ("ServiceUnavailableException", 500),
    ] {
        assert_eq!(seen(&call(&record(Some(code)).to_string()))[10], json!(status), "{code}");
    }
}
