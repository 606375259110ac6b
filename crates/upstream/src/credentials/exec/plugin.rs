//! One run of an exec plugin or password command: starts the program, and parses its output.
//!
//! The program's standard input is closed, because the gate has no terminal. If the program fails,
//! the error contains the last line of its standard error.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use crate::clock::Clock;
use crate::tls::{self, Identity, Pem, TlsError};

/// The command line of an exec plugin or password command.
#[derive(derive_more::Debug)]
#[debug("Plugin({command})")]
pub(in crate::credentials) struct Plugin {
    pub(in crate::credentials) output: PluginOutput,
    /// The program's name in PATH, or its path. Its arguments are never shown: they may contain
    /// secrets.
    pub(in crate::credentials) command: String,
    pub(in crate::credentials) args: Vec<String>,
    pub(in crate::credentials) env: Vec<(String, String)>,
    pub(in crate::credentials) install_hint: String,
}

/// The form of a program's output.
#[derive(Debug)]
pub(in crate::credentials) enum PluginOutput {
    ExecCredential {
        api_version: String,
        /// The description of the cluster, passed to the program if `provideClusterInfo` is set.
        cluster: Option<Value>,
    },
    /// A password as text. It may end at any time, so the program runs again after `refresh`.
    Password { refresh: Duration },
}

/// The output of a plugin, parsed.
#[derive(Debug)]
pub(super) struct PluginAnswer {
    pub(super) token: Option<String>,
    pub(super) identity: Option<Identity>,
    /// How long the credential is still valid: zero if it has expired, `None` if it never expires.
    pub(super) life: Option<Duration>,
    /// The time until the next run, for a credential without a known end.
    pub(super) refresh: Option<Duration>,
}

