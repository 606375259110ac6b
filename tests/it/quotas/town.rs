//! Controllers, the limiter with a preset, the network, and a provider that counts: one event after
//! the other.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode, Uri};
use testing::providers::{self, Reply};
use tidegate::api::{Group, Key, outcome, signals};
use tidegate::classify::{ClassifiedCall, Salt};
use tidegate::dialect::Head;
use tidegate::limit::{
    Arrival, Ask, AskId, BucketPart, Claim, Flow, Ledger, Limiter, Permit, Receipt, Refusal, Slot, StoreAnswer, Ticket,
    Verdict,
};
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
    calls: Vec<(ClassifiedCall, Option<Key>)>,
    waiting: HashMap<Ticket, Worker>,
}

/// A worker, by its job and the gate that it calls through.
#[derive(Clone, Copy, Debug)]
struct Worker {
    job: usize,
    gate: usize,
}

/// The controllers, their gates with the store that these share, the provider, and the counts.
pub(super) struct Town<P> {
    /// None if the controllers have no gate.
    gated: Vec<Gated>,
    ledgers: BTreeMap<(Arc<str>, Option<BucketPart>), Ledger>,
    /// The questions to the store, by moment and gate.
    pub(super) questions: Vec<(Moment, usize)>,
    traffic: Traffic,
    pub(super) provider: P,
    now: Moment,
    events: BTreeMap<(Moment, u64), Event>,
    number: u64,
    dice: u64,
    pub(super) served: usize,
    pub(super) throttled: usize,
    /// The calls that the gate held or refused, by job.
    pub(super) waited: Vec<usize>,
    stops: Vec<Stop>,
}

/// The time without a departure while a call of a job waits.
#[derive(Clone, Copy, Debug, Default)]
struct Stop {
    waiting: usize,
    since: Moment,
    longest: Duration,
}

type Owed = Option<Box<(Receipt, Slot)>>;

enum Event {
    /// A worker makes its call.
    Act(Worker),
    Arrives(Worker, Owed),
    Answered(Worker, Owed, Box<Reply>),
    /// A gate's question reaches the store.
    Asked(usize, Vec<Ask>, Moment),
    Told(usize, Vec<(AskId, StoreAnswer)>, Moment),
}

impl<P: providers::Provider> Provider for P {
    fn serve(&mut self, job: &Job, at: Duration) -> Reply {
        providers::Provider::serve(self, job.account, job.action, at)
    }

    fn end(&mut self, job: &Job, _status: u16) {
        providers::Provider::end(self, job.account);
    }

    fn used(&self, last: Duration) -> Vec<(String, f64)> {
        providers::Provider::used(self, last)
    }
}

// === impl Job ===

impl Job {
    pub(super) fn new(service: &'static str, method: Method, path: &str, action: &'static str) -> Self {
        let (form, idle) = (String::new(), Duration::ZERO);
        Self { account: 1, region: "us-east-1", service, method, path: path.to_owned(), action, form, idle }
    }

    fn is_read_by(&self, gate: &Gate, hasher: &Salt) -> (ClassifiedCall, Option<Key>) {
        let Self { account, region, service, method, path, form, .. } = self;
        let call = match gate.rules.speaks_a_dialect()
            && gate.answers.throttling.honour.contains(tidegate::api::Signal::Aws)
        {
            true => {
                let method = method.clone();
                Signed { account: *account, region, service, method, path, form }.classified(gate, hasher)
            }
            false => {
                let uri: Uri = path.parse().expect("a path");
                let token = format!("Bearer {account}").parse().expect("a value");
                let headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, token)]);
                let head = Head { method, uri: &uri, headers: &headers };
                gate.rules.classify_with(&head, form.as_bytes(), hasher)
            }
        };
        let key = call.key.known();
        (call, key)
    }
}

// === impl Stop ===

impl Stop {
    fn begin(&mut self, now: Moment) {
        if self.waiting == 0 {
            self.since = now;
        }
        self.waiting += 1;
    }

    fn end(&mut self, now: Moment) {
        self.longest = self.longest.max(now - self.since);
        self.waiting -= 1;
    }

