//! A call of an object, as the search for loops sees it.

use crate::api::Verb;
use crate::moment::Moment;

/// An answered call of an object.
#[derive(Clone, Copy, Debug, Default)]
pub struct ObjectCall {
    /// The hash of the object; that of its collection for a new object without a name.
    pub object: u64,
    /// The hash of the object's collection.
    pub collection: u64,
    /// The hash of what objects of one kind have in common.
    pub kind: u64,
    /// The hash of the operation on the object.
    pub facet: u64,
    /// What the call does.
    pub act: Act,
    /// The time of the call's arrival.
    pub at: Moment,
    /// The hash of the caller.
    pub caller: u64,
    /// The status the caller got.
    pub status: u16,
    /// True if the upstream answered the call, and not the gate.
    pub is_upstreams: bool,
    /// True if the call is judged only after its answer was read.
    pub is_judged_later: bool,
    /// Why the gate refused the call, if it did.
    pub refused: Option<RefusalKind>,
    /// What is known of the object's content.
    pub content: Content,
}

/// Hashes of what a write sent and got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The version that the write was based on.
    pub base: Option<u64>,
    /// The version in the answer.
    pub version: Option<u64>,
    /// The object that was sent, without its version.
    pub body: Option<u64>,
    /// The same without times.
    pub timeless: Option<u64>,
}

/// What a call does to its object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Act {
    /// It changes nothing.
    Read,
    /// It creates an object.
    Create,
    /// It creates an Event.
    CreateEvent,
    /// It deletes an object.
    Delete,
    /// It updates or patches an object.
    Write,
    /// Another change, or a write that is repeated by design.
    #[default]
    Other,
}

/// Why the gate refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The object was called too soon.
    TooSoon,
    /// The call's key fails.
    Failing,
    /// Another limit refused the call.
    Other,
}

/// The readable names in a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallNames {
    /// The name of the object.
    pub object: Box<str>,
    /// The object's kind.
    pub kind: Box<str>,
    /// The object's path in its API, or empty.
    pub path: Box<str>,
    /// The name of the caller.
    pub caller: Box<str>,
    /// The verb of the call.
    pub verb: Box<str>,
    /// The subresource or other part of the object; empty for the whole.
    pub part: Box<str>,
}

// === impl ObjectCall ===

impl ObjectCall {
    /// Returns the hash for counting writes of the object, or of a part of it.
    pub(super) fn written(&self) -> u64 {
        written(self.object, self.facet)
    }

    /// Returns the hash of `what` with the operation and the caller.
    pub(super) fn by_caller(&self, what: u64) -> u64 {
        written(what, self.facet) ^ self.caller.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns true if the name of the object is known.
    pub(super) fn is_named(&self) -> bool {
        self.object != self.collection
    }
}

/// Returns the hash for counting writes of an object, or of a part of it.
#[inline]
pub(super) fn written(object: u64, facet: u64) -> u64 {
    object ^ facet.rotate_left(17)
}

// === impl Act ===

impl Act {
    /// Returns what a verb does to a Kubernetes resource. A lease is written every few seconds by
    /// design.
    pub fn of(verb: Verb, resource: &str) -> Self {
        match verb {
            _ if verb.is_read() => Self::Read,
            _ if resource == "leases" => Self::Other,
            Verb::Create if resource == "events" => Self::CreateEvent,
            Verb::Create => Self::Create,
            Verb::Delete => Self::Delete,
            Verb::Update | Verb::Patch => Self::Write,
            _ => Self::Other,
        }
    }
}

// === impl CallNames ===

impl CallNames {
    /// Returns the names without that of the single object.
    pub(super) fn of_all(self) -> Self {
        let place = self.object.rsplit_once('/').map_or(&*self.kind, |(place, _)| place);
        Self { object: place.into(), path: Box::default(), part: Box::default(), ..self }
    }
}
