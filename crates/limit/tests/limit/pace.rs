//! Pace: a quota that would be used up before its reset is spent evenly. Against fake providers that
//! count, with a second tool that takes half.

use std::time::Duration;

use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::{Answer, Charged, Outcome, Pause, PauseLength, QuotaReading};
use tidegate_limit::policy::QueuePolicy;
use tidegate_limit::quota::{QuotaHint, QuotaKind, ResourceId};

use super::world::{Caller, World, ms, open, secs};

/// A provider with one quota.
#[derive(Debug)]
struct Provider {
    limit: f64,
    left: f64,
    /// What comes back in a second; zero for a window of an hour.
    refill: f64,
    whole_at: Moment,
    now: Moment,
    /// The resource that its answers name.
    charged: Charged,
    /// The reserve for others.
    kept: u64,
    ours: usize,
    refused: usize,
}

/// A gate before a provider, with workers that each call again some time after an answer.
struct Bench {
    world: World,
    provider: Provider,
    /// Calls by the moment of their next step.
    waiting: Vec<usize>,
    sent: Vec<(Moment, usize)>,
    idle: Vec<Moment>,
    think: Duration,
    /// The quota of the calls, as far as their requests tell.
    hint: QuotaHint,
    /// The calls that the second tool makes at once.
    at_once: u32,
    left_at: Vec<Moment>,
    /// The last moment without a waiting call.
    nobody_waited: Moment,
    /// The longest time without a departure while calls waited.
    longest_stop: Duration,
}

const HOUR: Duration = Duration::from_secs(3600);
const TICK: Duration = Duration::from_millis(100);

// === impl Provider ===

impl Provider {
    fn new(limit: f64, refill: f64) -> Self {
        let charged = Charged::Named(ResourceId::named("core"));
        let whole_at = Moment::ZERO + HOUR;
        Self { limit, left: limit, refill, whole_at, now: Moment::ZERO, charged, kept: 0, ours: 0, refused: 0 }
    }

    fn pass_to(&mut self, now: Moment) {
        self.left = (self.left + self.refill * (now - self.now).as_secs_f64()).min(self.limit);
        self.now = now;
        if self.refill == 0.0 && now >= self.whole_at {
            self.left = self.limit;
            self.whole_at += HOUR;
        }
    }

    /// Counts a call, and returns true if it is served.
    fn serve(&mut self) -> bool {
        let served = self.left >= 1.0;
        self.left -= f64::from(u8::from(served));
        served
    }

    /// What an answer says, in whole seconds.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few thousand calls")]
    fn told(&self, kind: QuotaKind) -> QuotaReading {
        let whole_in = match self.refill {
            0.0 => self.whole_at - self.now + secs(1),
            refill => Duration::from_secs_f64((self.limit - self.left) / refill),
        };
        QuotaReading {
            charged: self.charged,
            limit: self.limit as u64,
            left: self.left as u64,
            kept: self.kept,
            resets_in: secs(whole_in.as_secs()),
            kind,
            paces: true,
        }
    }
}

// === impl Bench ===

impl Bench {
    fn new(provider: Provider, workers: usize, think: Duration) -> Self {
        let queue = QueuePolicy { max_wait: secs(1_000_000), ..open().queue };
        let world = World::new(tidegate_limit::Policy { queue, ..open() });
        let idle = vec![Moment::ZERO; workers];
        Self {
            world,
            provider,
            waiting: Vec::new(),
            sent: Vec::new(),
            idle,
            think,
            hint: QuotaHint { holder: 7, word: ResourceId::named("core"), action: 1 },
            at_once: 1,
            left_at: Vec::new(),
            nobody_waited: Moment::ZERO,
            longest_stop: Duration::ZERO,
        }
    }

    /// Makes the workers begin one after the other.
    fn spread(mut self) -> Self {
        let every = self.think / u32::try_from(self.idle.len()).expect("a few");
        self.idle.iter_mut().zip(0..).for_each(|(idle, worker)| *idle += every * worker);
        self
    }

