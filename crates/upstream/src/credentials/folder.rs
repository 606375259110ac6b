//! The folder of files for the controller: `ca.crt`, `token`, `namespace` and `kubeconfig`.
//!
//! Both containers mount it. (The text of a kubeconfig can also be made alone.) The folder also has
//! `ca.key`, readable only by the gate (0600). A gate that restarts in the same pod uses the CA and
//! the token of its predecessor. Otherwise the controller, which reads its kubeconfig once, would
//! trust no gate until it restarts too.
//!
//! Each file is written under another name and then renamed, so that a reader sees the old file or
//! the new one. All are readable to everyone in the pod (0644), the token too, as kubelet's own
//! are. The controller usually runs as another user than the gate, and no other pod can mount the
//! volume. Without such a volume, the folder is created for the gate's own user only (0700).

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The files to write for the controller. A file of content `None` is left unchanged.
#[derive(Clone, derive_more::Debug)]
#[debug("Contents for {server:?}")]
pub struct Contents<'a> {
    /// The CA certificate for the controller to trust, as PEM.
    pub ca: &'a str,
    /// The CA's key as PEM, for a restart of this gate.
    pub ca_key: Option<&'a str>,
    /// The token the controller must send.
    pub token: Option<&'a str>,
    /// The namespace of the controller.
    pub namespace: Option<&'a str>,
    /// The gate's address, `https://host:port`; if `None`, no kubeconfig is written.
    pub server: Option<&'a str>,
}

/// The folder could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {error}; is the volume mounted, and writable for this user?", path = path.display())]
pub struct FolderError {
    path: PathBuf,
    error: io::Error,
}

/// Writes the files, and creates the folder if necessary.
///
/// # Errors
/// Names the file that could not be written.
pub fn write(folder: &Path, contents: &Contents<'_>) -> Result<(), FolderError> {
    make(folder, FOLDER_MODE)?;
    let token = folder.join(TOKEN);
    let token_file = contents.token.is_some().then_some(&*token);
    let kubeconfig =
        contents.server.map(|server| kubeconfig(server, Some(contents.ca), contents.namespace, token_file));
    for (name, content, mode) in [
        (CA_KEY, contents.ca_key, MODE_OF_KEYS),
        ("ca.crt", Some(contents.ca), MODE),
        (TOKEN, contents.token, MODE),
        ("namespace", contents.namespace, MODE),
        ("kubeconfig", kubeconfig.as_deref(), MODE),
    ] {
        if let Some(content) = content {
            replace(folder, name, content.as_bytes(), mode)?;
        }
    }
    Ok(())
}

/// Writes world-readable files, and creates the folder if necessary.
///
/// # Errors
/// Names the file that could not be written.
pub fn write_public(folder: &Path, files: &[(&str, &[u8])]) -> Result<(), FolderError> {
    make(folder, PUBLIC_FOLDER_MODE)?;
    files.iter().try_for_each(|(name, content)| replace(folder, name, content, MODE))
}

/// Stores the CA for decrypting TLS in the gate's own folder, to be used after a restart.
///
/// # Errors
/// The file could not be written.
pub fn keep_egress_ca(folder: &Path, kept: &str) -> Result<(), FolderError> {
    make(folder, FOLDER_MODE)?;
    replace(folder, EGRESS_CA, kept.as_bytes(), MODE_OF_KEYS)
}

/// Returns the CA for decrypting TLS as stored before a restart. `None` if other users could have
/// written or read its file.
pub fn left_egress_ca(folder: &Path) -> Option<String> {
    left(&folder.join(EGRESS_CA), 0o077)
}

/// Creates a folder with this mode, unless it exists.
fn make(folder: &Path, mode: u32) -> Result<(), FolderError> {
    let is_new = !folder.exists();
    let made = DirBuilder::new().recursive(true).mode(mode).create(folder);
    // the mode again, past the umask
    let set = || if is_new { fs::set_permissions(folder, Permissions::from_mode(mode)) } else { Ok(()) };
    made.and_then(|()| set()).map_err(|error| FolderError { path: folder.to_owned(), error })
}

/// Writes a file under a temporary name and renames it, so that readers never see a partial file.
fn replace(folder: &Path, name: &str, content: &[u8], mode: u32) -> Result<(), FolderError> {
    let path = folder.join(name);
    let beside = folder.join(format!(".{name}.new"));
    let written = write_beside(&beside, content, mode).and_then(|()| fs::rename(&beside, &path));
    written.map_err(|error| FolderError { path, error })
}

