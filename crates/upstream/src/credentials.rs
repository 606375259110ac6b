//! The address of the upstream, and its credentials: the client's own, or the gate's.
//!
//! [`resolve`] reads in-cluster files, a kubeconfig or a URL into one [`ResolvedUpstream`];
//! [`Injector`] changes each request. `Debug` output never contains secrets, and secrets are sent
//! only in requests to the configured upstream (P12).

mod api;
mod exec;
pub mod folder;
mod injector;
mod kubeconfig;
mod pod_token;
mod proxy;
mod token;

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::uri::{Authority, Scheme};
use http::{HeaderName, HeaderValue, Uri};

pub use self::api::{Api, ApiError};
use self::exec::Exec;
pub use self::exec::ExecPluginError;
pub use self::injector::{CredentialRefusal, CredentialVersion, Inject, Injector};
pub use self::kubeconfig::{Clusters, ListedCluster, clusters, fingerprint};
pub use self::pod_token::PodToken;
pub use self::proxy::{Proxy, ProxyKind};
pub use self::token::Secret;
use crate::spec::has_valid_port;
pub use crate::spec::{Source, UpstreamTls};
use crate::tls::{self, Identity, Pem, Roots, TlsError};

/// The address of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// The host, and the port if it is not the scheme's default.
    pub authority: Authority,
    /// The base path, to be put before the path of each request: empty, or begins with `/` and does
    /// not end with it.
    pub base_path: String,
    /// The name to verify in the server's certificate and to send as SNI; `None` for the host.
    pub server_name: Option<String>,
    /// The proxy to connect through, if there is one.
    pub proxy: Option<Proxy>,
}

/// The process's environment: variables and files for finding the upstream.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Environment variables.
    pub variables: Vec<(String, String)>,
    /// The folder of the pod's service account.
    pub service_account: PathBuf,
}

/// An upstream with its credentials and trusted CAs, as read from its source.
#[derive(Clone, Debug)]
pub struct ResolvedUpstream {
    /// The address.
    pub target: Target,
    /// The credential to add to requests, if the source has one.
    pub credential: Option<Credential>,
    /// The Kubernetes namespace belonging to the credential.
    pub namespace: Option<String>,
    /// The Impersonate-* headers to add, so that the credential acts as another identity.
    pub acting_as: Vec<(HeaderName, HeaderValue)>,
    /// Warnings to be logged later, because logging may not have started yet.
    pub warnings: Vec<String>,
    roots: Roots,
    /// The client certificate from the source. It is not used for clients with their own
    /// credentials.
    own_identity: Option<Identity>,
    /// The client certificate from the configuration, used on behalf of every client.
    connection_identity: Option<Identity>,
    /// The exec plugin from the source. It may provide a client certificate.
    exec: Option<Arc<Exec>>,
}

/// A header with a secret, to add to requests.
#[derive(Clone, derive_more::Debug)]
#[debug("{header}: {prefix}{secret:?}")]
pub struct Credential {
    /// The name of the header.
    pub header: HeaderName,
    /// The text before the secret, such as `Bearer `.
    pub prefix: String,
    /// The secret.
    pub secret: Secret,
}

