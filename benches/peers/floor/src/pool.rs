//! Connections to the upstream: idle HTTP/1.1 connections, the last used first, and HTTP/2
//! connections, each with as many streams as it may have.
//!
//! The locks are never contended, as there is one thread. They only make the pool a value that can
//! be shared.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Result;

type Idle = Arc<Mutex<Vec<http1::SendRequest<Incoming>>>>;

/// nginx and kube-apiserver allow at least this many.
const STREAMS: usize = 100;

pub(crate) struct Pool {
    address: SocketAddr,
    connector: Option<TlsConnector>,
    idle: Idle,
    shared: Mutex<Vec<Shared>>,
    /// A call that needs another HTTP/2 connection waits for the one that is being made.
    dialing: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Shared {
    sender: http2::SendRequest<Incoming>,
    streams: Arc<AtomicUsize>,
}

/// The use of a connection, up to the end of a response.
pub(crate) enum Lease {
    Whole(Option<http1::SendRequest<Incoming>>, Idle),
    Stream(Arc<AtomicUsize>),
}

impl Drop for Lease {
    fn drop(&mut self) {
        match self {
            Self::Whole(sender, idle) => lock(idle).extend(sender.take().filter(|sender| !sender.is_closed())),
            Self::Stream(streams) => drop(streams.fetch_sub(1, Ordering::Relaxed)),
        }
    }
}

impl Pool {
    pub(crate) fn new(address: SocketAddr, connector: Option<TlsConnector>) -> Self {
        let (idle, shared, dialing) = Default::default();
        Self { address, connector, idle, shared, dialing }
    }

    pub(crate) async fn send_over_h1(&self, request: Request<Incoming>) -> Result<(Response<Incoming>, Lease)> {
        let mut sender = self.whole().await?;
        let response = sender.send_request(request).await?;
        Ok((response, Lease::Whole(Some(sender), Arc::clone(&self.idle))))
    }

    pub(crate) async fn send_over_h2(&self, request: Request<Incoming>) -> Result<(Response<Incoming>, Lease)> {
        let Shared { mut sender, streams } = self.stream().await?;
        let lease = Lease::Stream(streams);
        Ok((sender.send_request(request).await?, lease))
    }

    async fn whole(&self) -> Result<http1::SendRequest<Incoming>> {
        while let Some(mut sender) = self.last_used() {
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
        let stream = self.dial().await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn last_used(&self) -> Option<http1::SendRequest<Incoming>> {
        lock(&self.idle).pop()
    }

    async fn stream(&self) -> Result<Shared> {
        if let Some(shared) = self.with_room() {
            return Ok(shared);
        }
        let _dialing = self.dialing.lock().await;
        if let Some(shared) = self.with_room() {
            return Ok(shared);
        }
        let connector = self.connector.as_ref().ok_or("HTTP/2 goes over TLS")?;
        let name = ServerName::IpAddress(self.address.ip().into());
        let stream = connector.connect(name, self.dial().await?).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(async move { drop(connection.await) });
        let shared = Shared { sender, streams: Arc::new(AtomicUsize::new(1)) };
        lock(&self.shared).push(shared.clone());
        Ok(shared)
    }

    fn with_room(&self) -> Option<Shared> {
        let mut all = lock(&self.shared);
        all.retain(|shared| !shared.sender.is_closed());
        let found = all.iter().find(|shared| shared.streams.load(Ordering::Relaxed) < STREAMS)?;
        found.streams.fetch_add(1, Ordering::Relaxed);
        Some(found.clone())
    }

    async fn dial(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
