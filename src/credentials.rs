//! Where the upstream is and whose credentials it sees: the client's own, or the gate's.
//!
//! [`resolve`] reads in-cluster files, a kubeconfig or a URL into one [`Resolved`]; [`Injector`] does the rest per request. Secrets are behind
//! types that show nothing in `Debug`, and go nowhere but into requests to the configured upstream (P12).

mod exec;
pub mod folder;
mod injector;
mod kubeconfig;
mod pod_token;
mod proxy;
mod token;

use std::{
    fmt,
    net::Ipv6Addr,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::{
    HeaderName, HeaderValue, Uri,
    header::AUTHORIZATION,
    uri::{Authority, Scheme},
};

use self::exec::Exec;
pub use self::{
    exec::CredentialError,
    injector::{CredentialVersion, Forbidden, Injector},
    pod_token::PodToken,
    proxy::{Proxy, ProxyKind},
    token::{Secret, TokenError},
};
use crate::tls::{self, Identity, Pem, Roots, TlsError};

/// The address of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Host and, if it is not the scheme's own, port.
    pub authority: Authority,
    /// Put before every path, as it stands: empty, or begins with `/` and does not end with it.
    pub base_path: String,
    /// The name to verify and to send as SNI; `None` for the authority's host.
    pub server_name: Option<String>,
    /// The proxy on the way, if there is one.
    pub proxy: Option<Proxy>,
}

/// Where to read the upstream from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The API server of the cluster this pod is in.
    InCluster,
    /// A kubeconfig's context; `None` for the current one.
    Kubeconfig(Option<String>),
    /// `http(s)://host[:port][/base]`.
    Url(Uri),
}

/// What the configuration says about TLS to the upstream; wins over what the source says.
#[derive(Clone, Debug, Default)]
pub struct UpstreamTls {
    /// CA bundle.
    pub ca: Option<PathBuf>,
    /// Client certificate chain.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// Name to verify and to send as SNI.
    pub server_name: Option<String>,
    /// No verification.
    pub insecure: bool,
}

/// The part of the process's environment that sources are read from.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Environment variables.
    pub variables: Vec<(String, String)>,
    /// The folder of the pod's service account.
    pub service_account: PathBuf,
}

/// An upstream, resolved.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Where it is.
    pub target: Target,
    /// What inject adds to requests, if the source has something.
    pub credential: Option<Credential>,
    /// The namespace that goes with the credential.
    pub namespace: Option<String>,
    /// As whom the credential acts: Impersonate-* headers that inject adds.
    pub acting_as: Vec<(HeaderName, HeaderValue)>,
    roots: Roots,
    /// The source's own client certificate: an identity that must not be lent to clients who pass their own.
    own_identity: Option<Identity>,
    /// The configuration's client certificate: meant for the connection, whoever calls.
    connection_identity: Option<Identity>,
    /// The source's exec plugin, which may give a client certificate.
    exec: Option<Arc<Exec>>,
}

/// A header that inject adds.
#[derive(Clone)]
pub struct Credential {
    /// Its name.
    pub header: HeaderName,
    /// Before the secret.
    pub prefix: String,
    /// The secret.
    pub secret: Secret,
}

/// An upstream that cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// Not in a pod.
    #[error("upstream = \"in_cluster\" needs {0}, which a pod has; outside a cluster use \"kubeconfig\" or a URL")]
    NotInCluster(String),
    /// The URL is not one.
    #[error("`{url}` ({from}) is not an upstream; expected http(s)://host[:port][/base]")]
    Url {
        /// What was found.
        url: String,
        /// Where.
        from: String,
    },
    /// No kubeconfig file.
    #[error("no kubeconfig: {0}; set KUBECONFIG or write ~/.kube/config")]
    NoKubeconfig(String),
    /// The kubeconfig cannot be read as one. The text is not shown: it holds secrets.
    #[error("{path}{at} is not a kubeconfig", path = path.display())]
    NotKubeconfig {
        /// Which.
        path: PathBuf,
        /// `:LINE`, or `` , at `KEY`, ``, where known.
        at: String,
    },
    /// Something that the kubeconfig names is not in it.
    #[error("the kubeconfig has no {kind} `{name}`; it has: {known}")]
    Missing {
        /// `context`, `cluster` or `user`.
        kind: &'static str,
        /// What was looked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The kubeconfig asks for what client-go itself has given up.
    #[error(
        "{place} of the kubeconfig uses `auth-provider`, which Kubernetes removed in 1.26; use an exec plugin (as `gke-gcloud-auth-plugin` or \
         `kubelogin`), a token, a tokenFile or a client certificate"
    )]
    AuthProvider {
        /// Whose.
        place: String,
    },
    /// A field of the kubeconfig is not what it should be. Its content is not shown.
    #[error("`{field}` of {place} in the kubeconfig is not {expected}")]
    Field {
        /// Whose.
        place: String,
        /// Which.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// `cert` without `key`, or the reverse.
    #[error("upstream_tls.cert and upstream_tls.key go together: only one of them is set")]
    HalfIdentity,
    /// TLS material cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A token cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// Reads an upstream and what goes with it.
///
/// # Errors
/// What is missing or wrong, where, and what was expected.
pub fn resolve(source: &Source, tls: &UpstreamTls, around: &Environment) -> Result<Resolved, CredentialsError> {
    let mut resolved = match source {
        Source::InCluster => in_cluster(around)?,
        Source::Kubeconfig(context) => kubeconfig::resolve(context.as_deref(), around)?,
        Source::Url(uri) => Resolved::at(target(&uri.to_string(), "upstream")?),
    };
    if let Some(ca) = &tls.ca {
        resolved.roots = Roots::Only(Pem::read(ca)?);
    }
    if tls.insecure {
        resolved.roots = Roots::Unverified;
    }
    if let Some(name) = &tls.server_name {
        resolved.target.server_name = Some(name.clone());
    }
    resolved.connection_identity = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => Some(Identity::read(cert, key)?),
        (None, None) => None,
        _ => return Err(CredentialsError::HalfIdentity),
    };
    if matches!(resolved.roots, Roots::Unverified) && resolved.target.scheme == Scheme::HTTPS {
        tracing::warn!(
            upstream = %resolved.target.authority,
            "TLS verification of the upstream is OFF: whoever is in between can read and change every call"
        );
    }
    Ok(resolved)
}

