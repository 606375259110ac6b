//! The keys that only a restart can change: sockets, the upstream, and the identity that a gate
//! uses.

use std::collections::BTreeSet;

use crate::spec::{Gate, Settings};

/// Returns the changes that are impossible while the process runs: one sentence for each key.
pub(super) fn needed(running: &Settings, new: &Settings) -> Vec<String> {
    let of_process = [
        ("admin.listen", running.admin.listen != new.admin.listen),
        ("admin.socket", running.admin.socket != new.admin.socket),
        ("state.file", running.state != new.state),
        ("log.format", running.log.json != new.log.json),
        ("otlp", running.otlp != new.otlp),
    ];
    let mut keys: Vec<String> = changed(of_process).map(str::to_owned).collect();
    let names: BTreeSet<_> = running.gates.keys().chain(new.gates.keys()).collect();
    for name in names {
        match (running.gates.get(name), new.gates.get(name)) {
            (Some(running), Some(new)) => {
                keys.extend(of_gate(running, new).map(|key| format!("gates.{name}.{key}")));
            }
            _ => keys.push(format!("gates.{name} (a gate more or less)")),
        }
    }
    keys.into_iter().map(|key| format!("{key} can only be changed by a restart")).collect()
}

fn of_gate(running: &Gate, new: &Gate) -> impl Iterator<Item = &'static str> {
    changed([
        ("kind", running.kind != new.kind),
        ("listen", running.listen != new.listen),
        ("upstream", running.upstream != new.upstream),
        ("credentials", running.credentials != new.credentials),
        ("impersonation", running.impersonation != new.impersonation),
        ("shadow", running.shadow != new.shadow),
        ("tls", running.tls != new.tls),
        ("upstream_tls", running.upstream_tls != new.upstream_tls),
        ("credential", running.credential != new.credential),
    ])
}

fn changed<const N: usize>(keys: [(&'static str, bool); N]) -> impl Iterator<Item = &'static str> {
    keys.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key)
}
