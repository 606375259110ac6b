//! Simulates a scenario event by event in virtual time: controllers, leases and an API around one
//! limiter, or around several that share buckets.
//!
//! Nothing really waits. The result depends only on the scenario, its seed and the limits.

mod controller;
mod lease;
mod server;
mod together;

use std::collections::HashMap;
use std::time::Duration;

use slab::Slab;

use self::controller::SimulatedController;
use self::lease::Lease;
use self::server::{Server, ServerAnswer};
pub use self::together::Together;
use super::Limits;
use super::event_loop::{EventLoop, LoopEvent, ONLY, SentCall};
use super::request::{ReadRequest, RequestReader};
use super::tally::{LeaseRow, Row};
use crate::api::duration::whole_seconds;
use crate::config::scenario::Scenario;
use crate::controller::MAX_RETRIES;
use crate::limit::Refusal;
use crate::moment::Moment;
use crate::random::Random;

/// The result of a scenario simulated under some limits.
#[derive(Clone, Debug)]
pub struct ScenarioRun {
    /// The name of the limits.
    pub limits: String,
    /// The simulated length of time.
    pub length: Duration,
    /// The counts of each controller.
    pub rows: Vec<Row>,
    /// The counts of each lease.
    pub leases: Vec<LeaseRow>,
    /// The counts of all gates together.
    pub together: Together,
    /// The times of the first retries.
    pub retries: Vec<Moment>,
    /// The number of retries at the time of the first one.
    pub first_retries: u64,
    /// When the run was stopped because of too many calls. Then the limits did not slow calls down.
    pub stopped: Option<Moment>,
}

/// The state of the simulation.
struct World<'a> {
    scenario: &'a Scenario,
    limits: &'a Limits,
    events: EventLoop<Event>,
    reader: RequestReader,
    server: Server<'a>,
    random: Random,
    calls: Slab<SimulatedCall>,
    controllers: Vec<SimulatedController<'a>>,
    leases: Vec<Lease>,
    together: Together,
    retries: Vec<Moment>,
    first_retries: u64,
    made: u64,
}

/// A future event.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// An object of this controller changes.
    Change(usize),
    /// An object of this controller is due again after a failure.
    Requeue(usize),
    /// A client repeats a call after its Retry-After.
    Repeat(usize),
    /// The upstream answers a call.
    Answer(usize),
    /// A lease must be renewed.
    Renew(usize),
    /// The holder of a lease stops waiting for an answer.
    Timeout { lease: usize, attempt: u64 },
}

/// A simulated call, until its end.
#[derive(Debug)]
struct SimulatedCall {
    maker: Maker,
    read: ReadRequest,
    arrived: Moment,
    /// True if it repeats a failed call.
    is_retry: bool,
    /// The number of times the client repeated it because of a Retry-After.
    retries: u32,
    /// Set once the call is sent: the future response and, for a call through a gate, the gate's
    /// record.
    sent: Option<(Option<SentCall>, ServerAnswer)>,
}

/// The origin of a call: a controller's worker, or the leader of a lease.
#[derive(Clone, Copy, Debug)]
enum Maker {
    Worker { controller: usize, object: usize },
    LeaseHolder(usize),
}

