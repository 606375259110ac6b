//! Reads and checks the CA for interception, the decryption of TLS to listed hosts.

use std::path::PathBuf;

use crate::config::cursor::Cursor;
use crate::config::files::FileContent;
use crate::spec::{EgressCa, GivenCa, HostPattern, Settings};

/// Reads the settings of the CA for the certificates of decrypted hosts.
pub(super) fn ca(at: &Cursor<'_>) -> EgressCa {
    let keep: Option<PathBuf> = at.get("keep", None);
    let write_to = at.get("write_to", Some(PathBuf::from(WRITE_TO)));
    let names = at.get("names", Vec::new());
    let extra_roots = at.file("extra_roots", FileContent::Certificate);
    let write_to = write_to.unwrap_or_default();
    for (key, folder) in [("keep", keep.as_ref()), ("write_to", Some(&write_to))] {
        if let Some(folder) = folder.filter(|folder| !folder.is_absolute()) {
            at.at(key).problem(format!("is {folder:?}, expected the absolute path of a folder"));
        }
    }
    let given = given(at);
    EgressCa { keep, write_to, names, extra_roots, given }
}

/// Reads the files of the operator's own CA, if it is to be used instead of a generated one.
fn given(at: &Cursor<'_>) -> Option<GivenCa> {
    let files = [("cert", FileContent::Certificate), ("key", FileContent::Key), ("root", FileContent::Certificate)];
    let found = files.map(|(name, holds)| (name, at.file(name, holds)));
    if found.iter().all(|(_, file)| file.is_none()) {
        return None;
    }
    for (name, _) in found.iter().filter(|(_, file)| file.is_none()) {
        at.at(name).missing(", expected a PEM file: a CA is given as cert, key and root together");
    }
    if !at.at("keep").is_absent_or_empty() {
        at.at("keep")
            .given(&[&at.at("cert")])
            .key_problem("has no effect: a CA in files (cert, key, root) needs no other place to outlive the process");
    }
    let [(_, cert), (_, key), (_, root)] = found;
    Some(GivenCa { cert: cert?, key: key?, root: root? })
}

/// Checks gates with TLS decryption: the CA's folders, and the patterns of their hosts.
pub(in crate::config) fn check_interception(settings: &Settings, root: &Cursor<'_>) {
    let Some(egress) = &settings.egress else { return };
    let at = root.at("egress").at("ca");
    let intercepting =
        || settings.gates.values().filter(|gate| gate.hosts.as_ref().is_some_and(|hosts| hosts.intercept));
    if intercepting().next().is_none() {
        return;
    }
    let own = egress.ca.keep.as_deref();
    let of_gates = settings
        .gates
        .iter()
        .filter_map(|(name, gate)| Some((gate.folder()?, root.at("gates").at(name).at("tls").at("write_to"))));
    for (folder, of) in of_gates.chain([(egress.ca.write_to.as_path(), at.at("write_to"))]) {
        if own.is_some_and(|own| own.starts_with(folder)) {
            at.at("keep").given(&[&at.at("keep"), &of]).problem(format!(
                "lies in the folder of {}, which clients mount, so they could read the CA's key; expected a folder that only the gate mounts",
                of.path
            ));
        }
        if folder == egress.ca.write_to && of.path != at.at("write_to").path {
            let message = format!("is {folder:?}, the folder of {} too; expected another", of.path);
            at.at("write_to").given(&[&of]).problem(message);
        }
    }
    for gate in intercepting() {
        let patterns = gate.hosts.iter().flat_map(|hosts| &hosts.patterns);
        let wide = |pattern: &&HostPattern| match pattern {
            HostPattern::Labels(text) => {
                CUSTOMERS.iter().any(|end| text.strip_suffix(end).is_some_and(|rest| rest.ends_with("*.")))
            }
            HostPattern::Set(_) => false,
        };
        for pattern in patterns.filter(wide) {
            root.at("gates").at(&gate.name).at("hosts").warn(format!(
                "has {pattern} with intercept = true: it matches hosts that customers run (an EKS cluster, a database), whose certificates the gate may not trust; expected a set such as \"@aws\", without such hosts"
            ));
        }
    }
}

/// The default folder of the files for clients, on the volume shared by a pod's containers.
const WRITE_TO: &str = "/run/tidegate/egress";
/// Domains with hosts named by a provider's customers, some with certificates of their own.
const CUSTOMERS: [&str; 3] = ["amazonaws.com", "googleapis.com", "windows.net"];
