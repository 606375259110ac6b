//! A JSON value of a log, recognised by its fields: an event of an audit log (`audit.k8s.io/v1`), a
//! record of CloudTrail, or an envelope that holds one.
//!
//! An event is the text in `message` in CloudWatch Logs (EKS), in exports, subscriptions and
//! `aws logs` alike
//! (<https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/SubscriptionFilters.html>), the text in
//! `properties.log` in Azure Monitor (AKS)
//! (<https://github.com/dfo-mpo/aks-audit-log-go/blob/main/internal/eventhub/eventhub_unpacker.go>),
//! and an object in `jsonPayload` in Cloud Logging. GKE writes a `protoPayload` of type `AuditLog` in
//! its place, here read as falcosecurity/plugins reads it
//! (`plugins/k8saudit-gke/pkg/k8sauditgke/convert.go`); its status is a `google.rpc.Status`.
//! CloudTrail's fields:
//! <https://docs.aws.amazon.com/awscloudtrail/latest/userguide/cloudtrail-event-reference-record-contents.html>.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Contents, LogEntry, ObjectFacts, shortened};
use crate::api::signals::is_throttling;
use crate::hot::{Content, is_time};

/// The fields of all kinds of documents.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document<'a> {
    stage: String,
    verb: String,
    #[serde(borrow, rename = "requestURI")]
    request_uri: Cow<'a, str>,
    user: User,
    user_agent: Option<String>,
    object_ref: ObjectRef,
    response_status: Status,
    request_received_timestamp: String,
    stage_timestamp: String,
    #[serde(borrow)]
    request_object: Option<&'a RawValue>,
    #[serde(borrow)]
    response_object: Option<&'a RawValue>,

    /// What an envelope holds.
    #[serde(borrow, alias = "@message", alias = "log", alias = "properties", alias = "jsonPayload")]
    #[serde(alias = "textPayload", alias = "CloudTrailEvent")]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    proto_payload: Option<AuditLog<'a>>,
    #[serde(borrow)]
    timestamp: Option<&'a RawValue>,

    event_time: String,
    event_source: String,
    event_name: String,
    error_code: Option<String>,
    aws_region: String,
    recipient_account_id: String,
    user_identity: UserIdentity,
    read_only: Option<bool>,
}

/// Who called; in Cloud Logging, the program too.
#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    #[serde(alias = "principalEmail", alias = "callerSuppliedUserAgent")]
    username: String,
}

/// The object of a call.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
    resource_version: String,
}

/// The status of an answer: of HTTP, or a code of gRPC.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
}

/// An object in an answer.
#[derive(Deserialize)]
struct Answer {
    metadata: ObjectRef,
}

/// A `google.cloud.audit.AuditLog`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AuditLog<'a> {
    service_name: String,
    /// `io.k8s.core.v1.pods.create`.
    method_name: String,
    /// `core/v1/namespaces/shop/pods/web`.
    resource_name: String,
    authentication_info: User,
    request_metadata: User,
    status: Status,
    #[serde(borrow)]
    request: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
}

/// Who called, in CloudTrail: a user or role, or a service of AWS.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct UserIdentity {
    arn: Option<String>,
    principal_id: Option<String>,
    invoked_by: Option<String>,
}

/// Reads a document; `None` if it is of an unknown kind.
pub(super) fn read(text: &[u8], nested: u8) -> Result<Option<Contents>, String> {
    let mut document: Document<'_> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if let Some(log) = document.proto_payload.take() {
        return document.of_google(log).map(Some);
    }
    if let Some(message) = document.message.filter(|_| document.request_received_timestamp.is_empty()) {
        return inside(message, nested).map(Some);
    }
    if !document.event_source.is_empty() {
        document = document.of_cloudtrail();
    }
    if document.request_received_timestamp.is_empty() { Ok(None) } else { document.contents().map(Some) }
}

/// Reads what an envelope holds: a document, or its text.
fn inside(message: &RawValue, nested: u8) -> Result<Contents, String> {
    let text = serde_json::from_str::<String>(message.get());
    let text = text.as_deref().unwrap_or_else(|_| message.get()).trim();
    if !text.starts_with('{') || nested > MOST_NESTED {
        return Ok(Contents::OtherLog);
    }
    let document = LogEntry::read_nested(text.as_bytes(), nested + 1)?;
    Ok(document.unwrap_or(Contents::OtherLog))
}

// === impl Document ===