/// Simulates a scenario under some limits.
pub fn play(scenario: &Scenario, limits: &Limits) -> ScenarioRun {
    let mut world = World::new(scenario, limits);
    let mut end = Moment::ZERO + scenario.length;
    (0..world.controllers.len()).for_each(|index| world.first_change(index));
    (0..world.leases.len()).for_each(|index| world.events.schedule(Moment::ZERO, Event::Renew(index)));
    let mut stopped = None;
    while let Some(happening) = world.events.next(end) {
        match happening {
            LoopEvent::Sent(call, sent) => world.sent(call, Some(sent)),
            LoopEvent::Refused(call, refusal) => world.refused(call, &refusal),
            LoopEvent::Due(Event::Change(controller)) => world.change(controller),
            LoopEvent::Due(Event::Requeue(controller)) => world.start_reconciles(controller),
            LoopEvent::Due(Event::Repeat(call)) => world.arrive(call),
            LoopEvent::Due(Event::Answer(call)) => world.answered(call),
            LoopEvent::Due(Event::Renew(lease)) => world.renew(lease),
            LoopEvent::Due(Event::Timeout { lease, attempt }) => world.timed_out(lease, attempt),
        }
        if world.made > MOST_CALLS {
            end = world.events.now;
            stopped = Some(end);
            break;
        }
    }
    ScenarioRun {
        limits: limits.name.clone(),
        length: end.since_start(),
        rows: world.controllers.into_iter().map(SimulatedController::into_row).collect(),
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
            events: EventLoop::new(&limits.gate, scenario.seed, scenario.gates(), &scenario.store),
            reader: RequestReader::new(),
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

    /// Makes a new call and lets it arrive at its gate. Returns the call's index.
    fn call(&mut self, maker: Maker, read: ReadRequest, is_retry: bool) -> usize {
        let arrived = self.events.now;
        let index = self.calls.insert(SimulatedCall { maker, read, arrived, is_retry, retries: 0, sent: None });
        self.arrive(index);
        index
    }

    fn arrive(&mut self, index: usize) {
        self.calls[index].arrived = self.events.now;
        let call = &self.calls[index];
        self.made += 1;
        if let Maker::Worker { controller, .. } = call.maker {
            self.controllers[controller].row.arrived(call.arrived);
        }
        match self.gate_of(call.maker) {
            Some(gate) => self.events.arrive(gate, index, &call.read.arrival()),
            None => self.sent(index, None),
        }
    }

    /// Returns the gate for a caller's calls; `None` if they bypass all gates.
    fn gate_of(&self, maker: Maker) -> Option<usize> {
        match maker {
            Maker::Worker { controller, .. } => self.controllers[controller].gate,
            Maker::LeaseHolder(_) => Some(ONLY),
        }
    }

    fn sent(&mut self, index: usize, sent: Option<SentCall>) {
        let now = self.events.now;
        let call = &self.calls[index];
        let object = match call.maker {
            Maker::Worker { controller, object } => {
                self.controllers[controller].row.sent(now, now - call.arrived, call.is_retry);
                self.together.sent(now);
                if call.is_retry {
                    self.first_retries += u64::from(self.retries.first().is_none_or(|first| *first == now));
                    if self.retries.len() < MOST_RETRIES {
                        self.retries.push(now);
                    }
                }
                Some((self.controllers[controller].spec, object))
            }
            Maker::LeaseHolder(_) => None,
        };
        let maker = call.maker;
        let answer = match (maker, object) {
            (Maker::Worker { controller, .. }, Some((spec, object))) if self.server.has_seats() => {
                let status = self.server.status(now, spec, object);
                self.server.accept(now, index, controller, status)
            }
            _ => Some(self.server.answer(now, object)),
        };
        self.calls[index].sent = Some((sent, answer.unwrap_or_default()));
        if let Some(answer) = answer {
            self.events.schedule(answer.at, Event::Answer(index));
        }
    }

    /// Gives a free seat of the API to the next waiting call.
    fn seat_next(&mut self) {
        let now = self.events.now;
        let Some(index) = self.server.next_call() else { return };
        let call = &mut self.calls[index];
        let Maker::Worker { controller, object } = call.maker else { return };
        let status = self.server.status(now, self.controllers[controller].spec, object);
        let answer = self.server.seat(now, status);
        if let Some((_, coming)) = &mut call.sent {
            *coming = answer;
        }
        self.events.schedule(answer.at, Event::Answer(index));
    }

    fn answered(&mut self, index: usize) {
        let SimulatedCall { maker, read, sent, .. } = self.calls.remove(index);
        let Some((sent, ServerAnswer { status, retry_after, seated, .. })) = sent else { return };
        if seated {
            self.seat_next();
        }
        if let Some((SentCall { receipt, slot }, gate)) = sent.zip(self.gate_of(maker)) {
            let answer = read.answer(&self.limits.gate, status, retry_after, retry_after.is_some());
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
        let says_when = self.limits.gate.refusals.retry_after.is_on(refusal.reason, self.limits.gate.kind);
        let call = &mut self.calls[index];
        if let Maker::Worker { controller, .. } = call.maker {
            self.controllers[controller].row.refused(now, refusal.reason);
        }
        if says_when && call.retries < MAX_RETRIES {
            // client-go sleeps inside the worker.
            call.retries += 1;
            self.events.schedule(now + Duration::from_secs(whole_seconds(wait)), Event::Repeat(index));
            return;
        }
        match self.calls.remove(index).maker {
            Maker::Worker { controller, object } => self.refused_at(controller, object, now + wait),
            Maker::LeaseHolder(lease) => self.attempted(lease, false),
        }
    }
}

/// Returns the simulated controllers: one for each replica of those in the scenario.
fn controllers(scenario: &Scenario, step: Duration) -> Vec<SimulatedController<'_>> {
    let mut all: Vec<SimulatedController<'_>> = Vec::new();
    let mut places = HashMap::new();
    for spec in &scenario.controllers {
        let place = all.len();
        let owner = spec.workers_of.as_ref().and_then(|name| places.get(name.as_str()).copied());
        places.insert(spec.name.as_str(), place);
        for copy in 0..spec.replicas.max(1) {
            let controller = SimulatedController::new(spec, copy, step);
            all.push(controller);
            SimulatedController::join(&mut all, owner.unwrap_or(place + copy));
        }
    }
    all
}

/// Returns the time between two points of a run's charts: at least `length` / 250, so that a chart
/// has at most 250 points.
fn step(length: Duration) -> Duration {
    let wanted = length.as_secs_f64() / 250.0;
    let steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
    let step = steps.into_iter().find(|step| *step >= wanted).unwrap_or_else(|| wanted.ceil());
    Duration::from_secs_f64(step)
}

/// The most calls of a run. Limits too loose to slow calls down would otherwise make it endless.
const MOST_CALLS: u64 = 5_000_000;
/// The most times of retries to record.
const MOST_RETRIES: usize = 2000;
