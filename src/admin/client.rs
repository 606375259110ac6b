//! The HTTP client with which commands ask a running process: one request, written by hand. A
//! container's health probe runs every second, and with a client library, that would be most of its
//! work.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// The address of a running process: its admin port or its control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The process's admin port.
    Port(SocketAddr),
    /// The process's control socket.
    Socket(PathBuf),
}

/// Why a running process gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// Nothing answers at the address.
    #[error("nothing answers at {at}; is tidegate running with this configuration?")]
    Unreachable {
        /// The port or socket that was asked.
        at: At,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The process refused the request.
    #[error("{said}")]
    Refused {
        /// The HTTP status of the response.
        status: u16,
        /// The text of the answer.
        said: String,
    },
    /// Another program, or another version of tidegate, answers at the address.
    #[error("the answer of {at} cannot be read; is another version of tidegate, or another program, running there?")]
    Strange {
        /// The port or socket that was asked.
        at: At,
        /// What is wrong with the answer.
        #[source]
        source: serde_json::Error,
    },
}

// === impl At ===

impl At {
    /// Sends a GET and returns the body of the answer.
    ///
    /// # Errors
    /// No answer comes in time, or its status is not 200.
    pub async fn get(&self, path: &str, patience: Duration) -> Result<String, NoAnswer> {
        self.exchange("GET", path, "", patience).await
    }

    /// Asks `/readyz` whether the process is ready, for a probe.
    ///
    /// # Errors
    /// No answer comes within a second, or the process is not ready.
    pub async fn health(&self) -> Result<(), NoAnswer> {
        self.get("/readyz", PROBE).await.map(drop)
    }

    /// Sends a GET, and parses the answer.
    ///
    /// # Errors
    /// No answer comes in time, its status is not 200, or its body is not as expected.
    pub async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, NoAnswer> {
        self.parse(&self.get(path, PATIENCE).await?)
    }

    /// Sends a command, and parses the answer.
    ///
    /// # Errors
    /// No answer comes in time, its status is not 200, or its body is not as expected.
    pub async fn order<T: DeserializeOwned>(&self, path: &str, order: &impl Serialize) -> Result<T, NoAnswer> {
        let body = serde_json::to_string(order).map_err(|source| NoAnswer::Strange { at: self.clone(), source })?;
        self.parse(&self.exchange("POST", path, &body, PATIENCE).await?)
    }

    fn parse<T: DeserializeOwned>(&self, body: &str) -> Result<T, NoAnswer> {
        serde_json::from_str(body).map_err(|source| NoAnswer::Strange { at: self.clone(), source })
    }

    async fn exchange(&self, method: &str, path: &str, body: &str, patience: Duration) -> Result<String, NoAnswer> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let unreachable = |source| NoAnswer::Unreachable { at: self.clone(), source };
        let asked = async {
            match self {
                Self::Port(address) => {
                    // Where there is no IPv6, the process listens on IPv4.
                    let ways: Vec<_> = [*address].into_iter().chain(crate::bind::in_ipv4(*address)).collect();
                    ask(TcpStream::connect(&*ways).await?, &request, LONGEST).await
                }
                Self::Socket(path) => ask(UnixStream::connect(path).await?, &request, LONGEST).await,
            }
        };
        let answer = tokio::time::timeout(patience, asked).await;
        let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(unreachable)?;
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
        match status.filter(|_| head.starts_with("HTTP/1.1 ")) {
            Some(200) => Ok(body.to_owned()),
            Some(status) => Err(NoAnswer::Refused { status, said: body.trim().to_owned() }),
            None => Err(unreachable(io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP/1.1"))),
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(address) => write!(f, "the admin port {address}"),
            Self::Socket(path) => write!(f, "the control socket {}", path.display()),
        }
    }
}

/// Sends one request, and reads the answer to its end, `longest` bytes at most.
pub(crate) async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
    longest: u64,
) -> io::Result<Vec<u8>> {
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(longest).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// The timeout of a probe; the kubelet's default is a second.
const PROBE: Duration = Duration::from_millis(900);
/// The timeout of a command a person waits for.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer to read: the server there need not be tidegate.
const LONGEST: u64 = 16 << 20;
