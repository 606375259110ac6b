//! Sending a request, and sending it again where the upstream provably has not processed it.
//!
//! What proves it: hyper gives the request back (it never left), a GOAWAY whose last stream is below ours, `RST_STREAM(REFUSED_STREAM)`,
//! a stream that hyper gave up while it waited to be opened, if the body was not begun or the method is safe, or an HTTP/1.1 connection
//! that had been idle and closed without a byte of an answer, if no byte of the request was written or the method is safe. (Not for PUT and
//! DELETE: the server may have acted on them.) Everything else that is lost is lost.

use std::{
    error::Error as StdError,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
    request,
};
use hyper::{client::conn::TrySendError, ext::on_informational};
use rustls::AlertDescription;

use super::{
    RequestSettings, Upstream,
    body::Outgoing,
    dial::certificate_alert,
    error::{DialFailure, SendError},
    links::Links,
    pool::{
        Pool,
        stream_lease::{Exclusive, Stream, StreamLease},
    },
    prepare::{self, Head},
    streaming::{Hold, Streaming},
    upgrade::Protocol,
};
use crate::credentials::CredentialVersion;

/// What is known of a request that got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It never left.
    Unsent,
    /// It left, and the upstream says (or it follows) that nobody looked at it. `fresh`: only a new connection is worth another try.
    Unprocessed { fresh: bool },
    /// The upstream refused the stream, most likely because it has too much to do.
    Refused,
    /// It was not looked at, because of our client certificate.
    Unwelcome(AlertDescription),
    /// Nobody knows.
    Lost,
}

/// A failed attempt.
struct Failed {
    fate: Fate,
    source: Arc<dyn StdError + Send + Sync>,
}

/// A request on its way up, with all it takes: in one place, so that the futures around it hold a reference and not a copy each.
pub(super) struct Attempt<'a> {
    pool: Arc<Pool>,
    /// What the next attempt is made on.
    stream: Option<Stream>,
    head: Head,
    body: Outgoing,
    links: Option<Box<Links<'a>>>,
}

impl Upstream {
    /// Makes a request the upstream's.
    pub(super) fn attempt(
        &self,
        settings: &RequestSettings,
        lease: StreamLease,
        request: Request<Outgoing>,
    ) -> Result<Attempt<'_>, SendError> {
        let (parts, body) = request.into_parts();
        let links = self.links(settings, &parts).map(Box::new);
        let mut head = Head::new(parts, &self.inner.target, &settings.host, None).map_err(unsent)?;
        let StreamLease { pool, stream } = lease;
        if matches!(stream, Stream::Http2 { .. }) {
            head.forget_case();
        }
        Ok(Attempt { pool, stream: Some(stream), head, body, links })
    }

    pub(super) async fn transmit(&self, attempt: &mut Attempt<'_>) -> Result<Response<Streaming>, SendError> {
        let shown = self.authorize(&mut attempt.head).await?;
        attempt.body.begin(&self.inner.budget, attempt.head.declares_length());
        let (mut replays, mut refusals, mut returns) = (0, 0, 0);
        loop {
            let failed = match attempt.attempt().await {
                Ok(response) => {
                    attempt.body.settle();
                    return Ok(self.answered(response, shown, attempt.links.as_deref()));
                }
                Err(failed) => failed,
            };
            if let Some(source) = attempt.body.broken() {
                return Err(SendError::Client { source });
            }
            let can_replay = attempt.body.can_replay();
            let fresh = match failed.fate {
                Fate::Unsent if returns < MAX_RETURNS && can_replay => {
                    returns += 1;
                    false
                }
                Fate::Unprocessed { fresh } if replays < MAX_REPLAYS && can_replay => {
                    replays += 1;
                    fresh
                }
                Fate::Refused if refusals < MAX_REFUSALS && can_replay => {
                    refusals += 1;
                    false
                }
                Fate::Unwelcome(alert) => return Err(self.unwelcome(alert)),
                Fate::Unsent => return Err(SendError::Unsent { source: failed.source }),
                Fate::Unprocessed { .. } | Fate::Refused | Fate::Lost => {
                    return Err(SendError::Lost { source: failed.source });
                }
            };
            tracing::debug!(fate = ?failed.fate, error = %failed.source, "not processed upstream: sending it again");
            if let Some(meters) = self.inner.meters.get() {
                meters.replayed(attempt.pool.group());
            }
            let lease = Box::pin(attempt.pool.take_again(fresh)).await;
            attempt.stream = Some(lease.map_err(|source| SendError::Unconnected { source })?.stream);
        }
    }

    /// What points the links of the answer to this request back at the gate, if that is wanted.
    pub(super) fn links(&self, settings: &RequestSettings, parts: &request::Parts) -> Option<Links<'_>> {
        Links::back(settings.rewrite_links.as_ref()?, parts, &self.inner.target, &settings.host)
    }

    /// The response as the client is to see it.
    pub(super) fn answered(
        &self,
        mut response: Response<Streaming>,
        shown: CredentialVersion,
        links: Option<&Links<'_>>,
    ) -> Response<Streaming> {
        prepare::answer(&mut response);
        if let Some(links) = links {
            links.rewrite(response.headers_mut());
        }
        self.inner.certificate_refused.store(false, Ordering::Relaxed);
        if response.status() == StatusCode::UNAUTHORIZED {
            self.unauthorized(shown);
        }
        response
    }

    /// Puts the gate's credentials into a request, if this gate injects, and waits for them where a plugin has to be asked first.
    pub(super) async fn authorize(&self, head: &mut Head) -> Result<CredentialVersion, SendError> {
        self.inner.injector.ready().await.map_err(|error| self.unconnected(DialFailure::Credentials(error)))?;
        Ok(self.inner.injector.authorize(head.headers_mut()))
    }

    /// The upstream does not take what it was shown, in a header or in the handshake: either may have been renewed.
    fn unauthorized(&self, shown: CredentialVersion) {
        self.inner.injector.upstream_said_unauthorized(shown);
        if let Some(tls) = self.inner.dialer.tls() {
            tls.invalidate();
            self.inner.refresh_tls();
        }
    }

    /// The upstream refuses our certificate, which over HTTP/1.1 shows at the first call only.
    fn unwelcome(&self, alert: AlertDescription) -> SendError {
        if let Some(tls) = self.inner.dialer.tls() {
            tls.invalidate();
        }
        let error = self.inner.dialer.failure(DialFailure::ClientCertificate(alert));
        if !self.inner.certificate_refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "the upstream cannot be reached");
        }
        SendError::Unconnected { source: Arc::new(error) }
    }

    fn unconnected(&self, what: DialFailure) -> SendError {
        SendError::Unconnected { source: Arc::new(self.inner.dialer.failure(what)) }
    }
}

