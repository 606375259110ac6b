//! A gate to measure, and the calls that arrive at it.

use std::fmt::{self, Display};
use std::num::NonZeroU32;
use std::time::Duration;

use tidegate::api::{Answer, Group, Key, Outcome, Pause, PauseLength};
use tidegate::limit::outcome::Charged;
use tidegate::limit::policy::{InFlight, SharedPolicy};
use tidegate::limit::{Arrival, Claim, ClassId, Flow, Limiter, Permit, Policy, Receipt, Ticket, Verdict, Walk};
use tidegate::moment::Moment;
use tidegate::{config, limit};

/// A limiter with room on its connections, and a clock that the scene moves on.
pub(crate) struct Gate {
    pub(crate) limiter: Limiter,
    class: ClassId,
    now: Moment,
    next: u64,
}

/// The name of a flow.
struct Name;

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pods")
    }
}

// === impl Gate ===

impl Gate {
    pub(crate) fn new(policy: Policy) -> Self {
        let class = policy.classes.iter().position(|class| &*class.name == "default").expect("every gate has it");
        let mut limiter = Limiter::new(policy, 1, Moment::ZERO);
        limiter.add_room(Group::Short, i64::MAX / 2, Moment::ZERO);
        Self { limiter, class: ClassId(u16::try_from(class).expect("few classes")), now: Moment::ZERO, next: 1 << 32 }
    }

    /// Returns a key that no call has had before.
    pub(crate) fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Lets enough time pass for a token.
    pub(crate) fn wait_for_token(&mut self) {
        self.now += Duration::from_millis(25);
    }

    pub(crate) fn arrive(&mut self, object: u64, flow: u64) -> Verdict {
        let arrival = self.arrival(object, flow);
        self.limiter.arrive(&arrival, self.now)
    }

    fn arrival(&self, object: u64, flow: u64) -> Arrival<'static> {
        Arrival { key: Some(key(object)), write: true, ..Arrival::new(self.class, Flow { id: flow, name: &Name }) }
    }

    /// A call that need not wait: it arrives, settles, releases its slot and gives its stream back.
    pub(crate) fn call(&mut self, object: u64) {
        let Verdict::Admit(permit) = self.arrive(object, 0) else { panic!("nothing is in its way") };
        self.finish(permit);
    }

    /// The same call, with everything that the proxy asks of the limiter after each operation.
    /// Returns the moment to look again if nothing else happens.
    pub(crate) fn driven_call(&mut self, object: u64) -> Option<Moment> {
        let permit = match self.arrive(object, 0) {
            Verdict::Admit(permit) => permit,
            verdict => self.asked_for(verdict),
        };
        self.follow_up();
        let (_, receipt, slot) = permit.admit(());
        self.succeed(receipt);
        self.limiter.release(slot, self.now);
        self.follow_up();
        self.limiter.add_room(Group::Short, 1, self.now);
        self.follow_up()
    }

    /// The same call for which a token of a shared bucket may have to be asked for first.
    pub(crate) fn patient_call(&mut self, object: u64) {
        let verdict = self.arrive(object, 0);
        let permit = self.asked_for(verdict);
        self.finish(permit);
    }

    /// Asks for a token of a shared bucket, if a call waits for one.
    fn asked_for(&mut self, verdict: Verdict) -> Permit {
        match verdict {
            Verdict::Admit(permit) => permit,
            Verdict::Refuse(_) => panic!("nothing is in its way"),
            Verdict::Wait(ticket) => {
                self.refill();
                let Claim::Permit(permit) = self.limiter.claim(ticket, self.now) else { panic!("a token came") };
                permit
            }
        }
    }

    /// Grants what a shared bucket is asked for, as a store that has plenty.
    pub(crate) fn refill(&mut self) {
        self.limiter.advance(self.now);
        for ask in self.limiter.take_asks(self.now) {
            let granted = ask.wish.most();
            let answer = limit::StoreAnswer {
                granted,
                first: 0,
                period: Duration::ZERO,
                level: ask.limits.burst + f64::from(granted),
                epoch: 1,
                members: 1,
                rivals: 0,
                pause: None,
                quotas: Vec::new(),
            };
            self.limiter.answered(ask.asked, Ok(answer), self.now, self.now);
        }
        self.follow_up();
    }

    /// A call that fails.
    pub(crate) fn fail(&mut self, object: u64) {
        let Verdict::Admit(permit) = self.arrive(object, 0) else { panic!("nothing is in its way") };
        let (_, receipt, slot) = permit.admit(());
        let answer = Answer::new(Outcome::Failure, Some(500));
        self.limiter.finish(receipt, answer, None, &|| name(object), self.now);
        self.limiter.release(slot, self.now);
        self.limiter.add_room(Group::Short, 1, self.now);
    }

    /// A call that has to wait.
    pub(crate) fn enqueue(&mut self, object: u64, flow: u64) -> Ticket {
        let Verdict::Wait(ticket) = self.arrive(object, flow) else { panic!("there is a queue") };
        ticket
    }

    pub(crate) fn now(&self) -> Moment {
        self.now
    }

    /// The call that holds what all others wait for.
    pub(crate) fn first(&mut self) -> Permit {
        let Verdict::Admit(holder) = self.arrive(u64::MAX, 0) else { panic!("it is the first") };
        holder
    }

    /// Lets time pass, and begins the work that this brings about.
    pub(crate) fn pass(&mut self, by: Duration) {
        self.now += by;
        self.go_on();
    }

    /// Does what the driver does when something is left. Returns true if there is more.
    pub(crate) fn go_on(&mut self) -> bool {
        self.limiter.advance(self.now);
        self.follow_up();
        self.limiter.is_behind()
    }

    pub(crate) fn has_expired_keys(&self) -> bool {
        self.limiter.has_expired_keys(self.now)
    }

    pub(crate) fn forget_some(&mut self, walk: &mut Walk) {
        std::hint::black_box(self.limiter.forget_some(&|name| name.starts_with("write"), walk, self.now));
        self.follow_up();
    }

    pub(crate) fn preview(&mut self, object: u64, flow: u64) {
        let arrival = self.arrival(object, flow);
        std::hint::black_box((
            self.limiter.preview(&arrival, self.now),
            self.limiter.keys().find(&key(object), self.now),
        ));
        self.follow_up();
    }

    pub(crate) fn bypass(&mut self) {
        self.limiter.set_bypass(true, self.now);
        self.follow_up();
    }

    pub(crate) fn lift(&mut self) {
        self.limiter.lift_pauses(false, self.now);
        self.follow_up();
    }

    pub(crate) fn unconnected(&mut self, group: Group) {
        self.limiter.fail_group(group, self.now);
        self.follow_up();
    }

    pub(crate) fn reload(&mut self, policy: Policy) {
        self.limiter.reconfigure(policy, self.now);
        self.follow_up();
    }

    /// The upstream answers a call and asks for a pause of the gate.
    pub(crate) fn answered_with_pause(&mut self, permit: Permit, length: PauseLength) {
        // Its slot is never released.
        let (_, receipt, _) = permit.admit(());
        let pause = Some(Pause { charged: Charged::All, length });
        let answer = Answer { pause, ..Answer::new(Outcome::Neutral, Some(429)) };
        self.limiter.finish(receipt, answer, None, &String::new, self.now);
        self.follow_up();
    }

    pub(crate) fn leave(&mut self, ticket: Ticket) {
        self.limiter.leave(ticket, self.now);
    }

    /// Ends a call, and admits the one that waited for its slot.
    pub(crate) fn relay(&mut self, permit: Permit) -> Permit {
        self.finish(permit);
        let ticket = self.limiter.next_event().expect("the slot is free");
        let Claim::Permit(permit) = self.limiter.claim(ticket, self.now) else { panic!("it was granted") };
        permit
    }

    pub(crate) fn finish(&mut self, permit: Permit) {
        let (_, receipt, slot) = permit.admit(());
        self.succeed(receipt);
        self.limiter.release(slot, self.now);
        self.limiter.add_room(Group::Short, 1, self.now);
    }

    fn succeed(&mut self, receipt: Receipt) {
        let answer = Answer::new(Outcome::Success, Some(200));
        if let Err(receipt) = receipt.settle(self.limiter.keys(), answer) {
            self.limiter.finish(receipt, answer, None, &String::new, self.now);
        }
    }

    fn follow_up(&mut self) -> Option<Moment> {
        let groups = [Group::Exempt, Group::Short, Group::LongRunning];
        std::hint::black_box(groups.map(|group| self.limiter.wants_room(group)));
        while let Some(ticket) = self.limiter.next_event() {
            std::hint::black_box(ticket);
        }
        std::hint::black_box((self.limiter.next_wakeup(), self.limiter.take_ended())).0
    }
}

