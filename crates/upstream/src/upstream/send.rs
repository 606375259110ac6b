//! Sends requests, and sends them again if the upstream provably has not processed them.
//!
//! This is proved by one of:
//! - hyper gives the request back, because it was never sent
//! - a GOAWAY whose last stream is below this one
//! - `RST_STREAM(REFUSED_STREAM)`
//! - hyper gave up a stream that still waited to be opened, if the body was not begun or the method
//!   is safe
//! - an HTTP/1.1 connection failed before any byte of the request was written
//! - an HTTP/1.1 connection that had been idle closed without a byte of a response, if the method
//!   is safe
//!
//! Not so for PUT and DELETE: the server may have acted on them. Any other lost request is not sent
//! again.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, request};
use hyper::client::conn::TrySendError;
use hyper::ext::on_informational;
use rustls::AlertDescription;

use super::body::OutgoingBody;
use super::dial::certificate_alert;
use super::error::{DialFailure, SendError};
use super::links::Links;
use super::pool::{Exclusive, Pool, SentBody, Stream, StreamLease};
use super::prepare::{self, Head};
use super::protocol::Protocol;
use super::response_body::{Hold, ResponseBody};
use super::{Options, Upstream};
use crate::api::Group;
use crate::credentials::CredentialVersion;

/// What happened to a request without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The request was not sent.
    Unsent,
    /// The request was sent, but the upstream did not process it. If `fresh`, the next attempt must
    /// use a new connection.
    Unprocessed { fresh: bool },
    /// The upstream refused the stream, probably because it is overloaded.
    Refused,
    /// The request was not processed, because the upstream refused the gate's client certificate.
    CertificateRefused(AlertDescription),
    /// It is unknown what happened to the request.
    Lost,
}

/// A failed attempt: its error, and what happened to the request.
struct FailedTry {
    fate: Fate,
    source: Arc<dyn StdError + Send + Sync>,
}

/// A request, with everything needed to send it once or several times.
///
/// It is kept in one place: the futures around it have only a reference, because it is large.
pub(super) struct Attempt<'a> {
    pool: Arc<Pool>,
    /// The stream for the next attempt.
    stream: Option<Stream>,
    head: Head,
    body: OutgoingBody,
    links: Option<Box<Links<'a>>>,
}

impl Upstream {
    /// Prepares a client's request for sending.
    pub(super) fn attempt(
        &self,
        settings: &Options,
        lease: StreamLease,
        request: Request<OutgoingBody>,
    ) -> Result<Attempt<'_>, SendError> {
        let (parts, body) = request.into_parts();
        let links = self.links(settings, &parts).map(Box::new);
        let head = Head::new(parts, &self.inner.target, &settings.host, None);
        let head = head.map_err(|error| SendError::Unsent(Arc::new(error)))?;
        let StreamLease { pool, stream } = lease;
        Ok(Attempt { pool, stream: Some(stream), head, body, links })
    }

    pub(super) async fn transmit(&self, attempt: &mut Attempt<'_>) -> Result<Response<ResponseBody>, SendError> {
        let version = self.authorize(&mut attempt.head, attempt.pool.group).await?;
        attempt.body.begin(&self.inner.budget, || attempt.head.declares_length());
        let mut replays = 0;
        let mut refusals = 0;
        loop {
            let FailedTry { fate, source } = match attempt.send().await {
                Ok(response) => {
                    attempt.body.answered();
                    return Ok(self.answered(response, version, attempt.links.as_deref()));
                }
                Err(failed) => failed,
            };
            if let Some(source) = attempt.body.broken() {
                return Err(SendError::Client(source));
            }
            match fate {
                Fate::Unsent | Fate::Unprocessed { .. } => {}
                Fate::Refused => refusals += 1,
                Fate::CertificateRefused(alert) => return Err(self.certificate_refused(alert)),
                Fate::Lost => return Err(SendError::Lost(source)),
            }
            if replays == MAX_REPLAYS || refusals > MAX_REFUSALS || !attempt.body.can_replay() {
                return Err(if fate == Fate::Unsent { SendError::Unsent(source) } else { SendError::Lost(source) });
            }
            replays += 1;
            tracing::debug!(?fate, error = %source, "the upstream did not process a request: sending it again");
            if let Some(meters) = self.inner.dialer.meters.get() {
                meters.replayed(attempt.pool.group);
            }
            let fresh = fate == Fate::Unprocessed { fresh: true };
            let lease = Box::pin(attempt.pool.take_again(fresh)).await;
            attempt.stream = Some(lease.map_err(SendError::Unconnected)?.stream);
        }
    }

    /// Returns a rewriter for links in the response; `None` if no link needs a change.
    pub(super) fn links(&self, settings: &Options, parts: &request::Parts) -> Option<Links<'_>> {
        Links::new(settings.rewrite_links.as_ref(), &self.inner.mount, parts, &self.inner.target, &settings.host)
    }

    /// Adapts a response to the client, and handles a 401.
    pub(super) fn answered(
        &self,
        mut response: Response<ResponseBody>,
        version: CredentialVersion,
        links: Option<&Links<'_>>,
    ) -> Response<ResponseBody> {
        prepare::answer(&mut response);
        if let Some(links) = links {
            links.rewrite(response.headers_mut());
        }
        self.inner.certificate_refused.store(false, Ordering::Relaxed);
        if response.status() == StatusCode::UNAUTHORIZED {
            self.unauthorized(version);
        }
        response
    }

    /// Adds the gate's own credentials, if it uses them. Waits for an exec plugin if necessary.
    pub(super) async fn authorize(&self, head: &mut Head, group: Group) -> Result<CredentialVersion, SendError> {
        let Err(error) = self.inner.injector.ready(group == Group::Exempt).await else {
            return Ok(self.inner.injector.authorize(&mut head.headers));
        };
        let error = self.inner.dialer.failure(DialFailure::Credentials(error));
        Err(SendError::Unconnected(Arc::new(error)))
    }

    /// Requests new credentials after the upstream refused this version with a 401.
    fn unauthorized(&self, version: CredentialVersion) {
        self.inner.injector.upstream_said_unauthorized(version);
        if let Some(tls) = &self.inner.dialer.tls {
            tls.invalidate();
            self.inner.refresh_tls();
        }
    }

    /// Returns the error for a refused client certificate, and logs it once. Over HTTP/1.1 it is
    /// noticed only at the first call.
    fn certificate_refused(&self, alert: AlertDescription) -> SendError {
        if let Some(tls) = &self.inner.dialer.tls {
            tls.invalidate();
        }
        let error = self.inner.dialer.failure(DialFailure::ClientCertificate(alert));
        if !self.inner.certificate_refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(gate = self.inner.dialer.gate(), %error, "the upstream cannot be reached");
        }
        SendError::Unconnected(Arc::new(error))
    }
}

