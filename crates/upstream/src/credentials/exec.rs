//! Exec plugins of a kubeconfig, run as by client-go: programs printing an `ExecCredential`.
//!
//! Such a credential has a token, a client certificate, or both. The plugin runs in its own task,
//! one run at a time, and renews the credential in the background before it expires.
//!
//! Calls wait for a run only if there is no usable credential: at the start, and after it has
//! expired. After a 401 they wait for at most 2 s, because one API may refuse a credential that all
//! others accept; exempt calls do not wait. A failed plugin runs again after 1 s, then 2 s, up to a
//! minute; a valid credential stays in use meanwhile.
//!
//! A plugin may print a credential that has already expired. As in client-go it is sent, and the
//! server decides: the plugin may want to run each time, or this machine's clock is ahead.

mod plugin;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::watch;

pub(super) use self::plugin::{Plugin, PluginOutput};
use self::plugin::{PluginAnswer, PluginFailure};
use crate::clock::Clock;
use crate::moment::Moment;
use crate::{lock, tls};

/// Why the gate has no credentials of its own. Contains no secret.
#[derive(Debug, thiserror::Error)]
#[error("the {role} `{command}` gave no credential: {failure}")]
pub struct ExecPluginError {
    role: &'static str,
    command: String,
    failure: PluginFailure,
}

/// An exec plugin, and the credential from its last run.
#[derive(derive_more::Debug)]
#[debug("*** of the {} {}", plugin.role(), plugin.command)]
pub(super) struct Exec {
    plugin: Plugin,
    /// The TLS client to give the plugin's client certificates to.
    client: OnceLock<Arc<tls::Client>>,
    state: Mutex<ExecState>,
    /// Notifies waiting calls when a run of the plugin ends.
    ended: watch::Sender<()>,
}

#[derive(Default)]
struct ExecState {
    held: Option<HeldCredential>,
    /// The start of the current run of the plugin, if it is running.
    running: Option<Moment>,
    /// Set if the upstream refused the credential.
    refused: bool,
    /// The number of new credentials refused in a row.
    refusals: u32,
    failure: Option<RunFailure>,
    /// Set once an expired credential was logged.
    is_reported: bool,
}

/// The credential from the plugin's last run.
struct HeldCredential {
    token: Option<String>,
    since: Moment,
    /// The end of the credential's validity; `None` if it is valid until the upstream refuses it.
    ends: Option<Moment>,
    refresh_at: Moment,
    /// From this time on the credential is doubtful: calls first wait briefly for a new one.
    doubtful_at: Moment,
    number: u64,
}

/// Whether calls can use the credential now.
enum Availability {
    Usable,
    /// There is a credential, but it may be useless: wait for the current run until this moment.
    Doubtful(Moment),
    /// There is no credential: wait for a run to end.
    Nothing,
}

/// A failed run: its error, and the time of the next run.
struct RunFailure {
    error: Arc<ExecPluginError>,
    times: u32,
    again_at: Moment,
}

// === impl Exec ===

impl Exec {
    pub(super) fn new(plugin: Plugin) -> Self {
        Self { plugin, client: OnceLock::new(), state: Mutex::default(), ended: watch::Sender::new(()) }
    }

    /// Sets the TLS client to give the plugin's client certificates to.
    pub(super) fn shows_on(&self, client: &Arc<tls::Client>) {
        // the first stays: one gate has one upstream
        self.client.get_or_init(|| Arc::clone(client));
    }

    /// Waits for a credential. An exempt call uses the current one, if any, without waiting.
    pub(super) async fn ready(self: &Arc<Self>, is_exempt: bool, clock: Clock) -> Result<(), Arc<ExecPluginError>> {
        let mut ended = self.ended.subscribe();
        loop {
            match self.look(clock)? {
                Availability::Usable => return Ok(()),
                Availability::Doubtful(_) if is_exempt => return Ok(()),
                Availability::Doubtful(until) => tokio::select! {
                    _ = ended.changed() => {}
                    () = clock.sleep_until(until) => {}
                },
                // its sender lives as long as this
                Availability::Nothing => drop(ended.changed().await),
            }
        }
    }

    /// Returns the token of the current credential, and the credential's number.
    pub(super) fn token(&self) -> (Option<String>, u64) {
        lock(&self.state).held.as_ref().map_or((None, 0), |held| (held.token.clone(), held.number))
    }

    /// Records a 401 response to the credential with this number.
    pub(super) fn refused(self: &Arc<Self>, number: u64, clock: Clock) {
        let mut state = lock(&self.state);
        let ExecState { held: Some(held), refusals, refused, .. } = &mut *state else { return };
        // An upstream that answers 401 to everything must not have the plugin run at every call.
        let age = clock.now().since(held.since);
        if held.number != number || *refused || age < AFTER_REFUSAL * (2_u32.pow(*refusals) - 1) {
            return;
        }
        *refusals = if age < CALM { (*refusals + 1).min(MOST_REFUSALS) } else { 0 };
        *refused = true;
        drop(state);
        self.keep_fresh(clock);
    }

