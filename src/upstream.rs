//! The upstream: connections of our own, by group, with every stream accounted for.
//!
//! Not hyper-util's legacy client: that keeps one HTTP/2 connection per authority, so the 101st watch hangs every other call behind it.
//! Takes only [`Admitted`] requests. Never parks a call: a granted call either has a stream or goes back to the limiter, whose sum of
//! [`Rooms::add_room`] less its own grants is at every moment the streams that are free.

mod body;
mod error;
mod lease;
mod streaming;

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response, uri};
use hyper::body::Incoming;

pub use self::{
    body::{Kept, Outgoing, OutgoingError},
    error::{DialError, SendError},
    lease::Lease,
    streaming::Streaming,
};
use crate::{api::Group, clock::Clock, credentials::Injector, limit::Admitted};

/// Who wants to know how many more calls the connections could take. Implemented by the proxy's driver.
///
/// Called without any lock of the pool held, from whichever task noticed; also from the drop of a [`Lease`] or [`Streaming`], so neither may
/// be dropped under a lock that these methods take.
pub trait Rooms: Send + Sync + 'static {
    /// Room for `change` more calls of `group` (fewer when negative) than was told before. Sums may pass below zero for a moment.
    fn add_room(&self, group: Group, change: i64);
    /// A dial failed: whoever waits for `group` need not wait on.
    fn unreachable(&self, group: Group);
}

/// Where calls go and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Scheme, host, port and base path.
    pub target: Target,
    /// TLS towards the target; `None` speaks plain HTTP/1.1.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The Host sent upstream.
    pub host: Host,
    /// Whose credentials the upstream sees.
    pub injector: Arc<Injector>,
    /// To a connection that can take calls: name, TCP, TLS, first SETTINGS.
    pub connect_timeout: Duration,
    /// From handing over the request to the response head; never for long-running calls. `None` for no limit.
    pub response_timeout: Option<Duration>,
}

/// The address of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `http` or `https`.
    pub scheme: uri::Scheme,
    /// Host and, if it is not the scheme's own, port.
    pub authority: uri::Authority,
    /// Put before every path, as it stands: empty, or begins with `/` and does not end with it.
    pub base_path: String,
    /// The name to verify and to send as SNI; `None` for the authority's host.
    pub server_name: Option<String>,
}

/// The Host sent upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// The upstream's own authority.
    Rewrite,
    /// The client's.
    Preserve,
    /// This one.
    Literal(HeaderValue),
}

/// The connections to one upstream. Cheap to clone.
#[derive(Clone)]
pub struct Upstream {}

impl Upstream {
    /// Starts with no connection; the first call dials.
    #[must_use]
    pub fn start(_options: Options, _clock: Clock, _rooms: Arc<dyn Rooms>) -> Self {
        todo!()
    }

    /// `calls` calls of `group` wait for room and nothing else: dials if that makes sense. A level, not an increment; spurious calls do
    /// nothing.
    pub fn want(&self, _group: Group, _calls: usize) {
        todo!()
    }

    /// The last dial of `group` failed, the next is not due yet and no stream is free: new calls fail at once, with this.
    #[must_use]
    pub fn down(&self, _group: Group) -> Option<Arc<DialError>> {
        todo!()
    }

    /// The stream that a grant of the limiter stands for. `None` when the connection went meanwhile: the unit of room that the grant
    /// took is then given back here, and the caller requeues.
    #[must_use]
    pub fn checkout(&self, _group: Group) -> Option<Lease> {
        todo!()
    }

    /// A stream for an exempt call: a free one, or the first to come of its own dial and anybody else's.
    ///
    /// # Errors
    /// Its own dial failed.
    pub async fn checkout_exempt(&self, _group: Group) -> Result<Lease, Arc<DialError>> {
        todo!()
    }

    /// Sends the request and returns at the response head. Makes the request upstream's (hop-by-hop fields, Host, base path, credentials)
    /// and the response the client's. What the upstream provably did not process is sent again on another connection, at most twice;
    /// nothing else ever is. Dropping the future resets the stream.
    ///
    /// # Errors
    /// What became of the request; see [`SendError`].
    pub async fn send(
        &self,
        _lease: Lease,
        _request: Admitted<Request<Outgoing>>,
    ) -> Result<Response<Streaming>, SendError> {
        todo!()
    }

    /// Sends an upgrade on an HTTP/1.1 connection of its own. `hyper::upgrade::on` works on the response; its connection serves nothing else.
    ///
    /// # Errors
    /// What became of the request.
    pub async fn upgrade(&self, _request: Admitted<Request<Outgoing>>) -> Result<Response<Incoming>, SendError> {
        todo!()
    }

    /// Whose credentials the upstream sees: the proxy asks it what must be refused.
    #[must_use]
    pub fn injector(&self) -> &Injector {
        todo!()
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").finish_non_exhaustive()
    }
}