/// Why an HTTP/1.1 response must not be forwarded.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokenAnswer {
    #[error("the upstream answered with both Content-Length and Transfer-Encoding, so its end is unknown")]
    TwoLengths,
    #[error("the upstream answered with a Content-Length that is not one number, so its end is unknown")]
    UnclearLength,
    #[error("the upstream answered with a Transfer-Encoding other than chunked alone, so its content is unknown")]
    Coded,
    #[error("the upstream answered 101, but the request asked for no other protocol")]
    Unasked,
    #[error("the upstream answered 101 with another protocol than the request asked for")]
    OtherProtocol,
}

impl BrokenAnswer {
    /// Returns what is wrong with a response; `None` if nothing. `asked` is the requested protocol.
    pub(super) fn find<B>(response: &Response<B>, asked: Option<Protocol>) -> Option<Self> {
        let headers = response.headers();
        match (response.status(), asked) {
            (StatusCode::SWITCHING_PROTOCOLS, None) => Some(Self::Unasked),
            (StatusCode::SWITCHING_PROTOCOLS, asked) => {
                (Protocol::named(headers) != asked).then_some(Self::OtherProtocol)
            }
            _ if !headers.contains_key(TRANSFER_ENCODING) => is_unclear(headers).then_some(Self::UnclearLength),
            _ if headers.contains_key(CONTENT_LENGTH) => Some(Self::TwoLengths),
            _ => is_coded(headers).then_some(Self::Coded),
        }
    }
}

/// Returns true if the Content-Length is not a number, or has several different values. hyper
/// checks this only for responses with a body.
fn is_unclear(headers: &HeaderMap) -> bool {
    let mut lengths =
        headers.get_all(CONTENT_LENGTH).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let Some(first) = lengths.next().map(<[u8]>::trim_ascii) else { return false };
    let is_number = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
    !is_number || !lengths.all(|length| length.trim_ascii() == first)
}

/// Returns true if the body has any other transfer coding than chunked, or chunked twice.
///
/// The header is not forwarded, so the client would take the encoded bytes for the body. Go's
/// client refuses the same responses, and the gate never requests such a coding by a TE header.
fn is_coded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    codings.next().is_some_and(|coding| !chunked(coding)) || codings.next().is_some()
}

impl Attempt<'_> {
    /// Makes one attempt, on one stream. Dropping the future resets the stream or closes the
    /// connection.
    async fn send(&mut self) -> Result<Response<ResponseBody>, FailedTry> {
        let safe = self.head.method.is_safe();
        match self.stream.take() {
            None => Err(closed_at_once()),
            Some(Stream::Http1(exclusive)) => {
                let body = self.body.attempt(None);
                let mut request = self.head.http1(body);
                if let Some(ask) = self.body.hold_back(CONTINUE_HTTP1) {
                    on_informational(&mut request, move |told| {
                        if told.status() == StatusCode::CONTINUE {
                            ask();
                        }
                    });
                }
                send_http1(exclusive, request, safe).await
            }
            Some(Stream::Http2 { unit, mut sender }) => {
                self.body.hold_back(CONTINUE_HTTP2); // hyper does not report a 100 over HTTP/2
                let request = self.head.http2(self.body.attempt(Some(Arc::clone(&unit))));
                let sending = sender.try_send_request(request);
                // A request that is handed over while the connection ends is given back only once
                // no sender is left.
                drop(sender);
                match sending.await {
                    Ok(response) => Ok(response.map(|body| ResponseBody::new(body, Hold::Stream(unit)))),
                    Err(error) => Err(judge_http2(error, safe || self.body.is_unasked())),
                }
            }
        }
    }
}

