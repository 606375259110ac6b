//! Reads the egress listener, and the hosts served by gates behind it.

mod interception;
mod shared;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use toml::Value;

use self::interception::ca;
pub(super) use self::interception::check_interception;
use super::clients;
use super::cursor::{Cursor, TextValue, TomlValue};
use super::files::FileContent;
use super::names::{self, address, listen};
use super::problems::{alternatives, did_you_mean};
use super::shape::Shape;
use super::url;
use crate::classify::ApiKind;
use crate::limit::words::Words;
use crate::spec::{
    Egress, HostFate, HostPattern, HostSet, Hosts, Listen, PlainHttp, Settings, Source, has_valid_port, is_loopback,
};

/// Reads the egress listener, if there is one.
pub(super) fn egress(root: &Cursor<'_>) -> Option<Egress> {
    let at = root.optional("egress")?;
    let Listener(listen) = at.get("listen", Listener(Some(Listen::Tcp(LISTEN))));
    let NameListeners(names) = at.get("names", NameListeners(Vec::new()));
    let of_proxy =
        at.unused_if(listen.is_none(), "it is for clients of the proxy, and listen is \"off\"", &at.at("listen"));
    let egress = Egress {
        others: at.get("others", HostFate::Tunnel),
        tunnel: at.get("tunnel", Vec::new()),
        ports: ports(&at),
        metadata: at.get("metadata", HostFate::Refuse),
        via: at.get("via", String::new()),
        token_file: of_proxy.file("token_file", FileContent::Secret),
        max_connections: at.get_if("max_connections", 1000, |number| *number > 0, "at least 1"),
        max_origins: at.get_if("max_origins", 128, |number| *number > 0, "at least 1"),
        idle_origin: at.get_if("idle_origin", IDLE_ORIGIN, |idle| *idle >= SHORTEST_IDLE, "at least \"1s\""),
        tls: shared::tls(&of_proxy),
        clients: of_proxy.optional("clients").map(|at| clients::read(&at, &Source::InCluster)),
        ca: ca(&at.table("ca")),
        listen,
        names,
    };
    check_via(&egress.via, egress.listen.as_ref(), &at.at("via"));
    if egress.listen.is_none() && egress.names.is_empty() {
        at.at("listen").given(&[&at.at("names")]).problem(
            "is \"off\", and so is names: nothing would listen; expected an address for one of the two, or no [egress]",
        );
    }
    if egress.metadata == HostFate::Tunnel {
        at.at("metadata").warn(
            "is \"tunnel\": every client of the listener can get the credentials that the machine's metadata service gives out",
        );
    }
    let is_local = egress.listen.as_ref().is_none_or(Listen::is_local);
    match &egress.clients {
        Some(clients) => shared::check_clients(&egress, clients, is_local, &of_proxy),
        None if is_local || egress.token_file.is_some() => {}
        None => at.at("token_file").given(&[&at.at("listen")]).problem(
            "is missing, but the listener is not on loopback, so anyone who reaches it could use it as a proxy; \
             expected a file with a token that clients send as the password in their HTTPS_PROXY, or [egress.clients]",
        ),
    }
    Some(egress)
}

/// Reads the TLS ports of listed hosts.
fn ports(at: &Cursor<'_>) -> Vec<u16> {
    let ports: Vec<u32> = at.get("ports", vec![443]);
    let at = at.at("ports");
    if ports.is_empty() {
        at.problem("is an empty list, expected the ports of the listed hosts for TLS, such as [443]");
    }
    let port = |(index, port): (usize, &u32)| {
        let port = u16::try_from(*port).ok().filter(|port| ![0, 80].contains(port));
        if port.is_none() {
            at.item(index).problem("expected a port from 1 to 65535 other than 80, which is for plain HTTP");
        }
        port
    };
    ports.iter().enumerate().filter_map(port).collect()
}

