//! Clients, the limiter with the preset `github`, and the hub behind it, one event after the other.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode, Uri};
use tidegate::api::{Group, outcome, signals};
use tidegate::classify::{ClassifiedCall, Salt};
use tidegate::config;
use tidegate::limit::{Arrival, Claim, Flow, Limiter, Permit, Receipt, Refusal, Slot, Ticket, Verdict};
use tidegate::moment::Moment;
use tidegate::spec::Gate;

use super::hub::{Hub, Reply};

/// The kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Read,
    Write,
    Create,
    /// `GET /rate_limit`, which costs nothing; exempt here.
    Quota,
}

/// The plan of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) last: Duration,
    pub(super) clients: u64,
    /// Calls of other tools, past the gate, with the same token.
    pub(super) others_per_hour: u32,
}

/// A call that was sent.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) client: u64,
    pub(super) kind: Kind,
    pub(super) at: Duration,
    pub(super) answered: Duration,
    /// The trouble for which it was refused.
    pub(super) refused: Option<u32>,
    /// True if it counted against the quota.
    pub(super) counted: bool,
}

/// The clients, the gate, the hub, and everything that happened.
pub(super) struct City {
    gate: Gate,
    hasher: Salt,
    limiter: Limiter,
    hub: Hub,
    plan: Plan,
    now: Moment,
    events: BTreeMap<(Moment, u64), Event>,
    number: u64,
    waiting: HashMap<Ticket, Call>,
    dice: u64,
    pub(super) sent: Vec<Sent>,
    /// For each exempt call, true if it had to wait.
    pub(super) exempt_waits: Vec<bool>,
    others: Vec<Duration>,
    pub(super) others_refused: usize,
}

/// One worker of a client.
#[derive(Clone, Copy, Debug)]
struct Worker {
    client: u64,
    kind: Kind,
}

struct Call {
    worker: Worker,
    classified: ClassifiedCall,
}

enum Event {
    /// A worker makes its next call.
    Act(Worker),
    /// The answer arrives.
    Answered {
        call: Box<Call>,
        owed: Box<(Receipt, Slot)>,
        reply: Box<Reply>,
    },
    Other,
}

impl Default for Plan {
    fn default() -> Self {
        Self { last: Duration::from_secs(3600), clients: 8, others_per_hour: 0 }
    }
}

const CONFIG: &str = "[gates.github]\nkind = \"http\"\nupstream = \"https://api.github.com\"\npreset = \"github\"\n\
                      [[gates.github.classes]]\nname = \"quota\"\nlane = \"exempt\"\nmatch = { paths = [\"/rate_limit\"] }\n";

impl City {
    pub(super) fn run(plan: Plan, hub: Hub) -> Self {
        let loaded = config::load_text("github.toml".to_owned(), CONFIG.to_owned(), &[]);
        let gate = loaded.expect("a good file").settings.gates.remove("github").expect("is in it");
        let mut limiter = Limiter::new(gate.policy.clone(), 7, Moment::ZERO);
        limiter.add_room(Group::Short, 1000, Moment::ZERO);
        let mut city = Self {
            gate,
            hasher: Salt::random(),
            limiter,
            hub,
            plan,
            now: Moment::ZERO,
            events: BTreeMap::new(),
            number: 0,
            waiting: HashMap::new(),
            dice: 1,
            sent: Vec::new(),
            exempt_waits: Vec::new(),
            others: Vec::new(),
            others_refused: 0,
        };
        for client in 0..plan.clients {
            for kind in [Kind::Read, Kind::Write, Kind::Create] {
                city.later(Duration::ZERO, Event::Act(Worker { client, kind }));
            }
        }
        city.later(Duration::ZERO, Event::Act(Worker { client: 99, kind: Kind::Quota }));
        if plan.others_per_hour > 0 {
            city.later(Duration::ZERO, Event::Other);
        }
        city.live();
        city
    }

    /// Calls that the hub refused.
    pub(super) fn refusals(&self) -> usize {
        self.sent.iter().filter(|sent| sent.refused.is_some()).count()
    }

    pub(super) fn others_used(&self, from: Duration, to: Duration) -> usize {
        self.others.iter().filter(|at| **at >= from && **at < to).count()
    }

    /// The number of calls of a kind that each client got through.
    pub(super) fn clients_of(&self, kind: Kind) -> Vec<usize> {
        let count = |client| self.sent.iter().filter(|sent| sent.client == client && sent.kind == kind).count();
        (0..self.plan.clients).map(count).collect()
    }

    fn live(&mut self) {
        loop {
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let wakeup = self.limiter.next_wakeup();
            let Some(Reverse(next)) = [event, wakeup].into_iter().flatten().map(Reverse).max() else { return };
            if next.since_start() >= self.plan.last {
                return;
            }
            self.now = self.now.max(next);
            match self.events.first_entry().filter(|entry| entry.key().0 <= self.now) {
                Some(entry) => {
                    let event = entry.remove();
                    self.happen(event);
                }
                None => self.limiter.advance(self.now),
            }
            self.drain();
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Act(worker) => self.act(worker),
            Event::Other => {
                let served = self.hub.other(self.now.since_start());
                self.others.extend(served.then_some(self.now.since_start()));
                self.others_refused += usize::from(!served);
                self.later(Duration::from_secs(3600) / self.plan.others_per_hour, Event::Other);
            }
            Event::Answered { call, owed, reply } => self.answered(&call, *owed, &reply),
        }
    }

