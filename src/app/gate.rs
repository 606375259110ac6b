//! Builds a gate from its configuration: upstream, credentials and TLS.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::folder::{ControllerToken, Folder};
use crate::classify::ApiKind;
use crate::clients;
use crate::clock::Clock;
use crate::config::Origins;
use crate::credentials::{
    self, Api, Credential, CredentialsError, Environment, Injector, PodToken, ResolvedUpstream, Secret,
};
use crate::proxy::HubClusters;
use crate::spec::{Clients, CredentialFile, Credentials, Gate, Listen, ListenerTls, TlsMode, Tokens, UpstreamTls};
use crate::upstream::{self, Dns};
use crate::{proxy, tls};
use anyhow::anyhow;
use http::uri::Scheme;

/// A gate's settings, keys and credentials, prepared before it listens.
#[derive(Debug)]
pub(crate) struct PreparedGate {
    pub(crate) options: proxy::Options,
    /// Whose credentials go to the upstream: `inject` (the gate's) or `pass_through` (the
    /// client's).
    pub(crate) credentials: &'static str,
    /// Notes for the user, logged once at the start.
    pub(crate) notes: Vec<String>,
    /// A warning if clients will send no credentials: the upstream would take their calls for
    /// anonymous ones.
    anonymous: Option<String>,
    /// Warnings for the user.
    pub(super) warnings: Vec<String>,
    /// The folder with the files for the controller.
    pub(crate) folder: Option<Folder>,
    /// The clusters of a gate with many.
    pub(crate) hub: Option<HubClusters>,
}

/// Why a gate cannot be built.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The configuration is wrong at this key, for this reason.
    Wrong { key: &'static str, what: anyhow::Error },
    /// Something that the configuration needs does not exist on this machine.
    Missing(anyhow::Error),
}

/// Resolves the gate's upstream and credentials, and prepares its TLS and authentication. Nothing
/// listens yet.
pub(crate) fn prepare_gate(
    gate: Gate,
    around: &Environment,
    drain: Duration,
    clock: Clock,
) -> Result<PreparedGate, Trouble> {
    let resolved = credentials::resolve(&gate.upstream, &gate.forwarding.tls, around)
        .map_err(|error| unresolved(error, format!("gate {}", gate.name), "upstream"))?;
    not_itself(&gate, &resolved.target)?;
    let mut warnings = resolved.warnings.clone();
    let asks_by_tls = gate.access.clients.as_ref().is_none_or(Clients::need_certificates);
    let listener =
        gate.access.tls.as_ref().map(|tls| listener(tls, &gate.listen, asks_by_tls)).transpose()?.map(Arc::new);
    let clients = clients(&gate, around, clock, &mut warnings)?.map(Arc::new);
    let has_clusters = gate.has_clusters();
    let injects = if has_clusters { gate.injects() } else { injects(&gate, &resolved) };
    let pod_token = pod_token(&gate, injects)?;
    let injector = injector(&gate, &resolved, injects, pod_token.clone(), clock)?;
    let tls = resolved.tls(injects).map_err(|error| Trouble::wrong("upstream_tls", error))?;
    let scheme = if has_clusters { &Scheme::HTTPS } else { &resolved.target.scheme };
    let anonymous = anonymous(&gate, injects, scheme);
    let notes = notes(&gate, injects, anonymous.is_some());
    let folder = listener.as_ref().and_then(|listener| folder(&gate, listener, &resolved, injects, pod_token.as_ref()));
    let scheme = if gate.access.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
    let options = proxy::Options {
        tls: listener,
        clients,
        upstream: upstream::Options {
            target: resolved.target,
            tls,
            host: gate.forwarding.host.clone(),
            rewrite_links: (gate.forwarding.rewrite_links || has_clusters).then_some(scheme),
            mount: String::new(),
            injector: Arc::new(injector),
            own: Vec::new(), // known once the gate listens
            dns: Dns::default(),
            connect_timeout: gate.forwarding.connect_timeout,
            response_timeout: gate.forwarding.response_timeout,
        },
        call_log: None,
        stores: proxy::Stores::default(), // known once the process starts
        drain,
        gate,
    };
    let credentials = if injects { "inject" } else { "pass_through" };
    Ok(PreparedGate { options, credentials, notes, anonymous, warnings, folder, hub: None })
}

// === impl PreparedGate ===

impl PreparedGate {
    /// Returns the warnings for the user; `from` names the configuration.
    pub(crate) fn warnings(&self, origins: &Origins, from: &str) -> Vec<String> {
        let name = &self.options.gate.name;
        let anonymous =
            self.anonymous.iter().map(|why| origins.located(from, &format!("gates.{name}.credentials"), why));
        anonymous.chain(self.warnings.iter().map(|warning| format!("{name}: {warning}"))).collect()
    }
}