/// Returns the CA key as stored before a restart. `None` if other users could have written or read
/// its file.
pub fn left_ca_key(folder: &Path) -> Option<String> {
    left(&folder.join(CA_KEY), 0o077)
}

/// Returns the controller's token as stored before a restart. `None` if other users could have
/// written its file.
pub fn left_token(folder: &Path) -> Option<String> {
    left(&folder.join(TOKEN), 0o022)
}

/// Reads a small regular file of this user. `None` if other users have any permission in `mask`.
fn left(path: &Path, mask: u32) -> Option<String> {
    let own = fs::metadata("/proc/self").ok()?.uid();
    let listed = fs::symlink_metadata(path).ok()?;
    let file = fs::File::open(path).ok()?;
    let found = file.metadata().ok()?;
    let is_what_was_listed = (listed.dev(), listed.ino()) == (found.dev(), found.ino());
    if !is_what_was_listed || !found.is_file() || found.uid() != own || found.mode() & mask != 0 {
        return None;
    }
    let mut text = String::new();
    file.take(LARGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// A context of a kubeconfig, with a cluster of the same name.
#[derive(Clone, Debug)]
pub struct ContextEntry {
    /// The name.
    pub name: String,
    /// The URL of the cluster.
    pub server: String,
    /// The name of the user.
    pub user: String,
}

/// Returns a kubeconfig for a gate. If `token_file` is `None`, clients send no token, because the
/// gate uses its own credentials.
pub fn kubeconfig(server: &str, ca: Option<&str>, namespace: Option<&str>, token_file: Option<&Path>) -> String {
    let name = "tidegate".to_owned();
    let context = ContextEntry { user: name.clone(), server: server.to_owned(), name };
    let text = kubeconfig_of(&[context], ca, Some(token_file));
    let namespace = namespace.map_or_else(String::new, |name| format!("    namespace: {}\n", quoted(name)));
    text.replacen("kind: Config\n", "kind: Config\ncurrent-context: tidegate\n", 1) + &namespace
}

/// Returns a kubeconfig with these contexts. Their clusters have the same `ca`. The file has their
/// users if `token_file` is given: without a credential if that is `None`.
pub fn kubeconfig_of(contexts: &[ContextEntry], ca: Option<&str>, token_file: Option<Option<&Path>>) -> String {
    let ca = ca.map_or_else(String::new, |pem| format!("\n    certificate-authority-data: {}", STANDARD.encode(pem)));
    let mut text = "apiVersion: v1\nkind: Config\nclusters:\n".to_owned();
    for ContextEntry { name, server, .. } in contexts {
        text += &format!("- name: {}\n  cluster:\n    server: {}{ca}\n", scalar(name), quoted(server));
    }
    if let Some(token_file) = token_file {
        let credential = match token_file {
            None => " {}".to_owned(),
            Some(path) => format!("\n    tokenFile: {}", quoted(&path.display().to_string())),
        };
        let mut users: Vec<_> = contexts.iter().map(|context| context.user.as_str()).collect();
        users.dedup();
        text += "users:\n";
        users.iter().for_each(|user| text += &format!("- name: {}\n  user:{credential}\n", scalar(user)));
    }
    text += "contexts:\n";
    for ContextEntry { name, user, .. } in contexts {
        let name = scalar(name);
        text += &format!("- name: {name}\n  context:\n    cluster: {name}\n    user: {}\n", scalar(user));
    }
    text
}

/// Returns a name as a YAML scalar: in quotes, unless it is tidegate's own.
fn scalar(text: &str) -> String {
    if text == "tidegate" { text.to_owned() } else { quoted(text) }
}

/// Returns text as a quoted YAML scalar: JSON strings are valid YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn write_beside(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    // always a new file: what another container may have put there is not followed
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content)?;
    // the mode again, past the umask
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

/// The mode of files for the controller: readable to everyone in the pod.
const MODE: u32 = 0o644;
/// The mode of key files: readable to the gate's own user.
const MODE_OF_KEYS: u32 = 0o600;
const CA_KEY: &str = "ca.key";
/// The file of the egress CA: its key and certificates, in one file so that they always match.
const EGRESS_CA: &str = "egress-ca.pem";
const TOKEN: &str = "token";
/// The largest file to read; keys and tokens are smaller.
const LARGEST: u64 = 64 << 10;
/// The mode of a new folder. No other user needs it, because it is not a volume of a pod.
const FOLDER_MODE: u32 = 0o700;
/// The mode of a folder with world-readable files.
const PUBLIC_FOLDER_MODE: u32 = 0o755;
