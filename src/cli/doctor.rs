//! `tidegate doctor`: finds what is wrong, with advice.
//!
//! Every check tests the real thing: the listening port, the upstream (with the real credentials,
//! through a gate started for the check), the kernel's table of connections. If something cannot be
//! seen from here, the report says so and does not guess.

mod connections;
mod egress;
mod files;
mod running;
mod stores;
mod upstream;

use std::time::Duration;

use anyhow::anyhow;
use tokio::net::{TcpStream, UnixStream};

use super::running::block_on;
use super::show::{self, Screen};
use super::{ConfigOption, Failure};
use crate::app::gate::{Trouble, prepare_gate};
use crate::app::reachable::reachable;
use crate::app::source::Sources;
use crate::clock::Clock;
use crate::spec::Listen;
use crate::status::Fact;
use crate::status::text::{count, printable};
use crate::tls;

pub(super) const EXAMPLES: &str = "\
Example:
  kubectl exec deploy/my-operator -c tidegate -- tidegate doctor

Checks configuration, gate, upstream, credentials, clock, permissions, and
whether anything goes past the gate. Exit code 1 when something is wrong.";

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// Not wrong, but worth knowing.
    Note,
    Wrong,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    verdict: Verdict,
    /// What was checked.
    about: String,
    says: String,
    /// What to do about it.
    remedy: String,
}

pub(super) fn run(configured: &ConfigOption) -> Result<(), Failure> {
    let findings = block_on(examine(&configured.sources()))??;
    let screen = Screen::of_stdout();
    let text: String = findings.iter().map(|finding| finding.text(screen)).collect();
    show::text(&text)?;
    match findings.iter().filter(|finding| finding.verdict == Verdict::Wrong).count() {
        0 => Ok(()),
        wrong => Err(anyhow!(count(wrong, "thing is wrong", "things are wrong")).into()),
    }
}

async fn examine(sources: &Sources) -> Result<Vec<Finding>, Failure> {
    let loaded = match sources.load() {
        Ok(loaded) => loaded,
        Err(Failure::Config(problems)) => {
            let advice = "correct that line; tidegate check lists all problems";
            let problems = problems.into_iter().map(|problem| Finding::wrong("configuration", problem, advice));
            // A process that refused this configuration runs on with the one before.
            let (mut settings, _) = sources.load_as_far_as_it_goes();
            settings.gates.clear();
            let (_, running) = running::findings(&settings).await;
            return Ok(problems.chain(running).collect());
        }
        Err(other) => return Err(other),
    };
    let clock = Clock::start();
    let environment = sources.environment();
    let unreadable = loaded.unreadable_files();
    let expired = loaded.expired_files(tls::wall(), tls::lives);
    let settings = loaded.settings;
    let origins = loaded.origins;
    let prepared = settings.gates.values().map(|gate| prepare_gate(gate.clone(), &environment, Duration::ZERO, clock));
    let of_gates: Vec<_> = prepared.flatten().flat_map(|gate| gate.warnings(&origins, "defaults")).collect();
    let mut findings = vec![Finding::fine("configuration", "has no problems")];
    findings
        .extend(loaded.warnings.into_iter().chain(of_gates).map(|warning| Finding::note("configuration", warning, "")));
    let advice = "mount that file, or correct its path";
    findings.extend(unreadable.iter().map(|problem| Finding::wrong("configuration", problem.to_string(), advice)));
    let advice = "renew it; a gate that runs takes the new file by itself";
    findings.extend(expired.iter().map(|problem| Finding::wrong("configuration", problem.to_string(), advice)));
    let (status, more) = running::findings(&settings).await;
    findings.extend(more);
    findings.extend(files::findings(&settings));
    findings.extend(stores::findings(&settings, clock).await);
    // A gate with hosts has an upstream for each, and dials it when it is called.
    for gate in settings.gates.values().filter(|gate| gate.hosts.is_none()) {
        if gate.has_clusters() {
            findings.extend(upstream::of_clusters(gate, &environment, clock).await);
            continue;
        }
        findings.extend(upstream::findings(gate, &environment, status.as_ref(), clock).await);
        findings.extend(connections::findings(gate, &environment, status.as_ref()).await);
    }
    findings.extend(egress::findings(&settings, status.as_ref(), &environment, clock).await);
    Ok(findings)
}

// === impl Finding ===

impl Finding {
    fn fine(about: &str, says: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fine, about: about.to_owned(), says: says.into(), remedy: String::new() }
    }

    fn note(about: &str, says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Note, remedy: remedy.into(), ..Self::fine(about, says) }
    }

    fn wrong(about: &str, says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Wrong, remedy: remedy.into(), ..Self::fine(about, says) }
    }

    /// Makes a finding from what a running gate says of itself.
    fn of_fact(about: &str, Fact { says, remedy, is_wrong }: Fact) -> Self {
        if is_wrong { Self::wrong(about, says, remedy) } else { Self::note(about, says, remedy) }
    }

    /// Makes a finding about something that cannot be prepared; `table` is its place in the
    /// configuration.
    fn of_trouble(about: &str, trouble: Trouble, table: &str) -> Self {
        let (what, advice) = match trouble {
            Trouble::Missing(what) => (what, "run doctor where the gate runs".to_owned()),
            Trouble::Wrong { key, what } => (what, format!("correct {table}.{key}")),
        };
        Self::wrong(about, format!("{what:#}"), advice)
    }

    /// Makes a finding from an error text. Text after a semicolon is the advice; without one, it is
    /// `advice`.
    fn of_error(about: &str, prefix: &str, error: &str, advice: &str) -> Self {
        let (what, advice) = error.split_once("; ").unwrap_or((error, advice));
        Self::wrong(about, format!("{prefix}{what}"), advice)
    }

    /// Tries to connect to a listener, and returns the result as a finding; `key` is the listener's
    /// key in the configuration.
    async fn of_listener(about: &str, listen: &Listen, key: &str) -> Self {
        let at = match listen {
            Listen::Tcp(address) => reachable(*address).to_string(),
            Listen::Unix(_) => listen.to_string(),
        };
        let connected = match listen {
            Listen::Tcp(address) => TcpStream::connect(reachable(*address)).await.map(drop),
            Listen::Unix(path) => UnixStream::connect(path).await.map(drop),
        };
        match connected {
            Ok(()) => Self::fine(about, format!("listens on {at}")),
            Err(error) => {
                let says = format!("nothing listens on {at}: {error}");
                Self::wrong(about, says, format!("start tidegate run, or correct {key}"))
            }
        }
    }

    /// Formats the finding as a line, with its advice below.
    fn text(&self, screen: Screen) -> String {
        let (word, colour) = match self.verdict {
            Verdict::Fine => ("ok   ", "\u{1b}[32m"),
            Verdict::Note => ("note ", "\u{1b}[33m"),
            Verdict::Wrong => ("WRONG", "\u{1b}[31m"),
        };
        let word = if screen.colour { format!("{colour}{word}\u{1b}[0m") } else { word.to_owned() };
        let mut lines = format!("{word}  {}: {}\n", printable(&self.about), printable(&self.says));
        if !self.remedy.is_empty() {
            lines.push_str(&format!("         -> {}\n", printable(&self.remedy)));
        }
        lines
    }
}
