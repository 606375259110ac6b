//! A limiter in virtual time, driven as the proxy drives it but never late, among the events of a
//! simulation.

use std::collections::{HashMap, VecDeque};

use crate::agenda::Agenda;
use crate::api::{Answer, Group};
use crate::limit::{Arrival, Claim, Limiter, Permit, Receipt, Refusal, Slot, Ticket, Verdict};
use crate::moment::Moment;
use crate::spec;

/// A gate without connections, its waiting calls by number, and the events to come.
#[derive(Debug)]
pub(super) struct EventLoop<E> {
    /// The present moment.
    pub(super) now: Moment,
    limiter: Limiter,
    calls: HashMap<Ticket, usize>,
    tickets: HashMap<usize, Ticket>,
    decided: VecDeque<Happening<E>>,
    agenda: Agenda<E>,
}

/// The next thing that happens.
#[derive(Debug)]
pub(super) enum Happening<E> {
    /// A call left for the upstream.
    Left(usize, Sent),
    /// The gate refused a call.
    Refused(usize, Refusal),
    /// An event of the agenda is due.
    Due(E),
}

/// The receipt and slot that a sent call owes to the limiter.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) receipt: Receipt,
    pub(super) slot: Slot,
}

// === impl EventLoop ===

impl<E> EventLoop<E> {
    /// Creates a gate at rest, with room on every connection.
    pub(super) fn new(limits: &spec::Gate, seed: u64) -> Self {
        let now = Moment::ZERO;
        let mut limiter = Limiter::new(limits.policy.clone(), seed, now);
        for group in [Group::Exempt, Group::Short, Group::LongRunning] {
            limiter.add_room(group, ROOM, now);
        }
        let (calls, tickets) = (HashMap::new(), HashMap::new());
        Self { now, limiter, calls, tickets, decided: VecDeque::new(), agenda: Agenda::default() }
    }

    /// Adds an event to the agenda.
    pub(super) fn schedule(&mut self, at: Moment, event: E) {
        self.agenda.add(at, event);
    }

    /// Moves on to the next thing that happens by `end`. The gate's decisions come first, then its
    /// timers, then the agenda.
    pub(super) fn next(&mut self, end: Moment) -> Option<Happening<E>> {
        loop {
            if let Some(decision) = self.decided.pop_front() {
                return Some(decision);
            }
            let event = self.agenda.next();
            let timer = self.limiter.next_wakeup().filter(|timer| event.is_none_or(|event| *timer <= event));
            let Some(timer) = timer else {
                let (at, event) = self.agenda.take(end)?;
                self.now = self.now.max(at);
                return Some(Happening::Due(event));
            };
            // At the very end no call is left for which the refill of a bucket would matter.
            let is_idle = end == Moment::MAX && event.is_none() && self.limiter.waiting() == 0;
            if timer > end || is_idle {
                return None;
            }
            self.now = self.now.max(timer);
            self.limiter.advance(self.now);
            self.claim();
        }
    }

    /// Lets call number `call` arrive.
    pub(super) fn arrive(&mut self, call: usize, arrival: &Arrival<'_>) {
        match self.limiter.arrive(arrival, self.now) {
            Verdict::Admit(permit) => self.decide(call, Ok(permit)),
            Verdict::Refuse(refusal) => self.decide(call, Err(refusal)),
            Verdict::Wait(ticket) => {
                self.calls.insert(ticket, call);
                self.tickets.insert(call, ticket);
            }
        }
        self.claim();
    }

    /// Removes a waiting call whose client hangs up. Returns false, and does nothing, if the call
    /// does not wait.
    pub(super) fn give_up(&mut self, call: usize) -> bool {
        let Some(ticket) = self.tickets.remove(&call) else { return false };
        self.calls.remove(&ticket);
        self.limiter.leave(ticket, self.now);
        self.claim();
        true
    }

    /// Reports the answer to a call.
    pub(super) fn finish(&mut self, receipt: Receipt, answer: Answer) {
        self.limiter.finish(receipt, answer, None, &String::new, self.now);
        self.claim();
    }

    /// Reports the end of the answer's body.
    pub(super) fn release(&mut self, slot: Slot) {
        self.limiter.release(slot, self.now);
        self.claim();
    }

    fn decide(&mut self, call: usize, decision: Result<Permit, Refusal>) {
        self.decided.push_back(match decision {
            Ok(permit) => {
                let (_, receipt, slot) = permit.admit(());
                Happening::Left(call, Sent { receipt, slot })
            }
            Err(refusal) => Happening::Refused(call, refusal),
        });
    }

    /// Takes the decisions about waiting calls.
    fn claim(&mut self) {
        while let Some(ticket) = self.limiter.next_event() {
            let decision = match self.limiter.claim(ticket, self.now) {
                Claim::Permit(permit) => Ok(permit),
                Claim::Refused(refusal) => Err(refusal),
                // With room on every connection none is unconnected.
                Claim::Waiting | Claim::Unconnected => continue,
            };
            if let Some(call) = self.calls.remove(&ticket) {
                self.tickets.remove(&call);
                self.decide(call, decision);
            }
        }
    }
}

/// Connections are no part of a simulation: there is always room for one more.
const ROOM: i64 = 1 << 40;
