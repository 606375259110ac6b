//! Flow-control windows: they limit the memory for unread responses on all HTTP/2 connections
//! together.
//!
//! The upstream fills a stream's window even if the client does not read, and the bytes are held
//! here. The first connection for short calls has large windows. A second one is made only for more
//! than a hundred concurrent calls; further connections have smaller windows, down to one frame for
//! each stream, so that every response can always continue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::api::Group;

/// The sum of the flow-control windows of all connections, in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows(Arc<AtomicU32>);

/// The flow-control windows of one connection. Dropping it returns them to the sum.
#[derive(Debug)]
pub(super) struct Window {
    windows: Windows,
    /// The HTTP/2 flow-control window of the connection, in bytes. It is so large that all of its
    /// streams can stall without blocking each other.
    pub(super) connection: u32,
}

impl Windows {
    /// Reserves windows for a new connection: half of what remains of [`TOGETHER`] or, once a
    /// connection has large windows, an eighth.
    ///
    /// A connection for exempt calls gets at most [`EXEMPT`]: it is often made first, and its
    /// responses are short.
    pub(super) fn open(&self, group: Group) -> Window {
        let taken = self.0.load(Ordering::Relaxed);
        let part = TOGETHER.saturating_sub(taken) / if taken < MOST { 2 } else { 8 };
        let most = if group == Group::Exempt { EXEMPT } else { MOST };
        let connection = (part / LEAST).clamp(1, most / LEAST) * LEAST;
        self.0.fetch_add(connection, Ordering::Relaxed);
        Window { windows: self.clone(), connection }
    }
}

impl Window {
    /// Returns the HTTP/2 window of each stream, in bytes. With it, a stalled client blocks only
    /// its own stream.
    pub(super) fn stream(&self) -> u32 {
        self.connection / STREAMS
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.windows.0.fetch_sub(self.connection, Ordering::Relaxed);
    }
}

/// The most streams on one connection, even if the server allows more. kube-apiserver allows 100;
/// the connection's window has no room for more.
pub(super) const STREAMS: u32 = 128;
/// The largest HTTP/2 window of a connection: 256 KiB for each stream, as in kube-apiserver.
const MOST: u32 = STREAMS * (256 << 10);
/// The smallest HTTP/2 window of a connection: 16 KiB, one frame, for each stream.
const LEAST: u32 = STREAMS * (16 << 10);
/// The largest HTTP/2 window of a connection for exempt calls: 64 KiB for each stream.
const EXEMPT: u32 = STREAMS * (64 << 10);
/// The intended sum of all windows. Beyond it, each further connection gets the smallest window.
const TOGETHER: u32 = 72 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_connection_has_the_usual_windows_and_many_have_little_more_together() {
        let windows = Windows::default();
        let mut all = vec![windows.open(Group::Exempt)];
        all.extend((0..8).map(|_| windows.open(Group::Short)));
        let streams: Vec<_> = all.iter().map(|window| window.stream() >> 10).collect();
        assert_eq!(streams, [64, 256, 32, 16, 16, 16, 16, 16, 16]);
        assert!(windows.0.load(Ordering::Relaxed) <= TOGETHER + 4 * LEAST);
        all.clear();
        assert_eq!(windows.open(Group::LongRunning).connection, MOST);
    }
}
