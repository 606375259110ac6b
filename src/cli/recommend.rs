//! `tidegate recommend`: finds the smallest bucket under which recorded calls would not have waited.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::simulate::limits_of;
use super::{Failure, logs, show, word};
use crate::api::duration;
use crate::simulate::recommend::{Goal, Per, recommend, replayed, report};
use crate::simulate::replay::{self, LogSelection};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate recommend calls.jsonl.1 calls.jsonl --config tidegate.toml
  tidegate recommend audit.log --caller my-operator --wait 1s

Record an hour at least, with shadow = true and whatever brings the most calls:
a restart, a resync, a deployment.";

/// The logs, and the demands on the bucket.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// A gate's calls (log.calls), audit logs or CloudTrail: files, or folders of them
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// The longest wait of a call
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = time)]
    wait: Duration,
    /// Room for so many percent more calls than were recorded
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u32).range(0..=1000))]
    headroom: u32,
    /// A bucket for each caller, namespace or class
    #[arg(long, value_name = "WHAT", value_parser = word::<Per>(), hide_possible_values = true)]
    per: Option<Per>,
    /// Also draw the curve into this file, as SVG
    #[arg(long, value_name = "FILE", conflicts_with = "per")]
    svg: Option<PathBuf>,
    /// Only calls of this program (user agent) or user
    #[arg(long, value_name = "NAME")]
    caller: Option<String>,
    /// The configuration of the gate: its classes, costs and other limits [default: those of a new gate]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The gate, if the log or the configuration has several
    #[arg(long, value_name = "NAME")]
    gate: Option<String>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let of_gate = options.config.as_ref().map(|file| limits_of(file, options.gate.as_deref(), None)).transpose()?;
    let gate = of_gate.as_ref().map(|limits| limits.gate.name.to_string()).or_else(|| options.gate.clone());
    let selection = LogSelection { gate: gate.unwrap_or_default(), caller: options.caller.clone() };
    let limits = of_gate.unwrap_or_else(crate::simulate::usual);
    let Options { wait, headroom, per, .. } = *options;
    let found = recommend(logs::open(&options.logs)?, &selection, &limits, Goal { wait, headroom, per })?;
    if let (Some(file), Some(bucket)) = (&options.svg, found.buckets.first()) {
        show::file(file, &report::chart(&found, bucket).svg())?;
    }
    let mut sentences = Vec::new();
    if logs::are_files(&options.logs) {
        let replays = replayed(logs::open(&options.logs)?, &limits, &found)?;
        sentences.push(format!("{}.", report::replayed(&found, &replays)));
    }
    sentences.extend(report::without(&found));
    sentences.extend(replay::report::remarks(&found.read));
    let mut text = format!("{}\n{}", report::curve(&found), report::toml(&found));
    text.extend(sentences.iter().map(|sentence| format!("\n{}", show::paragraph(sentence))));
    Ok(show::text(&text)?)
}

fn time(text: &str) -> Result<Duration, &'static str> {
    duration::read(text).ok_or("expected a time such as 100ms or 2s")
}
