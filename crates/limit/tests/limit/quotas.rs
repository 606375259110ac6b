//! Q1 to Q4: a call waits for the pauses of its own quota, and for no other.
//!
//! Random histories of holders, resources and answers in any order, beside a limiter that is slow
//! and obvious: a list of every pause, and what each action was last charged to. Q5, the bound, is
//! tested beside the pauses.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::sample::select;
use proptest::test_runner::TestCaseError;
use proptest::{option, prop_assert_eq};
use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::{Answer, Charged, Outcome, Pause, PauseLength};
use tidegate_limit::policy::QueuePolicy;
use tidegate_limit::quota::{QuotaHint, QuotaId, ResourceId};
use tidegate_limit::{Policy, Reason};

use super::world::{Caller, World, at, bucket, class, ms, open, secs};

/// Something that happens at a gate.
#[derive(Clone, Debug)]
enum Step {
    Arrive(QuotaHint, u16),
    /// An answer to a call, with the upstream's word for what it charged, and a pause.
    Answer(usize, Option<ResourceId>, Option<(Charged, u64)>),
    Pass(u64),
    Reload,
}

/// The slow limiter.
#[derive(Debug, Default)]
struct Oracle {
    pauses: Vec<(QuotaId, Moment)>,
    learned: BTreeMap<u64, ResourceId>,
    waiting: Vec<(usize, Caller)>,
    left: BTreeMap<usize, (Moment, Caller)>,
}

const CLASSES: [&str; 2] = ["default", "other"];

fn words() -> impl Strategy<Value = ResourceId> {
    select(vec!["core", "search", "sbom"]).prop_map(ResourceId::named)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let word = prop_oneof![4 => words(), 3 => Just(ResourceId::ALL), 1 => Just(ResourceId::FREE)];
    let hint = (0_u64..4, word, 0_u64..5).prop_map(|(holder, word, action)| QuotaHint { holder, word, action });
    let charged = prop_oneof![
        1 => Just(Charged::All),
        2 => Just(Charged::Class),
        3 => Just(Charged::Predicted),
        3 => words().prop_map(Charged::Named),
    ];
    let step = prop_oneof![
        6 => (hint, 0_u16..2).prop_map(|(hint, class)| Step::Arrive(hint, class)),
        5 => (any::<usize>(), option::of(words()), option::weighted(0.6, (charged, 0_u64..3_000)))
            .prop_map(|(call, word, pause)| Step::Answer(call, word, pause)),
        4 => (0_u64..1_500).prop_map(Step::Pass),
        1 => Just(Step::Reload),
    ];
    vec(step, 1..80)
}

// === impl Oracle ===

impl Oracle {
    /// Returns when the last of a call's pauses ends.
    fn ends(&self, caller: &Caller) -> Moment {
        let class = ResourceId::of_class(CLASSES[usize::from(caller.class)]);
        let own = self.pauses.iter().filter(|(quota, _)| caller.is_charged_to(*quota, class));
        own.map(|(_, until)| *until).max().unwrap_or_default()
    }

    fn arrive(&mut self, call: usize, caller: Caller) {
        let QuotaHint { word, action, .. } = caller.quota;
        let learned = self.learned.get(&action).filter(|_| word != ResourceId::FREE);
        let quota = QuotaHint { word: learned.copied().unwrap_or(word), ..caller.quota };
        self.waiting.push((call, Caller { quota, ..caller }));
    }

    fn answer(&mut self, call: usize, word: Option<ResourceId>, pause: Option<(Charged, u64)>, now: Moment) {
        let (_, caller) = self.left[&call];
        let QuotaHint { holder, word: known, action } = caller.quota;
        let of_known = QuotaId { holder, resource: known };
        let is_paused = self.pauses.iter().any(|(quota, until)| *quota == of_known && *until > now);
        if let Some(word) = word.filter(|word| *word != known && known != ResourceId::FREE && !is_paused) {
            self.learned.insert(action, word);
        }
        if let Some((charged, length)) = pause
            && (charged != Charged::Predicted || known != ResourceId::FREE)
        {
            let class = ResourceId::of_class(CLASSES[usize::from(caller.class)]);
            self.pauses.push((caller.paused(charged, class), now + ms(length)));
        }
    }

    /// Lets every call go whose pauses are over, each at the first such moment.
    fn pass_to(&mut self, mut now: Moment, to: Moment) {
        loop {
            for (call, caller) in std::mem::take(&mut self.waiting) {
                if self.ends(&caller) <= now {
                    self.left.insert(call, (now, caller));
                } else {
                    self.waiting.push((call, caller));
                }
            }
            let next = self.pauses.iter().map(|(_, until)| *until).filter(|until| *until > now).min();
            match next.filter(|next| *next <= to) {
                Some(next) => now = next,
                None => return,
            }
        }
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
            Step::Answer(call, word, pause) => {
                let out: Vec<usize> = oracle.left.keys().copied().filter(|call| world.owes_answer(*call)).collect();
                if out.is_empty() {
                    continue;
                }
                let call = out[call % out.len()];
                word.iter().for_each(|word| world.name(call, *word));
                let length = |length: &u64| PauseLength::Known(ms(*length));
                let asked = pause.as_ref().map(|(charged, ms)| Pause { charged: *charged, length: length(ms) });
                world.answer_with(call, Answer { pause: asked, ..Answer::new(Outcome::Neutral, Some(403)) });
                world.end(call);
                oracle.answer(call, *word, *pause, world.now);
            }
            Step::Pass(time) => {
                let from = world.now;
                world.pass(ms(*time));
                oracle.pass_to(from, world.now);
            }
            Step::Reload => world.reload(policy(), 0),
        }
        oracle.pass_to(world.now, world.now);
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
