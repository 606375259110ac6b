//! `tidegate doctor`: finds out what is wrong, and says what to do about it.
//!
//! Every check looks at the real thing: the port, the upstream with the real credentials through a
//! gate of its own, the kernel's table of connections. The report says what cannot be found out
//! from here; nothing is guessed.

mod connections;
mod controller;
mod files;
mod running;
mod upstream;

use clap::Args;

use super::{
    Configured, Failure,
    show::{self, Screen},
};
use crate::{clock::Clock, status::text::plain};

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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let findings = runtime.block_on(examine(options))?;
    let screen = Screen::of_stdout();
    let mut text = String::new();
    for finding in &findings {
        text.push_str(&finding.shown(screen));
    }
    let wrong = findings.iter().filter(|finding| finding.verdict == Verdict::Wrong).count();
    show::text(&text)?;
    match wrong {
        0 => Ok(()),
        1 => Err(Failure::Other(anyhow::anyhow!("1 thing is wrong"))),
        many => Err(Failure::Other(anyhow::anyhow!("{many} things are wrong"))),
    }
}

async fn examine(options: &Options) -> Result<Vec<Finding>, Failure> {
    let loaded = match options.configured.load() {
        Ok(loaded) => loaded,
        Err(Failure::Config(problems)) => {
            let wrong = |problem: &String| {
                Finding::wrong("configuration", problem, "correct that line; tidegate check lists all problems")
            };
            return Ok(problems.iter().map(wrong).collect());
        }
        Err(other) => return Err(other),
    };
    let clock = Clock::start();
    let settings = loaded.settings.clone();
    let mut findings = vec![Finding::fine("configuration", "has no problems")];
    findings.extend(loaded.warnings.iter().map(|warning| Finding::note("configuration", warning, "")));
    findings.extend(
        loaded.unreadable_files().iter().map(|problem| {
            Finding::wrong("configuration", &problem.to_string(), "mount that file, or correct its path")
        }),
    );
    let (status, more) = running::findings(&settings).await;
    findings.extend(more);
    findings.extend(files::findings(&settings));
    for gate in settings.gates.values() {
        let upstream = upstream::findings(gate, &options.configured.environment(), clock).await;
        findings.extend(upstream);
        findings.extend(connections::findings(gate, &options.configured.environment(), status.as_ref()).await);
    }
    findings.extend(controller::findings(&settings, options.pid, status.as_ref()));
    Ok(findings)
}

// === impl Finding ===

impl Finding {
    fn fine(about: &str, says: &str) -> Self {
        Self::new(Verdict::Fine, about, says, "")
    }

    fn note(about: &str, says: &str, remedy: &str) -> Self {
        Self::new(Verdict::Note, about, says, remedy)
    }

    fn wrong(about: &str, says: &str, remedy: &str) -> Self {
        Self::new(Verdict::Wrong, about, says, remedy)
    }

    fn new(verdict: Verdict, about: &str, says: &str, remedy: &str) -> Self {
        Self { verdict, about: about.to_owned(), says: says.to_owned(), remedy: remedy.to_owned() }
    }

    fn shown(&self, screen: Screen) -> String {
        let (word, colour) = match self.verdict {
            Verdict::Fine => ("ok   ", "\u{1b}[32m"),
            Verdict::Note => ("note ", "\u{1b}[33m"),
            Verdict::Wrong => ("WRONG", "\u{1b}[31m"),
        };
        let word = if screen.colour { format!("{colour}{word}\u{1b}[0m") } else { word.to_owned() };
        let mut lines = format!("{word}  {}: {}\n", plain(&self.about), plain(&self.says));
        if !self.remedy.is_empty() {
            lines.push_str(&format!("         -> {}\n", plain(&self.remedy)));
        }
        lines
    }
}
