//! The reading of a provider's calls, and the refusals that its clients expect.
//!
//! A dialect reads five words from a request: service, region, account, action, and whether it
//! reads. What a request does not say is empty. The words are for matching, splitting and naming;
//! nothing that is sent is made of them. Sources: the providers' references, and what their SDKs
//! were seen to send (docs/external-apis.md).

mod account;
mod aws;
mod azure;
mod form;
mod github;
mod google;
mod grpc;
mod identity;
mod refusal;
mod route;

use std::fmt;

use http::header::{AsHeaderName, CONTENT_TYPE};
use http::{HeaderMap, Method, Uri};

pub use self::aws::{Protocol, SERVICES};
pub use self::grpc::is_grpc;
pub use self::identity::{TokenBody, signing_key_id};
pub use self::refusal::{Denial, Form, Written};

words! {
    /// The provider whose way of speaking a gate knows.
    pub enum Dialect {
        /// Plain HTTP: method and path.
        Plain = "plain",
        /// Amazon Web Services, and whatever signs as it does.
        Aws = "aws",
        /// Azure Resource Manager.
        Azure = "azure",
        /// Google Cloud.
        Google = "google",
        /// GitHub, and GitHub Enterprise Server.
        Github = "github",
    }
}

/// A request as far as a dialect looks at it.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Its target.
    pub uri: &'a Uri,
    /// Its header fields, with Host.
    pub headers: &'a HeaderMap,
}

/// A call in its provider's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// The service, as the provider names it: `ec2`, `microsoft.compute`, `compute`, `core`.
    pub service: String,
    /// The region; empty for what has none.
    pub region: String,
    /// The account whose quota the call uses. Not to be shown unasked: it may name a customer.
    pub account: String,
    /// The action: `DescribeInstances`, `writes/virtualmachines`, `instances.insert`.
    pub action: String,
    /// True if the call changes nothing.
    pub reads: bool,
    /// True for a listing of everything, which EC2 counts apart: no filter, no page, no identifier.
    pub unfiltered: bool,
    /// True if the client's SDK says that this is not its first attempt.
    pub is_retry: bool,
    /// True if the call waits upstream for something to happen, and so holds no slot.
    pub waits_upstream: bool,
    /// The instances that a call to EC2 asks for; zero if it asks for none, or does not say.
    pub instances: u16,
    /// The thing whose changes the provider takes one at a time, where that is narrower than the
    /// path.
    pub serial: String,
    /// True for a gRPC call.
    pub is_grpc: bool,
}

/// The longest beginning of a body that is looked at for an action, in bytes.
pub const LONGEST_FORM: usize = 8 * 1024;
/// A body that is declared longer than this is not looked at: forms with actions are small.
pub const LARGEST_FORM: u64 = 64 * 1024;

// === impl Dialect ===

impl Dialect {
    /// True if the beginning of the body may name the action: a form to an AWS service.
    pub fn wants_body(self, head: &Head<'_>) -> bool {
        self == Self::Aws && !self.is_grpc(head) && aws::wants_body(head)
    }

    /// True for a gRPC call. What is signed as AWS is signed is none, whatever media type it has:
    /// S3 takes any. Azure and GitHub speak no gRPC, and a header must not make another call of one
    /// of theirs.
    fn is_grpc(self, head: &Head<'_>) -> bool {
        // What is signed is read last: it costs most.
        grpc::is(head) && (self == Self::Google || self == Self::Aws && aws::scope(head).is_none())
    }

    /// True for a GraphQL call, whose body tells a mutation from a query.
    pub fn is_graphql(self, head: &Head<'_>) -> bool {
        self == Self::Github && head.method == Method::POST && github::is_graphql(head)
    }

    /// Reads a call. `body` is its beginning, of at most [`LONGEST_FORM`] bytes; empty if it was
    /// not asked for, or did not come in time.
    pub fn read(self, head: &Head<'_>, body: &[u8]) -> Words {
        if self.is_grpc(head) {
            return grpc::read(head);
        }
        match self {
            Self::Plain => Words { reads: is_read(head.method), ..Words::default() },
            Self::Aws => aws::read(head, body),
            Self::Azure => azure::read(head),
            Self::Google => google::read(head),
            Self::Github => github::read(head, body),
        }
    }