    fn depart(&mut self, now: Moment) {
        if self.waiting > 0 {
            self.longest = self.longest.max(now - self.since);
        }
        self.since = now;
    }
}

// === impl Town ===

impl<P: Provider> Town<P> {
    pub(super) fn run(gate: Option<Gate>, traffic: Traffic, provider: P) -> Self {
        Self::run_all(gate.into_iter().collect(), traffic, provider)
    }

    /// Runs controllers, each of which has the gate of its number, if there are several.
    pub(super) fn run_all(gates: Vec<Gate>, traffic: Traffic, provider: P) -> Self {
        let gated = gates.into_iter().zip(7..).map(|(gate, seed)| {
            let hasher = Salt::random();
            let mut limiter = Limiter::new(gate.policy.clone(), seed, Moment::ZERO);
            limiter.add_room(Group::Short, 10_000, Moment::ZERO);
            let calls = traffic.jobs.iter().map(|job| job.is_read_by(&gate, &hasher)).collect();
            Gated { gate, limiter, calls, waiting: HashMap::new() }
        });
        let (jobs, workers) = (traffic.jobs.len(), traffic.workers);
        let mut town = Self {
            gated: gated.collect(),
            ledgers: BTreeMap::new(),
            questions: Vec::new(),
            traffic,
            provider,
            now: Moment::ZERO,
            events: BTreeMap::new(),
            number: 0,
            dice: 1,
            served: 0,
            throttled: 0,
            waited: vec![0; jobs],
            stops: vec![Stop::default(); jobs],
        };
        for (number, job) in (0..workers).flat_map(|number| (0..jobs).map(move |job| (number, job))) {
            let (soon, gate) = (town.millis(20), number % town.gated.len().max(1));
            town.later(soon, Event::Act(Worker { job, gate }));
        }
        town.live();
        town
    }

    fn live(&mut self) {
        loop {
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let wakeups = self.gated.iter().enumerate();
            let wakeup = wakeups.filter_map(|(gate, gated)| Some((gated.limiter.next_wakeup()?, gate))).min();
            let Some(next) = event.into_iter().chain(wakeup.map(|(at, _)| at)).min() else { return };
            if next.since_start() >= self.traffic.last {
                return;
            }
            self.now = self.now.max(next);
            let gate = match self.events.first_entry().filter(|entry| entry.key().0 <= self.now) {
                Some(entry) => match entry.remove() {
                    Event::Act(worker) => self.act(worker),
                    Event::Arrives(worker, owed) => {
                        let reply = self.provider.serve(&self.traffic.jobs[worker.job], self.now.since_start());
                        let takes = reply.takes;
                        self.later(takes, Event::Answered(worker, owed, Box::new(reply)));
                        worker.gate
                    }
                    Event::Answered(worker, owed, reply) => self.answered(worker, owed, &reply),
                    Event::Asked(gate, asks, sent) => self.store(gate, &asks, sent),
                    Event::Told(gate, answers, sent) => {
                        let answers = answers.into_iter().map(|(asked, answer)| (asked, Ok(answer)));
                        self.gated[gate].limiter.all_answered(answers, sent, self.now);
                        gate
                    }
                },
                None => self.tick(wakeup.map_or(0, |(_, gate)| gate)),
            };
            self.drain(gate);
        }
    }

    /// Advances a gate, whose question takes a millisecond to the store, and its answer another.
    fn tick(&mut self, gate: usize) -> usize {
        self.gated[gate].limiter.advance(self.now);
        let asks = self.gated[gate].limiter.take_asks(self.now);
        if !asks.is_empty() {
            self.questions.push((self.now, gate));
            self.later(Duration::from_millis(1), Event::Asked(gate, asks, self.now));
        }
        gate
    }

    fn store(&mut self, gate: usize, asks: &[Ask], sent: Moment) -> usize {
        let now = 1_700_000_000_000_000 + self.now.as_nanos() / 1000;
        let mut answer = |ask: &Ask| {
            let ledger = self.ledgers.entry((Arc::clone(&ask.shared.name), ask.part)).or_default();
            (ask.asked, ledger.ask(ask, now))
        };
        let answers = asks.iter().map(&mut answer).collect();
        self.later(Duration::from_millis(1), Event::Told(gate, answers, sent));
        gate
    }

