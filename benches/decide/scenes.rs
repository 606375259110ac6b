//! The scenes that are measured: one table, with the cost that each decision may have.
//!
//! A bar is in instructions, as callgrind counts them, because those hardly differ between machines
//! and runs; `decide check` fails above it, and where one costs more than another by more than its
//! margin. The usual call's is a promise, as those of memory are; the others have a tenth or two of
//! head-room over what was measured.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::Duration;

use tidegate::hot::{Act, Loops, Pace};
use tidegate::limit::{Permit, Ticket, Verdict};
use tidegate::moment::Moment;

use crate::gate::{Gate, class_tables, classes, one_slot, roomy, unlimited, usual, usual_shared};
use crate::reading::Sample;

/// One operation of the limiter.
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// The most instructions it may take.
    pub(crate) bar: Option<u64>,
    /// Prepares the operation. The returned function does it once.
    pub(crate) stage: fn() -> Box<dyn FnMut()>,
}

const fn scene(name: &'static str, what: &'static str, bar: Option<u64>, stage: fn() -> Box<dyn FnMut()>) -> Scene {
    Scene { name, what, bar, stage }
}

/// "A call" is all that the limiter does for it: arrive, settle the outcome, release the slot, give
/// the stream back.
#[rustfmt::skip]
pub(crate) const SCENES: &[Scene] = &[
    //    name                what                                                                         bar           stage
    scene("governor",         "governor alone: check()",                                                   None,         governor_alone),
    scene("nothing",          "a call, nothing limited",                                                   Some(1_400),  || call(Gate::new(unlimited()))),
    scene("usual",            "a call, the usual limits of a Kubernetes gate",                             Some(1_550),  || call(Gate::new(usual()))),
    scene("driven",           "the same, with what the proxy asks after each operation",                   Some(2_300),  driven),
    scene("shared",           "the same, with a bucket that gates share, whose tokens are held",              None,         shared),
    scene("asked",            "the same, with the questions for these tokens, and the answers",               None,         asked),
    scene("counted",          "what a call of an object costs more where hot objects are named",           Some(220),    counted),
    scene("healthy_1",        "a call of a healthy key beside 1 failing",                                  None,         || healthy(1)),
    scene("healthy_10k",      "a call of a healthy key beside 10,000 failing",                             Some(1_800),  || healthy(10_000)),
    scene("healthy_1m",       "a call of a healthy key beside 1,000,000 failing",                          None,         || healthy(1_000_000)),
    scene("refused_1",        "a refusal of the one failing key",                                          None,         || refused(1)),
    scene("refused_10k",      "a refusal of one of 10,000 failing keys",                                   Some(509),    || refused(10_000)),
    scene("refused_1m",       "a refusal of one of 1,000,000 failing keys",                                None,         || refused(1_000_000)),
    scene("fails_10k",        "a call that fails for the first time beside 10,000 failing",                Some(5_500),  || fails(10_000)),
    scene("cancel_1",         "enqueue one and cancel another, 1 waits",                                   None,         || cancel(1, 1)),
    scene("cancel_1k",        "enqueue one and cancel another, 1,000 wait in 100 flows",                   Some(8_000),  || cancel(1_000, 100)),
    scene("cancel_100k",      "enqueue one and cancel another, 100,000 wait in 1 flow",                    None,         || cancel(100_000, 1)),
    scene("cancel_100k_1k",   "enqueue one and cancel another, 100,000 wait in 1,000 flows",               None,         || cancel(100_000, 1_000)),
    scene("cancel_100k_100k", "enqueue one and cancel another, 100,000 wait in 100,000 flows",             None,         || cancel(100_000, 100_000)),
    scene("serve_1",          "enqueue one, a call ends, another is claimed; 1 waits",                     None,         || serve(1, 1)),
    scene("serve_1k",         "enqueue one, a call ends, another is claimed; 1,000 wait in 100 flows",     Some(13_000), || serve(1_000, 100)),
    scene("serve_100k",       "enqueue one, a call ends, another is claimed; 100,000 wait in 1 flow",      None,         || serve(100_000, 1)),
    scene("serve_100k_1k",    "enqueue one, a call ends, another is claimed; 100,000 wait in 1,000 flows", None,         || serve(100_000, 1_000)),
    scene("classes_1",        "a call of a gate with 1 class of its own",                                  None,         || call(Gate::new(classes(1)))),
    scene("classes_1k",       "a call of a gate with 1,000 classes of its own",                            None,         || call(Gate::new(classes(1_000)))),
    scene("read_classes_1",   "read a call beside 1 class of another resource",                            None,         || Sample::KUBERNETES.among(&class_tables(1))),
    scene("read_classes_10",  "read a call beside 10 classes of other resources",                          None,         || Sample::KUBERNETES.among(&class_tables(10))),
    scene("read_classes_1k",  "read a call beside 1,000 classes of other resources",                       None,         || Sample::KUBERNETES.among(&class_tables(1_000))),
    scene("read_kubernetes",  "read a call: class, flow and key; Kubernetes",                              Some(5_500),  || Sample::KUBERNETES.stage()),
    scene("read_plain",       "the same, plain HTTP",                                                      Some(3_000),  || Sample::PLAIN.stage()),
    scene("read_aws",         "the same, dialect aws, with the action in a form",                          Some(17_000), || Sample::AWS_FORM.stage()),
    scene("read_azure",       "the same, dialect azure",                                                   Some(13_500), || Sample::AZURE.stage()),
    scene("read_google",      "the same, dialect google",                                                  Some(12_000), || Sample::GOOGLE.stage()),
    scene("read_github",      "the same, dialect github",                                                  Some(5_800),  || Sample::GITHUB.stage()),
];

