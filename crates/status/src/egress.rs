//! The state of the egress listener as data.

use serde::{Deserialize, Serialize};

use super::text::count;

/// The egress listener. The origins of the gates behind it are in the list of gates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EgressStatus {
    /// Its own address.
    pub listen: String,
    /// Connections of clients.
    pub connections: usize,
    /// Origins with limits or connections of their own.
    pub origins: usize,
    /// The number of hosts with tunnels; `tunnels` may have fewer.
    pub tunnel_hosts: usize,
    /// Tunnels by host, those with most tunnels first; not more than 20.
    pub tunnels: Vec<Tunnels>,
    /// Refusals since the start, by reason.
    pub refusals: Vec<EgressRefusals>,
    /// Failed handshakes of intercepted TLS, by gate, host and reason; not more than 20.
    pub handshakes: Vec<EgressHandshakes>,
    /// The SHA-256 of the egress CA's root; empty if no TLS is opened.
    pub ca: String,
}

/// The failed handshakes for one host and one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EgressHandshakes {
    /// The gate of the host.
    pub gate: String,
    /// The host.
    pub host: String,
    /// The reason, as in the metric.
    pub why: String,
    /// The first client's name for itself, if any.
    pub client: String,
    /// The number of handshakes.
    pub count: u64,
}

/// The tunnels to one host since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tunnels {
    /// The host with its port.
    pub host: String,
    /// The gate of the host, if any: its limits do not hold for calls in a tunnel.
    pub gate: String,
    /// The open tunnels.
    pub open: usize,
    /// All tunnels.
    pub total: u64,
    /// Bytes to the host.
    pub bytes_up: u64,
    /// Bytes from the host.
    pub bytes_down: u64,
}

/// The tunnels and requests refused for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EgressRefusals {
    /// The reason, as in the metric.
    pub why: String,
    /// The number of tunnels and requests.
    pub count: u64,
}

// === impl EgressStatus ===

impl EgressStatus {
    /// Describes it in a sentence.
    pub(super) fn summary(&self) -> String {
        let open: usize = self.tunnels.iter().map(|tunnels| tunnels.open).sum();
        let connections = count(self.connections, "connection", "connections");
        let origins = count(self.origins, "host", "hosts");
        format!(
            "{connections} of clients; {} open; limits or connections of {origins}",
            count(open, "tunnel", "tunnels")
        )
    }
}
