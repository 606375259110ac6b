//! The gate's own responses in providers' formats, so that their SDKs retry.
//!
//! Sources: tests of seven AWS SDKs, azure-core, google-cloud and GitHub's clients with each format
//! (docs/external-apis.md). The AWS codes are in the throttling lists of boto3, Go v2 and JS v3.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::json;

use super::Protocol;
use crate::api::duration::whole_seconds;

/// A provider's format of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The error format of an AWS service, by its protocol.
    Aws(Protocol),
    /// The error format of Azure Resource Manager.
    Azure,
    /// Google's errors in JSON.
    Google,
    /// The error format of GitHub's API.
    Github,
    /// A gRPC error: a response of trailers alone.
    Grpc,
}

/// A response of the gate itself, before it is put in a format.
#[derive(Clone, Copy, Debug)]
pub struct Denial<'a> {
    /// The HTTP status, unless the format requires another: 429 for a refusal, 5xx for a failure.
    pub status: StatusCode,
    /// True for a refusal by a limit, false for a failure of the gate or its upstream.
    pub throttled: bool,
    /// The message for people.
    pub message: &'a str,
    /// The time until a retry, if the response names one.
    pub retry_after: Option<Duration>,
    /// An identifier to show in the SDK's error. The provider has not logged it.
    pub request_id: &'a str,
    /// True to answer as GitHub's secondary limit, a 403. GitHub's clients then stop all calls
    /// until the time to retry.
    pub as_secondary_limit: bool,
}

/// A response in a provider's format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialResponse {
    /// The HTTP status of the response.
    pub status: StatusCode,
    /// Headers, without Content-Length.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body; empty for HEAD and gRPC.
    pub body: Vec<u8>,
}

// === impl Form ===

impl Form {
    /// Writes the response to a call with this method in the provider's format.
    pub fn write(self, denial: &Denial<'_>, method: &Method) -> DenialResponse {
        let mut written = match self {
            Self::Aws(protocol) => aws(protocol, denial, method),
            Self::Azure => azure(denial),
            Self::Google => google(denial),
            Self::Github => github(denial),
            Self::Grpc => grpc(denial),
        };
        if let (Some(wait), false) = (denial.retry_after, self == Self::Grpc) {
            let wait = seconds(wait.min(self.longest()));
            written.headers.push((header::RETRY_AFTER, HeaderValue::from(wait)));
        }
        if *method == Method::HEAD {
            written.body.clear();
        }
        written
    }

    /// Returns the longest retry time to send to the provider's SDKs. The AWS SDK for Go v1 blocks
    /// its worker for as long as it is told, and azcore gives up at once beyond a minute.
    fn longest(self) -> Duration {
        match self {
            Self::Aws(_) => Duration::from_secs(20),
            Self::Azure => Duration::from_secs(60),
            Self::Google | Self::Github | Self::Grpc => Duration::MAX,
        }
    }
}

fn aws(protocol: Protocol, denial: &Denial<'_>, method: &Method) -> DenialResponse {
    let code = match (denial.throttled, protocol) {
        (false, _) => "ServiceUnavailable",
        (true, Protocol::Ec2Query) => "RequestLimitExceeded",
        (true, Protocol::Query | Protocol::RestXml) => "Throttling",
        (true, Protocol::S3) => "SlowDown",
        (true, Protocol::Json | Protocol::Json10 | Protocol::Cbor | Protocol::RestJson) => "ThrottlingException",
    };
    let id = denial.request_id;
    let side = if denial.throttled { "Sender" } else { "Receiver" };
    let error = format!("<Code>{code}</Code><Message>{}</Message>", xml(denial.message));
    let request_id = format!("<RequestId>{id}</RequestId>");
    let typed = json!({ "__type": code, "message": denial.message }).to_string();
    let (kind, body): (_, Vec<u8>) = match protocol {
        Protocol::Ec2Query => {
            let errors = format!("<Errors><Error>{error}</Error></Errors>");
            ("text/xml", format!("<Response>{errors}<RequestID>{id}</RequestID></Response>").into())
        }
        Protocol::Query | Protocol::RestXml => {
            let error = format!("<Error><Type>{side}</Type>{error}</Error>");
            ("text/xml", format!("<ErrorResponse>{error}{request_id}</ErrorResponse>").into())
        }
        Protocol::S3 => ("application/xml", format!("<Error>{error}{request_id}</Error>").into()),
        Protocol::Json => ("application/x-amz-json-1.1", typed.into()),
        Protocol::Json10 => ("application/x-amz-json-1.0", typed.into()),
        Protocol::RestJson => ("application/json", json!({ "message": denial.message }).to_string().into()),
        Protocol::Cbor => {
            let texts = ["__type", code, "message", denial.message].map(cbor_text);
            ("application/cbor", [vec![0xa2], texts.concat()].concat()) // a map of two pairs
        }
    };
    // boto3 ignores a 429 without a body, as the response to a HEAD is. All SDKs retry a 503.
    let status = if *method == Method::HEAD { StatusCode::SERVICE_UNAVAILABLE } else { denial.status };
    let mut written = DenialResponse::new(status, kind, body);
    if matches!(protocol, Protocol::Json | Protocol::Json10 | Protocol::RestJson | Protocol::Cbor) {
        written.push("x-amzn-errortype", code);
    }
    if protocol == Protocol::Cbor {
        written.push("smithy-protocol", "rpc-v2-cbor");
    }
    written.push("x-amzn-requestid", id);
    if let Some(wait) = denial.retry_after {
        written.push("x-amz-retry-after", &wait.min(Form::Aws(protocol).longest()).as_millis().to_string());
    }
    written
}

