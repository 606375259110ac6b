//! What a decision costs: nanoseconds per operation of the limiter, beside bare governor, and bytes per failing key and per waiter.
//!
//! `cargo bench --bench decide`. Prints a table; asserts nothing, because a shared machine's clock proves nothing. Each figure is the best
//! of several rounds: what disturbs a round only ever adds.

use std::{
    fmt::{self, Display},
    hint::black_box,
    num::NonZeroU32,
    sync::Mutex,
    time::{Duration, Instant},
};

use tidegate::{
    api::{Answer, Group, Key, Outcome, Scope},
    limit::{
        Arrival, Claim, ClassId, Flow, Limiter, Permit, Policy, Receipt, Ticket, Verdict,
        policy::{Backoff, BucketPolicy, ClassPolicy, Combine, InFlight, Lane, Per, QueuePolicy, Strategy},
    },
    moment::Moment,
};

struct Name;

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pods")
    }
}

fn main() {
    println!("{:<72} {:>8}", "", "ns/op");
    governor_alone();
    whole_calls();
    failing_keys();
    waiters();
    two_threads();
}

/// The floor: one look at one bucket, clock included.
fn governor_alone() {
    let quota = governor::Quota::per_second(NonZeroU32::MAX).allow_burst(NonZeroU32::MAX);
    let limiter = governor::RateLimiter::direct_with_clock(quota, governor::clock::MonotonicClock);
    report("governor alone: check()", measure(1_000_000, || _ = black_box(limiter.check())));
}

/// Everything the limiter does for a call that need not wait: arrive, settle, release, and the stream given back.
fn whole_calls() {
    let mut limiter = limiter(policy(None, None));
    report("a whole call, nothing limited", measure(300_000, || call(&mut limiter, 1)));
    let mut limiter = self::limiter(policy(Some(bucket(1e9, u32::MAX)), Some(1_000_000)));
    report("a whole call, bucket and slots, not binding", measure(300_000, || call(&mut limiter, 1)));
    let mut exempt = policy(Some(bucket(1e9, u32::MAX)), None);
    exempt.classes[0].lane = Lane::Exempt;
    let mut limiter = self::limiter(exempt);
    report("a whole call, exempt", measure(300_000, || call(&mut limiter, 1)));
}

fn failing_keys() {
    for keys in [1_u64, 10_000, 1_000_000] {
        let mut limiter = limiter(policy(Some(bucket(1e9, u32::MAX)), None));
        let before = resident();
        for key in 0..keys {
            fail(&mut limiter, key);
        }
        let bytes = resident().saturating_sub(before) / usize::try_from(keys).unwrap_or(1);
        let mut other = keys;
        let whole = measure(200_000, || {
            other += 1;
            call(&mut limiter, other);
        });
        report(&format!("a whole call of a healthy key beside {keys} failing"), whole);
        let mut key = 0;
        let refused = measure(200_000, || {
            key = (key + 7_919) % keys;
            black_box(arrive(&mut limiter, key, 0, Moment::from_millis(1)));
        });
        report(&format!("a refusal of one of {keys} failing keys"), refused);
        if keys >= 10_000 {
            println!("{:<72} {bytes:>8}", format!("    bytes per failing key, {keys} of them"));
        }
    }
}

fn waiters() {
    for (waiting, flows) in [(1_u64, 1), (1_000, 1), (1_000, 100), (100_000, 1), (100_000, 1_000), (100_000, 100_000)] {
        let mut policy = policy(Some(bucket(1e-3, 1)), None);
        policy.queue.max_wait = Duration::from_secs(1_000_000_000);
        let mut limiter = limiter(policy);
        let before = resident();
        let mut tickets = Vec::with_capacity(usize::try_from(waiting).unwrap_or(0));
        let mut next = 0;
        let mut enqueue = |limiter: &mut Limiter, tickets: &mut Vec<Ticket>| {
            next += 1;
            if let Verdict::Wait(ticket) = arrive(limiter, next, next % flows, Moment::ZERO) {
                tickets.push(ticket);
            }
        };
        for _ in 0..=waiting {
            enqueue(&mut limiter, &mut tickets);
        }
        let bytes = resident().saturating_sub(before) / usize::try_from(waiting).unwrap_or(1);
        let mut at = 0_usize;
        let both = measure(50_000, || {
            enqueue(&mut limiter, &mut tickets);
            at = (at + 7_919) % tickets.len();
            limiter.leave(tickets.swap_remove(at), Moment::ZERO);
        });
        report(&format!("enqueue one and cancel another, {waiting} wait in {flows} flows"), both);
        if waiting >= 100_000 {
            println!("{:<72} {bytes:>8}", format!("    bytes per waiter, {flows} flows"));
        }
    }
    for (waiting, flows) in [(1_u64, 1), (1_000, 100), (100_000, 1), (100_000, 1_000)] {
        let mut policy = policy(Some(bucket(1e9, u32::MAX)), Some(1));
        policy.queue.max_wait = Duration::from_secs(1_000_000_000);
        let mut limiter = limiter(policy);
        let mut holder = match arrive(&mut limiter, 0, 0, Moment::ZERO) {
            Verdict::Admit(permit) => Some(permit),
            Verdict::Wait(_) | Verdict::Refuse(_) => None,
        };
        for n in 0..waiting {
            arrive(&mut limiter, n + 1, n % flows, Moment::ZERO);
        }
        let mut next = waiting;
        let released = measure(20_000, || {
            next += 1;
            arrive(&mut limiter, next, next % flows, Moment::ZERO);
            let (_, receipt, slot) = holder.take().expect("one is out").admit(());
            settle(&mut limiter, receipt);
            limiter.release(slot, Moment::ZERO);
            let ticket = limiter.next_event().expect("the slot is free");
            let Claim::Permit(permit) = limiter.claim(ticket, Moment::ZERO) else { return };
            holder = Some(permit);
        });
        report(&format!("enqueue, release, claim: {waiting} wait in {flows} flows"), released);
    }
}

