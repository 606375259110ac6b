//! Admission: a call waits until the limits allow it, and gets a permit and a connection to the
//! upstream, or an error.
//!
//! A call waits only here, before it is sent, so that no wait counts as response time of the
//! upstream. If the caller hangs up, the future is dropped, and the call's place in the queue or
//! its permit is given back (P6).

mod body_key;
mod intake;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Request;
use http::request::Parts;

use self::body_key::key_in_body;
use self::intake::Intake;
use super::driver::{HeldPermit, HeldTicket, Stale, Verdict};
use super::failure::CallFailure;
use super::gate_config::GateConfig;
use super::observe::CallContext;
use super::parts::GateParts;
use super::tunnel::Switch;
use crate::api::Group;
use crate::classify::{ClassifiedCall, Salt};
use crate::clients::{ClientRefusal, Clients};
use crate::clock::Clock;
use crate::dialect::{Head, LONGEST_FORM};
use crate::upstream::{DedicatedConnection, Inbound, OutgoingBody, StreamLease};

/// A client's request before it is admitted.
pub(crate) struct PendingCall {
    pub(crate) parts: Parts,
    body: Intake,
    /// What is needed to switch protocols, if the request asks for an upgrade.
    switch: Option<Switch>,
    /// The client's name: at first from its certificate, and after `identify` the name used for
    /// limits.
    client: Option<Arc<str>>,
}

/// An admitted call's permit, and the connection for it.
pub(crate) struct Admission {
    pub(super) permit: HeldPermit,
    pub(super) route: Route,
}

/// The upstream connection for a call.
pub(crate) enum Route {
    /// A stream of a connection shared with other calls.
    Stream(StreamLease),
    /// A connection for this call alone, to become a tunnel if the upstream agrees.
    Upgrade(DedicatedConnection, Switch),
}

// === impl PendingCall ===

impl PendingCall {
    /// Takes a request; `client` is the name in the client's certificate.
    pub(crate) fn new(request: Request<Inbound>, client: Option<&Arc<str>>) -> Self {
        let (mut parts, body) = request.into_parts();
        let switch = Switch::asked(&mut parts);
        Self { parts, body: Intake::new(body), switch, client: client.map(Arc::clone) }
    }

    /// Authenticates the caller, if the gate requires it.
    pub(crate) async fn identify(&mut self, clients: &Clients) -> Result<(), ClientRefusal> {
        let named = self.client.take();
        self.client = Some(clients.identify(named.as_ref(), &mut self.parts.headers).await?);
        Ok(())
    }

    /// Determines the call's class, flow and key under this configuration.
    pub(crate) fn classify(&mut self, config: &GateConfig, hasher: &Salt) -> ClassifiedCall {
        let Parts { method, uri, headers, .. } = &self.parts;
        let rules = &config.options.gate.rules;
        let head = Head { method, uri, headers };
        let body = if rules.wants_body(&head) { self.body.beginning(LONGEST_FORM) } else { &[] };
        let mut call = rules.classify_with(&head, body, hasher);
        if self.switch.is_some() {
            call.upgrade();
        }
        if let Some(client) = &self.client {
            call.of_client(rules, client, hasher);
        }
        call
    }

    /// Reads the beginning of the body if it is a form (of AWS) that names the call's action, for
    /// 100 ms at most. Nothing is read if the client sends its body only after `100 Continue`.
    pub(crate) async fn read_form(&mut self, config: &GateConfig, clock: Clock) {
        let Parts { method, uri, headers, .. } = &self.parts;
        if !config.options.gate.rules.wants_body(&Head { method, uri, headers }) || self.body.rest.is_awaited() {
            return;
        }
        let mut moment = pin!(clock.sleep(MOMENT));
        while !self.body.is_whole && self.body.read.len() < LONGEST_FORM {
            tokio::select! {
                biased;
                // A client that broke off is noticed when the body is read on.
                read = poll_fn(|cx| self.body.poll_more(cx)) => if read.is_err() { return },
                () = &mut moment => return,
            }
        }
    }

    /// Returns true if the request has no body.
    pub(crate) fn is_bare(&self) -> bool {
        self.body.is_whole && self.body.read.is_empty()
    }

    /// Returns the request to send: with the part of its body read so far, then the rest as it
    /// comes.
    pub(crate) fn into_outgoing(self) -> Request<OutgoingBody> {
        Request::from_parts(self.parts, self.body.into_outgoing())
    }
}

