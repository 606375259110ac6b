//! Q1 to Q4: a call waits for the pauses of its own quota, and for no other.
//!
//! Random histories of holders, resources and answers in any order, beside a limiter that is slow
//! and obvious: a list of every pause, and what each action was last charged to. Answers report
//! windows, refills and quotas of unknown kind too. Where such a quota may be paced, the slow
//! limiter knows when a call leaves at the earliest (Q4), and when at the latest. Q5, the bound, is
//! tested beside the pauses.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::sample::select;
use proptest::test_runner::TestCaseError;
use proptest::{option, prop_assert, prop_assert_eq};
use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::{Answer, Charged, Outcome, Pause, PauseLength, QuotaReading};
use tidegate_limit::policy::QueuePolicy;
use tidegate_limit::quota::{QuotaHint, QuotaId, QuotaKind, ResourceId};
use tidegate_limit::{Policy, Reason};

use super::world::{Caller, World, at, bucket, class, ms, open, secs};

/// Something that happens at a gate.
#[derive(Clone, Debug)]
enum Step {
    Arrive(QuotaHint, u16),
    /// An answer to a call, with the upstream's word for what it charged, and what it says.
    Answer(usize, Option<ResourceId>, Said),
    Pass(u64),
    Reload,
}

/// What an answer says of a quota.
#[derive(Clone, Copy, Debug)]
enum Said {
    Nothing,
    Pause(Charged, u64),
    Quota(Reading),
}

/// The calls left of [`LIMIT`], and the milliseconds until the quota is whole.
#[derive(Clone, Copy, Debug)]
struct Reading {
    charged: Charged,
    left: u64,
    resets: u64,
    paces: bool,
}

/// A pause, which may end sooner if the kind of its quota is not known.
#[derive(Clone, Copy, Debug)]
struct Stop {
    quota: QuotaId,
    least: Moment,
    most: Moment,
}

/// A quota whose calls may be spaced.
#[derive(Clone, Copy, Debug, Default)]
struct Slowed {
    resets_at: Moment,
    /// The latest moment of the next call.
    next_by: Moment,
}

/// The slow limiter.
#[derive(Debug, Default)]
struct Oracle {
    pauses: Vec<Stop>,
    slowed: BTreeMap<QuotaId, Slowed>,
    learned: BTreeMap<u64, ResourceId>,
    waiting: Vec<(usize, Caller)>,
    left: BTreeMap<usize, (Moment, Caller)>,
}

const CLASSES: [&str; 2] = ["default", "other"];
const LIMIT: u64 = 20;
const KEPT: u64 = 2;
/// The longest time to a reset, in milliseconds.
const LONGEST: u64 = 4_000;

fn words() -> impl Strategy<Value = ResourceId> {
    select(vec!["core", "search", "sbom"]).prop_map(ResourceId::named)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let word = prop_oneof![4 => words(), 3 => Just(ResourceId::ALL), 1 => Just(ResourceId::FREE)];
    let hint = (0_u64..4, word, 0_u64..5).prop_map(|(holder, word, action)| QuotaHint { holder, word, action });
    let charged = || {
        prop_oneof![
            1 => Just(Charged::All),
            2 => Just(Charged::Class),
            3 => Just(Charged::Predicted),
            3 => words().prop_map(Charged::Named),
        ]
    };
    let left = prop_oneof![2 => 0..=LIMIT, 1 => Just(0), 1 => Just(LIMIT)];
    let reading = (charged(), left, 1..=LONGEST, any::<bool>()).prop_map(|(charged, left, resets, paces)| Reading {
        charged,
        left,
        resets,
        paces,
    });
    let said = prop_oneof![
        2 => Just(Said::Nothing),
        3 => (charged(), 0_u64..3_000).prop_map(|(charged, length)| Said::Pause(charged, length)),
        3 => reading.prop_map(Said::Quota),
    ];
    let step = prop_oneof![
        6 => (hint, 0_u16..2).prop_map(|(hint, class)| Step::Arrive(hint, class)),
        5 => (any::<usize>(), option::of(words()), said)
            .prop_map(|(call, word, said)| Step::Answer(call, word, said)),
        4 => (0_u64..1_500).prop_map(Step::Pass),
        1 => Just(Step::Reload),
    ];
    vec(step, 1..80)
}

/// Returns the kind of a quota, which its provider documents.
fn kind(quota: QuotaId) -> QuotaKind {
    let resource = quota.resource;
    if resource == ResourceId::of_class(CLASSES[1]) {
        QuotaKind::Unknown
    } else if resource == ResourceId::named("sbom") || resource == ResourceId::of_class(CLASSES[0]) {
        QuotaKind::Refill
    } else {
        QuotaKind::Window
    }
}

