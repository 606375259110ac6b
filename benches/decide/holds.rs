//! The time for which the lock is held, and with it the one thread that carries every call: each
//! thing that an operator, a reload or a moment may do to all failing keys and all waiting calls at
//! once, in the pieces in which the proxy lets it happen.
//!
//! A piece is the work between two turns of other tasks. Its instructions are counted as those of a
//! decision are: this binary runs itself under callgrind, for no piece, for one and for many, and
//! the differences are the first piece and the mean of the others. No piece does more than a fixed
//! number of steps, so the mean shows how long the longest may be.
//!
//! ```text
//! cargo bench -p decide --bench holds               the longest piece of each, at full size
//! cargo bench -p decide --bench holds -- HOLD ...   some of them
//! cargo bench -p decide --bench holds -- check      compares the instructions of a piece with the
//!                                                   bar, and fails above it
//! ```
//!
//! This program is separate from `decide`, because code linked in beside a decision changes how the
//! decision is compiled.

#[expect(dead_code, reason = "`decide` uses the rest")]
mod gate;

use std::num::NonZeroU32;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use std::{env, fs};

use tidegate::api::{Group, PauseLength};
use tidegate::limit::policy::{InFlight, Lane, Per};
use tidegate::limit::{LongestQueues, Policy, Ticket, Walk};

use self::gate::{Gate, one_slot, roomy};

fn main() -> ExitCode {
    // `cargo bench` adds a flag of its own.
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["play", name, pieces] => play(name, pieces.parse().expect("a number")),
        ["check"] => match check() {
            Ok(below) => return if below { ExitCode::SUCCESS } else { ExitCode::FAILURE },
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
        },
        names => table(names),
    }
    ExitCode::SUCCESS
}

/// An operation on all keys or all waiting calls.
struct Hold {
    name: &'static str,
    what: &'static str,
    /// Prepares it. The returned function does one piece and says whether there is more.
    stage: fn(Size) -> Box<dyn FnMut() -> bool>,
}

/// The number of keys and of waiting calls.
#[derive(Clone, Copy)]
struct Size {
    keys: u64,
    waiters: u64,
}

const fn hold(name: &'static str, what: &'static str, stage: fn(Size) -> Box<dyn FnMut() -> bool>) -> Hold {
    Hold { name, what, stage }
}

#[rustfmt::skip]
const HOLDS: &[Hold] = &[
    hold("status",      "/status: queues and failing keys",                       status),
    hold("metrics",     "/metrics: the gauges",                                   metrics),
    hold("explain",     "explain: what would happen to a call",                   explain),
    hold("forget",      "forget: every failing key",                              forget),
    hold("forget_line", "forget: the one key that all calls wait for",            forget_held_calls),
    hold("bypass",      "bypass: all waiting calls are released",                 bypass),
    hold("lift",        "forget --pauses: all paused calls go",                   lift),
    hold("pause",       "a pause begins that ends too late for all waiting calls", pause),
    hold("pause_ends",  "a pause ends, and all calls go",                         pause_ends),
    hold("waits_end",   "all waits end at one moment",                            waits_end),
    hold("unconnected", "no connection can be made: all waits end",               unconnected),
    hold("reload",      "a reload: all calls move to new queues",                 reload),
    hold("reload_exempt", "a reload that limits no call any more",                reload_exempt),
    hold("fewer_keys",  "a reload with half as many keys at most",                fewer_keys),
    hold("expire",      "every key is forgotten at one moment",                   expire),
    hold("crowded",     "a key fails, and another is dropped for it",             crowded),
];