/// The most instructions that a scene may take more than another one.
pub(crate) struct Margin {
    pub(crate) of: &'static str,
    pub(crate) than: &'static str,
    pub(crate) most: u64,
}

pub(crate) const MARGINS: &[Margin] = &[Margin { of: "shared", than: "driven", most: 200 }];

/// Something that is kept, and the bytes it may take.
pub(crate) struct Hoard {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) count: u64,
    /// The bytes that each item may take.
    pub(crate) bar: u64,
    /// Makes all of them.
    pub(crate) make: fn() -> Gate,
}

const fn hoard(name: &'static str, what: &'static str, count: u64, bar: u64, make: fn() -> Gate) -> Hoard {
    Hoard { name, what, count, bar, make }
}

#[rustfmt::skip]
pub(crate) const HOARDS: &[Hoard] = &[
    //    name                 what                                        count      bar  make
    hoard("keys_10k",          "a failing key, 10,000 of them",            10_000,    250, || failing(10_000)),
    hoard("keys_100k",         "a failing key, 100,000 of them",           100_000,   250, || failing(100_000)),
    hoard("keys_1m",           "a failing key, 1,000,000 of them",         1_000_000, 250, || failing(1_000_000)),
    hoard("waiters_100k",      "a waiting call, 100,000 in 1 flow",        100_000,   512, || waiting(100_000, 1).0),
    hoard("waiters_100k_1k",   "a waiting call, 100,000 in 1,000 flows",   100_000,   512, || waiting(100_000, 1_000).0),
    hoard("waiters_100k_100k", "a waiting call, 100,000 in 100,000 flows", 100_000,   585, || waiting(100_000, 100_000).0),
];

// --- stages

/// The floor: one look at one bucket, clock included.
fn governor_alone() -> Box<dyn FnMut()> {
    let quota = governor::Quota::per_second(NonZeroU32::MAX);
    let limiter = governor::RateLimiter::direct_with_clock(quota, governor::clock::MonotonicClock);
    Box::new(move || _ = black_box(limiter.check()))
}

fn call(mut gate: Gate) -> Box<dyn FnMut()> {
    Box::new(move || {
        gate.wait_for_token();
        let object = gate.fresh();
        gate.call(object);
    })
}

fn driven() -> Box<dyn FnMut()> {
    let mut gate = Gate::new(usual());
    Box::new(move || {
        gate.wait_for_token();
        let object = gate.fresh();
        gate.driven_call(object);
    })
}

