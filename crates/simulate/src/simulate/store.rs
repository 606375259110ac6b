//! The store of shared buckets in virtual time: as far away as a scenario says, at times not there,
//! forgetful, and with a clock that jumps.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agenda::Agenda;
use crate::config::scenario::{self, Jump};
use crate::limit::{Ask, AskId, BucketPart, Ledger, StoreAnswer, StoreFailure};
use crate::moment::Moment;

/// The buckets, and the network between them and the gates.
#[derive(Debug)]
pub(super) struct Store {
    spec: scenario::Store,
    buckets: Buckets,
    /// The state that a loss will bring back, by its place in the scenario.
    copies: BTreeMap<usize, Buckets>,
    /// Added to the clock, in microseconds.
    clock: i64,
    agenda: Agenda<Event>,
    /// The questions that came, of all gates.
    pub(super) asks: u64,
}

type Buckets = BTreeMap<(Arc<str>, Option<BucketPart>), Ledger>;

#[derive(Debug)]
enum Event {
    /// A question reaches the store.
    Asked(usize, Box<Ask>, Moment),
    /// Its outcome reaches the gate.
    Answered(Answered),
    /// A copy is made that a loss brings back.
    Copied(usize),
    Lost(usize),
    Jumped(usize),
}

/// The outcome of a question.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) gate: usize,
    pub(super) asked: AskId,
    pub(super) answer: Result<StoreAnswer, StoreFailure>,
    pub(super) sent: Moment,
}

// === impl Store ===

impl Store {
    pub(super) fn new(spec: &scenario::Store) -> Self {
        let mut agenda = Agenda::default();
        for (place, loss) in spec.losses.iter().enumerate() {
            let copied = loss.back.and_then(|back| loss.at.checked_sub(back));
            copied.into_iter().for_each(|at| agenda.add(Moment::ZERO + at, Event::Copied(place)));
            agenda.add(Moment::ZERO + loss.at, Event::Lost(place));
        }
        for (place, jump) in spec.clock.iter().enumerate() {
            agenda.add(Moment::ZERO + jump.at, Event::Jumped(place));
        }
        let buckets = Buckets::new();
        let copies = BTreeMap::new();
        Self { spec: spec.clone(), buckets, copies, clock: BEGAN, agenda, asks: 0 }
    }

    /// Sends a gate's question off.
    pub(super) fn ask(&mut self, gate: usize, ask: Ask, now: Moment) {
        let late = Answered { gate, asked: ask.asked, answer: Err(StoreFailure::Unreachable), sent: now };
        self.agenda.add(now + self.spec.timeout, Event::Answered(late));
        self.agenda.add(now + self.spec.rtt / 2, Event::Asked(gate, Box::new(ask), now));
    }

    /// Returns the moment of the next event.
    pub(super) fn next(&self) -> Option<Moment> {
        self.agenda.next()
    }

    /// Takes the next event. Returns what reaches a gate by it.
    pub(super) fn happen(&mut self) -> Option<Answered> {
        let (now, event) = self.agenda.take(Moment::MAX)?;
        match event {
            Event::Answered(answered) => return Some(answered),
            Event::Asked(gate, ask, sent) => self.answer(gate, &ask, sent, now),
            Event::Copied(place) => {
                self.copies.insert(place, self.buckets.clone());
            }
            Event::Lost(place) => self.buckets = self.copies.remove(&place).unwrap_or_default(),
            Event::Jumped(place) => {
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
        let answered = Answered { gate, asked: ask.asked, answer, sent };
        self.agenda.add(now + self.spec.rtt / 2, Event::Answered(answered));
    }
}

/// The store's clock at the start: a moment of this century, long before which its buckets were not
/// used.
const BEGAN: i64 = 1_800_000_000_000_000;
