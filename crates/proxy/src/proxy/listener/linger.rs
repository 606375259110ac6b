//! Lingering: a client gets its answer before the connection ends, even while it still sends (P10).
//!
//! A socket that is closed with bytes unread is reset, and the client may lose the answer. So the
//! connection is closed in one direction first (FIN, and before it TLS's `close_notify`), and
//! whatever still comes is discarded for a while. Go's net/http server does so for
//! `rstAvoidanceDelay`, nginx for `lingering_time`.

use std::time::Duration;

use super::wire::WireHandle;

/// Discards the client's further bytes until it closes the connection, sends nothing for a while,
/// or takes too long. The writing half must be shut down before.
pub(super) async fn linger(handle: &WireHandle) {
    let discarding = async {
        let mut room = vec![0; ROOM];
        while let Ok(true) = tokio::time::timeout(SILENCE, handle.discard(&mut room)).await {}
    };
    tokio::time::timeout(TOGETHER, discarding).await.ok();
}

/// The longest silence of a client before it is cut off: Go's `rstAvoidanceDelay`.
const SILENCE: Duration = Duration::from_millis(500);
/// The longest time for lingering in all: the client had as long to read the answer.
const TOGETHER: Duration = Duration::from_secs(5);
/// The bytes read at once: a TLS record.
const ROOM: usize = 16 << 10;
