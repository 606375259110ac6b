//! A call as the search for loops sees it.

use crate::moment::Moment;

/// A call that was answered.
#[derive(Clone, Copy, derive_more::Debug)]
pub struct Seen<'a> {
    /// The object.
    pub object: u64,
    /// The part of the object, and what was done to it.
    pub facet: u64,
    /// True if it changes nothing.
    pub reads: bool,
    /// The moment at which it came.
    pub at: Moment,
    /// The number of its caller.
    pub caller: u64,
    /// The status that its caller got.
    pub status: u16,
    /// True if it was answered by the upstream.
    pub is_upstreams: bool,
    /// The kind of refusal that it got here, if it was refused here.
    pub refused: Option<Refused>,
    /// The digest of its body, if that was taken.
    pub body: Option<u64>,
    /// Its names.
    #[debug(skip)]
    pub names: &'a dyn Names,
}

/// The kinds of refusal that the search for loops tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its object was called too soon.
    TooSoon,
    /// Its key fails.
    Failing,
    /// A limit that it shares with others.
    Other,
}

/// The names of a call, made only for the few that need them.
pub trait Names {
    /// Returns the name of the object.
    fn object(&self) -> String;
    /// Returns the kind of the object, without any name.
    fn kind(&self) -> String;
    /// Returns the name of the caller.
    fn caller(&self) -> String;
    /// Returns the path of the object in its API; empty if that is not known.
    fn path(&self) -> String;
    /// Returns the verb.
    fn verb(&self) -> String;
    /// Returns the part of the object that is meant; empty if that is the whole.
    fn part(&self) -> String;
}
