//! The commands: they parse the arguments, report errors and choose the exit code. Each command is
//! one file.
//!
//! Exit codes: 0; 64 for wrong usage; 65 for a log that was read in part; 78 for a wrong
//! configuration; 1 for everything else. An error is one chain on standard error that names the
//! input, what was expected, and what to do.

mod audit;
mod bypass;
mod ca;
mod check;
mod completions;
mod configured;
mod demo;
mod doctor;
mod explain;
mod forget;
mod health;
mod inject;
mod kubeconfig;
mod logs;
mod man;
mod promote;
mod recommend;
mod run;
mod running;
mod schema;
mod show;
mod simulate;
mod top;
mod webhook;

use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{CommandFactory as _, Parser, Subcommand};

use self::configured::ConfigOption;
use crate::app::Failure;
use crate::limit::words::Words;
use crate::release;
use crate::status::text::count;

/// The parsed command line.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version = release::version(),
    about = "Holds a controller's API calls to a rate, in fair order; refuses those that cannot go in time.",
    after_help = EXAMPLES,
    disable_help_subcommand = true,
    max_term_width = 100
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Carry calls to the API at the configured rate: the sidecar itself
    #[command(after_help = run::EXAMPLES)]
    Run(ConfigOption),
    /// List every problem of a configuration, or print what it comes to
    #[command(after_help = check::EXAMPLES)]
    Check(check::Options),
    /// Watch a herd of controllers with and without a gate; needs nothing else
    #[command(after_help = demo::EXAMPLES)]
    Demo(demo::Options),
    /// Try limits under a virtual clock: on a scenario, or on recorded calls
    #[command(after_help = simulate::EXAMPLES)]
    Simulate(simulate::Options),
    /// Find the callers with the most calls, and calls repeated in vain, in an audit log
    #[command(after_help = audit::EXAMPLES)]
    Audit(audit::Options),
    /// Find the smallest rate and burst under which recorded calls would not have waited
    #[command(after_help = recommend::EXAMPLES)]
    Recommend(recommend::Options),
    /// Print the configuration with candidates in the place of the limits in force
    #[command(hide = true, after_help = promote::EXAMPLES)]
    Promote(promote::Options),
    /// Ask a running tidegate whether it is ready, for an exec probe
    #[command(hide = true, after_help = health::EXAMPLES)]
    Health(ConfigOption),
    /// Show what a running tidegate is doing: who waits, what fails, and why
    #[command(after_help = top::EXAMPLES)]
    Top(top::Options),
    /// Say what a call would meet: class, flow, key, limits, and what would happen now
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::Options),
    /// Find out what is wrong, and what to do about it
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(ConfigOption),
    /// Forget failing keys, so that they are tried at once
    #[command(after_help = forget::EXAMPLES)]
    Forget(forget::Options),
    /// Let everything through for a while
    #[command(after_help = bypass::EXAMPLES)]
    Bypass(bypass::Options),
    /// Print a kubeconfig that points at a gate
    #[command(after_help = kubeconfig::EXAMPLES)]
    Kubeconfig(kubeconfig::Options),
    /// Print the CA with which the egress listener opens TLS, or make one to give to it
    #[command(hide = true, after_help = ca::EXAMPLES)]
    Ca(ca::Options),
    /// Add the sidecar to workloads read as YAML, or take it out
    ///
    /// Doing it twice changes nothing more. Objects that are no workloads pass unchanged. If a
    /// workload cannot have the sidecar, the reasons are printed and nothing else.
    #[command(after_help = inject::EXAMPLES)]
    Inject(inject::Options),
    /// Add the sidecar to pods as they are made: an admission webhook
    #[command(hide = true, after_help = webhook::EXAMPLES)]
    Webhook(webhook::Options),
    /// Print the JSON Schema of the configuration, for editors
    #[command(hide = true, after_help = schema::EXAMPLES)]
    Schema,
    /// Print what makes a shell complete tidegate's commands and options
    #[command(hide = true, after_help = completions::EXAMPLES)]
    Completions(completions::Options),
    /// Print the manual page, or write one for every command
    #[command(hide = true, after_help = man::EXAMPLES)]
    Man(man::Options),
}

const EXAMPLES: &str = "Example: tidegate demo. More: health, promote, ca, webhook, schema, completions, man";

const USAGE: u8 = 64;
const DATA: u8 = 65;
const CONFIG: u8 = 78;
const FAILED: u8 = 1;

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) => {
            // If even this cannot be printed, there is no other place to report it.
            drop(error.print());
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let done = match line.command {
        Command::Run(configured) => run::run(&configured),
        Command::Check(options) => check::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Simulate(options) => simulate::run(&options),
        Command::Audit(options) => audit::run(&options),
        Command::Recommend(options) => recommend::run(&options),
        Command::Promote(options) => promote::run(&options),
        Command::Health(configured) => health::run(&configured),
        Command::Top(options) => top::run(&options),
        Command::Explain(options) => explain::run(&options),
        Command::Doctor(configured) => doctor::run(&configured),
        Command::Forget(options) => forget::run(&options),
        Command::Bypass(options) => bypass::run(&options),
        Command::Kubeconfig(options) => kubeconfig::run(&options),
        Command::Ca(options) => ca::run(&options),
        Command::Inject(options) => inject::run(&options),
        Command::Webhook(options) => webhook::run(&options),
        Command::Schema => schema::run(),
        Command::Completions(options) => completions::run(&options),
        Command::Man(options) => man::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Returns a parser of an argument that is one of an enum's words.
fn word<T: Words + Send + Sync>() -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(T::WORDS).try_map(|word| T::named(&word).ok_or("no such word"))
}

/// Returns the definitions of all commands, including the hidden ones.
fn definition() -> clap::Command {
    let mut all = CommandLine::command();
    all.build();
    let names: Vec<String> = all.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    names.into_iter().fold(all, |all, name| all.mut_subcommand(name, |command| command.hide(false)))
}

// === impl Failure ===

impl Failure {
    /// Prints the failure and returns the exit code.
    fn report(&self) -> ExitCode {
        match self {
            Self::Config(problems) => {
                for problem in problems {
                    show::error(problem);
                }
                let count = count(problems.len(), "problem", "problems");
                show::error(&format!("tidegate: {count} in the configuration"));
                ExitCode::from(CONFIG)
            }
            Self::Other(error) | Self::Unread(error) => {
                show::error(&format!("tidegate: {error:#}"));
                ExitCode::from(if matches!(self, Self::Unread(_)) { DATA } else { FAILED })
            }
        }
    }
}

#[cfg(test)]
mod tests;
