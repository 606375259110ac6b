//! A line of the call log, parsed. Each call has only the fields applicable to it. Calls in other
//! logs are read as such lines (`document`).

mod document;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;

use crate::api::{Key, Verb};
use crate::hot::Content;
use crate::limit::Reason;
use crate::status::text::cut;

/// A line of the call log.
#[derive(Debug, Default, Deserialize)]
pub(super) struct LogEntry {
    pub(super) arrived_ns: u64,
    pub(super) wall_ms: u64,
    door_ns: Option<u64>,
    pub(super) gate: String,
    pub(super) class: String,
    flow: Option<String>,
    verb: String,
    pub(super) group: Option<String>,
    pub(super) resource: Option<String>,
    pub(super) subresource: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) user_agent: Option<String>,
    pub(super) client: Option<String>,
    credential: Option<String>,
    pub(super) long_running: Option<bool>,
    pub(super) dry_run: Option<bool>,
    pub(super) timeout_ns: Option<u64>,
    key: Option<String>,
    collection: Option<String>,
    facet: Option<String>,
    pub(super) waited_ns: Option<u64>,
    waited_for: Option<String>,
    pub(super) sent_ns: Option<u64>,
    upstream_ns: Option<u64>,
    status: Option<u16>,
    refused: Option<String>,
    retry_after_ns: Option<u64>,
    body_ns: Option<u64>,
    gave_up_ns: Option<u64>,
    /// In an audit log only.
    #[serde(skip)]
    pub(super) object: ObjectFacts,
}

/// A JSON value of a log.
#[derive(Debug)]
pub(super) enum Contents {
    Call(Box<LogEntry>),
    /// An audit event before the end of its call.
    OtherStage,
    /// An entry of a log without calls.
    OtherLog,
}

/// An object in an audit event: its name, and what two calls are compared by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::simulate) struct ObjectFacts {
    pub(in crate::simulate) name: Rc<str>,
    pub(in crate::simulate) content: Content,
}

/// How a recorded call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulate) enum CallEnd {
    /// The upstream responded; `after` is the time since the call was sent.
    Answered { after: Duration, body: Duration, status: u16, retry_after: Option<Duration> },
    /// The call was sent, but no response came.
    Lost,
    /// The gate refused the call.
    Refused(Reason),
    /// The client hung up; `after` is the time since the call reached the limiter.
    GaveUp { after: Duration },
    /// The call never reached the limiter, or got a response without being sent.
    NotReplayed,
}

/// The hashes in a line. They can be compared only with those of the same process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::simulate) struct Hashes {
    pub(in crate::simulate) key: Option<Key>,
    pub(super) flow: u64,
    pub(super) credential: u64,
}

// === impl LogEntry ===

impl LogEntry {
    /// Reads a JSON value of a log.
    pub(super) fn read(text: &[u8]) -> Result<Contents, String> {
        Self::read_nested(text, 0)?.ok_or_else(|| UNKNOWN.to_owned())
    }

    /// Reads a value within so many envelopes; `None` if it is of an unknown kind.
    fn read_nested(text: &[u8], nested: u8) -> Result<Option<Contents>, String> {
        if text.starts_with(FIRST_FIELD) {
            return serde_json::from_slice(text).map(Contents::call).map(Some).map_err(|error| error.to_string());
        }
        let other = document::read(text, nested)?;
        Ok(other.or_else(|| serde_json::from_slice(text).map(Contents::call).ok()))
    }

    /// Returns true if the caller is this user, or this program with or without its version.
    pub(super) fn is_of(&self, caller: &str) -> bool {
        let agent = self.user_agent.as_deref().unwrap_or_default();
        let program = agent.split('/').next().unwrap_or_default();
        [agent, program, self.client.as_deref().unwrap_or_default()].contains(&caller)
    }

    /// Returns the main reason for the call's wait.
    pub(super) fn waited_for(&self) -> Option<Reason> {
        Reason::named(self.waited_for.as_deref()?)
    }

    pub(super) fn verb(&self) -> Verb {
        Verb::named(&self.verb).unwrap_or(Verb::Other)
    }

    /// Returns how the call ended.
    pub(super) fn ending(&self) -> CallEnd {
        if let Some(word) = &self.refused {
            return Reason::named(word).map_or(CallEnd::NotReplayed, CallEnd::Refused);
        }
        match (self.sent_ns, self.upstream_ns, self.status, self.gave_up_ns) {
            (Some(_), Some(after), Some(status), _) => CallEnd::Answered {
                after: Duration::from_nanos(after),
                body: Duration::from_nanos(self.body_ns.unwrap_or(0)),
                status,
                retry_after: self.retry_after_ns.map(Duration::from_nanos),
            },
            (Some(_), None, Some(_), _) => CallEnd::Lost,
            (_, _, None, Some(after)) => {
                let at = self.arrived_ns.saturating_add(after);
                CallEnd::GaveUp { after: Duration::from_nanos(at.saturating_sub(self.decided_ns())) }
            }
            (_, _, None, None) | (None, _, Some(_), _) => CallEnd::NotReplayed,
        }
    }

    /// Returns when the call reached the limiter, in nanoseconds on the clock of its process.
    pub(super) fn decided_ns(&self) -> u64 {
        self.door_ns.unwrap_or(self.arrived_ns)
    }

    pub(super) fn hashes(&self) -> Hashes {
        let hash = |text: &Option<String>| text.as_ref().and_then(|text| u64::from_str_radix(text, 16).ok());
        let [flow, credential, collection, facet] =
            [&self.flow, &self.credential, &self.collection, &self.facet].map(|text| hash(text).unwrap_or(0));
        let key = hash(&self.key).map(|object| Key { object, collection, facet });
        Hashes { key, flow, credential }
    }
}

// === impl Contents ===

impl Contents {
    fn call(entry: LogEntry) -> Self {
        Self::Call(Box::new(entry))
    }
}

/// Returns a name that takes little memory, whatever a caller sends as one: a long one has a hash in
/// place of its end.
pub(super) fn shortened(name: String) -> String {
    if name.len() <= LONGEST_NAME {
        return name;
    }
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    format!("{}{:016x}", cut(&name, KEPT, '~'), hasher.finish())
}

/// The longest name to keep as it is, in bytes, and what is kept of others, in characters.
const LONGEST_NAME: usize = 256;
const KEPT: usize = 64;
/// The beginning of a line of a gate's call log.
const FIRST_FIELD: &[u8] = b"{\"arrived_ns\":";
const UNKNOWN: &str = "JSON of an unknown kind";

#[cfg(test)]
mod tests;
