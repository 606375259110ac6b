//! Reads the upstream of a gate, TLS on both sides, and the credential of an external API.

use std::path::PathBuf;

use toml::Value;

use super::cursor::{Cursor, TextValue, TomlValue};
use super::egress;
use super::files::FileContent;
use super::problems::did_you_mean;
use super::shape::Shape;
use super::url;
use super::words::Mode;
use crate::classify::ApiKind;
use crate::spec::{CredentialFile, Credentials, Gate, ListenerTls, Source, TlsMode, UpstreamTls};

/// Reads the source of the upstream's address and credentials.
pub(super) fn upstream(gate: &Cursor<'_>, kind: ApiKind) -> Option<Source> {
    let upstream = gate.required::<Source>("upstream", UPSTREAMS);
    if let Some(upstream) = upstream.as_ref().filter(|upstream| kind == ApiKind::Http && upstream.has_identity()) {
        gate.at("upstream").given(&[&gate.at("kind")]).problem(format!(
            "is {}, which is for kind = \"kubernetes\"; expected a URL such as \"https://api.github.com\"",
            upstream.write()
        ));
    }
    upstream
}

/// Reads TLS on both sides of the gate, and the gate's credential for an external API.
pub(super) fn tls_and_credential(
    gate: &Cursor<'_>,
    upstream: Option<&Source>,
    credentials: Credentials,
    has_hosts: bool,
) -> (Option<ListenerTls>, UpstreamTls, Option<CredentialFile>) {
    let is_plain = matches!(upstream, Some(Source::Url(url)) if url.scheme_str() == Some("http"));
    let has_identity = upstream.is_some_and(Source::has_identity);
    let tls = egress::beside_hosts(gate, has_hosts, egress::LISTENER).optional("tls");
    let tls = tls.filter(|_| !has_hosts).map(|at| listener_tls(&at));
    let at = gate.at("upstream");
    let has_clusters = matches!(upstream, Some(Source::Clusters(_)));
    if has_clusters && tls.as_ref().is_some_and(|tls| tls.write_to.is_some()) {
        gate.at("tls").at("write_to").given(&[&gate.at("clusters")]).problem(
            "is for a gate with one upstream; expected mode = \"files\" and no write_to (tidegate kubeconfig --hub writes a kubeconfig)",
        );
    }
    let why = "each cluster's own file says how it is verified";
    let verified = gate.unused_if(has_clusters, why, &gate.at("clusters"));
    let upstream_tls =
        upstream_tls(&verified.unused_if(is_plain, "the upstream is http://", &at).table("upstream_tls"));
    if has_hosts {
        egress::check_upstream_tls(gate);
    }
    let passes = credentials == Credentials::PassThrough;
    let credential = egress::beside_hosts(gate, has_hosts, egress::NO_IDENTITY);
    let passes = passes && !has_hosts;
    let credential = credential
        .unused_if(has_identity, "the upstream (a cluster) has credentials already", &at)
        .unused_if(passes, "credentials = \"pass_through\"", &gate.at("credentials"))
        .optional("credential");
    (tls, upstream_tls, credential.and_then(|at| self::credential(&at)))
}

/// Checks the gate's own credentials against its other settings: it must have some, and only
/// permitted clients may be able to use them.
pub(super) fn check_together(gate: &Gate, at: &Cursor<'_>) {
    if gate.identity.credentials == Credentials::Inject {
        let credentials = at.at("credentials");
        let has_something = gate.upstream.has_identity() || at.has("credential") || at.at("upstream_tls").has("cert");
        if !has_something {
            credentials.given(&[&at.at("upstream"), &at.at("credential"), &at.at("upstream_tls")]).problem(
                "is \"inject\", but the gate has no credentials to inject; expected [credential], or upstream = \"in_cluster\" or \"kubeconfig\"",
            );
        }
        if gate.access.clients.is_none()
            && !gate.is_local()
            && gate.access.tls.as_ref().is_none_or(|tls| tls.client_ca.is_none() && tls.write_to.is_none())
        {
            credentials.given(&[&at.at("listen"), &at.at("tls")]).problem(
                "is \"inject\" on a listener beyond loopback, so anyone who reaches it would act with the gate's identity; expected a loopback \
                 listener, or [tls] with client_ca (clients need certificates) or write_to (they need the token in that folder)",
            );
        }
    }
    if gate.identity.file.is_some() && !gate.injects() {
        let where_it_passes = if gate.is_local() { "with [tls]" } else { "beyond loopback" };
        at.at("credential").warn(format!(
            "is not sent: {where_it_passes} credentials = \"auto\" passes on the client's own; expected credentials = \"inject\" (beyond \
             loopback with tls.client_ca or tls.write_to), or a plain loopback listener"
        ));
    }
    if gate.forwarding.tls.insecure {
        let message = "the upstream's certificate is not verified: anyone on the way can read and change every call";
        at.at("upstream_tls").at("insecure").warn(message);
    }
}

