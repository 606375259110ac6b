//! The answers to requests, on the port and on the socket.

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Full, Limited};
use serde::{Serialize, de::DeserializeOwned};

use super::{Readiness, control::Operator};
use crate::{status::page, telemetry};

/// The origin of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The admin port: any client.
    Port,
    /// The control socket: the process's own user.
    Socket,
}

/// Answers requests. Cheap to clone.
#[derive(Clone)]
pub(super) struct Handler {
    pub(super) readiness: Readiness,
    /// The operator, set once the gates are open.
    pub(super) operator: Arc<OnceLock<Arc<dyn Operator>>>,
}

type Answer = Response<Full<Bytes>>;

// === impl Handler ===

impl Handler {
    pub(super) async fn answer<B>(&self, request: Request<B>, from: Origin) -> Answer
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        if parts.method == Method::POST {
            return match (path, self.operator.get()) {
                ("/explain" | "/forget" | "/bypass", Some(operator)) => {
                    order(&**operator, path, &parts.headers, body, from).await
                }
                _ => not_allowed(),
            };
        }
        if parts.method != Method::GET && parts.method != Method::HEAD {
            return not_allowed();
        }
        match (path, self.operator.get()) {
            ("/livez", _) => text(StatusCode::OK, "ok\n"),
            ("/metrics", _) => typed(PROMETHEUS, telemetry::metrics().render()),
            ("/readyz", _) => self.ready(),
            ("/status", Some(operator)) => {
                status(&**operator, &self.readiness, parts.uri.query(), &parts.headers, from).await
            }
            (page::STYLE_PATH, Some(_)) => typed("text/css; charset=utf-8", page::STYLE),
            _ => text(StatusCode::NOT_FOUND, "there are /status, /metrics, /livez and /readyz here\n"),
        }
    }

    fn ready(&self) -> Answer {
        let remark = self.operator.get().and_then(|operator| operator.remark());
        match self.readiness.waiting_for() {
            waiting if waiting.is_empty() => {
                text(StatusCode::OK, remark.map_or_else(|| "ok\n".to_owned(), |remark| format!("ok ({remark})\n")))
            }
            waiting => text(StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", waiting.join(", "))),
        }
    }
}

/// Answers `/status`: the page for browsers, JSON for all other clients.
async fn status(
    operator: &dyn Operator,
    readiness: &Readiness,
    query: Option<&str>,
    headers: &HeaderMap,
    from: Origin,
) -> Answer {
    let names = from == Origin::Socket || operator.shows_names();
    if from == Origin::Port && names && !is_local(headers) {
        return misdirected();
    }
    let mut status = operator.status(names).await;
    status.waiting_for = readiness.waiting_for();
    let wants_page = headers
        .get_all(header::ACCEPT)
        .iter()
        .any(|accept| accept.to_str().is_ok_and(|accept| accept.to_ascii_lowercase().contains("text/html")));
    let mut answer = if wants_page {
        let refresh = query.is_none_or(|query| query.split('&').all(|pair| pair != "refresh=off"));
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

/// Handles an order, or a question that comes with a body.
async fn order<B>(operator: &dyn Operator, path: &str, headers: &HeaderMap, body: B, from: Origin) -> Answer
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    if from == Origin::Port {
        // The port only takes questions, and only if names are shown: the answer tells if an object
        // fails.
        if path != "/explain" {
            return text(StatusCode::FORBIDDEN, "orders are taken on the control socket only (admin.socket)\n");
        }
        if !operator.shows_names() || !is_local(headers) {
            return text(
                StatusCode::FORBIDDEN,
                "only asked on loopback (admin.show_names), or on the control socket\n",
            );
        }
    }
    let body = match Limited::new(Box::pin(body), LONGEST).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return text(StatusCode::BAD_REQUEST, "the body cannot be read, or is too long\n"),
    };
    match path {
        "/explain" => done(read(&body).and_then(|ask| operator.explain(&ask))),
        "/forget" => match read(&body) {
            Ok(order) => done(operator.forget(&order).await),
            Err(why) => done::<()>(Err(why)),
        },
        _ => done(read(&body).and_then(|order| operator.bypass(&order))),
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("this is no such request: {error}"))
}

fn done<T: Serialize>(result: Result<T, String>) -> Answer {
    match result {
        Ok(answer) => json(&answer),
        Err(why) => text(StatusCode::BAD_REQUEST, format!("{why}\n")),
    }
}

/// True if the client addressed this machine: a page elsewhere whose name was made to point here
/// (DNS rebinding) must not read names.
fn is_local(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(authority) = host.to_str().unwrap_or_default().parse::<http::uri::Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

fn not_allowed() -> Answer {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD here\n");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

fn misdirected() -> Answer {
    text(StatusCode::MISDIRECTED_REQUEST, "names are shown here: ask for localhost or an IP address\n")
}

fn json<T: Serialize>(value: &T) -> Answer {
    match serde_json::to_vec(value) {
        Ok(bytes) => typed("application/json", bytes),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot be written as JSON: {error}\n")),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut response = typed("text/plain; charset=utf-8", body);
    *response.status_mut() = status;
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

/// Prometheus' text format.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The most bytes of a body: a question with a few headers.
const LONGEST: usize = 64 * 1024;

#[cfg(test)]
mod tests;
