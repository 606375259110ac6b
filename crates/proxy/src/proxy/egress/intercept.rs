//! Interception: decrypts clients' TLS to hosts of gates with `intercept = true`, and sends the
//! calls in it through the gate. The TLS comes in a tunnel, or directly if a hosts file maps the
//! host's name to this listener.
//!
//! CONNECT, the client's TLS, its certificate, each call's Host, and the name verified at the
//! upstream must all be the same host, or nothing is sent. The client is offered the upstream's
//! protocol, so that both speak what they would speak without the gate.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::Error;
use rustls::server::Acceptor;
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use super::EgressListener;
use super::calls::Entry;
use super::directory::{Fate, Inside};
use super::reason::{EgressRefusal, HandshakeFailure, Why};
use super::target::{Host, Origin};
use crate::proxy::gate::Gate;
use crate::proxy::listener::{Wire, WireHandle};
use crate::tls;

/// A tunnel with decrypted TLS.
pub(super) struct InterceptedTunnel {
    pub(super) origin: Origin,
    /// The gate for the tunnel's host and port.
    pub(super) gate: Arc<Gate>,
    /// The client's user agent.
    pub(super) agent: String,
    /// The client's name, if clients are known by name.
    pub(super) client: Option<Arc<str>>,
}

impl EgressListener {
    /// Serves the calls in a tunnel: decrypted from TLS, or plain HTTP if the client does not begin
    /// with TLS.
    pub(super) async fn read(self: &Arc<Self>, handle: &WireHandle, opened: InterceptedTunnel) {
        match self.first(handle).await {
            None => handle.close().await,
            Some(TLS) => {
                let hello = Box::pin(hello(handle)).await;
                Box::pin(self.open_tls(handle, hello, opened)).await;
            }
            Some(_) => {
                self.tally.became("plain");
                let inside = Inside { origin: opened.origin, is_tls: false };
                self.serve_calls(handle, Entry::Tunnel(inside, opened.client), false).await;
            }
        }
    }

    /// Serves a client redirected here by a hosts file. Its host is the name in TLS, or each call's
    /// Host over plain HTTP.
    pub(super) async fn serve_named(self: &Arc<Self>, handle: &WireHandle, port: u16) {
        match self.first(handle).await {
            None => handle.close().await,
            Some(TLS) => {
                let found = match Box::pin(hello(handle)).await {
                    Ok(hello) => self.named(&hello, port).map(|opened| (hello, opened)),
                    Err(why) => {
                        Err(EgressRefusal::new(Why::Malformed, format!("the client's TLS cannot be read ({why})")))
                    }
                };
                match found {
                    Ok((hello, opened)) => Box::pin(self.open_tls(handle, Ok(hello), opened)).await,
                    Err(refused) => {
                        self.tally.became("refused");
                        self.tally.refused(&refused);
                        refuse_name(handle).await;
                        if self.tally.warnings.is_due("names", self.clock.now()) {
                            tracing::warn!(%refused, "refused a client whose hosts file leads a name to the egress listener");
                        }
                    }
                }
            }
            Some(_) => {
                self.tally.became("plain");
                self.serve_calls(handle, Entry::Name, false).await;
            }
        }
    }

    /// Returns the first byte a client sends.
    pub(super) async fn first(&self, handle: &WireHandle) -> Option<u8> {
        self.begins(handle, |bytes| bytes.first().copied()).await
    }

    /// Returns the gate for the host name in a client's ClientHello, as a tunnel to be decrypted.
    fn named(&self, hello: &StartHandshake<Wire>, port: u16) -> Result<InterceptedTunnel, EgressRefusal> {
        let directory = self.directory.get();
        let ports = &directory.egress.ports;
        let usual = if ports.contains(&port) { port } else { ports.first().copied().unwrap_or(443) };
        let hello = hello.client_hello();
        let name = hello.server_name();
        let name = name.ok_or_else(|| EgressRefusal::new(Why::Sni, "the client's TLS does not name a host (SNI)"))?;
        let origin =
            Origin::read(name, Some(usual)).map_err(|error| EgressRefusal::new(Why::Sni, error.to_string()))?;
        match directory.tunnel(&origin)? {
            Fate::Intercepted(section, _) => {
                let gate = self.gate(&directory, section, &origin)?;
                Ok(InterceptedTunnel { origin, gate, agent: String::new(), client: None })
            }
            _ => Err(EgressRefusal::new(
                Why::Sni,
                format!("no gate with intercept = true lists the host {}", origin.host),
            )),
        }
    }