impl TextValue for Source {
    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            _ if text == "in_cluster" => return Ok(Self::InCluster),
            _ if text == "kubeconfig" => return Ok(Self::Kubeconfig(None)),
            Some(("kubeconfig", context)) if !context.is_empty() => {
                return Ok(Self::Kubeconfig(Some(context.to_owned())));
            }
            _ => {}
        }
        let near = did_you_mean(text, &["in_cluster", "kubeconfig"]);
        let url = url::read(text, "which must be in [credential] instead");
        url.map(Self::Url).map_err(|fault| format!("{fault}, expected {UPSTREAMS}{near}"))
    }

    fn text(&self) -> String {
        match self {
            Self::InCluster => "in_cluster".to_owned(),
            Self::Kubeconfig(None) => "kubeconfig".to_owned(),
            Self::Kubeconfig(Some(context)) => format!("kubeconfig:{context}"),
            Self::Url(url) => url.to_string(),
            Self::Clusters(path) => path.display().to_string(),
        }
    }
}

fn listener_tls(at: &Cursor<'_>) -> ListenerTls {
    let mode = at.get("mode", Mode::SelfSigned);
    let names: Vec<String> = at.get("names", Vec::new());
    if mode == Mode::Files && !names.is_empty() {
        at.at("names").key_problem("has no effect: with mode = \"files\" the names are those in the certificate");
    }
    at.check_each("names", &names, |name| {
        let is_name = name.parse::<std::net::IpAddr>().is_ok() || is_host_name(name);
        (!is_name).then(|| "expected a host name or an IP address".to_owned())
    });
    let why = "mode = \"self_signed\" makes its own certificate; expected mode = \"files\"";
    let files = at.unused_if(mode == Mode::SelfSigned, why, &at.at("mode"));
    let cert = files.file("cert", FileContent::Chain);
    let key = files.file("key", FileContent::Key);
    let missing = if cert.is_none() { "cert" } else { "key" };
    let mode = match (mode, cert, key) {
        (Mode::SelfSigned, ..) => TlsMode::SelfSigned,
        (Mode::Files, Some(cert), Some(key)) => TlsMode::Files { cert, key },
        (Mode::Files, ..) => {
            at.at(missing).missing(", but mode = \"files\" needs it; expected a PEM file");
            TlsMode::SelfSigned
        }
    };
    // A certificate of our own making is of no use to clients that cannot get at its CA.
    let write_to = at.get("write_to", (mode == TlsMode::SelfSigned).then(|| PathBuf::from(WRITE_TO)));
    let client_ca = at.file("client_ca", FileContent::Certificate);
    ListenerTls { mode, names, write_to, client_ca }
}

/// Returns true for a valid host name without a port.
fn is_host_name(name: &str) -> bool {
    name.parse::<http::uri::Authority>().is_ok_and(|parsed| parsed.as_str() == parsed.host())
}

pub(super) fn upstream_tls(at: &Cursor<'_>) -> UpstreamTls {
    let ca = at.file("ca", FileContent::Certificate);
    let cert = at.file("cert", FileContent::Chain);
    let key = at.file("key", FileContent::Key);
    if cert.is_some() != key.is_some() {
        let (missing, there) = if cert.is_some() { ("key", "cert") } else { ("cert", "key") };
        at.at(missing).missing(format_args!(", but {there} is set; expected a PEM file"));
    }
    let server_name: Option<String> = at.get("server_name", None);
    if let Some(name) = server_name.as_ref().filter(|name| !is_host_name(name)) {
        at.at("server_name").problem(format!("is {name:?}, expected a host name"));
    }
    let insecure = at.get("insecure", false);
    if insecure && ca.is_some() {
        at.at("ca").key_problem("has no effect: with insecure = true no certificate is verified");
    }
    UpstreamTls { ca, cert, key, server_name, insecure }
}

fn credential(at: &Cursor<'_>) -> Option<CredentialFile> {
    let header = at.get("header", http::header::AUTHORIZATION);
    let prefix = at.get("prefix", "Bearer ".to_owned());
    if http::HeaderValue::from_str(&prefix).is_err() {
        at.at("prefix").problem("has characters that a header cannot have");
    }
    let file = at.file("file", FileContent::Secret);
    if file.is_none() && at.is_table() && at.at("file").is_absent_or_empty() {
        at.at("file").missing(", expected the file with the secret");
    }
    Some(CredentialFile { header, prefix, file: file? })
}

impl TomlValue for http::HeaderName {
    const SHAPE: Shape = Shape::Text;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        let name = at.expect(value.as_str(), value, "text in quotes")?;
        at.expect(name.parse().ok(), value, "the name of a header")
    }

    fn write(&self) -> Value {
        self.as_str().into()
    }
}

const UPSTREAMS: &str = "\"in_cluster\", \"kubeconfig\", \"kubeconfig:CONTEXT\" or \"http(s)://host[:port][/base]\"";
const WRITE_TO: &str = "/run/tidegate";
