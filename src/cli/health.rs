//! `tidegate health`: asks the admin port whether the process is ready, for images without a shell.

use anyhow::{Context as _, anyhow};

use super::ConfigOption;
use super::running::block_on;
use crate::admin::client::At;
use crate::app::Failure;
use crate::app::reachable::reachable;

pub(super) const EXAMPLES: &str = "\
Example, in a pod:
  startupProbe:  { exec: { command: [\"tidegate\", \"health\"] } }
  livenessProbe: { httpGet: { path: /livez, port: 9464 } }

It asks /readyz on admin.listen. The API behind the gates does not matter.";

pub(super) fn run(configured: &ConfigOption) -> Result<(), Failure> {
    let settings = configured.to_ask();
    let listen = settings.admin.listen.ok_or_else(|| {
        anyhow!("admin.listen is \"off\": there is no port to ask; set it, e.g. to \"127.0.0.1:9464\"")
    })?;
    Ok(block_on(At::Port(reachable(listen)).health())?.context("not ready")?)
}
