//! `tidegate inject`: adds the sidecar to workloads read as YAML, or takes it out.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, ValueEnum};

use super::{Failure, show};
use crate::app::source;
use crate::config::Input;
use crate::inject::{self, Mode};

pub(super) const EXAMPLES: &str = "\
Examples:
  kustomize build . | tidegate inject --image tidegate:0.1.0 | kubectl apply -f -
  tidegate inject -f op.yaml --mode in-cluster --set bucket.rate=20
  tidegate inject -f op.yaml --uninject

Doing it twice changes nothing more. Objects that are no workloads pass unchanged.";

/// The parts to add, and the workloads to add them to.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Read this file instead of standard input
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The sidecar's image
    #[arg(long, value_name = "IMAGE", default_value = concat!("tidegate:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// The way to point the containers at the gate
    #[arg(long, value_enum, default_value_t = Way::Kubeconfig)]
    mode: Way,
    /// Only this container; may be given again [default: all]
    #[arg(long, value_name = "NAME")]
    container: Vec<String>,
    /// A ConfigMap with tidegate.toml, for the gate "kubernetes"
    #[arg(long, value_name = "NAME")]
    config_map: Option<String>,
    /// A key of the gate, e.g. bucket.rate=20; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The gate's port on the pod's loopback
    #[arg(long, default_value_t = 6443)]
    port: u16,
    /// Add a PodMonitor for a Prometheus operator
    #[arg(long)]
    pod_monitor: bool,
    /// Take out what was added before
    #[arg(long)]
    uninject: bool,
}

/// The ways to point a container at the gate.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    /// KUBECONFIG
    Kubeconfig,
    /// KUBERNETES_SERVICE_HOST and the service account's folder
    InCluster,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let (stream, from) = read(options.file.as_deref())?;
    let edited = if options.uninject { inject::uninject(&stream) } else { inject::inject(&stream, &chosen(options)?) };
    let edited = edited.map_err(|error| anyhow!("{from}: {error}; expected Kubernetes objects as YAML or JSON"))?;
    for note in &edited.notes {
        show::error(&format!("tidegate: {note}"));
    }
    if edited.changed.is_empty() {
        let done =
            if options.uninject { "has no sidecar that was injected" } else { "has no workload to add the sidecar to" };
        show::error(&format!("tidegate: {from} {done}; nothing was changed"));
    }
    Ok(show::text(&edited.text)?)
}

/// Returns the stream, and a name for it.
fn read(file: Option<&Path>) -> anyhow::Result<(String, String)> {
    let (text, from) = match file.filter(|path| *path != Path::new("-")) {
        Some(path) => (fs::read_to_string(path), path.display().to_string()),
        None => (io::read_to_string(io::stdin()), "standard input".to_owned()),
    };
    Ok((text.with_context(|| format!("cannot read {from}"))?, from))
}

/// Returns what to add, checked as strictly as a configuration.
fn chosen(options: &Options) -> Result<inject::Options, Failure> {
    let variables = options.set.iter().map(|set| variable(set)).collect::<Result<Vec<_>, _>>()?;
    if options.image.trim().is_empty() || options.image.contains(char::is_whitespace) {
        return Err(anyhow!("--image is {:?}, expected the name of an image", options.image).into());
    }
    let chosen = inject::Options {
        image: options.image.clone(),
        mode: match options.mode {
            Way::Kubeconfig => Mode::Kubeconfig,
            Way::InCluster => Mode::InCluster,
        },
        containers: options.container.clone(),
        config_map: options.config_map.clone(),
        variables,
        port: options.port,
        pod_monitor: options.pod_monitor,
    };
    source::load(&Input { file: None, env: inject::variables(&chosen).collect() })?;
    Ok(chosen)
}

/// Turns `bucket.rate=20` into the variable that sets it.
fn variable(set: &str) -> anyhow::Result<(String, String)> {
    let Some((key, value)) = set.split_once('=') else {
        bail!("--set {set}: expected KEY=VALUE, as in --set bucket.rate=20");
    };
    if key.is_empty() || !key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '.')) {
        bail!("--set {set}: {key:?} is not a key of a gate, expected one as in bucket.rate");
    }
    let name = key.to_ascii_uppercase().replace('.', "__");
    Ok((format!("TIDEGATE__GATES__KUBERNETES__{name}"), value.to_owned()))
}
