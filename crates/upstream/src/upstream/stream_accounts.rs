//! The accounts of one group: its connections, the free streams of each, and how much room that is.
//!
//! Pure, so that it can be tested as such. Every operation returns the change of the room that the
//! limiter counts on; the sum of these changes, less the limiter's own grants, is at every moment
//! the number of free streams. An HTTP/1.1 connection is one with a single stream.

use std::time::Duration;

use super::Occupancy;
use crate::moment::Moment;

/// The connections of one group. A stream is opened with an `H`.
#[derive(Debug)]
pub(super) struct StreamAccounts<H> {
    connections: Vec<Connection<H>>,
    next: u64,
}

/// The name of one connection; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionId(u64);

/// One live connection.
#[derive(Debug)]
struct Connection<H> {
    id: ConnectionId,
    handle: H,
    limit: usize,
    used: usize,
    idle_since: Moment,
    expires: Moment,
}

impl<H> Default for StreamAccounts<H> {
    fn default() -> Self {
        Self { connections: Vec::new(), next: 0 }
    }
}

impl<H> StreamAccounts<H> {
    /// Enters a connection that came up. `handle` makes what its streams are opened with.
    pub(super) fn add(
        &mut self,
        limit: usize,
        now: Moment,
        expires: Moment,
        handle: impl FnOnce(ConnectionId) -> H,
    ) -> (ConnectionId, i64) {
        let id = ConnectionId(self.next);
        self.next += 1;
        self.connections.push(Connection { id, handle: handle(id), limit, used: 0, idle_since: now, expires });
        (id, count(limit))
    }

    /// Opens a stream on the most loaded connection that has one free, so that spare ones can idle
    /// out; among idle ones on the freshest, which the far side is least likely to be closing just
    /// now. `granted` says that the limiter has counted it already.
    pub(super) fn take(&mut self, granted: bool) -> (Option<(ConnectionId, &mut H)>, i64) {
        let free = self.connections.iter_mut().filter(|connection| connection.free() > 0);
        match free.max_by_key(|connection| (connection.used, connection.idle_since)) {
            Some(connection) => {
                connection.used += 1;
                (Some((connection.id, &mut connection.handle)), if granted { 0 } else { -1 })
            }
            None => (None, i64::from(granted)),
        }
    }

    /// Ends a stream. Does nothing if its connection is gone.
    pub(super) fn give(&mut self, id: ConnectionId, now: Moment) -> i64 {
        self.change(id, |connection| {
            connection.used = connection.used.saturating_sub(1);
            connection.idle_since = now;
        })
    }

    /// Sets the number of streams that the far side allows.
    pub(super) fn set_limit(&mut self, id: ConnectionId, limit: usize) -> i64 {
        self.change(id, |connection| connection.limit = limit)
    }

    /// Removes a connection that takes no more streams, because it closed or is to be used no
    /// longer. The streams it has run on.
    pub(super) fn remove(&mut self, id: ConnectionId) -> (Option<H>, i64) {
        let Some(at) = self.connections.iter().position(|connection| connection.id == id) else { return (None, 0) };
        let connection = self.connections.swap_remove(at);
        let free = connection.free();
        (Some(connection.handle), -count(free))
    }

    /// Returns what the streams of a connection are opened with.
    pub(super) fn handle(&mut self, id: ConnectionId) -> Option<&mut H> {
        self.get(id).map(|connection| &mut connection.handle)
    }

    /// Returns the connections to be used no longer: idle for `idle`, or expired and either idle,
    /// without a free stream, or replaceable by another.
    pub(super) fn stale(&self, now: Moment, idle: Duration) -> Vec<ConnectionId> {
        let fresh_room = self.connections.iter().any(|connection| connection.expires > now && connection.free() > 0);
        let stale = |connection: &&Connection<H>| {
            let unused = connection.used == 0;
            let expired = connection.expires <= now;
            (unused && now.since(connection.idle_since) >= idle)
                || (expired && (unused || connection.free() == 0 || fresh_room))
        };
        self.connections.iter().filter(stale).map(|connection| connection.id).collect()
    }

    /// Ends the age of all present connections.
    pub(super) fn expire(&mut self, now: Moment) {
        for connection in &mut self.connections {
            connection.expires = connection.expires.min(now);
        }
    }

    /// True if a connection is past its age and should get a successor.
    pub(super) fn has_expired(&self, now: Moment) -> bool {
        self.connections.iter().any(|connection| connection.expires <= now)
    }

    /// Returns the number of free streams.
    pub(super) fn free(&self) -> usize {
        self.connections.iter().map(Connection::free).sum()
    }

