//! The keys that only a restart can change: sockets, the upstream, and the identity that a gate
//! uses.

use std::collections::BTreeSet;

use crate::spec::{Gate, Settings};

/// Returns the changes that are impossible while the process runs: one sentence for each key.
pub(super) fn needed(running: &Settings, new: &Settings) -> Vec<String> {
    let mut keys = Vec::new();
    if running.admin.listen != new.admin.listen {
        keys.push("admin.listen".to_owned());
    }
    if running.admin.socket != new.admin.socket {
        keys.push("admin.socket".to_owned());
    }
    if running.log.json != new.log.json {
        keys.push("log.format".to_owned());
    }
    let names: BTreeSet<_> = running.gates.keys().chain(new.gates.keys()).collect();
    for name in names {
        match (running.gates.get(name), new.gates.get(name)) {
            (Some(running), Some(new)) => {
                keys.extend(of_gate(running, new).into_iter().map(|key| format!("gates.{name}.{key}")));
            }
            _ => keys.push(format!("gates.{name} (a gate more or less)")),
        }
    }
    keys.into_iter().map(|key| format!("{key} can only be changed by a restart")).collect()
}

fn of_gate(running: &Gate, new: &Gate) -> Vec<&'static str> {
    let changes = [
        ("kind", running.kind != new.kind),
        ("listen", running.listen != new.listen),
        ("upstream", running.upstream != new.upstream),
        ("credentials", running.credentials != new.credentials),
        ("impersonation", running.impersonation != new.impersonation),
        ("shadow", running.shadow != new.shadow),
        ("tls", running.tls != new.tls),
        ("upstream_tls", running.upstream_tls != new.upstream_tls),
        ("credential", running.credential != new.credential),
    ];
    changes.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect()
}
