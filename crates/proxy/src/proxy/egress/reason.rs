//! Why the egress listener refuses something, in words for people.
//!
//! Most clients show only the reason phrase of the status line when a CONNECT is refused. So the
//! phrase says what was refused, why, and what to do. Of the client's text it contains only the
//! host's name.

use http::{HeaderValue, Response, StatusCode, header};
use hyper::ext::ReasonPhrase;

use crate::proxy::body::Body;
use crate::upstream::{DialError, DialFailure, ForbiddenAddress};

words! {
    /// Why the egress listener refused a request or a tunnel.
    pub(crate) enum Why {
        /// The address must never be connected to.
        Address = "address",
        /// The client did not send the token.
        Authorization = "authorization",
        /// A browser sent the request.
        Browser = "browser",
        /// There are too many connections, or too many hosts.
        Crowded = "crowded",
        /// The request has the form for a server, not for a forward proxy.
        Direct = "direct",
        /// The host leads back to this process.
        Itself = "itself",
        /// The request is no valid request to a proxy.
        Malformed = "malformed",
        /// The address gives out the machine's credentials.
        Metadata = "metadata",
        /// The name has no address.
        Name = "name",
        /// No gate lists the host, and other hosts are refused.
        NotListed = "not_listed",
        /// The request is plain HTTP to a listed host.
        PlainHttp = "plain_http",
        /// The port is one of mail servers.
        Port = "port",
        /// The client's TLS names another host than the tunnel is for.
        Sni = "sni",
        /// No connection to the host could be made.
        Unreachable = "unreachable",
    }

    /// Why a TLS handshake with a client failed.
    pub(crate) enum HandshakeFailure {
        /// Client and gate have no protocol or cipher in common, or what came is not TLS.
        Protocol = "protocol",
        /// The client's TLS names another host than the tunnel's, or an unlisted one.
        Sni = "sni",
        /// The handshake took too long.
        Timeout = "timeout",
        /// The client broke off after it had received the certificate, perhaps because it does not
        /// trust the CA.
        Untrusted = "untrusted",
    }
}

/// A refusal of the egress listener: status, reason and text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EgressRefusal {
    pub(crate) why: Why,
    status: StatusCode,
    text: String,
}

// === impl EgressRefusal ===

impl EgressRefusal {
    pub(crate) fn new(why: Why, text: impl Into<String>) -> Self {
        let status = match why {
            Why::Address | Why::Browser | Why::Metadata | Why::NotListed | Why::PlainHttp | Why::Port | Why::Sni => {
                StatusCode::FORBIDDEN
            }
            Why::Authorization => StatusCode::PROXY_AUTHENTICATION_REQUIRED,
            Why::Crowded => StatusCode::SERVICE_UNAVAILABLE,
            Why::Direct => StatusCode::MISDIRECTED_REQUEST,
            Why::Itself => StatusCode::LOOP_DETECTED,
            Why::Malformed => StatusCode::BAD_REQUEST,
            Why::Name | Why::Unreachable => StatusCode::BAD_GATEWAY,
        };
        Self { why, status, text: text.into() }
    }

    /// Returns the same refusal with another status.
    pub(crate) fn with(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Makes the refusal of a host with a forbidden address.
    pub(crate) fn address(target: &str, why: ForbiddenAddress) -> Self {
        let word = if why == ForbiddenAddress::Metadata { Why::Metadata } else { Why::Address };
        Self::new(word, format!("{target}: {why}"))
    }

    /// Makes the refusal after a failed connection to a host.
    pub(crate) fn dial(target: &str, error: &DialError) -> Self {
        match &error.what {
            DialFailure::Forbidden(why) => Self::address(target, *why),
            DialFailure::Itself => Self::new(Why::Itself, format!("{target} is this gate itself")),
            DialFailure::Name(_) => {
                Self::new(Why::Name, format!("{target} has no address; check the name, and the pod's DNS"))
            }
            DialFailure::Refused => Self::new(Why::Unreachable, format!("{target} refused the connection")),
            DialFailure::Timeout(_) => {
                let refused = Self::new(Why::Unreachable, format!("{target} did not accept the connection in time"));
                refused.with(StatusCode::GATEWAY_TIMEOUT)
            }
            DialFailure::Proxy(_) => {
                Self::new(Why::Unreachable, format!("the proxy in egress.via did not connect to {target}"))
            }
            _ => Self::new(Why::Unreachable, format!("cannot connect to {target}")),
        }
    }

    /// Returns the reason phrase for the status line: at most 120 visible characters.
    fn phrase(&self) -> String {
        let visible = self.text.chars().filter(|c| c.is_ascii_graphic() || *c == ' ');
        "tidegate: ".chars().chain(visible).take(LONGEST_PHRASE).collect()
    }

    /// Returns the headers besides those of the body.
    fn headers(&self) -> Vec<(&'static str, &'static str)> {
        let more = match self.status {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => Some(("proxy-authenticate", "Basic realm=\"tidegate\"")),
            StatusCode::SERVICE_UNAVAILABLE => Some(("retry-after", "1")),
            StatusCode::METHOD_NOT_ALLOWED => Some(("allow", "CONNECT, DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT")),
            _ => None,
        };
        let usual = [
            ("content-type", "text/plain; charset=utf-8"),
            ("cache-control", "no-store"),
            ("connection", "close"),
            ("tidegate-refusal", "egress"),
        ];
        usual.into_iter().chain(more).collect()
    }

    /// Returns the answer to the request.
    pub(crate) fn response(&self) -> Response<Body> {
        let mut response = Response::new(Body::own(format!("{}\n", self.phrase())));
        *response.status_mut() = self.status;
        for (name, value) in self.headers() {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        let length = HeaderValue::from(self.phrase().len() + 1);
        response.headers_mut().insert(header::CONTENT_LENGTH, length);
        if let Ok(phrase) = ReasonPhrase::try_from(self.phrase()) {
            response.extensions_mut().insert(phrase);
        }
        response
    }
}

impl std::fmt::Display for EgressRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.text.fmt(f)
    }
}

/// The most characters of a reason phrase: as much as fits into a line of a log.
const LONGEST_PHRASE: usize = 120;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phrase_is_one_line_of_visible_characters() {
        let refused = EgressRefusal::new(Why::Name, format!("a\r\nSet-Cookie: x\u{e9}{}", "x".repeat(300)));
        assert_eq!(refused.phrase().len(), 120);
        assert!(refused.phrase().starts_with("tidegate: aSet-Cookie: xxx"));
        let response = refused.response();
        let phrase = response.extensions().get::<ReasonPhrase>().expect("it has one");
        assert_eq!((response.status(), phrase.as_bytes()), (StatusCode::BAD_GATEWAY, refused.phrase().as_bytes()));
    }
}