fn azure(denial: &Denial<'_>) -> DenialResponse {
    let code = if denial.throttled { "TooManyRequests" } else { "ServiceUnavailable" };
    let body = json!({ "error": { "code": code, "message": denial.message } });
    DenialResponse::new(denial.status, "application/json; charset=utf-8", body.to_string())
}

fn google(denial: &Denial<'_>) -> DenialResponse {
    let (status, domain, reason) = match denial.throttled {
        true => ("RESOURCE_EXHAUSTED", "usageLimits", "rateLimitExceeded"),
        false => ("UNAVAILABLE", "global", "backendError"),
    };
    let retry_info = |wait| json!({ "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": format!("{}s", seconds(wait)) });
    let body = json!({ "error": {
        "code": denial.status.as_u16(),
        "message": denial.message,
        "status": status,
        "errors": [{ "domain": domain, "reason": reason, "message": denial.message }],
        "details": denial.retry_after.map(retry_info).into_iter().collect::<Vec<_>>(),
    } });
    DenialResponse::new(denial.status, "application/json; charset=UTF-8", body.to_string())
}

fn github(denial: &Denial<'_>) -> DenialResponse {
    let page = "https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api";
    let (status, before, section) = match denial.throttled && denial.as_secondary_limit {
        true => {
            let before = "You have exceeded a secondary rate limit. ";
            (StatusCode::FORBIDDEN, before, "#about-secondary-rate-limits")
        }
        false => (denial.status, "", ""),
    };
    let message = format!("{before}{}", denial.message);
    let body = json!({ "message": message, "documentation_url": format!("{page}{section}") });
    DenialResponse::new(status, "application/json; charset=utf-8", body.to_string())
}

/// Returns a response of trailers alone. The time to retry is in gRFC A6's header, in milliseconds.
fn grpc(denial: &Denial<'_>) -> DenialResponse {
    let mut written = DenialResponse::new(StatusCode::OK, "application/grpc", Vec::new());
    written.push("grpc-status", if denial.throttled { "8" } else { "14" });
    written.push("grpc-message", &utf8_percent_encode(denial.message, &GRPC_MESSAGE).to_string());
    if let Some(wait) = denial.retry_after {
        written.push("grpc-retry-pushback-ms", &wait.as_millis().to_string());
    }
    written
}

/// Returns a time in whole seconds, rounded up, at least one: few clients read fractions.
fn seconds(wait: Duration) -> u64 {
    whole_seconds(wait).max(1)
}

