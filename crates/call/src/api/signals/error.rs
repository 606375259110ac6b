//! The code and the message in the body of an upstream's error.
//!
//! A Kubernetes Status, the errors of AWS, Azure, Google and GitHub, other JSON, XML, HTML and plain
//! text are read from the first bytes of the body. A code is an identifier without names; a message
//! may quote anything.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};

use super::inflate::Compression;
use super::{aws, json};
use crate::api::names::PROTOBUF_MAGIC;
use crate::api::protobuf::bytes;

/// The code and message of an error response. Either may be empty.
#[derive(Clone, Default, PartialEq, Eq, derive_more::Debug)]
pub struct ErrorWords {
    /// An identifier, such as `InternalError`, of at most 64 characters.
    pub code: String,
    /// At most 160 characters on one line, not escaped.
    #[debug(skip)]
    pub message: String,
}

/// The beginning of an error response's body, as it arrives.
#[derive(derive_more::Debug)]
#[debug("an error's body")]
pub struct ErrorBody {
    coding: Compression,
    /// The code in a header, if there is one.
    code: String,
    beginning: Vec<u8>,
}

// === impl ErrorBody ===

impl ErrorBody {
    /// Creates an empty body, if this head announces text, JSON, XML or a Kubernetes object, in a
    /// compression that can be read.
    pub fn after(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok())?.to_ascii_lowercase();
        let is_text = kind.starts_with("text/") || KINDS.iter().any(|known| kind.contains(known));
        let code = aws::NAMES.iter().find_map(|name| headers.get(*name)).map(HeaderValue::to_str);
        let code = code.and_then(Result::ok).and_then(as_code).unwrap_or_default();
        let coding = Compression::of(headers).filter(|_| is_text)?;
        Some(Self { coding, code, beginning: Vec::new() })
    }

    /// Adds bytes. Returns false once no more are needed.
    pub fn add(&mut self, bytes: &[u8]) -> bool {
        let room = ENOUGH - self.beginning.len();
        self.beginning.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        self.beginning.len() < ENOUGH
    }

    /// Returns the code and message in the bytes so far.
    pub fn words(&self) -> ErrorWords {
        let body = self.coding.in_clear(&self.beginning);
        let words = match body.strip_prefix(PROTOBUF_MAGIC) {
            Some(unknown) => in_status(unknown).unwrap_or_default(),
            None => match body.trim_ascii_start() {
                text @ [b'{' | b'[', ..] => in_json(text),
                text @ [b'<', ..] => in_markup(&String::from_utf8_lossy(text)),
                text => ErrorWords { message: on_a_line(&String::from_utf8_lossy(text)), ..ErrorWords::default() },
            },
        };
        if self.code.is_empty() { words } else { ErrorWords { code: self.code.clone(), ..words } }
    }
}

/// Reads a Kubernetes Status (message = 3, reason = 4) in a `runtime.Unknown` (type = 1 with kind =
/// 2, raw = 2).
fn in_status(unknown: &[u8]) -> Option<ErrorWords> {
    let kind = bytes(bytes(unknown, 1)?, 2)?;
    let status = bytes(unknown, 2).filter(|_| kind == b"Status")?;
    let text = |number| String::from_utf8_lossy(bytes(status, number).unwrap_or_default());
    Some(ErrorWords { code: as_code(&text(4)).unwrap_or_default(), message: on_a_line(&text(3)) })
}

fn in_json(document: &[u8]) -> ErrorWords {
    let texts = json::texts_of_beginning(document);
    let of = |wanted: &'static str| texts.iter().filter(move |(key, _)| key == wanted).map(|(_, text)| &**text);
    let code = CODES.into_iter().flat_map(of).find_map(as_code);
    let message = MESSAGES.into_iter().flat_map(of).map(on_a_line).find(|message| !message.is_empty());
    ErrorWords { code: code.unwrap_or_default(), message: message.unwrap_or_default() }
}