fn in_cluster(around: &Environment) -> Result<Resolved, CredentialsError> {
    let variable = |name: &str| {
        let found = around.variable(name).filter(|value| !value.is_empty());
        found.ok_or_else(|| CredentialsError::NotInCluster(format!("the environment variable {name}")))
    };
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]") } else { host.to_owned() };
    let mut resolved =
        Resolved::at(target(&format!("https://{host}:{port}"), "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT")?);
    let file = |name: &str| -> Result<PathBuf, CredentialsError> {
        let path = around.service_account.join(name);
        let there = path.is_file().then_some(path.clone());
        there.ok_or_else(|| CredentialsError::NotInCluster(format!("the file {}", path.display())))
    };
    resolved.roots = Roots::Only(Pem::read(&file("ca.crt")?)?);
    resolved.credential = Some(Credential::bearer(Secret::file(&file("token")?)?));
    resolved.namespace = namespace(&around.service_account.join("namespace"));
    Ok(resolved)
}

/// A namespace from a file, if there is one.
fn namespace(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Reads `http(s)://host[:port][/base]`.
fn target(url: &str, from: &str) -> Result<Target, CredentialsError> {
    let wrong = || CredentialsError::Url { url: without_userinfo(url), from: from.to_owned() };
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let scheme = uri.scheme().filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme)).ok_or_else(wrong)?;
    let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(wrong)?;
    if authority.as_str().contains('@') || uri.query().is_some() {
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

/// A URL to be shown: without a password in it.
fn without_userinfo(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find('/').unwrap_or(rest.len());
    match rest.get(..end).and_then(|authority| authority.rfind('@')) {
        Some(at) => format!("{scheme}://***{}", rest.get(at..).unwrap_or_default()),
        None => url.to_owned(),
    }
}

// === impl Resolved ===

impl Resolved {
    fn at(target: Target) -> Self {
        Self {
            target,
            credential: None,
            namespace: None,
            acting_as: Vec::new(),
            roots: Roots::System,
            own_identity: None,
            connection_identity: None,
            exec: None,
        }
    }

    /// Whether there is something to inject: a token, a client certificate or a plugin of the source.
    #[must_use]
    pub fn has_credentials(&self) -> bool {
        self.credential.is_some() || self.own_identity.is_some()
    }

    /// TLS to the upstream; `None` for plain HTTP. Only when injecting does it show the source's client certificate, or a plugin's.
    ///
    /// # Errors
    /// The roots or the certificate cannot be used.
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

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{:?}", self.header, self.prefix, self.secret)
    }
}

// === impl Environment ===

impl Environment {
    /// Where pods find their service account.
    pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_with_its_base_path_and_without_surprises() {
        let read = target("https://[::1]:6443/k8s/clusters/c-1/", "upstream").expect("a URL");
        assert_eq!((read.authority.as_str(), read.base_path.as_str()), ("[::1]:6443", "/k8s/clusters/c-1"));
        assert_eq!(target("http://api.example", "upstream").expect("a URL").base_path, "");
        for wrong in ["api.example:80", "ftp://x", "https://", "https://u:hunter2@x/y", "http://x/?q", ""] {
            let error = target(wrong, "upstream").expect_err(wrong).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
