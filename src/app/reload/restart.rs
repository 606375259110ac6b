//! The keys of the configuration that only a restart can change, such as sockets, the upstream and
//! credentials.

use std::collections::BTreeSet;

use crate::spec::{Egress, Gate, Settings, Source};

/// A key that only a restart can change, and true if it has changed.
type RestartKey = (&'static str, bool);

/// Returns the changes that need a restart, with a sentence for each key.
pub(super) fn needed(running: &Settings, new: &Settings) -> Vec<String> {
    let mut keys: Vec<String> = changed(of_process(running, new)).map(str::to_owned).collect();
    keys.extend(of_egress(running.egress.as_ref(), new.egress.as_ref()).into_iter().map(|key| format!("egress{key}")));
    let names: BTreeSet<_> = running.gates.keys().chain(new.gates.keys()).collect();
    for name in names {
        match (running.gates.get(name), new.gates.get(name)) {
            (Some(running), Some(new)) => {
                keys.extend(changed(of_gate(running, new)).map(|key| format!("gates.{name}.{key}")));
            }
            _ => keys.push(format!("gates.{name} (added or removed)")),
        }
    }
    keys.into_iter().map(|key| format!("{key} can only be changed by a restart")).collect()
}

fn of_process(running: &Settings, new: &Settings) -> [RestartKey; 6] {
    [
        ("admin.listen", running.admin.listen != new.admin.listen),
        ("admin.socket", running.admin.socket != new.admin.socket),
        ("state.file", running.state != new.state),
        ("log.format", running.log.json != new.log.json),
        ("otlp", running.otlp != new.otlp),
        ("process.threads", running.threads != new.threads),
    ]
}

/// Returns the changed keys of the egress listener.
fn of_egress(running: Option<&Egress>, new: Option<&Egress>) -> Vec<&'static str> {
    match (running, new) {
        (None, None) => Vec::new(),
        (Some(running), Some(new)) => changed(of_listener(running, new)).collect(),
        _ => vec![""],
    }
}

fn of_listener(running: &Egress, new: &Egress) -> [RestartKey; 8] {
    [
        (".listen", running.listen != new.listen),
        (".names", running.names != new.names),
        (".metadata", running.metadata != new.metadata),
        (".via", running.via != new.via),
        (".token_file", running.token_file != new.token_file),
        (".tls", running.tls != new.tls),
        (".clients", running.clients != new.clients),
        (".ca", running.ca != new.ca),
    ]
}

/// Returns a problem for each host the egress CA may not sign certificates for. The CA was made at
/// the start, for the hosts of that time.
pub(super) fn not_permitted(new: &Settings, is_permitted: impl Fn(&str) -> bool) -> Vec<String> {
    let gates = new.gates.values().filter_map(|gate| Some((&gate.name, gate.hosts.as_ref()?)));
    let patterns = gates
        .filter(|(_, hosts)| hosts.intercept)
        .flat_map(|(name, hosts)| hosts.patterns.iter().map(move |pattern| (name, pattern)));
    let others = patterns.filter(|(_, pattern)| !pattern.ends().into_iter().all(&is_permitted));
    let is_given = new.egress.as_ref().is_some_and(|egress| egress.ca.given.is_some());
    let remedy = if is_given {
        "give one whose name constraints permit it (egress.ca.cert), and restart the pod"
    } else {
        "restart the pod, or list it in egress.ca.names from the beginning"
    };
    let says = |(name, pattern)| format!("gates.{name}.hosts: the egress CA may not sign for {pattern}; {remedy}");
    others.map(says).collect()
}

fn of_gate(running: &Gate, new: &Gate) -> [RestartKey; 12] {
    let has_clusters = |gate: &Gate| matches!(gate.upstream, Source::Clusters(_));
    [
        ("kind", running.kind != new.kind),
        ("listen", running.listen != new.listen),
        ("upstream", running.upstream != new.upstream && !has_clusters(new)),
        ("clusters", running.upstream != new.upstream && has_clusters(new)),
        ("hosts (instead of an upstream)", running.hosts.is_some() != new.hosts.is_some()),
        ("credentials", running.identity.credentials != new.identity.credentials),
        ("impersonation", running.identity.impersonation != new.identity.impersonation),
        ("shadow", running.shadow != new.shadow),
        ("tls", running.access.tls != new.access.tls),
        ("clients", running.access.clients != new.access.clients),
        ("upstream_tls", running.forwarding.tls != new.forwarding.tls),
        ("credential", running.identity.file != new.identity.file),
    ]
}