/// Returns the code and message in AWS's XML, or the title of an HTML page as a message.
fn in_markup(text: &str) -> ErrorWords {
    let inside = |tag: &str| Some(text.split_once(&format!("<{tag}>"))?.1.split("</").next().unwrap_or_default());
    let message = ["Message", "title", "h1"].into_iter().find_map(inside);
    let code = inside("Code").and_then(as_code);
    ErrorWords { code: code.unwrap_or_default(), message: on_a_line(message.unwrap_or_default()) }
}

/// Returns the code in a text, if it is an identifier.
fn as_code(text: &str) -> Option<String> {
    let code = aws::bare(text);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    let is_code = code.starts_with(|first: char| first.is_ascii_alphabetic()) && code.bytes().all(fits);
    (is_code && code.len() <= LONGEST_CODE && code != NO_REASON).then(|| code.to_owned())
}

/// Returns a text on one line, cut to [`LONGEST_MESSAGE`].
fn on_a_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().nth(LONGEST_MESSAGE).is_none() {
        return line;
    }
    line.chars().take(LONGEST_MESSAGE - 1).chain(['\u{2026}']).collect()
}

/// The readable media types, besides `text/`.
const KINDS: [&str; 3] = ["json", "xml", "vnd.kubernetes.protobuf"];
/// The JSON keys of a code, the most telling first: of Kubernetes and Google, AWS, Azure and
/// GitHub, Okta, and Google again.
const CODES: [&str; 6] = ["reason", "__type", "code", "Code", "errorCode", "status"];
/// The JSON keys of a message: of most, AWS, OAuth, Okta, and RFC 9457.
const MESSAGES: [&str; 6] = ["message", "Message", "error_description", "errorSummary", "detail", "title"];
/// The `status` of a Kubernetes Status without a reason.
const NO_REASON: &str = "Failure";
const LONGEST_CODE: usize = 64;
const LONGEST_MESSAGE: usize = 160;
/// How many bytes of a body to read.
const ENOUGH: usize = 1024;

#[cfg(test)]
mod tests {
    use http::header::CONTENT_ENCODING;
    use proptest::prelude::*;

    use super::*;

