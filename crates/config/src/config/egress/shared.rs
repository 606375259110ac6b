//! Reads the settings of an egress listener for other pods: TLS and client authentication.

use super::Cursor;
use crate::config::clients;
use crate::config::files::FileContent;
use crate::spec::{Clients, Listen, ListenerTls, Source, TlsMode, Tokens};

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

/// Reads how clients of the forward proxy authenticate.
pub(super) fn clients(
    egress: &Cursor<'_>,
    tls: Option<&ListenerTls>,
    names: &[Listen],
    is_local: bool,
) -> Option<Clients> {
    let at = egress.optional("clients")?;
    let clients = clients::read(&at, &Source::InCluster);
    clients::check_certificates(&clients, tls, &at, &egress.at("tls"));
    if clients.tokens == Tokens::Review && !egress.has("tls") && !is_local {
        at.at("tokens").given(&[&egress.at("listen")]).problem(
            "is \"review\", but without [egress.tls] the clients' tokens would cross the network in the clear; expected [egress.tls]",
        );
    }
    if !names.is_empty() {
        egress.at("names").problem(
            "serves clients that cannot authenticate, but [egress.clients] requires it; expected only one of the two",
        );
    }
    if egress.has("token_file") {
        egress.at("token_file").key_problem("has no effect: [egress.clients] asks for each client's own token");
    }
    Some(clients)
}