fn class_of(caller: &Caller) -> ResourceId {
    ResourceId::of_class(CLASSES[usize::from(caller.class)])
}

// === impl Said ===

impl Said {
    /// Returns the answer that says so to a call.
    fn answer(self, caller: &Caller) -> Answer {
        let pause = |charged, length| Some(Pause { charged, length: PauseLength::Known(ms(length)) });
        match self {
            Self::Nothing => Answer::new(Outcome::Neutral, Some(403)),
            Self::Quota(_) if caller.quota.word == ResourceId::FREE => Answer::new(Outcome::Neutral, Some(403)),
            Self::Pause(charged, length) => {
                Answer { pause: pause(charged, length), ..Answer::new(Outcome::Neutral, Some(403)) }
            }
            Self::Quota(Reading { charged, left, resets, paces }) => {
                let kind = kind(caller.paused(charged, class_of(caller)));
                let resets_in = ms(resets);
                let told = QuotaReading { charged, limit: LIMIT, left, kept: KEPT, resets_in, kind, paces };
                let outcome = if left > 0 { Outcome::Success } else { Outcome::Neutral };
                let pause = (left <= KEPT).then(|| pause(charged, resets)).flatten();
                Answer { pause, quota: Some(told), ..Answer::new(outcome, Some(200)) }
            }
        }
    }
}

// === impl Oracle ===

impl Oracle {
    /// Returns when the last of a call's pauses ends at the earliest.
    fn ends(&self, caller: &Caller) -> Moment {
        let own = self.pauses.iter().filter(|stop| caller.is_charged_to(stop.quota, class_of(caller)));
        own.map(|stop| stop.least).max().unwrap_or_default()
    }

    /// Returns the quotas of a call that may be paced.
    fn slowed(&self, caller: &Caller) -> impl Iterator<Item = (QuotaId, Slowed)> {
        let own = self.slowed.iter().filter(|(quota, _)| caller.is_charged_to(**quota, class_of(caller)));
        own.map(|(quota, slowed)| (*quota, *slowed))
    }

    /// Returns when the first call of a paced queue leaves at the latest.
    fn leaves_by(&self, caller: &Caller) -> Moment {
        let own = self.pauses.iter().filter(|stop| caller.is_charged_to(stop.quota, class_of(caller)));
        own.map(|stop| stop.most).chain(self.slowed(caller).map(|(_, slowed)| slowed.next_by)).max().unwrap_or_default()
    }

    fn arrive(&mut self, call: usize, caller: Caller) {
        let QuotaHint { word, action, .. } = caller.quota;
        let learned = self.learned.get(&action).filter(|_| word != ResourceId::FREE);
        let quota = QuotaHint { word: learned.copied().unwrap_or(word), ..caller.quota };
        self.waiting.push((call, Caller { quota, ..caller }));
    }

    fn answer(&mut self, call: usize, word: Option<ResourceId>, said: Said, now: Moment) {
        let (_, caller) = self.left[&call];
        let QuotaHint { holder, word: known, action } = caller.quota;
        let of_known = QuotaId { holder, resource: known };
        let is_paused = self.pauses.iter().any(|stop| stop.quota == of_known && stop.least > now);
        if let Some(word) = word.filter(|word| *word != known && known != ResourceId::FREE && !is_paused) {
            self.learned.insert(action, word);
        }
        let quota = |charged| caller.paused(charged, class_of(&caller));
        match said {
            Said::Pause(charged, length) if charged != Charged::Predicted || known != ResourceId::FREE => {
                let until = now + ms(length);
                self.pauses.push(Stop { quota: quota(charged), least: until, most: until });
            }
            Said::Quota(reading) if known != ResourceId::FREE => self.read(quota(reading.charged), reading, now),
            Said::Nothing | Said::Pause(..) | Said::Quota(_) => {}
        }
    }

    /// Notes what is left of a quota.
    fn read(&mut self, quota: QuotaId, reading: Reading, now: Moment) {
        let whole = now + ms(reading.resets);
        if reading.left <= KEPT {
            // The next token of a refill comes after its share of the time.
            let missing = u32::try_from(LIMIT - reading.left).expect("small");
            let least = match kind(quota) {
                QuotaKind::Window => whole,
                QuotaKind::Refill => now + ms(reading.resets) / missing,
                QuotaKind::Unknown => now,
            };
            self.pauses.push(Stop { quota, least, most: whole });
        }
        if reading.left * 2 <= LIMIT || self.slowed.contains_key(&quota) {
            let slowed = self.slowed.entry(quota).or_default();
            slowed.resets_at = whole;
            // It may be found out to be a refill, whose next token then comes a little later.
            if kind(quota) == QuotaKind::Unknown {
                slowed.next_by = now + ms(LONGEST);
            }
        }
    }

