//! Sending a request, and sending it again where the upstream provably has not processed it.
//!
//! The proofs: hyper gives the request back (it never left), a GOAWAY whose last stream is below
//! ours, `RST_STREAM(REFUSED_STREAM)`, a stream that hyper gave up while it waited to be opened, if
//! the body was not begun or the method is safe, or an HTTP/1.1 connection that had been idle and
//! closed without a byte of an answer, if no byte of the request was written or the method is safe.
//! (Not for PUT and DELETE: the server may have acted on them.) Everything else that is lost is
//! lost.

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

use super::body::Outgoing;
use super::dial::certificate_alert;
use super::error::{DialFailure, SendError};
use super::links::Links;
use super::pool::{Exclusive, Pool, SentBody, Stream, StreamLease};
use super::prepare::{self, Head};
use super::protocol::Protocol;
use super::streaming::{Hold, Streaming};
use super::{RequestSettings, Upstream};
use crate::api::Group;
use crate::credentials::CredentialVersion;

/// The knowledge about a request that got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It never left.
    Unsent,
    /// It left, and the upstream says (or it follows) that it was not processed. `fresh`: only a
    /// new connection is worth another try.
    Unprocessed { fresh: bool },
    /// The upstream refused the stream, most likely because it has too much to do.
    Refused,
    /// It was not processed, because of the gate's client certificate.
    CertificateRefused(AlertDescription),
    /// Its fate is unknown.
    Lost,
}

/// A try that failed.
struct Failed {
    fate: Fate,
    source: Arc<dyn StdError + Send + Sync>,
}

/// A request on its way up, with all that it takes. It is in one place, so that the futures around
/// it hold a reference and not a copy each.
pub(super) struct Attempt<'a> {
    pool: Arc<Pool>,
    /// The stream for the next try.
    stream: Option<Stream>,
    head: Head,
    body: Outgoing,
    links: Option<Box<Links<'a>>>,
}

impl Upstream {
    /// Makes a client's request the upstream's.
    pub(super) fn attempt(
        &self,
        settings: &RequestSettings,
        lease: StreamLease,
        request: Request<Outgoing>,
    ) -> Result<Attempt<'_>, SendError> {
        let (parts, body) = request.into_parts();
        let links = self.links(settings, &parts).map(Box::new);
        let head = Head::new(parts, &self.inner.target, &settings.host, None);
        let mut head = head.map_err(|error| SendError::Unsent(Arc::new(error)))?;
        let StreamLease { pool, stream } = lease;
        if matches!(stream, Stream::Http2 { .. }) {
            head.forget_case();
        }
        Ok(Attempt { pool, stream: Some(stream), head, body, links })
    }

    pub(super) async fn transmit(&self, attempt: &mut Attempt<'_>) -> Result<Response<Streaming>, SendError> {
        let version = self.authorize(&mut attempt.head, attempt.pool.group).await?;
        attempt.body.begin(&self.inner.budget, || attempt.head.declares_length());
        let mut replays = 0;
        let mut refusals = 0;
        let mut returns = 0;
        loop {
            let Failed { fate, source } = match attempt.send().await {
                Ok(response) => {
                    attempt.body.answered();
                    return Ok(self.answered(response, version, attempt.links.as_deref()));
                }
                Err(failed) => failed,
            };
            if let Some(source) = attempt.body.broken() {
                return Err(SendError::Client(source));
            }
            let (tries, most, fresh) = match fate {
                Fate::Unsent => (&mut returns, MAX_RETURNS, false),
                Fate::Unprocessed { fresh } => (&mut replays, MAX_REPLAYS, fresh),
                Fate::Refused => (&mut refusals, MAX_REFUSALS, false),
                Fate::CertificateRefused(alert) => return Err(self.certificate_refused(alert)),
                Fate::Lost => return Err(SendError::Lost(source)),
            };
            if *tries >= most || !attempt.body.can_replay() {
                return Err(if fate == Fate::Unsent { SendError::Unsent(source) } else { SendError::Lost(source) });
            }
            *tries += 1;
            tracing::debug!(?fate, error = %source, "not processed upstream: sending it again");
            if let Some(meters) = self.inner.dialer.meters.get() {
                meters.replayed(attempt.pool.group);
            }
            let lease = Box::pin(attempt.pool.take_again(fresh)).await;
            attempt.stream = Some(lease.map_err(SendError::Unconnected)?.stream);
        }
    }

    /// Returns what points the links of the answer to this request back at the gate, if any can
    /// change.
    pub(super) fn links(&self, settings: &RequestSettings, parts: &request::Parts) -> Option<Links<'_>> {
        Links::new(settings.rewrite_links.as_ref(), parts, &self.inner.target, &settings.host)
    }

    /// Makes a response the client's.
    pub(super) fn answered(
        &self,
        mut response: Response<Streaming>,
        version: CredentialVersion,
        links: Option<&Links<'_>>,
    ) -> Response<Streaming> {
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

    /// Puts the gate's credentials into a request, if this gate injects, and waits for them where a
    /// plugin has to be asked first.
    pub(super) async fn authorize(&self, head: &mut Head, group: Group) -> Result<CredentialVersion, SendError> {
        let Err(error) = self.inner.injector.ready(group == Group::Exempt).await else {
            return Ok(self.inner.injector.authorize(&mut head.headers));
        };
        let error = self.inner.dialer.failure(DialFailure::Credentials(error));
        Err(SendError::Unconnected(Arc::new(error)))
    }

    /// Looks for renewed credentials after a 401: the upstream does not accept what it was version,
    /// in a header or in the handshake.
    fn unauthorized(&self, version: CredentialVersion) {
        self.inner.injector.upstream_said_unauthorized(version);
        if let Some(tls) = &self.inner.dialer.tls {
            tls.invalidate();
            self.inner.refresh_tls();
        }
    }

    /// Reports that the upstream refuses the gate's certificate, which over HTTP/1.1 shows at the
    /// first call only.
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

/// An HTTP/1.1 answer that must not be handed on.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokenAnswer {
    #[error("the upstream answered with both Content-Length and Transfer-Encoding, so its end is unknown")]
    TwoLengths,
    #[error("the upstream answered with a Content-Length that is not one number, so its end is unknown")]
    UnclearLength,
    #[error("the upstream answered with a Transfer-Encoding other than chunked alone, so its content is unknown")]
    Coded,
    #[error("the upstream switched protocols though it was not asked to")]
    Unasked,
    #[error("the upstream switched to another protocol than it was asked to")]
    OtherProtocol,
}

