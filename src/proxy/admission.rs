//! Admission: reads the call, waits for its turn, and lets it go with a permit and a stream; or says why not.
//!
//! Everything a call can wait for is waited for here, so that no wait is billed to the upstream. Dropping the future at any await leaves
//! the queue or gives the permit back: a caller who hangs up costs nothing (P6).

mod intake;
mod naming;

use std::{
    future::poll_fn,
    hash::RandomState,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Method, Response, request::Parts};
use tower::{Layer, Service};

use self::intake::Intake;
pub(crate) use self::{
    intake::{ENOUGH, large_head},
    naming::body_key,
};
use super::{
    body::Body,
    coalesce::{Coalescer, Identity, Leader, Member, Whole},
    driver::{Driver, Entry, HeldPermit, HeldTicket, Stale, Turn},
    failure::{Failed, Failure},
    forward::{Departure, Forward, Way},
    gate_config::GateConfig,
    observe::{Account, Visit},
    pauses::LastSignal,
    shadow,
    tally::Tally,
    tunnel::Switch,
};
use crate::{
    api::{Key, Verb},
    classify::{Classified, FlowName},
    limit::{Arrival, Flow},
    upstream::{Inbound, Upstream},
};

/// What admission needs to know of its gate.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) hasher: RandomState,
    pub(crate) driver: Driver,
    pub(crate) upstream: Upstream,
    pub(crate) tally: Arc<Tally>,
    /// Where the terms say so, identical calls that wait become one.
    pub(crate) coalescer: Coalescer,
    /// Who asked for the last pause.
    pub(crate) last_signal: LastSignal,
    /// Everything is decided, and everything is let through. Only a restart changes it.
    pub(crate) shadow: bool,
}

/// Lets calls through in their turn.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionLayer {
    pub(crate) door: Arc<Door>,
}

/// Forwarding, once it is the call's turn.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    inner: Forward,
    door: Arc<Door>,
}

impl Layer<Forward> for AdmissionLayer {
    type Service = Admission;

    fn layer(&self, inner: Forward) -> Admission {
        Admission { inner, door: Arc::clone(&self.door) }
    }
}

impl Service<Visit<Inbound>> for Admission {
    type Response = (Response<Body>, Account);
    type Error = Box<Failed>;
    /// The one box of a request.
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(())) // one waits in the future, where hanging up is noticed
    }

    fn call(&mut self, visit: Visit<Inbound>) -> Self::Future {
        let (door, inner) = (Arc::clone(&self.door), self.inner);
        let mut caller = Caller::new(visit); // before the future, which would hold the visit beside it
        Box::pin(async move {
            let (departure, verb) = match door.let_through(&mut caller).await {
                Ok(Passage::Departs(call, permit, way, leader)) => {
                    let (verb, parts, body) = (call.call.verb(), caller.parts, caller.intake.into_outgoing());
                    let departure = Departure::new(&door, parts, call, body, permit, way, &mut caller.account);
                    (departure.leads(leader), verb)
                }
                Ok(Passage::Answered(response)) => return Ok((response, caller.account)),
                Err((failure, verb)) => {
                    return Err(Box::new(Failed { failure, account: caller.account, verb, method: caller.method }));
                }
            };
            match inner.send(departure, &mut caller.account).await {
                Ok(response) => Ok((response, caller.account)),
                Err(failure) => Err(Box::new(Failed { failure, account: caller.account, verb, method: caller.method })),
            }
        })
    }
}

/// Who stands at the door: a call, and what has come of it so far.
struct Caller {
    method: Method,
    parts: Parts,
    switch: Option<Switch>,
    intake: Intake,
    account: Account,
}

/// How a call gets past the door.
enum Passage {
    /// What it is, a permit, what it leaves on, and those who wait for the same answer.
    Departs(Classified, HeldPermit, Way, Option<Leader>),
    /// It need not leave: the same call of another was answered.
    Answered(Response<Body>),
}

/// How admission ends well.
enum Admitted {
    /// A permit, what it leaves on, and those who wait for the same answer.
    Goes(HeldPermit, Way, Option<Leader>),
    /// The answer to the same call.
    Answered(Arc<Whole>),
}

/// How a wait ends well.
enum Waited {
    Granted(HeldPermit),
    Answered(Arc<Whole>),
}

