//! Rewrites links in response headers, so that they lead to the gate and do not bypass its limits.
//!
//! Examples are the next page of a list, and the status of an operation. A path without a host
//! always loses the base path, because the gate adds it again. Rewriting of URLs with a host is
//! optional. It concerns only URLs of the upstream's own origin and below its base path, in headers
//! for such links; bodies are never changed. The gate's address in them is the one used by the
//! client. Unclear links stay as they are.
//!
//! If the upstream is one of several below paths of the gate, no link of it leads to another one: paths
//! get the upstream's own before them, and what still leads elsewhere on the gate is removed.
//! Cookies are limited to that path.

use std::ops::Range;

use http::header::{CONTENT_LOCATION, HOST, LINK, LOCATION, SET_COOKIE};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, request};

use super::{Host, Target};

/// Rewrites links in one response to the address used by its client.
#[derive(Clone, Debug)]
pub(super) struct Links<'a> {
    target: &'a Target,
    host: Host,
    /// The gate's address, such as `http://localhost:8001`; `None` if URLs with a host are not
    /// rewritten.
    gate: Option<String>,
    /// The path of the upstream at the gate, without a final slash; empty if it has the whole gate.
    mount: &'a str,
}

/// A URL with a host.
struct Absolute<'a> {
    scheme: Option<&'a str>,
    authority: &'a str,
    /// The path, query and fragment.
    rest: &'a str,
}

impl<'a> Links<'a> {
    /// Creates a rewriter for the response to a request; `None` if no link needs a change.
    ///
    /// If `scheme` is set, URLs with a host are rewritten to lead to the gate. `mount` is the path of
    /// the upstream there.
    pub(super) fn new(
        scheme: Option<&Scheme>,
        mount: &'a str,
        parts: &request::Parts,
        target: &'a Target,
        host: &Host,
    ) -> Option<Self> {
        let gate = scheme.and_then(|scheme| gate(scheme, parts));
        let changes = gate.is_some() || !target.base_path.is_empty() || !mount.is_empty();
        changes.then(|| Self { target, host: host.clone(), gate, mount })
    }

    /// Rewrites the links in response headers.
    pub(super) fn rewrite(&self, headers: &mut HeaderMap) {
        for name in &URLS {
            each(headers, name, |url| self.url(url));
        }
        each(headers, &LINK, |links| self.links(links));
        if !self.mount.is_empty() {
            self.confine(headers);
        }
    }

    /// Removes links to other upstreams of the gate, and limits cookies to this one.
    fn confine(&self, headers: &mut HeaderMap) {
        let stays = |url: &str| !self.strays(url.trim_matches([' ', '\t']));
        let link_stays = |field: &str| {
            targets(field).is_some_and(|targets| targets.into_iter().all(|at| field.get(at).is_some_and(stays)))
        };
        URLS.iter().for_each(|name| retain(headers, name, |line| line.to_str().is_ok_and(stays)));
        retain(headers, &LINK, |line| line.to_str().is_ok_and(link_stays));
        if let http::header::Entry::Occupied(mut lines) = headers.entry(SET_COOKIE) {
            lines.iter_mut().for_each(|line| *line = self.cookie(line));
        }
    }

    /// Returns true if a client would take a URL for one of the gate's beyond the mount, or if clients
    /// read it differently.
    fn strays(&self, url: &str) -> bool {
        let is_odd = |byte: u8| byte == b'\\' || byte <= b' ' || byte == 0x7f;
        let path = match absolute(url) {
            _ if url.bytes().any(is_odd) => return true,
            Some(absolute) if self.is_gate(&absolute) == Some(false) => return false,
            Some(absolute) => absolute.rest,
            None if url.starts_with('/') => url,
            // Relative to the path of the request, which is below the mount.
            None => {
                let first = url.split(['/', '?', '#']).next().unwrap_or_default();
                return first.contains(':') || climbs(url);
            }
        };
        !path.strip_prefix(self.mount).is_some_and(|below| below.starts_with('/')) || climbs(path)
    }

    /// Returns true if a URL has the host and port of the gate, as used by the client; `None` if they
    /// cannot be read.
    fn is_gate(&self, url: &Absolute<'_>) -> Option<bool> {
        let own = self.gate.as_deref().and_then(absolute)?;
        let scheme = own.scheme.unwrap_or_default();
        Some(place(own.authority, scheme)? == place(url.authority, scheme)?)
    }

