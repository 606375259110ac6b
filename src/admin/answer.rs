//! The answers of the admin port and the control socket.

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

use super::control::Operator;
use super::docs;
use crate::body;
use crate::controls::json_in_clear;
use crate::spec::ShowNames;
use crate::status::page;
use crate::telemetry;

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A connection from another machine or pod, to the admin port at this address of the process.
    Network(Option<IpAddr>),
    /// A connection over loopback, to the admin port: from a client in this pod, or `kubectl
    /// port-forward`.
    Loopback,
    /// A connection through the control socket: from the process's own user.
    Socket,
}

/// Answers requests. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Handler {
    /// Gives the status and obeys commands; set once all listeners are open.
    pub(super) operator: Arc<OnceLock<Arc<dyn Operator>>>,
}

type AdminResponse = Response<Full<Bytes>>;

/// The refusal of a request to the admin port, with its text.
struct AdminRefusal {
    status: StatusCode,
    why: String,
}

// === impl Handler ===

impl Handler {
    pub(super) async fn answer<B>(&self, request: Request<B>, from: Origin) -> AdminResponse
    where
        B: Body<Data = Bytes>,
    {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        let operator = self.operator.get().map(|operator| &**operator);
        match (path, operator) {
            ("/explain" | "/forget" | "/bypass", Some(operator)) if head.method == Method::POST => {
                order(operator, &head, body, from).await.unwrap_or_else(AdminRefusal::response)
            }
            _ if !matches!(head.method, Method::GET | Method::HEAD) => {
                let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "this path takes only GET and HEAD\n");
                response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
                response
            }
            ("/livez", _) => text(StatusCode::OK, "ok\n"),
            ("/metrics", _) => typed(PROMETHEUS, telemetry::metrics().render()),
            ("/readyz", operator) => ready(operator),
            ("/status", Some(operator)) => status(operator, &head, from).await,
            ("/config", Some(operator)) => configuration(operator, &head, from),
            (EGRESS_CA_PATH, Some(operator)) => match operator.egress_ca() {
                Some(ca) => typed("application/pem-certificate-chain", ca),
                None => text(StatusCode::NOT_FOUND, "there is no egress CA, because no gate has intercept = true\n"),
            },
            ("/", _) => moved("/status"),
            (page::STYLE_PATH, Some(_)) => typed("text/css; charset=utf-8", page::STYLE),
            (path, _) => match docs::page(path) {
                Some(page) => text(StatusCode::OK, page),
                None => text(
                    StatusCode::NOT_FOUND,
                    "there is no such path; the paths are /status, /config, /metrics, /livez, /readyz, /egress/ca.pem and /docs/alerts.md\n",
                ),
            },
        }
    }
}

fn ready(operator: Option<&dyn Operator>) -> AdminResponse {
    let Some(operator) = operator else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "waiting for listeners\n");
    };
    let remark = operator.remark().map(|remark| format!(" ({remark})"));
    text(StatusCode::OK, format!("ok{}\n", remark.unwrap_or_default()))
}

/// Answers `/status`: the page for browsers, JSON for all other clients.
async fn status(operator: &dyn Operator, head: &Parts, from: Origin) -> AdminResponse {
    let names = shows_names(operator, &head.headers, from);
    if names && let Err(refusal) = check_site(head, from) {
        return refusal.response();
    }
    let status = operator.status(names).await;
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

/// Answers `/config` with the current configuration. The answer may contain names of objects (in
/// classes), so only clients allowed to see names get it.
fn configuration(operator: &dyn Operator, head: &Parts, from: Origin) -> AdminResponse {
    if !shows_names(operator, &head.headers, from) {
        return text(StatusCode::FORBIDDEN, "only shown over loopback (admin.show_names), or on the control socket\n");
    }
    match check_site(head, from) {
        Ok(()) => text(StatusCode::OK, operator.configuration()),
        Err(refusal) => refusal.response(),
    }
}

/// Executes a command, or answers `/explain`.
///
/// # Errors
/// The request is refused.
async fn order(
    operator: &dyn Operator,
    head: &Parts,
    body: impl Body<Data = Bytes>,
    from: Origin,
) -> Result<AdminResponse, AdminRefusal> {
    let path = head.uri.path();
    if from != Origin::Socket {
        // The port has only `/explain`, if names are shown: its answer tells if an object fails.
        if path != "/explain" {
            return refuse(StatusCode::FORBIDDEN, "forget and bypass need the control socket (admin.socket)");
        }
        if !shows_names(operator, &head.headers, from) {
            let why = "explain is only possible over loopback (admin.show_names), or on the control socket";
            return refuse(StatusCode::FORBIDDEN, why);
        }
        check_site(head, from)?;
    }
    let bad_request = |why| AdminRefusal { status: StatusCode::BAD_REQUEST, why };
    let body = body::whole(body, LONGEST, |_| true).await;
    let body = body.ok_or_else(|| bad_request("the body cannot be read, or is longer than 64 KiB".to_owned()))?;
    match path {
        "/explain" => operator.explain(&read(&body).map_err(bad_request)?).await.map(|explained| json(&explained)),
        "/forget" => operator.forget(&read(&body).map_err(bad_request)?).await.map(|forgotten| json(&forgotten)),
        _ => operator.bypass(&read(&body).map_err(bad_request)?).map(|bypassed| json(&bypassed)),
    }
    .map_err(bad_request)
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("the body is not the JSON expected here: {error}"))
}

