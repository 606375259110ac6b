//! AWS: service, region and key from the signature, the action from wherever a service's protocol
//! puts it.
//!
//! Sources: the SigV4 and Smithy specifications; "Request throttling for the Amazon EC2 API" for
//! the listings that are counted separately.

mod rest;
mod scope;
mod services;

use std::borrow::Cow;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, Method};

pub(super) use self::scope::{Scope, scope};
pub use self::services::{ServiceName, service_names};
use super::{Head, LARGEST_FORM, Words, account, form, header, host, is_read};

/// How a service encodes calls and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// EC2's query protocol, with its own format of errors.
    Ec2Query,
    /// The query protocol of STS, IAM, ELB, Auto Scaling and others.
    Query,
    /// JSON 1.1, with `X-Amz-Target`.
    Json,
    /// JSON 1.0: errors as in JSON 1.1, and its own content type.
    Json10,
    /// Smithy's RPC v2 with CBOR.
    Cbor,
    /// REST with JSON.
    RestJson,
    /// REST with XML: Route 53, CloudFront.
    RestXml,
    /// S3's REST with XML.
    S3,
}

/// Returns true if the body names the action (a form) or asks to wait (receiving from SQS).
pub(super) fn wants_body(head: &Head<'_>) -> bool {
    let is_small = |length: &str| length.parse().is_ok_and(|length: u64| length <= LARGEST_FORM);
    header(head.headers, CONTENT_LENGTH).is_none_or(is_small)
        && (is_form(head) || target(head) == Some("ReceiveMessage"))
}

pub(super) fn read(head: &Head<'_>, body: &[u8]) -> Words {
    let Scope { key_id, region, service } = scope(head).unwrap_or_else(|| unsigned(head));
    let body = form::text(body);
    let fields = Fields { query: head.uri.query().unwrap_or_default(), form: if is_form(head) { body } else { "" } };
    // EC2 and S3 speak neither of these protocols, and ignore their headers.
    let has_target = service != "ec2" && !is_s3(&service);
    let in_head = || target(head).or_else(|| cbor_operation(head)).filter(|_| has_target).map(str::to_owned);
    let of_route = || rest::action(&service, head, &host(head)).map(str::to_owned);
    let action = in_head().or_else(|| fields.value("Action")).or_else(of_route).unwrap_or_default();
    let reads = if action.is_empty() { is_read(head.method) } else { reads(&action) };
    Words {
        unfiltered: service == "ec2" && UNFILTERED.contains(&action.as_str()) && !fields.filter(),
        is_retry: attempt(head).is_some_and(|attempt| attempt > 1),
        serial: if action == "ChangeResourceRecordSets" { zone(head) } else { String::new() },
        account: account::of_key_id(&key_id).unwrap_or(key_id),
        waits_upstream: service == "sqs" && action == "ReceiveMessage" && (fields.waits() || json_waits(body)),
        instances: if service == "ec2" { fields.instances(&action) } else { 0 },
        service,
        region,
        action,
        reads,
        is_grpc: false,
    }
}

/// Returns the protocol of a call to `service`, as its head tells.
pub(super) fn protocol(head: &Head<'_>, service: &str) -> Protocol {
    let has_action = || form::value(head.uri.query().unwrap_or_default(), "Action").is_some();
    match service {
        _ if header(head.headers, &PROTOCOL).is_some_and(|name| name == "rpc-v2-cbor") => Protocol::Cbor,
        _ if head.headers.contains_key(&TARGET) => match header(head.headers, CONTENT_TYPE) {
            Some(kind) if kind.starts_with("application/x-amz-json-1.0") => Protocol::Json10,
            _ => Protocol::Json,
        },
        "ec2" => Protocol::Ec2Query,
        _ if is_s3(service) => Protocol::S3,
        _ if is_form(head) || has_action() => Protocol::Query,
        "cloudfront" | "route53" | "s3-control" => Protocol::RestXml,
        _ => Protocol::RestJson,
    }
}

