//! The state of the egress listener, as data.

use serde::{Deserialize, Serialize};

use super::text::count;

/// The egress listener. The gates made for its hosts are in the list of gates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EgressStatus {
    /// The address of the listener.
    pub listen: String,
    /// The number of clients' connections.
    pub connections: usize,
    /// The number of hosts (with port) that have limits and connections of their own.
    pub origins: usize,
    /// The number of hosts with tunnels; `tunnels` may have fewer.
    pub tunnel_hosts: usize,
    /// Tunnels by host, those with most tunnels first; not more than 20.
    pub tunnels: Vec<Tunnels>,
    /// The number of refusals since the start, by reason.
    pub refusals: Vec<EgressRefusals>,
    /// Failed handshakes of decrypted TLS with clients, by gate, host and reason; not
    /// more than 20.
    pub handshakes: Vec<EgressHandshakes>,
    /// The SHA-256 of the egress CA's root; empty if no TLS is decrypted.
    pub ca: String,
}

/// The failed handshakes for one host and one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EgressHandshakes {
    /// The gate listing the host.
    pub gate: String,
    /// The host the client wanted.
    pub host: String,
    /// The reason, as in the metric.
    pub why: String,
    /// The User-Agent of the first client, if any.
    pub client: String,
    /// The number of handshakes.
    pub count: u64,
}

/// The tunnels to one host since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tunnels {
    /// The host with its port.
    pub host: String,
    /// The gate that lists the host, if any. Its limits do not apply to the calls in these tunnels.
    pub gate: String,
    /// The number of open tunnels.
    pub open: usize,
    /// The number of all tunnels.
    pub total: u64,
    /// Bytes sent to the host.
    pub bytes_up: u64,
    /// Bytes received from the host.
    pub bytes_down: u64,
}

/// The tunnels and requests refused for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EgressRefusals {
    /// The reason, as in the metric.
    pub why: String,
    /// The number of tunnels and requests refused.
    pub count: u64,
}

// === impl EgressStatus ===

impl EgressStatus {
    /// Describes the listener in a sentence.
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
