//! Controllers, the limiter with a preset, the network, and a provider that counts: one event after
//! the other.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode, Uri};
use tidegate::api::{Group, Key, outcome, signals};
use tidegate::classify::{Classified, Salt};
use tidegate::limit::{Arrival, Claim, Flow, Limiter, Permit, Receipt, Refusal, Slot, Ticket, Verdict};
use tidegate::moment::Moment;
use tidegate::spec::Gate;

use crate::presets::Signed;

/// A provider that counts.
pub(super) trait Provider {
    /// Counts a call on its arrival, and answers it.
    fn serve(&mut self, job: &Job, at: Duration) -> Reply;

    /// Ends a call that was answered so.
    fn end(&mut self, _job: &Job, _status: u16) {}

    /// The part that was used of each quota that there was a call for.
    fn used(&self, last: Duration) -> Vec<(String, f64)>;
}

/// An answer, and the time that it takes.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: &'static str,
    pub(super) takes: Duration,
}

/// The call that a worker makes over and over.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) account: u64,
    pub(super) region: &'static str,
    pub(super) service: &'static str,
    pub(super) method: Method,
    pub(super) path: String,
    /// The action, or what stands for it.
    pub(super) action: &'static str,
    pub(super) form: String,
    /// The time between two calls, beyond a few milliseconds.
    pub(super) idle: Duration,
}

/// The calls of a run.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    pub(super) jobs: Vec<Job>,
    /// The workers for each job: one of each controller.
    pub(super) workers: usize,
    pub(super) last: Duration,
}

/// A gate and its limiter.
struct Gated {
    gate: Gate,
    limiter: Limiter,
    /// The jobs as the gate reads them.
    calls: Vec<(Classified, Option<Key>)>,
}

/// The controllers, the gate, the provider, and the counts.
pub(super) struct Town<P> {
    gated: Option<Gated>,
    traffic: Traffic,
    pub(super) provider: P,
    now: Moment,
    events: BTreeMap<(Moment, u64), Event>,
    number: u64,
    waiting: HashMap<Ticket, usize>,
    dice: u64,
    pub(super) served: usize,
    pub(super) throttled: usize,
    /// The calls that the gate held or refused, by job.
    pub(super) waited: Vec<usize>,
}

type Owed = Option<Box<(Receipt, Slot)>>;

enum Event {
    /// A worker makes its call.
    Act(usize),
    Arrives(usize, Owed),
    Answered(usize, Owed, Box<Reply>),
}

// === impl Job ===

impl Job {
    pub(super) fn new(service: &'static str, method: Method, path: &str, action: &'static str) -> Self {
        let (form, idle) = (String::new(), Duration::ZERO);
        Self { account: 1, region: "us-east-1", service, method, path: path.to_owned(), action, form, idle }
    }

    fn is_read_by(&self, gate: &Gate, hasher: &Salt) -> (Classified, Option<Key>) {
        let Self { account, region, service, method, path, form, .. } = self;
        let call = match gate.rules.speaks_a_dialect() && gate.throttling.honour.contains(tidegate::api::Signal::Aws) {
            true => {
                let method = method.clone();
                Signed { account: *account, region, service, method, path, form }.classified(gate, hasher)
            }
            false => {
                let uri: Uri = path.parse().expect("a path");
                let headers =
                    HeaderMap::from_iter([(http::header::AUTHORIZATION, "Bearer one".parse().expect("a value"))]);
                gate.rules.classify_with(method, &uri, &headers, form.as_bytes(), hasher)
            }
        };
        let key = call.key.known();
        (call, key)
    }
}

// === impl Town ===

impl<P: Provider> Town<P> {
    pub(super) fn run(gate: Option<Gate>, traffic: Traffic, provider: P) -> Self {
        let hasher = Salt::random();
        let gated = gate.map(|gate| {
            let mut limiter = Limiter::new(gate.policy.clone(), 7, Moment::ZERO);
            limiter.add_room(Group::Short, 10_000, Moment::ZERO);
            let calls = traffic.jobs.iter().map(|job| job.is_read_by(&gate, &hasher)).collect();
            Gated { gate, limiter, calls }
        });
        let (jobs, workers) = (traffic.jobs.len(), traffic.workers);
        let mut town = Self {
            gated,
            traffic,
            provider,
            now: Moment::ZERO,
            events: BTreeMap::new(),
            number: 0,
            waiting: HashMap::new(),
            dice: 1,
            served: 0,
            throttled: 0,
            waited: vec![0; jobs],
        };
        for job in (0..workers).flat_map(|_| 0..jobs) {
            let soon = town.millis(20);
            town.later(soon, Event::Act(job));
        }
        town.live();
        town
    }