/// Returns true for the names of S3 in signatures.
pub(super) fn is_s3(service: &str) -> bool {
    matches!(service, "s3" | "s3express" | "s3-object-lambda" | "s3-outposts")
}

/// The fields of a request's query and form.
struct Fields<'a> {
    query: &'a str,
    form: &'a str,
}

impl<'a> Fields<'a> {
    fn value(&self, wanted: &str) -> Option<String> {
        form::value(self.form, wanted).or_else(|| form::value(self.query, wanted)).map(Cow::into_owned)
    }

    fn names(&self) -> impl Iterator<Item = Cow<'a, str>> {
        form::pairs(self.form).chain(form::pairs(self.query)).map(|(name, _)| name)
    }

    /// Returns true if the call filters what it lists.
    fn filter(&self) -> bool {
        let narrows = |name: &str| {
            name == "MaxResults" || name.starts_with("Filter.") || name.ends_with("Id.1") || name.ends_with("Name.1")
        };
        self.names().any(|name| narrows(&name))
    }

    /// Returns the number of instances in a call to EC2, as far as the form was read.
    fn instances(&self, action: &str) -> u16 {
        match action {
            "RunInstances" => self.value("MaxCount").and_then(|count| count.parse().ok()).unwrap_or(1),
            "StartInstances" | "StopInstances" | "TerminateInstances" => {
                let ids = self.names().filter(|name| name.starts_with("InstanceId."));
                u16::try_from(ids.count()).unwrap_or(u16::MAX)
            }
            _ => 0,
        }
    }

    fn waits(&self) -> bool {
        self.value("WaitTimeSeconds").is_some_and(|seconds| seconds.parse::<u32>().is_ok_and(|seconds| seconds > 0))
    }
}

/// Returns true if a JSON request to receive messages asks to wait for them.
fn json_waits(body: &str) -> bool {
    let after = body.split_once("\"WaitTimeSeconds\"").map(|(_, after)| after.trim_start());
    let number = after.and_then(|after| after.strip_prefix(':')).unwrap_or_default().trim_start();
    number.starts_with(|first: char| ('1'..='9').contains(&first))
}

/// Returns the service and region in a host's name, for calls without a signature.
fn unsigned(head: &Head<'_>) -> Scope {
    let host = host(head);
    let mut labels = host.split('.');
    let service = labels.next().unwrap_or_default();
    let region = labels.next().filter(|label| scope::is_region(label)).unwrap_or_default();
    if ![".amazonaws.com", ".amazonaws.com.cn", ".api.aws"].iter().any(|domain| host.ends_with(domain)) {
        return Scope::default();
    }
    let service = service.strip_suffix("-fips").unwrap_or(service).to_owned();
    Scope { key_id: String::new(), region: region.to_owned(), service }
}

/// Returns the action in `X-Amz-Target: PREFIX.ACTION`.
fn target<'a>(head: &Head<'a>) -> Option<&'a str> {
    header(head.headers, &TARGET)?.rsplit('.').next().filter(|action| !action.is_empty())
}

/// Returns the action in `/service/NAME/operation/ACTION`.
fn cbor_operation<'a>(head: &Head<'a>) -> Option<&'a str> {
    header(head.headers, &PROTOCOL).filter(|name| *name == "rpc-v2-cbor")?;
    head.uri.path().rsplit_once("/operation/").map(|(_, action)| action)
}

fn is_form(head: &Head<'_>) -> bool {
    *head.method == Method::POST && super::is_form(head.headers)
}

/// Returns the attempt number in `amz-sdk-request: attempt=2; max=3`.
fn attempt(head: &Head<'_>) -> Option<u32> {
    let fields = header(head.headers, &ATTEMPT)?.split(';');
    fields.filter_map(|field| field.trim().strip_prefix("attempt=")).find_map(|number| number.trim().parse().ok())
}

