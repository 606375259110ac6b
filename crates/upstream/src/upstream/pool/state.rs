//! The state of a pool, under its lock: the waiting calls, and the connections to make.
//!
//! Nothing here calls other parts; such actions are collected in [`Deferred`].

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
use crate::upstream::pacing::DialPace;
use crate::upstream::stream_accounts::{ConnectionId, StreamAccounts};

/// The connections of one group, with the current connection attempts and the waiting calls.
#[derive(Default)]
pub(super) struct PoolState {
    pub(super) accounts: StreamAccounts<Handle>,
    pub(super) pacing: DialPace,
    /// Exempt calls waiting for the first free stream. For each, a connection is also being made.
    pub(super) exempt: Waiters,
    /// Calls waiting for another stream, because the upstream did not process them.
    pub(super) replays: Waiters,
    /// True if the upstream speaks HTTP/2; `None` before the first connection.
    pub(super) multiplexed: Option<bool>,
    /// Set while a timer for the next connection attempt runs.
    pub(super) alarm: bool,
}

/// Calls waiting for a stream, in order of arrival.
#[derive(Default)]
pub(super) struct Waiters(pub(super) VecDeque<oneshot::Sender<Result<StreamLease, Arc<DialError>>>>);

/// The actions to take once the lock is released.
#[derive(Default)]
pub(super) struct Deferred {
    pub(super) unreachable: bool,
    pub(super) dials: usize,
    pub(super) alarm: Option<Moment>,
    pub(super) leases: Vec<StreamLease>,
    pub(super) handles: Vec<Handle>,
}

// === impl PoolState ===

impl PoolState {
    /// Returns a stream on one of the connections. Removes connections found closed.
    pub(super) fn open(&mut self, pool: &Arc<Pool>, deferred: &mut Deferred) -> Option<StreamLease> {
        while let Some((id, handle)) = self.accounts.take() {
            if let Some(stream) = handle.open(pool, id) {
                return Some(StreamLease { pool: Arc::clone(pool), stream });
            }
            self.close(id, deferred);
        }
        None
    }

    /// Closes idle connections, and old ones with a replacement.
    pub(super) fn retire(&mut self, now: Moment, deferred: &mut Deferred) {
        for id in self.accounts.stale(now, MAX_IDLE) {
            self.close(id, deferred);
        }
    }

    pub(super) fn close(&mut self, id: ConnectionId, deferred: &mut Deferred) {
        deferred.handles.extend(self.accounts.remove(id));
    }

    /// Makes an HTTP/1.1 connection available again after its call, if hyper is ready.
    pub(super) fn release(&mut self, id: ConnectionId, now: Moment) {
        let Some(Handle::Http1 { sender: Some(sender), traffic, .. }) = self.accounts.handle(id) else { return };
        if sender.is_ready() && traffic.releasing.swap(false, Ordering::SeqCst) {
            self.accounts.give(id, now);
        }
    }

    /// Gives free streams to waiting calls.
    pub(super) fn serve(&mut self, pool: &Arc<Pool>, deferred: &mut Deferred) {
        // both are looked at each time: calls that have given up must not be counted in `plan`
        while (self.exempt.any() | self.replays.any()) && self.accounts.free() > 0 {
            let Some(lease) = self.open(pool, deferred) else { return };
            let unsent = match self.exempt.0.pop_front().or_else(|| self.replays.0.pop_front()) {
                Some(waiter) => waiter.send(Ok(lease)).err().and_then(Result::ok),
                None => Some(lease),
            };
            deferred.leases.extend(unsent);
        }
    }

    /// Decides how many connection attempts to start.
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
    /// Adds a waiting call. Removes cancelled calls.
    pub(super) fn add(&mut self) -> oneshot::Receiver<Result<StreamLease, Arc<DialError>>> {
        let (waiter, coming) = oneshot::channel();
        self.0.retain(|waiter| !waiter.is_closed());
        self.0.push_back(waiter);
        coming
    }

    /// Returns true if a call waits. Removes cancelled calls from the front.
    fn any(&mut self) -> bool {
        while self.0.front().is_some_and(oneshot::Sender::is_closed) {
            self.0.pop_front();
        }
        !self.0.is_empty()
    }

    /// Reports an error to all waiting calls.
    pub(super) fn fail(self, error: &Arc<DialError>) {
        for waiter in self.0 {
            // a call that has given up needs no answer
            drop(waiter.send(Err(Arc::clone(error))));
        }
    }
}

/// The longest idle time of a connection. kube-apiserver closes idle connections after 90 s; this
/// is well before, so that no request is sent on a closing connection.
const MAX_IDLE: Duration = Duration::from_secs(75);
/// The most connection attempts at once to an HTTP/1.1 upstream, where every call needs a
/// connection.
const HTTP1_DIALS: usize = 16;