/// Prints the table at full size: the longest piece of each operation, or of those that are named,
/// in microseconds of this thread's own processor time. Each piece shows the best of some rounds,
/// because a disturbance only ever adds time. Asserts nothing.
fn table(names: &[&str]) {
    let what = "1,000,000 failing keys, 100,000 waiting calls";
    println!("{what:<60} {:>9} {:>14} {:>9}", "pieces", "longest, us", "which");
    for hold in HOLDS.iter().filter(|hold| names.is_empty() || names.contains(&hold.name)) {
        let mut best: Vec<Duration> = Vec::new();
        for _ in 0..ROUNDS {
            let (mut piece, mut pieces, mut more) = ((hold.stage)(FULL), 0, true);
            while more {
                let began = on_processor();
                more = piece();
                let took = on_processor().saturating_sub(began);
                match best.get_mut(pieces) {
                    Some(best) => *best = took.min(*best),
                    None => best.push(took),
                }
                pieces += 1;
            }
        }
        let (longest, which) = best.iter().zip(1..).max().map_or((0, 0), |(took, which)| (took.as_micros(), which));
        println!("{:<60} {:>9} {longest:>14} {which:>9}", hold.what, best.len());
    }
}

/// Returns the time for which this thread has had a processor: other work is not counted. The
/// system writes it down when a thread yields.
fn on_processor() -> Duration {
    std::thread::yield_now();
    let known = fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux that counts what threads do");
    let nanos = known.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.expect("nanoseconds come first"))
}

/// Prints the instructions of the first piece and the mean of the others for each operation; false
/// if one is above the bar.
///
/// # Errors
/// The output of valgrind, if it is not a number.
fn check() -> Result<bool, String> {
    let mut below = true;
    for pair in HOLDS.chunks(2) {
        let costs: Vec<_> = std::thread::scope(|scope| {
            let costs: Vec<_> = pair.iter().map(|hold| scope.spawn(|| cost(hold))).collect();
            costs.into_iter().map(|cost| cost.join().expect("it does not panic")).collect()
        });
        for (hold, cost) in pair.iter().zip(costs) {
            let (first, others) = cost?;
            let verdict = if first.max(others) > BAR { "ABOVE" } else { "of at most" };
            below &= first.max(others) <= BAR;
            let first = if first < CHANCE { "few".to_owned() } else { first.to_string() };
            println!("{:<60} {first:>8}, then {others:>8} instructions a piece {verdict} {BAR}", hold.what);
        }
    }
    Ok(below)
}

/// Plays a hold, in the child process.
fn play(name: &str, pieces: u64) {
    let hold = HOLDS.iter().find(|hold| hold.name == name).expect("only this program asks");
    let mut piece = (hold.stage)(SMALL);
    let mut done = 0;
    while done < pieces {
        done += 1;
        if !piece() {
            break;
        }
    }
    println!("{done}");
    std::mem::forget(piece);
}

fn cost(hold: &Hold) -> Result<(u64, u64), String> {
    let (none, _) = count(hold, 0)?;
    let (one, _) = count(hold, 1)?;
    let (many, pieces) = count(hold, MANY)?;
    let others = if pieces > 1 { many.saturating_sub(one) / (pieces - 1) } else { 0 };
    Ok((one.saturating_sub(none), others))
}

/// Returns the instructions, and the number of pieces they were for.
fn count(hold: &Hold, pieces: u64) -> Result<(u64, u64), String> {
    let this = env::current_exe().map_err(|error| error.to_string())?;
    let done = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(this)
        .args(["play", hold.name, &pieces.to_string()])
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    let collected = said.lines().find_map(|line| line.split_once("Collected :")).map(|(_, count)| count.trim().parse());
    let did = String::from_utf8_lossy(&done.stdout).trim().parse();
    match (collected, did) {
        (Some(Ok(count)), Ok(did)) if done.status.success() => Ok((count, did)),
        _ => Err(format!("{} under valgrind: {}\n{said}", hold.name, done.status)),
    }
}

// --- stages

