//! The clusters behind a gate: how each is reached, and with which limits.

use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;

use super::gate::{PreparedGate, Trouble, injector, injects, not_itself};
use crate::clock::Clock;
use crate::credentials::{self, ListedCluster, PodToken, ResolvedUpstream};
use crate::proxy::{HubCluster, HubClusters, OpenCluster};
use crate::spec::{ClusterLimits, Gate, Source};

/// Adds to a prepared gate its clusters, if it has some, with the limits of the first pattern that matches
/// each.
pub(super) fn add(prepared: &mut PreparedGate, limits: &[ClusterLimits], clock: Clock) -> Result<(), Trouble> {
    let gate = &prepared.options.gate;
    let Source::Clusters(path) = &gate.upstream else { return Ok(()) };
    let mut hub = clusters(gate, path, prepared.pod_token.as_ref(), clock, &mut prepared.warnings)?;
    limit(&gate.name, &mut hub, limits);
    prepared.hub = Some(hub);
    Ok(())
}

/// Reads the clusters of a gate. What is wrong with a single one is a warning, and the answer to its
/// calls until its file is corrected.
fn clusters(
    gate: &Gate,
    path: &Path,
    pod_token: Option<&PodToken>,
    clock: Clock,
    warnings: &mut Vec<String>,
) -> Result<HubClusters, Trouble> {
    let listed = credentials::clusters(path).map_err(|error| match path.exists() {
        true => Trouble::wrong("clusters", error),
        false => Trouble::Missing(anyhow!(error).context(format!("gates.{}.clusters", gate.name))),
    })?;
    let gate = Arc::new(gate.clone());
    let mut clusters = HubClusters::default();
    for (name, listed) in listed {
        let opening = Opening { gate: Arc::clone(&gate), pod_token: pod_token.cloned(), clock };
        let (version, open) = match listed {
            Err(error) => (0, Box::new(move || Err(error.to_string())) as Open),
            Ok(listed) => {
                let of_resolved = listed.resolve().map(|resolved| resolved.warnings).unwrap_or_default();
                warnings.extend(of_resolved.into_iter().map(|warning| format!("cluster {name:?}: {warning}")));
                (listed.version(), Box::new(move || opening.open(&listed)) as Open)
            }
        };
        warnings.extend(open().err().map(|why| format!("cluster {name:?} cannot be called: {why}")));
        clusters.clusters.insert(name, HubCluster { version, limits: None, open });
    }
    Ok(clusters)
}

/// Gives clusters the limits of the first pattern that matches their names.
fn limit(gate: &str, clusters: &mut HubClusters, limits: &[ClusterLimits]) {
    for (name, cluster) in &mut clusters.clusters {
        let place = limits.iter().position(|limits| limits.are_for(gate, name));
        cluster.limits = place.and_then(|place| limits.get(place)).map(|limits| Arc::clone(&limits.pattern));
    }
    let own = limits.iter().filter(|limits| *limits.gate.name == *gate);
    clusters.limits = own.map(|limits| (Arc::clone(&limits.pattern), limits.gate.clone())).collect();
}

type Open = Box<dyn Fn() -> Result<OpenCluster, String> + Send + Sync>;

/// The settings for opening any cluster of a gate.
struct Opening {
    gate: Arc<Gate>,
    pod_token: Option<PodToken>,
    clock: Clock,
}

// === impl Opening ===

impl Opening {
    /// Reads the files of a cluster, and prepares the access to it.
    fn open(&self, listed: &ListedCluster) -> Result<OpenCluster, String> {
        let resolved = listed.resolve().map_err(|error| error.to_string())?;
        self.access(resolved).map_err(|trouble| match trouble {
            Trouble::Wrong { what, .. } | Trouble::Missing(what) => format!("{what:#}"),
        })
    }

    fn access(&self, resolved: ResolvedUpstream) -> Result<OpenCluster, Trouble> {
        not_itself(&self.gate, &resolved.target)?;
        let injects = injects(&self.gate, &resolved);
        let injector = injector(&self.gate, &resolved, injects, self.pod_token.clone(), self.clock)?;
        let tls = resolved.tls(injects).map_err(|error| Trouble::wrong("clusters", error))?;
        Ok(OpenCluster { target: resolved.target, tls, injector })
    }
}
