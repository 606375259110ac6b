//! Any bytes as the reply of a store, to a gate whose calls wait for tokens of a shared bucket.
//! Whatever the store says, the gate sends no more than its own bucket allows, and asks no more
//! often than it may.
#![no_main]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tidegate::api::Group;
use tidegate::limit::policy::{BucketPolicy, QueuePolicy, SharedId, SharedPolicy};
use tidegate::limit::{Arrival, Claim, ClassId, Flow, Limiter, Policy, StoreFailure, Verdict};
use tidegate::moment::Moment;
use tidegate::store;

const RATE: u64 = 50;
const BURST: u32 = 20;

fn limiter() -> Limiter {
    let bucket = BucketPolicy::new(50.0, NonZeroU32::MIN.saturating_add(BURST - 1));
    let policy = Policy {
        bucket: Some(BucketPolicy { shared: Some(SharedId(0)), ..bucket }),
        shared: vec![Arc::new(SharedPolicy::new("account"))],
        queue: QueuePolicy { max_wait: Duration::from_secs(60), max_waiting: 1000, ..QueuePolicy::default() },
        ..Policy::default()
    };
    let mut limiter = Limiter::new(policy, 1, Moment::ZERO);
    limiter.add_room(Group::Short, 1_000_000, Moment::ZERO);
    limiter
}

fuzz_target!(|bytes: &[u8]| {
    let answers: Vec<_> = bytes.split(|byte| *byte == b'|').map(store::reply).collect();
    let (mut limiter, mut sent, mut asks) = (limiter(), 0_u64, 0_u64);
    let mut now = Moment::ZERO;
    for answer in answers.into_iter().take(100) {
        let arrival = Arrival::new(ClassId(0), Flow { id: 0, name: &0 });
        for _ in 0..3 {
            if let Verdict::Admit(permit) = limiter.arrive(&arrival, now) {
                drop(permit.admit(()));
                sent += 1;
            }
        }
        for ask in limiter.take_asks(now) {
            asks += 1;
            let later = now + Duration::from_millis(3);
            let fits = answer.clone().filter(|answer| answer.granted <= ask.wish.most());
            limiter.answered(ask.asked, fits.ok_or(StoreFailure::Wrong), now, later);
            now = later;
        }
        now += Duration::from_millis(40);
        limiter.advance(now);
        while let Some(ticket) = limiter.next_event() {
            if let Claim::Permit(permit) = limiter.claim(ticket, now) {
                drop(permit.admit(()));
                sent += 1;
            }
        }
        let millis = now.since_start().as_millis() as u64;
        assert!(sent <= u64::from(BURST) + RATE * millis / 1000 + 1, "{sent} calls in {millis} ms");
        assert!(asks <= 8 + 20 * millis / 1000 + 1, "{asks} questions in {millis} ms");
    }
});
