//! The stream accounts of one group: its connections, and the number of free streams on each.
//!
//! Each operation may change the number of free streams. The limiter gets these changes from
//! [`StreamAccounts::take_room`]. At every moment, their sum less the calls that the limiter has
//! admitted is the number of free streams. An HTTP/1.1 connection has a single stream. This does no
//! I/O.

use std::time::Duration;

use super::Occupancy;
use crate::moment::Moment;

/// The connections of one group, with their numbers of streams. An `H` opens streams on a
/// connection.
#[derive(Debug)]
pub(super) struct StreamAccounts<H> {
    connections: Vec<ConnectionAccount<H>>,
    next: u64,
    /// The change in the number of free streams since the last report to the limiter.
    room: i64,
}

/// The identifier of a connection, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionId(u64);

/// An open connection, with the number of its streams.
#[derive(Debug)]
struct ConnectionAccount<H> {
    id: ConnectionId,
    handle: H,
    limit: usize,
    used: usize,
    idle_since: Moment,
    expires: Moment,
}

impl<H> Default for StreamAccounts<H> {
    fn default() -> Self {
        Self { connections: Vec::new(), next: 0, room: 0 }
    }
}

impl<H> StreamAccounts<H> {
    /// Adds a connection with at most `limit` streams. `handle` creates its handle.
    pub(super) fn add(
        &mut self,
        limit: usize,
        now: Moment,
        expires: Moment,
        handle: impl FnOnce(ConnectionId) -> H,
    ) -> ConnectionId {
        let id = ConnectionId(self.next);
        self.next += 1;
        self.connections.push(ConnectionAccount { id, handle: handle(id), limit, used: 0, idle_since: now, expires });
        self.room += count(limit);
        id
    }

    /// Cancels the limiter's count of a stream as taken by an admitted call. If the call gets a
    /// stream, [`take`](Self::take) counts it again.
    pub(super) fn return_grant(&mut self) {
        self.room += 1;
    }

    /// Takes a free stream, and returns its connection.
    ///
    /// It is on the most loaded connection with a free stream, so that other connections become
    /// idle and can be closed. Of idle connections it is the most recently used one, as the server
    /// is least likely to close that one now.
    pub(super) fn take(&mut self) -> Option<(ConnectionId, &mut H)> {
        let free = self.connections.iter_mut().filter(|connection| connection.free() > 0);
        let connection = free.max_by_key(|connection| (connection.used, connection.idle_since))?;
        connection.used += 1;
        self.room -= 1;
        Some((connection.id, &mut connection.handle))
    }

    /// Returns a stream after its end. Does nothing if its connection is gone.
    pub(super) fn give(&mut self, id: ConnectionId, now: Moment) {
        self.change(id, |connection| {
            connection.used = connection.used.saturating_sub(1);
            connection.idle_since = now;
        });
    }

    /// Sets how many streams the server allows on a connection.
    pub(super) fn set_limit(&mut self, id: ConnectionId, limit: usize) {
        self.change(id, |connection| connection.limit = limit);
    }

