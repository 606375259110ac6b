//! Reads the clusters behind one gate, and the limits of single clusters.

use std::path::PathBuf;
use std::sync::Arc;

use super::candidate;
use super::cursor::Cursor;
use crate::classify::ApiKind;
use crate::spec::{ClusterLimits, Gate, Settings, Source};

/// Reads the source of a gate's clusters; `None` if it has an upstream. `at` is without effect for a
/// gate with hosts.
pub(super) fn clusters(at: &Cursor<'_>, kind: ApiKind) -> Option<Source> {
    let path = at.option::<Option<PathBuf>>("clusters", None).flatten()?;
    if kind != ApiKind::Kubernetes {
        let at = at.at("kind").given(&[&at.at("clusters")]);
        at.problem("is \"http\", but clusters are those of Kubernetes; expected \"kubernetes\"");
    }
    Some(Source::Clusters(path))
}

/// Reads the limits of single clusters of a gate. `read` reads a whole gate from its table.
pub(super) fn limits(at: &Cursor<'_>, gate: &Gate, read: impl Fn(&Cursor<'_>) -> Gate) -> Vec<ClusterLimits> {
    let tables = at.list(PER_CLUSTER);
    if !matches!(gate.upstream, Source::Clusters(_)) {
        if at.has(PER_CLUSTER) {
            let at = at.at(PER_CLUSTER).given(&[&at.at("clusters")]);
            at.key_problem("has no effect: it is only for a gate with clusters");
        }
        return Vec::new();
    }
    let mut all = Vec::new();
    for own in tables {
        own.enter();
        let pattern: Option<String> = own.option(MATCH, None);
        if !own.has(MATCH) {
            own.at(MATCH).missing(", expected a pattern of cluster names such as \"prod-*\"");
        }
        let gate = candidate::read_with(at, &own, Some(MATCH), &read);
        let Some(pattern) = pattern.map(Arc::from) else { continue };
        if all.iter().any(|limits: &ClusterLimits| limits.pattern == pattern) {
            own.at(MATCH).problem(format!("is {pattern:?}, as in a table before this one; expected another pattern"));
        }
        all.push(ClusterLimits { pattern, gate });
    }
    all
}

/// Gives the limits of single clusters the stores of their gate's shared buckets.
pub(super) fn share(settings: &mut Settings) {
    for ClusterLimits { gate, .. } in &mut settings.clusters {
        let of_gate = settings.gates.get(&gate.name).map(|gate| gate.policy.shared.as_slice()).unwrap_or_default();
        for shared in &mut gate.policy.shared {
            let same = of_gate.iter().find(|of_gate| of_gate.name == shared.name);
            same.iter().for_each(|same| shared.clone_from(same));
        }
    }
}

