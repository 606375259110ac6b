//! The proxy before an upstream: a kubeconfig's `proxy-url`. It is shown by its host, never with
//! its password.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use http::uri::Scheme;
use hyper_util::client::proxy::matcher::Matcher;
use percent_encoding::percent_decode_str;

use super::{Environment, Target};
use crate::spec::has_valid_port;

/// A proxy before an upstream.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("{kind:?} proxy {host}:{port}")]
pub struct Proxy {
    /// The protocol to speak with the proxy.
    pub kind: ProxyKind,
    /// The name or address of the proxy, without brackets.
    pub host: String,
    /// The port of the proxy.
    pub port: u16,
    /// User and password for the proxy, if it needs them.
    pub login: Option<(String, String)>,
}

/// The protocol to speak with a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyKind {
    /// HTTP CONNECT.
    Http,
    /// HTTP CONNECT over TLS.
    Https,
    /// SOCKS5; the proxy looks names up.
    Socks5,
}

/// Returns the proxy variable of the environment client-go and most other programs would use
/// for this upstream. A gate ignores it: its environment is often meant for the pod's own traffic,
/// and the proxy may be this process.
pub(super) fn unused(environment: &Environment, target: &Target) -> Option<&'static str> {
    let names =
        if target.scheme == Scheme::HTTPS { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
    let name = names.into_iter().find(|name| environment.variable(name).is_some())?;
    let value = |name| environment.variable(name).unwrap_or_default().to_owned();
    let no = environment.variable("NO_PROXY").or_else(|| environment.variable("no_proxy")).unwrap_or_default();
    let matcher = Matcher::builder().http(value(name)).https(value(name)).no(no.to_owned()).build();
    let uri = Uri::builder().scheme(target.scheme.clone()).authority(target.authority.clone()).path_and_query("/");
    let host = target.authority.host().trim_start_matches('[').trim_end_matches(']');
    // as Go: never to this machine
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let is_direct = is_here || no.trim() == "*" || target.proxy.is_some();
    matcher.intercept(&uri.build().ok()?).filter(|_| !is_direct).map(|_| name)
}

impl Proxy {
    /// Reads `http`, `https` or `socks5` and `://[user:password@]host[:port]`.
    pub fn parse(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let (kind, port) = match uri.scheme_str()? {
            "http" => (ProxyKind::Http, 80),
            "https" => (ProxyKind::Https, 443),
            "socks5" | "socks5h" => (ProxyKind::Socks5, 1080),
            _ => return None,
        };
        let authority =
            uri.authority().filter(|authority| !authority.host().is_empty() && has_valid_port(authority))?;
        let decoded = |text| Some(percent_decode_str(text).decode_utf8().ok()?.into_owned());
        let login = match authority.as_str().rsplit_once('@') {
            None => None,
            Some((login, _)) => {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                Some((decoded(user)?, decoded(password)?))
            }
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Self { kind, host, port: authority.port_u16().unwrap_or(port), login })
    }

    /// Returns the value of `Proxy-Authorization` for the proxy, if it needs a login.
    pub fn basic(&self) -> Option<String> {
        self.login.as_ref().map(|(user, password)| format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_of_the_environment_is_named_where_it_would_be_used() {
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let named = |server: &str, variables: &[(String, String)]| {
            let environment = Environment { variables: variables.to_vec(), service_account: "/none".into() };
            unused(&environment, &super::super::target(server, "upstream").expect("a URL"))
        };
        let https = variable("HTTPS_PROXY", "http://proxy.example:3128");
        assert_eq!(named("https://10.0.0.1:6443", std::slice::from_ref(&https)), Some("HTTPS_PROXY"));
        assert_eq!(named("https://a.example", &[variable("https_proxy", "proxy.example")]), Some("https_proxy"));
        assert_eq!(named("http://a.example", std::slice::from_ref(&https)), None);
        assert_eq!(named("https://a.example", &[variable("HTTPS_PROXY", "")]), None);
        for here in ["https://127.0.0.1:6443", "https://localhost:6443", "https://[::1]:6443"] {
            assert_eq!(named(here, std::slice::from_ref(&https)), None, "{here}");
        }
        for not in ["10.0.0.0/8", "*", "10.0.0.1, a"] {
            assert_eq!(named("https://10.0.0.1:6443", &[https.clone(), variable("NO_PROXY", not)]), None, "{not}");
        }
    }

    #[test]
    fn a_proxy_url_is_read_and_its_password_not_shown() {
        let proxy = Proxy::parse("http://me:hunter%32@proxy.example:3128").expect("a proxy");
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.example", 3128));
        assert_eq!(proxy.login.as_ref(), Some(&("me".to_owned(), "hunter2".to_owned())));
        assert_eq!(format!("{proxy:?}"), "Http proxy proxy.example:3128");
        let proxy = Proxy::parse("socks5://[::1]").expect("a proxy");
        assert_eq!((proxy.kind, proxy.host.as_str(), proxy.port), (ProxyKind::Socks5, "::1", 1080));
        assert_eq!(Proxy::parse("https://p").map(|proxy| proxy.port), Some(443));
        for wrong in ["p:80", "ftp://p", "http://", "", "http://p:99999", "http://me:1@p:", "socks5://p:0"] {
            assert_eq!(Proxy::parse(wrong), None, "{wrong}");
        }
    }
}
