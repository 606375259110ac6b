//! The state as bytes: a line that names the version and a checksum, then JSON.
//!
//! Whatever the bytes are, reading them gives a state or an error. A gate takes a time from it only
//! as far as its own limits go.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Stamp, State, StateError};
use crate::api::Key;
use crate::limit::snapshot::{FrozenKey, FrozenLimiter, FrozenPart, FrozenPause, Levels};

#[derive(Serialize, Deserialize)]
struct Text {
    boot: String,
    uptime_ms: Option<u64>,
    wall_ms: u64,
    is_last: bool,
    secret: [u64; 2],
    gates: BTreeMap<String, GateText>,
}

#[derive(Serialize, Deserialize)]
struct GateText {
    keys: Vec<KeyText>,
    pauses: Vec<PauseText>,
    buckets: Vec<BucketText>,
}

/// Object, collection and facet; failures and status; milliseconds to the trial, of the time that
/// the upstream named, and to oblivion.
#[derive(Serialize, Deserialize)]
struct KeyText([u64; 3], u32, Option<u16>, [u64; 3]);

/// The place, and the milliseconds that it has left and to which it has grown.
#[derive(Serialize, Deserialize)]
struct PauseText(PartText, u64, u64);

/// The place, the levels of the whole and of the parts, and the number of members.
#[derive(Serialize, Deserialize)]
struct BucketText(PartText, f64, Vec<(u64, f64)>, u32);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PartText {
    Gate,
    Retries,
    Class(String),
    Credential(u64),
    OtherCredentials,
}

/// Writes a state as bytes.
///
/// # Errors
/// A number cannot be written.
pub fn encode(state: &State) -> Result<Vec<u8>, StateError> {
    let body = serde_json::to_vec(&Text::from(state)).map_err(std::io::Error::from)?;
    let mut bytes = format!("{NAME} {VERSION} {:016x}\n", checksum(&body)).into_bytes();
    bytes.extend(body);
    Ok(bytes)
}

/// Reads a state from bytes.
///
/// # Errors
/// They are none, or of another version.
pub fn decode(bytes: &[u8]) -> Result<State, StateError> {
    let end = bytes.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n').ok_or(StateError::Foreign)?;
    let (line, body) = bytes.split_at(end);
    let mut words = std::str::from_utf8(line).unwrap_or_default().split(' ');
    let name = words.next();
    let version = words.next();
    let sum = words.next();
    let (Some(NAME), Some(version), Some(sum), None) = (name, version, sum, words.next()) else {
        return Err(StateError::Foreign);
    };
    if version != VERSION {
        return Err(StateError::OtherVersion(version.chars().filter(|c| c.is_ascii_graphic()).collect()));
    }
    let body = body.strip_prefix(b"\n").unwrap_or_default();
    if u64::from_str_radix(sum, 16).ok() != Some(checksum(body)) {
        return Err(StateError::Damaged);
    }
    let text: Text = serde_json::from_slice(body).map_err(|_| StateError::Damaged)?;
    Ok(text.into())
}

/// Returns a checksum against accidents. It also tells builds apart that hash differently.
fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Returns whole milliseconds, never less than the time.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

// === impl Text ===

impl From<&State> for Text {
    fn from(state: &State) -> Self {
        let Stamp { boot, uptime, wall } = state.stamp.clone();
        Self {
            boot,
            uptime_ms: uptime.map(millis),
            wall_ms: millis(wall),
            is_last: state.is_last,
            secret: state.secret,
            gates: state.gates.iter().map(|(name, gate)| (name.to_string(), gate.into())).collect(),
        }
    }
}

impl From<Text> for State {
    fn from(text: Text) -> Self {
        let Text { boot, uptime_ms, wall_ms, is_last, secret, gates } = text;
        let uptime = uptime_ms.map(Duration::from_millis);
        let wall = Duration::from_millis(wall_ms);
        let gates = gates.into_iter().map(|(name, gate)| (name.into(), gate.into())).collect();
        Self { stamp: Stamp { boot, uptime, wall }, is_last, secret, gates }
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
        let pause = |pause: &FrozenPause| PauseText((&pause.of).into(), millis(pause.left), millis(pause.grown));
        let bucket = |(place, levels): &(FrozenPart, Levels)| {
            BucketText(place.into(), levels.whole, levels.parts.clone(), levels.members)
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
        let pause = |PauseText(of, left, grown)| FrozenPause {
            of: of.into(),
            left: Duration::from_millis(left),
            grown: Duration::from_millis(grown),
        };
        let bucket = |BucketText(place, whole, parts, members)| (place.into(), Levels { whole, parts, members });
        Self {
            keys: text.keys.into_iter().map(key).collect(),
            pauses: text.pauses.into_iter().map(pause).collect(),
            buckets: text.buckets.into_iter().map(bucket).collect(),
        }
    }
}

// === impl PartText ===

impl From<&FrozenPart> for PartText {
    fn from(place: &FrozenPart) -> Self {
        match place {
            FrozenPart::Gate => Self::Gate,
            FrozenPart::Retries => Self::Retries,
            FrozenPart::Class(name) => Self::Class(name.to_string()),
            FrozenPart::Credential(who) => Self::Credential(*who),
            FrozenPart::OtherCredentials => Self::OtherCredentials,
        }
    }
}

impl From<PartText> for FrozenPart {
    fn from(text: PartText) -> Self {
        match text {
            PartText::Gate => Self::Gate,
            PartText::Retries => Self::Retries,
            PartText::Class(name) => Self::Class(name.into()),
            PartText::Credential(who) => Self::Credential(who),
            PartText::OtherCredentials => Self::OtherCredentials,
        }
    }
}

/// The first bytes of every state, of whatever version.
pub(super) const MARK: &[u8] = b"tidegate-state-";
const NAME: &str = "tidegate-state-1";
/// Another version may make other hashes of the same call.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const LONGEST_LINE: usize = 200;
