//! A limiter in virtual time: driven as the proxy drives it, but never late.

use std::collections::{HashMap, VecDeque};

use crate::{
    api::{Answer, Group},
    config::settings,
    limit::{Arrival, Claim, Limiter, Receipt, Refusal, Slot, Ticket, Verdict},
    moment::Moment,
};

/// A gate without connections: its limiter, and the waiting calls by number.
#[derive(Debug)]
pub(super) struct Gate {
    limiter: Limiter,
    calls: HashMap<Ticket, u32>,
    tickets: HashMap<u32, Ticket>,
    turns: VecDeque<Turn>,
}

/// The result of a call.
#[derive(Debug)]
pub(super) enum Turn {
    /// It left for the upstream.
    Left(u32, Sent),
    /// It was refused.
    Refused(u32, Refusal),
}

/// The receipt and slot that a sent call owes to the limiter.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) receipt: Receipt,
    pub(super) slot: Slot,
}

// === impl Gate ===

impl Gate {
    /// Creates a gate at rest, with room on every connection.
    pub(super) fn new(limits: &settings::Gate, seed: u64, now: Moment) -> Self {
        let mut limiter = Limiter::new(limits.policy.clone(), seed, now);
        for group in [Group::Exempt, Group::Short, Group::LongRunning] {
            limiter.add_room(group, ROOM, now);
        }
        Self { limiter, calls: HashMap::new(), tickets: HashMap::new(), turns: VecDeque::new() }
    }

    /// Lets call number `call` arrive.
    pub(super) fn arrive(&mut self, call: u32, arrival: &Arrival<'_>, now: Moment) {
        match self.limiter.arrive(arrival, now) {
            Verdict::Admit(permit) => {
                let (_, receipt, slot) = permit.admit(());
                self.turns.push_back(Turn::Left(call, Sent { receipt, slot }));
            }
            Verdict::Wait(ticket) => {
                self.calls.insert(ticket, call);
                self.tickets.insert(call, ticket);
            }
            Verdict::Refuse(refusal) => self.turns.push_back(Turn::Refused(call, refusal)),
        }
        self.drain(now);
    }

    /// Removes a waiting call whose caller hangs up. Returns false, and does nothing, if the call
    /// does not wait.
    pub(super) fn give_up(&mut self, call: u32, now: Moment) -> bool {
        let Some(ticket) = self.tickets.remove(&call) else { return false };
        self.calls.remove(&ticket);
        self.limiter.leave(ticket, now);
        self.drain(now);
        true
    }

    /// Reports the answer to a call.
    pub(super) fn finish(&mut self, receipt: Receipt, answer: Answer, now: Moment) {
        self.limiter.finish(receipt, answer, None, &String::new, now);
        self.drain(now);
    }

    /// Reports the end of the answer's body.
    pub(super) fn release(&mut self, slot: Slot, now: Moment) {
        self.limiter.release(slot, now);
        self.drain(now);
    }

    /// Does what is due by now.
    pub(super) fn advance(&mut self, now: Moment) {
        self.limiter.advance(now);
        self.drain(now);
    }

    /// Returns the moment at which `advance` is due.
    pub(super) fn next_wakeup(&self) -> Option<Moment> {
        self.limiter.next_wakeup()
    }

    /// Returns the next result, in order. The caller must take all of them after every operation.
    pub(super) fn next_turn(&mut self) -> Option<Turn> {
        self.turns.pop_front()
    }

    /// Returns the number of calls that wait.
    pub(super) fn waiting(&self) -> usize {
        self.limiter.waiting()
    }

    fn drain(&mut self, now: Moment) {
        while let Some(ticket) = self.limiter.next_event() {
            let claim = self.limiter.claim(ticket, now);
            if matches!(claim, Claim::Waiting) {
                continue;
            }
            let Some(call) = self.calls.remove(&ticket) else { continue };
            self.tickets.remove(&call);
            match claim {
                Claim::Permit(permit) => {
                    let (_, receipt, slot) = permit.admit(());
                    self.turns.push_back(Turn::Left(call, Sent { receipt, slot }));
                }
                Claim::Refused(refusal) => self.turns.push_back(Turn::Refused(call, refusal)),
                // A waiting call is skipped above, and with room on every connection none is
                // unconnected.
                Claim::Waiting | Claim::Unconnected => {}
            }
        }
    }
}

/// Connections are no part of a simulation: there is always room for one more.
const ROOM: i64 = 1 << 40;
