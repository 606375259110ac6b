//! The answers to requests, on the port and on the socket.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body::Body;
use http_body_util::Full;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use super::control::Operator;
use super::{Readiness, docs};
use crate::body;
use crate::controls::json_in_clear;
use crate::spec::ShowNames;
use crate::status::page;
use crate::telemetry;

/// The origin of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The admin port, from another machine or pod, at this address of ours.
    Network(Option<IpAddr>),
    /// The admin port, over loopback: a client in this pod, or `kubectl port-forward`.
    Loopback,
    /// The control socket: the process's own user.
    Socket,
}

/// Answers requests. Cheap to clone.
#[derive(Clone)]
pub(super) struct Handler {
    readiness: Readiness,
    /// The operator, set once the gates are open.
    pub(super) operator: Arc<OnceLock<Arc<dyn Operator>>>,
    /// Held while a large answer is made, and never while a client is waited for: one after the
    /// other, so that calls have their turns.
    turn: Arc<Mutex<()>>,
}

type Answer = Response<Full<Bytes>>;

// === impl Handler ===

impl Handler {
    pub(super) fn new(readiness: Readiness) -> Self {
        Self { readiness, operator: Arc::default(), turn: Arc::default() }
    }

    pub(super) async fn answer<B>(&self, request: Request<B>, from: Origin) -> Answer
    where
        B: Body<Data = Bytes>,
    {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        let _turn = if LARGE.contains(&path) { Some(self.turn.lock().await) } else { None };
        let operator = self.operator.get().map(|operator| &**operator);
        match (&head.method, path, operator) {
            (&Method::POST, "/explain" | "/forget" | "/bypass", Some(operator)) => order(operator, &head, body, from)
                .await
                .unwrap_or_else(|(status, why)| text(status, format!("{why}\n"))),
            (&Method::GET | &Method::HEAD, "/livez", _) => text(StatusCode::OK, "ok\n"),
            (&Method::GET | &Method::HEAD, "/metrics", _) => typed(PROMETHEUS, telemetry::metrics().render()),
            (&Method::GET | &Method::HEAD, "/readyz", operator) => self.ready(operator),
            (&Method::GET | &Method::HEAD, "/status", Some(operator)) => self.status(operator, &head, from).await,
            (&Method::GET | &Method::HEAD, "/config", Some(operator)) => configuration(operator, &head, from),
            (&Method::GET | &Method::HEAD, EGRESS_CA_PATH, Some(operator)) => match operator.egress_ca() {
                Some(ca) => typed("application/pem-certificate-chain", ca),
                None => text(StatusCode::NOT_FOUND, "no gate has intercept = true, so that there is no egress CA\n"),
            },
            (&Method::GET | &Method::HEAD, "/", _) => moved("/status"),
            (&Method::GET | &Method::HEAD, path, _) if docs::page(path).is_some() => {
                typed("text/plain; charset=utf-8", docs::page(path).unwrap_or_default())
            }
            (&Method::GET | &Method::HEAD, page::STYLE_PATH, Some(_)) => typed("text/css; charset=utf-8", page::STYLE),
            (&Method::GET | &Method::HEAD, ..) => text(
                StatusCode::NOT_FOUND,
                "there are /status, /config, /metrics, /livez, /readyz, /egress/ca.pem and /docs/alerts.md here\n",
            ),
            _ => {
                let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD here\n");
                response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
                response
            }
        }
    }

    fn ready(&self, operator: Option<&dyn Operator>) -> Answer {
        let waiting = self.readiness.waiting_for();
        if !waiting.is_empty() {
            return text(StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", waiting.join(", ")));
        }
        let remark = operator.and_then(Operator::remark).map(|remark| format!(" ({remark})"));
        text(StatusCode::OK, format!("ok{}\n", remark.unwrap_or_default()))
    }

    /// Answers `/status`: the page for browsers, JSON for all other clients.
    async fn status(&self, operator: &dyn Operator, head: &Parts, from: Origin) -> Answer {
        let names = shows_names(operator, &head.headers, from);
        if names && let Err((status, advice)) = check_site(head, from) {
            return text(status, advice);
        }
        let mut status = operator.status(names).await;
        status.waiting_for = self.readiness.waiting_for();
        let mut accepts = head.headers.get_all(header::ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
        let mut answer = if accepts.any(|accept| accept.to_ascii_lowercase().contains("text/html")) {
            let refresh = head.uri.query().is_none_or(|query| query.split('&').all(|pair| pair != "refresh=off"));
            let mut answer = typed("text/html; charset=utf-8", page::page(&status, refresh));
            answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(page::POLICY));
            answer.headers_mut().insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
            answer
        } else {
            json(&status)
        };
        answer.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
        answer
    }
}

/// Answers `/config`. Its classes may name objects.
fn configuration(operator: &dyn Operator, head: &Parts, from: Origin) -> Answer {
    if shows_names(operator, &head.headers, from) {
        return match check_site(head, from) {
            Ok(()) => text(StatusCode::OK, operator.configuration()),
            Err((status, advice)) => text(status, advice),
        };
    }
    text(StatusCode::FORBIDDEN, "only shown over loopback (admin.show_names), or on the control socket\n")
}

/// Hands an order, or a question that comes with a body, to the operator.
///
/// # Errors
/// It is refused, with this status and text.
async fn order(
    operator: &dyn Operator,
    head: &Parts,
    body: impl Body<Data = Bytes>,
    from: Origin,
) -> Result<Answer, (StatusCode, String)> {
    let path = head.uri.path();
    if from != Origin::Socket {
        // The port only takes questions, and only if names are shown: the answer tells if an object
        // fails.
        if path != "/explain" {
            let advice = "orders are taken on the control socket only (admin.socket)";
            return Err((StatusCode::FORBIDDEN, advice.to_owned()));
        }
        if !shows_names(operator, &head.headers, from) {
            let advice = "only asked on loopback (admin.show_names), or on the control socket";
            return Err((StatusCode::FORBIDDEN, advice.to_owned()));
        }
        check_site(head, from).map_err(|(status, advice)| (status, advice.trim_end().to_owned()))?;
    }
    let bad_request = |why: String| (StatusCode::BAD_REQUEST, why);
    let body = body::whole(body, LONGEST, |_| true).await;
    let body = body.ok_or_else(|| bad_request("the body cannot be read, or is too long".to_owned()))?;
    match path {
        "/explain" => operator.explain(&read(&body).map_err(bad_request)?).map(|explained| json(&explained)),
        "/forget" => operator.forget(&read(&body).map_err(bad_request)?).await.map(|forgotten| json(&forgotten)),
        _ => operator.bypass(&read(&body).map_err(bad_request)?).map(|bypassed| json(&bypassed)),
    }
    .map_err(bad_request)
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("this is not such a request: {error}"))
}

