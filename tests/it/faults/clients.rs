//! Clients of a gate in another process: each has one connection, on which it sends one call after
//! the other.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::command::PATIENCE;

/// A connection, plain or with TLS.
pub(super) struct Client {
    stream: Stream,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// A whole answer, with this status.
    Whole(u16),
    /// The connection ended after this many bytes of the answer.
    Cut(usize),
}

impl Client {
    pub(super) fn plain(port: u16) -> io::Result<Self> {
        Ok(Self { stream: Stream::Plain(socket(port)?) })
    }

    pub(super) fn tls(port: u16, config: &Arc<ClientConfig>) -> io::Result<Self> {
        let name = ServerName::try_from("localhost").expect("a name");
        let session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, socket(port)?);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self { stream: Stream::Tls(Box::new(stream)) })
    }

    /// Sends a call, and reads the answer.
    pub(super) fn ask(&mut self, call: &str, body: &str) -> Came {
        let head = format!("{call} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if self.stream.send(head.as_bytes()).is_err() {
            return Came::Cut(0);
        }
        let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            if let Some(status) = whole(&answer) {
                return Came::Whole(status);
            }
            match self.stream.receive(&mut piece) {
                Ok(0) | Err(_) => return Came::Cut(answer.len()),
                Ok(more) => answer.extend_from_slice(&piece[..more]),
            }
        }
    }

    /// Returns the status of the answer to what it sent, if one has come by now.
    pub(super) fn was_answered(&mut self) -> Option<u16> {
        let Stream::Plain(socket) = &mut self.stream else { return None };
        let mut answer = [0; 4096];
        socket.set_nonblocking(true).ok()?;
        let read = socket.peek(&mut answer).unwrap_or(0);
        whole(&answer[..read])
    }

    /// Sends bytes and reads nothing.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.send(bytes)
    }
}

impl Stream {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.write_all(bytes),
            Self::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    fn receive(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(to),
            Self::Tls(stream) => stream.read(to),
        }
    }
}

fn socket(port: u16) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_nodelay(true)?;
    // Only keeps a hang from lasting forever.
    socket.set_read_timeout(Some(PATIENCE.max(Duration::from_secs(1))))?;
    Ok(socket)
}

/// The status of a complete answer.
fn whole(answer: &[u8]) -> Option<u16> {
    let head = answer.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
    let body: usize = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    (answer.len() >= head + body).then(|| text.get(9..12)?.parse().ok()).flatten()
}