    /// Completes the TLS handshake in the name of the host, and serves the calls in it.
    async fn open_tls(
        self: &Arc<Self>,
        handle: &WireHandle,
        hello: Result<StartHandshake<Wire>, HandshakeFailure>,
        opened: InterceptedTunnel,
    ) {
        let stream = match hello {
            Ok(hello) => self.shake_hands(handle, hello, &opened.origin, &opened.gate).await,
            Err(why) => Err(why),
        };
        let stream = match stream {
            Ok(stream) => stream,
            Err(why) => return self.handshake_failed(&opened, why),
        };
        self.tally.became("intercepted");
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let InterceptedTunnel { origin, gate, client, .. } = opened;
        drop(gate); // each call finds it, so that it may go while the connection is idle
        let handle = WireHandle::new(Box::new(stream), &self.clients.buffers, handle.place.clone());
        let entry = Entry::Tunnel(Inside { origin, is_tls: true }, client);
        self.serve_calls(&handle, entry, http2).await;
    }

    async fn shake_hands(
        &self,
        handle: &WireHandle,
        hello: StartHandshake<Wire>,
        origin: &Origin,
        gate: &Arc<Gate>,
    ) -> Result<TlsStream<Wire>, HandshakeFailure> {
        let Host::Name(name) = &origin.host else { return Err(HandshakeFailure::Sni) };
        let is_other = |sni: &str| !sni.strip_suffix('.').unwrap_or(sni).eq_ignore_ascii_case(name);
        // A client that names none can only mean the host of its tunnel.
        if hello.client_hello().server_name().is_some_and(is_other) {
            return Err(refuse_name(handle).await);
        }
        // If the upstream cannot be asked, its calls get the reason as their answer.
        let http2 = gate.own().upstream.speaks_http2().await.unwrap_or(true);
        let config = self.ca().and_then(|ca| match ca.config(name, http2, tls::wall()) {
            Ok(config) => Some(config),
            Err(error) => {
                tracing::error!(%error, "cannot make a certificate for a client's tunnel: the tunnel is closed");
                None
            }
        });
        let Some(config) = config else { return Err(refuse_name(handle).await) };
        let shaken = tokio::time::timeout(HANDSHAKE, hello.into_stream(config)).await;
        shaken.map_err(|_| HandshakeFailure::Timeout)?.map_err(|error| failure(&error))
    }

    /// Counts a failed handshake, and warns at most once a minute.
    fn handshake_failed(
        &self,
        InterceptedTunnel { origin, gate, agent, .. }: &InterceptedTunnel,
        why: HandshakeFailure,
    ) {
        self.tally.became("refused");
        let gate = gate.name();
        let host = origin.host.to_string();
        self.tally.handshake_failed(gate, &host, agent, why);
        let says = match why {
            HandshakeFailure::Protocol => {
                "it has no version, cipher or protocol in common with the gate or the upstream"
            }
            HandshakeFailure::Sni => "its TLS names another host than its tunnel",
            HandshakeFailure::Timeout => "it took too long",
            HandshakeFailure::Untrusted => {
                "it ended the handshake at the certificate; make it trust the egress CA, by one of the variables in docs/egress.md"
            }
        };
        if self.tally.warnings.is_due(why.word(), self.clock.now()) {
            tracing::warn!(gate = &**gate, host, client = agent, "a client's TLS handshake failed: {says}");
        } else {
            tracing::debug!(gate = &**gate, host, client = agent, why = why.word(), "a client's TLS handshake failed");
        }
    }
}

/// Reads a client's TLS ClientHello.
async fn hello(handle: &WireHandle) -> Result<StartHandshake<Wire>, HandshakeFailure> {
    let hello = LazyConfigAcceptor::new(Acceptor::default(), Wire::unscanned(handle));
    let hello = tokio::time::timeout(HANDSHAKE, hello).await.map_err(|_| HandshakeFailure::Timeout)?;
    hello.map_err(|_| HandshakeFailure::Protocol)
}

/// Refuses the host name in a client's TLS with an alert.
async fn refuse_name(handle: &WireHandle) -> HandshakeFailure {
    let mut wire = Wire::unscanned(handle);
    let said = async {
        wire.write_all(&UNRECOGNIZED_NAME).await?;
        wire.shutdown().await
    };
    if let Err(error) = said.await {
        tracing::debug!(%error, "a client closed its tunnel before the refusal of its host was sent");
    }
    HandshakeFailure::Sni
}

/// Returns why a handshake failed after the ClientHello. A client that rejects the certificate may
/// appear to rustls as undecryptable data, so every error without a clearer cause counts as a
/// rejected certificate.
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
/// The fatal TLS alert `unrecognized_name`, in a record of TLS 1.2 (used by TLS 1.3 too).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];
/// The time for the ClientHello, and for the rest of the handshake; as at every listener.
const HANDSHAKE: Duration = Duration::from_secs(10);
