//! A client's connection of any kind, and how to notice its end while more bytes have come than are
//! read.

use std::pin::Pin;

#[cfg(target_os = "linux")]
use socket2::SockRef;
#[cfg(target_os = "linux")]
use tokio::io::Interest;
use tokio::io::{AsyncRead, AsyncWrite, Join, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// A client's connection of any kind. It is used in a box, so that the code above it exists once
/// and not for each kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {
    /// Returns a future ending when the client has closed, half-closed or reset the connection,
    /// however much it has sent before that. `None` where that cannot be known without reading.
    fn hang_up(&self) -> Option<HangUp> {
        None
    }
}

/// A future ending when the client hangs up ([`Stream::hang_up`]).
pub(super) type HangUp = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Stream for TcpStream {
    /// Watches a second descriptor of the same socket. The kernel says that nothing more will come
    /// as soon as it knows; tokio passes that on to those who wait for urgent data, but not that
    /// there is something to read. Other systems than Linux have no such event.
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

/// A connection accepted elsewhere.
impl<S: AsyncRead + AsyncWrite + Send> Stream for Join<ReadHalf<S>, WriteHalf<S>> {}

#[cfg(test)]
impl Stream for tokio::io::DuplexStream {}
