//! `tidegate inject`: adds the sidecar to workloads read as YAML, or removes it.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, value_parser};

use super::{Failure, show, word};
use crate::app::injection;
use crate::config::PRESETS;
use crate::inject::{self, EgressOptions, Mode};
use crate::release;
use crate::spec::{HostPattern, HostSet};

pub(super) const EXAMPLES: &str = "\
Examples:
  kustomize build . | tidegate inject | kubectl apply -f -
  tidegate inject -f op.yaml --mode in-cluster --set bucket.rate=20
  tidegate inject -f op.yaml --uninject";

/// The arguments: what to add, and where.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Read this file instead of standard input
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    egress: EgressArgs,
    /// Only this container; may be given again [default: all]
    #[arg(long, value_name = "NAME")]
    container: Vec<String>,
    /// Replace a container's own KUBECONFIG, or mount at the gate's folder
    #[arg(long)]
    replace: bool,
    /// Add a PodMonitor for a Prometheus operator
    #[arg(long)]
    pod_monitor: bool,
    /// Take out what was added before
    #[arg(long)]
    uninject: bool,
}

/// Arguments: what to add to a pod.
#[derive(Clone, Debug, Args)]
pub(super) struct SidecarArgs {
    /// The sidecar's image [default: that of this release]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// The way to the gate: kubeconfig or in-cluster
    #[arg(long, value_parser = word::<Mode>(), default_value_t = Mode::Kubeconfig, hide_possible_values = true)]
    mode: Mode,
    /// A ConfigMap with tidegate.toml, for the gate "kubernetes"
    #[arg(long, value_name = "NAME")]
    config_map: Option<String>,
    /// A key of the gate, e.g. bucket.rate=20; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The gate's port on the pod's loopback
    #[arg(long, default_value_t = 6443, value_parser = value_parser!(u16).range(1..))]
    port: u16,
    /// The port of the sidecar's metrics and status
    #[arg(long, value_name = "PORT", default_value_t = 9464, value_parser = value_parser!(u16).range(1..))]
    admin_port: u16,
}

/// Arguments: the forward proxy to add.
#[derive(Clone, Debug, Args)]
pub(super) struct EgressArgs {
    /// Add a forward proxy for presets with hosts, e.g. aws,github
    #[arg(long, value_name = "PRESETS", value_delimiter = ',')]
    egress: Vec<String>,
    /// The proxy's port on the pod's loopback
    #[arg(long, value_name = "PORT", requires = "egress", hide_short_help = true, default_value_t = 8003, value_parser = value_parser!(u16).range(1..))]
    egress_port: u16,
    /// An AWS service that its SDKs call by http:// at its real name, so that it is limited
    ///
    /// The gate sends such calls over TLS. REGION is "global" for services without one; may be
    /// given again: --egress-plain ec2=eu-central-1 --egress-plain route53=global
    #[arg(long, value_name = "SERVICE=REGION", requires = "egress", hide_short_help = true)]
    egress_plain: Vec<String>,
    /// An IPv4 network that is reached without the proxy; may be given again
    #[arg(long, value_name = "CIDR", requires = "egress", hide_short_help = true)]
    no_proxy: Vec<String>,
    /// Open the TLS of calls to these providers, so that their limits hold for https:// too
    ///
    /// The sidecar then sees these calls in clear: SECURITY.md says what that means. The
    /// containers are given variables by which they trust a CA of their pod.
    #[arg(long, requires = "egress", hide_short_help = true)]
    egress_intercept: bool,
    /// The kinds of clients to give variables to: go, python, node, java, grpc, dotnet
    ///
    /// Java is not a default: its HTTP_PROXY applies to plain calls within the cluster, too, and
    /// each of its programs prints a line about JAVA_TOOL_OPTIONS. Nor is .NET: its SSL_CERT_FILE
    /// replaces the image's roots for other programs, too.
    #[arg(
        long,
        value_name = "CLIENTS",
        value_delimiter = ',',
        requires = "egress",
        hide_short_help = true,
        default_value = "go,python,node,grpc"
    )]
    egress_for: Vec<String>,
    /// The cluster's domain, if it is not cluster.local
    #[arg(long, value_name = "DOMAIN", requires = "egress", hide_short_help = true)]
    cluster_domain: Option<String>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let (stream, from) = read(options.file.as_deref())?;
    let edited = if options.uninject { inject::uninject(&stream) } else { inject::inject(&stream, &chosen(options)?) };
    let edited = edited.map_err(|error| {
        let rest = if stream.contains("{{") { "; render a template first, as by helm template" } else { "" };
        anyhow!("{from}: {error}; expected Kubernetes objects as YAML or JSON{rest}")
    })?;
    for note in edited.notes.iter().chain(&edited.refused) {
        show::error(&format!("tidegate: {note}"));
    }
    // Nothing is printed, because the next command of a pipe would apply it.
    if !edited.refused.is_empty() {
        return Err(
            anyhow!("{from}: the sidecar cannot be added to all workloads (see above); nothing was written").into()
        );
    }
    if edited.changed.is_empty() {
        let done = if options.uninject { "has no injected sidecar" } else { "has no workload to add the sidecar to" };
        return Err(anyhow!("{from} {done}; nothing was written").into());
    }
    Ok(show::text(&edited.text)?)
}

