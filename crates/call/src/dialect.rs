//! Cloud providers' terms for a call, and their formats of an error.
//!
//! A dialect reads service, region, account, action, and whether a request changes anything. A part
//! that the request does not name is empty. These parts are used to match, split and name calls;
//! none of them is sent. Sources: the providers' references, and requests of their SDKs
//! (docs/external-apis.md).

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

pub use self::aws::{Protocol, ServiceName, service_names};
pub(crate) use self::github::resource as github_resource;
pub use self::grpc::is_grpc;
pub use self::identity::{TokenBody, signing_key_id};
pub use self::refusal::{Denial, DenialResponse, Form};

words! {
    /// The cloud provider of an API, so that its calls are read in the provider's terms.
    pub enum Dialect {
        /// No provider: calls are read by method and path.
        Plain = "plain",
        /// Amazon Web Services, and APIs with the same signatures.
        Aws = "aws",
        /// Azure Resource Manager.
        Azure = "azure",
        /// Google Cloud.
        Google = "google",
        /// GitHub, and GitHub Enterprise Server.
        Github = "github",
    }
}

/// The head of a request, as read for a cloud provider's terms.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The method of the request.
    pub method: &'a Method,
    /// The target of the request.
    pub uri: &'a Uri,
    /// The headers of the request, with Host.
    pub headers: &'a HeaderMap,
}

/// A call in its cloud provider's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// The service, as the provider names it: `ec2`, `microsoft.compute`, `compute`, `core`.
    pub service: String,
    /// The region; empty if there is none.
    pub region: String,
    /// The account behind the call's quota. It may name a customer: do not show it by default.
    pub account: String,
    /// The action, such as `DescribeInstances`, `writes/virtualmachines`, `instances.insert`.
    pub action: String,
    /// True if the call changes nothing.
    pub reads: bool,
    /// True if the call lists everything (no filter, page or identifier), which EC2 counts
    /// separately.
    pub unfiltered: bool,
    /// True if the client's SDK marks the call as a retry.
    pub is_retry: bool,
    /// True if the upstream answers only when something happens (a long poll). Such a call does not
    /// count as in flight.
    pub waits_upstream: bool,
    /// The number of instances named in a call to EC2; 0 if it names none.
    pub instances: u16,
    /// The object being changed, if the provider takes its changes one at a time; otherwise empty.
    pub serial: String,
    /// True for a gRPC call.
    pub is_grpc: bool,
}

/// How many bytes of a body are searched for an action.
pub const LONGEST_FORM: usize = 8 * 1024;
/// The longest body to search, by its declared length: forms with actions are small.
pub const LARGEST_FORM: u64 = 64 * 1024;

// === impl Dialect ===

impl Dialect {
    /// Returns true if the beginning of the body may name the action, as in a form to an AWS
    /// service.
    pub fn wants_body(self, head: &Head<'_>) -> bool {
        self == Self::Aws && !self.is_grpc(head) && aws::wants_body(head)
    }

    /// Returns true for a gRPC call. Azure and GitHub have none. A call with AWS's signature is not
    /// one, whatever its media type: S3 takes any.
    fn is_grpc(self, head: &Head<'_>) -> bool {
        // The signature last: it costs most.
        grpc::is(head) && (self == Self::Google || self == Self::Aws && aws::scope(head).is_none())
    }

    /// Returns true for a GraphQL call. Its body shows whether it is a mutation or a query.
    pub fn is_graphql(self, head: &Head<'_>) -> bool {
        self == Self::Github && head.method == Method::POST && github::is_graphql(head)
    }

    /// Reads a call. `body` is its beginning, of at most [`LONGEST_FORM`] bytes; empty if it is not
    /// needed, or did not come in time.
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

    /// Returns the format of errors for a call's sender; `None` for plain HTTP.
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

    /// Returns the names splitting the quotas of a call's account: for AWS service and region, for
    /// Azure the kind of operation, for Google the service, for GitHub the resource.
    pub fn quota(self, words: &Words) -> [&str; 2] {
        match self {
            Self::Plain => [""; 2],
            Self::Aws => [&words.service, &words.region],
            Self::Azure => [words.action.split('/').next().unwrap_or_default(), ""],
            Self::Google | Self::Github => [&words.service, ""],
        }
    }

    /// Returns the resource of a call's quota, as its provider names it; empty if it is not known.
    pub(crate) fn resource(self, head: &Head<'_>, words: &Words) -> String {
        match self {
            Self::Azure => azure::resource(head, words),
            Self::Github => words.service.clone(),
            Self::Aws | Self::Google if !words.service.is_empty() => self.quota(words).join("/"),
            Self::Aws | Self::Google | Self::Plain => String::new(),
        }
    }

    /// Returns true if paths of the call's service are never ambiguous: S3's keys may have `//`,
    /// `..` and `%2F`, and no rule depends on them.
    pub fn any_path_is_clear(self, words: &Words) -> bool {
        self == Self::Aws && aws::is_s3(&words.service)
    }
}

// === impl Words ===

impl Words {
    /// Returns true for a gRPC health check, on which a client's load balancing depends.
    pub fn is_health_check(&self) -> bool {
        let is_of_health = self.is_grpc && self.service == "grpc.health.v1.Health";
        is_of_health && matches!(&*self.action, "Check" | "List" | "Watch")
    }
}

/// Writes the service, region and action, but not the account, as it may name a customer.
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

/// Returns true for a read-only method.
fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Returns the name of a request's host in lower case, without its port.
fn host(head: &Head<'_>) -> String {
    let host = head.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| head.uri.authority().map(http::uri::Authority::as_str)).unwrap_or_default();
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Returns the text of a header field, if it is ASCII. A constant name is found
/// faster than a text.
fn header(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    std::str::from_utf8(headers.get(name)?.as_bytes()).ok().filter(|value| value.is_ascii())
}

/// Returns the media type of the body, without its parameters.
fn media_type(headers: &HeaderMap) -> &str {
    let value = header(headers, CONTENT_TYPE).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// Returns true for a body of form fields.
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