fn status(size: Size) -> Box<dyn FnMut() -> bool> {
    let (gate, mut longest, mut looked) = (crowd(size, FLOWS), LongestQueues::default(), false);
    Box::new(move || {
        if !looked {
            looked = !gate.limiter.look_at_queues(&mut longest);
            return true;
        }
        let shown = (gate.limiter.overview(gate.now()), gate.limiter.queue_views(&longest, gate.now()));
        std::hint::black_box((shown, gate.limiter.next_tried(100, gate.now())));
        false
    })
}

fn metrics(size: Size) -> Box<dyn FnMut() -> bool> {
    let gate = crowd(size, FLOWS);
    again(move || _ = std::hint::black_box((gate.limiter.overview(gate.now()), gate.limiter.pauses(gate.now()))))
}

fn explain(size: Size) -> Box<dyn FnMut() -> bool> {
    let mut gate = crowd(size, FLOWS);
    again(move || gate.preview(7, 3))
}

fn forget(size: Size) -> Box<dyn FnMut() -> bool> {
    let (mut gate, mut walk) = (crowd(size, FLOWS), Walk::default());
    Box::new(move || {
        gate.forget_some(&mut walk);
        !walk.is_over() || gate.go_on()
    })
}

fn forget_held_calls(size: Size) -> Box<dyn FnMut() -> bool> {
    let mut policy = one_slot();
    policy.classes.iter_mut().for_each(|class| class.backoff.hold = LONG);
    let mut gate = Gate::new(policy);
    gate.fail(ONE);
    (0..size.waiters).for_each(|_| _ = gate.enqueue(ONE, 0));
    let mut walk = Walk::default();
    Box::new(move || {
        if !walk.is_over() {
            gate.forget_some(&mut walk);
            return true;
        }
        gate.go_on()
    })
}

fn bypass(size: Size) -> Box<dyn FnMut() -> bool> {
    pieces(crowd(size, FLOWS), |gate| gate.bypass())
}

fn lift(size: Size) -> Box<dyn FnMut() -> bool> {
    pieces(paused(size, LONG / 2), Gate::lift)
}

fn pause(size: Size) -> Box<dyn FnMut() -> bool> {
    let mut gate = Gate::new(one_slot());
    let holder = gate.first();
    wait(&mut gate, size.waiters, FLOWS);
    let mut holder = Some(holder);
    pieces(gate, move |gate| {
        let holder = holder.take().expect("once");
        gate.answered_with_pause(holder, PauseLength::Known(2 * LONG));
    })
}

fn pause_ends(size: Size) -> Box<dyn FnMut() -> bool> {
    pieces(paused(size, Duration::from_secs(5)), |gate| gate.pass(Duration::from_secs(6)))
}

fn waits_end(size: Size) -> Box<dyn FnMut() -> bool> {
    let mut policy = one_slot();
    policy.queue.max_wait = Duration::from_secs(60);
    let gate = crowd_of(policy, size, FLOWS);
    pieces(gate, |gate| gate.pass(Duration::from_secs(61)))
}

fn unconnected(size: Size) -> Box<dyn FnMut() -> bool> {
    pieces(crowd(size, FLOWS), |gate| gate.unconnected(Group::Short))
}

/// Moves all calls into one queue for each flow where the gate had slots: the reload that changes
/// most.
fn reload(size: Size) -> Box<dyn FnMut() -> bool> {
    let mut policy = one_slot();
    policy.in_flight = Some(InFlight { max: NonZeroU32::MIN, per: Per::Flow });
    policy.queue.max_wait = LONG / 4;
    // Before them a call of each flow takes its slot, so that they go on waiting.
    pieces(crowd(size, FLOWS), move |gate| gate.reload(policy.clone()))
}

fn reload_exempt(size: Size) -> Box<dyn FnMut() -> bool> {
    let mut policy = one_slot();
    policy.classes.iter_mut().for_each(|class| class.lane = Lane::Exempt);
    pieces(crowd(size, FLOWS), move |gate| gate.reload(policy.clone()))
}

