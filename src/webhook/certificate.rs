//! The webhook's certificate: from files that someone else renews, or by a CA of its own.
//!
//! The key of that CA is in a Secret. Replicas that find it there issue their certificates by the
//! same CA, each for a day; the first one makes it. The Secret must be there, so that creating any
//! Secret is a right that the webhook does not need. The CA's certificate goes into `caBundle` of
//! the webhook's configuration, and again whenever it is no longer there.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::ServerConfig;
use serde_json::{Value, json};

use crate::clock::Clock;
use crate::credentials::{Api, ApiError};
use crate::tls::{self, Listener, TlsError};

/// The certificate, which may change while the webhook serves.
#[derive(Debug)]
pub struct Certificate {
    source: Source,
    current: RwLock<Arc<Listener>>,
    clock: Clock,
}

/// The names of the objects around a webhook that keeps its own certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The namespace of the Secret and the Service.
    pub namespace: Arc<str>,
    /// The Service under whose name the API server calls, and the Secret with the CA.
    pub name: String,
    /// The `MutatingWebhookConfiguration`.
    pub configuration: String,
}

#[derive(Debug)]
enum Source {
    Files,
    Own(Box<Api>, Names),
}

/// The CA in the Secret.
struct Ca {
    key: String,
    pem: String,
}

// === impl Certificate ===

impl Certificate {
    /// Takes the certificate from files, and follows their changes.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn files(cert: &Path, key: &Path, clock: Clock) -> Result<Self, TlsError> {
        let listener = Arc::new(tls::from_files(cert, key, None)?);
        Ok(Self { source: Source::Files, current: RwLock::new(listener), clock })
    }

    /// Makes and keeps its own. Returns when the API server can verify it; until then it tries
    /// again.
    ///
    /// # Errors
    /// A name cannot be in a certificate.
    pub async fn own(api: Api, names: Names, clock: Clock) -> Result<Self, TlsError> {
        let current = RwLock::new(Arc::new(tls::self_signed(&names.server_names(), &[], None)?));
        let certificate = Self { source: Source::Own(Box::new(api), names), current, clock };
        while let Err(error) = certificate.agree().await {
            let why = format!("{:#}", Chain(&error));
            tracing::warn!(why, "the webhook's certificate is not in place; trying again");
            clock.sleep(TRY_AGAIN).await;
        }
        Ok(certificate)
    }

    /// Returns the configuration of the next handshake.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.listener().config()
    }

    /// Renews what is due, for as long as the webhook serves.
    pub(super) async fn keep(&self) {
        let mut is_told = false;
        loop {
            self.clock.sleep(LOOK_EVERY).await;
            self.listener().refresh(tls::wall());
            match self.agree().await {
                Ok(()) => is_told = false,
                Err(error) if !is_told => {
                    let why = format!("{:#}", Chain(&error));
                    tracing::warn!(why, "the webhook's certificate cannot be looked after; the last one is kept");
                    is_told = true;
                }
                Err(_) => {}
            }
        }
    }

    /// Brings Secret, certificate and configuration into agreement.
    async fn agree(&self) -> Result<(), ApiError> {
        let Source::Own(api, names) = &self.source else { return Ok(()) };
        let ca = match names.read_ca(api).await? {
            Some(ca) => ca,
            None => names.write_ca(api).await?,
        };
        if self.listener().ca_key().as_ref() != Some(&ca.key) {
            let listener = tls::self_signed_by(&ca.key, &names.server_names(), &[], None)?;
            *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(listener);
            tracing::info!(secret = names.name, "the webhook's certificate is by the CA of the Secret");
        }
        names.show_ca(api, &ca.pem).await
    }

    fn listener(&self) -> Arc<Listener> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl Names ===

impl Names {
    /// Returns the names by which the API server calls the Service.
    fn server_names(&self) -> Vec<String> {
        let Self { name, namespace, .. } = self;
        vec![format!("{name}.{namespace}.svc"), format!("{name}.{namespace}.svc.cluster.local")]
    }

    fn secret_path(&self) -> String {
        format!("/api/v1/namespaces/{}/secrets/{}", self.namespace, self.name)
    }

    /// Reads the CA; `None` if there is none yet, or none that can be used.
    async fn read_ca(&self, api: &Api) -> Result<Option<Ca>, ApiError> {
        let secret = api.get(&self.secret_path()).await?;
        let text = |key: &str| {
            let text = secret.get("data")?.get(key)?.as_str()?;
            String::from_utf8(STANDARD.decode(text).ok()?).ok()
        };
        let Some((key, pem)) = text(KEY).zip(text(CERTIFICATE)) else { return Ok(None) };
        match tls::self_signed_by(&key, &[], &[], None) {
            Ok(_) => Ok(Some(Ca { key, pem })),
            Err(error) => {
                tracing::warn!(secret = self.name, %error, "the Secret's CA cannot be used; making another");
                Ok(None)
            }
        }
    }

    /// Makes a CA and writes it into the Secret; another replica may have been first, whose CA is
    /// taken then.
    async fn write_ca(&self, api: &Api) -> Result<Ca, ApiError> {
        let path = self.secret_path();
        let version = api.get(&path).await?.pointer("/metadata/resourceVersion").cloned();
        let made = tls::self_signed(&[], &[], None)?;
        let ca = Ca { key: made.ca_key().unwrap_or_default(), pem: made.ca().as_ref().to_owned() };
        let data = json!({KEY: STANDARD.encode(&ca.key), CERTIFICATE: STANDARD.encode(&ca.pem)});
        let patch = json!({"metadata": {"resourceVersion": version}, "data": data});
        match api.patch(&path, "application/merge-patch+json", &patch).await {
            Ok(_) => {
                tracing::info!(secret = self.name, "a CA for the webhook was made");
                Ok(ca)
            }
            Err(error) if error.is_conflict() => self.read_ca(api).await?.ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// Writes the CA into the configuration, where it is not there.
    async fn show_ca(&self, api: &Api, pem: &str) -> Result<(), ApiError> {
        let path =
            format!("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{}", self.configuration);
        let bundle = STANDARD.encode(pem);
        let configuration = api.get(&path).await?;
        let webhooks = configuration.get("webhooks").and_then(Value::as_array).into_iter().flatten();
        let is_without =
            |webhook: &&Value| webhook.pointer("/clientConfig/caBundle").and_then(Value::as_str) != Some(&*bundle);
        let without: Vec<_> = webhooks.filter(is_without).filter_map(|webhook| webhook.get("name")).collect();
        if without.is_empty() {
            return Ok(());
        }
        let bundles = without.iter().map(|name| json!({"name": name, "clientConfig": {"caBundle": bundle}}));
        let patch = json!({"webhooks": bundles.collect::<Vec<_>>()});
        api.patch(&path, "application/strategic-merge-patch+json", &patch).await?;
        tracing::info!(configuration = self.configuration, "the webhook's CA was written into its configuration");
        Ok(())
    }
}

/// An error with its causes.
struct Chain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let causes = std::iter::successors(self.0.source(), |error| error.source());
        causes.into_iter().try_for_each(|cause| write!(f, ": {cause}"))
    }
}

const KEY: &str = "ca.key";
const CERTIFICATE: &str = "ca.crt";
/// A configuration that was applied again has lost its CA for this time at most.
const LOOK_EVERY: Duration = Duration::from_secs(30);
const TRY_AGAIN: Duration = Duration::from_secs(2);