/// True if the client may see names of objects. A client on loopback may by default, unless it says
/// that it only forwards what another one asks.
fn shows_names(operator: &dyn Operator, headers: &HeaderMap, from: Origin) -> bool {
    match (operator.show_names(), from) {
        (ShowNames::Always, _) | (_, Origin::Socket) => true,
        (ShowNames::Auto, Origin::Loopback) => !FORWARDED.iter().any(|name| headers.contains_key(*name)),
        (ShowNames::Auto, Origin::Network(_)) | (ShowNames::Never, _) => false,
    }
}

/// Checks that the client addressed this machine, and is not a page of another site: one whose name
/// was made to point here (DNS rebinding) must not read names.
///
/// # Errors
/// It is refused, with this status and text.
fn check_site(head: &Parts, from: Origin) -> Result<(), (StatusCode, &'static str)> {
    let local = match from {
        Origin::Socket => return Ok(()),
        Origin::Loopback => None,
        Origin::Network(local) => local,
    };
    let is_own = |authority: &Authority| {
        let name = authority.host().trim_start_matches('[').trim_end_matches(']');
        let address = name.parse::<IpAddr>().map(|address| address.to_canonical());
        let is_here = address.is_ok_and(|address| address.is_loopback() || local == Some(address));
        !authority.as_str().contains('@') && (name.eq_ignore_ascii_case("localhost") || is_here)
    };
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.as_bytes().try_into().ok(),
        _ => return Err((StatusCode::BAD_REQUEST, "a request has exactly one Host\n")),
    };
    if !host.as_ref().is_some_and(is_own) || !head.uri.authority().is_none_or(is_own) {
        let advice = "names are shown here: ask for localhost, or for this machine's own address; \
                      through a Service or a proxy send the header `Host: localhost`\n";
        return Err((StatusCode::MISDIRECTED_REQUEST, advice));
    }
    let is_own_page = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
        origin.as_ref().and_then(Uri::authority).is_some_and(is_own)
    };
    let is_cross_site = head.headers.get_all("sec-fetch-site").iter().any(|site| site == "cross-site");
    if is_cross_site || !head.headers.get_all(header::ORIGIN).iter().all(is_own_page) {
        return Err((StatusCode::FORBIDDEN, "names are shown here: a page of another site may not ask\n"));
    }
    Ok(())
}

fn json<T: Serialize>(value: &T) -> Answer {
    match serde_json::to_vec(value) {
        Ok(bytes) => typed("application/json", json_in_clear(bytes)),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot be written as JSON: {error}\n")),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut response = typed("text/plain; charset=utf-8", body);
    *response.status_mut() = status;
    response
}

/// Answers that it is at another path.
fn moved(to: &'static str) -> Answer {
    let mut response = text(StatusCode::TEMPORARY_REDIRECT, format!("it is at {to}\n"));
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(to));
    response
}

fn typed(kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The headers by which a proxy says that it hands on another client's request.
const FORWARDED: [&str; 4] = ["forwarded", "via", "x-forwarded-for", "x-forwarded-proto"];
/// The paths whose answers take a while to make.
const LARGE: [&str; 3] = ["/metrics", "/status", "/config"];
/// Where the root of the egress CA is published.
const EGRESS_CA_PATH: &str = "/egress/ca.pem";
/// Prometheus' text format.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The most bytes of a body: a question with a few headers.
const LONGEST: usize = 64 * 1024;

#[cfg(test)]
mod tests;