const PER_CLUSTER: &str = "per_cluster";
const MATCH: &str = "match";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::load_text;
    use crate::config::tests::problems;
    use crate::spec::Source;

    const HUB: &str =
        "[gates.hub]\nclusters = \"/clusters\"\nin_flight = { max = 3 }\nbucket = { rate = 5, burst = 9 }\n";
    const LIMITS: &str = "[[gates.hub.per_cluster]]\nmatch = \"prod-*\"\nbucket = { rate = 50 }\n\
                          [[gates.hub.per_cluster]]\nmatch = \"*\"\nin_flight = \"off\"\n";

    #[test]
    fn a_pattern_has_limits_of_its_own_and_the_rest_from_the_gate() {
        let loaded = load_text("f.toml".to_owned(), format!("{HUB}{LIMITS}"), &[]).expect("it is right");
        let again = load_text("f.toml".to_owned(), loaded.effective, &[]).expect("it is right");
        for settings in [&loaded.settings, &again.settings] {
            assert_eq!(settings.gates["hub"].upstream, Source::Clusters(Path::new("/clusters").to_owned()));
            let of =
                |cluster: &str| settings.clusters.iter().find(|limits| limits.are_for("hub", cluster)).expect("one");
            let rate = |cluster: &str| of(cluster).gate.policy.bucket.map(|bucket| bucket.rate);
            let slots = |cluster: &str| of(cluster).gate.policy.in_flight.map(|slots| slots.max.get());
            assert_eq!((rate("prod-1"), slots("prod-1")), (Some(50.0), Some(3)));
            assert_eq!((rate("test"), slots("test")), (Some(5.0), None));
        }
    }

    #[test]
    fn shared_buckets_of_clusters_are_in_the_store_of_the_gate() {
        let text = format!("{HUB}shared = \"fleet\"\n{LIMITS}[stores.s]\nurl = \"redis://x:1\"\n");
        let settings = load_text("f.toml".to_owned(), text, &[]).expect("it is right").settings;
        let shared = settings.clusters.iter().map(|limits| &limits.gate.policy.shared);
        assert!(shared.clone().all(|shared| *shared == settings.gates["hub"].policy.shared));
        assert!(shared.flatten().all(|shared| &*shared.store == "s"));
    }

    #[test]
    fn what_cannot_be_of_clusters_is_said_once() {
        for (more, expected) in [
            (
                "upstream = \"in_cluster\"",
                "gates.hub.upstream: has no effect: a gate has clusters or an upstream, not both",
            ),
            ("kind = \"http\"", "gates.hub.kind: is \"http\", but clusters are those of Kubernetes"),
            ("upstream_tls.insecure = true", "gates.hub.upstream_tls: has no effect: each cluster's own file says"),
            ("credential = { file = \"/x\" }", "gates.hub.credential: has no effect: the upstream (a cluster) has"),
            (
                "per_cluster = [{ bucket = { rate = 5 } }]",
                "gates.hub.per_cluster[0].match: is missing, expected a pattern",
            ),
            ("per_cluster = [{ match = 5 }]", "gates.hub.per_cluster[0].match: is 5, expected text in quotes"),
            (
                "per_cluster = [{ match = \"a\" }, { match = \"a\" }]",
                "gates.hub.per_cluster[1].match: is \"a\", as in a table before this one",
            ),
            (
                "per_cluster = [{ match = \"a\", credentials = \"inject\" }]",
                "gates.hub.per_cluster[0].credentials: is not a limit, expected one of bucket, retry_bucket,",
            ),
            (
                "per_cluster = [{ match = \"a\", bucket = { rate = -5 } }]",
                "gates.hub.per_cluster[0].bucket.rate: is -5.0, expected calls per second above 0",
            ),
            (
                "per_cluster = [{ match = \"a\", bucket = { brust = 5 } }]",
                "gates.hub.per_cluster[0].bucket.brust: is not a valid key",
            ),
            (
                "per_cluster = [{ match = \"a\", bucket = { shared = \"x\" } }]",
                "gates.hub.per_cluster[0].bucket.shared: cannot be set here",
            ),
            ("per_cluster = 5", "gates.hub.per_cluster: is 5, expected a list of tables"),
            ("clients = { tokens = \"review\" }", "fine "),
            ("tls = {}", "gates.hub.tls.write_to: is for a gate with one upstream; expected mode = \"files\""),
            (
                "tls = { mode = \"files\", cert = \"/c\", key = \"/k\", write_to = \"/w\" }",
                "gates.hub.tls.write_to: is for a gate with one upstream",
            ),
        ] {
            let said = problems(&format!("[gates.hub]\nclusters = \"/clusters\"\n{more}\n"));
            assert!(said.contains(expected) && said.trim().lines().count() == 1, "{more}: {said}");
        }
        let said = problems("[gates.a]\nupstream = \"in_cluster\"\nper_cluster = [{ match = \"x\" }]\n");
        assert!(said.contains("gates.a.per_cluster: has no effect: it is only for a gate with clusters"), "{said}");
        let said = problems("[egress]\n[gates.a]\nhosts = [\"a.example\"]\nclusters = \"/x\"\n");
        assert!(said.contains("gates.a.clusters: has no effect: a gate has hosts or an upstream"), "{said}");
        assert!(problems("[gates.a]\nclusters = \"\"\n").contains("gates.a.upstream: is missing"));
    }
}
