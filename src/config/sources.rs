//! Where calls go and with whose credentials: upstream, TLS on both sides, the credential of an external API.

use std::path::PathBuf;

use super::{
    field::{Field, Section},
    file::{self, Mode},
    leaf::Word,
    path::Path,
    problems::{Report, did_you_mean},
    readable::{FileUse, Holds},
    settings::{Credential, Credentials, Listen, ListenerTls, TlsMode, Upstream, UpstreamTls},
};
use crate::classify::Kind;

/// What was read of them.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) upstream: Upstream,
    pub(super) credentials: Credentials,
    pub(super) tls: Option<ListenerTls>,
    pub(super) upstream_tls: UpstreamTls,
    pub(super) credential: Option<Credential>,
}

/// Reads them, and checks what they mean together.
pub(super) fn sources(
    keys: &file::Gate,
    at: &Path,
    kind: Kind,
    listen: &[Listen],
    files: &mut Vec<FileUse>,
    report: &mut Report<'_>,
) -> Sources {
    let sources = Sources {
        upstream: upstream(&keys.upstream, &at.key("upstream"), kind, report),
        credentials: keys.credentials.get(&at.key("credentials"), report).map_or(Credentials::Auto, |Word(word)| word),
        tls: tls(&keys.tls, &at.key("tls"), files, report),
        upstream_tls: upstream_tls(&keys.upstream_tls, &at.key("upstream_tls"), files, report),
        credential: credential(&keys.credential, &at.key("credential"), files, report),
    };
    check_together(&sources, keys, at, listen, report);
    sources
}

/// Whether there is something to inject.
pub(super) fn has_credential(upstream: &Upstream, credential: bool) -> bool {
    credential || !matches!(upstream, Upstream::Url(_))
}

fn check_together(sources: &Sources, keys: &file::Gate, at: &Path, listen: &[Listen], report: &mut Report<'_>) {
    let has_something = has_credential(&sources.upstream, keys.credential.is_present());
    let is_off_loopback =
        listen.iter().any(|listen| matches!(listen, Listen::Tcp(address) if !address.ip().is_loopback()));
    let credentials = at.key("credentials");
    if sources.credentials == Credentials::Inject && !has_something && !keys.upstream_tls.keys().cert.is_present() {
        report.problem(
            &credentials,
            "is \"inject\", but there is nothing to inject: expected an upstream with an identity, or [credential]",
        );
    }
    if sources.credentials == Credentials::Inject
        && is_off_loopback
        && sources.tls.as_ref().is_none_or(|tls| tls.client_ca.is_none() && tls.write_to.is_none())
    {
        let message = "is \"inject\" off loopback: whoever reaches the port gets the identity; expected a loopback listener, or [tls] with \
                       client_ca (clients show certificates) or write_to (they show the token in that folder)";
        report.problem(&credentials, message);
    }
    if sources.credentials == Credentials::PassThrough && keys.credential.is_present() {
        report.key_problem(&at.key("credential"), "has no effect: credentials = \"pass_through\"");
    }
    let is_url = matches!(sources.upstream, Upstream::Url(_));
    if keys.credential.is_present() && !is_url && keys.upstream.is_present() {
        report.key_problem(&at.key("credential"), "has no effect: the upstream brings its own identity");
    }
    let is_plain = matches!(&sources.upstream, Upstream::Url(url) if url.scheme_str() == Some("http"));
    if is_plain && keys.upstream_tls.is_present() {
        report.key_problem(&at.key("upstream_tls"), "has no effect: the upstream is http://");
    }
    if sources.upstream_tls.insecure {
        let message = "the upstream's certificate is not verified: whoever is between sees and changes everything";
        report.warn(&at.key("upstream_tls").key("insecure"), message);
    }
}

fn upstream(field: &Field<String>, at: &Path, kind: Kind, report: &mut Report<'_>) -> Upstream {
    let Some(text) = field.get(at, report) else {
        if !field.is_present() {
            report.problem(at, format!("is missing, expected {UPSTREAMS}"));
        }
        return Upstream::InCluster;
    };
    let (upstream, is_cluster) = match (text.as_str(), text.split_once(':')) {
        ("in_cluster", _) => (Upstream::InCluster, true),
        ("kubeconfig", _) => (Upstream::Kubeconfig(None), true),
        (_, Some(("kubeconfig", context))) if !context.is_empty() => {
            (Upstream::Kubeconfig(Some(context.to_owned())), true)
        }
        _ => match url(&text) {
            Ok(url) => (Upstream::Url(url), false),
            Err(fault) => {
                let near = did_you_mean(&text, &["in_cluster", "kubeconfig"]);
                report.problem(at, format!("{fault}, expected {UPSTREAMS}{near}"));
                return Upstream::InCluster;
            }
        },
    };
    if is_cluster && kind == Kind::Http {
        report.problem(
            at,
            format!(
                "is {text:?}, which is for kind = \"kubernetes\"; expected a URL such as \"https://api.github.com\""
            ),
        );
    }
    upstream
}

/// A URL without what a base URL cannot have. The message never shows a password.
fn url(text: &str) -> Result<http::Uri, String> {
    let authority = text.split_once("://").map_or(text, |(_, rest)| rest).split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return Err("has a user or password in it, which belong into [credential]".to_owned());
    }
    let fault = |what: &str| format!("is {text:?}, which {what}");
    let url: http::Uri = text.parse().map_err(|_| fault("is no URL"))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none_or(str::is_empty) {
        return Err(fault("is no URL with http:// or https://"));
    }
    if url.query().is_some() || text.contains('#') {
        return Err(fault("has a query or fragment"));
    }
    Ok(url)
}