fn two_threads() {
    let limiter = Mutex::new(limiter(policy(Some(bucket(1e9, u32::MAX)), Some(1_000_000))));
    let calls = 300_000_u32;
    let began = now();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let limiter = &limiter;
            scope.spawn(move || {
                for n in 0..calls {
                    let key = u64::from(thread * calls + n);
                    let verdict = arrive(&mut limiter.lock().expect("no thread panics"), key, 0, Moment::ZERO);
                    if let Verdict::Admit(permit) = verdict {
                        finish(&mut limiter.lock().expect("no thread panics"), permit);
                    }
                }
            });
        }
    });
    report("a whole call, two threads at one mutex", began.elapsed().as_secs_f64() * 1e9 / f64::from(2 * calls));
}

// --- the gate and its callers

fn bucket(rate: f64, burst: u32) -> BucketPolicy {
    BucketPolicy {
        rate,
        burst: NonZeroU32::new(burst).expect("above zero"),
        per: Per::Gate,
        starts_empty: false,
        adapt: None,
    }
}

fn policy(bucket: Option<BucketPolicy>, slots: Option<u32>) -> Policy {
    let backoff = Backoff {
        strategy: Strategy::Exponential { base: Duration::from_secs(60), max: Duration::from_secs(60), jitter: 0.0 },
        hold: Duration::from_millis(100),
        forget_after: Duration::from_secs(3600),
    };
    let class = ClassPolicy {
        name: "default".into(),
        lane: Lane::Normal,
        bucket: None,
        within: None,
        own_bucket_only: false,
        backoff,
        in_flight: None,
        meter_long_running: false,
    };
    let queue = QueuePolicy {
        max_wait: Duration::from_secs(8),
        max_waiting: 1_000_000,
        max_waiting_bytes: 1 << 24,
        combine: Combine::Sequential,
    };
    let in_flight = slots.and_then(NonZeroU32::new).map(|max| InFlight { max, per: Per::Gate });
    Policy {
        bucket,
        retry_bucket: None,
        queue,
        in_flight,
        max_keys: 2_000_000,
        pause_scope: Scope::Key,
        one_at_a_time: false,
        classes: vec![class],
    }
}

fn limiter(policy: Policy) -> Limiter {
    let mut limiter = Limiter::new(policy, 1, Moment::ZERO);
    limiter.add_room(Group::Short, i64::MAX / 2, Moment::ZERO);
    limiter
}

fn key(object: u64) -> Key {
    Key { object, collection: object / 100 + (1 << 40), facet: 1 }
}

fn arrive(limiter: &mut Limiter, object: u64, flow: u64, now: Moment) -> Verdict {
    let arrival = Arrival {
        class: ClassId(0),
        flow: Flow { id: flow, name: &Name },
        key: Some(key(object)),
        credential: 0,
        write: false,
        group: Group::Short,
        long_running: false,
        patient: false,
        timeout: None,
    };
    limiter.arrive(&arrival, now)
}

fn settle(limiter: &mut Limiter, receipt: Receipt) {
    let answer = Answer::new(Outcome::Success, Some(200));
    if let Err(receipt) = limiter.keys().settle(receipt, answer) {
        limiter.finish(receipt, answer, None, &String::new, Moment::ZERO);
    }
}

fn finish(limiter: &mut Limiter, permit: Permit) {
    let (_, receipt, slot) = permit.admit(());
    settle(limiter, receipt);
    limiter.release(slot, Moment::ZERO);
    limiter.add_room(Group::Short, 1, Moment::ZERO);
}

fn call(limiter: &mut Limiter, object: u64) {
    if let Verdict::Admit(permit) = arrive(limiter, object, 0, Moment::ZERO) {
        finish(limiter, permit);
    }
}

fn fail(limiter: &mut Limiter, object: u64) {
    let Verdict::Admit(permit) = arrive(limiter, object, 0, Moment::ZERO) else { return };
    let (_, receipt, slot) = permit.admit(());
    let answer = Answer::new(Outcome::Failure, Some(500));
    let name = || format!("write configmaps.v1/namespace/object-{object:07}");
    limiter.finish(receipt, answer, None, &name, Moment::ZERO);
    limiter.release(slot, Moment::ZERO);
}

// --- measuring

/// The best of five rounds, in nanoseconds per operation.
fn measure(times: u32, mut operation: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let began = now();
        (0..times).for_each(|_| operation());
        best = best.min(began.elapsed().as_secs_f64() * 1e9 / f64::from(times));
    }
    best
}

fn report(what: &str, nanos: f64) {
    println!("{what:<72} {nanos:>8.0}");
}

#[expect(clippy::disallowed_methods, reason = "this measures the machine, not the limiter's time")]
fn now() -> Instant {
    Instant::now()
}

/// Bytes of memory that the process really has; zero where the system does not say.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split(' ').nth(1)?.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}
