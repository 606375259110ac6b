//! Limits on the number of connections of listeners.
//!
//! Each listener is a [`Door`] with a number of slots for connections. An open connection takes one
//! of them, its [`Place`]. When all places are taken, the longest idle connection is closed for the
//! new one, so that nobody can block a listener by staying connected. The listeners of gates share
//! the file descriptors of the process: among them, the listener with most connections closes one.

mod descriptors;
mod warnings;

use std::io;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use slab::Slab;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use self::descriptors::{bound_by_descriptors, few};
pub(crate) use self::warnings::Warnings;
use crate::clock::Clock;
use crate::lock;
use crate::moment::Moment;

/// The connections of several listeners ([`Door`]s) under one common limit.
#[derive(Debug, Default)]
pub struct Pool {
    state: Mutex<PoolPlaces>,
    /// Notified when a place becomes free or a connection idle.
    room: Notify,
}

#[derive(Debug, Default)]
struct PoolPlaces {
    /// The most connections, if there is a limit.
    most: Option<usize>,
    /// The connections of each listener.
    doors: Slab<Slab<Connection>>,
    /// The number of uses of all connections, to put them in order.
    uses: u64,
}

/// An open connection.
#[derive(Debug)]
struct Connection {
    lost: CancellationToken,
    /// The number of its requests under way.
    busy: usize,
    /// The number of its last use.
    used: u64,
    /// The end of its protection: its last answer is on its way.
    until: Moment,
}

/// The limit on the number of connections of one listener.
#[derive(Debug)]
pub struct Door {
    name: Arc<str>,
    pool: Arc<Pool>,
    row: usize,
    most: usize,
    clock: Clock,
    warnings: Warnings,
}

/// The slot of an open connection, among those of its listener.
#[derive(Debug)]
pub struct Place {
    door: Arc<Door>,
    /// The connection among those of its door, until it is lost.
    id: usize,
    /// Cancelled when the place is given to another connection.
    lost: CancellationToken,
    /// Set once a request has come.
    has_spoken: AtomicBool,
}

/// Keeps a connection from counting as idle, and for a while after that.
#[derive(Debug)]
pub struct Busy {
    place: Arc<Place>,
    rest: Duration,
}

/// Returns the common limit on the connections of all gates and the egress listener in this
/// process.
pub fn of_process() -> Arc<Pool> {
    static POOL: LazyLock<Arc<Pool>> = LazyLock::new(Arc::default);
    Arc::clone(&POOL)
}

/// Serves a connection to its end, and has it say goodbye when `closing` ends.
pub async fn until_closing<C: Future>(
    mut connection: Pin<&mut C>,
    closing: impl Future<Output = ()>,
    say_goodbye: fn(Pin<&mut C>),
) -> C::Output {
    tokio::select! {
        biased; // no dice for each poll
        served = connection.as_mut() => served,
        () = closing => {
            say_goodbye(connection.as_mut());
            connection.await
        }
    }
}

// === impl PoolPlaces ===

impl PoolPlaces {
    /// Closes the longest idle connection of a listener. Returns false if none may be closed.
    fn close_idlest(&mut self, door: usize, now: Moment) -> bool {
        let Some(connections) = self.doors.get_mut(door) else { return false };
        let Some(id) = idlest(connections, now) else { return false };
        connections.remove(id).lost.cancel();
        true
    }

    /// Returns how many places each listener has for itself: half of all, divided among the
    /// listeners, so that clients of one do not close another.
    fn share(&self, most: usize) -> usize {
        most / (2 * self.doors.len().max(1))
    }

    /// Returns true if a listener may not accept another connection: all places are taken, or the
    /// free ones are reserved for other listeners.
    fn is_full_for(&self, door: usize) -> bool {
        let Some(most) = self.most else { return false };
        let share = self.share(most);
        let taken_or_kept = |(other, connections): (usize, &Slab<Connection>)| match other == door {
            true => connections.len(),
            false => connections.len().max(share),
        };
        self.doors.iter().map(taken_or_kept).sum::<usize>() >= most
    }

    /// Closes an idle connection of the listener with most connections. Spares listeners within
    /// their own share, except the listener `own`. Returns false if no connection may be closed.
    fn close_at_fullest(&mut self, own: usize, now: Moment) -> bool {
        let share = self.most.map_or(usize::MAX, |most| self.share(most));
        let may_give = |door: usize, connections: &Slab<Connection>| {
            (door == own || connections.len() > share) && idlest(connections, now).is_some()
        };
        let giving = self.doors.iter().filter(|(door, connections)| may_give(*door, connections));
        let fullest = giving.max_by_key(|(_, connections)| connections.len()).map(|(door, _)| door);
        fullest.is_some_and(|door| self.close_idlest(door, now))
    }
}

