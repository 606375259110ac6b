//! The guard: refuses malformed requests and those meant for another server, before anything else
//! sees them.
//!
//! It has two halves. [`scan`] stands below hyper, on the bytes ([`buffers`] bounds what large
//! heads hold); [`request`] stands above it, on what hyper made of them.

pub(crate) mod buffers;
pub(crate) mod request;
pub(crate) mod scan;

use std::net::IpAddr;

use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};

use super::body::Body;
use super::parts::GateParts;
use crate::telemetry::table;

/// Returns the answer to a request the guard refuses; `None` if it may pass. `local` is the
/// address of this machine that the client connected to; `None` on a Unix socket.
pub(crate) fn turn_away<B>(gate: &GateParts, request: &Request<B>, local: Option<IpAddr>) -> Option<Response<Body>> {
    let responder = &gate.responder;
    // A connection outlives a reload, so the names are looked up again for each request.
    let violation = request::check(request, &gate.config.get().hosts, local).err()?;
    table::GUARDED.counter(&[&responder.gate, violation.word()]).increment(1);
    tracing::debug!(gate = &*responder.gate, %violation, "refused an invalid request");
    let mut response = responder.turned_away(violation.status(), &violation, request.method());
    if request.version() < Version::HTTP_2 {
        // Whatever follows on this connection is as wrong.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Some(response)
}