/// Checks the URL of the next proxy (`via`). It must not lead to this listener.
fn check_via(via: &str, listen: Option<&Listen>, at: &Cursor<'_>) {
    if via.is_empty() {
        return;
    }
    let Some(url) = at.accept(proxy(via)) else { return };
    let is_loopback = is_loopback(url.host().unwrap_or_default().trim_matches(['[', ']']));
    if let Some(Listen::Tcp(own)) = listen
        && is_loopback
        && url.port_u16().unwrap_or(80) == own.port()
    {
        at.given(&[at]).problem("is this listener's own address, expected that of the next proxy");
    }
}

/// Reads the URL of a proxy. It must contain no password.
fn proxy(via: &str) -> Result<http::Uri, String> {
    if let Some(fault) = url::secret(via, "which everyone would see who reads the configuration") {
        return Err(format!("{fault}, expected a proxy without a password, such as {PROXY}"));
    }
    let is_proxy = |url: &http::Uri| {
        matches!(url.scheme_str(), Some("http" | "https" | "socks5"))
            && matches!(url.path(), "" | "/")
            && url.query().is_none()
            && url.host().is_some_and(|host| !host.is_empty())
    };
    let url = via.parse().ok().filter(is_proxy);
    let url = url.ok_or_else(|| format!("is {via:?}, expected a proxy such as {PROXY}"))?;
    if url.authority().is_some_and(has_valid_port) {
        return Ok(url);
    }
    Err(format!("is {via:?}, which {}, expected a proxy such as {PROXY}", url::NO_PORT))
}

/// Reads the hosts of a gate without an upstream.
///
/// `place` is the gate's index in the file. `is_meant` is false for a gate with an upstream: then
/// keys about hosts are reported as useless.
pub(super) fn hosts(at: &Cursor<'_>, kind: ApiKind, place: Option<usize>, is_meant: bool) -> Option<Hosts> {
    let own = at.unused_if(!is_meant, "it is only for a gate with hosts", &at.at("hosts"));
    let patterns: Option<Vec<HostPattern>> = own.option("hosts", None);
    let except = own.get("except", Vec::new());
    let intercept = own.get("intercept", false);
    let plain = own.get("plain", PlainHttp::Upgrade);
    let connect_to: BTreeMap<String, String> = own.get("connect_to", BTreeMap::new());
    if !is_meant {
        return None;
    }
    let is_empty = patterns.as_ref().is_some_and(Vec::is_empty);
    let patterns = patterns.unwrap_or_default();
    if is_empty && at.at("hosts").is_present() {
        at.at("hosts").problem("is an empty list, expected hosts such as \"api.example.com\" or \"*.example.com\"");
    }
    if place.is_none() {
        at.at("hosts")
            .problem("needs the egress listener, through which clients reach these hosts; expected a table [egress]");
    }
    if kind != ApiKind::Http {
        let at = at.at("kind").given(&[&at.at("hosts")]);
        at.problem("is \"kubernetes\", but hosts are those of external APIs; expected \"http\"");
    }
    let hosts = Hosts { place: place.unwrap_or_default(), patterns, except, intercept, plain, connect_to };
    for (host, to) in &hosts.connect_to {
        check_connect_to(host, to, &hosts, &at.at("connect_to"));
    }
    Some(hosts)
}

fn check_connect_to(host: &str, to: &str, hosts: &Hosts, at: &Cursor<'_>) {
    if hosts.find(host).is_none() {
        at.given(&[at]).problem(format!("has {host:?}, which is not one of the gate's hosts"));
    }
    let authority = to.parse::<http::uri::Authority>().ok();
    if authority.is_none_or(|to| {
        to.port_u16().is_none_or(|port| port == 0) || to.host().is_empty() || to.as_str().contains('@')
    }) {
        at.problem(format!("has {to:?} for {host:?}, expected a host and a port such as \"vpce-1.example.com:443\""));
    }
}

