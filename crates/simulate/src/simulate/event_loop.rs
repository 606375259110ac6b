//! Runs limiters in virtual time, as the proxy runs them but never late. Usually there is one gate;
//! several gates share buckets through a simulated store.

use std::collections::{HashMap, VecDeque};

use super::store::{SimulatedStore, StoreReply};
use crate::agenda::Agenda;
use crate::api::{Answer, Group};
use crate::config::scenario;
use crate::limit::{Arrival, Claim, Limiter, Permit, Receipt, Refusal, Slot, Ticket, Verdict};
use crate::moment::Moment;
use crate::spec;

/// Simulated gates, their store, and the future events of the scenario.
#[derive(Debug)]
pub(super) struct EventLoop<E> {
    /// The current time.
    pub(super) now: Moment,
    gates: Vec<SimulatedGate>,
    pub(super) store: SimulatedStore,
    decided: VecDeque<LoopEvent<E>>,
    agenda: Agenda<E>,
}

/// A simulated gate: its limiter, and its waiting calls by number.
#[derive(Debug)]
struct SimulatedGate {
    limiter: Limiter,
    calls: HashMap<Ticket, usize>,
    tickets: HashMap<usize, Ticket>,
}

/// The next event for the simulation: a decision of a gate, or an event of the scenario.
#[derive(Debug)]
pub(super) enum LoopEvent<E> {
    /// The call with this index is sent upstream.
    Sent(usize, SentCall),
    /// The gate refuses the call with this index.
    Refused(usize, Refusal),
    /// An event of the scenario is due.
    Due(E),
}

/// The limiter's records of a sent call, for reporting the end of the call.
#[derive(Debug)]
pub(super) struct SentCall {
    pub(super) receipt: Receipt,
    pub(super) slot: Slot,
}

// === impl EventLoop ===

impl<E> EventLoop<E> {
    /// Creates gates with the same limits, and a store shared by them.
    pub(super) fn new(limits: &spec::Gate, seed: u64, gates: usize, store: &scenario::StoreModel) -> Self {
        let gates = (seed..).take(gates.max(1)).map(|seed| SimulatedGate::new(limits, seed)).collect();
        let decided = VecDeque::new();
        let agenda = Agenda::default();
        Self { now: Moment::ZERO, gates, store: SimulatedStore::new(store), decided, agenda }
    }

    /// Adds a future event of the scenario.
    pub(super) fn schedule(&mut self, at: Moment, event: E) {
        self.agenda.add(at, event);
    }

