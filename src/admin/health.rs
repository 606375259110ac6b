//! The check of `tidegate health`: is the process on this machine ready?

use std::{net::SocketAddr, time::Duration};

use super::client::{At, NoAnswer};

/// The reason why the process is not healthy.
#[derive(Debug, thiserror::Error)]
pub enum Unhealthy {
    /// No answer comes.
    #[error(transparent)]
    Unreachable(NoAnswer),
    /// The process answers that it is not ready.
    #[error("not ready: {0}")]
    NotReady(String),
}

/// Asks `/readyz`.
///
/// # Errors
/// No answer comes within a second, or its status is not 200.
pub async fn check(address: SocketAddr) -> Result<(), Unhealthy> {
    match At::Port(address).get("/readyz", PATIENCE).await {
        Ok(_) => Ok(()),
        Err(NoAnswer::Refused { said, .. }) => Err(Unhealthy::NotReady(said)),
        Err(error) => Err(Unhealthy::Unreachable(error)),
    }
}

/// A probe's own default timeout is a second; an answer after that is not read.
const PATIENCE: Duration = Duration::from_millis(900);