/// Returns the folder with the controller's files, if the gate has TLS and such a folder.
fn folder(
    gate: &Gate,
    listener: &Arc<tls::Listener>,
    resolved: &ResolvedUpstream,
    injects: bool,
    pod_token: Option<&PodToken>,
) -> Option<Folder> {
    let path = gate.folder()?.to_owned();
    let token = match pod_token {
        Some(token) => Some(ControllerToken::Pods(token.clone())),
        None => resolved
            .credential
            .as_ref()
            .filter(|_| !injects)
            .map(|passed| ControllerToken::Passed(passed.secret.clone())),
    };
    Some(Folder { path, listener: Arc::clone(listener), token, namespace: resolved.namespace.clone() })
}

/// Returns the token that this pod's clients must send, if the gate adds its own credentials and
/// has a folder for the controller's files. In-cluster clients do not start without a token, and a
/// gate reached from other machines demands it.
fn pod_token(gate: &Gate, injects: bool) -> Result<Option<PodToken>, Trouble> {
    let Some(folder) = gate.folder().filter(|_| injects) else { return Ok(None) };
    let left = credentials::folder::left_token(folder).as_deref().and_then(PodToken::again);
    let token = left.map_or_else(PodToken::random, Ok);
    token.map(Some).map_err(|error| Trouble::Missing(error.into()))
}

/// Turns the failure to resolve an upstream or API server into an error. `of` says what needs the
/// server, and `key` is its key in the configuration.
fn unresolved(error: CredentialsError, of: String, key: &'static str) -> Trouble {
    match error {
        CredentialsError::NotInCluster(_) | CredentialsError::NoKubeconfig(_) => {
            Trouble::Missing(anyhow!(error).context(of))
        }
        CredentialsError::Tls(_) | CredentialsError::HalfIdentity if key == "upstream" => {
            Trouble::wrong("upstream_tls", error)
        }
        error => Trouble::wrong(key, error),
    }
}

/// Rejects one of the gate's own listening addresses as its upstream. Host names cannot be checked
/// here; they are checked at each connection.
pub(super) fn not_itself(gate: &Gate, target: &upstream::Target) -> Result<(), Trouble> {
    let host = target.authority.host().trim_start_matches('[').trim_end_matches(']');
    let is_localhost = host.eq_ignore_ascii_case("localhost");
    let address = host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let usual = if target.scheme == Scheme::HTTPS { 443 } else { 80 };
    let port = target.authority.port_u16().unwrap_or(usual);
    let is_own = |own: &SocketAddr| {
        let ip = own.ip().to_canonical();
        let is_loopback = is_localhost || address.is_some_and(|ip| ip.is_loopback());
        let is_here =
            address == Some(ip) || is_loopback && ip.is_unspecified() || is_localhost && ip == Ipv4Addr::LOCALHOST;
        own.port() == port && is_here
    };
    match gate.listen.iter().filter_map(Listen::tcp).find(is_own).filter(|_| target.proxy.is_none()) {
        None => Ok(()),
        Some(own) => {
            let why =
                format!("{host}:{port} is this gate itself, which listens on {own}; expected the address of the API");
            Err(Trouble::wrong("upstream", why))
        }
    }
}

/// Prepares the authentication of the gate's clients; `None` if every client may use it.
fn clients(
    gate: &Gate,
    around: &Environment,
    clock: Clock,
    warnings: &mut Vec<String>,
) -> Result<Option<clients::Clients>, Trouble> {
    let Some(clients) = &gate.access.clients else { return Ok(None) };
    let is_upstream = clients.api == gate.upstream;
    let tls = if is_upstream { gate.forwarding.tls.clone() } else { UpstreamTls::default() };
    let api = reviewer(clients, &tls, around, clock, warnings)?;
    let judge = clients::Clients::new(gate, clients, api, clock);
    judge.map(Some).ok_or_else(|| Trouble::Missing(anyhow!(tls::TlsError::Randomness)))
}

/// Returns the API server that reviews clients' tokens; `None` if clients do not use tokens.
pub(super) fn reviewer(
    clients: &Clients,
    tls: &UpstreamTls,
    around: &Environment,
    clock: Clock,
    warnings: &mut Vec<String>,
) -> Result<Option<Api>, Trouble> {
    if clients.tokens == Tokens::Off {
        return Ok(None);
    }
    let key = "clients.api";
    let resolved =
        credentials::resolve(&clients.api, tls, around).map_err(|error| unresolved(error, key.to_owned(), key))?;
    let news: Vec<_> = resolved.warnings.iter().filter(|warning| !warnings.contains(warning)).cloned().collect();
    warnings.extend(news);
    if !resolved.has_credentials() {
        let why = "has no credentials, which the gate needs to ask for a TokenReview";
        return Err(Trouble::wrong(key, why));
    }
    Api::new(&resolved, "tidegate", clock).map(Some).map_err(|error| Trouble::wrong(key, error))
}

