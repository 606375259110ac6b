//! Runs the admission webhook until a signal ends it.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::signals::StopSignals;
use super::source::Sources;
use crate::clock::Clock;
use crate::credentials::{self, Api, Source, UpstreamTls};
use crate::telemetry::log;
use crate::webhook::{Certificate, Namespaces, ObjectNames, Server, Settings};

/// The source of the webhook's certificate.
#[derive(Clone, Debug)]
pub(crate) enum CertificateSource {
    /// Files that somebody else renews.
    Files { cert: PathBuf, key: PathBuf },
    /// A CA of the webhook's own. It is stored in a Secret called `name`, and its certificate is
    /// published in the webhook configuration called `configuration`.
    Own { name: String, configuration: String },
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn serve(mut settings: Settings, source: CertificateSource) -> Result<(), Failure> {
    let clock = Clock::start();
    log::start(!std::io::stderr().is_terminal(), "info")?;
    // One thread: a cluster makes few pods at a time.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let environment = Sources { config: None }.environment();
        let in_cluster = credentials::resolve(&Source::InCluster, &UpstreamTls::default(), &environment);
        settings.namespace = in_cluster.as_ref().ok().and_then(|found| found.namespace.as_deref().map(Into::into));
        if settings.policies.is_some() {
            let resolved = in_cluster.as_ref().map_err(|error| anyhow::anyhow!("--policies needs namespaces: {error}"))?;
            settings.namespaces = Some(Namespaces::new(Api::new(resolved, "tidegate-webhook", clock)?).into());
        }
        let certificate = async {
            match source {
                CertificateSource::Files { cert, key } => Ok(Certificate::files(&cert, &key, clock)?),
                CertificateSource::Own { name, configuration } => {
                    let resolved =
                        in_cluster.context("the webhook can only make its own certificate in a pod of a cluster; elsewhere set --cert and --key")?;
                    let namespace =
                        settings.namespace.clone().context("the webhook cannot find its namespace: the pod's service account has no namespace file")?;
                    let names = ObjectNames { namespace, name, configuration };
                    Ok(Certificate::own(Api::new(&resolved, "tidegate-webhook", clock)?, names, clock).await?)
                }
            }
        };
        let stop = CancellationToken::new();
        tokio::spawn(stop_at_signal(StopSignals::listen()?, stop.clone()));
        let certificate: anyhow::Result<Certificate> = tokio::select! {
            certificate = certificate => certificate,
            () = stop.cancelled() => return Ok(()),
        };
        let server = Server::bind(settings, certificate?, clock).await?;
        tracing::info!(listen = %server.address(), "the webhook is listening");
        server.serve(stop).await;
        tracing::info!("the webhook has stopped");
        Ok(())
    })
}

/// Cancels `stop` at the first signal.
async fn stop_at_signal(mut signals: StopSignals, stop: CancellationToken) {
    let signal = signals.next().await;
    tracing::info!(signal, "stopping: serving on until the Service sends no more calls");
    stop.cancel();
}
