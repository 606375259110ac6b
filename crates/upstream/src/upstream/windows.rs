//! Flow-control windows: bounds on the unread responses of all HTTP/2 connections together.
//!
//! A stream's window is filled whether its client reads or not, and its bytes are held here. The
//! first connection for short calls has large windows; it is the only one until a hundred calls are
//! under way at once. More connections have smaller windows, down to one frame for each stream, so
//! that every response can always go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::api::Group;

/// The sum of the flow-control windows of all connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows(Arc<AtomicU32>);

/// The windows of one connection, given back when dropped.
#[derive(Debug)]
pub(super) struct Window {
    windows: Windows,
    /// The HTTP/2 flow-control window of the connection. All of its streams can stall without
    /// blocking each other.
    pub(super) connection: u32,
}

impl Windows {
    /// Takes windows for a new connection: half of what is left of [`TOGETHER`] or, once there are
    /// large windows, an eighth. A connection for exempt calls gets at most [`EXEMPT`]: it often
    /// comes first, and its responses are short.
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
    /// Returns the HTTP/2 window of each stream: a stalled client holds up one stream.
    pub(super) fn stream(&self) -> u32 {
        self.connection / STREAMS
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.windows.0.fetch_sub(self.connection, Ordering::Relaxed);
    }
}

/// The most streams on one connection, however many the server allows (kube-apiserver allows 100):
/// its HTTP/2 window has no room for more.
pub(super) const STREAMS: u32 = 128;
/// The largest HTTP/2 window of a connection: 256 KiB for each stream. kube-apiserver uses the
/// same.
const MOST: u32 = STREAMS * (256 << 10);
/// The smallest HTTP/2 window of a connection: 16 KiB for each stream, one frame.
const LEAST: u32 = STREAMS * (16 << 10);
/// The HTTP/2 window of a connection for exempt calls: 64 KiB for each stream.
const EXEMPT: u32 = STREAMS * (64 << 10);
/// The sum of all windows; past this each connection has the smallest.
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