    /// The form of a refusal that the sender of a call understands; `None` for plain HTTP.
    pub fn form(self, head: &Head<'_>, words: &Words) -> Option<Form> {
        match self {
            Self::Plain => None,
            _ if self.is_grpc(head) => Some(Form::Grpc),
            Self::Aws => Some(Form::Aws(aws::protocol(head, &words.service))),
            Self::Azure => Some(Form::Azure),
            Self::Google => Some(Form::Google),
            Self::Github => Some(Form::Github),
        }
    }

    /// The part of its account's quota that a call is counted in: AWS counts by service and region,
    /// Azure by kind of operation, Google by service, GitHub by resource.
    pub fn quota(self, words: &Words) -> [&str; 2] {
        match self {
            Self::Plain => [""; 2],
            Self::Aws => [&words.service, &words.region],
            Self::Azure => [words.action.split('/').next().unwrap_or_default(), ""],
            Self::Google | Self::Github => [&words.service, ""],
        }
    }

    /// True if a path of the call's service may hold anything: S3's keys have `//`, `..` and `%2F`
    /// rightly, and nothing is decided by them.
    pub fn any_path_is_clear(self, words: &Words) -> bool {
        self == Self::Aws && aws::is_s3(&words.service)
    }
}

// === impl Words ===

impl Words {
    /// True for a gRPC health check, on which a client's load balancing rests.
    pub fn is_health_check(&self) -> bool {
        let is_of_health = self.is_grpc && self.service == "grpc.health.v1.Health";
        is_of_health && matches!(&*self.action, "Check" | "List" | "Watch")
    }
}

/// The account may name a customer, and is left out.
impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, region, action, .. } = self;
        for (name, word) in [("service", service), ("region", region), ("action", action)] {
            if !word.is_empty() {
                write!(f, "{name} {word}, ")?;
            }
        }
        f.write_str(if self.reads { "a read" } else { "a write" })
    }
}

/// GET and HEAD read, and OPTIONS changes nothing either.
fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// The name of the host that a request is for, in lower case, without its port.
fn host(head: &Head<'_>) -> String {
    let host = head.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| head.uri.authority().map(http::uri::Authority::as_str)).unwrap_or_default();
    let name = host
        .rsplit_once(':')
        .map_or(host, |(name, port)| if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host });
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// The text of a header field, if it is ASCII. Names that are constants are found sooner than
/// texts, which are read first.
fn header(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    let value = headers.get(name)?.as_bytes();
    value.is_ascii().then(|| std::str::from_utf8(value).ok()).flatten()
}

/// The media type of the body as it is written, without its parameters.
fn media_type(headers: &HeaderMap) -> &str {
    let value = header(headers, CONTENT_TYPE).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// True for a body of fields by name.
fn is_form(headers: &HeaderMap) -> bool {
    media_type(headers).eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn request(target: &str, headers: &[(&str, &str)]) -> (Uri, HeaderMap) {
        let headers = headers.iter().map(|(name, value)| {
            let name = http::HeaderName::from_bytes(name.as_bytes()).expect("a name");
            (name, http::HeaderValue::from_str(value).expect("a value"))
        });
        (target.parse().expect("a target"), headers.collect())
    }

    pub(super) fn words(
        dialect: Dialect,
        method: &Method,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Words {
        let (uri, headers) = request(target, headers);
        dialect.read(&Head { method, uri: &uri, headers: &headers }, body)
    }

    #[test]
    fn a_plain_gate_reads_no_words() {
        let read = words(Dialect::Plain, &Method::POST, "/?Action=X", &[("x-amz-target", "A.B")], b"Action=Y");
        assert_eq!(read, Words::default());
    }

    #[test]
    fn grpc_is_read_where_a_provider_speaks_it() {
        let headers = [("content-type", "application/grpc+proto"), ("x-goog-user-project", "p")];
        for dialect in [Dialect::Azure, Dialect::Github] {
            let read = words(dialect, &Method::POST, "/google.pubsub.v1.Publisher/GetTopic", &headers, b"");
            assert!(!read.is_grpc && read.account != "p", "a header makes no other call of it: {read:?}");
        }
        for dialect in [Dialect::Aws, Dialect::Google] {
            let read = words(dialect, &Method::POST, "/google.pubsub.v1.Publisher/GetTopic", &headers, b"");
            assert_eq!((read.service.as_str(), read.action.as_str()), ("google.pubsub.v1.Publisher", "GetTopic"));
            assert!(read.reads && read.account == "p");
        }
    }
}