impl Document<'_> {
    /// Returns the call of an audit event.
    fn contents(self) -> Result<Contents, String> {
        let at = nanos(&self.request_received_timestamp)?;
        let answered = nanos(&self.stage_timestamp)?;
        // A watch is answered when it begins.
        let last = if self.verb == "watch" { "ResponseStarted" } else { "ResponseComplete" };
        if self.stage != last {
            return Ok(Contents::OtherStage);
        }
        let ObjectRef { api_group, resource, subresource, namespace, name, resource_version } = self.object_ref;
        let key = hash(&(&api_group, &resource, &subresource, &namespace, &name));
        let kinds = ["get list watch", "deletecollection"];
        let facet = kinds.iter().position(|verbs| verbs.contains(&*self.verb)).unwrap_or(kinds.len());
        let answer = self.response_object.and_then(|answer| serde_json::from_str::<Answer>(answer.get()).ok());
        let sent = self.request_object.map(RawValue::get).filter(|object| object.len() <= LARGEST);
        let sent = sent.and_then(|object| body(serde_json::from_str(object).ok()?));
        let object = ObjectFacts {
            name: shortened(name).into(),
            content: Content {
                base: version(&resource_version),
                version: answer.and_then(|answer| version(&answer.metadata.resource_version)),
                ..sent.unwrap_or_default()
            },
        };
        Ok(Contents::call(LogEntry {
            arrived_ns: at,
            wall_ms: at / 1_000_000,
            class: "default".to_owned(),
            group: Some(api_group),
            resource: Some(resource),
            subresource: Some(subresource),
            namespace: Some(namespace),
            key: (!object.name.is_empty()).then(|| format!("{key:x}")),
            facet: Some(facet.to_string()),
            user_agent: self.user_agent.unwrap_or_default().split_whitespace().next().map(str::to_owned),
            client: Some(self.user.username),
            long_running: Some(self.verb == "watch"),
            dry_run: Some(self.request_uri.contains("dryRun=")),
            verb: self.verb,
            sent_ns: Some(at),
            upstream_ns: Some(answered.saturating_sub(at)),
            status: HTTP.get(usize::from(self.response_status.code)).copied().or(Some(self.response_status.code)),
            object,
            ..LogEntry::default()
        }))
    }

    fn of_google(self, log: AuditLog<'_>) -> Result<Contents, String> {
        if log.service_name != "k8s.io" {
            return Ok(Contents::OtherLog);
        }
        let verb = log.method_name.rsplit('.').next().unwrap_or_default();
        let time = self.timestamp.and_then(|time| serde_json::from_str::<String>(time.get()).ok()).unwrap_or_default();
        let event = Document {
            stage: if verb == "watch" { "ResponseStarted" } else { "ResponseComplete" }.to_owned(),
            verb: verb.to_owned(),
            user: log.authentication_info,
            user_agent: Some(log.request_metadata.username),
            object_ref: object(&log.resource_name),
            response_status: log.status,
            request_received_timestamp: time.clone(),
            stage_timestamp: time,
            request_object: log.request,
            response_object: log.response,
            ..Document::default()
        };
        event.contents()
    }

    /// Returns a record of CloudTrail as an audit event.
    fn of_cloudtrail(self) -> Self {
        let UserIdentity { arn, principal_id, invoked_by } = self.user_identity;
        Document {
            stage: "ResponseComplete".to_owned(),
            verb: if self.read_only == Some(true) { "get" } else { "other" }.to_owned(),
            user: User { username: arn.or(invoked_by).or(principal_id).unwrap_or_default() },
            user_agent: self.user_agent,
            object_ref: ObjectRef {
                api_group: self.event_source,
                resource: self.event_name,
                namespace: format!("{}/{}", self.recipient_account_id, self.aws_region),
                ..ObjectRef::default()
            },
            response_status: Status { code: self.error_code.map_or(0, |code| aws_status(&code)) },
            request_received_timestamp: self.event_time.clone(),
            stage_timestamp: self.event_time,
            ..Document::default()
        }
    }
}

/// Reads the name of a resource: `GROUP/VERSION/[namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]]`.
fn object(name: &str) -> ObjectRef {
    let parts: Vec<&str> = name.split('/').collect();
    let part = |index: usize| parts.get(index).map(|part| (*part).to_owned()).unwrap_or_default();
    let begin = if parts.len() > 4 && parts[2] == "namespaces" { 4 } else { 2 };
    ObjectRef {
        api_group: if parts[0] == "core" { String::new() } else { part(0) },
        namespace: if begin == 4 { part(3) } else { String::new() },
        resource: part(begin),
        name: part(begin + 1),
        subresource: part(begin + 2),
        resource_version: String::new(),
    }
}

/// Returns an HTTP status for an error code of AWS.
fn aws_status(code: &str) -> u16 {
    match code.rsplit('.').next().unwrap_or_default() {
        code if is_throttling(code) => 429,
        code if code.contains("Internal") || code.contains("Unavailable") => 500,
        "AccessDenied" | "AccessDeniedException" | "UnauthorizedOperation" => 403,
        _ => 400,
    }
}

/// Reads a time as nanoseconds since the Unix epoch.
fn nanos(text: &str) -> Result<u64, String> {
    let time = OffsetDateTime::parse(text, &Rfc3339).ok();
    time.and_then(|time| u64::try_from(time.unix_timestamp_nanos()).ok()).ok_or_else(|| NO_TIME.to_owned())
}

/// Returns the hashes of a written object. Its version and the record of its fields' owners differ
/// from write to write.
fn body(mut object: Value) -> Option<Content> {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    metadata.into_iter().for_each(|metadata| {
        ["resourceVersion", "managedFields"].iter().for_each(|field| drop(metadata.remove(*field)))
    });
    let body = (!object.is_null()).then(|| hash(&object))?;
    clear_times(&mut object);
    Some(Content { body: Some(body), timeless: Some(hash(&object)), ..Content::default() })
}

fn clear_times(value: &mut Value) {
    match value {
        Value::String(text) if is_time(text.as_bytes()) => text.clear(),
        Value::Array(values) => values.iter_mut().for_each(clear_times),
        Value::Object(fields) if fields.contains_key("renewTime") => {}
        Value::Object(fields) => fields.values_mut().for_each(clear_times),
        _ => {}
    }
}

fn version(text: &str) -> Option<u64> {
    (!text.is_empty()).then(|| hash(text))
}

fn hash(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The largest object to compare, in bytes: its values take up to 32 times as much memory.
const LARGEST: usize = 1 << 20;
/// An event is at most in a message in a list in a message.
const MOST_NESTED: u8 = 2;
const NO_TIME: &str = "expected a time such as 2026-11-27T10:00:00Z";
/// The HTTP status for each code of gRPC, as `google/rpc/code.proto` has it.
const HTTP: [u16; 17] = [200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401];
