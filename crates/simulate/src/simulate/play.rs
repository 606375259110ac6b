//! Plays a scenario: controllers, leases and an API around one limiter, or around several that
//! share buckets, event by event in virtual time.
//!
//! Nothing here really waits, and the result depends only on the scenario, its seed and the limits.

mod controller;
mod lease;
mod server;
mod together;

use std::time::Duration;

use slab::Slab;

use self::controller::Controller;
use self::lease::Lease;
use self::server::Server;
pub use self::together::Together;
use super::Limits;
use super::event_loop::{EventLoop, Happening, ONLY, Sent};
use super::request::{Read, Reader, whole_seconds};
use super::tally::{LeaseRow, Row};
use crate::config::scenario::Scenario;
use crate::controller::MAX_RETRIES;
use crate::limit::Refusal;
use crate::moment::Moment;
use crate::random::Random;

/// The result of a scenario under some limits, from its start to its end.
#[derive(Clone, Debug)]
pub struct Played {
    /// The name of the limits.
    pub limits: String,
    /// The length of the run.
    pub length: Duration,
    /// The counts of each controller.
    pub rows: Vec<Row>,
    /// The counts of each lease.
    pub leases: Vec<LeaseRow>,
    /// The calls of all gates.
    pub together: Together,
    /// The moments at which the first retries left.
    pub retries: Vec<Moment>,
    /// The number of retries that left at the very moment of the first.
    pub first_retries: u64,
    /// The moment at which the run was stopped because too much happened: the limits hold nothing
    /// back.
    pub stopped: Option<Moment>,
}

/// The simulated world at one moment.
struct World<'a> {
    scenario: &'a Scenario,
    limits: &'a Limits,
    events: EventLoop<Event>,
    reader: Reader,
    server: Server<'a>,
    random: Random,
    calls: Slab<Call>,
    controllers: Vec<Controller>,
    leases: Vec<Lease>,
    together: Together,
    retries: Vec<Moment>,
    first_retries: u64,
    made: u64,
}

/// A future event.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Objects of a controller change.
    Change(usize),
    /// An object of a controller comes back after a failure.
    Requeue(usize),
    /// A client has slept as long as Retry-After said, and makes the call again.
    Again(usize),
    /// The upstream has answered a call.
    Answered(usize),
    /// A lease is to be renewed.
    Renew(usize),
    /// The holder of a lease gives up waiting for the answer to its call.
    TimedOut { lease: usize, attempt: u64 },
}

/// A call under way.
#[derive(Debug)]
struct Call {
    maker: Maker,
    read: Read,
    arrived: Moment,
    /// True if it repeats a call that the upstream had answered with a failure.
    is_retry: bool,
    /// The number of times that the client itself has tried again because of a Retry-After.
    retries: u32,
    sent: Option<Sent>,
    /// The status and Retry-After that the upstream will answer.
    answer: (u16, Option<Duration>),
}

/// The maker of a call.
#[derive(Clone, Copy, Debug)]
enum Maker {
    Worker { controller: usize, object: usize },
    LeaseHolder(usize),
}

/// Plays a scenario under some limits.
#[must_use]
pub fn play(scenario: &Scenario, limits: &Limits) -> Played {
    let mut world = World::new(scenario, limits);
    let mut end = Moment::ZERO + scenario.length;
    (0..world.controllers.len()).for_each(|index| world.first_change(index));
    (0..world.leases.len()).for_each(|index| world.events.schedule(Moment::ZERO, Event::Renew(index)));
    let mut stopped = None;
    while let Some(happening) = world.events.next(end) {
        match happening {
            Happening::Left(call, sent) => world.left(call, sent),
            Happening::Refused(call, refusal) => world.refused(call, &refusal),
            Happening::Due(Event::Change(controller)) => world.change(controller),
            Happening::Due(Event::Requeue(controller)) => world.start_reconciles(controller),
            Happening::Due(Event::Again(call)) => world.arrive(call),
            Happening::Due(Event::Answered(call)) => world.answered(call),
            Happening::Due(Event::Renew(lease)) => world.renew(lease),
            Happening::Due(Event::TimedOut { lease, attempt }) => world.timed_out(lease, attempt),
        }
        if world.made > MOST_CALLS {
            end = world.events.now;
            stopped = Some(end);
            break;
        }
    }
    Played {
        limits: limits.name.clone(),
        length: end.since_start(),
        rows: world.controllers.into_iter().map(Controller::into_row).collect(),
        leases: world.leases.into_iter().map(|lease| lease.into_row(end)).collect(),
        together: Together { asks: world.events.store.asks, ..world.together },
        retries: world.retries,
        first_retries: world.first_retries,
        stopped,
    }
}

