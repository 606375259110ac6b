//! Whether files can be written where the configuration wants them.

use std::{fs, io, path::Path};

use super::Finding;
use crate::{cli::operations, config::settings::Settings};

/// Every folder that is written to.
pub(super) fn findings(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    for gate in settings.gates.values() {
        if let Some(folder) = gate.tls.as_ref().and_then(|tls| tls.write_to.as_ref()) {
            let remedy = format!(
                "mount a volume there that this user can write, and the controller's container too; or change gates.{}.tls.write_to",
                gate.name
            );
            findings.push(folder_finding("permissions", folder, &remedy));
            findings.extend(written(folder));
        }
    }
    if let Some(folder) = operations::socket(settings).as_deref().and_then(Path::parent) {
        findings.push(folder_finding(
            "permissions",
            folder,
            "make the folder of admin.socket writable for this user, or set it to \"off\"",
        ));
    }
    if let Some(folder) = settings.log.calls.as_deref().and_then(Path::parent) {
        findings.push(folder_finding("permissions", folder, "make the folder of log.calls writable for this user"));
    }
    findings
}

fn folder_finding(about: &str, folder: &Path, remedy: &str) -> Finding {
    match writable(folder) {
        Ok(()) => Finding::fine(about, &format!("{} can be written", folder.display())),
        Err(error) => Finding::wrong(about, &format!("{} cannot be written: {error}", folder.display()), remedy),
    }
}

/// Tries it: permissions, read-only mounts and full disks all show.
fn writable(folder: &Path) -> io::Result<()> {
    let probe = folder.join(format!(".tidegate-doctor-{}", std::process::id()));
    fs::OpenOptions::new().write(true).create_new(true).open(&probe)?;
    fs::remove_file(&probe)
}

/// Whether the controller finds there what it needs.
fn written(folder: &Path) -> Option<Finding> {
    let path = folder.join("kubeconfig");
    fs::read(&path).err().map(|error| {
        Finding::wrong(
            "controller",
            &format!("{} cannot be read: {error}", path.display()),
            "the gate writes it when it starts; is it running, and is this its volume?",
        )
    })
}
