//! The faults of bytes that are turned away.

/// A fault of the bytes that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// A chunk without a size, or one that does not end where it says.
    #[error("a chunk of the body is malformed")]
    Chunk,
    /// All clients together have more in large heads than there is room for.
    #[error("a large head came while there is no room for another")]
    Crowded,
    /// A control character.
    #[error("a head has a control character in it")]
    Control,
    /// `#` in the target.
    #[error("the request target has a fragment")]
    Fragment,
    /// More than one length, one that is not a number, or one beside `Transfer-Encoding`.
    #[error("the length of the body is not said once and clearly")]
    Length,
    /// A line that ends in a bare LF, or has a CR in it.
    #[error("a line does not end in CRLF")]
    LineEnd,
    /// A request line or header that is not formed as one.
    #[error("a line of the head is malformed")]
    Malformed,
    /// A head that does not come to its end in time.
    #[error("a head did not come to its end in time")]
    Slow,
    /// A line that never ends.
    #[error("a line of the head is too long")]
    TooLong,
}

// === impl Fault ===

impl Fault {
    /// Its word in metrics.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Chunk => "chunk",
            Self::Crowded => "crowded",
            Self::Control => "control",
            Self::Fragment => "fragment",
            Self::Length => "length",
            Self::LineEnd => "line_end",
            Self::Malformed => "malformed",
            Self::Slow => "slow",
            Self::TooLong => "too_long",
        }
    }
}