/// Escapes a text for XML. A character outside XML 1.0 becomes a space.
fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\u{0}'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Encodes a text in CBOR (RFC 8949, section 3).
fn cbor_text(text: &str) -> Vec<u8> {
    let mut bytes = match u8::try_from(text.len()) {
        Ok(short @ 0..24) => vec![0x60 | short],
        _ => [&[0x7b][..], &(text.len() as u64).to_be_bytes()].concat(),
    };
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// The bytes to escape in `grpc-message`. Source: "gRPC over HTTP2", `Percent-Encoded`.
const GRPC_MESSAGE: AsciiSet = CONTROLS.add(b'%');

// === impl DenialResponse ===

impl DenialResponse {
    fn new(status: StatusCode, kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        let kind = (header::CONTENT_TYPE, HeaderValue::from_static(kind));
        Self { status, headers: vec![kind], body: body.into() }
    }

    /// Adds a field, unless it is malformed.
    fn push(&mut self, name: &'static str, value: &str) {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((HeaderName::from_static(name), value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSAL: Denial<'_> = Denial {
        status: StatusCode::TOO_MANY_REQUESTS,
        throttled: true,
        message: "class \"a\" <full> & more",
        retry_after: Some(Duration::from_millis(2500)),
        request_id: "tidegate-1",
        as_secondary_limit: false,
    };

    fn text(written: &DenialResponse) -> &str {
        std::str::from_utf8(&written.body).expect("text")
    }

    fn field<'a>(written: &'a DenialResponse, name: &str) -> Option<&'a str> {
        written.headers.iter().find(|(given, _)| given == name).and_then(|(_, value)| value.to_str().ok())
    }

    #[test]
    fn each_aws_protocol_has_its_code_where_its_sdks_look() {
        for (protocol, kind, code, before) in [
            (Protocol::Ec2Query, "text/xml", "RequestLimitExceeded", "<Response><Errors><Error><Code>"),
            (Protocol::Query, "text/xml", "Throttling", "<ErrorResponse><Error><Type>Sender</Type><Code>"),
            (Protocol::RestXml, "text/xml", "Throttling", "<ErrorResponse><Error><Type>Sender</Type><Code>"),
            (Protocol::S3, "application/xml", "SlowDown", "<Error><Code>"),
            (Protocol::Json, "application/x-amz-json-1.1", "ThrottlingException", "{\"__type\":\""),
            (Protocol::Json10, "application/x-amz-json-1.0", "ThrottlingException", "{\"__type\":\""),
        ] {
            let written = Form::Aws(protocol).write(&REFUSAL, &Method::POST);
            assert_eq!((written.status, field(&written, "content-type")), (StatusCode::TOO_MANY_REQUESTS, Some(kind)));
            assert!(text(&written).starts_with(&format!("{before}{code}")), "{}", text(&written));
            assert_eq!(field(&written, "retry-after"), Some("3"));
            assert_eq!(field(&written, "x-amz-retry-after"), Some("2500"));
            assert_eq!(field(&written, "x-amzn-requestid"), Some("tidegate-1"));
            if kind.ends_with("xml") {
                assert!(text(&written).contains("class \"a\" &lt;full&gt; &amp; more"));
            }
        }
        let rest = Form::Aws(Protocol::RestJson).write(&REFUSAL, &Method::POST);
        assert_eq!(field(&rest, "x-amzn-errortype"), Some("ThrottlingException"));
        let cbor = Form::Aws(Protocol::Cbor).write(&REFUSAL, &Method::POST);
        assert_eq!(cbor.body.get(..8), Some(&b"\xa2\x66__type"[..]));
        assert_eq!(field(&cbor, "smithy-protocol"), Some("rpc-v2-cbor"));
    }

    #[test]
    fn head_is_refused_with_a_status_that_all_retry() {
        let written = Form::Aws(Protocol::S3).write(&REFUSAL, &Method::HEAD);
        assert_eq!((written.status, written.body.len()), (StatusCode::SERVICE_UNAVAILABLE, 0));
        assert_eq!(Form::Google.write(&REFUSAL, &Method::HEAD).status, StatusCode::TOO_MANY_REQUESTS);
    }

    #[test]
    fn no_sdk_is_told_to_wait_longer_than_it_can() {
        let long = Denial { retry_after: Some(Duration::from_secs(3600)), ..REFUSAL };
        let told = |form: Form| field(&form.write(&long, &Method::GET), "retry-after").map(str::to_owned);
        assert_eq!(told(Form::Aws(Protocol::Query)).as_deref(), Some("20"));
        assert_eq!(told(Form::Azure).as_deref(), Some("60"));
        assert_eq!(told(Form::Github).as_deref(), Some("3600"));
        let unsaid = Denial { retry_after: None, ..REFUSAL };
        let written = Form::Aws(Protocol::Query).write(&unsaid, &Method::GET);
        assert_eq!((field(&written, "retry-after"), field(&written, "x-amz-retry-after")), (None, None));
    }

    #[test]
    fn failures_are_the_providers_service_errors() {
        let failure = Denial { status: StatusCode::BAD_GATEWAY, throttled: false, retry_after: None, ..REFUSAL };
        for form in [Form::Aws(Protocol::Query), Form::Aws(Protocol::S3), Form::Aws(Protocol::Json), Form::Azure] {
            let written = form.write(&failure, &Method::GET);
            assert_eq!(written.status, StatusCode::BAD_GATEWAY);
            assert!(text(&written).contains("ServiceUnavailable"), "{form:?}: {}", text(&written));
        }
        assert!(text(&Form::Google.write(&failure, &Method::GET)).contains("\"status\":\"UNAVAILABLE\""));
        assert_eq!(field(&Form::Grpc.write(&failure, &Method::POST), "grpc-status"), Some("14"));
    }

    #[test]
    fn google_github_and_grpc_are_told_in_their_own_words() {
        let google = Form::Google.write(&REFUSAL, &Method::GET);
        let body: serde_json::Value = serde_json::from_slice(&google.body).expect("JSON");
        assert_eq!(body.pointer("/error/errors/0/reason"), Some(&json!("rateLimitExceeded")));
        assert_eq!(body.pointer("/error/details/0/retryDelay"), Some(&json!("3s")));
        let github = Form::Github.write(&REFUSAL, &Method::GET);
        assert_eq!(github.status, StatusCode::TOO_MANY_REQUESTS);
        let secondary = Form::Github.write(&Denial { as_secondary_limit: true, ..REFUSAL }, &Method::GET);
        assert_eq!(secondary.status, StatusCode::FORBIDDEN);
        assert!(
            text(&secondary).contains("secondary rate") && text(&secondary).contains("#about-secondary-rate-limits")
        );
        let grpc = Form::Grpc.write(&Denial { message: "wait\n5%", ..REFUSAL }, &Method::POST);
        assert_eq!((grpc.status, field(&grpc, "grpc-status")), (StatusCode::OK, Some("8")));
        assert_eq!(field(&grpc, "grpc-message"), Some("wait%0A5%25"));
        assert_eq!((field(&grpc, "grpc-retry-pushback-ms"), grpc.body.len()), (Some("2500"), 0));
    }
}
