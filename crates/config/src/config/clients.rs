//! Reads how clients must authenticate.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::cursor::Cursor;
use crate::spec::{Clients, Credentials, Gate, ListenerTls, Source, Tokens};

/// Reads the table `clients` of a gate, if it exists.
pub(super) fn clients(gate: &Cursor<'_>, upstream: Option<&Source>) -> Option<Clients> {
    let at = gate.optional("clients")?;
    let is_one = |upstream: &&Source| upstream.has_identity() && !matches!(upstream, Source::Clusters(_));
    let usual = upstream.filter(is_one).unwrap_or(&Source::InCluster);
    Some(read(&at, usual))
}

pub(super) fn read(at: &Cursor<'_>, usual: &Source) -> Clients {
    let tokens = at.get("tokens", Tokens::Off);
    let certificates = at.get("certificates", false);
    let reviewed = at.unused_if(tokens == Tokens::Off, "tokens = \"off\" asks for none", &at.at("tokens"));
    let audiences: Vec<String> = reviewed.get("audiences", Vec::new());
    at.check_each("audiences", &audiences, |audience| audience.is_empty().then(|| "expected an audience".to_owned()));
    let expected = "a time from 1s to 5m, for which a revoked token is still accepted";
    let cache = reviewed.get_if("cache", CACHE, |cache| CACHES.contains(cache), expected);
    let api = reviewed.get("api", usual.clone());
    if !api.has_identity() {
        at.at("api").problem(
            "is a URL, but TokenReview needs an API server and an identity of the gate; expected \"in_cluster\", \"kubeconfig\" or \"kubeconfig:CONTEXT\"",
        );
    }
    let allowed: Option<Vec<String>> = at.read("allowed");
    if let Some(allowed) = &allowed {
        at.in_force("allowed", allowed);
        if allowed.is_empty() {
            at.at("allowed").problem("is an empty list, which lets no client in; expected names such as \"system:serviceaccount:NAMESPACE:*\"");
        }
        at.check_each("allowed", allowed, |name| name.is_empty().then(|| "expected the name of a client".to_owned()));
    }
    if tokens == Tokens::Off && !certificates && !at.has("tokens") && !at.has("certificates") {
        at.key_problem(
            "authenticates no client, expected tokens = \"review\", or certificates = true with tls.client_ca",
        );
    } else if tokens == Tokens::Off && !certificates {
        at.at("tokens").given(&[&at.at("certificates")]).problem(
            "is \"off\", and certificates is false: no client is authenticated; expected tokens = \"review\", or certificates = true",
        );
    }
    Clients { tokens, audiences, certificates, cache, allowed, api }
}

/// Checks client authentication against the gate's other settings: connections must be encrypted
/// and, if clients act with the gate's own identity, it must list the allowed clients.
pub(super) fn check(gate: &Gate, at: &Cursor<'_>) {
    let Some(clients) = &gate.access.clients else { return };
    check_listener(clients, gate.access.tls.as_ref(), gate.is_local(), at);
    if gate.identity.credentials == Credentials::Inject && clients.allowed.is_none() {
        at.at("clients").at("allowed").given(&[&at.at("credentials")]).missing(
            ", but with credentials = \"inject\" every authenticated client, perhaps every pod of the cluster, would act with the \
             gate's identity; expected the names of those who may, such as [\"system:serviceaccount:NAMESPACE:*\"]",
        );
    }
}

/// Checks client authentication against the listener at `at`: it must ask for the certificates, and
/// tokens must be encrypted.
pub(super) fn check_listener(clients: &Clients, tls: Option<&ListenerTls>, is_local: bool, at: &Cursor<'_>) {
    let at_clients = at.at("clients");
    let at_tls = at.at("tls");
    if clients.certificates && tls.is_none_or(|tls| tls.client_ca.is_none()) {
        at_clients.at("certificates").given(&[&at_tls]).problem(
            "is true, but the listener asks for no certificate; expected [tls] with client_ca, the CA that signs the clients' certificates",
        );
    }
    if clients.tokens == Tokens::Review && tls.is_none() && !is_local {
        let is_egress = at.path.0.first().is_some_and(|table| table == "egress");
        let tls = if is_egress { "[egress.tls]" } else { "[tls]" };
        at_clients.at("tokens").given(&[&at_tls, &at.at("listen")]).problem(format!(
            "is \"review\", but without {tls} the clients' tokens would cross the network in the clear; expected {tls}"
        ));
    }
}

/// How long a reviewed token is cached: as long as kube-apiserver keeps the answers of its own
/// webhook.
const CACHE: Duration = Duration::from_secs(10);
const CACHES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);
