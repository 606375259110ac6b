//! `tidegate kubeconfig`: prints a kubeconfig for a gate.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use clap::Args;

use super::{ConfigOption, Failure, show};
use crate::app::operations::no_such_gate;
use crate::app::reachable::tcp_addresses;
use crate::classify::ApiKind;
use crate::credentials::{self, folder, folder::ContextEntry};
use crate::spec::{Gate, Settings, Source, TlsMode};

pub(super) const EXAMPLES: &str = "\
Example:
  tidegate kubeconfig -o gate.yaml && kubectl --kubeconfig gate.yaml get pods

Over plain HTTP, Go clients send no credentials: the gate must inject its own.";

/// The gate to point at, and the file to write.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    configured: ConfigOption,
    /// The gate to point at; needed only where there are several for Kubernetes
    #[arg(long, value_name = "NAME")]
    gate: Option<String>,
    /// Point at the gate with `clusters`: each has a context
    #[arg(long)]
    hub: bool,
    /// Write it there instead of printing it
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The path of a pod's own token.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let settings = options.configured.sources().load()?.settings;
    let text = pointing_at(chosen(&settings, options.gate.as_deref(), options.hub)?)?;
    match &options.output {
        Some(path) => show::file(path, &text)?,
        None => show::text(&text)?,
    }
    Ok(())
}

/// Returns the gate of this name, or the only one for Kubernetes; with `hub` the only one with
/// clusters.
fn chosen<'a>(settings: &'a Settings, name: Option<&str>, hub: bool) -> anyhow::Result<&'a Gate> {
    let all = settings.gates.keys().map(|name| &**name);
    if let Some(name) = name {
        let gate = settings.gates.get(name).ok_or_else(|| anyhow!(no_such_gate(name, all)))?;
        if gate.kind != ApiKind::Kubernetes {
            bail!("gate {name:?} is of kind \"http\": a kubeconfig can only point at one of kind \"kubernetes\"");
        }
        if hub && !gate.has_clusters() {
            bail!("gate {name:?} has one upstream: leave --hub out, or choose a gate with `clusters`");
        }
        return Ok(gate);
    }
    let all = all.collect::<Vec<_>>().join(", ");
    let is_meant = |gate: &&Gate| gate.kind == ApiKind::Kubernetes && (!hub || gate.has_clusters());
    let mut meant = settings.gates.values().filter(is_meant);
    let what = if hub { "has clusters" } else { "is of kind \"kubernetes\"" };
    match (meant.next(), meant.next()) {
        (Some(gate), None) => Ok(gate),
        (None, _) => bail!("no gate {what}; the gates are: {all}"),
        (Some(_), Some(_)) => bail!("more than one gate {what}; choose one with --gate: {all}"),
    }
}

/// Returns a kubeconfig for the gate, as text.
fn pointing_at(gate: &Gate) -> anyhow::Result<String> {
    let name = &gate.name;
    let address = tcp_addresses(&gate.listen).next().ok_or_else(|| {
        anyhow!("gate {name} listens only on a Unix socket, and a kubeconfig can only name a TCP address; add a TCP address to gates.{name}.listen")
    })?;
    let Some(tls) = &gate.access.tls else {
        return written(gate, &format!("http://{address}"), None, None);
    };
    let (path, what) = match (&tls.write_to, &tls.mode) {
        (Some(folder), _) => (folder.join("ca.crt"), "which the gate writes when it starts; is it running?"),
        (None, TlsMode::Files { cert, .. }) => (cert.clone(), "the gate's certificate"),
        (None, TlsMode::SelfSigned) => bail!(
            "gate {name} makes its own CA at each start and writes it nowhere, so no client can verify it; \
             set gates.{name}.tls.write_to to a folder that the client can read"
        ),
    };
    let ca = fs::read_to_string(&path).with_context(|| format!("cannot read {}, {what}", path.display()))?;
    // The gate writes a token beside the CA: its own if it injects, else a copy of the pod's.
    let copied = path.with_file_name("token");
    let token_file = match &tls.write_to {
        Some(_) if gate.injects() || copied.exists() => Some(&*copied),
        _ if !gate.injects() && gate.upstream == Source::InCluster => Some(Path::new(POD_TOKEN)),
        _ => None,
    };
    written(gate, &format!("https://{address}"), Some(&ca), token_file)
}

/// Returns a kubeconfig for the gate at `server`, with a context for each of its clusters if it has
/// some.
fn written(gate: &Gate, server: &str, ca: Option<&str>, token_file: Option<&Path>) -> anyhow::Result<String> {
    let Source::Clusters(path) = &gate.upstream else {
        return Ok(folder::kubeconfig(server, ca, None, token_file));
    };
    let injects = gate.injects();
    let listed = credentials::clusters(path)?.into_iter().filter_map(|(name, listed)| Some((name, listed.ok()?)));
    let contexts = listed.map(|(name, listed)| {
        let own = listed.user().unwrap_or(&name);
        let user = if injects { "tidegate" } else { own }.to_owned();
        ContextEntry { server: format!("{server}/c/{name}"), user, name: name.to_string() }
    });
    let text = folder::kubeconfig_of(&contexts.collect::<Vec<_>>(), ca, injects.then_some(token_file));
    Ok(if injects { text } else { format!("{PASSED}{text}") })
}

/// A comment for clients whose own credentials the gate passes on.
const PASSED: &str = "# The gate passes your credentials on: add the users, or merge files with \
                      KUBECONFIG=this.yaml:other.yaml\n";