/// Sends a request immediately. The returned future waits for the response.
fn send_http1(
    mut exclusive: Exclusive,
    request: Request<SentBody>,
    safe: bool,
) -> impl Future<Output = Result<Response<ResponseBody>, FailedTry>> + Send {
    let traffic = Arc::clone(&exclusive.traffic);
    let before = (traffic.read.load(Ordering::Relaxed), traffic.written.load(Ordering::Relaxed));
    exclusive.busy = true;
    let sending = exclusive.sender.as_mut().map(|sender| sender.try_send_request(request));
    async move {
        let Some(sending) = sending else { return Err(closed_at_once()) };
        match until_answered(sending, &mut exclusive).await {
            Ok(response) => match BrokenAnswer::find(&response, None) {
                Some(broken) => Err(FailedTry { fate: Fate::Lost, source: Arc::new(broken) }), // and its connection is closed
                None => Ok(response.map(|body| ResponseBody::new(body, Hold::Connection(exclusive)))),
            },
            Err(error) => Err(judge_http1(error, &exclusive, before, safe)),
        }
    }
}

/// Waits for the response.
///
/// If another thread ends the connection while hyper receives the request, hyper returns the
/// request only once no sender exists. So the sender is dropped when the connection has ended.
async fn until_answered<T>(sending: impl Future<Output = T>, exclusive: &mut Exclusive) -> T {
    let mut sending = pin!(sending);
    poll_fn(|cx| {
        let poll = sending.as_mut().poll(cx);
        if poll.is_ready() || exclusive.sender.is_none() || !exclusive.traffic.poll_over(cx) {
            return poll;
        }
        exclusive.sender = None;
        sending.as_mut().poll(cx)
    })
    .await
}

/// Returns what an HTTP/1.1 error proves about its request. `before` are the connection's byte
/// counts before the request.
fn judge_http1(
    mut error: TrySendError<Request<SentBody>>,
    exclusive: &Exclusive,
    before: (u64, u64),
    safe: bool,
) -> FailedTry {
    let traffic = &exclusive.traffic;
    let silent = traffic.read.load(Ordering::Relaxed) == before.0;
    let unwritten = traffic.written.load(Ordering::Relaxed) == before.1;
    let fate = if let Some(alert) = certificate_alert(error.error()) {
        Fate::CertificateRefused(alert)
    } else if error.take_message().is_some() || unwritten {
        Fate::Unsent
    } else if exclusive.reused && silent && safe {
        Fate::Unprocessed { fresh: true }
    } else {
        Fate::Lost
    };
    FailedTry { fate, source: Arc::new(error.into_error()) }
}

fn closed_at_once() -> FailedTry {
    FailedTry { fate: Fate::Unsent, source: Arc::new(DialFailure::ClosedAtOnce) }
}

/// Returns what an HTTP/2 error proves about its request. If `repeatable`, another attempt is safe
/// even if the upstream received the head.
fn judge_http2(mut error: TrySendError<Request<SentBody>>, repeatable: bool) -> FailedTry {
    let returned = error.take_message().is_some();
    let source = error.into_error();
    let h2 = source.source().and_then(|source| source.downcast_ref::<h2::Error>());
    let fate = match h2 {
        _ if returned => Fate::Unsent,
        // h2 fails a stream with the peer's GOAWAY only if it is above its last stream; those below
        // run on, and fail by I/O if at all
        Some(h2) if h2.is_go_away() && h2.is_remote() => Fate::Unprocessed { fresh: false },
        Some(h2) if h2.is_reset() && h2.is_remote() && h2.reason() == Some(h2::Reason::REFUSED_STREAM) => Fate::Refused,
        // hyper drops a request whose stream was still waiting to be opened when a GOAWAY came, and
        // does not give it back
        None if source.is_user() && repeatable => Fate::Unprocessed { fresh: false },
        _ => Fate::Lost,
    };
    FailedTry { fate, source: Arc::new(source) }
}

/// How long the client waits for `100 Continue` if the upstream sends none.
///
/// An upstream need not know this status, and sends none after a final response. The time is the
/// same as `ExpectContinueTimeout` in Go's default transport, and in curl.
const CONTINUE_HTTP1: Duration = Duration::from_secs(1);
/// How long the client waits for `100 Continue` over HTTP/2. There the upstream's own is not
/// visible, so this only leaves time for a response to the head alone.
const CONTINUE_HTTP2: Duration = Duration::from_millis(100);
/// The most times a request is sent again after refused streams; more would only add load.
const MAX_REFUSALS: u32 = 2;
/// The most times a request is sent again, as in Go's client. Two are not enough for a server with
/// a GOAWAY on every fiftieth response to 200 concurrent calls.
const MAX_REPLAYS: u32 = 6;
