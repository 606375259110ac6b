//! One secret: a fixed one, a file that is rotated under us, or what an exec plugin gives.
//!
//! A file is read again every 30 s, and at once after the upstream has answered 401; the last good content is kept when a read
//! fails. What is read must be one line of at most 64 KiB: a line break inside would end the header it goes into.

use std::{
    fmt,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::HeaderValue;

use super::exec::{CredentialError, Exec};
use crate::{clock::Clock, moment::Moment};

/// A secret. Shows nothing of itself.
#[derive(Clone)]
pub struct Secret(Kind);

#[derive(Clone)]
enum Kind {
    Fixed(String),
    File(Arc<TokenFile>),
    Exec(Arc<Exec>),
}

/// A file with a secret.
struct TokenFile {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    content: String,
    read_at: Moment,
    /// When `content` was read.
    good_at: Moment,
    /// The upstream refused what was read.
    refused: bool,
    /// The last read failed, and it has been said.
    failing: bool,
}

/// A secret that cannot be used. Its content is not shown.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token file {path}: {source}", path = path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no secret that can be sent.
    #[error("{from} is no token: {what}")]
    Unusable {
        /// Which.
        from: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl Secret {
    /// A secret that does not change; `from` names it in errors.
    ///
    /// # Errors
    /// It is empty, too long, or holds control characters.
    pub fn fixed(text: &str, from: &str) -> Result<Self, TokenError> {
        check(text).map(|text| Self(Kind::Fixed(text))).map_err(|what| unusable(from, what))
    }

    /// The content of a file, followed as it changes.
    ///
    /// # Errors
    /// It cannot be read now, or is no secret.
    pub fn file(path: &Path) -> Result<Self, TokenError> {
        let content = read(path)?;
        let state = State { content, read_at: Moment::ZERO, good_at: Moment::ZERO, refused: false, failing: false };
        Ok(Self(Kind::File(Arc::new(TokenFile { path: path.to_owned(), state: Mutex::new(state) }))))
    }

    /// What a plugin gives.
    pub(super) const fn exec(exec: Arc<Exec>) -> Self {
        Self(Kind::Exec(exec))
    }

    /// Returns when there is something to send: only a plugin is ever waited for.
    ///
    /// # Errors
    /// The plugin fails.
    pub(super) async fn ready(&self, clock: Clock) -> Result<(), Arc<CredentialError>> {
        match &self.0 {
            Kind::Fixed(_) | Kind::File(_) => Ok(()),
            Kind::Exec(exec) => exec.ready(clock).await,
        }
    }

    /// The secret behind `prefix`, as a header value that no library logs, and a number that tells it from those before and after. A plugin
    /// may give a client certificate and nothing to go into a header.
    pub(super) fn header(&self, prefix: &str, now: Moment) -> (Option<HeaderValue>, u64) {
        let (text, number) = match &self.0 {
            Kind::Fixed(text) => (Some(text.clone()), 0),
            Kind::File(file) => (Some(file.current(now)), 0),
            Kind::Exec(exec) => exec.token(),
        };
        let mut value = text.and_then(|text| HeaderValue::try_from(format!("{prefix}{text}")).ok());
        if let Some(value) = &mut value {
            value.set_sensitive(true);
        }
        (value, number)
    }

    /// The upstream refused the one with this number: it is read anew before its next use.
    pub(super) fn refused(&self, number: u64, clock: Clock) {
        match &self.0 {
            Kind::Fixed(_) => {}
            Kind::File(file) => file.state.lock().unwrap_or_else(PoisonError::into_inner).refused = true,
            Kind::Exec(exec) => exec.refused(number, clock),
        }
    }

    /// How long ago its file was last read well; `None` for what has no file. Reads it when it is time to.
    pub(super) fn age(&self, now: Moment) -> Option<Duration> {
        let Kind::File(file) = &self.0 else { return None };
        file.current(now);
        Some(now.since(file.state.lock().unwrap_or_else(PoisonError::into_inner).good_at))
    }

    /// Its text, to be written where the controller reads it; a plugin's is not for that.
    #[must_use]
    pub fn reveal(&self, now: Moment) -> Option<String> {
        match &self.0 {
            Kind::Fixed(text) => Some(text.clone()),
            Kind::File(file) => Some(file.current(now)),
            Kind::Exec(_) => None,
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Fixed(_) => f.write_str("***"),
            Kind::File(file) => write!(f, "*** of {}", file.path.display()),
            Kind::Exec(exec) => exec.fmt(f),
        }
    }
}

impl TokenFile {
    fn current(&self, now: Moment) -> String {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let age = now.since(state.read_at);
        if age >= READ_EVERY || (state.refused && age >= AFTER_REFUSAL) {
            state.read_at = now;
            state.refused = false;
            match read(&self.path) {
                Ok(content) => {
                    state.content = content;
                    state.good_at = now;
                    state.failing = false;
                }
                Err(error) => {
                    if !std::mem::replace(&mut state.failing, true) {
                        tracing::warn!(%error, "the last good token is kept");
                    }
                }
            }
        }
        state.content.clone()
    }
}

fn read(path: &Path) -> Result<String, TokenError> {
    let unreadable = |source| TokenError::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(unusable(&path.display().to_string(), "it is not a regular file"));
    }
    let mut content = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut content).map_err(unreadable)?;
    let text = std::str::from_utf8(&content).map_err(|_| unusable(&path.display().to_string(), "it is not text"))?;
    check(text).map_err(|what| unusable(&path.display().to_string(), what))
}

fn check(text: &str) -> Result<String, &'static str> {
    if text.len() as u64 > LONGEST {
        return Err("it is longer than 64 KiB");
    }
    let text = text.trim();
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.chars().any(|c| c.is_control()) {
        return Err("it holds a line break or another control character");
    }
    if !text.is_ascii() {
        return Err("it holds characters outside ASCII");
    }
    Ok(text.to_owned())
}

fn unusable(from: &str, what: &'static str) -> TokenError {
    TokenError::Unusable { from: from.to_owned(), what }
}

/// So that what is new is used well within a minute; kubelet rotates at 80% of a token's life.
const READ_EVERY: Duration = Duration::from_secs(30);
/// A client that is always refused must not have the file read at every call.
const AFTER_REFUSAL: Duration = Duration::from_millis(100);
/// Real tokens are a few KiB.
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