impl BrokenAnswer {
    /// Finds what is wrong with an answer. `asked` is the protocol that the upstream was asked to
    /// switch to.
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

/// True if a length is not a number, or there are two that differ. hyper looks only where a body
/// follows.
fn is_unclear(headers: &HeaderMap) -> bool {
    let mut lengths =
        headers.get_all(CONTENT_LENGTH).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let Some(first) = lengths.next().map(<[u8]>::trim_ascii) else { return false };
    let is_number = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
    !is_number || !lengths.all(|length| length.trim_ascii() == first)
}

/// True if the body came in another coding than in chunks, or in chunks twice. The header field
/// goes no further than here, so that the client would take the coded bytes for the body. Go's
/// client refuses the same answers, and a gate sends no TE that would ask for one.
fn is_coded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    codings.next().is_some_and(|coding| !chunked(coding)) || codings.next().is_some()
}

impl Attempt<'_> {
    /// Tries once, on one stream. Dropped in the middle of it, it resets the stream or closes the
    /// connection.
    async fn send(&mut self) -> Result<Response<Streaming>, Failed> {
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
                    Ok(response) => Ok(response.map(|body| Streaming::new(body, Hold::Stream(unit)))),
                    Err(error) => Err(judge_http2(error, safe || self.body.is_unasked())),
                }
            }
        }
    }
}

/// Sends at once; the future is the answer.
fn send_http1(
    mut exclusive: Exclusive,
    request: Request<SentBody>,
    safe: bool,
) -> impl Future<Output = Result<Response<Streaming>, Failed>> + Send {
    let traffic = Arc::clone(&exclusive.traffic);
    let before = (traffic.read.load(Ordering::Relaxed), traffic.written.load(Ordering::Relaxed));
    exclusive.busy = true;
    let sending = exclusive.sender.as_mut().map(|sender| sender.try_send_request(request));
    async move {
        let Some(sending) = sending else { return Err(closed_at_once()) };
        match until_answered(sending, &mut exclusive).await {
            Ok(response) => match BrokenAnswer::find(&response, None) {
                Some(broken) => Err(Failed { fate: Fate::Lost, source: Arc::new(broken) }), // and its connection is closed
                None => Ok(response.map(|body| Streaming::new(body, Hold::Connection(exclusive)))),
            },
            Err(error) => Err(judge_http1(error, &exclusive, before, safe)),
        }
    }
}

/// Waits for the answer. A request that is handed over while another thread ends the connection is
/// given back only once no sender is left, so the sender goes when the connection has ended.
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

/// Judges what an HTTP/1.1 error proves. `before` are the bytes that had been read and written on
/// the connection when the request was handed over.
fn judge_http1(
    mut error: TrySendError<Request<SentBody>>,
    exclusive: &Exclusive,
    before: (u64, u64),
    safe: bool,
) -> Failed {
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
    Failed { fate, source: Arc::new(error.into_error()) }
}

fn closed_at_once() -> Failed {
    Failed { fate: Fate::Unsent, source: Arc::new(DialFailure::ClosedAtOnce) }
}

/// Judges what an HTTP/2 error proves. `repeatable` says that sending the request again is safe
/// even if its head did arrive.
fn judge_http2(mut error: TrySendError<Request<SentBody>>, repeatable: bool) -> Failed {
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
    Failed { fate, source: Arc::new(source) }
}

/// The longest that a client is not asked for a body with `Expect: 100-continue` while the upstream
/// has not asked for it. It is not asked at all after a final answer, and an upstream need not know
/// of it. As `ExpectContinueTimeout` of Go's default transport and curl's own.
const CONTINUE_HTTP1: Duration = Duration::from_secs(1);
/// The same where the upstream's `100 Continue` cannot be seen: long enough for an answer from the
/// head alone.
const CONTINUE_HTTP2: Duration = Duration::from_millis(100);
/// The most tries after refused streams: more would add to what the upstream has too much of.
const MAX_REFUSALS: u32 = 2;
/// The most replays, as in Go's client: with a server that says GOAWAY on every fiftieth response
/// to 200 calls at once, two would not be enough.
const MAX_REPLAYS: u32 = 6;
/// The most returns. Each one retires the connection that it came from, so this bounds only a
/// server that closes every one at once.
const MAX_RETURNS: u32 = 6;