    fn read_as(kind: &'static str, body: &[u8]) -> (String, String) {
        let mut error = ErrorBody::after(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]))
            .expect("it is read");
        error.add(body);
        let words = error.words();
        (words.code, words.message)
    }

    #[test]
    fn code_and_message_are_read_in_each_upstreams_form() {
        for (kind, body, code, message) in [
            (
                "application/json",
                r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Internal error occurred: failed calling webhook","reason":"InternalError","details":{"causes":[{"reason":"X","message":"Y"}]},"code":500}"#,
                "InternalError",
                "Internal error occurred: failed calling webhook",
            ),
            ("application/json", r#"{"kind":"Status","status":"Failure","message":"denied","code":500}"#, "", "denied"),
            (
                "application/x-amz-json-1.1",
                r#"{"__type":"com.amazonaws.sts#ThrottlingException","message":"Rate exceeded"}"#,
                "ThrottlingException",
                "Rate exceeded",
            ),
            (
                "text/xml;charset=UTF-8",
                "<?xml version=\"1.0\"?>\n<Response><Errors><Error><Code>InternalError</Code><Message>An internal error</Message></Error></Errors></Response>",
                "InternalError",
                "An internal error",
            ),
            (
                "application/json; charset=utf-8",
                r#"{"error":{"code":"OperationNotAllowed","message":"Quota\n of cores"}}"#,
                "OperationNotAllowed",
                "Quota of cores",
            ),
            (
                "application/json",
                r#"{"error":{"code":503,"message":"try later","status":"UNAVAILABLE","details":[{"reason":"backendError"}]}}"#,
                "backendError",
                "try later",
            ),
            ("application/json", r#"{"error":{"code":503,"status":"UNAVAILABLE"}}"#, "UNAVAILABLE", ""),
            ("application/vnd.github+json", r#"{"message":"Server Error","status":"500"}"#, "", "Server Error"),
            ("application/problem+json", r#"{"type":"about:blank","title":"No","status":500}"#, "", "No"),
            (
                "application/json",
                r#"{"errors":[{"code":"UNKNOWN","message":"unknown error"}]}"#,
                "UNKNOWN",
                "unknown error",
            ),
            ("text/html", "<html><head><title>502 Bad Gateway</title></head>", "", "502 Bad Gateway"),
            ("text/plain; charset=utf-8", " context deadline\n exceeded\n", "", "context deadline exceeded"),
            ("text/plain", "", "", ""),
        ] {
            assert_eq!(read_as(kind, body.as_bytes()), (code.to_owned(), message.to_owned()), "{body}");
        }
    }

    #[test]
    fn a_kubernetes_status_is_read_in_protobuf() {
        let message = |fields: &[(u8, &[u8])]| -> Vec<u8> {
            let field = |(number, bytes): &(u8, &[u8])| {
                [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], *bytes].concat()
            };
            fields.iter().flat_map(field).collect()
        };
        let status = message(&[(1, b""), (2, b"Failure"), (3, b"no endpoint"), (4, b"InternalError")]);
        for (kind, code, text) in [("Status", "InternalError", "no endpoint"), ("Secret", "", "")] {
            let object = message(&[(1, &message(&[(1, b"v1"), (2, kind.as_bytes())])), (2, &status)]);
            let found = read_as("application/vnd.kubernetes.protobuf", &[PROTOBUF_MAGIC, &object].concat());
            assert_eq!(found, (code.to_owned(), text.to_owned()), "{kind}");
        }
    }

    #[test]
    fn a_code_in_the_head_comes_first() {
        let head = [("content-type", "application/json"), ("x-amzn-errortype", "ServiceException:http://internal/")];
        let head = head.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let mut error = ErrorBody::after(&HeaderMap::from_iter(head)).expect("it is read");
        error.add(br#"{"message":"at fault","code":"other"}"#);
        let words = error.words();
        assert_eq!((&*words.code, &*words.message), ("ServiceException", "at fault"));
    }

    #[test]
    fn a_code_is_an_identifier() {
        for code in ["a b", "1", "web-5f7d", "a/b", "\u{1b}[2J", "caf\u{e9}", &"x".repeat(65)] {
            assert_eq!(read_as("application/json", format!(r#"{{"code":{code:?}}}"#).as_bytes()).0, "", "{code}");
        }
    }

    #[test]
    fn a_long_message_is_cut() {
        let text = "e\u{301}\u{1f600}\\ud83d\\ude00\\u0007".repeat(400);
        for body in [format!(r#"{{"message":"{text}","reason":"X"}}"#), text] {
            for skipped in 0..40 {
                let body = format!("{}{body}", " ".repeat(skipped));
                let kind = if body.contains('{') { "application/json" } else { "text/plain" };
                let (code, message) = read_as(kind, body.as_bytes());
                assert_eq!((&*code, message.chars().count()), ("", LONGEST_MESSAGE), "{skipped}: {message}");
                assert!(message.starts_with("e\u{301}\u{1f600}") && message.ends_with('\u{2026}'), "{message}");
            }
        }
    }

    #[test]
    fn bodies_that_are_no_text_are_not_read() {
        let head = |kind: &'static str, coding: &'static str| {
            HeaderMap::from_iter(
                [(CONTENT_TYPE, kind), (CONTENT_ENCODING, coding)].map(|(name, value)| (name, value.parse().unwrap())),
            )
        };
        assert!(ErrorBody::after(&head("application/json", "gzip")).is_some());
        for (kind, coding) in [("application/json", "br"), ("application/octet-stream", ""), ("image/png", "")] {
            assert!(ErrorBody::after(&head(kind, coding)).is_none(), "{kind} {coding}");
        }
        assert!(ErrorBody::after(&HeaderMap::new()).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(start in "|k8s\\x00|\\{\"message\":\"|<Code>", body in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let (code, message) = read_as("text/plain", &[start.as_bytes(), &body].concat());
            prop_assert!(code.len() <= LONGEST_CODE && message.chars().count() <= LONGEST_MESSAGE);
        }
    }
}