    fn act(&mut self, worker: Worker) -> usize {
        let Worker { job, gate } = worker;
        let Some(Gated { limiter, calls, waiting, .. }) = self.gated.get_mut(gate) else {
            return self.send(worker, None);
        };
        let (call, key) = &calls[job];
        let arrival = Arrival {
            key: *key,
            credential: call.credential,
            quota: call.quota,
            write: call.goes_alone,
            reads: call.reads(),
            cost: call.cost,
            group: call.group,
            ..Arrival::new(call.class, Flow { id: call.flow(), name: &"flow" })
        };
        match limiter.arrive(&arrival, self.now) {
            Verdict::Admit(permit) => return self.send(worker, Some(permit)),
            Verdict::Wait(ticket) => {
                self.waited[job] += 1;
                waiting.insert(ticket, worker);
                self.stops[job].begin(self.now);
            }
            Verdict::Refuse(refusal) => {
                self.waited[job] += 1;
                self.comes_back(worker, &refusal);
            }
        }
        gate
    }

    /// The longest time for which a call of the job waited while none left.
    pub(super) fn stop(&self, job: usize) -> Duration {
        self.stops[job].longest
    }

    /// No two calls take the same time to the provider.
    fn send(&mut self, worker: Worker, permit: Option<Permit>) -> usize {
        let owed = permit.map(|permit| {
            let (_, receipt, slot) = permit.admit(());
            Box::new((receipt, slot))
        });
        self.stops[worker.job].depart(self.now);
        let way = Duration::from_millis(1) + self.millis(50);
        self.later(way, Event::Arrives(worker, owed));
        worker.gate
    }

    fn answered(&mut self, worker: Worker, owed: Owed, reply: &Reply) -> usize {
        let Worker { job, gate: at } = worker;
        self.provider.end(&self.traffic.jobs[job], reply.status);
        let is_throttled = reply.status >= 400;
        self.throttled += usize::from(is_throttled);
        self.served += usize::from(!is_throttled);
        if let (Some(owed), Some(Gated { gate, limiter, calls, .. })) = (owed, self.gated.get_mut(at)) {
            let (receipt, slot) = *owed;
            let call = &calls[job].0;
            let status = StatusCode::from_u16(reply.status).expect("a status");
            let response =
                signals::Response { status, headers: &reply.headers, body: reply.body.as_bytes(), wall: None };
            let failures = &gate.answers.failures[usize::from(call.class.0)];
            let told = outcome::answer(failures, &gate.answers.throttling, &call.call, &response);
            if let Some(word) = told.charged.filter(|word| !receipt.was_predicted(*word)) {
                limiter.learn_resource(&receipt, call.quota.action, word, self.now);
            }
            let answer = told.answer;
            if let Err(receipt) = receipt.settle(limiter.keys(), answer) {
                limiter.finish(receipt, answer, None, &|| "a call".to_owned(), self.now);
            }
            limiter.release(slot, self.now);
            limiter.add_room(call.group, 1, self.now);
        }
        // An SDK tries again after up to a second.
        let pause = self.millis(if is_throttled { 1000 } else { 20 });
        self.later(pause + self.traffic.jobs[job].idle, Event::Act(worker));
        at
    }

    /// Comes back as SDKs do: after whole seconds, but not after more than twenty.
    fn comes_back(&mut self, worker: Worker, refusal: &Refusal) {
        let seconds = ((refusal.retry_at - self.now).as_secs() + 1).min(20);
        self.later(Duration::from_secs(seconds), Event::Act(worker));
    }

    fn drain(&mut self, gate: usize) {
        while let Some(Gated { limiter, waiting, .. }) = self.gated.get_mut(gate)
            && let Some(ticket) = limiter.next_event()
        {
            let claim = limiter.claim(ticket, self.now);
            if matches!(claim, Claim::Waiting) {
                continue;
            }
            let worker = waiting.remove(&ticket).expect("events are about calls that wait");
            self.stops[worker.job].end(self.now);
            match claim {
                Claim::Permit(permit) => _ = self.send(worker, Some(permit)),
                Claim::Refused(refusal) => self.comes_back(worker, &refusal),
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