    /// Returns the next event for the simulation, if it is not after `end`.
    ///
    /// At the same moment the order is: decisions of gates, timers of gates, the store, events of
    /// the scenario.
    pub(super) fn next(&mut self, end: Moment) -> Option<LoopEvent<E>> {
        loop {
            if let Some(decision) = self.decided.pop_front() {
                return Some(decision);
            }
            let event = self.agenda.next();
            let store = self.store.next();
            let others = [event, store].into_iter().flatten().min();
            let timers = self.gates.iter().enumerate();
            let timer = timers.filter_map(|(gate, at)| Some((at.limiter.next_wakeup()?, gate))).min();
            if let Some((at, gate)) = timer.filter(|(at, _)| others.is_none_or(|other| *at <= other)) {
                // At the very end no call is left for which the refill of a bucket would matter.
                let is_idle = end == Moment::MAX && event.is_none() && self.is_idle();
                if at > end || is_idle {
                    return None;
                }
                self.now = self.now.max(at);
                self.tick(gate);
            } else if let Some(at) = store.filter(|store| event.is_none_or(|event| *store <= event)) {
                if at > end {
                    return None;
                }
                self.now = self.now.max(at);
                self.play_store();
            } else {
                let (at, event) = self.agenda.take(end)?;
                self.now = self.now.max(at);
                return Some(LoopEvent::Due(event));
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.gates.iter().all(|gate| gate.limiter.waiting() == 0)
    }

    /// Runs the timers of a gate, and sends its requests to the store.
    fn tick(&mut self, gate: usize) {
        let limiter = &mut self.gates[gate].limiter;
        limiter.advance(self.now);
        limiter.take_asks(self.now).into_iter().for_each(|ask| self.store.ask(gate, ask, self.now));
        self.claim(gate);
    }

    /// Simulates the next event of the store.
    fn play_store(&mut self) {
        if let Some(StoreReply { gate, asked, answer, sent }) = self.store.advance() {
            self.gates[gate].limiter.answered(asked, answer, sent, self.now);
            self.claim(gate);
        }
    }

    /// Lets call number `call` arrive at a gate.
    pub(super) fn arrive(&mut self, gate: usize, call: usize, arrival: &Arrival<'_>) {
        let at = &mut self.gates[gate];
        match at.limiter.arrive(arrival, self.now) {
            Verdict::Admit(permit) => self.decide(call, Ok(permit)),
            Verdict::Refuse(refusal) => self.decide(call, Err(refusal)),
            Verdict::Wait(ticket) => {
                at.calls.insert(ticket, call);
                at.tickets.insert(call, ticket);
            }
        }
        self.claim(gate);
    }

    /// Removes a waiting call because its client has hung up. Returns false if the call is not
    /// waiting.
    pub(super) fn give_up(&mut self, gate: usize, call: usize) -> bool {
        let at = &mut self.gates[gate];
        let Some(ticket) = at.tickets.remove(&call) else { return false };
        at.calls.remove(&ticket);
        at.limiter.leave(ticket, self.now);
        self.claim(gate);
        true
    }

    /// Reports to a gate the response to a call.
    pub(super) fn finish(&mut self, gate: usize, receipt: Receipt, answer: Answer) {
        self.gates[gate].limiter.finish(receipt, answer, None, &String::new, self.now);
        self.claim(gate);
    }

    /// Reports to a gate the end of a response's body: its slot is free again.
    pub(super) fn release(&mut self, gate: usize, slot: Slot) {
        self.gates[gate].limiter.release(slot, self.now);
        self.claim(gate);
    }

    fn decide(&mut self, call: usize, decision: Result<Permit, Refusal>) {
        self.decided.push_back(match decision {
            Ok(permit) => {
                let (_, receipt, slot) = permit.admit(());
                LoopEvent::Sent(call, SentCall { receipt, slot })
            }
            Err(refusal) => LoopEvent::Refused(call, refusal),
        });
    }

    /// Collects the decisions of a gate about waiting calls.
    fn claim(&mut self, gate: usize) {
        while let Some((call, decision)) = self.gates[gate].claim(self.now) {
            self.decide(call, decision);
        }
    }
}

// === impl SimulatedGate ===

impl SimulatedGate {
    /// Creates a gate without calls. It has unlimited streams on its connections.
    fn new(limits: &spec::Gate, seed: u64) -> Self {
        let now = Moment::ZERO;
        let mut limiter = Limiter::new(limits.policy.clone(), seed, now);
        for group in [Group::Exempt, Group::Short, Group::LongRunning] {
            limiter.add_room(group, ROOM, now);
        }
        Self { limiter, calls: HashMap::new(), tickets: HashMap::new() }
    }

    /// Returns the next decision about a waiting call: its number, and a permit or refusal.
    fn claim(&mut self, now: Moment) -> Option<(usize, Result<Permit, Refusal>)> {
        while let Some(ticket) = self.limiter.next_event() {
            let decision = match self.limiter.claim(ticket, now) {
                Claim::Permit(permit) => Ok(permit),
                Claim::Refused(refusal) => Err(refusal),
                // Every connection has room, so no call is unconnected.
                Claim::Waiting | Claim::Unconnected => continue,
            };
            if let Some(call) = self.calls.remove(&ticket) {
                self.tickets.remove(&call);
                return Some((call, decision));
            }
        }
        None
    }
}

/// The index of the only gate.
pub(super) const ONLY: usize = 0;
/// The number of streams on connections: large enough for any simulation.
const ROOM: i64 = 1 << 40;