    /// Removes a closed or too old connection. Its open streams continue.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<H> {
        let at = self.connections.iter().position(|connection| connection.id == id)?;
        let connection = self.connections.swap_remove(at);
        self.room -= count(connection.free());
        Some(connection.handle)
    }

    /// Returns the change in the number of free streams since the last call, for the limiter.
    pub(super) fn take_room(&mut self) -> i64 {
        std::mem::take(&mut self.room)
    }

    /// Returns the handle of a connection.
    pub(super) fn handle(&mut self, id: ConnectionId) -> Option<&mut H> {
        self.get(id).map(|connection| &mut connection.handle)
    }

    /// Returns the connections to close.
    ///
    /// They are unused for `idle`; or they are expired, and either unused, full, or replaceable by
    /// another connection with a free stream.
    pub(super) fn stale(&self, now: Moment, idle: Duration) -> Vec<ConnectionId> {
        let fresh_room = self.connections.iter().any(|connection| connection.expires > now && connection.free() > 0);
        let stale = |connection: &&ConnectionAccount<H>| {
            let unused = connection.used == 0;
            let expired = connection.expires <= now;
            (unused && now.since(connection.idle_since) >= idle)
                || (expired && (unused || connection.free() == 0 || fresh_room))
        };
        self.connections.iter().filter(stale).map(|connection| connection.id).collect()
    }

    /// Marks all connections as expired.
    pub(super) fn expire(&mut self, now: Moment) {
        for connection in &mut self.connections {
            connection.expires = connection.expires.min(now);
        }
    }

    /// Returns true if a connection has expired and must be replaced.
    pub(super) fn has_expired(&self, now: Moment) -> bool {
        self.connections.iter().any(|connection| connection.expires <= now)
    }

    /// Returns the number of free streams.
    pub(super) fn free(&self) -> usize {
        self.connections.iter().map(ConnectionAccount::free).sum()
    }

    /// Returns true if fewer free streams are left than a fifth of a connection. Then another
    /// connection should be made in advance.
    pub(super) fn nearly_full(&self) -> bool {
        let largest = self.connections.iter().map(|connection| connection.limit).max();
        largest.is_some_and(|largest| self.free() * 5 < largest)
    }

    /// Returns the numbers of connections and streams.
    pub(super) fn occupancy(&self) -> Occupancy {
        let used = self.connections.iter().map(|connection| connection.used).sum();
        Occupancy { connections: self.connections.len(), used, free: self.free() }
    }

    fn get(&mut self, id: ConnectionId) -> Option<&mut ConnectionAccount<H>> {
        self.connections.iter_mut().find(|connection| connection.id == id)
    }

    fn change(&mut self, id: ConnectionId, change: impl FnOnce(&mut ConnectionAccount<H>)) {
        let Some(connection) = self.get(id) else { return };
        let before = connection.free();
        change(connection);
        let after = connection.free();
        self.room += count(after) - count(before);
    }
}

impl<H> ConnectionAccount<H> {
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
            let mut ids = Vec::new();
            let mut open = Vec::new();
            let mut room = 0_i64;
            for step in steps {
                match step {
                    Step::Up(limit) => ids.push(accounts.add(limit, Moment::ZERO, Moment::MAX, |_| ())),
                    Step::Grant => {
                        // the limiter may grant on phantom room: the connection went before the
                        // checkout
                        room -= 1;
                        accounts.return_grant();
                        open.extend(accounts.take().map(|(id, ())| id));
                    }
                    Step::Exempt => open.extend(accounts.take().map(|(id, ())| id)),
                    Step::End(which) if !open.is_empty() => {
                        let id = open.swap_remove(which % open.len());
                        accounts.give(id, Moment::ZERO);
                    }
                    Step::Limit(which, limit) if !ids.is_empty() => accounts.set_limit(ids[which % ids.len()], limit),
                    Step::Gone(which) if !ids.is_empty() => drop(accounts.remove(ids[which % ids.len()])),
                    Step::End(_) | Step::Limit(..) | Step::Gone(_) => {}
                }
                room += accounts.take_room();
                prop_assert_eq!(room, count(accounts.free()));
            }
        }
    }

    #[test]
    fn streams_are_packed_so_that_spare_connections_idle_out() {
        let mut accounts = StreamAccounts::default();
        let first = accounts.add(3, Moment::ZERO, Moment::MAX, |_| ());
        assert_eq!(accounts.take().map(|(id, ())| id), Some(first));
        let second = accounts.add(3, Moment::ZERO, Moment::MAX, |_| ());
        let taken: Vec<_> = (0..4).filter_map(|_| accounts.take().map(|(id, ())| id)).collect();
        assert_eq!(taken, [first, first, second, second]);
    }

    #[test]
    fn the_next_connection_is_wanted_at_four_fifths() {
        let mut accounts = StreamAccounts::default();
        accounts.add(100, Moment::ZERO, Moment::MAX, |_| ());
        for _ in 0..80 {
            assert!(accounts.take().is_some());
        }
        assert!(!accounts.nearly_full());
        assert!(accounts.take().is_some());
        assert!(accounts.nearly_full());
    }

    #[test]
    fn an_expired_connection_serves_on_until_it_has_a_successor() {
        let start = Moment::ZERO;
        let later = Moment::from_millis(600_000);
        let idle = Duration::from_secs(75);
        let mut accounts = StreamAccounts::default();
        let old = accounts.add(3, start, later, |_| ());
        assert!(accounts.take().is_some());
        assert_eq!(accounts.stale(later, idle), []);
        assert!(accounts.has_expired(later));
        accounts.add(3, later, Moment::MAX, |_| ());
        assert_eq!(accounts.stale(later, idle), [old]);
    }
}