// === impl World ===

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, limits: &'a Limits) -> Self {
        let step = step(scenario.length);
        Self {
            scenario,
            limits,
            events: EventLoop::fleet(&limits.gate, scenario.seed, scenario.gates(), &scenario.store),
            reader: Reader::default(),
            server: Server::new(&scenario.upstream),
            random: Random::new(scenario.seed),
            calls: Slab::new(),
            controllers: controllers(scenario, step),
            leases: scenario.leases.iter().map(Lease::new).collect(),
            together: Together::new(scenario.gates(), scenario.upstream.quota),
            retries: Vec::new(),
            first_retries: 0,
            made: 0,
        }
    }

    /// Makes a new call, which arrives at the gate.
    fn call(&mut self, maker: Maker, read: Read, is_retry: bool) -> usize {
        let arrived = self.events.now;
        let call = Call { maker, read, arrived, is_retry, retries: 0, sent: None, answer: (200, None) };
        let index = self.calls.insert(call);
        self.arrive(index);
        index
    }

    fn arrive(&mut self, index: usize) {
        let call = &mut self.calls[index];
        call.arrived = self.events.now;
        let call = &self.calls[index];
        self.made += 1;
        if let Maker::Worker { controller, .. } = call.maker {
            self.controllers[controller].row.arrived(call.arrived);
        }
        let gate = self.gate_of(call.maker);
        self.events.arrive(gate, index, &self.calls[index].read.arrival());
    }

    /// Returns the gate through which calls go.
    fn gate_of(&self, maker: Maker) -> usize {
        match maker {
            Maker::Worker { controller, .. } => self.controllers[controller].gate,
            Maker::LeaseHolder(_) => ONLY,
        }
    }

    fn left(&mut self, index: usize, sent: Sent) {
        let now = self.events.now;
        let call = &mut self.calls[index];
        call.sent = Some(sent);
        let call = &self.calls[index];
        let object = match call.maker {
            Maker::Worker { controller, object } => {
                self.controllers[controller].row.left(now, now - call.arrived, call.is_retry);
                self.together.left(now);
                if call.is_retry {
                    self.first_retries += u64::from(self.retries.first().is_none_or(|first| *first == now));
                    if self.retries.len() < MOST_RETRIES {
                        self.retries.push(now);
                    }
                }
                Some((self.spec(controller), object))
            }
            Maker::LeaseHolder(_) => None,
        };
        let answer = self.server.answer(now, object);
        self.calls[index].answer = (answer.status, answer.retry_after);
        self.events.schedule(answer.at, Event::Answered(index));
    }

    fn answered(&mut self, index: usize) {
        let Call { maker, read, sent, answer: (status, retry_after), .. } = self.calls.remove(index);
        if let Some(Sent { receipt, slot }) = sent {
            let answer = read.answer(&self.limits.gate, status, retry_after, retry_after.is_some());
            let gate = self.gate_of(maker);
            self.events.finish(gate, receipt, answer);
            self.events.release(gate, slot);
        }
        match maker {
            Maker::Worker { controller, object } if status < 400 => self.succeeded(controller, object),
            Maker::Worker { controller, object } => self.failed(controller, object),
            Maker::LeaseHolder(lease) => self.attempted(lease, status < 400),
        }
    }

    fn refused(&mut self, index: usize, refusal: &Refusal) {
        let now = self.events.now;
        let wait = (refusal.retry_at - now).max(Duration::from_millis(1));
        let says_when = self.limits.gate.retry_after.is_on(refusal.reason, self.limits.gate.kind);
        let call = &mut self.calls[index];
        if let Maker::Worker { controller, .. } = call.maker {
            self.controllers[controller].row.was_refused(now, refusal.reason);
        }
        if says_when && call.retries < MAX_RETRIES {
            // client-go sleeps inside the worker.
            call.retries += 1;
            self.events.schedule(now + Duration::from_secs(whole_seconds(wait)), Event::Again(index));
            return;
        }
        match self.calls.remove(index).maker {
            Maker::Worker { controller, object } => self.turned_away(controller, object, now + wait),
            Maker::LeaseHolder(lease) => self.attempted(lease, false),
        }
    }
}

/// Returns the controllers, each copy for itself.
fn controllers(scenario: &Scenario, step: Duration) -> Vec<Controller> {
    let copies = scenario.controllers.iter().enumerate().flat_map(|(place, spec)| {
        let copy = move |copy| Controller::new(spec, (place, copy), step);
        (0..spec.replicas.max(1)).map(copy)
    });
    copies.collect()
}

/// Returns the length of the steps in which a run of this length is counted: short enough for a
/// picture.
fn step(length: Duration) -> Duration {
    let wanted = length.as_secs_f64() / 250.0;
    let steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
    let step = steps.into_iter().find(|step| *step >= wanted).unwrap_or_else(|| wanted.ceil());
    Duration::from_secs_f64(step)
}

/// The most calls of a run. Limits that hold nothing back would lead to calls without end.
const MOST_CALLS: u64 = 5_000_000;
/// The most retries whose moments are kept.
const MOST_RETRIES: usize = 2000;