/// Returns this position with its keys marked as useless if the gate has hosts; `why` is the
/// reason.
pub(super) fn beside_hosts<'a>(at: &Cursor<'a>, has_hosts: bool, why: &str) -> Cursor<'a> {
    at.unused_if(has_hosts, why, &at.at("hosts"))
}

/// Reports TLS settings making no sense for many hosts.
pub(super) fn check_upstream_tls(gate: &Cursor<'_>) {
    for key in ["server_name", "cert", "key"] {
        let at = gate.at("upstream_tls").at(key);
        if !at.is_absent_or_empty() {
            at.given(&[&gate.at("hosts")])
                .key_problem("has no effect: each host is verified by its own name, and is shown no certificate");
        }
    }
}

/// Warns of unreachable gates: earlier gates or `tunnel` match all of their hosts.
pub(super) fn warn_of_unreachable(settings: &Settings, root: &Cursor<'_>) {
    let Some(egress) = &settings.egress else { return };
    let mut gates: Vec<_> =
        settings.gates.values().filter_map(|gate| Some((&gate.name, gate.hosts.as_ref()?))).collect();
    gates.sort_by_key(|(_, hosts)| hosts.place);
    for (index, (name, hosts)) in gates.iter().enumerate() {
        let before = gates.iter().take(index).filter(|(_, hosts)| hosts.except.is_empty());
        let taken: Vec<&HostPattern> = before.flat_map(|(_, hosts)| &hosts.patterns).chain(&egress.tunnel).collect();
        let is_taken = |pattern: &HostPattern| {
            taken.iter().chain(&hosts.except.iter().collect::<Vec<_>>()).any(|wide| wide.covers(pattern))
        };
        if !hosts.patterns.is_empty() && hosts.patterns.iter().all(is_taken) {
            let at = root.at("gates").at(name).at("hosts");
            at.warn("get no calls: each of these hosts is also in except, in egress.tunnel, or in the hosts of a gate before this one");
        }
    }
}

impl TextValue for HostPattern {
    fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with('@') {
            let expected = alternatives(HostSet::WORDS);
            let near = did_you_mean(text, HostSet::WORDS);
            return HostSet::named(text)
                .map(Self::Set)
                .ok_or_else(|| format!("is {text:?}, expected {expected}{near}"));
        }
        pattern_fault(text)
            .map_or_else(|| Ok(Self::Labels(text.to_owned())), |fault| Err(format!("is {text:?}, {fault}")))
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// Returns what is wrong with a host pattern, if anything.
fn pattern_fault(text: &str) -> Option<&'static str> {
    let rest = text.strip_prefix("**.").unwrap_or(text);
    let labels: Vec<&str> = rest.split('.').collect();
    if text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        return Some("an address, whose certificate cannot be verified by name; expected a host name");
    }
    let is_label = |label: &str| {
        label == "*"
            || (!label.is_empty()
                && label.len() <= 63
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_')))
    };
    if text.len() > 253 || !labels.iter().all(|label| is_label(label)) {
        return Some(
            "expected a host name in lower case without a port; \"*\" stands for one label, \"**.\" at the start for any number of labels",
        );
    }
    let literal = labels.iter().rev().take_while(|label| **label != "*").count();
    if literal < 2 {
        return Some("expected at least two labels without \"*\" at the end, such as \"*.example.com\"");
    }
    None
}

/// A listener's address, or `off`.
struct Listener(Option<Listen>);

impl TextValue for Listener {
    fn parse(text: &str) -> Result<Self, String> {
        let listen = match text {
            "off" => None,
            text if text.starts_with("unix:") => Some(listen(text)?),
            text => Some(Listen::Tcp(address(text, ", \"unix:/path/of/a.sock\" or \"off\"")?)),
        };
        Ok(Self(listen))
    }

    fn text(&self) -> String {
        self.0.as_ref().map_or_else(|| "off".to_owned(), ToString::to_string)
    }
}

/// The addresses for host names redirected here by a hosts file, or `off`.
struct NameListeners(Vec<Listen>);

