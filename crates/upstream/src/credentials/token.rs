//! A secret: a fixed text, the content of a file, or what an exec plugin or password command prints.
//!
//! A file is read again every 30 s, and at once after a 401. If a read fails, the last good content
//! stays in use. The content must be one line of at most 64 KiB, because it is sent in a header.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::HeaderValue;

use super::CredentialsError;
use super::exec::{Exec, ExecPluginError, Plugin, PluginOutput};
use crate::clock::Clock;
use crate::lock;
use crate::moment::Moment;

/// A secret. `Debug` does not show it.
#[derive(Clone, derive_more::Debug)]
#[debug("{_0:?}")]
pub struct Secret(SecretKind);

#[derive(Clone, derive_more::Debug)]
enum SecretKind {
    #[debug("***")]
    Fixed(String),
    #[debug("*** of {}", _0.path.display())]
    File(Arc<TokenFile>),
    #[debug("{_0:?}")]
    Exec(Arc<Exec>),
}

/// A file containing a secret.
struct TokenFile {
    path: PathBuf,
    state: Mutex<TokenState>,
}

#[derive(Default)]
struct TokenState {
    content: String,
    read_at: Moment,
    /// The time of the last successful read.
    good_at: Moment,
    /// Set if the upstream refused the current content.
    refused: bool,
    /// Set while the file cannot be read, so that this is logged once.
    failing: bool,
}

impl Secret {
    /// Creates a fixed secret; `from` names its source in errors.
    ///
    /// # Errors
    /// The text is empty, too long, or contains control characters.
    pub fn fixed(text: &str, from: &str) -> Result<Self, CredentialsError> {
        check(text, from).map(|text| Self(SecretKind::Fixed(text)))
    }

    /// Creates a secret from a file, and follows changes of its content.
    ///
    /// # Errors
    /// The file cannot be read now, or does not contain a valid secret.
    pub fn file(path: &Path) -> Result<Self, CredentialsError> {
        let state = TokenState { content: read(path)?, ..TokenState::default() };
        Ok(Self(SecretKind::File(Arc::new(TokenFile { path: path.to_owned(), state: Mutex::new(state) }))))
    }

    /// Creates a secret from an exec plugin.
    pub(super) const fn exec(exec: Arc<Exec>) -> Self {
        Self(SecretKind::Exec(exec))
    }

    /// Creates a secret from a program that prints it as text, and runs it again at this interval.
    pub fn command(words: &[String], refresh: Duration) -> Self {
        let mut words = words.iter().cloned();
        let output = PluginOutput::Password { refresh };
        let command = words.next().unwrap_or_default();
        let plugin = Plugin { output, command, args: words.collect(), env: Vec::new(), install_hint: String::new() };
        Self::exec(Arc::new(Exec::new(plugin)))
    }

    /// Waits until there is a secret. This takes time only with a plugin. An exempt call waits only
    /// at the start, for the first credential.
    ///
    /// # Errors
    /// The plugin failed.
    pub async fn ready(&self, is_exempt: bool, clock: Clock) -> Result<(), Arc<ExecPluginError>> {
        let SecretKind::Exec(exec) = &self.0 else { return Ok(()) };
        exec.ready(is_exempt, clock).await
    }

    /// Returns a header value, `prefix` followed by the secret, and the secret's version number.
    ///
    /// The value is marked as sensitive. It is `None` for a plugin with only a client certificate.
    pub(super) fn header(&self, prefix: &str, now: Moment) -> (Option<HeaderValue>, u64) {
        let (text, number) = match &self.0 {
            SecretKind::Exec(exec) => exec.token(),
            SecretKind::Fixed(_) | SecretKind::File(_) => (self.reveal(now), 0),
        };
        let mut value = text.and_then(|text| HeaderValue::try_from(format!("{prefix}{text}")).ok());
        if let Some(value) = &mut value {
            value.set_sensitive(true);
        }
        (value, number)
    }

    /// Returns the secret as text, that of a plugin too.
    pub fn text(&self, now: Moment) -> Option<String> {
        if let SecretKind::Exec(exec) = &self.0 { exec.token().0 } else { self.reveal(now) }
    }

    /// Returns the version number of the secret.
    pub fn number(&self) -> u64 {
        if let SecretKind::Exec(exec) = &self.0 { exec.token().1 } else { 0 }
    }

    /// Renews the secret of a plugin if that is due, though nobody asks for it.
    pub fn keep_fresh(&self, clock: Clock) {
        if let SecretKind::Exec(exec) = &self.0 {
            exec.keep_fresh(clock);
        }
    }

    /// Records that the upstream refused this version of the secret, to read it again before its
    /// next use.
    pub fn refused(&self, number: u64, clock: Clock) {
        match &self.0 {
            SecretKind::Fixed(_) => {}
            SecretKind::File(file) => lock(&file.state).refused = true,
            SecretKind::Exec(exec) => exec.refused(number, clock),
        }
    }

    /// Returns the time since the file was last read successfully; `None` without a file. First
    /// reads the file again if that is due.
    pub(super) fn age(&self, now: Moment) -> Option<Duration> {
        let SecretKind::File(file) = &self.0 else { return None };
        Some(now.since(file.current(now).good_at))
    }

