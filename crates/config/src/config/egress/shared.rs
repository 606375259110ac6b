//! Reads the settings of an egress listener for other pods: TLS and client authentication.

use super::Cursor;
use crate::config::clients;
use crate::config::files::FileContent;
use crate::spec::{Clients, Egress, ListenerTls, TlsMode};

/// Reads the settings of TLS between clients and the proxy itself.
pub(super) fn tls(egress: &Cursor<'_>) -> Option<ListenerTls> {
    let at = egress.optional("tls")?;
    let cert = at.file("cert", FileContent::Chain);
    let key = at.file("key", FileContent::Key);
    let client_ca = at.file("client_ca", FileContent::Certificate);
    for (name, file) in [("cert", &cert), ("key", &key)] {
        if file.is_none() {
            at.at(name).missing(", expected a PEM file");
        }
    }
    let mode = TlsMode::Files { cert: cert?, key: key? };
    Some(ListenerTls { mode, names: Vec::new(), write_to: None, client_ca })
}

/// Checks how clients of the forward proxy authenticate. `at` is the listener.
pub(super) fn check_clients(egress: &Egress, clients: &Clients, is_local: bool, at: &Cursor<'_>) {
    clients::check_listener(clients, egress.tls.as_ref(), is_local, at);
    if !egress.names.is_empty() {
        at.at("names").problem(
            "serves clients that cannot authenticate, but [egress.clients] requires it; expected only one of the two",
        );
    }
    if at.has("token_file") {
        at.at("token_file").key_problem("has no effect: [egress.clients] asks for each client's own token");
    }
}