impl TomlValue for NameListeners {
    const SHAPE: Shape = Shape::Addresses;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        if value.as_str() == Some("off") {
            return Some(Self(Vec::new()));
        }
        names::listeners(value, at, ", or \"off\"", loopback).map(Self)
    }

    fn write(&self) -> Value {
        match self.0.as_slice() {
            [] => "off".into(),
            _ => self.0.write(),
        }
    }
}

/// Reads an IP address with a port, and rejects all but loopback addresses.
fn loopback(text: &str) -> Result<Listen, String> {
    let address = address(text, ", or \"off\"")?;
    let expected = "expected a loopback address, which the pod's hosts file gives to the names";
    if address.ip().is_loopback() { Ok(Listen::Tcp(address)) } else { Err(format!("is {text:?}, {expected}")) }
}

/// Reasons to report for keys that are useless in a gate with hosts.
pub(super) const LISTENER: &str = "clients reach a gate with hosts through the egress listener";
pub(super) const NO_IDENTITY: &str = "a forward proxy adds no credentials, as all its clients would act with them";
pub(super) const REAL_NAMES: &str = "clients of a gate with hosts use the names of the APIs themselves";
const PROXY: &str = "\"http://proxy.example:3128\"";
/// A placeholder for the upstream of a gate with hosts: a reserved name of RFC 6761, never called.
pub(super) const NO_UPSTREAM: &str = "https://egress.invalid";