/// Returns the zone in a path: Route 53 takes the changes of a zone one after another.
fn zone(head: &Head<'_>) -> String {
    let mut segments = head.uri.path().split('/').skip_while(|segment| *segment != "hostedzone");
    segments.nth(1).unwrap_or_default().to_owned()
}

fn reads(action: &str) -> bool {
    READS.iter().any(|word| action.starts_with(word))
}

static TARGET: HeaderName = HeaderName::from_static("x-amz-target");
static PROTOCOL: HeaderName = HeaderName::from_static("smithy-protocol");
static ATTEMPT: HeaderName = HeaderName::from_static("amz-sdk-request");

const READS: [&str; 10] =
    ["Describe", "List", "Get", "Search", "Head", "BatchGet", "Query", "Scan", "Lookup", "Select"];
/// EC2's list actions with a token bucket of their own for unfiltered calls.
const UNFILTERED: [&str; 7] = [
    "DescribeInstances",
    "DescribeInstanceStatus",
    "DescribeNetworkInterfaces",
    "DescribeSecurityGroups",
    "DescribeSnapshots",
    "DescribeSpotInstanceRequests",
    "DescribeVolumes",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::tests::{request, words};
    use crate::dialect::{Dialect, Form};

    const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded; charset=utf-8");

    fn signed(service: &str) -> String {
        format!(
            "AWS4-HMAC-SHA256 Credential=ASIAQNZGKIQY56JQ7WML/20261123/eu-central-1/{service}/aws4_request, \
             SignedHeaders=content-type;host;x-amz-date, Signature=abc"
        )
    }

    #[test]
    fn a_query_call_has_its_action_in_the_form() {
        let authorization = signed("ec2");
        let headers = [FORM, ("authorization", authorization.as_str()), ("amz-sdk-request", "attempt=2; max=3")];
        let body = b"Version=2016-11-15&Action=DescribeInstances";
        let read = words(Dialect::Aws, &Method::POST, "/", &headers, body);
        assert_eq!((read.service.as_str(), read.region.as_str()), ("ec2", "eu-central-1"));
        assert_eq!((read.account.as_str(), read.action.as_str()), ("029608264753", "DescribeInstances"));
        assert!(read.reads && read.unfiltered && read.is_retry);
        for narrowed in ["&Filter.1.Name=tag", "&MaxResults=5", "&InstanceId.1=i-1"] {
            let body = [body.as_slice(), narrowed.as_bytes()].concat();
            assert!(!words(Dialect::Aws, &Method::POST, "/", &headers, &body).unfiltered, "{narrowed}");
        }
        assert_eq!(words(Dialect::Aws, &Method::POST, "/", &headers, b"").action, "", "the body did not come in time");
        let get = words(Dialect::Aws, &Method::GET, "/?Action=RunInstances", &headers[1..], b"");
        assert_eq!((get.action.as_str(), get.reads, get.unfiltered), ("RunInstances", false, false));
    }

    #[test]
    fn a_json_call_has_its_action_in_a_header() {
        let authorization = signed("dynamodb");
        let headers = [
            ("authorization", authorization.as_str()),
            ("x-amz-target", "DynamoDB_20120810.PutItem"),
            ("content-type", "application/x-amz-json-1.0"),
        ];
        let read = words(Dialect::Aws, &Method::POST, "/", &headers, b"");
        assert_eq!((read.service.as_str(), read.action.as_str(), read.reads), ("dynamodb", "PutItem", false));
        let cbor = [("smithy-protocol", "rpc-v2-cbor")];
        let read = words(
            Dialect::Aws,
            &Method::POST,
            "/service/GraniteServiceVersion20100801/operation/GetMetricData",
            &cbor,
            b"",
        );
        assert_eq!((read.action.as_str(), read.reads), ("GetMetricData", true));
    }

    #[test]
    fn a_receive_that_waits_holds_no_slot() {
        let sqs = ("host", "sqs.eu-central-1.amazonaws.com");
        let headers = [("x-amz-target", "AmazonSQS.ReceiveMessage"), sqs];
        let waits = |body: &[u8]| words(Dialect::Aws, &Method::POST, "/", &headers, body).waits_upstream;
        assert!(waits(br#"{"QueueUrl":"q","WaitTimeSeconds": 20}"#));
        assert!(!waits(br#"{"QueueUrl":"q","WaitTimeSeconds":0}"#) && !waits(b"{}") && !waits(b""));
        assert!(
            words(Dialect::Aws, &Method::POST, "/", &[FORM, sqs], b"Action=ReceiveMessage&WaitTimeSeconds=5")
                .waits_upstream
        );
    }

    #[test]
    fn an_unsigned_call_is_read_by_its_host() {
        for (host, service, region) in [
            ("sts.eu-central-1.amazonaws.com", "sts", "eu-central-1"),
            ("sts.amazonaws.com", "sts", ""),
            ("ec2-fips.us-east-1.api.aws:443", "ec2", "us-east-1"),
            ("ec2.cn-north-1.amazonaws.com.cn", "ec2", "cn-north-1"),
            ("example.org", "", ""),
        ] {
            let read = words(Dialect::Aws, &Method::POST, "/", &[("host", host)], b"Action=AssumeRoleWithWebIdentity");
            assert_eq!((read.service.as_str(), read.region.as_str()), (service, region), "{host}");
        }
    }

    #[test]
    fn each_service_is_refused_in_its_own_protocol() {
        let form = |service: &str, more: &[(&str, &str)]| {
            let authorization = signed(service);
            let headers: Vec<_> = [("authorization", authorization.as_str())].iter().chain(more).copied().collect();
            let (uri, headers) = request("/", &headers);
            let head = Head { method: &Method::POST, uri: &uri, headers: &headers };
            Dialect::Aws.form(&head, &Dialect::Aws.read(&head, b""))
        };
        let json = ("x-amz-target", "X.Y");
        assert_eq!(form("ec2", &[FORM]), Some(Form::Aws(Protocol::Ec2Query)));
        assert_eq!(form("sts", &[FORM]), Some(Form::Aws(Protocol::Query)));
        let old = ("content-type", "application/x-amz-json-1.0");
        assert_eq!(form("ecr", &[json]), Some(Form::Aws(Protocol::Json)));
        assert_eq!(form("dynamodb", &[json, old]), Some(Form::Aws(Protocol::Json10)));
        assert_eq!(form("monitoring", &[("smithy-protocol", "rpc-v2-cbor")]), Some(Form::Aws(Protocol::Cbor)));
        assert_eq!(form("eks", &[]), Some(Form::Aws(Protocol::RestJson)));
        assert_eq!(form("route53", &[]), Some(Form::Aws(Protocol::RestXml)));
        assert_eq!(form("s3", &[]), Some(Form::Aws(Protocol::S3)));
        assert_eq!(form("s3", &[("content-type", "application/grpc")]), Some(Form::Aws(Protocol::S3)));
    }

    #[test]
    fn only_a_small_form_is_worth_waiting_for() {
        let wants = |headers: &[(&str, &str)]| {
            let (uri, headers) = request("/", headers);
            Dialect::Aws.wants_body(&Head { method: &Method::POST, uri: &uri, headers: &headers })
        };
        assert!(wants(&[FORM]) && wants(&[FORM, ("content-length", "65536")]));
        assert!(wants(&[("x-amz-target", "AmazonSQS.ReceiveMessage")]));
        assert!(!wants(&[FORM, ("content-length", "65537")]));
        assert!(!wants(&[]) && !wants(&[("x-amz-target", "DynamoDB_20120810.GetItem")]));
    }

    #[test]
    fn a_change_of_records_is_serial_by_zone() {
        let read = words(
            Dialect::Aws,
            &Method::POST,
            "/2013-04-01/hostedzone/Z1/rrset/",
            &[("authorization", &signed("route53"))],
            b"",
        );
        assert_eq!((read.action.as_str(), read.serial.as_str(), read.reads), ("ChangeResourceRecordSets", "Z1", false));
    }
}
