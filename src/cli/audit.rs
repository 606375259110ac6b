//! `tidegate audit`: finds the callers with the most calls, and calls repeated in vain, in a log.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;

use super::simulate::limits_of;
use super::{Failure, logs, show};
use crate::chart::thousands;
use crate::simulate::audit::{audit, html, report, what_if};
use crate::simulate::replay::LogSelection;
use crate::status::text::{count, duration, printable};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate audit /var/log/kubernetes
  kubectl logs ... | tidegate audit - --html report.html
  tidegate audit audit.log --caller my-operator --config tidegate.toml

Ten minutes of an audit log are enough to begin. Nothing is sent anywhere. The exit code is 65 if
the findings lack lines that cannot be read.";

/// The logs, and the calls to look at.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Audit logs, CloudTrail, or a gate's calls (log.calls): files, folders, or - (stdin)
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Only calls of this program (user agent) or user
    #[arg(long, value_name = "NAME")]
    caller: Option<String>,
    /// Limits to replay, in place of the buckets found [needs --caller]
    #[arg(long, short, value_name = "FILE", requires = "caller")]
    config: Option<PathBuf>,
    /// The gate, if the configuration has several
    #[arg(long, value_name = "NAME", requires = "config")]
    gate: Option<String>,
    /// Put numbers in the place of names
    #[arg(long)]
    redact: bool,
    /// Also write all findings to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write them to this file, as a page with pictures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let selection = LogSelection { gate: String::new(), caller: options.caller.clone() };
    let own = options.config.as_ref().map(|file| limits_of(file, options.gate.as_deref(), None)).transpose()?;
    let mut found = audit(logs::open(&options.logs)?, &selection)?;
    let mut no_replay = None;
    if logs::are_files(&options.logs) {
        found.what_if = what_if(logs::open(&options.logs)?, &selection, &found, own.as_ref())?;
    } else {
        no_replay = Some("What a gate would have done needs a second look at the log: give a file in place of -.");
    }
    if options.redact {
        found.redact();
    }
    if let Some(file) = &options.json {
        show::file(file, &format!("{:#}\n", report::json(&found)))?;
    }
    if let Some(file) = &options.html {
        show::file(file, &html::page(&found))?;
    }
    let calls: u64 = found.callers.iter().map(|caller| caller.calls).sum();
    let mut text = format!(
        "{} calls of {} in {}\n\n{}",
        thousands(calls),
        count(found.callers.len(), "caller", "callers"),
        duration(found.read.length.as_secs_f64()),
        report::callers(&found)
    );
    let sentences = report::sentences(&found).into_iter().chain(no_replay.map(str::to_owned));
    text.extend(sentences.map(|sentence| format!("\n{}", show::paragraph(&printable(&sentence)))));
    show::text(&text)?;
    match found.read.unreadable {
        0 => Ok(()),
        lines => {
            Err(Failure::Unread(anyhow!("the findings lack {} that cannot be read", count(lines, "line", "lines"))))
        }
    }
}
