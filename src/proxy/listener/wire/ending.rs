//! Replaces the last chunk that hyper writes for a body.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::proxy::listener::stream::Stream;
use crate::proxy::stack::Sent;
use crate::upstream::{LAST_CHUNK, Trailing};

/// The replacement for a last chunk.
pub(super) enum Ending {
    /// Trailers end the body.
    Trailers(Box<Trailing>),
    /// Nothing: the rest of the body is written without hyper.
    Outlasts(Sent),
}

// === impl Ending ===

impl Ending {
    /// Passes on hyper's bytes, and replaces the last chunk among them.
    pub(super) fn poll_write(
        &mut self,
        to: Pin<&mut Box<dyn Stream>>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Trailers(trailing) => trailing.poll_write(to, cx, bufs),
            Self::Outlasts(_) => Poll::Ready(drop_last_chunk(bufs)),
        }
    }

    /// True if it is written, and everything that came with it.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Trailers(trailing) if trailing.is_over())
    }
}

/// Takes hyper's last chunk and drops it. hyper had written everything before.
fn drop_last_chunk(bufs: &[IoSlice<'_>]) -> io::Result<usize> {
    if !bufs.iter().flat_map(|buf| buf.iter()).eq(LAST_CHUNK) {
        return Err(io::Error::other("hyper writes something else than the end of a body"));
    }
    Ok(LAST_CHUNK.len())
}
