//! The state under a pool's lock, and the decisions about it: which call gets a stream, and which
//! dials to start.
//!
//! Nothing here calls out; what is to be done once the lock is released is collected in
//! [`Deferred`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Pool;
use super::connection::Handle;
use super::stream_lease::StreamLease;
use crate::moment::Moment;
use crate::upstream::error::DialError;
use crate::upstream::pacing::Pacing;
use crate::upstream::stream_accounts::{ConnectionId, StreamAccounts};

/// The connections, dials and waiters of one group.
#[derive(Default)]
pub(super) struct State {
    pub(super) accounts: StreamAccounts<Handle>,
    pub(super) pacing: Pacing,
    /// Exempt calls that want the first stream to come, each with a dial of its own.
    pub(super) exempt: Waiters,
    /// Calls that the upstream did not process, which want another stream.
    pub(super) replays: Waiters,
    /// True if the upstream speaks h2; `None` before the first connection.
    pub(super) multiplexed: Option<bool>,
    /// A timer runs for the next dial that is due.
    pub(super) alarm: bool,
}

/// Calls that wait for a stream here, first come first served.
#[derive(Default)]
pub(super) struct Waiters(pub(super) VecDeque<oneshot::Sender<Result<StreamLease, Arc<DialError>>>>);

/// The things to be done once the lock is released.
#[derive(Default)]
pub(super) struct Deferred {
    pub(super) room: i64,
    pub(super) unreachable: bool,
    pub(super) dials: usize,
    pub(super) alarm: Option<Moment>,
    pub(super) leases: Vec<StreamLease>,
    pub(super) handles: Vec<Handle>,
}

// === impl State ===

impl State {
    /// Opens a stream, passing over connections that have closed unnoticed.
    pub(super) fn open(&mut self, pool: &Arc<Pool>, granted: bool, deferred: &mut Deferred) -> Option<StreamLease> {
        loop {
            let (taken, change) = self.accounts.take(granted);
            let Some((id, handle)) = taken else {
                deferred.room += change;
                return None;
            };
            if let Some(stream) = handle.open(pool, id) {
                deferred.room += change;
                return Some(StreamLease { pool: Arc::clone(pool), stream });
            }
            // the unit just taken is gone with the connection, whether granted or not; a grant is
            // still to be honoured
            deferred.room -= 1;
            self.close(id, deferred);
        }
    }

    /// Closes the connections that are idle or old, as far as they can be spared.
    pub(super) fn retire(&mut self, now: Moment, deferred: &mut Deferred) {
        for id in self.accounts.stale(now, MAX_IDLE) {
            self.close(id, deferred);
        }
    }

    pub(super) fn close(&mut self, id: ConnectionId, deferred: &mut Deferred) {
        let (handle, change) = self.accounts.remove(id);
        deferred.room += change;
        deferred.handles.extend(handle);
    }

    /// Frees a connection whose call is over, as soon as hyper is ready for the next call.
    pub(super) fn release(&mut self, id: ConnectionId, deferred: &mut Deferred, now: Moment) {
        let Some(Handle::Http1 { sender: Some(sender), traffic, .. }) = self.accounts.handle(id) else { return };
        if sender.is_ready() && traffic.releasing.swap(false, Ordering::SeqCst) {
            deferred.room += self.accounts.give(id, now);
        }
    }

    /// Gives free streams to the calls that wait for one here.
    pub(super) fn serve(&mut self, pool: &Arc<Pool>, deferred: &mut Deferred) {
        // both are looked at each time: calls that have given up must not be counted in `plan`
        while (self.exempt.any() | self.replays.any()) && self.accounts.free() > 0 {
            let Some(lease) = self.open(pool, false, deferred) else { return };
            let unsent = match self.exempt.0.pop_front().or_else(|| self.replays.0.pop_front()) {
                Some(waiter) => waiter.send(Ok(lease)).err().and_then(Result::ok),
                None => Some(lease),
            };
            deferred.leases.extend(unsent);
        }
    }

    /// Decides which dials to start.
    pub(super) fn plan(&mut self, now: Moment, deferred: &mut Deferred) {
        if self.multiplexed == Some(true) && self.accounts.nearly_full() {
            self.pacing.ahead = true;
        }
        let at_once = if self.multiplexed == Some(false) { HTTP1_DIALS } else { 1 };
        deferred.dials += self.pacing.begin(at_once, self.replays.0.len(), self.accounts.free(), now);
        if !self.alarm
            && let Some(due) = self.pacing.due(self.replays.0.len())
            && due > now
        {
            self.alarm = true;
            deferred.alarm = Some(due);
        }
    }
}

// === impl Waiters ===

impl Waiters {
    /// Adds a call, and forgets those that have given up.
    pub(super) fn add(&mut self) -> oneshot::Receiver<Result<StreamLease, Arc<DialError>>> {
        let (waiter, coming) = oneshot::channel();
        self.0.retain(|waiter| !waiter.is_closed());
        self.0.push_back(waiter);
        coming
    }

    /// True if a call waits. Forgets those in front that have given up.
    fn any(&mut self) -> bool {
        while self.0.front().is_some_and(oneshot::Sender::is_closed) {
            self.0.pop_front();
        }
        !self.0.is_empty()
    }

    /// Fails all of them.
    pub(super) fn fail(self, error: &Arc<DialError>) {
        for waiter in self.0 {
            // a call that has given up needs no answer
            drop(waiter.send(Err(Arc::clone(error))));
        }
    }
}

/// The longest a connection may be idle. kube-apiserver closes idle connections after 90 s: this is
/// well before it, so as not to send into a closing one.
const MAX_IDLE: Duration = Duration::from_secs(75);
/// The most dials at once to an HTTP/1.1 upstream, where every call needs a connection.
const HTTP1_DIALS: usize = 16;
