//! The state as bytes: a line with the version and a checksum, then JSON.
//!
//! Any bytes can be read without harm: the result is a state or an error. A gate limits the times
//! in a state to those it could have set itself.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Gates, ProcessState, StateError};
use crate::api::Key;
use crate::limit::quota::{QuotaId, ResourceId};
use crate::limit::snapshot::{FrozenKey, FrozenLimiter, FrozenPart, FrozenPause, Levels};

#[derive(Serialize, Deserialize)]
struct GateText {
    keys: Vec<KeyText>,
    pauses: Vec<PauseText>,
    buckets: Vec<BucketText>,
}

/// A failing key in JSON: hashes of object, collection and operation; number of failures and last
/// status; milliseconds until the key may be tried, until the retry time that the upstream named,
/// and until the key is forgotten.
#[derive(Serialize, Deserialize)]
struct KeyText([u64; 3], u32, Option<u16>, [u64; 3]);

/// A pause in JSON: the hashes of its credential and resource; its remaining milliseconds, and the
/// length to which repeated pauses have grown.
#[derive(Serialize, Deserialize)]
struct PauseText([u64; 2], u64, u64);

/// Buckets in JSON: whose buckets they are; the level of the common bucket, and the levels per flow
/// or credential; the number of gates that share it.
#[derive(Serialize, Deserialize)]
struct BucketText(#[serde(with = "PartText")] FrozenPart, f64, Vec<(u64, f64)>, u32);

#[derive(Serialize, Deserialize)]
#[serde(remote = "FrozenPart", rename_all = "snake_case")]
enum PartText {
    Gate,
    Retries,
    Class(Arc<str>),
}

/// Converts a state to bytes.
///
/// # Errors
/// A number cannot be written.
pub fn encode(state: &ProcessState) -> Result<Vec<u8>, StateError> {
    let body = serde_json::to_vec(state).map_err(std::io::Error::from)?;
    let mut bytes = format!("{NAME} {VERSION} {:016x}\n", checksum(&body)).into_bytes();
    bytes.extend(body);
    Ok(bytes)
}

/// Converts bytes to a state.
///
/// # Errors
/// They are not a state, or that of another version.
pub fn decode(bytes: &[u8]) -> Result<ProcessState, StateError> {
    let end = bytes.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n').ok_or(StateError::Foreign)?;
    let (line, body) = bytes.split_at(end);
    let words: Vec<&str> = std::str::from_utf8(line).unwrap_or_default().split(' ').collect();
    let [NAME, version, sum] = words[..] else { return Err(StateError::Foreign) };
    if version != VERSION {
        return Err(StateError::OtherVersion(version.chars().filter(|c| c.is_ascii_graphic()).collect()));
    }
    let body = body.strip_prefix(b"\n").unwrap_or_default();
    if u64::from_str_radix(sum, 16).ok() != Some(checksum(body)) {
        return Err(StateError::Damaged);
    }
    serde_json::from_slice(body).map_err(|_| StateError::Damaged)
}

/// Returns a checksum that detects accidental changes. Builds with another standard hash function
/// compute another one.
fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Returns whole milliseconds, rounded up.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Writes the gates of a state as JSON, and reads them.
pub(super) mod gates {
    use super::*;

    pub(in crate::state) fn serialize<S: Serializer>(gates: &Gates, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(gates.iter().map(|(name, gate)| (name, GateText::from(gate))))
    }

    pub(in crate::state) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Gates, D::Error> {
        let gates = BTreeMap::<Arc<str>, GateText>::deserialize(deserializer)?;
        Ok(gates.into_iter().map(|(name, gate)| (name, gate.into())).collect())
    }
}

// === impl GateText ===

impl From<&FrozenLimiter> for GateText {
    fn from(frozen: &FrozenLimiter) -> Self {
        let key = |frozen: &FrozenKey| {
            let Key { object, collection, facet } = frozen.key;
            let times = [frozen.ready, frozen.named, frozen.forget].map(millis);
            KeyText([object, collection, facet], frozen.failures, frozen.status, times)
        };
        let pause = |pause: &FrozenPause| {
            let QuotaId { holder, resource: ResourceId(resource) } = pause.quota;
            PauseText([holder, resource], millis(pause.left), millis(pause.grown))
        };
        let bucket = |(part, levels): &(FrozenPart, Levels)| {
            BucketText(part.clone(), levels.whole, levels.parts.clone(), levels.members)
        };
        Self {
            keys: frozen.keys.iter().map(key).collect(),
            pauses: frozen.pauses.iter().map(pause).collect(),
            buckets: frozen.buckets.iter().map(bucket).collect(),
        }
    }
}

impl From<GateText> for FrozenLimiter {
    fn from(text: GateText) -> Self {
        let key = |KeyText([object, collection, facet], failures, status, times): KeyText| {
            let [ready, named, forget] = times.map(Duration::from_millis);
            let key = Key { object, collection, facet };
            FrozenKey { key, name: Box::default(), failures, status, ready, named, forget }
        };
        let pause = |PauseText([holder, resource], left, grown)| FrozenPause {
            quota: QuotaId { holder, resource: ResourceId(resource) },
            left: Duration::from_millis(left),
            grown: Duration::from_millis(grown),
        };
        let bucket = |BucketText(part, whole, parts, members)| (part, Levels { whole, parts, members });
        Self {
            keys: text.keys.into_iter().map(key).collect(),
            pauses: text.pauses.into_iter().map(pause).collect(),
            buckets: text.buckets.into_iter().map(bucket).collect(),
        }
    }
}

/// The first bytes of every state file, in every version.
pub(super) const MARK: &[u8] = b"tidegate-state-";
const NAME: &str = "tidegate-state-1";
/// The version written into a state. Another version may compute other hashes for the same call.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const LONGEST_LINE: usize = 200;
