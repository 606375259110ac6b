//! The proxy before an upstream, from the `proxy-url` of a kubeconfig. Messages show only its host,
//! never its password.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use percent_encoding::percent_decode_str;

use crate::spec::has_valid_port;

/// A proxy between the gate and its upstream.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("{kind:?} proxy {host}:{port}")]
pub struct Proxy {
    /// The protocol spoken with the proxy.
    pub kind: ProxyKind,
    /// The name or address of the proxy, without brackets.
    pub host: String,
    /// The port of the proxy.
    pub port: u16,
    /// User and password for the proxy; `None` if it needs no login.
    pub login: Option<(String, String)>,
}

/// The protocol spoken with a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyKind {
    /// HTTP CONNECT.
    Http,
    /// HTTP CONNECT over TLS.
    Https,
    /// SOCKS5. The proxy looks up host names.
    Socks5,
}

impl Proxy {
    /// Reads the URL of a proxy: `http`, `https` or `socks5`, then
    /// `://[user:password@]host[:port]`.
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

    /// Returns the value of the header `Proxy-Authorization`; `None` if the proxy needs no login.
    pub fn basic(&self) -> Option<String> {
        self.login.as_ref().map(|(user, password)| format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
