//! What can be wrong with the bytes a client sends.

sentences! {
    /// What is wrong with the bytes a client sends.
    pub(crate) enum Fault {
        /// A chunk has no size, or does not end as it should.
        Chunk = "chunk": "a chunk of the request's body is malformed",
        /// The large heads of all clients together take all the room there is.
        Crowded = "crowded": "the request's head is large, and the room for large heads is full; try again",
        /// There is a control character in a head.
        Control = "control": "the request's head has a control character in it",
        /// The target has a `#`.
        Fragment = "fragment": "the request target has a fragment (#)",
        /// There is more than one length, one that is not a number, or one beside
        /// `Transfer-Encoding`.
        Length = "length": "the length of the request's body is not given once and clearly",
        /// A line has a bare LF at the end, or a CR inside.
        LineEnd = "line_end": "a line of the request's head does not end in CRLF",
        /// A request line or header is malformed.
        Malformed = "malformed": "a line of the request's head is malformed",
        /// A head did not end in time.
        Slow = "slow": "the request's head did not come to its end in time",
        /// A head has too many bytes or lines; [`super::super::request`] answers it.
        TooLarge = "too_large": "the request's head is too large",
        /// A line does not end within the longest length of a head.
        TooLong = "too_long": "a line of the request's head is too long",
    }
}
