//! A call of an object, as the search for loops sees it.

use crate::moment::Moment;

/// An answered call of an object.
#[derive(Clone, Copy, derive_more::Debug)]
pub struct ObjectCall<'a> {
    /// The hash of the object.
    pub object: u64,
    /// The hash of the operation on the object.
    pub facet: u64,
    /// True if the call changes nothing.
    pub reads: bool,
    /// The time of the call's arrival.
    pub at: Moment,
    /// The hash of the caller.
    pub caller: u64,
    /// The status the caller got.
    pub status: u16,
    /// True if the upstream answered the call, and not the gate.
    pub is_upstreams: bool,
    /// Why the gate refused the call, if it did.
    pub refused: Option<RefusalKind>,
    /// The digest of the body, if there is one.
    pub body: Option<u64>,
    /// Makes the readable names, on demand.
    #[debug(skip)]
    pub names: &'a dyn Fn() -> CallNames,
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