fn fewer_keys(size: Size) -> Box<dyn FnMut() -> bool> {
    let mut policy = one_slot();
    policy.max_keys = usize::try_from(size.keys / 2).expect("few enough");
    let (mut gate, mut policy) = (crowd(size, FLOWS), Some(policy));
    Box::new(move || match policy.take() {
        Some(policy) => {
            gate.reload(policy);
            true
        }
        None => gate.go_on() || gate.has_expired_keys(),
    })
}

fn expire(size: Size) -> Box<dyn FnMut() -> bool> {
    let mut gate = crowd(size, FLOWS);
    gate.pass(Duration::from_secs(11 * 3600));
    Box::new(move || gate.go_on() || gate.has_expired_keys())
}

fn crowded(size: Size) -> Box<dyn FnMut() -> bool> {
    let mut policy = roomy();
    policy.max_keys = usize::try_from(size.keys).expect("few enough");
    let mut gate = Gate::new(policy);
    (0..size.keys).for_each(|object| gate.fail(object));
    again(move || {
        let object = gate.fresh();
        gate.fail(object);
    })
}

/// The number of pieces that is enough for a mean.
fn again(mut piece: impl FnMut() + 'static) -> Box<dyn FnMut() -> bool> {
    let mut times = 0;
    Box::new(move || {
        piece();
        times += 1;
        times < MANY
    })
}

/// Does the beginning first, then the pieces that are left.
fn pieces(mut gate: Gate, begin: impl FnOnce(&mut Gate) + 'static) -> Box<dyn FnMut() -> bool> {
    let mut begin = Some(begin);
    Box::new(move || match begin.take() {
        Some(begin) => {
            begin(&mut gate);
            gate.limiter.is_behind()
        }
        None => gate.go_on(),
    })
}

/// All keys fail, and all calls wait for one slot.
fn crowd(size: Size, flows: u64) -> Gate {
    crowd_of(one_slot(), size, flows)
}

fn crowd_of(policy: Policy, size: Size, flows: u64) -> Gate {
    let mut gate = Gate::new(policy);
    (0..size.keys).for_each(|object| gate.fail(object));
    let holder = gate.first();
    std::mem::forget(holder);
    wait(&mut gate, size.waiters, flows);
    gate
}

/// All calls wait for a pause to end, and for nothing else.
fn paused(size: Size, length: Duration) -> Gate {
    let mut gate = Gate::new(roomy());
    let holder = gate.first();
    gate.answered_with_pause(holder, PauseLength::Known(length));
    wait(&mut gate, size.waiters, FLOWS);
    gate
}

fn wait(gate: &mut Gate, waiters: u64, flows: u64) -> Vec<Ticket> {
    (0..waiters).map(|waiter| gate.enqueue(WAITING + waiter, waiter % flows)).collect()
}

/// Many queues, with calls in each.
const FLOWS: u64 = 10_000;
/// Objects of the waiting calls: none of them is a failing one.
const WAITING: u64 = 1 << 40;
const ONE: u64 = 1;
/// Longer than any call waits.
const LONG: Duration = Duration::from_secs(1_000_000_000);
const FULL: Size = Size { keys: 1_000_000, waiters: 100_000 };
/// The size that CI has the time for. The trees and heaps are a level or two lower than at full
/// size; nothing else of a piece grows with how many there are.
const SMALL: Size = Size { keys: 20_000, waiters: 10_000 };
/// The preparation takes some ten thousand instructions more or fewer each time, because the
/// standard library's tables hash at random: a first piece below this number cannot be told from
/// noise.
const CHANCE: u64 = 40_000;
/// Rounds of the table at full size.
const ROUNDS: usize = 3;
/// Pieces enough for a mean.
const MANY: u64 = 60;
/// A millisecond is three million instructions or more on the machines that tidegate runs on, as
/// long as the data is in the caches. The bar is below two thirds of that: the rest is for cache misses
/// and for higher trees.
const BAR: u64 = 1_850_000;