    fn arrive(&mut self) {
        let call = self.world.arrive(Caller { quota: self.hint, ..Caller::new() });
        self.waiting.push(call);
    }

    /// Runs up to a moment; the second tool makes a call `every` so often.
    fn run(&mut self, to: Duration, kind: QuotaKind, every: Duration) {
        let mut turn = self.world.now;
        while self.world.now < Moment::ZERO + to {
            self.world.pass(TICK);
            let now = self.world.now;
            self.provider.pass_to(now);
            if now >= turn && !every.is_zero() {
                turn += every * self.at_once;
                (0..self.at_once).for_each(|_| _ = self.provider.serve());
            }
            let due = self.idle.extract_if(.., |at| *at <= now).count();
            (0..due).for_each(|_| self.arrive());
            let world = &self.world;
            let left: Vec<usize> = self.waiting.extract_if(.., |call| world.left_at(*call).is_some()).collect();
            for call in left {
                self.left_at.extend(self.world.left_at(call));
                self.sent.push((now + ms(200), call));
            }
            if self.waiting.is_empty() {
                self.nobody_waited = now;
            }
            let since = self.left_at.last().copied().unwrap_or_default().max(self.nobody_waited);
            self.longest_stop = self.longest_stop.max(now - since);
            let answers: Vec<_> = self.sent.extract_if(.., |(at, _)| *at <= now).collect();
            answers.into_iter().for_each(|(_, call)| self.answer(call, kind));
        }
    }

    fn answer(&mut self, call: usize, kind: QuotaKind) {
        let served = self.provider.serve();
        let told = self.provider.told(kind);
        self.provider.ours += usize::from(served);
        self.provider.refused += usize::from(!served);
        let outcome = if served { Outcome::Success } else { Outcome::Throttled { after: told.resets_in } };
        let pause = (told.left <= told.kept)
            .then_some(Pause { charged: told.charged, length: PauseLength::Known(told.resets_in) });
        let status = Some(if served { 200 } else { 429 });
        self.world.answer_with(call, Answer { pause, quota: Some(told), ..Answer::new(outcome, status) });
        self.world.end(call);
        self.idle.push(self.world.now + self.think);
    }
}

#[test]
fn a_window_lasts_to_its_reset_beside_a_tool_that_takes_half() {
    let core = Charged::Named(ResourceId::named("core"));
    for (holder, word, charged) in
        [(7, "core", core), (7, "", Charged::Class), (0, "core", core), (0, "", Charged::All)]
    {
        let word = if word.is_empty() { ResourceId::ALL } else { ResourceId::named(word) };
        // Some 1.2 calls a second, of which 2,500 an hour fit.
        let mut bench = Bench::new(Provider { charged, ..Provider::new(5000.0, 0.0) }, 24, secs(20)).spread();
        bench.hint = QuotaHint { holder, word, action: 1 };
        bench.run(HOUR * 2, QuotaKind::Window, ms(1440));
        let used = bench.provider.ours as f64 / 5000.0;
        let stop = bench.longest_stop;
        println!("window, {charged:?}: used {used:.4}, refused {}, longest stop {stop:?}", bench.provider.refused);
        assert_eq!(bench.provider.refused, 0);
        assert!(used >= 0.97, "{used}");
        assert!(stop <= Duration::from_secs_f64(2.0 * 3600.0 / 2500.0), "{stop:?}");
    }
}

/// Of what is left at half, most is the other tool's: some 0.16 calls a second are ours.
#[test]
fn a_window_used_fast_in_its_first_half_lasts_to_its_reset() {
    for (kept, every) in [(500, 20), (0, 10)] {
        let mut bench = Bench::new(Provider { kept, ..Provider::new(5000.0, 0.0) }, 24, secs(every)).spread();
        bench.run(HOUR * 2, QuotaKind::Window, ms(1440));
        let used = bench.provider.ours as f64 / (5000.0 - 2.0 * kept as f64);
        let stop = bench.longest_stop;
        println!("fast, {kept} kept: used {used:.4}, refused {}, longest stop {stop:?}", bench.provider.refused);
        assert_eq!(bench.provider.refused, 0);
        assert!((0.97..=1.005).contains(&used), "{used}");
        assert!(stop <= Duration::from_secs_f64(2.0 / 0.16), "{stop:?}");
    }
}

