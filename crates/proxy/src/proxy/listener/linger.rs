//! The end of a connection whose client may still be sending: it gets its answer (P10).
//!
//! Closed with bytes unread, TCP resets, and a Unix socket does the like: the client may lose the
//! answer that it has not read yet. So the connection is closed in one direction first (FIN, and
//! before it TLS's `close_notify`), and what still comes is read and discarded for a while, as Go's
//! net/http server waits `rstAvoidanceDelay` and nginx `lingering_time`.

use std::time::Duration;

use super::wire::WireHandle;

/// Discards what still comes until the client closes, falls silent, or takes too long. The sending
/// half is shut down by now.
pub(in crate::proxy) async fn linger(handle: &WireHandle) {
    let discarding = async {
        let mut room = vec![0; ROOM];
        while let Ok(true) = tokio::time::timeout(SILENCE, handle.discard(&mut room)).await {}
    };
    tokio::time::timeout(TOGETHER, discarding).await.ok();
}

/// A client that sends nothing for so long has noticed: Go's `rstAvoidanceDelay`.
const SILENCE: Duration = Duration::from_millis(500);
/// A client that sends on and on is cut off: it had as long to read the answer.
const TOGETHER: Duration = Duration::from_secs(5);
/// The bytes read at once: a TLS record.
const ROOM: usize = 16 << 10;