fn changed<const N: usize>(keys: [RestartKey; N]) -> impl Iterator<Item = &'static str> {
    keys.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;

    fn settings(egress: &str, gate: &str) -> Settings {
        let text = format!("[egress]\n{egress}\n[gates.a]\nhosts = [\"a.example\"]\n{gate}\n");
        let loaded = load_text("f.toml".to_owned(), text.clone(), &[]);
        loaded.unwrap_or_else(|problems| panic!("{text}{problems:?}")).settings
    }

    #[test]
    fn the_page_for_operators_names_each_key_that_needs_a_restart() {
        let page = include_str!("../../../docs/operations.md");
        let (_, from) = page.split_once("Some changes need a restart: ").expect("it says so");
        let (said, _) = from.split_once("\n\n").expect("a paragraph");
        let settings = settings("", "");
        let (gate, egress) = (&settings.gates["a"], settings.egress.as_ref().expect("there is one"));
        let keys = [&of_process(&settings, &settings)[..], &of_gate(gate, gate), &of_listener(egress, egress)];
        for (key, _) in keys.concat() {
            let name = key.split(' ').next().unwrap_or_default().trim_start_matches('.');
            assert!(said.contains(&format!("`{name}`")), "{key} is not in\n{said}");
        }
    }

    #[test]
    fn what_the_egress_listener_can_only_change_by_a_restart_is_named_alone() {
        let running = settings("", "");
        for (egress, gate, key) in [
            ("listen = \"127.0.0.1:8004\"", "", "egress.listen"),
            ("listen = \"unix:/run/egress.sock\"", "", "egress.listen"),
            ("names = \"127.0.0.1:443\"", "", "egress.names"),
            ("metadata = \"tunnel\"", "", "egress.metadata"),
            ("via = \"http://proxy.example:3128\"", "", "egress.via"),
            ("token_file = \"/token\"", "", "egress.token_file"),
            ("tls = { cert = \"/c\", key = \"/k\" }", "", "egress.tls"),
            ("clients = { tokens = \"review\" }", "", "egress.clients"),
            ("ca.keep = \"/keys\"", "", "egress.ca"),
            ("ca.write_to = \"/elsewhere\"", "", "egress.ca"),
            ("ca.names = [\"b.example\"]", "", "egress.ca"),
            ("ca.extra_roots = \"/roots\"", "", "egress.ca"),
            ("ca = { cert = \"/c\", key = \"/k\", root = \"/r\" }", "", "egress.ca"),
            ("", "upstream_tls.ca = \"/c\"", "gates.a.upstream_tls"),
            ("", "shadow = true", "gates.a.shadow"),
        ] {
            let expected = format!("{key} can only be changed by a restart");
            assert_eq!(needed(&running, &settings(egress, gate)), [expected], "{egress}{gate}");
        }
        for (egress, gate) in [
            ("others = \"refuse\"", ""),
            ("tunnel = [\"b.example\"]", ""),
            ("ports = [443, 8443]", ""),
            ("max_connections = 5", ""),
            ("max_origins = 5", ""),
            ("idle_origin = \"1m\"", ""),
            ("", "except = [\"b.example\"]"),
            ("", "connect_to = { \"a.example\" = \"b.example:443\" }"),
            ("", "plain = \"refuse\""),
            ("", "bucket = { rate = 5, burst = 5 }"),
        ] {
            assert_eq!(needed(&running, &settings(egress, gate)), [""; 0], "{egress}{gate}");
        }
    }

    #[test]
    fn a_host_that_the_ca_is_not_for_is_named_with_what_to_do() {
        let given = "ca = { cert = \"/c\", key = \"/k\", root = \"/r\" }";
        for (egress, remedy) in [
            ("", "list it in egress.ca.names from the beginning"),
            (given, "give one whose name constraints permit it"),
        ] {
            let new = settings(egress, "intercept = true");
            let said = not_permitted(&new, |_| false);
            let begins = "gates.a.hosts: the egress CA may not sign for a.example; ";
            assert!(said.len() == 1 && said[0].starts_with(begins) && said[0].contains(remedy), "{said:?}");
            assert_eq!(not_permitted(&new, |_| true), [""; 0]);
        }
    }
}
