//! `tidegate audit`: finds the callers with the most calls, and calls repeated in vain, in a log.

use std::path::PathBuf;

use clap::Args;

use super::simulate::open;
use super::{Failure, show};
use crate::chart::thousands;
use crate::simulate::audit::{audit, report};
use crate::simulate::replay::LogSelection;
use crate::status::text::{count, duration};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate audit /var/log/kubernetes/audit.log
  kubectl logs ... | tidegate audit - --json findings.json

Ten minutes of an audit log are enough to begin. Nothing is sent anywhere.";

/// The logs, and the calls to look at.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// kube-apiserver's audit log, or a gate's log of calls (log.calls); - for standard input
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Only calls of this program (user agent) or user
    #[arg(long, value_name = "NAME")]
    caller: Option<String>,
    /// Also write all findings to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let selection = LogSelection { gate: String::new(), caller: options.caller.clone() };
    let found = audit(open(&options.logs)?, &selection)?;
    if let Some(file) = &options.json {
        show::file(file, &format!("{:#}\n", report::json(&found)))?;
    }
    let calls: u64 = found.callers.iter().map(|caller| caller.calls).sum();
    let mut text = format!(
        "{} calls of {} in {}\n\n{}",
        thousands(calls),
        count(found.callers.len(), "caller", "callers"),
        duration(found.read.length.as_secs_f64()),
        report::callers(&found)
    );
    for sentence in report::sentences(&found) {
        text.push_str(&format!("\n{}\n", show::wrapped(&sentence, show::Screen::of_stdout().width())));
    }
    Ok(show::text(&text)?)
}
