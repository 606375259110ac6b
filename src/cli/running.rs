//! Requests and commands to the running process.

use anyhow::anyhow;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ConfigOption, Failure};
use crate::admin::client::{At, NoAnswer};
use crate::app::control_socket::place_to_ask;
use crate::app::reachable::reachable;
use crate::spec::Settings;
use crate::status::Status;

/// Returns the addresses of the running process, the preferred one first.
fn places(settings: &Settings) -> Vec<At> {
    let socket = place_to_ask(settings).map(At::Socket);
    let port = settings.admin.listen.map(|listen| At::Port(reachable(listen)));
    socket.into_iter().chain(port).collect()
}

/// Sends a request to the running process, at one address after the other until one answers.
///
/// # Errors
/// The error at the preferred address, or that there is no address.
pub(super) async fn ask<T>(
    settings: &Settings,
    ask: impl AsyncFn(&At) -> Result<T, NoAnswer>,
) -> anyhow::Result<(At, T)> {
    let mut first_error = None;
    for at in places(settings) {
        match ask(&at).await {
            Ok(answer) => return Ok((at, answer)),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.map_or_else(|| anyhow!(NOWHERE), anyhow::Error::new))
}

/// Returns the status of the running process, and the address that answered.
pub(super) async fn status(settings: &Settings) -> anyhow::Result<(At, Status)> {
    ask(settings, async |at| at.read("/status").await).await
}

/// Sends a command to the control socket of the running process, and returns the answer of each
/// gate.
pub(super) fn order<T: DeserializeOwned>(
    configured: &ConfigOption,
    path: &str,
    order: &impl Serialize,
) -> Result<Vec<T>, Failure> {
    let settings = configured.to_ask();
    let socket = place_to_ask(&settings).map(At::Socket).ok_or_else(|| anyhow!(NO_SOCKET))?;
    block_on(socket.order(path, order))?.map_err(|error| match error {
        NoAnswer::Unreachable { at, source } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            let advice = "can only be opened by the user that tidegate runs as; run this command as that user";
            anyhow!("{at} {advice}: {source}").into()
        }
        NoAnswer::Unreachable { at, source } if source.kind() == std::io::ErrorKind::NotFound => {
            anyhow!("{at} does not exist; {NOT_THERE}").into()
        }
        error => error.into(),
    })
}

/// Runs a future to its end, on this thread.
pub(super) fn block_on<F: Future>(future: F) -> std::io::Result<F::Output> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future))
}

const NOWHERE: &str = "cannot ask the running tidegate: admin.listen is \"off\" and there is no control socket; set admin.listen or admin.socket";
const NOT_THERE: &str = "is tidegate running with this configuration, as this user? Its log says where its control socket is (\"ready\"); admin.socket sets a path";
const NO_SOCKET: &str = "this command needs a control socket, and the configuration has none; set admin.socket to a path such as \"/run/tidegate/tidegate.sock\"";