/// The limits that a Kubernetes gate has by default.
pub(crate) fn usual() -> Policy {
    policy("")
}

/// The same with a bucket that other gates share, whose tokens last so long: longer than a
/// configuration may say, so that they last for many calls.
pub(crate) fn usual_shared(lease: Duration) -> Policy {
    let mut policy = policy("bucket = { rate = 50, burst = 1000000, shared = 'account' }");
    for shared in &mut policy.shared {
        *shared = SharedPolicy { lease: Some(lease), ..SharedPolicy::clone(shared) }.into();
    }
    policy
}

/// The same with so many classes of the gate's own.
pub(crate) fn classes(count: usize) -> Policy {
    policy(&class_tables(count).replace("gates.a", "gates.kubernetes"))
}

/// The tables of so many classes, each of a resource of its own, of the gate `a`.
pub(crate) fn class_tables(count: usize) -> String {
    let table = |number| {
        format!(
            "[[gates.a.classes]]\nname = 'c{number}'\nmatch = {{ resources = ['widgets{number}'] }}\nbucket = {{ rate = 5, burst = 10 }}\n"
        )
    };
    (0..count).map(table).collect()
}

/// No limits at all.
pub(crate) fn unlimited() -> Policy {
    policy("preset = 'none'")
}

/// The default limits with a bucket that never runs dry, and keys that stay failing.
pub(crate) fn roomy() -> Policy {
    let mut policy = policy(
        "bucket = { rate = 1e9, burst = 4294967295, adapt = 'off' }
         retry_bucket = 'off'
         backoff = { base = '1h', max = '1h', forget_after = '10h', max_keys = 2000000 }",
    );
    policy.queue.max_waiting = 1_000_000;
    policy.queue.max_wait = Duration::from_secs(1_000_000_000);
    policy
}

/// One call at a time: all others wait.
pub(crate) fn one_slot() -> Policy {
    Policy { in_flight: Some(InFlight::new(NonZeroU32::MIN)), ..roomy() }
}

fn policy(keys: &str) -> Policy {
    let text = format!("[gates.kubernetes]\nupstream = 'http://127.0.0.1:1'\n{keys}\n");
    let loaded = config::load_text("bench".to_owned(), text, &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
    loaded.settings.gates["kubernetes"].policy.clone()
}

fn key(object: u64) -> Key {
    // Real keys are hashes, so neighbours in a table are unrelated. A collection has a hundred
    // objects.
    Key { object: object.wrapping_mul(0x9e37_79b9_7f4a_7c15), collection: object / 100, facet: 1 }
}

/// 46 bytes, as `write configmaps/kube-system/…` is.
fn name(object: u64) -> String {
    format!("write configmaps/some-namespace/object-{object:07}")
}