/// Why an upstream's address or credentials cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// This process is not in a pod: the text says what is missing.
    #[error("upstream = \"in_cluster\" needs {0}, which only a pod has; elsewhere use \"kubeconfig\" or a URL")]
    NotInCluster(String),
    /// This text is not a valid URL; the second text is its source.
    #[error("`{0}` ({1}) is not an upstream; expected http(s)://host[:port][/base]")]
    Url(String, String),
    /// There is no kubeconfig file.
    #[error("no kubeconfig found: {0}; set KUBECONFIG or write ~/.kube/config")]
    NoKubeconfig(String),
    /// This file cannot be read as a kubeconfig. The text says what is wrong and where. The
    /// content is not shown: it holds secrets.
    #[error("{path} cannot be read as a kubeconfig: {1}", path = .0.display())]
    NotKubeconfig(PathBuf, String),
    /// The kubeconfig has no entry of this kind (`context`, `cluster` or `user`) and name. The last
    /// text lists the names of existing entries.
    #[error("the kubeconfig has no {0} `{1}`; it has: {2}")]
    Missing(&'static str, String, String),
    /// This file or folder does not describe a cluster that can be called. The text says why, and what was
    /// expected. The content is not shown.
    #[error("{path}: {1}", path = .0.display())]
    Cluster(PathBuf, String),
    /// In this file, two entries of a list have this name.
    #[error("{path} has the {1} `{2}` twice; remove one of them, as kubectl would not accept it either", path = .0.display())]
    Twice(PathBuf, &'static str, String),
    /// This user of the kubeconfig has an `auth-provider` of an unsupported kind.
    #[error(
        "{0} of the kubeconfig uses `auth-provider: {1}`, {2}; use an exec plugin (as `gke-gcloud-auth-plugin` or `kubelogin`), a token, a \
         tokenFile or a client certificate"
    )]
    AuthProvider(String, String, &'static str),
    /// At this place of the kubeconfig, this field is not as expected. The content is not shown.
    #[error("`{1}` of {0} in the kubeconfig cannot be used: expected {2}")]
    Field(String, &'static str, &'static str),
    /// `cert` is set without `key`, or the reverse.
    #[error("upstream_tls.cert and upstream_tls.key go together: only one of them is set")]
    HalfIdentity,
    /// A certificate, key or CA cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// This token file cannot be read.
    #[error("cannot read the token file {path}: {1}", path = .0.display())]
    UnreadableToken(PathBuf, #[source] std::io::Error),
    /// The secret from this source cannot be sent in a header, for this reason. It is not shown.
    #[error("{0} is not a valid token: {1}")]
    InvalidToken(String, &'static str),
}

/// Finds an upstream's address, credentials and CAs.
///
/// # Errors
/// Names what is missing or wrong, where, and what was expected.
pub fn resolve(
    source: &Source,
    tls: &UpstreamTls,
    environment: &Environment,
) -> Result<ResolvedUpstream, CredentialsError> {
    let mut resolved = match source {
        Source::InCluster => in_cluster(environment)?,
        Source::Kubeconfig(context) => kubeconfig::resolve(context.as_deref(), environment)?,
        Source::Url(uri) => ResolvedUpstream::at(target(&uri.to_string(), "upstream")?),
        // Each cluster is resolved by itself, see `clusters`.
        Source::Clusters(_) => ResolvedUpstream::at(target(NO_UPSTREAM, "clusters")?),
    };
    if let Some(ca) = &tls.ca {
        resolved.roots = Roots::Only(Pem::read(ca)?);
    }
    if tls.insecure {
        resolved.roots = Roots::Unverified;
    }
    if tls.server_name.is_some() {
        resolved.target.server_name.clone_from(&tls.server_name);
    }
    resolved.connection_identity = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => Some(Identity::read(cert, key)?),
        (None, None) => None,
        _ => return Err(CredentialsError::HalfIdentity),
    };
    // of its own key the configuration says so itself
    Ok(if tls.insecure { resolved } else { resolved.with_warnings() })
}

fn in_cluster(environment: &Environment) -> Result<ResolvedUpstream, CredentialsError> {
    let variable = |name: &str| {
        let found = environment.variable(name);
        found.ok_or_else(|| CredentialsError::NotInCluster(format!("the environment variable {name}")))
    };
    let host = variable("KUBERNETES_SERVICE_HOST")?;
    let port = variable("KUBERNETES_SERVICE_PORT")?;
    let host = if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]") } else { host.to_owned() };
    let mut resolved = ResolvedUpstream::at(target(
        &format!("https://{host}:{port}"),
        "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT",
    )?);
    let file = |name: &str| {
        let path = environment.service_account.join(name);
        let missing = || CredentialsError::NotInCluster(format!("the file {}", path.display()));
        if path.is_file() { Ok(path) } else { Err(missing()) }
    };
    resolved.roots = Roots::Only(Pem::read(&file("ca.crt")?)?);
    resolved.credential = Some(Credential::bearer(Secret::file(&file("token")?)?));
    let namespace = std::fs::read_to_string(environment.service_account.join("namespace")).ok();
    resolved.namespace = namespace.map(|text| text.trim().to_owned()).filter(|name| !name.is_empty());
    Ok(resolved)
}