/// An HTTP/1.1 answer that must not be handed on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the upstream answered with both Content-Length and Transfer-Encoding: its end cannot be told")]
    TwoLengths,
    #[error("the upstream answered with a Transfer-Encoding other than chunked alone: what is in it cannot be told")]
    Coded,
    #[error("the upstream switched protocols though nobody had asked it to")]
    Unasked,
    #[error("the upstream switched to another protocol than it was asked to")]
    OtherProtocol,
}

impl Broken {
    /// `asked`: the protocol that it was asked to switch to.
    pub(super) fn in_answer<B>(response: &Response<B>, asked: Option<Protocol>) -> Option<Self> {
        let headers = response.headers();
        match (response.status(), asked) {
            (StatusCode::SWITCHING_PROTOCOLS, None) => Some(Self::Unasked),
            (StatusCode::SWITCHING_PROTOCOLS, Some(asked)) => {
                (Protocol::named(headers) != Some(asked)).then_some(Self::OtherProtocol)
            }
            _ if headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH) => {
                Some(Self::TwoLengths)
            }
            _ => is_coded(headers).then_some(Self::Coded),
        }
    }
}

/// Whether the body came in another coding than in chunks, or in chunks twice. The header field
/// goes no further than here, so that the client would take the coded bytes for the body. Go's
/// client refuses the same answers, and a gate sends no TE that would ask for one.
fn is_coded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    codings.next().is_some_and(|coding| !chunked(coding)) || codings.next().is_some()
}

impl Attempt<'_> {
    /// One attempt on one stream. Dropped in the middle of it, it resets the stream or closes the connection.
    async fn attempt(&mut self) -> Result<Response<Streaming>, Failed> {
        let safe = self.head.method().is_safe();
        match self.stream.take() {
            None => Err(closed_at_once()),
            Some(Stream::Http1(exclusive)) => {
                let mut request = self.head.http1(self.body.attempt(None).on(&exclusive.traffic));
                if let Some(body) = self.body.hold_back(CONTINUE_HTTP1) {
                    on_informational(&mut request, move |told| {
                        if told.status() == StatusCode::CONTINUE {
                            body.proceed();
                        }
                    });
                }
                attempt_http1(exclusive, request, safe).await
            }
            Some(Stream::Http2 { unit, mut sender }) => {
                self.body.hold_back(CONTINUE_HTTP2); // hyper does not tell what it is told over HTTP/2
                let request = self.head.http2(self.body.attempt(Some(Arc::clone(&unit))));
                match sender.try_send_request(request).await {
                    Ok(response) => Ok(response.map(|body| Streaming::new(body, Hold::Stream(unit)))),
                    Err(error) => Err(judge_http2(error, safe || self.body.is_unasked())),
                }
            }
        }
    }
}

