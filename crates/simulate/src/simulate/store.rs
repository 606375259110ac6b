//! The store of shared buckets in virtual time, with the latency, outages, losses and clock jumps of
//! a scenario.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agenda::Agenda;
use crate::config::scenario::{self, Jump};
use crate::limit::{Ask, AskId, BucketPart, Ledger, StoreAnswer, StoreFailure};
use crate::moment::Moment;

/// The simulated store of shared buckets, and its network to the gates.
#[derive(Debug)]
pub(super) struct SimulatedStore {
    spec: scenario::StoreModel,
    buckets: Buckets,
    /// Copies of the buckets, restored when the scenario loses data; by the index of the loss.
    copies: BTreeMap<usize, Buckets>,
    /// The store's clock less the virtual time, in microseconds.
    clock: i64,
    agenda: Agenda<Event>,
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
    /// The buckets are copied, to be restored in a later loss of data.
    Copy(usize),
    Loss(usize),
    ClockJump(usize),
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
        let mut agenda = Agenda::default();
        for (place, loss) in spec.losses.iter().enumerate() {
            let copied = loss.back.and_then(|back| loss.at.checked_sub(back));
            copied.into_iter().for_each(|at| agenda.add(Moment::ZERO + at, Event::Copy(place)));
            agenda.add(Moment::ZERO + loss.at, Event::Loss(place));
        }
        for (place, jump) in spec.clock.iter().enumerate() {
            agenda.add(Moment::ZERO + jump.at, Event::ClockJump(place));
        }
        let buckets = Buckets::new();
        let copies = BTreeMap::new();
        Self { spec: spec.clone(), buckets, copies, clock: BEGAN, agenda, asks: 0 }
    }

    /// Sends a request of a gate to the store.
    pub(super) fn ask(&mut self, gate: usize, ask: Ask, now: Moment) {
        let late = StoreReply { gate, asked: ask.asked, answer: Err(StoreFailure::Unreachable), sent: now };
        self.agenda.add(now + self.spec.timeout, Event::Reply(late));
        self.agenda.add(now + self.spec.rtt / 2, Event::Request(gate, Box::new(ask), now));
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
            Event::Copy(place) => {
                self.copies.insert(place, self.buckets.clone());
            }
            Event::Loss(place) => self.buckets = self.copies.remove(&place).unwrap_or_default(),
            Event::ClockJump(place) => {
                let by = match self.spec.clock.get(place).map(|jump| jump.by) {
                    Some(Jump::Ahead(by)) => i64::try_from(by.as_micros()).unwrap_or_default(),
                    Some(Jump::Back(by)) => -i64::try_from(by.as_micros()).unwrap_or_default(),
                    None => 0,
                };
                self.clock = self.clock.saturating_add(by);
            }
        }
        None
    }

    fn answer(&mut self, gate: usize, ask: &Ask, sent: Moment, now: Moment) {
        if self.spec.outages.iter().any(|outage| outage.keeps_out(gate, now.since_start())) {
            return;
        }
        self.asks += 1;
        let micros = i64::try_from(now.as_nanos() / 1000).unwrap_or(i64::MAX).saturating_add(self.clock);
        let bucket = self.buckets.entry((Arc::clone(&ask.shared.name), ask.part)).or_default();
        let answer = Ok(bucket.ask(ask, u64::try_from(micros).unwrap_or_default()));
        let reply = StoreReply { gate, asked: ask.asked, answer, sent };
        self.agenda.add(now + self.spec.rtt / 2, Event::Reply(reply));
    }
}

/// The store's clock at the start, in microseconds: an arbitrary moment of this century.
const BEGAN: i64 = 1_800_000_000_000_000;
