//! `tidegate webhook`: runs an admission webhook adding the sidecar to new pods.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use clap::Args;

use super::inject::{EgressArgs, SidecarArgs, is_object_name};
use super::{Failure, show, word};
use crate::app::injection;
use crate::app::webhook::{self, CertificateSource};
use crate::inject;
use crate::webhook::{Policies, Policy, Settings};

pub(super) const EXAMPLES: &str = "\
Example:
  kubectl apply -k deploy/examples/webhook     runs it; docs/webhook.md has all";

/// The arguments: what to add, and the webhook's certificate.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// The address to listen on, over TLS
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8443")]
    listen: SocketAddr,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    egress: EgressArgs,
    /// Pods that cannot have it: ignore or fail
    #[arg(long, value_parser = word::<Policy>(), value_name = "POLICY", default_value_t = Policy::Ignore, hide_possible_values = true)]
    failure_policy: Policy,
    /// A TOML file with policies for pods without a label
    #[arg(long, value_name = "FILE")]
    policies: Option<PathBuf>,
    /// Print which policy each Pod of a file meets, and why
    #[arg(long, value_name = "POD.yaml", requires = "policies")]
    explain: Option<PathBuf>,
    /// A certificate that someone else renews [default: its own]
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Its Service, and the Secret of its CA [default: tidegate-webhook]
    #[arg(long, value_name = "NAME", default_value = "tidegate-webhook", hide_default_value = true)]
    name: String,
    /// Its MutatingWebhookConfiguration [default: tidegate-webhook]
    #[arg(long, value_name = "NAME", default_value = "tidegate-webhook", hide_default_value = true)]
    configuration: String,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    for (option, name) in [("--name", &options.name), ("--configuration", &options.configuration)] {
        if !is_object_name(name) {
            return Err(anyhow!("{option} is {name:?}, expected the name of an object").into());
        }
    }
    let sidecar = options.sidecar.checked(options.egress.checked()?)?;
    let read = |path: &Path| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let policies = options.policies.as_deref().map(|path| {
        let problem = |problem: &String| format!("{}: {problem}", path.display());
        Policies::read(&read(path)?, &sidecar, injection::checked)
            .map_err(|problems| Failure::Config(problems.iter().map(problem).collect()))
    });
    let policies = policies.transpose()?;
    if let (Some(policies), Some(path)) = (&policies, &options.explain) {
        let objects = inject::objects(&read(path)?).with_context(|| path.display().to_string())?;
        let explained = policies.explain(&objects);
        if explained.is_empty() {
            return Err(
                anyhow!("{} has no Pod; expected what `kubectl get pod NAME -o yaml` prints", path.display()).into()
            );
        }
        return Ok(show::text(&format!("{explained}\n"))?);
    }
    let settings = Settings {
        listen: options.listen,
        options: sidecar,
        policies: policies.map(Arc::new),
        namespaces: None,
        check: injection::checked,
        policy: options.failure_policy,
        namespace: None,
    };
    let source = match (&options.cert, &options.key) {
        (Some(cert), Some(key)) => CertificateSource::Files { cert: cert.clone(), key: key.clone() },
        _ => CertificateSource::Own { name: options.name.clone(), configuration: options.configuration.clone() },
    };
    webhook::serve(settings, source)
}
