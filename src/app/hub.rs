//! The clusters behind a gate: how each is reached, and with which limits.

use std::sync::Arc;

use anyhow::anyhow;

use super::gate::{PreparedGate, Trouble, injector, injects, not_itself};
use crate::clock::Clock;
use crate::credentials::{self, ListedCluster};
use crate::proxy::{HubCluster, HubClusters, OpenCluster};
use crate::spec::{ClusterLimits, Gate, Source};

/// Adds to a prepared gate its clusters, if it has some. What is wrong with a single one is a
/// warning, and the answer to its calls until its file is corrected.
pub(crate) fn add(prepared: &mut PreparedGate, limits: &[ClusterLimits], clock: Clock) -> Result<(), Trouble> {
    let Some(hub) = clusters(&prepared.options.gate, limits, clock)? else { return Ok(()) };
    prepared.warnings.extend(warnings(&hub));
    prepared.hub = Some(hub);
    Ok(())
}

/// Reads the clusters of a gate, if it has some, each with the limits of the first pattern that
/// matches its name.
pub(super) fn clusters(gate: &Gate, limits: &[ClusterLimits], clock: Clock) -> Result<Option<HubClusters>, Trouble> {
    let Source::Clusters(path) = &gate.upstream else { return Ok(None) };
    let listed = credentials::clusters(path).map_err(|error| match path.exists() {
        true => Trouble::wrong("clusters", error),
        false => Trouble::Missing(anyhow!(error).context(format!("gates.{}.clusters", gate.name))),
    })?;
    let gate = Arc::new(gate.clone());
    let own = limits.iter().filter(|limits| *limits.gate.name == *gate.name);
    let limits = own.clone().map(|limits| (Arc::clone(&limits.pattern), limits.gate.clone())).collect();
    let mut hub = HubClusters { limits, ..HubClusters::default() };
    for (name, listed) in listed {
        let limits = own.clone().find(|limits| limits.are_for(&gate.name, &name));
        let limits = limits.map(|limits| Arc::clone(&limits.pattern));
        let version = listed.as_ref().map_or(0, ListedCluster::version);
        let gate = Arc::clone(&gate);
        let open = move || match listed.as_ref().map(|listed| open(&gate, listed, clock)) {
            Ok(Err(Trouble::Wrong { what, .. } | Trouble::Missing(what))) => Err(format!("{what:#}")),
            Ok(Ok(opened)) => Ok(opened),
            Err(error) => Err(error.to_string()),
        };
        hub.clusters.insert(name, HubCluster::new(version, limits, open));
    }
    Ok(Some(hub))
}

/// Reads the files of all clusters, and returns what is wrong or unusual.
pub(super) fn warnings(hub: &HubClusters) -> Vec<String> {
    let of = |(name, cluster): (&Arc<str>, &HubCluster)| {
        let found =
            cluster.open().map_or_else(|why| vec![format!("cannot be called: {why}")], |opened| opened.warnings);
        found.into_iter().map(|found| format!("cluster {name:?}: {found}")).collect::<Vec<_>>()
    };
    hub.clusters.iter().flat_map(of).collect()
}

/// Reads the files of a cluster, and prepares the access to it.
fn open(gate: &Gate, listed: &ListedCluster, clock: Clock) -> Result<OpenCluster, Trouble> {
    let resolved = listed.resolve().map_err(|error| Trouble::wrong("clusters", error))?;
    let target = resolved.target.clone();
    let is_own = |host: &String| host.eq_ignore_ascii_case(target.authority.host());
    if target.base_path.starts_with("/c/") && gate.access.allowed_hosts.iter().any(is_own) {
        let why = format!("its server {target} is this gate; expected the address of the API server");
        return Err(Trouble::wrong("clusters", why));
    }
    not_itself(gate, &target)?;
    let injects = injects(gate, &resolved);
    let injector = injector(gate, &resolved, injects, None, clock)?;
    let tls = resolved.tls(injects).map_err(|error| Trouble::wrong("clusters", error))?;
    Ok(OpenCluster { target, tls, injector, warnings: resolved.warnings })
}
