//! Tunnels to hosts of gates that intercept: TLS in them is opened, and their calls go through the
//! gate.
//!
//! One name holds throughout: CONNECT, the client's TLS, the certificate that it is shown, each
//! call's Host, and the name by which the upstream is verified are one host, or nothing is sent.
//! What the upstream speaks is what the client is offered, so that both speak what they would speak
//! without the gate.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::Error;
use rustls::server::Acceptor;
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::directory::Inside;
use super::reason::HandshakeFailure;
use super::target::{Host, Origin};
use super::{Egress, FIRST_BYTES};
use crate::proxy::gate::Gate;
use crate::proxy::listener::{Wire, WireHandle};
use crate::tls;

/// A tunnel that is read.
pub(super) struct Opened {
    pub(super) origin: Origin,
    /// The gate of the origin.
    pub(super) gate: Arc<Gate>,
    /// The client's name for itself.
    pub(super) agent: String,
}

impl Egress {
    /// Serves the calls in a tunnel. A client that does not begin with TLS speaks plain HTTP.
    pub(super) async fn read(self: &Arc<Self>, handle: &WireHandle, opened: Opened) {
        let first = handle.peek(|bytes| bytes.first().copied());
        let first = tokio::select! {
            first = tokio::time::timeout(FIRST_BYTES, first) => first.ok().flatten(),
            () = self.closing.told() => None, // it has not said a word yet
        };
        match first {
            None => handle.close().await,
            Some(TLS) => {
                let Some((stream, http2)) = Box::pin(self.open_tls(handle, &opened)).await else { return };
                self.tally.became("intercepted");
                let Opened { origin, gate, .. } = opened;
                let lower_case = gate.own().upstream.lower_case();
                drop(gate); // each call finds it, so that it may go while the connection is idle
                let handle = WireHandle::new(Box::new(stream), Arc::clone(&self.buffers), lower_case);
                Box::pin(self.serve_calls(&handle, Some(Inside { origin, is_tls: true }), http2)).await;
            }
            Some(_) => {
                self.tally.became("plain");
                let inside = Inside { origin: opened.origin, is_tls: false };
                Box::pin(self.serve_calls(handle, Some(inside), false)).await;
            }
        }
    }

    /// Does the handshake, as the host. Returns the connection inside, and true if HTTP/2 was
    /// agreed on.
    async fn open_tls(&self, handle: &WireHandle, opened: &Opened) -> Option<(TlsStream<Wire>, bool)> {
        match self.shake_hands(handle, &opened.origin, &opened.gate).await {
            Ok(stream) => {
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                Some((stream, http2))
            }
            Err(why) => {
                self.handshake_failed(opened, why);
                None
            }
        }
    }

    async fn shake_hands(
        &self,
        handle: &WireHandle,
        origin: &Origin,
        gate: &Arc<Gate>,
    ) -> Result<TlsStream<Wire>, HandshakeFailure> {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), Wire::unscanned(handle));
        let hello = tokio::time::timeout(HANDSHAKE, hello).await.map_err(|_| HandshakeFailure::Timeout)?;
        let hello = hello.map_err(|_| HandshakeFailure::Protocol)?;
        let Host::Name(name) = &origin.host else { return Err(HandshakeFailure::Sni) };
        let sni = hello.client_hello().server_name().map(str::to_ascii_lowercase);
        // A client that names none can only mean the host of its tunnel.
        if sni.is_some_and(|sni| *sni != **name) {
            return Err(refuse_name(handle).await);
        }
        // If the upstream cannot be asked, its calls get the reason as their answer.
        let http2 = gate.own().upstream.speaks_http2().await.unwrap_or(true);
        let config = self.ca.as_ref().and_then(|ca| match ca.config(name, http2, tls::wall()) {
            Ok(config) => Some(config),
            Err(error) => {
                tracing::error!(%error, "TLS cannot be opened");
                None
            }
        });
        let Some(config) = config else { return Err(refuse_name(handle).await) };
        let shaken = tokio::time::timeout(HANDSHAKE, hello.into_stream(config)).await;
        shaken.map_err(|_| HandshakeFailure::Timeout)?.map_err(|error| failure(&error))
    }

    /// Counts a handshake that failed, and says once a minute what to do.
    fn handshake_failed(&self, Opened { origin, gate, agent }: &Opened, why: HandshakeFailure) {
        self.tally.became("refused");
        let (gate, host) = (gate.name(), origin.host.to_string());
        self.tally.handshake_failed(gate, &host, agent, why);
        let says = match why {
            HandshakeFailure::Protocol => {
                "it has no version, cipher or protocol in common with the gate or the upstream"
            }
            HandshakeFailure::Sni => "its TLS is for another host than its tunnel",
            HandshakeFailure::Timeout => "it took too long",
            HandshakeFailure::Untrusted => {
                "it left when it saw the certificate; it must trust the egress CA, by one of the variables in docs/external-apis.md"
            }
        };
        if self.tally.may_warn(why.word(), self.clock.now()) {
            tracing::warn!(gate = &**gate, host, client = agent, "a client's TLS handshake failed: {says}");
        } else {
            tracing::debug!(gate = &**gate, host, client = agent, why = why.word(), "a client's TLS handshake failed");
        }
    }
}

/// Tells a client that it has asked for a host that is not served here.
async fn refuse_name(handle: &WireHandle) -> HandshakeFailure {
    let mut wire = Wire::unscanned(handle);
    let said = async {
        wire.write_all(&UNRECOGNIZED_NAME).await?;
        wire.shutdown().await
    };
    if let Err(error) = said.await {
        tracing::debug!(%error, "a client had left before it was told that its host is another");
    }
    HandshakeFailure::Sni
}

/// Tells by what happened after the client's first words why a handshake failed. rustls may see a
/// client's refusal as something that it cannot decrypt: all that comes after the certificate is
/// about that.
fn failure(error: &io::Error) -> HandshakeFailure {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(
            Error::NoApplicationProtocol
            | Error::PeerIncompatible(_)
            | Error::PeerMisbehaved(_)
            | Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. },
        ) => HandshakeFailure::Protocol,
        _ => HandshakeFailure::Untrusted,
    }
}

/// The first byte of a TLS handshake.
pub(super) const TLS: u8 = 0x16;
/// The alert of this name, fatal, in a record of TLS 1.2, as which 1.3 appears too.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];
/// The time for the first words, and for the rest; as at every listener.
const HANDSHAKE: Duration = Duration::from_secs(10);