/// Tokens for all calls are held, so that none is asked for. A member asks for as many as it is
/// about to need, so it must have sent very many calls before.
fn shared() -> Box<dyn FnMut()> {
    let mut gate = Gate::new(usual_shared(Duration::from_secs(3_600)));
    for _ in 0..100_000 {
        gate.wait_for_token();
        let object = gate.fresh();
        gate.patient_call(object);
    }
    // What it holds is too old by then to count for much.
    gate.pass(Duration::from_secs(3_000));
    gate.refill();
    Box::new(move || {
        gate.wait_for_token();
        let object = gate.fresh();
        gate.driven_call(object);
    })
}

/// Tokens are asked for every thirty calls or so.
fn asked() -> Box<dyn FnMut()> {
    let (mut gate, mut due) = (Gate::new(usual_shared(Duration::from_secs(6))), None);
    // Until it knows its demand, it holds too few.
    for _ in 0..8_000 {
        gate.wait_for_token();
        let object = gate.fresh();
        gate.patient_call(object);
        gate.refill();
    }
    Box::new(move || {
        gate.wait_for_token();
        if due.is_some_and(|at| at <= gate.now()) {
            gate.refill();
        }
        let object = gate.fresh();
        due = gate.driven_call(object);
    })
}

/// A different object each time, which is the dearest; behind a lock, as in the proxy.
fn counted() -> Box<dyn FnMut()> {
    let (loops, pace) = (Mutex::new(Loops::default()), Pace::new(1.0, NonZeroU32::MIN));
    let (mut now, mut object) = (Moment::ZERO, 0_u64);
    Box::new(move || {
        now += Duration::from_millis(25);
        // Real objects are hashes, so neighbours are unrelated.
        object = object.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let key = tidegate::api::Key { object, collection: 0, facet: 0 };
        black_box(loops.lock().expect("no panic").count(key, Act::Write, Some(pace), now, false));
    })
}

fn healthy(failing_keys: u64) -> Box<dyn FnMut()> {
    let mut gate = failing(failing_keys);
    Box::new(move || {
        let object = gate.fresh();
        gate.call(object);
    })
}

fn refused(failing_keys: u64) -> Box<dyn FnMut()> {
    let mut gate = failing(failing_keys);
    let mut object = 0;
    Box::new(move || {
        object = (object + STEP) % failing_keys;
        let Verdict::Refuse(refusal) = gate.arrive(object, 0) else { panic!("it fails") };
        black_box(refusal);
    })
}

fn fails(failing_keys: u64) -> Box<dyn FnMut()> {
    let mut gate = failing(failing_keys);
    Box::new(move || {
        let object = gate.fresh();
        gate.fail(object);
    })
}

fn cancel(count: u64, flows: u64) -> Box<dyn FnMut()> {
    let (mut gate, _holder, mut tickets) = waiting(count, flows);
    let mut at = 0;
    Box::new(move || {
        let object = gate.fresh();
        tickets.push(gate.enqueue(object, object % flows));
        at = (at + STEP_BACK) % tickets.len();
        gate.leave(tickets.swap_remove(at));
    })
}

fn serve(count: u64, flows: u64) -> Box<dyn FnMut()> {
    let (mut gate, holder, _) = waiting(count, flows);
    let mut holder = Some(holder);
    Box::new(move || {
        let object = gate.fresh();
        black_box(gate.enqueue(object, object % flows));
        holder = holder.take().map(|permit| gate.relay(permit));
    })
}

fn failing(keys: u64) -> Gate {
    let mut gate = Gate::new(roomy());
    (0..keys).for_each(|object| gate.fail(object));
    gate
}

fn waiting(count: u64, flows: u64) -> (Gate, Permit, Vec<Ticket>) {
    let mut gate = Gate::new(one_slot());
    let Verdict::Admit(holder) = gate.arrive(u64::MAX, 0) else { panic!("it is the first") };
    let tickets = (0..count).map(|object| gate.enqueue(object, object % flows)).collect();
    (gate, holder, tickets)
}

/// The distance from one object to the next: far, so that not everything is in the cache.
const STEP: u64 = 7_919;
const STEP_BACK: usize = 7_919;
