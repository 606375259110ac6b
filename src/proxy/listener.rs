//! Accepts clients and serves HTTP/1.1 and HTTP/2 to them, until the drain is over.
//!
//! hyper's own "auto" builder is not used: it costs 5 KiB more for each idle connection, and the guard's byte half sees the preface
//! anyway. With TLS, ALPN decides.

mod connection;
mod early;
mod handshake_errors;
mod idle;
mod linger;
mod parting;
mod read_ahead;
mod socket;
mod stream;
mod wire;

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

pub(crate) use self::{
    handshake_errors::HandshakeErrors,
    parting::Parting,
    socket::{Accepted, Bound},
    stream::Stream,
};
use super::{guard::buffers::Buffers, stack};
use crate::{clock::Clock, moment::Moment, telemetry::table, tls};

/// What serving a client takes; one per gate.
pub(crate) struct Server {
    pub(crate) gate: Arc<str>,
    pub(crate) parts: stack::Parts,
    pub(crate) tls: Option<Arc<tls::Listener>>,
    pub(crate) handshake_errors: HandshakeErrors,
    pub(crate) buffers: Arc<Buffers>,
    /// The names of fields lose their case on the way upstream.
    pub(crate) lower_case: Arc<AtomicBool>,
    pub(crate) clock: Clock,
    pub(crate) clients: TaskTracker,
    /// Connections say goodbye: GOAWAY, `Connection: close`.
    pub(crate) closing: Parting,
    /// Connections end, whatever they carry.
    pub(crate) ending: Parting,
}

// === impl Server ===

impl Server {
    /// Accepts from one socket until the gate closes.
    pub(crate) async fn accept(self: Arc<Self>, socket: Bound) {
        let mut said = None::<Moment>;
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                () = self.closing.told() => return,
            };
            match accepted {
                Ok(accepted) => {
                    let server = Arc::clone(&self);
                    self.clients.spawn(async move { server.receive(accepted).await });
                }
                Err(error) => {
                    // Out of file descriptors, or the client was gone already: neither is a reason to stop listening.
                    // There is one such each time that we try again.
                    let now = self.clock.now();
                    if said.is_none_or(|said| now - said >= SAY_AGAIN) {
                        said = Some(now);
                        tracing::warn!(gate = &*self.gate, %error, "a connection cannot be accepted; it is tried again and again");
                    }
                    self.clock.sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    async fn receive(&self, accepted: Accepted) {
        let gauge = table::CLIENT_CONNECTIONS.gauge(&[&self.gate]);
        gauge.increment(1.0);
        tokio::select! {
            biased; // no dice for each poll
            () = async {
                let (stream, local): (Box<dyn Stream>, _) = match accepted {
                    Accepted::Tcp(stream, local) => (Box::new(stream), Some(local)),
                    Accepted::Unix(stream) => (Box::new(stream), None),
                };
                match &self.tls {
                    None => self.serve(stream, local, false).await,
                    Some(tls) => {
                        if let Some((stream, http2)) = Box::pin(self.shake_hands(tls, stream)).await {
                            self.serve(stream, local, http2).await;
                        }
                    }
                }
            } => {}
            () = self.ending.told() => {}
        }
        gauge.decrement(1.0);
    }

    /// TLS: the connection inside it, and whether it was agreed to speak HTTP/2 there.
    async fn shake_hands(&self, tls: &tls::Listener, stream: Box<dyn Stream>) -> Option<(Box<dyn Stream>, bool)> {
        match tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(tls.config()).accept(stream)).await {
            Ok(Ok(stream)) => {
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                return Some((Box::new(stream), http2));
            }
            Ok(Err(error)) => self.handshake_errors.note(&self.gate, &error, self.clock.now()),
            Err(_) => tracing::debug!(gate = &*self.gate, "a TLS handshake took too long"),
        }
        None
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("gate", &self.gate).finish_non_exhaustive()
    }
}

/// Out of file descriptors: let some be closed before trying again.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// As long as Go's and kube-apiserver's.
const HANDSHAKE: Duration = Duration::from_secs(10);
