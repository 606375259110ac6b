//! Faults of the input.

sentences! {
    /// A fault of the input.
    pub(crate) enum Fault {
        /// A chunk without a size, or with another end.
        Chunk = "chunk": "a chunk of the body is malformed",
        /// All clients together have more in large heads than there is room for.
        Crowded = "crowded": "a large head came while there is no room for another",
        /// A control character.
        Control = "control": "a head has a control character in it",
        /// `#` in the target.
        Fragment = "fragment": "the request target has a fragment",
        /// More than one length, one that is not a number, or one beside `Transfer-Encoding`.
        Length = "length": "the length of the body is not said once and clearly",
        /// A line with a bare LF at the end, or with a CR inside.
        LineEnd = "line_end": "a line does not end in CRLF",
        /// A request line or header that is not formed as one.
        Malformed = "malformed": "a line of the head is malformed",
        /// A head without its end in time.
        Slow = "slow": "a head did not come to its end in time",
        /// A head with too many bytes or lines; the request half answers it.
        TooLarge = "too_large": "the head is too large",
        /// A line without an end.
        TooLong = "too_long": "a line of the head is too long",
    }
}