/// Prepares the TLS of the listener. If there is a client CA and `must_show` is set, clients must
/// have a certificate.
pub(super) fn listener(tls: &ListenerTls, listen: &[Listen], must_show: bool) -> Result<tls::Listener, Trouble> {
    let client_ca = tls.client_ca.as_deref();
    let made = match &tls.mode {
        TlsMode::SelfSigned => self_signed(tls, &addresses(listen)),
        TlsMode::Files { cert, key } => tls::from_files(cert, key, client_ca),
    };
    let made = if must_show { made } else { made.and_then(tls::Listener::with_optional_certificates) };
    made.map_err(|error| Trouble::wrong("tls", error))
}

/// Prepares TLS with a generated certificate. It is signed by the CA of an earlier gate in this
/// pod, so that a running controller trusts the restarted gate; without such a CA, by a new one.
fn self_signed(tls: &ListenerTls, addresses: &[IpAddr]) -> Result<tls::Listener, tls::TlsError> {
    let client_ca = tls.client_ca.as_deref();
    let left = tls.write_to.as_deref().and_then(credentials::folder::left_ca_key);
    match left.map(|key| tls::self_signed_by(&key, &tls.names, addresses, client_ca)) {
        Some(Ok(listener)) => Ok(listener),
        Some(Err(_)) | None => tls::self_signed(&tls.names, addresses, client_ca),
    }
}

/// Returns the addresses to put into a certificate. A listener on all addresses contributes none.
fn addresses(listen: &[Listen]) -> Vec<IpAddr> {
    let tcp = listen.iter().filter_map(Listen::tcp).map(|address| address.ip());
    tcp.filter(|ip| !ip.is_unspecified()).collect()
}

/// Returns true if the calls to this upstream are sent with the gate's own credentials.
pub(super) fn injects(gate: &Gate, resolved: &ResolvedUpstream) -> bool {
    let has_some = resolved.has_credentials() || gate.identity.file.is_some();
    gate.injects() && (gate.identity.credentials == Credentials::Inject || has_some)
}

/// Prepares the part that puts credentials into requests to the upstream.
pub(super) fn injector(
    gate: &Gate,
    resolved: &ResolvedUpstream,
    injects: bool,
    pod_token: Option<PodToken>,
    clock: Clock,
) -> Result<Injector, Trouble> {
    if !injects {
        return Ok(Injector::pass_through());
    }
    let own = match &gate.identity.file {
        Some(CredentialFile { header, prefix, file }) => {
            let secret = Secret::file(file).map_err(|error| Trouble::wrong("credential.file", error))?;
            Some(Credential { header: header.clone(), prefix: prefix.clone(), secret })
        }
        None => resolved.credential.clone(),
    };
    Ok(Injector::inject(credentials::Inject {
        credential: own,
        impersonation: gate.identity.impersonation,
        acting_as: resolved.acting_as.clone(),
        required_token: pod_token.filter(|_| gate.asks_for_a_token()),
        clock,
    }))
}

/// Returns the notes for the user, logged once at the start.
fn notes(gate: &Gate, injects: bool, is_warned: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if gate.identity.credentials == Credentials::Auto && injects {
        notes.push(
            "credentials = \"auto\" became \"inject\": every client that reaches this loopback port acts with the gate's identity".to_owned(),
        );
    }
    let is_plain = gate.kind == ApiKind::Kubernetes && gate.access.tls.is_none() && !is_warned;
    if is_plain && !injects {
        notes.push(format!(
            "credentials are passed through, but Go clients send none over plain HTTP; gates.{0}.tls or \
             gates.{0}.credentials = \"inject\" changes that",
            gate.name
        ));
    } else if is_plain {
        notes.push("Go clients send no credentials over plain HTTP; the gate adds its own".to_owned());
    }
    if gate.shadow {
        notes.push("shadow = true: every call is judged and counted, but none is held or refused".to_owned());
    }
    notes
}

/// Returns a warning if the calls will be anonymous: clients should send their own credentials, but
/// client-go and kubectl send none over plain HTTP. There is no warning if the upstream has no TLS
/// either: without a gate it would get none as well.
fn anonymous(gate: &Gate, injects: bool, scheme: &Scheme) -> Option<String> {
    let is_plain = gate.kind == ApiKind::Kubernetes && gate.access.tls.is_none() && *scheme == Scheme::HTTPS;
    (is_plain && !injects).then(|| {
        format!(
            "the clients' own are passed through, but the listener is plain HTTP, over which kubectl and client-go send none: the API \
             takes their calls for anonymous ones (403); expected gates.{0}.tls = {{ mode = \"self_signed\" }}, or \
             gates.{0}.credentials = \"inject\" on loopback",
            gate.name
        )
    })
}

// === impl Trouble ===

impl Trouble {
    /// Makes an error about a key of the configuration, with the text of its cause.
    pub(super) fn wrong(key: &'static str, error: impl std::fmt::Display) -> Self {
        Self::Wrong { key, what: anyhow!("{error}") }
    }
}
