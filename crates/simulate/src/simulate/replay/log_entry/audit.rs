//! Reads an event of kube-apiserver's audit log (`audit.k8s.io/v1`) as an entry of the call log.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{LogEntry, ObjectFacts};

/// Reads an audit event of level Metadata or above: `None` if it is not one, `Some(None)` if it is
/// of an earlier stage than the response.
pub(super) fn read(line: &[u8]) -> Option<Option<LogEntry>> {
    let mut event: Value = serde_json::from_slice(line).ok()?;
    let body = event.pointer_mut("/requestObject").map(Value::take).and_then(body);
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let nanos = |pointer: &str| {
        let time = OffsetDateTime::parse(text(pointer), &Rfc3339).ok()?;
        u64::try_from(time.unix_timestamp_nanos()).ok()
    };
    let at = nanos("/requestReceivedTimestamp")?;
    let answered = nanos("/stageTimestamp")?;
    let verb = text("/verb");
    // A watch is answered when it begins.
    let last = if verb == "watch" { "ResponseStarted" } else { "ResponseComplete" };
    if text("/stage") != last {
        return Some(None);
    }
    let object = ["apiGroup", "resource", "subresource", "namespace", "name"];
    let object = object.map(|part| text(&format!("/objectRef/{part}")).to_owned());
    let key = hash(&object);
    let [group, resource, subresource, namespace, name] = object;
    let reads_and_deletes = ["get list watch", "deletecollection"];
    let facet = reads_and_deletes.iter().position(|verbs| verbs.contains(verb)).unwrap_or(reads_and_deletes.len());
    let status = event.pointer("/responseStatus/code").and_then(Value::as_u64);
    Some(Some(LogEntry {
        arrived_ns: at,
        wall_ms: at / 1_000_000,
        class: "default".to_owned(),
        verb: verb.to_owned(),
        group: Some(group),
        resource: Some(resource),
        subresource: Some(subresource),
        namespace: Some(namespace),
        key: (!name.is_empty()).then(|| format!("{key:x}")),
        facet: Some(facet.to_string()),
        user_agent: text("/userAgent").split_whitespace().next().map(str::to_owned),
        client: Some(text("/user/username").to_owned()),
        long_running: Some(verb == "watch"),
        sent_ns: Some(at),
        upstream_ns: Some(answered.saturating_sub(at)),
        status: status.map_or(Some(200), |status| u16::try_from(status).ok()),
        object: ObjectFacts {
            name: name.into(),
            base: version(text("/objectRef/resourceVersion")),
            version: version(text("/responseObject/metadata/resourceVersion")),
            body,
        },
        ..LogEntry::default()
    }))
}

/// Returns the hash of a written object. Its version and the record of its fields' owners differ
/// from write to write.
fn body(mut object: Value) -> Option<u64> {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    metadata.into_iter().for_each(|metadata| {
        ["resourceVersion", "managedFields"].iter().for_each(|field| drop(metadata.remove(*field)))
    });
    (!object.is_null()).then(|| hash(&object))
}

fn version(text: &str) -> Option<u64> {
    (!text.is_empty()).then(|| hash(text))
}

fn hash(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::super::{CallEnd, LogEntry};
    use std::time::Duration;

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

    #[test]
    fn the_answer_of_an_audit_event_is_a_call() {
        let entry =
            LogEntry::read(event("ResponseComplete", "update").as_bytes()).expect("it is read").expect("a call");
        let after = Duration::from_millis(7);
        let body = Duration::ZERO;
        assert_eq!(entry.ending(), CallEnd::Answered { after, body, status: 409, retry_after: None });
        assert_eq!(entry.arrived_ns, 1_795_773_600_250_000_000);
        for caller in ["operator", "operator/v1", "system:serviceaccount:n:operator"] {
            assert!(entry.is_of(caller), "{caller}");
        }
        assert!(!entry.is_of("another") && entry.hashes().key.is_some());
    }

    #[test]
    fn each_call_of_an_audit_log_counts_once() {
        let is_call = |stage, verb| LogEntry::read(event(stage, verb).as_bytes()).expect("it is read").is_some();
        assert!(!is_call("RequestReceived", "update") && !is_call("ResponseComplete", "watch"));
        assert!(is_call("ResponseStarted", "watch"));
    }

    #[test]
    fn a_broken_event_is_not_a_call() {
        let broken = event("ResponseComplete", "get").replace("2026-11-27T10:00:00.25", "yesterday ");
        assert!(LogEntry::read(broken.as_bytes()).is_err());
    }
}
