//! A client's connection of any kind, and a way to notice a hang-up even if bytes before it are
//! unread.

use std::pin::Pin;

#[cfg(target_os = "linux")]
use socket2::SockRef;
#[cfg(target_os = "linux")]
use tokio::io::Interest;
use tokio::io::{AsyncRead, AsyncWrite, Join, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// A client's connection of any kind. It is used in a box, so that the code for connections is
/// compiled once and not for each kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {
    /// Returns a future that ends when the client has closed, half-closed or reset the connection,
    /// even if bytes before that are unread. `None` if this cannot be known without reading.
    fn hang_up(&self) -> Option<HangUp> {
        None
    }
}

/// A future ending when the client hangs up ([`Stream::hang_up`]).
pub(super) type HangUp = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Stream for TcpStream {
    /// Watches a second descriptor of the same socket, because the kernel reports a hang-up at
    /// once. In tokio, waiting for urgent data is woken by that report, but not by ordinary bytes.
    /// Systems other than Linux have no such event.
    #[cfg(target_os = "linux")]
    fn hang_up(&self) -> Option<HangUp> {
        let socket = SockRef::from(self).try_clone().ok()?;
        let watched = Self::from_std(socket.into()).ok()?;
        Some(Box::pin(async move { drop(watched.ready(Interest::PRIORITY).await) }))
    }
}

impl Stream for UnixStream {
    #[cfg(target_os = "linux")]
    fn hang_up(&self) -> Option<HangUp> {
        let socket = SockRef::from(self).try_clone().ok()?;
        let watched = Self::from_std(socket.into()).ok()?;
        Some(Box::pin(async move { drop(watched.ready(Interest::PRIORITY).await) }))
    }
}

impl Stream for TlsStream<Box<dyn Stream>> {
    fn hang_up(&self) -> Option<HangUp> {
        self.get_ref().0.hang_up()
    }
}

/// A connection that another part of the program accepted.
impl<S: AsyncRead + AsyncWrite + Send> Stream for Join<ReadHalf<S>, WriteHalf<S>> {}

#[cfg(test)]
impl Stream for tokio::io::DuplexStream {}
