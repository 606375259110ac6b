//! The store of shared buckets in virtual time, with the latency and outages of a scenario.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agenda::Agenda;
use crate::config::scenario;
use crate::limit::{Ask, AskId, BucketPart, Ledger, StoreAnswer, StoreFailure};
use crate::moment::Moment;

/// The simulated store of shared buckets, and its network to the gates.
#[derive(Debug)]
pub(super) struct SimulatedStore {
    spec: scenario::StoreModel,
    buckets: Buckets,
    agenda: Agenda<Event>,
    /// The end of the last request's turn.
    free: Moment,
    /// The number of requests answered, from all gates.
    pub(super) asks: u64,
}

type Buckets = BTreeMap<(Arc<str>, Option<BucketPart>), Ledger>;

#[derive(Debug)]
enum Event {
    /// A request reaches the store.
    Request(usize, Box<Ask>, Moment),
    /// The store's reply reaches the gate.
    Reply(StoreReply),
}

/// A reply of the store to a gate, or a timeout.
#[derive(Debug)]
pub(super) struct StoreReply {
    pub(super) gate: usize,
    pub(super) asked: AskId,
    pub(super) answer: Result<StoreAnswer, StoreFailure>,
    pub(super) sent: Moment,
}

// === impl SimulatedStore ===

impl SimulatedStore {
    pub(super) fn new(spec: &scenario::StoreModel) -> Self {
        Self { spec: spec.clone(), buckets: Buckets::new(), agenda: Agenda::default(), free: Moment::ZERO, asks: 0 }
    }

    /// Sends a request of a gate to the store.
    pub(super) fn ask(&mut self, gate: usize, ask: Ask, now: Moment) {
        let late = StoreReply { gate, asked: ask.asked, answer: Err(StoreFailure::Unreachable), sent: now };
        self.agenda.add(now + self.spec.timeout, Event::Reply(late));
        self.free = self.free.max(now + self.spec.rtt / 2) + self.spec.cost;
        self.agenda.add(self.free, Event::Request(gate, Box::new(ask), now));
    }

    /// Returns the moment of the next event.
    pub(super) fn next(&self) -> Option<Moment> {
        self.agenda.next()
    }

    /// Simulates the next event. Returns a reply, if the event is its arrival at a gate.
    pub(super) fn advance(&mut self) -> Option<StoreReply> {
        let (now, event) = self.agenda.take(Moment::MAX)?;
        match event {
            Event::Reply(reply) => return Some(reply),
            Event::Request(gate, ask, sent) => self.answer(gate, &ask, sent, now),
        }
        None
    }

    fn answer(&mut self, gate: usize, ask: &Ask, sent: Moment, now: Moment) {
        let time = now.since_start();
        if self.spec.outages.iter().any(|outage| (outage.from..outage.to).contains(&time)) {
            return;
        }
        self.asks += 1;
        let bucket = self.buckets.entry((Arc::clone(&ask.shared.name), ask.part)).or_default();
        let answer = Ok(bucket.ask(ask, now.as_nanos() / 1000 + BEGAN));
        let reply = StoreReply { gate, asked: ask.asked, answer, sent };
        self.agenda.add(now + self.spec.rtt / 2, Event::Reply(reply));
    }
}

/// The store's clock at the start, in microseconds: an arbitrary moment of this century.
const BEGAN: u64 = 1_800_000_000_000_000;
