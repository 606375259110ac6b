//! `tidegate simulate`: tries limits on scenarios and recorded calls, in virtual time.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::Args;

use super::{Failure, logs, show};
use crate::app::source;
use crate::chart::Chart;
use crate::config::{self, scenario};
use crate::simulate::replay::{LogSelection, report};
use crate::simulate::{self, Builtin, Limits, Picture, Setup};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate simulate                      the scenarios, a line each
  tidegate simulate failing-together objects=500 --svg together.svg
  tidegate simulate --replay calls.jsonl --config candidate.toml";

/// The arguments: the scenario or log, the limits, and the files to write.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// A built-in scenario, or a scenario file
    scenario: Option<String>,
    /// Numbers of a built-in scenario
    #[arg(value_name = "KEY=VALUE")]
    numbers: Vec<String>,
    /// Replay a log of calls (log.calls), an audit log or CloudTrail: a file, a folder of rotated files, or -
    #[arg(long, value_name = "FILE", requires = "config", conflicts_with = "scenario")]
    replay: Vec<PathBuf>,
    /// Limits to try: a configuration
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// With --replay: limits to compare with, besides what was recorded
    #[arg(long, value_name = "FILE", requires = "replay")]
    baseline: Option<PathBuf>,
    /// The gate of the configuration, if it has several
    #[arg(long, value_name = "NAME", requires = "config")]
    gate: Option<String>,
    /// Write the numbers over time
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the results
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    if let (Some(config), false) = (&options.config, options.replay.is_empty()) {
        return replay(options, config);
    }
    let Some(name) = &options.scenario else {
        return Ok(show::text(&list())?);
    };
    let Setup { scenario, limits, picture } = set_up(options, name)?;
    let runs: Vec<_> = limits.iter().map(|limits| simulate::play(&scenario, limits)).collect();
    let chart = picture.chart(&scenario, &runs);
    let mut text = format!("{}\n\n{}\n", scenario.title, simulate::report::table(&runs));
    text.extend(simulate::report::findings(&picture, &runs).iter().map(|finding| show::paragraph(finding)));
    write(options, &chart, &simulate::report::csv(&runs), &simulate::report::json(&runs))?;
    Ok(show::text(&text)?)
}

/// Replays recorded calls under other limits.
fn replay(options: &Options, config: &Path) -> Result<(), Failure> {
    let mut limits = Vec::new();
    if let Some(baseline) = &options.baseline {
        limits.push(limits_of(baseline, options.gate.as_deref(), None)?);
    }
    let candidate = limits_of(config, options.gate.as_deref(), None)?;
    let gate = candidate.gate.name.to_string();
    limits.push(candidate);
    let logs = logs::open(&options.replay)?;
    let names = logs.iter().map(|log| log.name.as_str()).collect::<Vec<_>>().join(", ");
    let selection = LogSelection { gate: gate.clone(), caller: None };
    let replays = simulate::replay::replay(logs, &selection, &limits)?;
    let chart = report::chart(&replays, &names);
    let mut text = format!("{} calls of gate {gate}\n\n{}\n", report::calls(&replays), report::table(&replays));
    text.extend(report::remarks(&replays.read).iter().map(|remark| show::paragraph(remark)));
    write(options, &chart, &report::csv(&replays), &report::json(&replays))?;
    Ok(show::text(&text)?)
}

/// Builds the scenario, the limits and the texts of the picture from the arguments.
fn set_up(options: &Options, name: &str) -> Result<Setup, Failure> {
    let mine = options.config.as_ref().map(|file| limits_of(file, options.gate.as_deref(), None)).transpose()?;
    let Some(builtin) = simulate::find(name) else { return of_file(options, name, mine) };
    let mut setup = builtin.set_up(&options.numbers)?;
    if let Some(mine) = mine {
        setup.limits.truncate(1);
        setup.limits.push(mine);
    }
    Ok(setup)
}

fn of_file(options: &Options, name: &str, mine: Option<Limits>) -> Result<Setup, Failure> {
    let path = Path::new(name);
    if !path.exists() {
        let names: Vec<&str> = simulate::ALL.iter().map(|builtin| builtin.name).collect();
        let near = config::did_you_mean(name, &names);
        return Err(anyhow!("{name:?} is neither scenario nor file, expected one of {}{near}", names.join(", ")).into());
    }
    if let Some(number) = options.numbers.first() {
        return Err(anyhow!("{number:?}: a scenario file has its own settings; change them in {name}").into());
    }
    let scenario = scenario::load(path).map_err(|problems| Failure::of_config(&problems))?;
    let mut limits = Vec::new();
    for of in scenario.limits.iter().filter(|_| mine.is_none()) {
        limits.push(limits_of(&of.config, of.gate.as_deref(), Some(&of.name))?);
    }
    limits.extend(mine);
    if limits.is_empty() {
        limits.push(simulate::usual());
    }
    let picture = match (scenario.controllers.is_empty(), scenario.upstream.quota) {
        (true, _) => Picture::LeaseAge,
        (false, Some(_)) => Picture::Together,
        (false, None) => Picture::Calls,
    };
    Ok(Setup { scenario, limits, picture })
}

/// Returns the limits of a gate in a configuration.
pub(super) fn limits_of(file: &Path, gate: Option<&str>, name: Option<&str>) -> Result<Limits, Failure> {
    let loaded = source::of_file(file)?;
    let shown = file.display();
    let gates = loaded.settings.gates;
    let names: Vec<&str> = gates.keys().map(|name| &**name).collect();
    let chosen = match (gate, &names[..]) {
        (Some(gate), _) => gate,
        (None, [only]) => only,
        (None, _) => {
            return Err(anyhow!("{shown} has several gates; choose one with --gate: {}", names.join(", ")).into());
        }
    };
    let gate = gates.get(chosen).cloned().ok_or_else(|| {
        let near = config::did_you_mean(chosen, &names);
        anyhow!("{shown} has no gate {chosen:?}, only {}{near}", names.join(", "))
    })?;
    Ok(Limits { name: name.map_or_else(|| shown.to_string(), str::to_owned), gate })
}

/// Lists every scenario in two lines.
fn list() -> String {
    let line = |builtin: &Builtin| {
        format!(
            "  {:<20}{}\n{:22}{}\n",
            builtin.name,
            builtin.about,
            "",
            show::wrapped(builtin.parameters, 58).replace('\n', &format!("\n{:22}", ""))
        )
    };
    let scenarios: String = simulate::ALL.iter().map(line).collect();
    format!(
        "Scenarios, each with its settings and their defaults:\n\n{scenarios}\n\
         `tidegate simulate SCENARIO [KEY=VALUE]...` plays one. A file can be a scenario,\n\
         too: see config/scenario.toml.\n"
    )
}

/// Writes the files the arguments ask for.
fn write(options: &Options, chart: &Chart, csv: &str, json: &serde_json::Value) -> anyhow::Result<()> {
    let files = [(&options.svg, chart.svg()), (&options.csv, csv.to_owned()), (&options.json, format!("{json:#}\n"))];
    files
        .iter()
        .filter_map(|(file, text)| Some((file.as_ref()?, text)))
        .try_for_each(|(file, text)| show::file(file, text))
}