// === impl Caller ===

impl Caller {
    fn new(visit: Visit<Inbound>) -> Self {
        let Visit { request, account } = visit;
        let (mut parts, body) = request.into_parts();
        let switch = Switch::asked(&mut parts);
        Self { method: parts.method.clone(), parts, switch, intake: Intake::new(body), account }
    }
}

// === impl Door ===

impl Door {
    /// Returns when the call may leave, or is answered without; or why neither, with what it wanted to do.
    async fn let_through(&self, caller: &mut Caller) -> Result<Passage, (Failure, Verb)> {
        let Caller { method, parts, switch, intake, account } = caller;
        loop {
            let mut call = account.config().rules.classify(method, &parts.uri, &parts.headers, &self.hasher);
            if switch.is_some() {
                call.upgrade();
            }
            account.classified(&call, &parts.headers);
            let failure = match self.admit(parts, &call, switch, intake, account).await {
                Ok(Admitted::Goes(permit, way, leader)) => return Ok(Passage::Departs(call, permit, way, leader)),
                Ok(Admitted::Answered(whole)) => {
                    account.coalesced(self.driver.clock().now());
                    return Ok(Passage::Answered(Response::from_parts(whole.head(), Body::shared(whole))));
                }
                // A reload came between: the call is read again.
                Err(NotAdmitted::Stale) => {
                    account.renew();
                    continue;
                }
                Err(NotAdmitted::Failed(failure)) => failure,
            };
            account.could_not(&failure, &call, method);
            return Err((failure, call.call.verb()));
        }
    }

    /// Waits for a permit, and the stream or connection to use it on.
    async fn admit(
        &self,
        parts: &Parts,
        call: &Classified,
        switch: &mut Option<Switch>,
        intake: &mut Intake,
        account: &mut Account,
    ) -> Result<Admitted, NotAdmitted> {
        self.upstream.injector().check(&parts.headers).map_err(Failure::Forbidden)?;
        let key = match call.key.known() {
            Some(key) => Some(key),
            None => self.key_in_body(parts, call, intake).await,
        };
        if let Some(key) = key {
            account.keyed(key);
        }
        if self.shadow {
            return Box::pin(self.cast_shadow(parts, call, key, switch, account)).await;
        }
        if !call.exempt
            && let Some(why) = self.upstream.down(call.group)
        {
            return Err(Failure::Unconnected(Some(why)).into());
        }
        account.at_door();
        let flow_name = call.flow_name(&parts.headers);
        let entered = self.driver.arrive(account.config().generation, &arrival(call, key, &flow_name));
        let entered = entered.map_err(|Stale| NotAdmitted::Stale)?;
        account.decided(call.class, entered.decision());
        Ok(self.embark(entered, account.config(), parts, call, switch, intake).await?)
    }

    /// On a gate that only plays every call goes at once, on a connection that it finds for itself.
    async fn cast_shadow(
        &self,
        parts: &Parts,
        call: &Classified,
        key: Option<Key>,
        switch: &mut Option<Switch>,
        account: &Account,
    ) -> Result<Admitted, NotAdmitted> {
        let permit = {
            let flow_name = call.flow_name(&parts.headers);
            let (arrival, as_if) = (arrival(call, key, &flow_name), account.as_if(call.class));
            shadow::permit(&self.driver, account.config().generation, &arrival, parts, as_if)
                .map_err(|Stale| NotAdmitted::Stale)?
        };
        let way = self.own_way(call, switch.take()).await?;
        self.driver.give_room(&permit, call.group);
        Ok(Admitted::Goes(permit, way, None))
    }

    /// A connection or stream that no room was taken for.
    async fn own_way(&self, call: &Classified, switch: Option<Switch>) -> Result<Way, Failure> {
        let way = match switch {
            Some(switch) => self.upstream.dedicate().await.map(|connection| Way::Upgrade(connection, switch)),
            None => self.upstream.checkout_exempt(call.group).await.map(Way::Stream),
        };
        way.map_err(|why| Failure::Unconnected(Some(why)))
    }

