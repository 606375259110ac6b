//! Checks the stores of shared buckets, with the credentials of the gates.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Finding;
use crate::clock::Clock;
use crate::limit::policy::Per;
use crate::spec::{Endpoint, Settings, Store, StoreAddress};
use crate::status::text::count;
use crate::store::{PreparedStore, ProbeReport};

/// Checks each store.
pub(super) async fn findings(settings: &Settings, clock: Clock) -> Vec<Finding> {
    let mut findings = Vec::new();
    for store in &settings.stores {
        findings.extend(of_store(store, &whole_buckets(settings, store), clock).await);
    }
    findings
}

/// Returns the names of the buckets in a store that are not split: each part has a key of its own,
/// which does not say whose it is.
fn whole_buckets(settings: &Settings, store: &Store) -> Vec<Arc<str>> {
    let mut whole = BTreeSet::new();
    let mut split = BTreeSet::new();
    for gate in settings.gates.values() {
        for (bucket, shared) in gate.policy.shared_buckets().filter(|(_, shared)| shared.store == store.name) {
            let is_whole = bucket.per == Per::Gate && gate.hosts.is_none();
            if is_whole { &mut whole } else { &mut split }.insert(Arc::clone(&shared.name));
        }
    }
    whole.difference(&split).cloned().collect()
}

async fn of_store(store: &Store, buckets: &[Arc<str>], clock: Clock) -> Vec<Finding> {
    let about = format!("store {}", store.name);
    let prepared = match PreparedStore::new(store.clone(), clock) {
        Ok(prepared) => prepared,
        Err(error) => {
            let advice = format!("correct stores.{}, or mount that file", store.name);
            return vec![Finding::wrong(&about, error.to_string(), advice)];
        }
    };
    match prepared.probe(buckets).await {
        Ok(probed) => of_probe(&about, &probed, store),
        Err(broken) => vec![Finding::wrong(&about, broken.what, broken.remedy)],
    }
}

fn of_probe(about: &str, probed: &ProbeReport, store: &Store) -> Vec<Finding> {
    let way = if store.has_tls { " over TLS" } else { "" };
    let took = format!("{:.1} ms", probed.took.as_secs_f64() * 1e3);
    let at = probed.at.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(", ");
    let place = match &store.address {
        StoreAddress::Sentinel { .. } => format!("; its primary is {at}, as its sentinels say"),
        StoreAddress::Cluster { .. } => format!("; the nodes in use are {at}"),
        _ => String::new(),
    };
    let mut findings = vec![Finding::fine(about, format!("answers in {took}{way}, and runs the script{place}"))];
    if probed.took > SLOW {
        let advice = "calls wait for it only while tokens are short; a store nearer by makes those waits shorter";
        findings.push(Finding::note(about, format!("takes {took} to answer"), advice));
    }
    if let Some(policy) = &probed.evicts {
        let advice = "set maxmemory-policy noeviction: a bucket that is dropped begins empty";
        findings.push(Finding::note(about, format!("may drop buckets ({policy})"), advice));
    }
    for (bucket, members) in &probed.members {
        let pods = if members.is_empty() { String::new() } else { format!(": {}", members.join(", ")) };
        let says = format!("{bucket} is shared by {}{pods}", count(members.len(), "gate", "gates"));
        findings.push(Finding::fine(about, says));
    }
    for bucket in &probed.differ {
        let advice = "the strictest limits hold for all; give all gates the same rate and burst";
        findings.push(Finding::note(about, format!("gates have different limits for {bucket}"), advice));
    }
    findings
}

/// The shortest response time of a store reported as slow.
const SLOW: Duration = Duration::from_millis(20);