    /// A worker makes its next call.
    fn act(&mut self, worker: Worker) {
        let number = self.roll() % 40;
        let (method, path) = match worker.kind {
            Kind::Read => (Method::GET, format!("/repos/a/b/issues/{number}")),
            Kind::Write => (Method::PATCH, format!("/repos/a/b/issues/{number}")),
            Kind::Create => (Method::POST, format!("/repos/a/b/issues/{number}/comments")),
            Kind::Quota => (Method::GET, "/rate_limit".to_owned()),
        };
        let uri: Uri = path.parse().expect("a path");
        let headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, "Bearer one".parse().expect("a value"))]);
        let classified = self.gate.rules.classify(&method, &uri, &headers, &self.hasher);
        assert_eq!(classified.exempt, worker.kind == Kind::Quota);
        let name = classified.flow_name(&headers);
        let arrival = Arrival {
            key: classified.key.known(),
            credential: classified.credential,
            quota: classified.quota,
            write: !classified.call.verb.is_read(),
            reads: classified.call.verb.is_read(),
            group: classified.group,
            ..Arrival::new(classified.class, Flow { id: worker.client, name: &name })
        };
        let verdict = self.limiter.arrive(&arrival, self.now);
        if worker.kind == Kind::Quota {
            self.exempt_waits.push(!matches!(verdict, Verdict::Admit(_)));
        }
        let call = Call { worker, classified };
        match verdict {
            Verdict::Admit(permit) => self.send(call, permit),
            Verdict::Wait(ticket) => {
                self.waiting.insert(ticket, call);
            }
            Verdict::Refuse(refusal) => self.comes_back(worker, &refusal),
        }
    }

    fn send(&mut self, call: Call, permit: Permit) {
        let at = self.now.since_start();
        let takes = Duration::from_millis(50 + self.roll() % 350);
        let reply = self.hub.serve(call.worker.kind, at, takes);
        if call.worker.kind != Kind::Quota {
            let (counted, refused) = (reply.refused.is_none(), reply.refused);
            let Worker { client, kind } = call.worker;
            self.sent.push(Sent { client, kind, at, answered: at + takes, refused, counted });
        }
        let (_, receipt, slot) = permit.admit(());
        self.later(
            takes,
            Event::Answered { call: Box::new(call), owed: Box::new((receipt, slot)), reply: Box::new(reply) },
        );
    }

    fn answered(&mut self, call: &Call, (receipt, slot): (Receipt, Slot), reply: &Reply) {
        let status = StatusCode::from_u16(reply.status).expect("a status");
        let throttling = &self.gate.answers.throttling;
        let peek = outcome::wants_body(throttling, &call.classified.call, status, &reply.headers);
        let body = if peek { reply.body.as_bytes() } else { b"" };
        let response = signals::Response { status, headers: &reply.headers, body, wall: None };
        let failures = &self.gate.answers.failures[usize::from(call.classified.class.0)];
        let answer = outcome::answer(failures, throttling, &call.classified.call, &response).answer;
        if reply.refused.is_none() && call.worker.kind != Kind::Quota {
            self.hub.done();
        }
        if let Err(receipt) = receipt.settle(self.limiter.keys(), answer) {
            self.limiter.finish(receipt, answer, None, &|| "a call".to_owned(), self.now);
        }
        self.limiter.release(slot, self.now);
        self.limiter.add_room(call.classified.group, 1, self.now);
        let pause = if call.worker.kind == Kind::Quota { 1000 } else { self.roll() % 20 };
        self.later(Duration::from_millis(pause), Event::Act(call.worker));
    }

    /// Comes back as clients do that read Retry-After: after whole seconds.
    fn comes_back(&mut self, worker: Worker, refusal: &Refusal) {
        let seconds = (refusal.retry_at - self.now).as_secs() + 1;
        self.later(Duration::from_secs(seconds), Event::Act(worker));
    }

    fn drain(&mut self) {
        while let Some(ticket) = self.limiter.next_event() {
            let claim = self.limiter.claim(ticket, self.now);
            if matches!(claim, Claim::Waiting) {
                continue;
            }
            let call = self.waiting.remove(&ticket).expect("events are about calls that wait");
            match claim {
                Claim::Permit(permit) => self.send(call, permit),
                Claim::Refused(refusal) => self.comes_back(call.worker, &refusal),
                Claim::Waiting | Claim::Unconnected => panic!("connections are never short here"),
            }
        }
    }

    fn later(&mut self, after: Duration, event: Event) {
        self.number += 1;
        self.events.insert((self.now + after, self.number), event);
    }

    /// SplitMix64.
    fn roll(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.dice ^ (self.dice >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
