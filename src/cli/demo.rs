//! `tidegate demo`: runs [`crate::demo`] with a real gate.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::running::block_on;
use super::{Failure, show};
use crate::app::prepare::prepare;
use crate::clock::Clock;
use crate::config;
use crate::credentials::Environment;
use crate::demo::{self, DemoResult, GateError, Scene};
use crate::proxy::Gate;

pub(super) const EXAMPLES: &str = "\
Example:
  tidegate demo --svg /tmp/calls.svg

Everything stays on loopback, and nothing else is needed. NO_COLOR is honoured.";

/// The options of the demo.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Length of each of the two runs
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(3..=120))]
    seconds: u64,
    /// Where to write the picture
    #[arg(long, value_name = "FILE", default_value = "tidegate-demo.svg")]
    svg: PathBuf,
    /// Which objects change, and when
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let scene = Scene { length: Duration::from_secs(options.seconds), seed: options.seed };
    // Written first, so that an error shows before the runs.
    show::file(&options.svg, "")?;
    show::text(&show::paragraph(&DemoResult::prologue(&scene)))?;
    let result = block_on(demo::play(scene, show::text, gate))??;
    let sentences = result.sentences().into_iter();
    let end: String = sentences.map(|sentence| format!("\n{}", show::paragraph(&sentence))).collect();
    show::file(&options.svg, &result.chart().svg())?;
    Ok(show::text(&format!("{end}\nThe picture is in {}.\n", options.svg.display()))?)
}

/// Starts a gate in front of the demo's API, configured as a user would configure it.
async fn gate(api: SocketAddr, stop: CancellationToken) -> Result<SocketAddr, GateError> {
    let text = format!(
        "[admin]\nlisten = \"off\"\n\n[shutdown]\ndrain = \"1s\"\n\n[gates.demo]\nlisten = \"127.0.0.1:0\"\n\
         upstream = \"http://{api}\"\nbucket = {{ rate = {rate}, burst = {burst} }}\nretry_bucket = {{ rate = {retries}, burst = {burst} }}\n",
        rate = demo::RATE,
        burst = demo::BURST,
        retries = demo::RETRY_RATE,
    );
    let clock = Clock::start();
    let loaded =
        config::load_text("demo".to_owned(), text, &[]).map_err(|problems| joined(Failure::of_config(&problems)))?;
    let nowhere = Environment { variables: Vec::new(), service_account: PathBuf::new() };
    let prepared = prepare(loaded, "demo", &nowhere, clock).map_err(joined)?;
    let gate = prepared.gates.into_iter().next().ok_or("the demo's configuration has a gate")?;
    let gate = Gate::start(gate.options, clock, stop).await?;
    Ok(gate.addresses().first().copied().ok_or("the gate listens on a TCP port")?)
}

fn joined(failure: Failure) -> String {
    failure.problems().join("; ")
}
