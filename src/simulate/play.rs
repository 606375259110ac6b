//! Plays a scenario: controllers, leases and an API around one limiter, event by event in virtual
//! time.
//!
//! Nothing here really waits, and the result depends only on the scenario, its seed and the limits.

mod controller;
mod lease;
mod server;

use std::{sync::Arc, time::Duration};

use slab::Slab;

use self::{controller::Controller, lease::Lease, server::Server};
use super::{
    Limits,
    agenda::Agenda,
    gate::{Gate, Sent, Turn},
    request::{Read, Reader},
    tally::{LeaseRow, Row},
};
use crate::{
    classify::Kind,
    config::{scenario::Scenario, settings::RetryAfter},
    limit::{Reason, Refusal},
    moment::Moment,
    random::Random,
};

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
    now: Moment,
    gate: Gate,
    reader: Reader,
    server: Server<'a>,
    agenda: Agenda<Event>,
    random: Random,
    calls: Slab<Call>,
    controllers: Vec<Controller>,
    leases: Vec<Lease>,
    retries: Vec<Moment>,
    first_retries: u64,
    made: u64,
}

/// A future event.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Objects of a controller change.
    Change(usize),
    /// An object is due again.
    Requeue { controller: usize, object: u32 },
    /// A client has slept as long as Retry-After said, and makes the call again.
    Again(u32),
    /// The upstream has answered a call.
    Answered(u32),
    /// A lease is to be renewed.
    Renew(usize),
    /// The holder of a lease gives up waiting for the answer to its call.
    Impatient { lease: usize, attempt: u64 },
}

/// A call under way.
#[derive(Debug)]
struct Call {
    who: Who,
    read: Arc<Read>,
    arrived: Moment,
    /// True if it repeats a call that the upstream had answered with a failure.
    is_retry: bool,
    /// The number of times that the client itself has tried again because of a Retry-After.
    attempts: u32,
    sent: Option<Sent>,
    /// The status and Retry-After that the upstream will answer.
    answer: (u16, Option<Duration>),
}

/// The maker of a call.
#[derive(Clone, Copy, Debug)]
enum Who {
    Object { controller: usize, object: u32 },
    Lease(usize),
}