fn tls(
    section: &Section<file::Tls>,
    at: &Path,
    files: &mut Vec<FileUse>,
    report: &mut Report<'_>,
) -> Option<ListenerTls> {
    let keys = section.open(at, report);
    if !section.is_present() {
        return None;
    }
    let mode = keys.mode.get(&at.key("mode"), report).map_or(Mode::SelfSigned, |Word(mode)| mode);
    let names = keys.names.get(&at.key("names"), report).unwrap_or_default().0;
    let cert = file(&keys.cert, &at.key("cert"), Holds::Certificate, files, report);
    let key = file(&keys.key, &at.key("key"), Holds::Key, files, report);
    let write_to = keys.write_to.get(&at.key("write_to"), report);
    let client_ca = file(&keys.client_ca, &at.key("client_ca"), Holds::Certificate, files, report);
    let mode = match (mode, cert, key) {
        (Mode::Files, Some(cert), Some(key)) => TlsMode::Files { cert, key },
        (Mode::Files, cert, _) => {
            let missing = if cert.is_none() { "cert" } else { "key" };
            report.problem(&at.key(missing), "is missing, expected a PEM file: mode = \"files\"");
            TlsMode::SelfSigned
        }
        (Mode::SelfSigned, cert, key) => {
            for (name, _) in [("cert", cert), ("key", key)].iter().filter(|(_, path)| path.is_some()) {
                report.key_problem(
                    &at.key(name),
                    "has no effect: mode = \"self_signed\" makes its own; expected mode = \"files\"",
                );
            }
            TlsMode::SelfSigned
        }
    };
    if matches!(mode, TlsMode::Files { .. }) && !names.is_empty() {
        report.key_problem(&at.key("names"), "has no effect: mode = \"files\" has the names of its certificate");
    }
    certificate_names(&names, &at.key("names"), report);
    // A certificate of our own making is of no use to anybody who cannot get at its CA.
    let own = (mode == TlsMode::SelfSigned).then(|| WRITE_TO.to_owned());
    let write_to = write_to.or(own).filter(|path| !path.is_empty()).map(PathBuf::from);
    Some(ListenerTls { mode, names, write_to, client_ca })
}

fn certificate_names(names: &[String], at: &Path, report: &mut Report<'_>) {
    for (index, name) in names.iter().enumerate() {
        if name.parse::<std::net::IpAddr>().is_err() && !is_host_name(name) {
            report.problem(&at.index(index), format!("is {name:?}, expected a host name or an IP address"));
        }
    }
}

/// A host without a port.
fn is_host_name(name: &str) -> bool {
    name.parse::<http::uri::Authority>().is_ok_and(|parsed| parsed.as_str() == parsed.host())
}

fn upstream_tls(
    section: &Section<file::UpstreamTls>,
    at: &Path,
    files: &mut Vec<FileUse>,
    report: &mut Report<'_>,
) -> UpstreamTls {
    let keys = section.open(at, report);
    let ca = file(&keys.ca, &at.key("ca"), Holds::Certificate, files, report);
    let cert = file(&keys.cert, &at.key("cert"), Holds::Certificate, files, report);
    let key = file(&keys.key, &at.key("key"), Holds::Key, files, report);
    if cert.is_some() != key.is_some() {
        let (missing, there) = if cert.is_some() { ("key", "cert") } else { ("cert", "key") };
        report.problem(&at.key(missing), format!("is missing, expected a PEM file: {there} is set"));
    }
    let server_name = keys.server_name.get(&at.key("server_name"), report).filter(|name| !name.is_empty());
    if let Some(name) = server_name.as_ref().filter(|name| !is_host_name(name)) {
        report.problem(&at.key("server_name"), format!("is {name:?}, expected a host name"));
    }
    let insecure = keys.insecure.get(&at.key("insecure"), report).unwrap_or(false);
    if insecure && ca.is_some() {
        report.key_problem(&at.key("ca"), "has no effect: insecure = true verifies nothing");
    }
    UpstreamTls { ca, cert, key, server_name, insecure }
}

fn credential(
    section: &Section<file::Credential>,
    at: &Path,
    files: &mut Vec<FileUse>,
    report: &mut Report<'_>,
) -> Option<Credential> {
    let keys = section.open(at, report);
    if !section.is_present() {
        return None;
    }
    let header = keys.header.get(&at.key("header"), report).unwrap_or_else(|| "Authorization".to_owned());
    let header = header.parse::<http::HeaderName>().map_err(|_| {
        report.problem(&at.key("header"), format!("is {header:?}, expected the name of a header"));
    });
    let prefix = keys.prefix.get(&at.key("prefix"), report).unwrap_or_else(|| "Bearer ".to_owned());
    if http::HeaderValue::from_str(&prefix).is_err() {
        report.problem(&at.key("prefix"), "has characters that a header cannot have");
    }
    let file = file(&keys.file, &at.key("file"), Holds::Secret, files, report);
    if file.is_none() && report.problems.iter().all(|problem| !problem.is_about(&at.key("file"))) {
        report.problem(&at.key("file"), "is missing, expected the file with the secret");
    }
    Some(Credential { header: header.ok()?, prefix, file: file? })
}

/// A file that will be read; the empty name is none.
fn file(
    field: &Field<String>,
    at: &Path,
    holds: Holds,
    files: &mut Vec<FileUse>,
    report: &mut Report<'_>,
) -> Option<PathBuf> {
    let path = field.get(at, report).filter(|path| !path.is_empty()).map(PathBuf::from)?;
    files.push(FileUse::new(path.clone(), holds, at.clone()));
    Some(path)
}

const UPSTREAMS: &str = "\"in_cluster\", \"kubeconfig\", \"kubeconfig:CONTEXT\" or \"http(s)://host[:port][/base]\"";
const WRITE_TO: &str = "/run/tidegate";
