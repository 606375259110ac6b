//! `tidegate doctor`: finds out what is wrong, and says what to do about it.
//!
//! Every check looks at the real thing: the port, the upstream with the real credentials through a
//! gate of its own, the kernel's table of connections. The report says what cannot be found out
//! from here; nothing is guessed.

mod connections;
mod controller;
mod egress;
mod files;
mod hosts;
mod running;
mod stores;
mod upstream;

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;

use super::running::block_on;
use super::show::{self, Screen};
use super::{Configured, Failure};
use crate::app::gate::prepare_gate;
use crate::clock::Clock;
use crate::status::text::{count, printable};
use crate::tls;

pub(super) const EXAMPLES: &str = "\
Example:
  kubectl exec deploy/my-operator -c tidegate -- tidegate doctor

Checks configuration, gate, upstream, credentials, clock, permissions, and
whether anything goes past the gate. Exit code 1 when something is wrong.";

/// The processes to look at.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    configured: Configured,
    /// The controller's process; without it, every other process in this pod that can be seen
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// Nothing is wrong, but the user should know.
    Note,
    Wrong,
}

/// One result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    verdict: Verdict,
    /// The subject of the check.
    about: String,
    says: String,
    /// The advice.
    remedy: String,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let findings = block_on(examine(options))??;
    let screen = Screen::of_stdout();
    let text: String = findings.iter().map(|finding| finding.text(screen)).collect();
    show::text(&text)?;
    match findings.iter().filter(|finding| finding.verdict == Verdict::Wrong).count() {
        0 => Ok(()),
        wrong => Err(anyhow!(count(wrong, "thing is wrong", "things are wrong")).into()),
    }
}

async fn examine(options: &Options) -> Result<Vec<Finding>, Failure> {
    let loaded = match options.configured.sources().load() {
        Ok(loaded) => loaded,
        Err(Failure::Config(problems)) => {
            let advice = "correct that line; tidegate check lists all problems";
            let problems = problems.into_iter().map(|problem| Finding::wrong("configuration", problem, advice));
            // A process may run all the same: it has refused this, and goes on with what it had.
            let (settings, _) = options.configured.sources().load_as_far_as_it_goes();
            let running = running::findings_without_configuration(&settings).await;
            return Ok(problems.chain(running).collect());
        }
        Err(other) => return Err(other),
    };
    let clock = Clock::start();
    let environment = options.configured.sources().environment();
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
    // Of those with hosts, each host has an upstream of its own, and is dialled when it is called.
    for gate in settings.gates.values().filter(|gate| gate.hosts.is_none()) {
        findings.extend(upstream::findings(gate, &environment, status.as_ref(), clock).await);
        findings.extend(connections::findings(gate, &environment, status.as_ref()).await);
    }
    findings.extend(egress::findings(&settings, options.pid, status.as_ref(), &environment, clock).await);
    findings.extend(controller::findings(&settings, options.pid, status.as_ref()));
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

    /// Writes the finding as a line, and its advice below.
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
