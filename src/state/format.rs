//! The state as bytes: a line with the version and a checksum, then JSON.
//!
//! Any bytes give a state or an error. A gate accepts times from it only up to its own limits.

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

/// A failing key as written: object, collection and operation (as hashes); failures and status;
/// milliseconds until the key may be tried, until the time that the upstream named, and until it is
/// forgotten.
#[derive(Serialize, Deserialize)]
struct KeyText([u64; 3], u32, Option<u16>, [u64; 3]);

/// Holder and resource, and the milliseconds left and grown.
#[derive(Serialize, Deserialize)]
struct PauseText([u64; 2], u64, u64);

/// Buckets as written: the part of the gate, the level of the common bucket and of those per flow
/// or credential, and the number of gates that share it.
#[derive(Serialize, Deserialize)]
struct BucketText(#[serde(with = "PartText")] FrozenPart, f64, Vec<(u64, f64)>, u32);

#[derive(Serialize, Deserialize)]
#[serde(remote = "FrozenPart", rename_all = "snake_case")]
enum PartText {
    Gate,
    Retries,
    Class(Arc<str>),
}

/// Writes a state as bytes.
///
/// # Errors
/// A number cannot be written.
pub fn encode(state: &ProcessState) -> Result<Vec<u8>, StateError> {
    let body = serde_json::to_vec(state).map_err(std::io::Error::from)?;
    let mut bytes = format!("{NAME} {VERSION} {:016x}\n", checksum(&body)).into_bytes();
    bytes.extend(body);
    Ok(bytes)
}

/// Reads a state from bytes.
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

/// Returns a checksum against accidents. Builds with other hash functions fail it, too.
fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Returns whole milliseconds, rounded up.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Writes and reads the gates of a state.
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
            FrozenKey { key: Key { object, collection, facet }, failures, status, ready, named, forget }
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

/// The first bytes of every state, of whatever version.
pub(super) const MARK: &[u8] = b"tidegate-state-";
const NAME: &str = "tidegate-state-1";
/// The version written with a state: another may make other hashes of the same call.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const LONGEST_LINE: usize = 200;
