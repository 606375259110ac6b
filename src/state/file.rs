//! The state file: read once at the start, and always replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::format::{self, MARK};
use super::{ProcessState, StateError};

/// Reads a state; `None` if there is no file. The file must be a regular one that only this user
/// can read and write.
///
/// # Errors
/// The file cannot be used.
pub fn read(path: &Path) -> Result<Option<ProcessState>, StateError> {
    let listed = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        listed => listed?,
    };
    if !listed.is_file() {
        return Err(StateError::Unsafe); // a pipe would not even be opened
    }
    let file = File::open(path)?;
    let found = file.metadata()?;
    let is_what_was_listed = (listed.dev(), listed.ino()) == (found.dev(), found.ino());
    let is_own = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    if !is_what_was_listed || !is_own {
        return Err(StateError::Unsafe);
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(StateError::TooLarge);
    }
    format::decode(&bytes).map(Some)
}

/// Returns true if a state may be written at a path: there is no file, or it is a state file (even
/// a broken one, or one of another version). Any other file must not be overwritten.
pub fn is_free(path: &Path) -> bool {
    match fs::metadata(path) {
        Err(_) => fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound),
        Ok(found) if !found.is_file() => false,
        Ok(_) => {
            let mut head = Vec::new();
            let read = File::open(path).and_then(|file| file.take(MARK.len() as u64).read_to_end(&mut head));
            read.is_ok() && (head.starts_with(MARK) || MARK.starts_with(&head))
        }
    }
}

/// Writes a state into a new file, and moves that to the path. With `is_synced`, the state survives
/// a loss of power.
///
/// # Errors
/// It cannot be written. The file at the path is unchanged.
pub fn write(path: &Path, state: &ProcessState, is_synced: bool) -> Result<(), StateError> {
    let bytes = format::encode(state)?;
    let beside = beside(path);
    let written = write_beside(&beside, &bytes, is_synced).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        fs::remove_file(&beside).ok(); // no half of a file on a full disk
    }
    Ok(written?)
}

fn write_beside(path: &Path, bytes: &[u8], is_synced: bool) -> io::Result<()> {
    // Always a new file: a link that others have put there is not followed.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    if is_synced { file.sync_all() } else { Ok(()) }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

/// The largest state file to read. That of ten full gates is smaller.
const LARGEST: u64 = 16 << 20;
