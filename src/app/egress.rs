//! The egress listener: its preparation, and its start with the gates for its hosts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use tokio_util::sync::CancellationToken;

use super::gate::{PreparedGate, Trouble, listener, prepare_gate, reviewer};
use super::interception::PreparedCa;
use crate::clients::Clients;
use crate::clock::Clock;
use crate::config;
use crate::credentials::{Environment, Proxy, Secret, UpstreamTls};
use crate::proxy::{self, Directory, EgressListener, EgressOptions};
use crate::spec::{self, Settings};
use crate::tls;

/// The egress listener's settings, keys and gates, prepared before it listens.
#[derive(Debug)]
pub(crate) struct PreparedEgress {
    /// Its settings. Its gates, CA and own addresses are known when it starts.
    pub(crate) options: EgressOptions,
    ca: Option<PreparedCa>,
    warnings: Vec<String>,
}

// === impl PreparedEgress ===

impl PreparedEgress {
    /// Returns warnings about the listener's CA and the authentication of its clients.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        self.warnings.iter().cloned().chain(self.ca.as_ref().and_then(PreparedCa::warning))
    }
}

/// Prepares the egress listener, if one is configured.
pub(crate) fn prepare_egress(
    settings: &Settings,
    around: &Environment,
    clock: Clock,
) -> Result<Option<PreparedEgress>, Trouble> {
    let (Some(directory), Some(egress)) = (Directory::new(settings), &settings.egress) else { return Ok(None) };
    let token = egress.token_file.as_deref().map(Secret::file).transpose();
    let token = token.map_err(|error| Trouble::Wrong { key: "token_file", what: error.into() })?;
    let via = (!egress.via.is_empty()).then(|| Proxy::parse(&egress.via));
    let via =
        via.map(|via| via.ok_or_else(|| Trouble::Wrong { key: "via", what: anyhow!("is not a proxy") })).transpose()?;
    let asks_by_tls = egress.clients.as_ref().is_none_or(spec::Clients::need_certificates);
    let tls = egress.tls.as_ref().map(|tls| listener(tls, &[], asks_by_tls)).transpose()?.map(Arc::new);
    let mut warnings = Vec::new();
    let clients = egress.clients.as_ref().map(|clients| judge(clients, around, clock, &mut warnings)).transpose()?;
    let ca = PreparedCa::new(settings)?;
    let mut clear = clear(settings.drain, around, clock)?.options;
    clear.upstream.target.proxy = via;
    let gates = Vec::new();
    let own = Vec::new();
    let options = EgressOptions { directory, gates, clear, token, tls, clients, ca: None, own, judge: None };
    Ok(Some(PreparedEgress { options, ca, warnings }))
}

/// Prepares the authentication of the egress listener's clients.
pub(crate) fn judge(
    clients: &spec::Clients,
    around: &Environment,
    clock: Clock,
    warnings: &mut Vec<String>,
) -> Result<Arc<Clients>, Trouble> {
    let api = reviewer(clients, &UpstreamTls::default(), around, clock, warnings)?;
    let judge = Clients::of_proxy("egress", clients, api, clock).map(Arc::new);
    judge.ok_or_else(|| Trouble::Missing(anyhow!(tls::TlsError::Randomness)))
}

/// Prepares the gate for unencrypted calls to hosts that no gate lists; it has no limits.
fn clear(drain: Duration, around: &Environment, clock: Clock) -> Result<PreparedGate, Trouble> {
    let loaded = config::load_text("egress".to_owned(), CLEAR.to_owned(), &[]);
    let gate = loaded.ok().and_then(|loaded| loaded.settings.gates.into_values().next());
    let mut gate =
        gate.ok_or_else(|| Trouble::Missing(anyhow!("the egress listener's gate for other hosts cannot be created")))?;
    (gate.name, gate.listen) = (proxy::CLEAR.into(), Vec::new());
    prepare_gate(gate, around, drain, clock)
}

/// Starts the egress listener with its gates. `own` are the addresses on which the rest of this
/// process listens: the listener never connects to them.
pub(crate) async fn start(
    prepared: PreparedEgress,
    gates: Vec<PreparedGate>,
    own: Vec<SocketAddr>,
    clock: Clock,
    stop: CancellationToken,
) -> anyhow::Result<Arc<EgressListener>> {
    let PreparedEgress { mut options, ca, .. } = prepared;
    // Before anything listens: a client that connects finds what it needs to trust.
    options.ca = ca.map(|ca| ca.open(clock, stop.clone())).transpose()?;
    options.own = own;
    let notes: Vec<_> = gates.iter().map(|gate| (Arc::clone(&gate.options.gate.name), gate.notes.clone())).collect();
    options.gates = gates.into_iter().map(|gate| gate.options).collect();
    let egress = EgressListener::start(options, clock, stop).await?;
    tracing::info!(listen = egress.status().listen, gates = notes.len(), "egress listener open");
    for (gate, notes) in notes {
        notes.into_iter().for_each(|note| tracing::info!(gate = &*gate, "{note}"));
    }
    Ok(egress)
}

/// The configuration of a gate that has no limits, remembers nothing and forwards calls unchanged.
const CLEAR: &str = "[gates.others]
kind = \"http\"
upstream = \"http://egress.invalid\"
preset = \"none\"
credentials = \"pass_through\"
host = \"preserve\"
queue.fair_by = \"none\"
backoff = \"off\"
signals.honour = []
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_for_other_hosts_has_no_limits() {
        let around = Environment { variables: Vec::new(), service_account: "/none".into() };
        let gate = clear(Duration::ZERO, &around, Clock::start()).expect("it can be made").options.gate;
        assert!(gate.policy.bucket.is_none() && gate.policy.in_flight.is_none() && gate.policy.retry_bucket.is_none());
        assert_eq!((gate.injects(), gate.forwarding.host), (false, spec::Host::Preserve));
    }
}
