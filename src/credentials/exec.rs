//! Exec plugins of a kubeconfig, as client-go runs them: a program prints an `ExecCredential` with a token, a client certificate, or both.
//!
//! One run at a time, in a task of its own. It is refreshed in the background before it ends; calls wait only where there is nothing that
//! could be used: at first, past its end, or after the upstream has answered 401 to it. A plugin that fails is asked again after 1 s,
//! doubling to a minute, and a credential that still holds is kept meanwhile.

mod plugin;

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use self::plugin::Given;
pub(super) use self::plugin::Plugin;
use crate::{
    clock::Clock,
    moment::Moment,
    tls::{self, TlsError},
};

/// Credentials of the gate's own that cannot be had. Shows no credential.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The program is not there.
    #[error("the exec plugin `{command}` is not installed, or not in PATH{hint}")]
    NotInstalled {
        /// Which.
        command: String,
        /// What the kubeconfig says to do about it, after a colon.
        hint: String,
    },
    /// The program cannot be run.
    #[error("the exec plugin `{command}` cannot be run: {source}")]
    NotRun {
        /// Which.
        command: String,
        /// Why.
        source: std::io::Error,
    },
    /// It failed.
    #[error("the exec plugin `{command}` failed, {status}{said}")]
    Failed {
        /// Which.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The last line of its standard error, after a colon.
        said: String,
    },
    /// It takes too long.
    #[error("the exec plugin `{command}` was ended: it had not answered after {after:?}")]
    TooSlow {
        /// Which.
        command: String,
        /// How long it had.
        after: Duration,
    },
    /// Its answer cannot be used. The answer is not shown.
    #[error("the exec plugin `{command}` did not print what it should: {what}")]
    Answer {
        /// Which.
        command: String,
        /// What was expected.
        what: &'static str,
    },
    /// Its client certificate cannot be used.
    #[error("the client certificate of the exec plugin cannot be used: {0}")]
    Certificate(#[from] TlsError),
}

/// A plugin and what it gave last.
pub(super) struct Exec {
    plugin: Plugin,
    /// Where its client certificates are to be shown.
    client: OnceLock<Arc<tls::Client>>,
    state: Mutex<State>,
    /// Ticks when a run has ended.
    ended: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    held: Option<Held>,
    running: bool,
    /// The upstream refused what is held.
    refused: bool,
    /// How often in a row a fresh credential was refused.
    refusals: u32,
    failure: Option<Failure>,
}

/// What the plugin gave.
struct Held {
    token: Option<String>,
    since: Moment,
    /// `None`: until it is refused.
    ends: Option<Moment>,
    refresh_at: Moment,
    number: u64,
}

/// The last run failed.
struct Failure {
    error: Arc<CredentialError>,
    times: u32,
    again_at: Moment,
}

/// What a call that needs the credential finds.
enum Found {
    Usable,
    /// A run that may bring one.
    Awaited,
    Failed(Arc<CredentialError>),
}

// === impl Exec ===

impl Exec {
    pub(super) fn new(plugin: Plugin) -> Self {
        Self { plugin, client: OnceLock::new(), state: Mutex::default(), ended: watch::Sender::new(()) }
    }

    /// Client certificates that the plugin gives are shown by this one.
    pub(super) fn shows_on(&self, client: &Arc<tls::Client>) {
        // the first stays: one gate has one upstream
        self.client.get_or_init(|| Arc::clone(client));
    }

    /// Returns when there is a credential to use.
    pub(super) async fn ready(self: &Arc<Self>, clock: Clock) -> Result<(), Arc<CredentialError>> {
        let mut ended = self.ended.subscribe();
        loop {
            match self.look(clock) {
                Found::Usable => return Ok(()),
                Found::Failed(error) => return Err(error),
                // its sender lives as long as we do
                Found::Awaited => drop(ended.changed().await),
            }
        }
    }