    /// Lets every call go whose pauses are over, each at the first such moment, but for those that
    /// may be paced: these went as the limiter says, unless that was too early or too late.
    fn pass_to(&mut self, world: &World, mut now: Moment, to: Moment) -> Result<(), TestCaseError> {
        loop {
            for (call, caller) in std::mem::take(&mut self.waiting) {
                if self.ends(&caller) <= now && self.slowed(&caller).next().is_none() {
                    self.left.insert(call, (now, caller));
                } else {
                    self.waiting.push((call, caller));
                }
            }
            let next = self.pauses.iter().map(|stop| stop.least).filter(|until| *until > now).min();
            match next.filter(|next| *next <= to) {
                Some(next) => now = next,
                None => break,
            }
        }
        let gone = self.waiting.extract_if(.., |(call, _)| world.calls[*call].left.is_some());
        let mut gone: Vec<_> = gone.collect();
        gone.sort_by_key(|(call, _)| world.calls[*call].left);
        for (call, caller) in gone {
            let at = world.left_at(call).expect("it left");
            prop_assert!(at >= self.ends(&caller), "call {} left early", call);
            let quotas: Vec<_> = self.slowed(&caller).collect();
            prop_assert!(!quotas.is_empty(), "call {} left, though nothing paced it", call);
            for (quota, Slowed { resets_at, .. }) in quotas {
                let next_by = at + (resets_at - at).max(ms(LONGEST));
                self.slowed.insert(quota, Slowed { resets_at, next_by });
            }
            self.left.insert(call, (at, caller));
        }
        for (place, (call, caller)) in self.waiting.iter().enumerate() {
            let same = |other: &Caller| (other.class, other.quota.holder, other.quota.word);
            let is_first = self.waiting[..place].iter().all(|(_, other)| same(other) != same(caller));
            prop_assert!(!is_first || self.leaves_by(caller) + ms(1) > to, "call {} waits too long", call);
        }
        Ok(())
    }
}

fn policy() -> Policy {
    let queue = QueuePolicy { max_wait: secs(1_000_000), ..open().queue };
    Policy { queue, classes: CLASSES.map(class).to_vec(), ..open() }
}

fn agree(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new(policy());
    let mut oracle = Oracle::default();
    for step in steps {
        match step {
            Step::Arrive(quota, class) => {
                let caller = Caller { quota: *quota, ..Caller::new().of_class(*class) };
                oracle.arrive(world.arrive(caller), caller);
            }
            Step::Answer(call, word, said) => {
                let out: Vec<usize> = oracle.left.keys().copied().filter(|call| world.owes_answer(*call)).collect();
                if out.is_empty() {
                    continue;
                }
                let call = out[call % out.len()];
                word.iter().for_each(|word| world.name(call, *word));
                world.answer_with(call, said.answer(&oracle.left[&call].1));
                world.end(call);
                oracle.answer(call, *word, *said, world.now);
            }
            Step::Pass(time) => {
                let from = world.now;
                world.pass(ms(*time));
                oracle.pass_to(&world, from, world.now)?;
            }
            Step::Reload => world.reload(policy(), 0),
        }
        oracle.pass_to(&world, world.now, world.now)?;
        for call in 0..world.calls.len() {
            prop_assert_eq!(world.left_at(call), oracle.left.get(&call).map(|(at, _)| *at), "call {}", call);
        }
    }
    world.wind_down();
    Ok(())
}

proptest! {
    #![proptest_config(super::promises::config(1000))]

    #[test]
    fn q1_to_q4_a_call_waits_for_its_own_quota_and_for_no_other(steps in steps()) {
        agree(&steps)?;
    }
}

#[test]
fn q3_a_call_that_the_upstream_does_not_count_spends_no_token() {
    let mut world = World::new(Policy { bucket: Some(bucket(0.1, 1)), ..policy() });
    let free = Caller { quota: QuotaHint { word: ResourceId::FREE, ..QuotaHint::default() }, ..Caller::new() };
    let calls: Vec<_> = (0..5).map(|_| world.arrive(free)).collect();
    let counted = world.arrive(Caller::new());
    assert!(calls.iter().chain([&counted]).all(|call| world.left_at(*call) == Some(at(0))));
    let length = PauseLength::Known(Duration::from_secs(60));
    let pause = Some(Pause { charged: Charged::All, length });
    world.answer_with(counted, Answer { pause, ..Answer::new(Outcome::Neutral, Some(403)) });
    let asks = world.arrive(free);
    let waits = world.arrive(Caller::new());
    assert_eq!((world.left_at(asks), world.left_at(waits)), (Some(at(0)), None));
    world.pass(secs(61));
    assert_eq!(world.calls[waits].waited.map(|(reason, _)| reason), Some(Reason::Pause));
    world.wind_down();
}