    /// Returns a cookie with its path below the mount. Clients differ in which of two paths counts.
    fn cookie(&self, line: &HeaderValue) -> HeaderValue {
        let mut path: &[u8] = b"/";
        let mut kept: Vec<&[u8]> = Vec::new();
        for part in line.as_bytes().split(|byte| *byte == b';') {
            let mut halves = part.splitn(2, |byte| *byte == b'=').map(<[u8]>::trim_ascii);
            let name = halves.next().unwrap_or_default();
            match (name.eq_ignore_ascii_case(b"path") && !kept.is_empty(), halves.next()) {
                (false, _) => kept.push(part),
                (true, Some(own)) if own.starts_with(b"/") => path = own,
                (true, _) => {}
            }
        }
        let cookie = [&kept.join(b";".as_slice()), b"; Path=".as_slice(), self.mount.as_bytes(), path].concat();
        HeaderValue::from_bytes(&cookie).unwrap_or_else(|_| line.clone())
    }

    /// Rewrites every URL in a Link header; `None` if this changes nothing.
    fn links(&self, field: &str) -> Option<String> {
        let mut rewritten = field.to_owned();
        for target in targets(field)?.into_iter().rev() {
            if let Some(url) = self.url(field.get(target.clone())?) {
                rewritten.replace_range(target, &url);
            }
        }
        (rewritten != field).then_some(rewritten)
    }

    /// Rewrites a URL; `None` if it is not the upstream's, or is right already.
    fn url(&self, url: &str) -> Option<String> {
        let trimmed = url.trim_matches([' ', '\t']);
        match absolute(trimmed) {
            Some(absolute) => {
                let is_own = |url| {
                    is_own(url, self.target, &self.host) || !self.mount.is_empty() && self.is_gate(url) == Some(true)
                };
                let gate = self.gate.as_ref().filter(|_| is_own(&absolute))?;
                let below = self.below_base(absolute.rest)?;
                let slash = if self.mount.is_empty() || below.starts_with('/') { "" } else { "/" };
                Some(format!("{gate}{}{slash}{below}", self.mount))
            }
            // A path without a host: the gate adds the base path again. The rest must not begin
            // with `//`, or with what browsers take for it: that would name a host.
            None if trimmed.starts_with('/') && !(self.target.base_path.is_empty() && self.mount.is_empty()) => self
                .below_base(trimmed)
                .filter(|below| !["//", "/\\", "/\t"].iter().any(|host| below.starts_with(host)))
                .map(|below| format!("{}{below}", self.mount)),
            None => None,
        }
    }

    /// Returns a path without the base path; `None` if the gate cannot reach it.
    fn below_base(&self, rest: &str) -> Option<String> {
        let base = self.target.base_path.as_str();
        let below = rest.strip_prefix(base)?;
        if base.is_empty() {
            return Some(below.to_owned());
        }
        match below.chars().next() {
            _ if climbs(rest) => None,
            Some('/') => Some(below.to_owned()),
            None | Some('?' | '#') => Some(format!("/{below}")),
            Some(_) => None, // the base path was only the beginning of a longer name
        }
    }
}

/// Returns the gate's URL, with the address used by the client.
fn gate(scheme: &Scheme, parts: &request::Parts) -> Option<String> {
    let of_uri = parts.uri.authority().map(Authority::as_str);
    let of_head = parts.headers.get(HOST).and_then(|host| host.to_str().ok());
    let name = of_uri.or(of_head)?;
    // Without the usual port, as the upstream's own links are: some clients compare ports.
    let usual = if *scheme == Scheme::HTTPS { ":443" } else { ":80" };
    Some(format!("{scheme}://{}", name.strip_suffix(usual).unwrap_or(name)))
}

/// Returns the positions of the URLs in a Link header; `None` if it is malformed.
fn targets(field: &str) -> Option<Vec<Range<usize>>> {
    let mut targets = Vec::new();
    let mut at = 0;
    loop {
        // One link: blanks and commas, `<`, a target, `>`, parameters.
        let rest = field.get(at..)?;
        let Some(blanks) = rest.find(|char: char| !matches!(char, ' ' | '\t' | ',')) else { return Some(targets) };
        let (url, after) = rest.get(blanks..)?.strip_prefix('<')?.split_once('>')?;
        let start = at + blanks + 1;
        let end = start + url.len();
        targets.push(start..end);
        at = end + 1 + parameters_end(after)?;
    }
}

