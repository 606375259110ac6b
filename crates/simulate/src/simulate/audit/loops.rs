//! The loops of a log, found by the rules that a gate has for its own traffic.

use std::hash::{BuildHasher as _, Hash, RandomState};
use std::time::Duration;

use super::callers::Callers;
use crate::api::Verb;
use crate::hot::{Act, CallNames, Detector, FoundLoop, News, ObjectCall, Proof};
use crate::simulate::replay::{CallEnd, Record};

/// The objects of a log that a controller may be writing in a loop.
#[derive(Debug)]
pub(super) struct Loops {
    hasher: RandomState,
    detector: Detector,
    /// The loops that ended before the log.
    ended: Vec<FoundLoop>,
    /// The minute of the last call.
    minute: u64,
}

// === impl Loops ===

impl Loops {
    /// Counts a call of a caller.
    pub(super) fn count(&mut self, record: &Record, caller: usize, callers: &Callers) {
        let request = &record.request;
        let CallEnd::Answered { status, .. } = record.ending else { return };
        if request.resource == "leases" || request.dry_run {
            return;
        }
        let act = Act::of(request.verb, &request.resource);
        let kind = [&request.group, &request.resource, &request.subresource];
        let collection = self.hash((kind, &request.namespace));
        // A gate's log has a hash in place of the name. What is there or gone has one.
        let key = record.hashes.key.map(|key| key.object);
        let is_named = key.is_some() || !record.object.name.is_empty() || !matches!(status, 404 | 409);
        let call = ObjectCall {
            object: if is_named { self.hash((collection, key, &record.object.name)) } else { collection },
            collection,
            kind: self.hash(kind),
            facet: if act == Act::Write { Verb::Update } else { request.verb } as u64,
            act,
            at: record.at,
            caller: caller as u64,
            status,
            is_upstreams: true,
            content: record.object.content,
            ..ObjectCall::default()
        };
        if let Some(News::Ended(ended)) = self.detector.count(&call, &|| names(record, callers.name(caller))) {
            self.ended.push(ended);
        }
        let minute = record.at.since_start().as_secs() / 60;
        if self.minute != minute {
            self.minute = minute;
            self.ended.extend(self.detector.tick(record.at));
            self.ended.truncate(MOST_ENDED);
        }
    }

    /// Returns the loops, those with the most calls first.
    pub(super) fn found(self) -> Vec<FoundLoop> {
        let mut found = self.detector.found();
        found.extend(self.detector.denied().chain(self.ended));
        for found in &mut found {
            found.names.object = found.names.object.trim_matches('/').into();
        }
        found.sort_by(|one, other| other.calls.cmp(&one.calls).then_with(|| one.names.object.cmp(&other.names.object)));
        found
    }

    fn hash(&self, parts: impl Hash) -> u64 {
        self.hasher.hash_one(parts)
    }
}

impl Default for Loops {
    fn default() -> Self {
        let (hasher, detector) = (RandomState::new(), Detector::new(PROOF, MOST));
        Self { hasher, detector, ended: Vec::new(), minute: 0 }
    }
}

/// Returns the names in a recorded call. A gate's log has a hash in place of the object's.
fn names(record: &Record, caller: &str) -> CallNames {
    let request = &record.request;
    let name = match record.hashes.key {
        Some(key) if record.object.name.is_empty() => format!("{:016x}", key.object),
        _ => record.object.name.to_string(),
    };
    let kind = [&*request.group, &request.resource, &request.subresource];
    CallNames {
        object: format!("{}/{name}", request.namespace).into(),
        kind: kind.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/").into(),
        caller: caller.into(),
        verb: request.verb.word().into(),
        ..CallNames::default()
    }
}

/// The proof of a loop: ten minutes of a log are enough.
const PROOF: Proof = Proof { calls: 10, lasts: Duration::ZERO, flood_lasts: Duration::ZERO };
/// The most objects to know.
const MOST: usize = 30_000;
/// The most loops to keep that ended before the log.
const MOST_ENDED: usize = 5000;
