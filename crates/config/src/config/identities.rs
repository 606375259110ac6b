//! Determines whether limits are separate for each client, credential, account or action.
//!
//! The limiter gets a call with one identity, one of these four. So all limits that apply to a
//! class must be separate by the same kind: its bucket and slots, the buckets of the classes it is
//! within and, unless it has `own_bucket_only`, the gate's.

use super::cursor::Cursor;
use crate::api::Scope;
use crate::classify::FairBy;
use crate::dialect::Dialect;
use crate::limit::Policy;
use crate::limit::policy::{BucketPolicy, ClassPolicy, InFlight, Lane, Per};

/// Returns the kind of identity with separate limits at the gate, such as clients. Also returns the
/// kind for each class, if classes differ in it.
pub(super) fn of(
    at: &Cursor<'_>,
    policy: &Policy,
    fair_by: FairBy,
    scope: Scope,
    (dialect, knows_clients): (Dialect, bool),
) -> (Option<Per>, Vec<Option<Per>>) {
    let split: Vec<Vec<Per>> = policy.classes.iter().map(|class| split_by(policy, class)).collect();
    for (class, by) in policy.classes.iter().zip(&split) {
        if by.iter().any(|per| Some(per) != by.first()) {
            at.problem(format!(
                "the limits of class {:?} have different `per` (client, credential, account, action), expected the same \
                 in its bucket, in those that it is within and in the gate's; to leave out the gate's, set own_bucket_only = true",
                class.name
            ));
        }
    }
    let needs_words = split.iter().flatten().any(|per| matches!(per, Per::Account | Per::Action))
        || matches!(fair_by, FairBy::Account | FairBy::Action);
    if needs_words && dialect == Dialect::Plain {
        let known = "\"aws\", \"azure\", \"google\" or \"github\"";
        at.at("dialect").key_problem(format!(
            "knows no accounts or actions, but limits are per account or action; expected {known}"
        ));
    }
    if !knows_clients && (fair_by == FairBy::Client || split.iter().flatten().any(|per| *per == Per::Client)) {
        report_unknown_clients(at);
    }
    let mut all = split.iter().flatten().copied();
    let only = all.next().filter(|first| all.all(|per| per == *first));
    let by_pause = (scope == Scope::Credential).then_some(Per::Credential);
    if only.is_some() || split.iter().all(Vec::is_empty) {
        return (only.or(by_pause), Vec::new());
    }
    (by_pause, split.iter().map(|by| by.first().copied()).collect())
}

/// Reports limits for each client at a gate without client authentication.
fn report_unknown_clients(at: &Cursor<'_>) {
    if at.has("hosts") {
        at.at("hosts").problem(
            "have limits with per = \"client\", but the egress listener does not authenticate its clients; expected [egress.clients] with \
             tokens = \"review\" or certificates = true, or \"credential\" in place of \"client\"",
        );
        return;
    }
    at.at("clients").missing(
        ", but limits have per = \"client\", and without it the gate does not authenticate its clients; expected [clients] with tokens = \"review\" or \
         certificates = true, or \"credential\" in place of \"client\"",
    );
}

/// Returns the kinds of identity with separate limits in a class, such as clients.
fn split_by(policy: &Policy, class: &ClassPolicy) -> Vec<Per> {
    if class.lane == Lane::Exempt {
        return Vec::new();
    }
    let bucket = |bucket: &Option<BucketPolicy>| bucket.map(|bucket| bucket.per);
    let slots = |slots: &Option<InFlight>| slots.map(|slots| slots.per);
    let within = policy.outward(class).map(|class| bucket(&class.bucket));
    let gate = if class.own_bucket_only { None } else { bucket(&policy.bucket) };
    let others = [gate, bucket(&policy.retry_bucket), slots(&policy.in_flight), slots(&class.in_flight)];
    within.chain(others).flatten().filter(|per| per.is_by_identity()).collect()
}