/// Reads the address of an upstream, `http(s)://host[:port][/base]`.
fn target(url: &str, from: &str) -> Result<Target, CredentialsError> {
    let wrong = || CredentialsError::Url(without_userinfo(url), from.to_owned());
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let scheme = uri.scheme().filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme)).ok_or_else(wrong)?;
    let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(wrong)?;
    if authority.as_str().contains('@') || uri.query().is_some() || !has_valid_port(authority) {
        return Err(wrong());
    }
    Ok(Target {
        scheme: scheme.clone(),
        authority: authority.clone(),
        base_path: uri.path().trim_end_matches('/').to_owned(),
        server_name: None,
        proxy: None,
    })
}

/// Returns a URL without user and password, to be shown in messages.
fn without_userinfo(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find('/').unwrap_or(rest.len());
    match rest.get(..end).and_then(|authority| authority.rfind('@')) {
        Some(at) => format!("{scheme}://***{}", rest.get(at..).unwrap_or_default()),
        None => url.to_owned(),
    }
}

// === impl Target ===

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.base_path)
    }
}

// === impl ResolvedUpstream ===

impl ResolvedUpstream {
    fn at(target: Target) -> Self {
        Self {
            target,
            credential: None,
            namespace: None,
            acting_as: Vec::new(),
            warnings: Vec::new(),
            roots: Roots::System,
            own_identity: None,
            connection_identity: None,
            exec: None,
        }
    }

    /// Adds a warning if the source turns the verification of certificates off.
    fn with_warnings(mut self) -> Self {
        if self.roots == Roots::Unverified && self.target.scheme == Scheme::HTTPS {
            self.warnings.push(format!(
                "the kubeconfig turns TLS verification of {} OFF (insecure-skip-tls-verify): anyone in between can read and change every call",
                self.target.authority
            ));
        }
        self
    }

    /// Returns true if the source has any credentials: a token, a client certificate or a plugin.
    pub fn has_credentials(&self) -> bool {
        self.credential.is_some() || self.own_identity.is_some()
    }

    /// Creates the TLS client for the upstream; `None` for plain HTTP.
    ///
    /// It uses the source's client certificate, or that of a plugin, only if `injecting`.
    ///
    /// # Errors
    /// The CAs or the certificate cannot be used.
    pub fn tls(&self, injecting: bool) -> Result<Option<Arc<tls::Client>>, TlsError> {
        if self.target.scheme == Scheme::HTTP {
            return Ok(None);
        }
        let own = self.own_identity.as_ref().filter(|_| injecting);
        let identity = self.connection_identity.as_ref().or(own);
        let client = Arc::new(tls::Client::new(self.roots.clone(), identity.cloned())?);
        if let Some(exec) = self.exec.as_ref().filter(|_| injecting && identity.is_none()) {
            exec.shows_on(&client);
        }
        Ok(Some(client))
    }
}

// === impl Credential ===

impl Credential {
    fn bearer(secret: Secret) -> Self {
        Self { header: AUTHORIZATION, prefix: "Bearer ".to_owned(), secret }
    }
}

// === impl Environment ===

impl Environment {
    /// The path of the service account's folder in every pod.
    pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

    /// Returns a variable of the environment; `None` if it is unset or empty.
    fn variable(&self, name: &str) -> Option<&str> {
        let found = self.variables.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }
}

/// A placeholder for the upstream of a gate with many clusters: a reserved name of RFC 6761, never
/// called.
const NO_UPSTREAM: &str = "http://clusters.invalid";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_with_its_base_path_and_without_surprises() {
        let read = target("https://[::1]:6443/k8s/clusters/c-1/", "upstream").expect("a URL");
        assert_eq!((read.authority.as_str(), read.base_path.as_str()), ("[::1]:6443", "/k8s/clusters/c-1"));
        assert_eq!(target("http://api.example", "upstream").expect("a URL").base_path, "");
        for wrong in [
            "api.example:80",
            "ftp://x",
            "https://",
            "https://u:hunter2@x/y",
            "http://x/?q",
            "",
            "https://127.0.0.1:64443O",
            "http://x:99999",
            "http://x:",
            "http://x:0",
        ] {
            let error = target(wrong, "upstream").expect_err(wrong).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