/// Why a run failed. Of the program's output, it contains only the last line of standard error.
#[derive(Debug, thiserror::Error)]
pub(super) enum PluginFailure {
    /// The program is not installed. The text is the kubeconfig's hint, after a colon.
    #[error("it is not installed, or not in PATH{0}")]
    NotInstalled(String),
    #[error("it cannot be started: {0}")]
    NotRun(#[from] io::Error),
    /// The program failed. The text is the last line of its standard error, after a colon.
    #[error("it failed with {0}{1}")]
    Failed(ExitStatus, String),
    #[error("it was stopped, as it had not finished within {:?}", PATIENCE)]
    TooSlow,
    /// The program's output is malformed.
    #[error("it printed no valid ExecCredential: {0}")]
    Answer(&'static str),
    #[error("it printed no password, expected one line of at most 64 KiB")]
    Password,
    #[error("its client certificate cannot be used: {0}")]
    Certificate(#[from] TlsError),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    kind: String,
    api_version: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// A child process with its own process group. The whole group is killed when this is dropped.
struct ProcessGroup(Child);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // It has a number until its end was awaited, so the group is still its own.
        let number = self.0.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = number.and_then(Pid::from_raw) {
            // its processes may have ended by themselves
            let _ended = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Plugin {
    /// Returns what the program is to its user.
    pub(super) const fn role(&self) -> &'static str {
        match self.output {
            PluginOutput::ExecCredential { .. } => "exec plugin",
            PluginOutput::Password { .. } => "password command",
        }
    }

    /// Runs the plugin, and returns its credential.
    pub(super) async fn ask(&self, clock: Clock) -> Result<PluginAnswer, PluginFailure> {
        let answer = tokio::select! {
            answer = self.run() => answer?,
            () = clock.sleep(PATIENCE) => return Err(PluginFailure::TooSlow),
        };
        match &self.output {
            PluginOutput::ExecCredential { api_version, .. } => self.read(&answer, api_version, tls::wall()),
            PluginOutput::Password { refresh } => password(&answer, *refresh),
        }
    }

    /// Runs the program, and returns its standard output. If the future is dropped before the end,
    /// the program and its children are killed.
    async fn run(&self) -> Result<Vec<u8>, PluginFailure> {
        let mut group = ProcessGroup(self.spawn()?);
        let child = &mut group.0;
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let (answer, errors) = tokio::join!(read(stdout), read(stderr));
        let status = child.wait().await?;
        if status.success() {
            return Ok(answer);
        }
        let errors = String::from_utf8_lossy(&errors);
        Err(PluginFailure::Failed(status, after_colon(errors.trim().lines().next_back().unwrap_or_default())))
    }

    fn spawn(&self) -> Result<Child, PluginFailure> {
        let mut command = Command::new(&self.command);
        if let PluginOutput::ExecCredential { api_version, cluster } = &self.output {
            let mut spec = json!({ "interactive": false });
            if let Some(cluster) = cluster {
                spec["cluster"] = cluster.clone();
            }
            let info = json!({ "kind": "ExecCredential", "apiVersion": api_version, "spec": spec });
            command.env("KUBERNETES_EXEC_INFO", info.to_string());
        }
        let spawned = command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        spawned.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => PluginFailure::NotInstalled(after_colon(&self.install_hint)),
            _ => error.into(),
        })
    }

    /// Parses an `ExecCredential`; `wall` is the time of day.
    fn read(&self, answer: &[u8], api_version: &str, wall: SystemTime) -> Result<PluginAnswer, PluginFailure> {
        let wrong = PluginFailure::Answer;
        let credential: ExecCredential =
            serde_json::from_slice(answer).map_err(|_| wrong("expected an ExecCredential as JSON"))?;
        if credential.kind != "ExecCredential" || credential.api_version != api_version {
            return Err(wrong("expected an ExecCredential of the kubeconfig's apiVersion"));
        }
        let status = credential.status.ok_or_else(|| wrong("expected an ExecCredential with a status"))?;
        let life = match filled(status.expiration_timestamp) {
            None => None,
            Some(text) => {
                let ends = OffsetDateTime::parse(&text, &Rfc3339)
                    .map_err(|_| wrong("expected an expirationTimestamp such as 2030-01-31T12:00:00Z"))?;
                Some(SystemTime::from(ends).duration_since(wall).unwrap_or_default())
            }
        };
        let pem =
            |text: String, what| Pem::new(text.into_bytes(), format!("{what} of the exec plugin {}", self.command));
        let identity = match (filled(status.client_certificate_data), filled(status.client_key_data)) {
            (Some(chain), Some(key)) => {
                Some(Identity { chain: pem(chain, "clientCertificateData"), key: pem(key, "clientKeyData") })
            }
            (None, None) => None,
            _ => return Err(wrong("expected clientCertificateData and clientKeyData together")),
        };
        let token = filled(status.token).map(|token| token.trim().to_owned());
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(wrong("expected a token without blanks and control characters"));
        }
        if token.is_none() && identity.is_none() {
            return Err(wrong("expected a token or a client certificate in its status"));
        }
        Ok(PluginAnswer { token, identity, life, refresh: None })
    }
}

/// Reads a password that was printed as text.
fn password(answer: &[u8], refresh: Duration) -> Result<PluginAnswer, PluginFailure> {
    let text = std::str::from_utf8(answer).map_err(|_| PluginFailure::Password)?.trim();
    if text.is_empty() || text.len() > LONGEST_PASSWORD || text.chars().any(char::is_control) {
        return Err(PluginFailure::Password);
    }
    Ok(PluginAnswer { token: Some(text.to_owned()), identity: None, life: None, refresh: Some(refresh) })
}

async fn read(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut text = Vec::new();
    if let Some(pipe) = pipe {
        // a pipe that broke gave what was read before
        drop(pipe.take(LONGEST).read_to_end(&mut text).await);
    }
    text
}

fn filled(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// Returns a text as one line, with a colon before it. An empty text stays empty.
fn after_colon(text: &str) -> String {
    let line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
    if line.is_empty() { line } else { format!(": {line}") }
}

/// The longest time for one run. A plugin with a request to a server needs a second or two.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest output, in bytes. Certificates and a token are a few KiB.
const LONGEST: u64 = 1 << 20;
const LONGEST_PASSWORD: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plugin() -> Plugin {
        Plugin {
            output: PluginOutput::ExecCredential { api_version: VERSION.to_owned(), cluster: None },
            command: "aws".to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            install_hint: String::new(),
        }
    }

    #[test]
    fn a_password_is_one_line_of_text() {
        for (printed, expected) in [("hunter2\n", Some("hunter2")), (" a b \r\n", Some("a b"))] {
            let read = password(printed.as_bytes(), Duration::from_secs(9)).expect("a password");
            assert_eq!(
                (read.token.as_deref(), read.life, read.refresh),
                (expected, None, Some(Duration::from_secs(9)))
            );
        }
        let long = "h".repeat(LONGEST_PASSWORD + 1);
        for printed in
            ["", "\n\n", "hunter2\nhunter2", "hunter2\0", &long].map(str::as_bytes).into_iter().chain([&[0xff; 3][..]])
        {
            let error = password(printed, Duration::ZERO).expect_err("no password").to_string();
            assert_eq!(error, "it printed no password, expected one line of at most 64 KiB");
        }
    }

    const VERSION: &str = "client.authentication.k8s.io/v1";

    fn read(status: &Value) -> Result<PluginAnswer, String> {
        let answer =
            json!({ "kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status });
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000); // 2023-11-14T22:13:20Z
        plugin().read(answer.to_string().as_bytes(), VERSION, wall).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_and_its_end_are_read() {
        let given = read(&json!({ "token": "t", "expirationTimestamp": "2023-11-14T23:13:20+00:30" })).expect("read");
        assert_eq!((given.token.as_deref(), given.life), (Some("t"), Some(Duration::from_secs(1800))));
        assert_eq!(read(&json!({ "token": "t" })).expect("read").life, None);
        for ended in ["2023-11-14T22:13:20Z", "0001-01-01T00:00:00Z"] {
            let given = read(&json!({ "token": "t", "expirationTimestamp": ended })).expect("read");
            assert_eq!(given.life, Some(Duration::ZERO));
        }
    }

    #[test]
    fn what_cannot_be_used_is_said_without_being_shown() {
        for (status, expected) in [
            (json!({}), "a token or a client certificate"),
            (json!({ "token": "hunter2\nx" }), "without blanks"),
            (json!({ "token": "hunter2", "expirationTimestamp": "tomorrow" }), "expirationTimestamp such as"),
            (json!({ "clientCertificateData": "hunter2" }), "together"),
        ] {
            let error = read(&status).expect_err("unusable");
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
        for answer in
            ["hunter2", "{\"kind\": \"ExecCredential\", \"apiVersion\": \"v9\", \"status\": {\"token\": \"hunter2\"}}"]
        {
            let error =
                plugin().read(answer.as_bytes(), VERSION, SystemTime::UNIX_EPOCH).expect_err("unusable").to_string();
            assert!(error.contains("expected an ExecCredential") && !error.contains("hunter2"), "{error}");
        }
    }

    proptest! {
        /// A plugin is somebody else's program: whatever it prints is read or refused, and a
        /// refusal shows nothing of it.
        #[test]
        fn whatever_it_prints_is_read_or_refused(
            token in "\\PC{0,12}", ends in "\\PC{0,24}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{5,12}[Z+-][0-9:]{0,5}", cut in 0_usize..400, byte in any::<u8>(),
        ) {
            let answer = json!({
                "kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "spec": { "interactive": false },
                "status": { "token": format!("hunter2{token}"), "expirationTimestamp": ends },
            });
            let mut answer = answer.to_string().into_bytes();
            for wall in [SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)] {
                if let Err(error) = plugin().read(&answer, VERSION, wall) {
                    prop_assert!(!error.to_string().contains("hunter2"), "{error}");
                }
            }
            if let Some(at) = answer.get_mut(cut) {
                *at = byte;
                if let Err(error) = plugin().read(&answer, VERSION, SystemTime::UNIX_EPOCH) {
                    prop_assert!(!error.to_string().contains("hunter2"), "{error}");
                }
            }
        }
    }
}
