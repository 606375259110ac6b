//! Checks the egress listener, and the files by which clients trust its CA.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::{Finding, connections, upstream};
use crate::app::egress::judge;
use crate::clock::Clock;
use crate::credentials::Environment;
use crate::spec::{Egress, Settings};
use crate::status::Status;
use crate::tls;

/// Checks the egress listener and its clients, if there is one.
pub(super) async fn findings(
    settings: &Settings,
    status: Option<&Status>,
    around: &Environment,
    clock: Clock,
) -> Vec<Finding> {
    let Some(egress) = &settings.egress else { return Vec::new() };
    let mut findings = vec![listener(egress).await];
    findings.extend(clients(egress, around, clock).await);
    if !settings.intercepted_names().is_empty() {
        let in_use = status.and_then(|status| status.egress.as_ref()).map_or("", |egress| egress.ca.as_str());
        findings.extend(trust(&egress.ca.write_to, in_use));
    }
    for gate in settings.gates.values() {
        findings.extend(connections::past_hosts(gate, egress, status).await);
    }
    findings
}

/// Checks that the tokens of the listener's clients can be reviewed.
async fn clients(egress: &Egress, around: &Environment, clock: Clock) -> Vec<Finding> {
    let Some(clients) = &egress.clients else { return Vec::new() };
    let mut warnings = Vec::new();
    let finding = match judge(clients, around, clock, &mut warnings) {
        Ok(judge) => upstream::reviews("egress", &judge).await,
        Err(trouble) => Some(Finding::of_trouble("clients of egress", trouble, "egress")),
    };
    warnings.into_iter().map(|warning| Finding::note("clients of egress", warning, "")).chain(finding).collect()
}

async fn listener(egress: &Egress) -> Finding {
    match &egress.listen {
        Some(listen) => Finding::of_listener("egress", listen, "egress.listen").await,
        None => Finding::fine("egress", "clients come by the names of hosts alone"),
    }
}

/// Checks the files by which clients trust the egress CA. `in_use` is the fingerprint of the CA
/// that the running process uses.
fn trust(folder: &Path, in_use: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let read = |name: &str| {
        let path = folder.join(name);
        let is_public = fs::metadata(&path).is_ok_and(|found| found.permissions().mode() & 0o004 != 0);
        fs::read(&path).ok().map(|content| (content, is_public))
    };
    let ca = read("ca.crt").and_then(|(content, _)| tls::first_certificate(&content));
    if ca.as_ref().is_some_and(|ca| !in_use.is_empty() && tls::fingerprint(ca) != in_use) {
        let says = format!("{} is not the CA of the gate that runs", folder.join("ca.crt").display());
        let remedy = "leave the folder to one gate; start that again, and then the containers that mount it";
        findings.push(Finding::wrong("egress", says, remedy));
    }
    for name in ["ca.crt", "bundle.crt", "certs/0fd89f02.0", "trust.jks"] {
        let path = folder.join(name);
        let (says, advice) = match read(name) {
            None => ("is not there", "start tidegate run, mount its folder, and check egress.ca.write_to"),
            Some((_, false)) => ("cannot be read by other users", "leave its mode to the gate (0644)"),
            Some((content, true)) if ca.as_ref().is_none_or(|ca| !tls::holds(&content, ca)) => {
                ("has another CA than ca.crt", "leave the folder to one gate")
            }
            Some(_) => continue,
        };
        findings.push(Finding::wrong("egress", format!("{} {says}", path.display()), advice));
    }
    if findings.is_empty() {
        let says = format!("the files by which clients trust its CA are in {}", folder.display());
        findings.push(Finding::fine("egress", says));
    }
    findings
}
