//! Exec plugins of a kubeconfig, as client-go runs them: a program prints an `ExecCredential` with
//! a token, a client certificate, or both.
//!
//! One run at a time, in a task of its own. The credential is renewed in the background before it
//! ends; calls wait only where there is nothing to use: at first, past its end, or after the
//! upstream has answered 401 to it. A plugin that fails is asked again after 1 s, doubling to a
//! minute, and a credential that still holds is kept meanwhile.

mod plugin;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;

pub(super) use self::plugin::Plugin;
use self::plugin::PluginFailure;
use crate::clock::Clock;
use crate::moment::Moment;
use crate::tls;

/// The gate's own credentials cannot be had. Shows no credential.
#[derive(Debug, thiserror::Error)]
#[error("the exec plugin `{command}` {failure}")]
pub struct CredentialError {
    command: String,
    failure: PluginFailure,
}

/// A plugin and what it gave last.
#[derive(derive_more::Debug)]
#[debug("*** of the exec plugin {}", plugin.command)]
pub(super) struct Exec {
    plugin: Plugin,
    /// The client that shows its client certificates.
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
    /// The number of fresh credentials refused in a row.
    refusals: u32,
    failure: Option<Failure>,
}

/// A credential that the plugin gave.
struct Held {
    token: Option<String>,
    since: Moment,
    /// `None`: when it is refused.
    ends: Option<Moment>,
    refresh_at: Moment,
    number: u64,
}

/// The failure of the last run.
struct Failure {
    error: Arc<CredentialError>,
    times: u32,
    again_at: Moment,
}

// === impl Exec ===

impl Exec {
    pub(super) fn new(plugin: Plugin) -> Self {
        Self { plugin, client: OnceLock::new(), state: Mutex::default(), ended: watch::Sender::new(()) }
    }

    /// Names the client that shows the client certificates that the plugin gives.
    pub(super) fn shows_on(&self, client: &Arc<tls::Client>) {
        // the first stays: one gate has one upstream
        self.client.get_or_init(|| Arc::clone(client));
    }

    /// Returns when there is a credential to use.
    pub(super) async fn ready(self: &Arc<Self>, clock: Clock) -> Result<(), Arc<CredentialError>> {
        let mut ended = self.ended.subscribe();
        loop {
            match self.look(clock) {
                Poll::Ready(found) => return found,
                // its sender lives as long as this
                Poll::Pending => drop(ended.changed().await),
            }
        }
    }

    /// Returns the token, and the number by which a refusal names it.
    pub(super) fn token(&self) -> (Option<String>, u64) {
        self.state().held.as_ref().map_or((None, 0), |held| (held.token.clone(), held.number))
    }

    /// Notes that the upstream answered 401 to the credential of that number.
    pub(super) fn refused(self: &Arc<Self>, number: u64, clock: Clock) {
        let mut state = self.state();
        let State { held: Some(held), refusals, refused, .. } = &mut *state else { return };
        // An upstream that answers 401 to everything must not have the plugin run at every call.
        let age = clock.now().since(held.since);
        if held.number != number || *refused || age < AFTER_REFUSAL * (2_u32.pow(*refusals) - 1) {
            return;
        }
        *refusals = if age < CALM { (*refusals + 1).min(MOST_REFUSALS) } else { 0 };
        *refused = true;
        drop(state);
        let _started = self.look(clock);
    }

    /// Says whether there is a credential to use; pending while a run may bring one. Starts a run
    /// where one is due.
    fn look(self: &Arc<Self>, clock: Clock) -> Poll<Result<(), Arc<CredentialError>>> {
        let now = clock.now();
        let mut state = self.state();
        let holds = state.held.as_ref().is_some_and(|held| held.ends.is_none_or(|ends| now < ends));
        let is_due = !holds || state.refused || state.held.as_ref().is_some_and(|held| now >= held.refresh_at);
        let may_run = state.failure.as_ref().is_none_or(|failure| now >= failure.again_at);
        if is_due && may_run && !state.running {
            state.running = true;
            let exec = Arc::clone(self);
            tokio::spawn(async move { exec.run(clock).await });
        }
        match &state.failure {
            _ if holds && !state.refused => Poll::Ready(Ok(())),
            _ if state.running => Poll::Pending,
            _ if holds => Poll::Ready(Ok(())), // refused, but the plugin has nothing better
            Some(failure) => Poll::Ready(Err(Arc::clone(&failure.error))),
            None => Poll::Pending,
        }
    }

    async fn run(self: Arc<Self>, clock: Clock) {
        let answer = self.plugin.ask(clock).await.and_then(|answer| {
            if let Some(client) = self.client.get() {
                client.show(answer.identity)?;
            }
            Ok((answer.token, answer.life))
        });
        self.state().ended(answer, &self.plugin.command, clock.now());
        self.ended.send_replace(());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes over what a run gave: a token and its remaining life.
    fn ended(&mut self, answer: Result<(Option<String>, Option<Duration>), PluginFailure>, command: &str, now: Moment) {
        self.running = false;
        match answer {
            Ok((token, life)) => {
                let number = self.held.as_ref().map_or(1, |held| held.number + 1);
                let refresh_at = life.map_or(Moment::MAX, |life| now + life.saturating_sub(AHEAD.min(life / 5)));
                self.held = Some(Held { token, since: now, ends: life.map(|life| now + life), refresh_at, number });
                self.refused = false;
                if self.failure.take().is_some() {
                    tracing::info!(plugin = command, "the exec plugin gives credentials again");
                }
            }
            Err(failure) => {
                let error = CredentialError { command: command.to_owned(), failure };
                let times = self.failure.as_ref().map_or(0, |failure| failure.times);
                if times == 0 {
                    tracing::warn!(%error, "the gate's own credentials cannot be renewed");
                }
                let pause = (FIRST_PAUSE * 2_u32.pow(times.min(10))).min(LONGEST_PAUSE);
                self.failure = Some(Failure { error: Arc::new(error), times: times + 1, again_at: now + pause });
            }
        }
    }
}

/// The time before its end at which a credential is renewed; a fifth of its life if that is
/// shorter.
const AHEAD: Duration = Duration::from_secs(300);
/// The age at which a second fresh credential may be refused. The first 401 has the plugin run at
/// once; if that does not help, the next credential must be this old, the one after it three times,
/// and so on.
const AFTER_REFUSAL: Duration = Duration::from_secs(2);
const MOST_REFUSALS: u32 = 7;
/// The age from which a credential counts as good.
const CALM: Duration = Duration::from_secs(600);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