/// Returns true if the client may see names of objects. By default this is a client on loopback
/// that does not forward another client's request.
fn shows_names(operator: &dyn Operator, headers: &HeaderMap, from: Origin) -> bool {
    match (operator.show_names(), from) {
        (ShowNames::Always, _) | (_, Origin::Socket) => true,
        (ShowNames::Auto, Origin::Loopback) => !FORWARDED.iter().any(|name| headers.contains_key(*name)),
        (ShowNames::Auto, Origin::Network(_)) | (ShowNames::Never, _) => false,
    }
}

/// Refuses requests made by web pages of other sites: after DNS rebinding, such a page could read
/// names of objects.
///
/// # Errors
/// The request's Host is not this machine, or a page of another site made the request.
fn check_site(head: &Parts, from: Origin) -> Result<(), AdminRefusal> {
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
        _ => return refuse(StatusCode::BAD_REQUEST, "the request has no Host header, or several; expected one"),
    };
    if !host.as_ref().is_some_and(is_own) || !head.uri.authority().is_none_or(is_own) {
        let why = "this page shows names of objects: ask for localhost, or for this machine's own address; \
                   through a Service or a proxy send the header `Host: localhost`";
        return refuse(StatusCode::MISDIRECTED_REQUEST, why);
    }
    let is_own_page = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
        origin.as_ref().and_then(Uri::authority).is_some_and(is_own)
    };
    let is_cross_site = head.headers.get_all("sec-fetch-site").iter().any(|site| site == "cross-site");
    if is_cross_site || !head.headers.get_all(header::ORIGIN).iter().all(is_own_page) {
        return refuse(StatusCode::FORBIDDEN, "this page shows names: other sites' pages may not read it");
    }
    Ok(())
}

fn refuse<T>(status: StatusCode, why: &str) -> Result<T, AdminRefusal> {
    Err(AdminRefusal { status, why: why.to_owned() })
}

// === impl AdminRefusal ===

impl AdminRefusal {
    fn response(self) -> AdminResponse {
        text(self.status, format!("{}\n", self.why))
    }
}

fn json<T: Serialize>(value: &T) -> AdminResponse {
    match serde_json::to_vec(value) {
        Ok(bytes) => typed("application/json", json_in_clear(bytes)),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the answer as JSON: {error}\n")),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> AdminResponse {
    let mut response = typed("text/plain; charset=utf-8", body);
    *response.status_mut() = status;
    response
}

/// Answers with a redirect to another path.
fn moved(to: &'static str) -> AdminResponse {
    let mut response = text(StatusCode::TEMPORARY_REDIRECT, format!("this page is at {to}\n"));
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(to));
    response
}

fn typed(kind: &'static str, body: impl Into<Bytes>) -> AdminResponse {
    let mut response = Response::new(Full::new(body.into()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The headers forwarding proxies add.
const FORWARDED: [&str; 4] = ["forwarded", "via", "x-forwarded-for", "x-forwarded-proto"];
/// The path of the egress CA's root certificate.
const EGRESS_CA_PATH: &str = "/egress/ca.pem";
/// The media type of Prometheus' text format.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The longest request body: an `/explain` request with a few headers.
const LONGEST: usize = 64 * 1024;

#[cfg(test)]
mod tests;