    /// True if so few streams are left, less than a fifth of one connection's, that the next
    /// connection should be dialled ahead.
    pub(super) fn nearly_full(&self) -> bool {
        let largest = self.connections.iter().map(|connection| connection.limit).max();
        largest.is_some_and(|largest| self.free() * 5 < largest)
    }

    /// Adds everything up.
    pub(super) fn occupancy(&self) -> Occupancy {
        let used = self.connections.iter().map(|connection| connection.used).sum();
        Occupancy { connections: self.connections.len(), used, free: self.free() }
    }

    fn get(&mut self, id: ConnectionId) -> Option<&mut Connection<H>> {
        self.connections.iter_mut().find(|connection| connection.id == id)
    }

    fn change(&mut self, id: ConnectionId, change: impl FnOnce(&mut Connection<H>)) -> i64 {
        let Some(connection) = self.get(id) else { return 0 };
        let before = connection.free();
        change(connection);
        count(connection.free()) - count(before)
    }
}

impl<H> Connection<H> {
    fn free(&self) -> usize {
        self.limit.saturating_sub(self.used)
    }
}

fn count(streams: usize) -> i64 {
    i64::try_from(streams).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Up(usize),
        Grant,
        Exempt,
        End(usize),
        Limit(usize, usize),
        Gone(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0_usize..6).prop_map(Step::Up),
            Just(Step::Grant),
            Just(Step::Grant),
            Just(Step::Exempt),
            (0_usize..20).prop_map(Step::End),
            (0_usize..20, 0_usize..6).prop_map(|(connection, limit)| Step::Limit(connection, limit)),
            (0_usize..20).prop_map(Step::Gone),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn room_told_less_grants_is_what_is_free(steps in steps()) {
            let mut accounts = StreamAccounts::default();
            let (mut ids, mut open) = (Vec::new(), Vec::new());
            let mut room = 0_i64;
            for step in steps {
                match step {
                    Step::Up(limit) => {
                        let (id, change) = accounts.add(limit, Moment::ZERO, Moment::MAX, |_| ());
                        ids.push(id);
                        room += change;
                    }
                    Step::Grant => {
                        // the limiter may grant on phantom room: the connection went before the
                        // checkout
                        room -= 1;
                        let (taken, change) = accounts.take(true);
                        open.extend(taken.map(|(id, ())| id));
                        room += change;
                    }
                    Step::Exempt => {
                        let (taken, change) = accounts.take(false);
                        open.extend(taken.map(|(id, ())| id));
                        room += change;
                    }
                    Step::End(which) if !open.is_empty() => {
                        let id = open.swap_remove(which % open.len());
                        room += accounts.give(id, Moment::ZERO);
                    }
                    Step::Limit(which, limit) if !ids.is_empty() => room += accounts.set_limit(ids[which % ids.len()], limit),
                    Step::Gone(which) if !ids.is_empty() => room += accounts.remove(ids[which % ids.len()]).1,
                    Step::End(_) | Step::Limit(..) | Step::Gone(_) => {}
                }
                prop_assert_eq!(room, count(accounts.free()));
            }
        }
    }

    #[test]
    fn streams_are_packed_so_that_spare_connections_idle_out() {
        let mut accounts = StreamAccounts::default();
        let (first, _) = accounts.add(3, Moment::ZERO, Moment::MAX, |_| ());
        assert_eq!(accounts.take(true).0.map(|(id, ())| id), Some(first));
        let (second, _) = accounts.add(3, Moment::ZERO, Moment::MAX, |_| ());
        let taken: Vec<_> = (0..4).filter_map(|_| accounts.take(true).0.map(|(id, ())| id)).collect();
        assert_eq!(taken, [first, first, second, second]);
    }

    #[test]
    fn the_next_connection_is_wanted_at_four_fifths() {
        let mut accounts = StreamAccounts::default();
        accounts.add(100, Moment::ZERO, Moment::MAX, |_| ());
        for _ in 0..80 {
            assert!(accounts.take(true).0.is_some());
        }
        assert!(!accounts.nearly_full());
        assert!(accounts.take(true).0.is_some());
        assert!(accounts.nearly_full());
    }

    #[test]
    fn an_expired_connection_serves_on_until_it_has_a_successor() {
        let (start, later) = (Moment::ZERO, Moment::from_millis(600_000));
        let idle = Duration::from_secs(75);
        let mut accounts = StreamAccounts::default();
        let (old, _) = accounts.add(3, start, later, |_| ());
        assert!(accounts.take(true).0.is_some());
        assert_eq!(accounts.stale(later, idle), []);
        assert!(accounts.has_expired(later));
        accounts.add(3, later, Moment::MAX, |_| ());
        assert_eq!(accounts.stale(later, idle), [old]);
    }
}