    /// Returns the secret as text, to be written to the controller's folder; `None` for a plugin.
    pub fn reveal(&self, now: Moment) -> Option<String> {
        match &self.0 {
            SecretKind::Fixed(text) => Some(text.clone()),
            SecretKind::File(file) => Some(file.current(now).content.clone()),
            SecretKind::Exec(_) => None,
        }
    }
}

impl TokenFile {
    /// Returns the last good content of the file. First reads the file again if that is due.
    fn current(&self, now: Moment) -> MutexGuard<'_, TokenState> {
        let mut state = lock(&self.state);
        let age = now.since(state.read_at);
        if age >= READ_EVERY || (state.refused && age >= AFTER_REFUSAL) {
            match read(&self.path) {
                Ok(content) => *state = TokenState { content, read_at: now, good_at: now, ..TokenState::default() },
                Err(error) => {
                    (state.read_at, state.refused) = (now, false);
                    if !std::mem::replace(&mut state.failing, true) {
                        tracing::warn!(%error, "cannot read the token file: the last good token stays in use");
                    }
                }
            }
        }
        state
    }
}

fn read(path: &Path) -> Result<String, CredentialsError> {
    let unreadable = |error| CredentialsError::UnreadableToken(path.to_owned(), error);
    let unusable = |what| CredentialsError::InvalidToken(path.display().to_string(), what);
    let file = File::open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(unusable("it is not a regular file"));
    }
    let mut content = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut content).map_err(unreadable)?;
    let text = std::str::from_utf8(&content).map_err(|_| unusable("it is not text"))?;
    check(text, &path.display().to_string())
}

fn check(text: &str, from: &str) -> Result<String, CredentialsError> {
    let trimmed = text.trim();
    let problems = [
        (text.len() as u64 > LONGEST, "it is longer than 64 KiB"),
        (trimmed.is_empty(), "it is empty"),
        (trimmed.chars().any(char::is_control), "it holds a line break or another control character"),
        (!trimmed.is_ascii(), "it holds characters outside ASCII"),
    ];
    match problems.into_iter().find(|(is_so, _)| *is_so) {
        Some((_, what)) => Err(CredentialsError::InvalidToken(from.to_owned(), what)),
        None => Ok(trimmed.to_owned()),
    }
}

/// The time between two reads of the file. A new token is so used well within a minute; kubelet
/// rotates tokens at 80% of their life.
const READ_EVERY: Duration = Duration::from_secs(30);
/// The shortest time between two reads of the file after refusals: refused calls may be frequent.
const AFTER_REFUSAL: Duration = Duration::from_millis(100);
/// The longest secret in bytes; real tokens are a few KiB.
const LONGEST: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn value(secret: &Secret, now: Moment) -> String {
        let value = secret.header("Bearer ", now).0.expect("a header");
        assert!(value.is_sensitive());
        value.to_str().expect("ASCII").to_owned()
    }

    #[test]
    fn a_rotated_token_is_used_within_a_minute_and_at_once_after_a_401() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        fs::write(&path, "one\n").expect("written");
        let secret = Secret::file(&path).expect("a token");
        let mut now = Moment::from_millis(1_000);
        assert_eq!(value(&secret, now), "Bearer one");
        fs::write(&path, "two").expect("written");
        assert_eq!(value(&secret, now), "Bearer one");
        secret.refused(0, Clock::start());
        assert_eq!(value(&secret, now), "Bearer two");
        fs::write(&path, "three").expect("written");
        now += Duration::from_secs(30);
        assert_eq!(value(&secret, now), "Bearer three");
    }

    #[test]
    fn the_last_good_token_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        fs::write(&path, "good").expect("written");
        let secret = Secret::file(&path).expect("a token");
        let mut now = Moment::ZERO;
        for bad in ["", "a\nX-Evil: 1", "  \n "] {
            fs::write(&path, bad).expect("written");
            now += Duration::from_secs(61);
            assert_eq!(value(&secret, now), "Bearer good");
        }
        fs::remove_file(&path).expect("removed");
        now += Duration::from_secs(61);
        assert_eq!(value(&secret, now), "Bearer good");
        assert_eq!(secret.age(now), Some(Duration::from_secs(4 * 61)));
        fs::write(&path, "better").expect("written");
        now += Duration::from_secs(61);
        assert_eq!(secret.age(now), Some(Duration::ZERO));
        assert_eq!(Secret::fixed("x", "here").expect("a token").age(now), None);
    }

    #[test]
    fn what_is_no_token_is_refused_without_being_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        for bad in
            ["hunter2\nX: y".to_owned(), "hunter2\u{0}".to_owned(), "h".repeat((64 << 10) + 1), "hünter2".to_owned()]
        {
            fs::write(&path, &bad).expect("written");
            let error = Secret::file(&path).expect_err("no token").to_string();
            assert!(!error.contains("hunter2") && error.contains("token"), "{error}");
        }
        assert!(Secret::file(folder.path()).is_err());
        let secret = Secret::fixed("hunter2", "here").expect("a token");
        assert_eq!(format!("{secret:?}"), "***");
    }
}
