//! The webhook's certificate: from files, or from a CA of its own.
//!
//! The key of that CA is in a Secret. The first replica makes it; all replicas use it to sign their
//! own certificates, each for a day. The Secret itself must exist already, so that the webhook
//! needs no permission to create Secrets. The CA's certificate is written to `caBundle` of the
//! webhook's configuration, and written again whenever someone has removed it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::ServerConfig;
use serde_json::{Value, json};

use crate::clock::Clock;
use crate::credentials::{Api, ApiError};
use crate::tls::{self, Listener, TlsError};
use crate::{Current, error_chain};

/// The current certificate; it is renewed while the webhook serves.
#[derive(Debug)]
pub struct Certificate {
    /// With a CA of the webhook's own: the API server, and the names of the objects that hold the
    /// CA.
    own: Option<(Box<Api>, ObjectNames)>,
    current: Current<Listener>,
    clock: Clock,
}

/// The names of the Kubernetes objects that the webhook uses if it has a CA of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectNames {
    /// The namespace of the Secret and the Service.
    pub namespace: Arc<str>,
    /// The name of the Service, and of the Secret with the CA.
    pub name: String,
    /// The name of the `MutatingWebhookConfiguration`.
    pub configuration: String,
}

/// The key and certificate of the CA, as stored in the Secret.
struct Ca {
    key: String,
    pem: String,
}

// === impl Certificate ===

impl Certificate {
    /// Reads the certificate from files. It is read again when they change.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn files(cert: &Path, key: &Path, clock: Clock) -> Result<Self, TlsError> {
        Ok(Self { own: None, current: Current::new(tls::from_files(cert, key, None)?), clock })
    }

    /// Makes a certificate from a CA of the webhook's own. Retries until the CA is in the webhook
    /// configuration, so that the API server can verify the certificate.
    ///
    /// # Errors
    /// A name cannot be in a certificate.
    pub async fn own(api: Api, names: ObjectNames, clock: Clock) -> Result<Self, TlsError> {
        let current = Current::new(tls::self_signed(&names.server_names(), &[], None)?);
        let certificate = Self { own: Some((Box::new(api), names)), current, clock };
        while let Err(error) = certificate.agree().await {
            tracing::warn!(
                why = error_chain(&error),
                "the webhook cannot start: it has no certificate yet; trying again"
            );
            clock.sleep(TRY_AGAIN).await;
        }
        Ok(certificate)
    }

    /// Returns the TLS configuration for the next handshake.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.current.get().config()
    }

    /// Keeps the certificate up to date, for as long as the webhook serves.
    pub(super) async fn keep(&self) {
        let mut is_failing = false;
        loop {
            self.clock.sleep(LOOK_EVERY).await;
            self.current.get().refresh(tls::wall());
            match self.agree().await {
                Ok(()) => is_failing = false,
                Err(_) if is_failing => {}
                Err(error) => {
                    let why = error_chain(&error);
                    tracing::warn!(why, "cannot renew the webhook's certificate: the last one stays in use");
                    is_failing = true;
                }
            }
        }
    }

    /// Makes sure that the CA is in the Secret, that it signed the certificate, and that the
    /// webhook configuration contains it.
    async fn agree(&self) -> Result<(), ApiError> {
        let Some((api, names)) = &self.own else { return Ok(()) };
        let ca = match names.read_ca(api).await? {
            Some(ca) => ca,
            None => names.write_ca(api).await?,
        };
        if self.current.get().ca_key().as_ref() != Some(&ca.key) {
            let listener = tls::self_signed_by(&ca.key, &names.server_names(), &[], None)?;
            self.current.set(listener);
            tracing::info!(secret = names.name, "the webhook has a new certificate, signed by the CA in its Secret");
        }
        names.show_ca(api, &ca.pem).await
    }
}

// === impl ObjectNames ===

impl ObjectNames {
    /// Returns the names under which the API server calls the webhook's Service.
    fn server_names(&self) -> Vec<String> {
        let Self { name, namespace, .. } = self;
        vec![format!("{name}.{namespace}.svc"), format!("{name}.{namespace}.svc.cluster.local")]
    }

    fn secret_path(&self) -> String {
        format!("/api/v1/namespaces/{}/secrets/{}", self.namespace, self.name)
    }

    /// Reads the CA from the Secret; `None` if the Secret has no usable one.
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
                tracing::warn!(secret = self.name, %error, "the CA in the webhook's Secret cannot be used: making a new one");
                Ok(None)
            }
        }
    }

    /// Makes a CA and writes it into the Secret. If another replica was faster, returns that
    /// replica's CA.
    async fn write_ca(&self, api: &Api) -> Result<Ca, ApiError> {
        let path = self.secret_path();
        let version = api.get(&path).await?.pointer("/metadata/resourceVersion").cloned();
        let made = tls::self_signed(&[], &[], None)?;
        let ca = Ca { key: made.ca_key().unwrap_or_default(), pem: made.ca().as_ref().to_owned() };
        let data = json!({KEY: STANDARD.encode(&ca.key), CERTIFICATE: STANDARD.encode(&ca.pem)});
        let patch = json!({"metadata": {"resourceVersion": version}, "data": data});
        match api.patch(&path, "application/merge-patch+json", &patch).await {
            Ok(_) => {
                tracing::info!(secret = self.name, "made a new CA for the webhook and stored it in its Secret");
                Ok(ca)
            }
            Err(error) if error.is_conflict() => self.read_ca(api).await?.ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// Writes the CA into the webhook configuration if it is missing there.
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
        tracing::info!(configuration = self.configuration, "wrote the webhook's CA into this configuration");
        Ok(())
    }
}

const KEY: &str = "ca.key";
const CERTIFICATE: &str = "ca.crt";
/// The interval of checks. A webhook configuration that someone applies again lacks the CA until
/// the next check.
const LOOK_EVERY: Duration = Duration::from_secs(30);
const TRY_AGAIN: Duration = Duration::from_secs(2);