    fn live(&mut self) {
        loop {
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let wakeup = self.gated.as_ref().and_then(|gated| gated.limiter.next_wakeup());
            let Some(next) = [event, wakeup].into_iter().flatten().min() else { return };
            if next.since_start() >= self.traffic.last {
                return;
            }
            self.now = self.now.max(next);
            match self.events.first_entry().filter(|entry| entry.key().0 <= self.now) {
                Some(entry) => match entry.remove() {
                    Event::Act(job) => self.act(job),
                    Event::Arrives(job, owed) => {
                        let reply = self.provider.serve(&self.traffic.jobs[job], self.now.since_start());
                        let takes = reply.takes;
                        self.later(takes, Event::Answered(job, owed, Box::new(reply)));
                    }
                    Event::Answered(job, owed, reply) => self.answered(job, owed, &reply),
                },
                None => self.gated.iter_mut().for_each(|gated| gated.limiter.advance(self.now)),
            }
            self.drain();
        }
    }

    fn act(&mut self, job: usize) {
        let Some(Gated { limiter, calls, .. }) = &mut self.gated else { return self.send(job, None) };
        let (call, key) = &calls[job];
        let arrival = Arrival {
            class: call.class,
            flow: Flow { id: call.flow, name: &"flow" },
            key: *key,
            credential: call.credential,
            write: call.goes_alone,
            reads: call.reads,
            cost: call.cost,
            group: call.group,
            long_running: false,
            lists_first: false,
            patient: false,
            timeout: None,
        };
        match limiter.arrive(&arrival, self.now) {
            Verdict::Admit(permit) => self.send(job, Some(permit)),
            Verdict::Wait(ticket) => {
                self.waited[job] += 1;
                self.waiting.insert(ticket, job);
            }
            Verdict::Refuse(refusal) => {
                self.waited[job] += 1;
                self.comes_back(job, &refusal);
            }
        }
    }

    /// No two calls take the same time to the provider.
    fn send(&mut self, job: usize, permit: Option<Permit>) {
        let owed = permit.map(|permit| {
            let (_, receipt, slot) = permit.admit(());
            Box::new((receipt, slot))
        });
        let way = Duration::from_millis(1) + self.millis(50);
        self.later(way, Event::Arrives(job, owed));
    }

    fn answered(&mut self, job: usize, owed: Owed, reply: &Reply) {
        self.provider.end(&self.traffic.jobs[job], reply.status);
        let is_throttled = reply.status >= 400;
        self.throttled += usize::from(is_throttled);
        self.served += usize::from(!is_throttled);
        if let (Some(owed), Some(Gated { gate, limiter, calls })) = (owed, &mut self.gated) {
            let (receipt, slot) = *owed;
            let call = &calls[job].0;
            let status = StatusCode::from_u16(reply.status).expect("a status");
            let response =
                signals::Response { status, headers: &reply.headers, body: reply.body.as_bytes(), wall: None };
            let failures = &gate.failures[usize::from(call.class.0)];
            let answer = outcome::answer(failures, &gate.throttling, &call.call, &response).answer;
            if let Err(receipt) = receipt.settle(limiter.keys(), answer) {
                limiter.finish(receipt, answer, None, &|| "a call".to_owned(), self.now);
            }
            limiter.release(slot, self.now);
            limiter.add_room(call.group, 1, self.now);
        }
        // An SDK tries again after up to a second.
        let pause = self.millis(if is_throttled { 1000 } else { 20 });
        self.later(pause + self.traffic.jobs[job].idle, Event::Act(job));
    }

    /// Comes back as SDKs do: after whole seconds, but not after more than twenty.
    fn comes_back(&mut self, job: usize, refusal: &Refusal) {
        let seconds = ((refusal.retry_at - self.now).as_secs() + 1).min(20);
        self.later(Duration::from_secs(seconds), Event::Act(job));
    }

    fn drain(&mut self) {
        while let Some(Gated { limiter, .. }) = &mut self.gated
            && let Some(ticket) = limiter.next_event()
        {
            let claim = limiter.claim(ticket, self.now);
            if matches!(claim, Claim::Waiting) {
                continue;
            }
            let job = self.waiting.remove(&ticket).expect("events are about calls that wait");
            match claim {
                Claim::Permit(permit) => self.send(job, Some(permit)),
                Claim::Refused(refusal) => self.comes_back(job, &refusal),
                Claim::Waiting | Claim::Unconnected => panic!("connections are never short here"),
            }
        }
    }

    fn later(&mut self, after: Duration, event: Event) {
        self.number += 1;
        self.events.insert((self.now + after, self.number), event);
    }

    /// Up to so many milliseconds.
    fn millis(&mut self, most: u64) -> Duration {
        Duration::from_micros(self.roll() % (most * 1000))
    }

    /// SplitMix64.
    fn roll(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.dice ^ (self.dice >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