/// Plays a scenario under some limits.
#[must_use]
pub fn play(scenario: &Scenario, limits: &Limits) -> Played {
    let mut world = World::new(scenario, limits);
    let end = Moment::ZERO + scenario.length;
    world.begin();
    let mut stopped = None;
    while world.step(end) {
        if world.made > MOST_CALLS {
            stopped = Some(world.now);
            break;
        }
    }
    world.now = stopped.unwrap_or(end);
    Played {
        limits: limits.name.clone(),
        length: world.now.since_start(),
        rows: world.controllers.into_iter().map(Controller::into_row).collect(),
        leases: world.leases.into_iter().map(|lease| lease.into_row(stopped.unwrap_or(end))).collect(),
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
            now: Moment::ZERO,
            gate: Gate::new(&limits.gate, scenario.seed, Moment::ZERO),
            reader: Reader::new(),
            server: Server::new(&scenario.upstream),
            agenda: Agenda::new(),
            random: Random::new(scenario.seed),
            calls: Slab::new(),
            controllers: scenario.controllers.iter().map(|spec| Controller::new(spec, step)).collect(),
            leases: scenario.leases.iter().map(Lease::new).collect(),
            retries: Vec::new(),
            first_retries: 0,
            made: 0,
        }
    }

    fn begin(&mut self) {
        for index in 0..self.controllers.len() {
            self.first_change(index);
        }
        for index in 0..self.leases.len() {
            self.agenda.put(Moment::ZERO, Event::Renew(index));
        }
    }

    /// Runs the next event; returns false if there is none before `end`.
    fn step(&mut self, end: Moment) -> bool {
        let due = self.gate.next_wakeup().filter(|due| self.agenda.next().is_none_or(|event| *due <= event));
        let event = if due.is_none() { self.agenda.take(end) } else { None };
        match (due, event) {
            (Some(due), _) if due <= end => {
                self.now = self.now.max(due);
                self.gate.advance(self.now);
            }
            (None, Some((at, event))) => {
                self.now = self.now.max(at);
                self.happen(event);
            }
            _ => return false,
        }
        self.settle();
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Change(controller) => self.change(controller),
            Event::Requeue { controller, object } => {
                self.controllers[controller].add(object);
                self.dispatch(controller);
            }
            Event::Again(call) => self.at_the_door(call),
            Event::Answered(call) => self.answered(call),
            Event::Renew(lease) => self.renew(lease),
            Event::Impatient { lease, attempt } => self.impatient(lease, attempt),
        }
    }

    /// Passes the results of calls on to those who made them.
    fn settle(&mut self) {
        while let Some(turn) = self.gate.next_turn() {
            match turn {
                Turn::Left(call, sent) => self.left(call, sent),
                Turn::Refused(call, refusal) => self.refused(call, &refusal),
            }
        }
    }

    /// Makes a new call, which arrives at the gate.
    fn call(&mut self, who: Who, read: Arc<Read>, is_retry: bool) -> u32 {
        let call = Call { who, read, arrived: self.now, is_retry, attempts: 0, sent: None, answer: (200, None) };
        let index = u32::try_from(self.calls.insert(call)).unwrap_or(u32::MAX);
        self.at_the_door(index);
        index
    }

    fn at_the_door(&mut self, index: u32) {
        let Some(call) = self.calls.get_mut(index as usize) else { return };
        call.arrived = self.now;
        call.attempts += 1;
        self.made += 1;
        if let Who::Object { controller, .. } = call.who {
            self.controllers[controller].row.arrived(self.now);
        }
        let read = Arc::clone(&call.read);
        self.gate.arrive(index, &read.arrival(), self.now);
    }

    fn left(&mut self, index: u32, sent: Sent) {
        let Some(call) = self.calls.get_mut(index as usize) else { return };
        call.sent = Some(sent);
        if let Who::Object { controller, .. } = call.who {
            self.controllers[controller].row.left(self.now, self.now - call.arrived, call.is_retry);
            if call.is_retry {
                self.first_retries += u64::from(self.retries.first().is_none_or(|first| *first == self.now));
                if self.retries.len() < MOST_RETRIES {
                    self.retries.push(self.now);
                }
            }
        }
        let answer = match call.who {
            Who::Object { controller, object } => {
                let spec = &self.scenario.controllers[controller];
                self.server.answer(self.now, Some((spec, object)))
            }
            Who::Lease(_) => self.server.answer(self.now, None),
        };
        call.answer = (answer.status, answer.retry_after);
        self.agenda.put(answer.at, Event::Answered(index));
    }

    fn answered(&mut self, index: u32) {
        let Some(mut call) = self.calls.try_remove(index as usize) else { return };
        let (status, retry_after) = call.answer;
        let answer = match retry_after {
            Some(after) => call.read.turned_away(&self.limits.gate, after),
            None => call.read.answer(&self.limits.gate, status, None),
        };
        if let Some(Sent { receipt, slot }) = call.sent.take() {
            self.gate.finish(receipt, answer, self.now);
            self.gate.release(slot, self.now);
        }
        match call.who {
            Who::Object { controller, object } if status < 400 => self.succeeded(controller, object),
            Who::Object { controller, object } => {
                self.controllers[controller].row.failed(self.now);
                self.failed(controller, object, true);
            }
            Who::Lease(lease) => self.renewed(lease, status < 400),
        }
    }

    fn refused(&mut self, index: u32, refusal: &Refusal) {
        let Some(call) = self.calls.get(index as usize) else { return };
        let (who, attempts) = (call.who, call.attempts);
        let wait = (refusal.retry_at - self.now).max(Duration::from_millis(1));
        if let Who::Object { controller, .. } = who {
            self.controllers[controller].row.was_refused(self.now, refusal.reason);
        }
        if self.says_when(refusal.reason) && attempts <= PATIENCE {
            // client-go sleeps for whole seconds inside the worker, and tries again by itself.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            self.agenda.put(self.now + Duration::from_secs(seconds.max(1)), Event::Again(index));
            return;
        }
        self.calls.try_remove(index as usize);
        match who {
            Who::Object { controller, object } => self.turned_away(controller, object, self.now + wait),
            Who::Lease(lease) => self.renewed(lease, false),
        }
    }

    /// True if a refusal carries Retry-After: decided as the proxy's responder does.
    fn says_when(&self, reason: Reason) -> bool {
        match (self.limits.gate.retry_after, reason) {
            (RetryAfter::Always, _) => true,
            (RetryAfter::Never, _) | (RetryAfter::Auto, Reason::Deadline) => false,
            (RetryAfter::Auto, reason) => !reason.concerns_key() || self.limits.gate.kind == Kind::Http,
        }
    }
}

/// Returns the length of the steps in which a run of this length is counted: short enough for a
/// picture.
fn step(length: Duration) -> Duration {
    let wanted = length.as_secs_f64() / 250.0;
    let steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
    let step = steps.into_iter().find(|step| *step >= wanted).unwrap_or_else(|| wanted.ceil());
    Duration::from_secs_f64(step)
}

/// The number of times that client-go itself retries a call that was answered with a Retry-After.
const PATIENCE: u32 = 10;
/// The most calls of a run. Limits that hold nothing back would lead to calls without end.
const MOST_CALLS: u64 = 5_000_000;
/// The most retries whose moments are kept.
const MOST_RETRIES: usize = 2000;