/// Reads the manifests. Returns the text, and the name of its source.
fn read(file: Option<&Path>) -> anyhow::Result<(String, String)> {
    let (text, from) = match file.filter(|path| *path != Path::new("-")) {
        Some(path) => (fs::read_to_string(path), path.display().to_string()),
        None => (io::read_to_string(io::stdin()), "standard input".to_owned()),
    };
    Ok((text.with_context(|| format!("cannot read the manifests from {from}"))?, from))
}

/// Returns the options of the injection, checked as a configuration is.
fn chosen(options: &Options) -> Result<inject::Options, Failure> {
    Ok(inject::Options {
        containers: options.container.clone(),
        replace: options.replace,
        pod_monitor: options.pod_monitor,
        ..options.sidecar.checked(options.egress.checked()?)?
    })
}

// === impl EgressArgs ===

impl EgressArgs {
    /// Returns the options of the forward proxy, if there is one.
    pub(super) fn checked(&self) -> anyhow::Result<Option<EgressOptions>> {
        if self.egress.is_empty() {
            return Ok(None);
        }
        let known: Vec<&str> = PRESETS.iter().filter(|it| it.text.contains("\nhosts = ")).map(|it| it.name).collect();
        if let Some(unknown) = self.egress.iter().find(|preset| !known.contains(&preset.as_str())) {
            bail!("--egress {unknown}: expected one of {}", known.join(", "));
        }
        let plain = |text: &String| {
            let (service, region) = text.split_once('=').unwrap_or((text, ""));
            (service.to_owned(), region.to_owned())
        };
        let client = |name: &String| inject::client(name).map_err(|why| anyhow!("--egress-for {why}"));
        let egress = EgressOptions {
            presets: self.egress.clone(),
            port: self.egress_port,
            plain: self.egress_plain.iter().map(plain).collect(),
            direct: self.no_proxy.clone(),
            cluster_domain: self.cluster_domain.clone(),
            intercept: self.egress_intercept,
            clients: self.egress_for.iter().map(client).collect::<Result<_, _>>()?,
        };
        if let Some(fault) = egress.fault() {
            bail!(fault);
        }
        let apis = HostPattern::Set(HostSet::Aws);
        if let Some((service, region, host)) = egress.plain_hosts().find(|(_, _, host)| !apis.matches(host)) {
            bail!(
                "--egress-plain {service}={region}: {host} is not one of the hosts of @aws, so calls to it would be sent unencrypted"
            );
        }
        Ok(Some(egress))
    }
}

// === impl SidecarArgs ===

impl SidecarArgs {
    /// Returns the options of an injection, checked as a configuration is.
    pub(super) fn checked(&self, egress: Option<EgressOptions>) -> Result<inject::Options, Failure> {
        let image = self.image()?;
        if let Some(name) = self.config_map.as_ref().filter(|name| !is_object_name(name)) {
            return Err(anyhow!("--config-map is {name:?}, expected the name of a ConfigMap").into());
        }
        let options = inject::Options {
            image,
            mode: self.mode,
            config_map: self.config_map.clone(),
            port: self.port,
            admin_port: self.admin_port,
            egress,
            ..inject::Options::default()
        };
        if let Some(([one, other], port)) = options.same_ports() {
            return Err(anyhow!("--{one} and --{other} are both {port}, expected two different ports").into());
        }
        injection::with_limits(options, &self.set)
    }

    /// Returns the image given, or the image of this release. A development build has none.
    fn image(&self) -> anyhow::Result<String> {
        let Some(image) = &self.image else {
            if release::is_development() {
                let why = "this is a development build, and no registry has its image";
                show::error(&format!("tidegate: {why} {}: name yours with --image", release::IMAGE));
            }
            return Ok(release::IMAGE.to_owned());
        };
        if image.trim().is_empty() || image.contains(char::is_whitespace) {
            bail!("--image is {image:?}, expected the name of a container image");
        }
        Ok(image.clone())
    }
}

/// Returns true for a valid name of a Kubernetes object.
pub(super) fn is_object_name(name: &str) -> bool {
    let is_ordinary = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.starts_with(is_ordinary)
        && name.ends_with(is_ordinary)
        && name.chars().all(|c| is_ordinary(c) || matches!(c, '-' | '.'))
}