    /// The token, and a number that tells which one it was.
    pub(super) fn token(&self) -> (Option<String>, u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.held.as_ref().map_or((None, 0), |held| (held.token.clone(), held.number))
    }

    /// The upstream answered 401 to the credential of that number.
    pub(super) fn refused(self: &Arc<Self>, number: u64, clock: Clock) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { held: Some(held), refusals, refused, .. } = &mut *state else { return };
        // What answers 401 to everybody must not have the plugin run at every call.
        let age = clock.now().since(held.since);
        if held.number != number || *refused || age < AFTER_REFUSAL * (2_u32.pow(*refusals) - 1) {
            return;
        }
        *refusals = if age < CALM { (*refusals + 1).min(MOST_REFUSALS) } else { 0 };
        *refused = true;
        drop(state);
        self.look(clock);
    }

    /// What there is now; starts a run where one is due.
    fn look(self: &Arc<Self>, clock: Clock) -> Found {
        let now = clock.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let holds = state.held.as_ref().is_some_and(|held| held.ends.is_none_or(|ends| now < ends));
        let is_due = !holds || state.refused || state.held.as_ref().is_some_and(|held| now >= held.refresh_at);
        let may_run = state.failure.as_ref().is_none_or(|failure| now >= failure.again_at);
        if is_due && may_run && !state.running {
            state.running = true;
            let exec = Arc::clone(self);
            tokio::spawn(async move { exec.run(clock).await });
        }
        match &state.failure {
            _ if holds && !state.refused => Found::Usable,
            _ if state.running => Found::Awaited,
            _ if holds => Found::Usable, // refused, but the plugin has nothing better
            Some(failure) => Found::Failed(Arc::clone(&failure.error)),
            None => Found::Awaited,
        }
    }

    async fn run(self: Arc<Self>, clock: Clock) {
        let given = self.plugin.ask(clock).await.and_then(|given| self.take(given));
        let now = clock.now();
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.running = false;
            match given {
                Ok((token, life)) => {
                    let number = state.held.as_ref().map_or(1, |held| held.number + 1);
                    let refresh_at = life.map_or(Moment::MAX, |life| now + life.saturating_sub(AHEAD.min(life / 5)));
                    state.held =
                        Some(Held { token, since: now, ends: life.map(|life| now + life), refresh_at, number });
                    state.refused = false;
                    if state.failure.take().is_some() {
                        tracing::info!(plugin = self.plugin.command(), "the exec plugin gives credentials again");
                    }
                }
                Err(error) => {
                    let times = state.failure.as_ref().map_or(0, |failure| failure.times);
                    if times == 0 {
                        tracing::warn!(%error, "the gate's own credentials cannot be renewed");
                    }
                    let pause = (FIRST_PAUSE * 2_u32.pow(times.min(10))).min(LONGEST_PAUSE);
                    let (error, times) = (Arc::new(error), times + 1);
                    state.failure = Some(Failure { error, times, again_at: now + pause });
                }
            }
        }
        self.ended.send_replace(());
    }

    /// Puts the certificate where it is shown; token and remaining life.
    fn take(&self, given: Given) -> Result<(Option<String>, Option<Duration>), CredentialError> {
        if let Some(client) = self.client.get() {
            client.show(given.identity)?;
        }
        Ok((given.token, given.life))
    }
}

impl fmt::Debug for Exec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "*** of the exec plugin {}", self.plugin.command())
    }
}

/// How long before its end a credential is renewed, if that is not a greater part of its life than a fifth.
const AHEAD: Duration = Duration::from_secs(300);
/// The first 401 has the plugin run at once; if that does not help, the next credential must be this old, the one after it three times, and
/// so on.
const AFTER_REFUSAL: Duration = Duration::from_secs(2);
const MOST_REFUSALS: u32 = 7;
/// A credential that served this long was good.
const CALM: Duration = Duration::from_secs(600);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
