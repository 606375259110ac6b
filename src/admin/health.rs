//! What `tidegate health` asks: whether the process on this machine is ready.

use std::{net::SocketAddr, time::Duration};

use super::client::{At, NoAnswer};

/// Why the process is not well.
#[derive(Debug, thiserror::Error)]
pub enum Unhealthy {
    /// Nobody answers.
    #[error(transparent)]
    Unreachable(NoAnswer),
    /// It answers that it is not ready.
    #[error("not ready: {0}")]
    NotReady(String),
}

/// Asks `/readyz`.
///
/// # Errors
/// When nobody answers within a second, or the answer is not 200.
pub async fn check(address: SocketAddr) -> Result<(), Unhealthy> {
    match At::Port(address).get("/readyz", PATIENCE).await {
        Ok(_) => Ok(()),
        Err(NoAnswer::Refused { said, .. }) => Err(Unhealthy::NotReady(said)),
        Err(error) => Err(Unhealthy::Unreachable(error)),
    }
}

/// A probe's own default timeout is a second; later nobody listens.
const PATIENCE: Duration = Duration::from_millis(900);
