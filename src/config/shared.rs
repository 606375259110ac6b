//! Reads how a bucket is shared with other gates.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::cursor::Cursor;
use super::values::OrAuto;
use crate::limit::SharedLimits;
use crate::limit::policy::{BucketPolicy, Per, SharedId, SharedPolicy};
use crate::spec::Settings;

/// Reads `shared` in the table of a bucket.
pub(super) fn shared(bucket_at: &Cursor<'_>, bucket: Option<&BucketPolicy>) -> Option<SharedPolicy> {
    let at = bucket_at.table_or_text("shared");
    let name = at.name_or_text("name");
    let weight = at.get("weight", NonZeroU32::MIN);
    let OrAuto(lease) = at.get("lease", OrAuto(None));
    if !at.is_present() {
        return None;
    }
    let (name, bucket) = (name?, bucket?);
    check_name(&name, &at);
    if weight.get() > HEAVIEST {
        at.at("weight").problem(format!("is {weight}, expected a whole number from 1 to {HEAVIEST}"));
    }
    if let Some(lease) = lease.filter(|lease| !LEASES.contains(lease)) {
        at.at("lease").problem(format!("is {lease:?}, expected \"auto\" or a duration from 100ms to 1m"));
    }
    let shared = SharedPolicy { weight, lease, ..SharedPolicy::new(&name) };
    check_bucket(bucket_at, bucket, &shared);
    Some(shared)
}

/// Reads `shared` where a bucket cannot be shared.
pub(super) fn not_shared(bucket_at: &Cursor<'_>, bucket: Option<&BucketPolicy>) {
    if shared(bucket_at, bucket).is_some() {
        let message = "is for the gate's bucket and those of classes; each gate meters its own retries";
        bucket_at.at("shared").key_problem(message);
    }
}

fn check_name(name: &str, at: &Cursor<'_>) {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
    if !(1..=LONGEST_NAME).contains(&name.len()) || !name.bytes().all(fits) {
        let named = if at.is_table() { at.at("name") } else { at.clone() };
        named.problem(format!(
            "is {name:?}, expected a name of 1 to {LONGEST_NAME} lower-case letters, digits, \"_\" and \"-\""
        ));
    }
}

/// Checks what a bucket that is shared can be.
fn check_bucket(at: &Cursor<'_>, bucket: &BucketPolicy, shared: &SharedPolicy) {
    if bucket.per != Per::Gate {
        let message = format!("is {:?}, but a shared bucket is one for all: expected \"gate\"", bucket.per.word());
        at.at("per").problem(message);
    }
    if at.has("start") {
        at.at("start").key_problem("has no effect: a shared bucket is empty when it is new, and filled by time alone");
    }
    if bucket.rate > FASTEST {
        at.at("rate").problem(format!("is {:?}, expected at most {FASTEST:?} for a shared bucket", bucket.rate));
        return;
    }
    let (terms, burst) = (SharedLimits::new(bucket, shared), f64::from(bucket.burst.get()));
    if terms.bound() > burst + 0.01 {
        at.at("burst").warn(format!(
            "is {burst}, less than 1 + rate * lease: all gates together may send {:.1} at once",
            terms.bound()
        ));
    } else if burst < bucket.rate / 2.0 {
        let least = (bucket.rate / 2.0).ceil();
        at.at("burst").warn(format!(
            "is {burst}, less than half of the rate, so that there is little to lend and crowds wait for a round trip; \
             expected {least} or more"
        ));
    }
}

/// Checks that all buckets of one name have the same limits.
pub(super) fn check_together(settings: &Settings, root: &Cursor<'_>) {
    let mut seen: BTreeMap<Arc<str>, (f64, NonZeroU32, String)> = BTreeMap::new();
    let mut of_gates = BTreeSet::new();
    for (gate, settings) in &settings.gates {
        let at = root.at("gates").at(gate);
        let policy = &settings.policy;
        let of_class = |class: &Arc<str>| {
            let all = at.at("classes");
            let mut items = (0..policy.classes.len()).map(|index| all.item(index));
            items.find(|item| item.text("name") == Some(class)).unwrap_or(all.clone()).at("bucket")
        };
        let classes = policy.classes.iter().map(|class| (class.bucket, of_class(&class.name)));
        for (bucket, at) in [(policy.bucket, at.at("bucket"))].into_iter().chain(classes) {
            let Some((bucket, SharedId(id))) = bucket.and_then(|bucket| Some((bucket, bucket.shared?))) else {
                continue;
            };
            let Some(shared) = policy.shared.get(usize::from(id)) else { continue };
            if !of_gates.insert((gate, &shared.name)) {
                at.at("shared").problem(format!(
                    "is {:?}, which another bucket of this gate is: a call would spend twice; expected another name",
                    shared.name
                ));
            }
            let first =
                seen.entry(Arc::clone(&shared.name)).or_insert((bucket.rate, bucket.burst, at.path.to_string()));
            if (first.0, first.1) != (bucket.rate, bucket.burst) {
                at.at("shared").problem(format!(
                    "is {:?}, which {} shares with other limits ({}/s burst {}); expected the same rate and burst, \
                     or another name",
                    shared.name, first.2, first.0, first.1
                ));
            }
        }
    }
}

/// The largest weight.
const HEAVIEST: u32 = 100;
const LEASES: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);
const LONGEST_NAME: usize = 64;
/// The fastest shared bucket: its time per token is kept in quarters of a microsecond.
const FASTEST: f64 = 10_000.0;
