//! A call of an object, for the search for loops.

use crate::moment::Moment;

/// An answered call.
#[derive(Clone, Copy, derive_more::Debug)]
pub struct ObjectCall<'a> {
    /// The object.
    pub object: u64,
    /// The part of the object, and the operation.
    pub facet: u64,
    /// True if it changes nothing.
    pub reads: bool,
    /// The moment of its arrival.
    pub at: Moment,
    /// The number of its caller.
    pub caller: u64,
    /// The status for its caller.
    pub status: u16,
    /// True if the upstream answered it.
    pub is_upstreams: bool,
    /// The kind of the gate's refusal, if it refused the call.
    pub refused: Option<RefusalKind>,
    /// The digest of its body, if there is one.
    pub body: Option<u64>,
    /// Makes its names, on demand.
    #[debug(skip)]
    pub names: &'a dyn Fn() -> CallNames,
}

/// A kind of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// Its object was called too soon.
    TooSoon,
    /// Its key fails.
    Failing,
    /// Another limit.
    Other,
}

/// The names in a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallNames {
    /// The object.
    pub object: Box<str>,
    /// The object's kind.
    pub kind: Box<str>,
    /// The object's path in its API, or empty.
    pub path: Box<str>,
    /// The caller.
    pub caller: Box<str>,
    /// The verb.
    pub verb: Box<str>,
    /// The part of the object; empty for the whole.
    pub part: Box<str>,
}
