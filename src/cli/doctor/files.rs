//! Checks that the folders in the configuration can be written.

use std::collections::HashSet;
use std::path::Path;
use std::{fs, io};

use super::Finding;
use crate::app::control_socket;
use crate::spec::Settings;

/// Checks that tidegate can write to every folder in the configuration. A folder named several
/// times is checked once.
pub(super) fn findings(settings: &Settings) -> Vec<Finding> {
    let mut folders: Vec<(&Path, String)> = Vec::new();
    for gate in settings.gates.values() {
        if let Some(folder) = gate.folder() {
            let volume = "mount a volume there that this user can write, and the controller's container too";
            folders.push((folder, format!("{volume}; or change gates.{}.tls.write_to", gate.name)));
        }
    }
    let given: Vec<_> = folders.iter().map(|(folder, _)| *folder).collect();
    // The user's own folder is made when it is needed.
    let socket = control_socket::places(settings).into_iter().find(|place| !place.is_private).map(|place| place.path);
    let files = [
        (socket.as_deref(), "make the folder of admin.socket writable for this user, or set it to \"off\""),
        (settings.log.calls.as_deref(), "make the folder of log.calls writable for this user"),
    ];
    folders.extend(files.into_iter().filter_map(|(file, remedy)| Some((file?.parent()?, remedy.to_owned()))));
    let mut seen = HashSet::new();
    folders.retain(|(folder, _)| seen.insert(*folder));
    let permissions = folders.into_iter().map(|(folder, remedy)| match writable(folder) {
        Ok(()) => Finding::fine("permissions", format!("{} can be written", folder.display())),
        Err(error) => Finding::wrong("permissions", format!("{} cannot be written: {error}", folder.display()), remedy),
    });
    permissions.chain(given.into_iter().filter_map(written)).collect()
}

/// Writes a test file, which also reveals read-only mounts and full disks.
fn writable(folder: &Path) -> io::Result<()> {
    let probe = folder.join(format!(".tidegate-doctor-{}", std::process::id()));
    fs::OpenOptions::new().write(true).create_new(true).open(&probe)?;
    fs::remove_file(&probe)
}

/// Checks the folder into which the gate writes the controller's kubeconfig.
fn written(folder: &Path) -> Option<Finding> {
    let path = folder.join("kubeconfig");
    let advice = "the gate writes it when it starts; is it running, and is this its volume?";
    let says = |error| format!("{} cannot be read: {error}", path.display());
    fs::read(&path).err().map(|error| Finding::wrong("controller", says(error), advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn a_folder_that_two_things_are_written_to_is_told_of_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().display();
        let text = format!(
            "admin.socket = \"{at}/control.sock\"\n[log]\ncalls = \"{at}/calls\"\n\
             [gates.k]\nupstream = \"in_cluster\"\nlisten = \"127.0.0.1:1\"\ntls = {{ mode = \"self_signed\", write_to = \"{at}\" }}\n"
        );
        let loaded = config::load_text("test".to_owned(), text, &[]).expect("it is right");
        let found = findings(&loaded.settings);
        let about: Vec<_> = found.iter().map(|finding| finding.about.as_str()).collect();
        assert_eq!(about, ["permissions", "controller"], "{found:?}");
    }
}
