//! Any bytes as a state file. Those that are one are written again as they were read, and a limiter
//! goes on with them, whatever they say. Bytes after a `{` are also read as the text of a state
//! whose checksum is right.
#![no_main]

use std::hash::{DefaultHasher, Hasher};
use std::num::NonZeroU32;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tidegate::limit::policy::{BucketPolicy, ClassPolicy, Per};
use tidegate::limit::snapshot::{FreezeWalk, Gap};
use tidegate::limit::{Limiter, Policy};
use tidegate::moment::Moment;
use tidegate::state;

fn policy() -> Policy {
    let bucket = |rate, per| BucketPolicy { per, ..BucketPolicy::new(rate, NonZeroU32::MIN.saturating_add(19)) };
    Policy {
        bucket: Some(bucket(3.0, Per::Gate)),
        retry_bucket: Some(bucket(0.1, Per::Credential)),
        classes: vec![ClassPolicy {
            name: "ec2".into(),
            bucket: Some(bucket(1.0, Per::Gate)),
            ..ClassPolicy::default()
        }],
        ..Policy::default()
    }
}

fn go_on(bytes: &[u8]) {
    let Ok(state) = state::decode(bytes) else { return };
    let again = state::encode(&state).expect("it was read");
    // The last bit of a level may differ: it is a decimal number in the file.
    let exact = |mut state: state::ProcessState| {
        state.gates.values_mut().for_each(|gate| gate.buckets.clear());
        state
    };
    assert_eq!(exact(state::decode(&again).expect("it was written")), exact(state.clone()));
    let (length, now) = (state.stamp.since(&state.stamp), Moment::from_millis(5));
    for frozen in state.gates.values() {
        for unseen in [None, Some(Duration::from_secs(7))] {
            let mut limiter = Limiter::new(policy(), 1, now);
            limiter.thaw(frozen, Gap { length, unseen }, now);
            limiter.advance(now + Duration::from_secs(3600));
            let mut freezing = FreezeWalk::default();
            while limiter.freeze_some(&mut freezing, 1000, now).is_none() {}
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    go_on(bytes);
    if bytes.first() == Some(&b'{') {
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        let version = tidegate::release::IMAGE.rsplit(':').next().unwrap_or_default();
        let line = format!("tidegate-state-1 {version} {:016x}\n", hasher.finish());
        go_on(&[line.as_bytes(), bytes].concat());
    }
});
