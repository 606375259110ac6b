//! What `tidegate health` asks: whether the process on this machine is ready.
//!
//! A request by hand: an exec probe runs every second, and a client library would be most of what it starts.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Why the process is not well.
#[derive(Debug, thiserror::Error)]
pub enum Unhealthy {
    /// Nobody answers.
    #[error("nothing answers at the admin port {address}; is tidegate running with this configuration?")]
    Unreachable {
        /// The port asked.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It answers that it is not ready.
    #[error("not ready: {0}")]
    NotReady(String),
}

/// Asks `/readyz`.
///
/// # Errors
/// When nobody answers within a second, or the answer is not 200.
pub async fn check(address: SocketAddr) -> Result<(), Unhealthy> {
    let answer = tokio::time::timeout(PATIENCE, ask(address))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(|source| Unhealthy::Unreachable { address, source })?;
    let answer = String::from_utf8_lossy(&answer);
    if answer.starts_with("HTTP/1.1 200 ") {
        return Ok(());
    }
    let said = answer.split_once("\r\n\r\n").map_or(&*answer, |(_, body)| body);
    Err(Unhealthy::NotReady(said.trim().to_owned()))
}

/// One request, read to the end.
async fn ask(address: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// A probe's own default timeout is a second; later nobody listens.
const PATIENCE: Duration = Duration::from_millis(900);
/// Whatever answers at that port need not be ours.
const LONGEST: u64 = 16 * 1024;
