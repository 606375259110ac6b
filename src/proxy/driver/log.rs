//! The log's lines about keys: one when a key begins to fail, one when it does not any more.

use crate::api::Answer;
use crate::limit::Ended;
use crate::limit::refusal::Why;

pub(super) fn began(gate: &str, key: &str, answer: Answer) {
    tracing::info!(gate, key, status = answer.status, "key is backing off");
}

pub(super) fn ended(gate: &str, ended: &Ended) {
    let key = &*ended.name;
    match ended.why {
        Why::Crowded => tracing::warn!(gate, key, "key forgotten: more are failing than backoff.max_keys"),
        Why::Gone => tracing::info!(gate, key, "key forgotten: its object is gone"),
        Why::Old => tracing::info!(gate, key, "key forgotten: it has not failed for backoff.forget_after"),
        Why::Recovered => tracing::info!(gate, key, "key has recovered"),
    }
}