/// Waits until the call may be sent to the upstream, and returns its permit and connection.
pub(crate) async fn admit(
    gate: &GateParts,
    request: &mut PendingCall,
    context: &mut CallContext,
) -> Result<Admission, CallFailure> {
    gate.upstream.injector().check(&request.parts.headers).map_err(CallFailure::Forbidden)?;
    let mut verdict = decide(gate, request, context).await?;
    let group = context.call.group;
    loop {
        let permit = match verdict {
            Verdict::Go(permit) => permit,
            Verdict::Refused(refusal) => return Err(CallFailure::Refused(refusal)),
            Verdict::Wait(ticket) => wait(gate, ticket, request, group).await?,
        };
        let is_in_shadow = context.is_in_shadow();
        if permit.is_exempt() && !context.call.exempt && !is_in_shadow {
            gate.tally.bypassed();
        }
        // Not only a call of an exempt class: it may have become one while the call waited.
        let route = if permit.is_exempt() || request.switch.is_some() || is_in_shadow {
            // It may dial, which makes a large future.
            Box::pin(own_route(gate, request.switch.take(), context)).await?
        } else if let Some(lease) = gate.upstream.checkout(group) {
            Route::Stream(lease)
        } else {
            // The connection went between the grant and now: the call is first in line for the next.
            verdict = Verdict::Wait(permit.requeue());
            continue;
        };
        return Ok(Admission { permit, route });
    }
}

/// Returns what the limiter decides about the call: go, wait or refuse. If a reload replaced the
/// configuration meanwhile, the call is classified again.
async fn decide(
    gate: &GateParts,
    request: &mut PendingCall,
    context: &mut CallContext,
) -> Result<Verdict, CallFailure> {
    loop {
        if context.key.is_none() {
            context.key = key_in_body(gate, request, context).await;
        }
        if !context.is_in_shadow() {
            if !context.call.exempt
                && let Some(why) = gate.upstream.down(context.call.group)
            {
                return Err(CallFailure::Unconnected(Some(why)));
            }
            context.asked();
        }
        if let Ok(verdict) = ask(gate, &request.parts, context) {
            return Ok(verdict);
        }
        let config = gate.config.get();
        let call = request.classify(&config, &gate.hasher);
        context.reread(config, call, &request.parts.headers);
    }
}

fn ask(gate: &GateParts, request: &Parts, context: &mut CallContext) -> Result<Verdict, Stale> {
    let CallContext { config, call, key, .. } = &*context;
    let flow_name = call.flow_name(&request.headers);
    let arrival = call.arrival(*key, &flow_name);
    if config.has_twin {
        let bytes = || intake::large_head(request) + intake::declared(request).min(intake::ENOUGH);
        let (verdict, copies) = gate.driver.play(config, &arrival, &bytes, context.asked_at())?;
        if !context.is_in_shadow() {
            config.meters.decided(call.class, verdict.decision());
        }
        context.follow(copies);
        return Ok(verdict);
    }
    let verdict = gate.driver.arrive(config.generation, &arrival)?;
    config.meters.decided(call.class, verdict.decision());
    Ok(verdict)
}

/// Waits until the call may be sent, and reads its body meanwhile: with a body unread, HTTP/1 would
/// not notice that the client hangs up. A body that the client sends only after `100 Continue` is
/// not read yet.
async fn wait(
    gate: &GateParts,
    mut ticket: HeldTicket,
    request: &mut PendingCall,
    group: Group,
) -> Result<HeldPermit, CallFailure> {
    let head = intake::large_head(&request.parts);
    ticket.hold_bytes(head + request.body.read.len()).map_err(CallFailure::Refused)?;
    poll_fn(|cx| {
        if let Poll::Ready(turn) = ticket.poll_turn(cx) {
            let unconnected = || CallFailure::Unconnected(gate.upstream.down(group));
            return Poll::Ready(turn.map_err(|refusal| refusal.map_or_else(unconnected, CallFailure::Refused)));
        }
        while !request.body.rest.is_awaited()
            && let Poll::Ready(read) = request.body.poll_more(cx)
        {
            ticket.hold_bytes(read.map_err(|_| CallFailure::Client)?).map_err(CallFailure::Refused)?;
        }
        Poll::Pending
    })
    .await
}

/// Returns a connection for a call without one from the limiter: an exempt call, a call in shadow
/// mode, or one that switches protocols.
async fn own_route(gate: &GateParts, switch: Option<Switch>, context: &CallContext) -> Result<Route, CallFailure> {
    let route = match switch {
        Some(switch) => gate.upstream.dedicate().await.map(|connection| Route::Upgrade(connection, switch)),
        None => gate.upstream.checkout_exempt(context.call.group).await.map(Route::Stream),
    };
    route.map_err(|why| CallFailure::Unconnected(Some(why)))
}

/// The longest wait for the beginning of a body.
const MOMENT: Duration = Duration::from_millis(100);