/// Returns true if a URL has the upstream's own scheme, host and port.
fn is_own(url: &Absolute<'_>, target: &Target, host: &Host) -> bool {
    let scheme = target.scheme.as_str();
    let literal = if let Host::Literal(name) = host { name.to_str().ok() } else { None };
    let mut own = std::iter::once(target.authority.as_str()).chain(literal).filter_map(|own| place(own, scheme));
    let is_same_scheme = url.scheme.is_none_or(|own| own.eq_ignore_ascii_case(scheme));
    let at = place(url.authority, scheme).filter(|_| is_same_scheme && !url.authority.contains('@'));
    at.is_some_and(|at| own.any(|own| own == at))
}

/// Returns the host and port of an authority, in one spelling.
fn place(authority: &str, scheme: &str) -> Option<(String, u16)> {
    let usual = if scheme == Scheme::HTTPS.as_str() { 443 } else { 80 };
    let authority = authority.parse::<Authority>().ok()?;
    Some((authority.host().to_ascii_lowercase(), authority.port_u16().unwrap_or(usual)))
}

/// Splits a URL with a host; `None` for any other URL, as it cannot bypass the gate.
fn absolute(url: &str) -> Option<Absolute<'_>> {
    let (scheme, rest) = match url.strip_prefix("//") {
        Some(rest) => (None, rest),
        None => url.split_once("://").map(|(scheme, rest)| (Some(scheme), rest))?,
    };
    if scheme.is_some_and(|scheme| scheme.contains(['/', '?', '#'])) {
        return None; // a path that carries a URL
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at_checked(end)?;
    Some(Absolute { scheme, authority, rest })
}

/// Returns true if a path has a segment that stands for the one above.
fn climbs(rest: &str) -> bool {
    let path = rest.split(['?', '#']).next().unwrap_or(rest);
    path.split('/').any(|segment| segment.to_ascii_lowercase().replace("%2e", ".") == "..")
}

/// Returns the end of a link's parameters: the comma before the next link, or the end of the text.
/// `None` if a quoted string is not closed.
fn parameters_end(text: &str) -> Option<usize> {
    let mut quoted = false;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' if !quoted => return Some(at),
            _ => {}
        }
    }
    (!quoted).then_some(text.len())
}

/// Changes the values of a header, without changing their order.
fn each(headers: &mut HeaderMap, name: &HeaderName, change: impl Fn(&str) -> Option<String>) {
    let http::header::Entry::Occupied(mut lines) = headers.entry(name) else { return };
    for line in lines.iter_mut() {
        let changed = line.to_str().ok().and_then(&change);
        if let Some(value) = changed.and_then(|text| HeaderValue::try_from(text).ok()) {
            *line = value;
        }
    }
}

/// Removes the values of a header that `stays` does not accept.
fn retain(headers: &mut HeaderMap, name: &HeaderName, stays: impl Fn(&HeaderValue) -> bool) {
    if headers.get_all(name).iter().all(&stays) {
        return;
    }
    let kept: Vec<HeaderValue> = headers.get_all(name).iter().filter(|line| stays(line)).cloned().collect();
    headers.remove(name);
    for line in kept {
        headers.append(name.clone(), line);
    }
}