    /// From the door's answer to a permit with a stream or connection.
    async fn embark(
        &self,
        entered: Entry,
        config: &GateConfig,
        parts: &Parts,
        call: &Classified,
        switch: &mut Option<Switch>,
        intake: &mut Intake,
    ) -> Result<Admitted, Failure> {
        let mut member = None;
        let mut permit = match entered {
            Entry::Go(permit) => permit,
            Entry::Wait(place) => {
                member = if config.coalesce { self.join(parts, call, intake) } else { None };
                match self.wait(place, parts, call, intake, member.as_mut()).await? {
                    Waited::Granted(permit) => permit,
                    Waited::Answered(whole) => return Ok(Admitted::Answered(whole)),
                }
            }
            Entry::Refused(refusal) => return Err(Failure::Refused(refusal)),
        };
        if permit.is_exempt() && !call.exempt {
            self.tally.bypassed();
        }
        // Not only a call of an exempt class: it may have become one while the call waited.
        if permit.is_exempt() || switch.is_some() {
            let way = Box::pin(self.own_way(call, switch.take())).await?; // it may dial, which makes a large future
            return Ok(Admitted::Goes(permit, way, member.and_then(Member::go)));
        }
        loop {
            if let Some(lease) = self.upstream.checkout(call.group) {
                return Ok(Admitted::Goes(permit, Way::Stream(lease), member.and_then(Member::go)));
            }
            // The connection went between the grant and now: first in line for the next.
            permit = match self.wait(permit.requeue(), parts, call, intake, member.as_mut()).await? {
                Waited::Granted(permit) => permit,
                Waited::Answered(whole) => return Ok(Admitted::Answered(whole)),
            };
        }
    }

    /// The group of those who wait with the same call, if there is such a thing.
    fn join(&self, parts: &Parts, call: &Classified, intake: &Intake) -> Option<Member> {
        let ends = !call.call.is_long_running() && !call.call.is_tunnel();
        let is_bare = intake.is_whole() && intake.len() == 0;
        let identity = Identity::of(parts).filter(|_| ends && is_bare)?;
        Some(self.coalescer.join(identity))
    }

    /// Waits for the call's turn, and reads its body meanwhile: unread, it would keep HTTP/1 from noticing that the client leaves.
    /// A client that waits for `100 Continue` has sent none, and is not asked for it yet. A member of a group waits for the answer to the
    /// same call as well.
    async fn wait(
        &self,
        mut place: HeldTicket,
        parts: &Parts,
        call: &Classified,
        intake: &mut Intake,
        mut member: Option<&mut Member>,
    ) -> Result<Waited, Failure> {
        place.hold_bytes(large_head(parts) + intake.len()).map_err(Failure::Refused)?;
        poll_fn(|cx| {
            if let Some(member) = &mut member
                && let Poll::Ready(whole) = member.poll_answer(cx)
            {
                return Poll::Ready(Ok(Waited::Answered(whole)));
            }
            if let Poll::Ready(turn) = place.poll_turn(cx) {
                return Poll::Ready(match turn {
                    Turn::Go(permit) => Ok(Waited::Granted(permit)),
                    Turn::Refused(refusal) => Err(Failure::Refused(refusal)),
                    Turn::Unconnected => Err(Failure::Unconnected(self.upstream.down(call.group))),
                });
            }
            while !intake.is_awaited()
                && let Poll::Ready(read) = intake.poll_more(cx)
            {
                let held = read
                    .map_err(|_| Failure::Client)
                    .and_then(|bytes| place.hold_bytes(bytes).map_err(Failure::Refused));
                if let Err(failure) = held {
                    return Poll::Ready(Err(failure));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Why a call has no permit.
enum NotAdmitted {
    /// It will not leave.
    Failed(Failure),
    /// It was read under terms that are not in force any more.
    Stale,
}

impl From<Failure> for NotAdmitted {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A call as the limiter knows it.
pub(super) fn arrival<'a>(call: &Classified, key: Option<Key>, flow_name: &'a FlowName<'a>) -> Arrival<'a> {
    Arrival {
        class: call.class,
        flow: Flow { id: call.flow, name: flow_name },
        key,
        credential: call.credential,
        write: !call.call.verb().is_read(),
        group: call.group,
        long_running: call.call.is_long_running(),
        lists_first: call.call.lists_first(),
        patient: call.patient,
        timeout: call.call.timeout(),
    }
}
