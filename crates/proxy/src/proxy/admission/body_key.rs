//! Keys read from the request body: the object's name in a `create`, or a digest of an operation.
//!
//! Reading the body delays the call, so it is done only while some key of the same collection or
//! path is failing, and for at most 100 ms. For a name it is read up to the name; a digest needs
//! the whole body.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use super::intake::declared;
use super::{MOMENT, PendingCall};
use crate::api::Key;
use crate::api::names::PEEK;
use crate::classify::KeySource;
use crate::proxy::observe::CallContext;
use crate::proxy::parts::GateParts;

/// Returns the key found in the body of a call; `None` if no key of its collection is failing, or
/// if the body does not show the key in time.
pub(super) async fn key_in_body(gate: &GateParts, request: &mut PendingCall, context: &CallContext) -> Option<Key> {
    let call = &context.call;
    let collection = call.key.collection().filter(|_| call.key.needs_body())?;
    // A digest needs all of a body.
    let is_too_long = matches!(call.key, KeySource::BodyDigest { .. }) && declared(&request.parts) > PEEK;
    let is_failing =
        gate.driver.look_as(context.is_in_shadow(), |limiter, _| limiter.keys().any_failing_in(collection));
    if !is_failing || is_too_long {
        return None;
    }
    let body = &mut request.body;
    let clock = gate.driver.clock();
    let mut moment = pin!(clock.sleep(if context.is_in_shadow() { Duration::ZERO } else { MOMENT }));
    let mut next_look = 1;
    while !body.is_whole && body.read.len() <= PEEK {
        if body.read.len() >= next_look {
            if let Some(key) = call.key.with_body(body.beginning(PEEK), false, &gate.hasher) {
                return Some(key);
            }
            next_look = body.read.len() * 2; // a body that comes byte by byte is not parsed at each of them
        }
        tokio::select! {
            biased;
            // A client that broke off is noticed when the body is read on.
            read = poll_fn(|cx| body.poll_more(cx)) => read.ok()?,
            () = &mut moment => break,
        };
    }
    call.key.with_body(body.beginning(PEEK + 1), body.is_whole, &gate.hasher)
}