const AZURE_ASYNC_OPERATION: HeaderName = HeaderName::from_static("azure-asyncoperation");
const OPERATION_LOCATION: HeaderName = HeaderName::from_static("operation-location");
/// Headers with a URL as value.
static URLS: [HeaderName; 4] = [LOCATION, CONTENT_LOCATION, AZURE_ASYNC_OPERATION, OPERATION_LOCATION];

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    fn target(base: &str) -> Target {
        Target {
            scheme: Scheme::HTTPS,
            authority: Authority::from_static("api.test"),
            base_path: base.into(),
            server_name: None,
            proxy: None,
        }
    }

    fn links<'a>(target: &'a Target, host: &'a Host) -> Links<'a> {
        let parts = Request::get("/x").header(HOST, "localhost:8001").body(()).expect("valid").into_parts().0;
        Links::new(Some(&Scheme::HTTP), "", &parts, target, host).expect("there is a host")
    }

    #[test]
    fn only_the_upstreams_own_urls_change() {
        let target = target("");
        let links = links(&target, &Host::Rewrite);
        for (url, becomes) in [
            ("https://api.test/items?page=2", Some("http://localhost:8001/items?page=2")),
            ("HTTPS://API.test:443/a#b", Some("http://localhost:8001/a#b")),
            ("//api.test/items", Some("http://localhost:8001/items")),
            ("https://api.test", Some("http://localhost:8001")),
            ("https://api.test?a=//b", Some("http://localhost:8001?a=//b")),
            ("https://api.test/%2e%2E/x", Some("http://localhost:8001/%2e%2E/x")),
            ("http://api.test/items", None),
            ("https://api.test:8443/items", None),
            ("https://api.test.evil/items", None),
            ("https://api.test@evil/items", None),
            ("https://me@api.test/items", None),
            ("https://evil/https://api.test/", None),
            ("https://api.test\\@evil/", None),
            ("/items?page=2", None),
            ("items?next=https://api.test/", None),
            ("/go/https://api.test/", None),
            ("urn:api.test", None),
            ("", None),
        ] {
            assert_eq!(links.url(url).as_deref(), becomes, "{url}");
        }
    }

    #[test]
    fn the_base_path_is_taken_off_since_the_gate_puts_it_back() {
        let target = target("/api/v3");
        let links = links(&target, &Host::Rewrite);
        for (url, becomes) in [
            ("https://api.test/api/v3/items?page=2", Some("http://localhost:8001/items?page=2")),
            ("https://api.test/api/v3?page=2", Some("http://localhost:8001/?page=2")),
            ("https://api.test/api/v3", Some("http://localhost:8001/")),
            ("/api/v3/items", Some("/items")),
            ("/api/v3", Some("/")),
            ("/api/v3?page=2", Some("/?page=2")),
            ("/api/v3//evil.test/", None),
            ("https://api.test/api/v33/items", None),
            ("https://api.test/api/v3/../v4/items", None),
            ("https://api.test/api/v3/%2E./items", None),
            ("https://api.test/uploads/items", None),
            ("/uploads/items", None),
            ("items", None),
        ] {
            assert_eq!(links.url(url).as_deref(), becomes, "{url}");
        }
    }

    #[test]
    fn without_the_operator_s_wish_only_paths_lose_the_base_path() {
        let target = target("/api/v3");
        let parts = Request::get("/x").header(HOST, "localhost:8001").body(()).expect("valid").into_parts().0;
        let links = Links::new(None, "", &parts, &target, &Host::Rewrite).expect("there is a base path");
        for (url, becomes) in [
            ("/api/v3/items?page=2", Some("/items?page=2")),
            ("/api/v3", Some("/")),
            ("/uploads/items", None),
            ("items", None),
            ("https://api.test/api/v3/items", None),
            ("//api.test/api/v3/items", None),
        ] {
            assert_eq!(links.url(url).as_deref(), becomes, "{url}");
        }
        assert!(Links::new(None, "", &parts, &self::target(""), &Host::Rewrite).is_none());
    }

    /// PyGithub calls `http://api.github.com:80` and asserts that links have no port.
    #[test]
    fn the_gates_own_usual_port_is_left_out_of_a_link() {
        let target = target("");
        for (scheme, host, becomes) in [
            (Scheme::HTTP, "api.test:80", "http://api.test/items"),
            (Scheme::HTTPS, "api.test:443", "https://api.test/items"),
            (Scheme::HTTP, "[::1]:80", "http://[::1]/items"),
            (Scheme::HTTP, "[fe80::80]", "http://[fe80::80]/items"),
            (Scheme::HTTP, "api.test:443", "http://api.test:443/items"),
            (Scheme::HTTP, "api.test:8080", "http://api.test:8080/items"),
        ] {
            let parts = Request::get("/x").header(HOST, host).body(()).expect("valid").into_parts().0;
            let links = Links::new(Some(&scheme), "", &parts, &target, &Host::Rewrite).expect("there is a host");
            assert_eq!(links.url("https://api.test/items").as_deref(), Some(becomes), "{scheme} {host}");
        }
    }

    fn mounted(base: &str, name: &str, value: &str) -> Option<String> {
        let target = target(base);
        let parts = Request::get("/x").header(HOST, "gate.test").body(()).expect("valid").into_parts().0;
        let links = Links::new(Some(&Scheme::HTTPS), "/c/a", &parts, &target, &Host::Rewrite).expect("there is a host");
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        let mut headers: HeaderMap =
            [(name.clone(), HeaderValue::from_str(value).expect("a value"))].into_iter().collect();
        links.rewrite(&mut headers);
        headers.get(name).map(|value| value.to_str().expect("ASCII").to_owned())
    }

    #[test]
    fn links_of_an_upstream_below_a_path_stay_below_it() {
        for (base, url, becomes) in [
            ("", "/api/v1?a=/../b", Some("/c/a/api/v1?a=/../b")),
            ("", "/c/b/api", Some("/c/a/c/b/api")),
            ("", "/", Some("/c/a/")),
            ("", "https://api.test/items#x", Some("https://gate.test/c/a/items#x")),
            ("", "https://api.test", Some("https://gate.test/c/a/")),
            ("", "https://api.test?x", Some("https://gate.test/c/a/?x")),
            ("", "//API.test/items", Some("https://gate.test/c/a/items")),
            ("", "https://gate.test/c/b/x", Some("https://gate.test/c/a/c/b/x")),
            ("", "https://GATE.test:443/x", Some("https://gate.test/c/a/x")),
            ("", "http://gate.test:443/x", Some("https://gate.test/c/a/x")),
            ("", "https://elsewhere.test/c/b", Some("https://elsewhere.test/c/b")),
            ("", "items?page=2", Some("items?page=2")),
            ("", "?page=2", Some("?page=2")),
            ("", "a/b:c", Some("a/b:c")),
            ("", "", Some("")),
            ("/k8s/1", "/k8s/1/api", Some("/c/a/api")),
            ("/k8s/1", "/k8s/1", Some("/c/a/")),
            ("/k8s/1", "https://api.test/k8s/1?x", Some("https://gate.test/c/a/?x")),
            ("/k8s/1", "https://api.test/k8s/2/api", Some("https://api.test/k8s/2/api")),
            ("/k8s/1", "/k8s/2/api", None),
            ("/k8s/1", "/c/b/api", None),
            ("/k8s/1", "https://gate.test/k8s/2", None),
            ("", "/../b/api", None),
            ("", "/api/%2e%2E/%2e./b", None),
            ("", "../../b/api", None),
            ("", ".%2e/b", None),
            ("", "https://api.test/../b", None),
            ("", "https://me@gate.test/c/b", Some("https://gate.test/c/a/c/b")),
            ("", "https:/c/b", None),
            ("", "https:c/b", None),
            ("", "/\\gate.test/c/b", None),
            ("", "\\\\gate.test\\c\\b", None),
            ("", "/\t/gate.test/c/b", None),
            ("", "https://ga te.test/c/b", None),
            ("", "https:///c/b", None),
            ("", "///c/b", None),
        ] {
            assert_eq!(mounted(base, "location", url).as_deref(), becomes, "{base} {url}");
        }
    }

    #[test]
    fn a_link_field_with_a_way_out_of_its_path_is_removed() {
        let field = "</api?page=2>; rel=next, <https://elsewhere.test/>; rel=x";
        assert_eq!(mounted("", "link", field), Some(field.replace("</api", "</c/a/api")));
        assert_eq!(mounted("", "link", "</api>; rel=next, </../b>; rel=x"), None);
        assert_eq!(mounted("", "link", "</api>; rel=\"next"), None, "not a Link field");
    }

    #[test]
    fn cookies_of_an_upstream_below_a_path_are_for_that_path() {
        for (cookie, becomes) in [
            ("id=1", "id=1; Path=/c/a/"),
            ("id=1; path=/; Secure", "id=1; Secure; Path=/c/a/"),
            ("id=1;PATH = /proxy/ui ; Path=/x", "id=1; Path=/c/a/x"),
            ("path=1; Path=", "path=1; Path=/c/a/"),
            ("id=1; Path=proxy; Domain=gate.test", "id=1; Domain=gate.test; Path=/c/a/"),
        ] {
            assert_eq!(mounted("", "set-cookie", cookie).as_deref(), Some(becomes), "{cookie}");
        }
    }

    #[test]
    fn a_literal_host_is_the_upstreams_own_too() {
        let target = target("");
        let host = Host::Literal(HeaderValue::from_static("public.test"));
        let links = links(&target, &host);
        assert_eq!(links.url("https://public.test/a").as_deref(), Some("http://localhost:8001/a"));
        assert_eq!(links.url("https://api.test/a").as_deref(), Some("http://localhost:8001/a"));
    }

    #[test]
    fn of_a_link_field_only_the_targets_change() {
        let target = target("");
        let links = links(&target, &Host::Rewrite);
        for (field, becomes) in [
            (
                "<https://api.test/a?page=2>; rel=\"next\", <https://api.test/a?page=9>; rel=\"last\"",
                Some("<http://localhost:8001/a?page=2>; rel=\"next\", <http://localhost:8001/a?page=9>; rel=\"last\""),
            ),
            (
                "<https://cdn.test/s.css>; rel=preload,<https://api.test/b,c>;title=\"a, <https://api.test/> \\\" b\" ; x",
                Some(
                    "<https://cdn.test/s.css>; rel=preload,<http://localhost:8001/b,c>;title=\"a, <https://api.test/> \\\" b\" ; x",
                ),
            ),
            (", <https://api.test/>; rel=next ,", Some(", <http://localhost:8001/>; rel=next ,")),
            ("<https://cdn.test/>; rel=x", None),
            ("<https://api.test/>; title=\"open, <https://api.test/>", None),
            ("<https://api.test/", None),
            ("https://api.test/", None),
            ("", None),
        ] {
            assert_eq!(links.links(field).as_deref(), becomes, "{field}");
        }
    }

    #[test]
    fn several_lines_keep_their_order_and_other_headers_stay() {
        let target = target("");
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("link", "<https://api.test/1>; rel=a"),
            ("link", "<https://other.test/2>; rel=b"),
            ("link", "<https://api.test/3>; rel=c"),
            ("location", "https://api.test/new"),
            ("azure-asyncoperation", "https://api.test/operations/1"),
            ("www-authenticate", "Bearer realm=\"https://api.test/token\""),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        links(&target, &Host::Rewrite).rewrite(&mut headers);
        let lines: Vec<_> = headers.get_all(LINK).iter().collect();
        assert_eq!(
            lines,
            ["<http://localhost:8001/1>; rel=a", "<https://other.test/2>; rel=b", "<http://localhost:8001/3>; rel=c"]
        );
        assert_eq!(headers[LOCATION], "http://localhost:8001/new");
        assert_eq!(headers["azure-asyncoperation"], "http://localhost:8001/operations/1");
        assert_eq!(headers["www-authenticate"], "Bearer realm=\"https://api.test/token\"");
    }

    /// A link: its target, and parameters in disguise of more links.
    fn link() -> impl Strategy<Value = (String, String)> {
        let url = prop_oneof![
            "https://api\\.test/[a-z/?=,;]{0,12}",
            "https://[a-z]{1,8}\\.test/[a-z,;\"]{0,12}",
            "/[a-z,]{0,8}"
        ];
        let text = "[a-z<>,; :/]{0,16}".prop_map(|text| format!("\"https://api.test/{text}\\\"\\\\\""));
        let parameter = prop_oneof![text.prop_map(|text| format!("; title={text}")), "; rel=[a-z]{1,6}".boxed()];
        (url, proptest::collection::vec(parameter, 0..3).prop_map(|parameters| parameters.concat()))
    }

    proptest! {
        #[test]
        fn whatever_the_links_say_targets_change_and_nothing_else(written in proptest::collection::vec(link(), 1..5)) {
            let target = target("");
            let links = links(&target, &Host::Rewrite);
            let join = |change: &dyn Fn(&str) -> String| {
                let each: Vec<_> = written.iter().map(|(url, rest)| format!("<{}>{rest}", change(url))).collect();
                each.join(", ")
            };
            let field = join(&|url| url.to_owned());
            let expected = join(&|url| url.replacen("https://api.test/", "http://localhost:8001/", 1));
            prop_assert_eq!(links.links(&field).unwrap_or_else(|| field.clone()), expected);
        }

        #[test]
        fn no_field_breaks_the_parser_and_what_is_read_twice_is_rewritten_once(field in "[ -~]{0,60}", base in "(/[a-z]{1,2})?") {
            let target = target(&base);
            let links = links(&target, &Host::Rewrite);
            if let Some(once) = links.links(&field) {
                prop_assert!(once.contains("localhost:8001") || !base.is_empty());
                prop_assert!(HeaderValue::try_from(once).is_ok());
            }
        }
    }
}