/// Returns the longest idle connection, except those with an answer still on its way.
fn idlest(connections: &Slab<Connection>, now: Moment) -> Option<usize> {
    let idle = connections.iter().filter(|(_, connection)| connection.busy == 0 && connection.until <= now);
    idle.min_by_key(|(_, connection)| connection.used).map(|(id, _)| id)
}

// === impl Door ===

impl Door {
    /// Creates the limit of a listener alone, without a common limit.
    pub fn new(name: impl Into<Arc<str>>, most: usize, clock: Clock) -> Arc<Self> {
        Self::to(Arc::default(), name, most, clock)
    }

    /// Creates the limit of a listener under the common limit of a pool.
    pub fn to(pool: Arc<Pool>, name: impl Into<Arc<str>>, most: usize, clock: Clock) -> Arc<Self> {
        let row = lock(&pool.state).doors.insert(Slab::new());
        Arc::new(Self { name: name.into(), pool, row, most, clock, warnings: Warnings::default() })
    }

    /// Returns the next connection. If none can be accepted, it warns once a minute and tries
    /// again: the process may have no free file descriptor for a while.
    pub async fn accept<S, F: Future<Output = io::Result<S>>>(&self, accept: impl Fn() -> F) -> S {
        // Earlier connections have their turn first, so that in a storm one that has sent a request is
        // not closed as the idlest.
        tokio::task::yield_now().await;
        loop {
            match accept().await {
                Ok(stream) => return stream,
                Err(error) => {
                    if self.may_warn("error") {
                        tracing::warn!(listener = &*self.name, %error, "the listener cannot accept a connection: trying again");
                    }
                    self.clock.sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    /// Returns a place for a new connection, in place of an idle one if necessary. Waits while all
    /// connections are busy.
    pub async fn place(self: &Arc<Self>) -> Arc<Place> {
        loop {
            let room = self.pool.room.notified();
            if let Some(place) = self.take() {
                return place;
            }
            if self.may_warn("busy") {
                tracing::warn!(listener = &*self.name, "all allowed connections carry calls: new clients wait");
            }
            // Those whose answers are on their way may be closed before long.
            tokio::select! {
                () = room => {}
                () = self.clock.sleep(ANSWERED) => {}
            }
        }
    }

    /// Returns a place for a new connection, in place of an idle one if necessary; `None` if all
    /// connections are busy.
    pub fn take(self: &Arc<Self>) -> Option<Arc<Place>> {
        self.take_of(self.most)
    }

    /// Does the same as [`Door::take`], with `most` as the listener's own limit.
    pub fn take_of(self: &Arc<Self>, most: usize) -> Option<Arc<Place>> {
        let now = self.clock.now();
        let mut state = lock(&self.pool.state);
        let mut closed = false;
        while state.doors.get(self.row)?.len() >= most {
            closed = true;
            if !state.close_idlest(self.row, now) {
                return None;
            }
        }
        while state.is_full_for(self.row) {
            closed = true;
            if !state.close_at_fullest(self.row, now) {
                return None;
            }
        }
        state.uses += 1;
        let lost = CancellationToken::new();
        let connection = Connection { lost: lost.clone(), busy: 0, used: state.uses, until: now };
        let id = state.doors.get_mut(self.row)?.insert(connection);
        drop(state);
        if closed && self.may_warn("full") {
            tracing::warn!(
                listener = &*self.name,
                "the limit of client connections is reached: each new connection closes the one that was idle longest"
            );
        }
        Some(Arc::new(Place { door: Arc::clone(self), id, lost, has_spoken: AtomicBool::new(false) }))
    }

    fn may_warn(&self, kind: &'static str) -> bool {
        self.warnings.is_due(kind, self.clock.now())
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        lock(&self.pool.state).doors.try_remove(self.row);
    }
}

// === impl Place ===

impl Place {
    /// Records a request: of all idle connections this one is then closed last.
    pub fn touch(&self) {
        self.has_spoken.store(true, Relaxed);
        self.change(Duration::ZERO, |_| {});
    }

    /// Marks the connection as busy until the result is dropped, and for a second after that.
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.change(Duration::ZERO, |busy| *busy += 1);
        Busy { place: Arc::clone(self), rest: ANSWERED }
    }

    /// Waits until the connection is to be closed in favour of another.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Serves the connection until it ends, or until it is to be closed.
    pub async fn serve(&self, connection: impl Future<Output = ()>) {
        tokio::select! {
            () = connection => {}
            () = self.over() => {}
        }
    }

    /// Waits until the connection is to be closed: in favour of another, or because no complete
    /// request head came within `FIRST_HEAD`.
    async fn over(&self) {
        let late = async {
            self.door.clock.sleep(FIRST_HEAD).await;
            if self.has_spoken.load(Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.lost() => {}
            () = late => {}
        }
    }

    /// Returns true if the connection is to be closed in favour of another.
    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Applies `change` to the number of requests under way, and makes the connection the most
    /// recently used one. It is not closed within `rest`.
    fn change(&self, rest: Duration, change: impl FnOnce(&mut usize)) {
        let until = self.door.clock.now() + rest;
        let mut state = lock(&self.door.pool.state);
        state.uses += 1;
        let used = state.uses;
        let connections = state.doors.get_mut(self.door.row).filter(|_| !self.is_lost());
        let Some(connection) = connections.and_then(|connections| connections.get_mut(self.id)) else { return };
        change(&mut connection.busy);
        connection.used = used;
        connection.until = until;
        if connection.busy == 0 {
            drop(state);
            self.door.pool.room.notify_waiters();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = lock(&self.door.pool.state);
        if let Some(connections) = state.doors.get_mut(self.door.row).filter(|_| !self.is_lost()) {
            connections.try_remove(self.id);
        }
        drop(state);
        self.door.pool.room.notify_waiters();
    }
}

// === impl Busy ===

impl Busy {
    /// Returns the place of the busy connection.
    pub const fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Marks the connection as idle at once, without the usual extra time after an answer.
    pub fn end(mut self) -> Arc<Place> {
        self.rest = Duration::ZERO;
        Arc::clone(&self.place)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.place.change(self.rest, |busy| *busy -= 1);
    }
}

/// The time for the first request head at the small servers (status, webhook), TLS handshake
/// included.
const FIRST_HEAD: Duration = Duration::from_secs(10);
/// The protection of a connection after an answer, from being closed for a new one: the client may
/// not have read the answer.
const ANSWERED: Duration = Duration::from_secs(1);
/// The pause after a failed accept: if file descriptors are lacking, some must be closed before the
/// next try.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn door(most: usize) -> Arc<Door> {
        Door::new("door", most, Clock::start())
    }

    #[tokio::test]
    async fn the_idlest_goes_and_a_busy_one_stays() {
        let door = door(3);
        let [one, two, three] = [(); 3].map(|()| door.take().expect("free"));
        let busy = one.busy();
        two.touch();
        let four = door.take().expect("one goes");
        three.lost().await;
        assert!(!one.is_lost() && !two.is_lost() && !four.is_lost());
        drop(busy);
        let five = door.take().expect("one goes");
        two.lost().await;
        let _busy = [one.busy(), four.busy(), five.busy()];
        assert!(door.take().is_none(), "all carry calls");
        drop(four);
        assert!(door.take().is_none(), "a call holds its place");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_has_a_second_on_its_way() {
        let door = door(1);
        let one = door.take().expect("free");
        drop(one.busy());
        assert!(door.take().is_none());
        door.clock.sleep(ANSWERED).await;
        let _other = door.take().expect("it has been idle for a while");
        one.lost().await;
    }

    #[tokio::test]
    async fn of_several_doors_the_fullest_gives_way() {
        let pool: Arc<Pool> = Arc::default();
        lock(&pool.state).most = Some(4);
        let [quiet, crowded] = [(); 2].map(|()| Door::to(Arc::clone(&pool), "door", 9, Clock::start()));
        let first = quiet.take().expect("free");
        let busy = [(); 3].map(|()| crowded.take().expect("free").busy());
        assert!(crowded.take().is_none());
        drop((busy, first));
        let busy = [(); 3].map(|()| crowded.take().expect("free").busy());
        assert!(crowded.take().is_none(), "one is kept for the other door");
        let first = quiet.take().expect("it is kept");
        drop(busy);
        let others = [(); 3].map(|()| crowded.take().expect("free"));
        let _more = crowded.take().expect("one of its own goes");
        others[0].lost().await;
        let _second = quiet.take().expect("one of the others goes");
        others[1].lost().await;
        assert!(!first.is_lost() && !others[2].is_lost());
    }

    #[tokio::test]
    async fn a_place_that_is_given_back_is_free() {
        let door = door(1);
        for _ in 0..5 {
            let place = door.take().expect("free");
            let busy = place.busy();
            assert!(door.take().is_none());
            drop((busy, place));
        }
        let lost = door.take().expect("free");
        let place = door.take().expect("the idle one goes");
        drop((lost.busy(), lost));
        let _busy = place.busy();
        assert!(door.take().is_none(), "one that is lost gives nothing back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_waits_until_a_call_is_over() {
        let door = door(1);
        let busy = door.place().await.busy();
        let mut next = Box::pin(door.place());
        assert!(next.as_mut().now_or_never().is_none());
        drop(busy);
        next.await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_for_ten_seconds_is_over() {
        let door = door(2);
        let [silent, other] = [(); 2].map(|()| door.take().expect("free"));
        other.touch();
        silent.over().await;
        let before_long = tokio::time::timeout(Duration::from_secs(600), other.over());
        before_long.await.expect_err("it has spoken");
    }
}