#[test]
fn a_refill_is_used_at_its_rate_beside_a_tool_that_takes_half() {
    // It refills at 1 a second, of which the tool takes half.
    for kind in [QuotaKind::Refill, QuotaKind::Unknown] {
        let mut bench = Bench::new(Provider::new(3600.0, 1.0), 40, secs(20)).spread();
        bench.run(HOUR * 3, kind, secs(2));
        let fair = 3600.0 + 10_800.0 / 2.0;
        let used = bench.provider.ours as f64 / fair;
        let stop = bench.longest_stop;
        println!("refill, {kind}: used {used:.4}, refused {}, longest stop {stop:?}", bench.provider.refused);
        assert_eq!(bench.provider.refused, 0, "{kind}");
        assert!(used >= 0.97, "{kind} {used}");
        assert!(stop <= secs(4), "{kind} {stop:?}");
    }
}

/// Ten calls at once in a window's last seconds find so many left only if they are kept: that is
/// 10/rate without a call of ours at its end, where a pace alone stops for 2/rate at most. Without
/// a reserve 20 of our calls are refused in these two hours.
#[test]
fn a_reserve_leaves_room_for_a_tool_that_takes_ten_at_once() {
    let mut bench = Bench::new(Provider { kept: 50, ..Provider::new(5000.0, 0.0) }, 24, secs(20)).spread();
    bench.at_once = 10;
    bench.run(HOUR * 2, QuotaKind::Window, ms(1440));
    let used = bench.provider.ours as f64 / 5000.0;
    println!("ten at once: used {used:.4}, refused {}, longest stop {:?}", bench.provider.refused, bench.longest_stop);
    assert_eq!(bench.provider.refused, 0);
    assert!(used >= 0.97, "{used}");
}

#[test]
fn a_hundred_calls_at_once_are_not_held_while_more_than_half_is_left() {
    for (refill, kind) in [(0.0, QuotaKind::Window), (1.0, QuotaKind::Refill)] {
        let mut bench = Bench::new(Provider::new(5000.0, refill), 100, HOUR * 3);
        bench.provider.left = 2800.0;
        bench.run(secs(5), kind, secs(1));
        assert_eq!(bench.left_at.len(), 100);
        (0..100).for_each(|_| bench.arrive());
        let now = bench.world.now;
        bench.run(secs(10), kind, secs(1));
        assert!(bench.left_at[100..].iter().all(|left| *left <= now + TICK), "{kind}");
    }
}

#[test]
fn a_use_that_fits_is_not_paced() {
    // Ten at once every 25 s: 1,440 an hour.
    let mut bench = Bench::new(Provider::new(5000.0, 0.0), 10, secs(25));
    bench.provider.left = 2400.0;
    bench.run(secs(1200), QuotaKind::Window, secs(0));
    let waited = bench.world.calls.iter().filter(|call| call.waited.is_some()).count();
    assert_eq!((waited, bench.provider.ours), (0, 480));
}

#[test]
fn q1_a_paced_quota_holds_no_other_holder_or_resource() {
    let mut bench = Bench::new(Provider::new(5000.0, 0.0), 24, secs(1));
    bench.provider.left = 2400.0;
    bench.run(secs(600), QuotaKind::Window, ms(1440));
    assert!(!bench.waiting.is_empty(), "it is paced");
    for (holder, word) in [(8, "core"), (7, "search")] {
        let quota = QuotaHint { holder, word: ResourceId::named(word), action: 2 };
        let call = bench.world.arrive(Caller { quota, ..Caller::new() });
        assert_eq!(bench.world.left_at(call), Some(bench.world.now), "{holder} {word}");
    }
}