    /// Starts a run of the plugin if one is due.
    pub(super) fn keep_fresh(self: &Arc<Self>, clock: Clock) {
        let _started = self.look(clock);
    }

    /// Returns whether calls can use the credential now. Starts a run of the plugin if one is due.
    fn look(self: &Arc<Self>, clock: Clock) -> Result<Availability, Arc<ExecPluginError>> {
        let now = clock.now();
        let mut state = lock(&self.state);
        let held = state.held.as_ref().filter(|held| held.ends.is_none_or(|ends| now < ends));
        let holds = held.is_some();
        let is_doubtful = state.refused || held.is_some_and(|held| now >= held.doubtful_at);
        let is_due = is_doubtful || held.is_none_or(|held| now >= held.refresh_at);
        let may_run = state.failure.as_ref().is_none_or(|failure| now >= failure.again_at);
        if is_due && may_run && state.running.is_none() {
            state.running = Some(now);
            let exec = Arc::clone(self);
            tokio::spawn(async move { exec.run(clock).await });
        }
        let until = state.running.map(|began| began + A_LITTLE).filter(|until| now < *until);
        match (&state.failure, until) {
            (None, Some(until)) if holds && is_doubtful => Ok(Availability::Doubtful(until)),
            _ if holds => Ok(Availability::Usable),
            (Some(failure), _) if state.running.is_none() => Err(Arc::clone(&failure.error)),
            _ => Ok(Availability::Nothing),
        }
    }

    async fn run(self: Arc<Self>, clock: Clock) {
        let answer = self.plugin.ask(clock).await.and_then(|mut answer| {
            if let Some(client) = self.client.get() {
                client.show(answer.identity.take())?;
            }
            Ok(answer)
        });
        lock(&self.state).ended(answer, &self.plugin, clock.now());
        self.ended.send_replace(());
    }
}

impl ExecState {
    /// Records the result of a run: a token and its lifetime, or a failure.
    fn ended(&mut self, answer: Result<PluginAnswer, PluginFailure>, plugin: &Plugin, now: Moment) {
        self.running = None;
        let role = plugin.role();
        let command = &*plugin.command;
        match answer {
            Ok(PluginAnswer { token, life, refresh, .. }) => {
                let number = self.held.as_ref().map_or(1, |held| held.number + 1);
                let has_ended = life.is_some_and(|life| life.is_zero());
                if has_ended && !std::mem::replace(&mut self.is_reported, true) {
                    tracing::warn!(
                        plugin = command,
                        "the exec plugin's credential has expired already (expirationTimestamp); it is used all the same, and renewed \
                         every {RENEW_ENDED:?}; check this machine's clock"
                    );
                }
                let (ends, refresh_at, doubtful_at) = match life {
                    None => (None, refresh.map_or(Moment::MAX, |refresh| now + refresh), Moment::MAX),
                    Some(_) if has_ended => (None, now + RENEW_ENDED, now + DOUBT_ENDED),
                    // The server judges it past its end, while calls wait a little for the next.
                    Some(life) if life < RENEW_ENDED => {
                        let at = now + life.max(FIRST_PAUSE);
                        (None, at, at)
                    }
                    Some(life) => (Some(now + life), now + life.saturating_sub(AHEAD.min(life / 5)), Moment::MAX),
                };
                self.held = Some(HeldCredential { token, since: now, ends, refresh_at, doubtful_at, number });
                self.refused = false;
                if self.failure.take().is_some() {
                    tracing::info!(plugin = command, "the {role} works again: its credential is renewed");
                }
            }
            Err(failure) => {
                let error = ExecPluginError { role, command: command.to_owned(), failure };
                let times = self.failure.as_ref().map_or(0, |failure| failure.times);
                if times == 0 {
                    tracing::warn!(%error, "the gate's own credentials cannot be renewed: the last ones are used until they expire");
                }
                let pause = (FIRST_PAUSE * 2_u32.pow(times.min(10))).min(LONGEST_PAUSE);
                self.failure = Some(RunFailure { error: Arc::new(error), times: times + 1, again_at: now + pause });
            }
        }
    }
}

/// The time between the renewal of a credential and its expiry, or a fifth of its life if shorter.
const AHEAD: Duration = Duration::from_secs(300);
/// The age of the second credential before a 401 to it starts another run.
///
/// The first 401 starts a run at once. If this does not help, the next credential must have this
/// age at its 401, the one after it three times this age, and so on.
const AFTER_REFUSAL: Duration = Duration::from_secs(2);
/// The longest wait of calls for a run if a credential exists.
const A_LITTLE: Duration = Duration::from_secs(2);
/// The time between renewals of a credential with less time left than this, or with none. Here
/// client-go would run the plugin at each call.
const RENEW_ENDED: Duration = Duration::from_secs(10);
/// The age limit of a credential printed as already expired. At this age it is probably useless:
/// for so long no call has come to renew it.
const DOUBT_ENDED: Duration = Duration::from_secs(60);
const MOST_REFUSALS: u32 = 7;
/// The age of a proven credential: if it is refused at this age, earlier refusals are forgotten.
const CALM: Duration = Duration::from_secs(600);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