/// Sends at once; the future is the answer.
fn attempt_http1(
    mut exclusive: Exclusive,
    request: Request<Outgoing>,
    safe: bool,
) -> impl Future<Output = Result<Response<Streaming>, Failed>> + Send {
    let traffic = Arc::clone(&exclusive.traffic);
    let before = (traffic.read.load(Ordering::Relaxed), traffic.written.load(Ordering::Relaxed));
    exclusive.busy = true;
    let sending = exclusive.sender.as_mut().map(|sender| sender.try_send_request(request));
    async move {
        let Some(sending) = sending else { return Err(closed_at_once()) };
        match sending.await {
            Ok(response) => match Broken::in_answer(&response, None) {
                Some(broken) => Err(Failed { fate: Fate::Lost, source: Arc::new(broken) }), // and its connection is closed
                None => Ok(response.map(|body| Streaming::new(body, Hold::Connection(exclusive)))),
            },
            Err(error) => Err(judge_http1(error, &exclusive, before, safe)),
        }
    }
}

/// What an HTTP/1.1 error proves. `before`: bytes read and written on the connection when the request was handed over.
fn judge_http1(
    mut error: TrySendError<Request<Outgoing>>,
    exclusive: &Exclusive,
    before: (u64, u64),
    safe: bool,
) -> Failed {
    let traffic = &exclusive.traffic;
    let silent = traffic.read.load(Ordering::Relaxed) == before.0;
    let unwritten = traffic.written.load(Ordering::Relaxed) == before.1;
    let fate = if let Some(alert) = certificate_alert(error.error()) {
        Fate::Unwelcome(alert)
    } else if error.take_message().is_some() || unwritten {
        Fate::Unsent
    } else if exclusive.reused && silent && safe {
        Fate::Unprocessed { fresh: true }
    } else {
        Fate::Lost
    };
    Failed { fate, source: Arc::new(error.into_error()) }
}

fn closed_at_once() -> Failed {
    Failed { fate: Fate::Unsent, source: Arc::new(DialFailure::ClosedAtOnce) }
}

/// What an HTTP/2 error proves. `repeatable`: to send the request again is safe even if its head did arrive.
fn judge_http2(mut error: TrySendError<Request<Outgoing>>, repeatable: bool) -> Failed {
    let returned = error.take_message().is_some();
    let source = error.into_error();
    let h2 = source.source().and_then(|source| source.downcast_ref::<h2::Error>());
    let fate = match h2 {
        _ if returned => Fate::Unsent,
        // h2 fails a stream with the peer's GOAWAY only if it is above its last stream; those below run on, and fail by I/O if at all
        Some(h2) if h2.is_go_away() && h2.is_remote() => Fate::Unprocessed { fresh: false },
        Some(h2) if h2.is_reset() && h2.is_remote() && h2.reason() == Some(h2::Reason::REFUSED_STREAM) => Fate::Refused,
        // hyper drops a request whose stream was still waiting to be opened when a GOAWAY came, and does not give it back
        None if source.is_user() && repeatable => Fate::Unprocessed { fresh: false },
        _ => Fate::Lost,
    };
    Failed { fate, source: Arc::new(source) }
}

pub(super) fn unsent(source: impl StdError + Send + Sync + 'static) -> SendError {
    SendError::Unsent { source: Arc::new(source) }
}

pub(super) fn lost(source: impl StdError + Send + Sync + 'static) -> SendError {
    SendError::Lost { source: Arc::new(source) }
}

/// A client that waits for `100 Continue` is asked for its body when the upstream says so, at a final answer never, and after this long
/// in any case: an upstream need not know of it. As `ExpectContinueTimeout` of Go's default transport and curl's own.
const CONTINUE_HTTP1: Duration = Duration::from_secs(1);
/// The same where the upstream's `100 Continue` cannot be seen: long enough for an answer from the head alone.
const CONTINUE_HTTP2: Duration = Duration::from_millis(100);
/// Trying on would add to what the upstream has too much of.
const MAX_REFUSALS: u32 = 2;
/// As Go's client does: with a server that says GOAWAY on every fiftieth response to 200 calls at once, two would not be enough.
const MAX_REPLAYS: u32 = 6;
/// Each return retires the connection it came from, so this bounds only a server that closes every one at once.
const MAX_RETURNS: u32 = 6;