const LISTEN: std::net::SocketAddr = std::net::SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8003);
/// How long an idle host's limits are kept by default: more than most controllers' resync periods.
const IDLE_ORIGIN: Duration = Duration::from_secs(600);
const SHORTEST_IDLE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use crate::config::load_text;
    use crate::config::tests::problems;

    #[test]
    fn what_cannot_be_of_a_gate_with_hosts_is_said() {
        for (more, expected) in [
            ("upstream = \"https://x\"", "gates.a.upstream: has no effect: a gate has hosts or an upstream, not both"),
            (
                "listen = \"127.0.0.1:1\"",
                "gates.a.listen: has no effect: clients reach a gate with hosts through the egress listener",
            ),
            ("tls = {}", "gates.a.tls: has no effect: clients reach"),
            ("host = \"rewrite\"", "gates.a.host: has no effect: clients of a gate with hosts use the names"),
            ("allowed_hosts = [\"x\"]", "gates.a.allowed_hosts: has no effect: clients of a gate with hosts"),
            ("rewrite_links = true", "gates.a.rewrite_links: has no effect: clients of a gate with hosts"),
            ("credentials = \"inject\"", "gates.a.credentials: has no effect: a forward proxy adds no credentials"),
            (
                "credential = { file = \"/x\" }",
                "gates.a.credential: has no effect: a forward proxy adds no credentials",
            ),
            ("kind = \"kubernetes\"", "gates.a.kind: is \"kubernetes\", but hosts are those of external APIs"),
            ("upstream_tls.server_name = \"x\"", "gates.a.upstream_tls.server_name: has no effect: each host"),
            (
                "connect_to = { \"b.example\" = \"x:443\" }",
                "gates.a.connect_to: has \"b.example\", which is not one of the gate's hosts",
            ),
            (
                "connect_to = { \"a.example\" = \"x\" }",
                "gates.a.connect_to: has \"x\" for \"a.example\", expected a host and a port",
            ),
            ("except = [\"EXAMPLE.com\"]", "gates.a.except[0]: is \"EXAMPLE.com\", expected a host name in lower case"),
        ] {
            let said = problems(&format!("[egress]\n[gates.a]\nhosts = [\"a.example\"]\n{more}\n"));
            assert!(said.contains(expected) && said.lines().count() == 1, "{more}: {said}");
        }
        for (text, expected) in [
            ("[gates.a]\nhosts = [\"a.example\"]\n", "gates.a.hosts: needs the egress listener"),
            ("[egress]\n[gates.a]\nhosts = []\n", "gates.a.hosts: is an empty list"),
            ("[egress]\n[gates.a]\nhosts = \"a.example\"\n", "gates.a.hosts: is \"a.example\", expected a list"),
            (
                "[egress]\n[gates.a]\nupstream = \"https://x\"\nkind = \"http\"\nrewrite_links = true\nplain = \"refuse\"\n",
                "gates.a.plain: has no effect: it is only for a gate with hosts",
            ),
        ] {
            let said = problems(text);
            assert!(said.contains(expected) && said.lines().count() == 1, "{text}: {said}");
        }
    }

    #[test]
    fn a_client_s_certificate_for_many_hosts_is_refused_in_both_of_its_halves() {
        let said =
            problems("[egress]\n[gates.a]\nhosts = [\"a.example\"]\nupstream_tls = { cert = \"/c\", key = \"/k\" }\n");
        let refused = |key| format!("gates.a.upstream_tls.{key}: has no effect: each host is verified by its own name");
        let lines: Vec<&str> = said.lines().collect();
        let [cert, key] = &lines[..] else { panic!("{said}") };
        assert!(cert.contains(&refused("cert")) && key.contains(&refused("key")), "{said}");
    }

    #[test]
    fn what_interception_cannot_have_is_said() {
        for (text, expected) in [
            (
                "names = [\"127.0.0.1:443\", \"0.0.0.0:80\"]",
                "egress.names[1]: is \"0.0.0.0:80\", expected a loopback address",
            ),
            ("names = \"on\"", "egress.names: is \"on\", expected an IP address with a port"),
            ("names = \"127.0.0.1:8003\"", "127.0.0.1:8003 is already that of egress.listen"),
            ("ca.keep = \"keys\"", "egress.ca.keep: is \"keys\", expected the absolute path of a folder"),
            ("ca.write_to = \"\"", "egress.ca.write_to: is \"\", expected the absolute path of a folder"),
            ("ca.names = [\"*.com\"]", "egress.ca.names[0]: is \"*.com\", expected at least two labels"),
            (
                "ca = { keep = \"/run/tidegate/egress/keys\" }",
                "egress.ca.keep: lies in the folder of egress.ca.write_to, which clients mount, so they could read the CA's key",
            ),
            (
                "[gates.k]\nupstream = \"https://x\"\ntls.write_to = \"/run/tidegate/egress\"",
                "egress.ca.write_to: is \"/run/tidegate/egress\", the folder of gates.k.tls.write_to too",
            ),
            (
                "[gates.b]\nhosts = [\"*.googleapis.com\"]\nintercept = true",
                "gates.b.hosts: has *.googleapis.com with intercept = true",
            ),
            (
                "[gates.b]\nupstream = \"https://x\"\nkind = \"http\"\nintercept = true\nlisten = \"127.0.0.1:1\"",
                "gates.b.intercept: has no effect: it is only for a gate with hosts",
            ),
        ] {
            let (egress, gates) = if !text.starts_with('[') { (text, "") } else { ("", text) };
            let said = problems(&format!(
                "[egress]\n{egress}\n[gates.a]\nhosts = [\"a.example\"]\nintercept = true\n{gates}\n"
            ));
            assert!(said.contains(expected) && said.trim().lines().count() == 1, "{text}: {said}");
        }
    }

    #[test]
    fn patterns_keep_two_labels_and_no_address() {
        for (pattern, expected) in [
            ("api.github.com", None),
            ("*.example.com", None),
            ("**.example.com", None),
            ("ec2.*.amazonaws.com", None),
            ("@aws", None),
            ("*.com", Some("expected at least two labels")),
            ("*", Some("expected at least two labels")),
            ("**", Some("expected a host name")),
            ("**.com", Some("expected at least two labels")),
            ("*example.com", Some("expected a host name")),
            ("a.**.example.com", Some("expected a host name")),
            ("https://a.example", Some("expected a host name")),
            ("a.example:443", Some("expected a host name")),
            ("127.0.0.1", Some("an address, whose certificate")),
            ("[::1]", Some("an address, whose certificate")),
            ("@amazon", Some("expected \"@aws\", \"@azure_arm\", \"@gcp\" or \"@github\"")),
        ] {
            let said = problems(&format!("[egress]\n[gates.a]\nhosts = [{pattern:?}]\n"));
            match expected {
                None => assert_eq!(said, "fine ", "{pattern}"),
                Some(expected) => assert!(said.contains(expected), "{pattern}: {said}"),
            }
        }
    }

    #[test]
    fn what_the_listener_cannot_be_is_said() {
        for (more, expected) in [
            ("listen = \"0.0.0.0:8003\"", "egress.token_file: is missing, but the listener is not on loopback"),
            ("listen = \"8003\"", "egress.listen: is \"8003\", expected an IP address with a port"),
            ("listen = \"off\"", "egress.listen: is \"off\", and so is names: nothing would listen"),
            ("listen = \"off\"\nnames = \"127.0.0.1:443\"", "fine "),
            (
                "listen = \"off\"\nnames = \"127.0.0.1:443\"\ntoken_file = \"/token\"",
                "egress.token_file: has no effect: it is for clients of the proxy, and listen is \"off\"",
            ),
            (
                "listen = \"off\"\nnames = \"127.0.0.1:443\"\ntls = { cert = \"/c\", key = \"/k\" }",
                "egress.tls: has no effect: it is for clients of the proxy, and listen is \"off\"",
            ),
            ("ports = []", "egress.ports: is an empty list"),
            ("ports = [443, 80]", "egress.ports[1]: expected a port"),
            ("ports = [65536]", "egress.ports[0]: expected a port"),
            ("max_connections = 0", "egress.max_connections: is 0, expected at least 1"),
            ("max_origins = 0", "egress.max_origins: is 0, expected at least 1"),
            ("idle_origin = \"0s\"", "egress.idle_origin: is 0ns, expected at least"),
            ("others = \"pass\"", "egress.others: is \"pass\", expected \"tunnel\" or \"refuse\""),
            ("via = \"http://127.0.0.1:8003\"", "egress.via: is this listener's own address"),
            ("via = \"http://me:secret@proxy:3128\"", "egress.via: has a user or password in it"),
            ("via = \"proxy:3128\"", "egress.via: is \"proxy:3128\", expected a proxy"),
            ("metadata = \"tunnel\"", "fine f.toml:2:1: egress.metadata: is \"tunnel\": every client"),
        ] {
            let said = problems(&format!("[egress]\n{more}\n"));
            assert!(said.contains(expected) && !said.contains("secret"), "{more}: {said}");
        }
        let taken = "[egress]\nlisten = \"127.0.0.1:8001\"\n[gates.k]\nupstream = \"in_cluster\"\n";
        assert!(problems(taken).contains("127.0.0.1:8001 is already that of"), "{}", problems(taken));
        assert_eq!(problems("[egress]\n"), "fine ", "a blind proxy with metrics");
    }

    #[test]
    fn a_gate_that_no_call_can_reach_is_named() {
        let text = "[egress]\ntunnel = [\"b.example.com\"]\n[gates.z]\nhosts = [\"*.example.com\"]\n[gates.a]\nhosts = [\"a.example.com\", \"b.example.com\"]\n";
        assert!(problems(text).contains("gates.a.hosts: get no calls"), "{}", problems(text));
        let preset = load_text("f.toml".to_owned(), "[egress]\n[gates.a]\npreset = \"aws\"\n".to_owned(), &[]);
        let settings = preset.expect("a provider's preset has hosts").settings;
        assert!(
            settings.gates["a"]
                .hosts
                .as_ref()
                .is_some_and(|hosts| hosts.find("ec2.eu-central-1.amazonaws.com").is_some())
        );
    }
}
