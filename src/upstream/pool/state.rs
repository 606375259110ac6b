//! What stands under a pool's lock, and what is decided there: who gets a stream, and which dials to start.
//!
//! Nothing here calls out; what is to be done once the lock is let go is collected in [`After`].

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use hyper::client::conn::{http1, http2};
use tokio::{sync::oneshot, task::AbortHandle};

use super::{
    Pool,
    connection::{Established, Traffic},
    stream_lease::{Exclusive, Stream, StreamLease, StreamUnit},
};
use crate::{
    moment::Moment,
    upstream::{
        body::Outgoing,
        error::DialError,
        pacing::Pacing,
        stream_accounts::{ConnectionId, StreamAccounts},
    },
};

/// Connections, dials and waiters of one group.
pub(in crate::upstream) struct State {
    pub(in crate::upstream) accounts: StreamAccounts<Handle>,
    pub(in crate::upstream) pacing: Pacing,
    /// Exempt calls that want the first stream to come, each with a dial of its own.
    pub(in crate::upstream) exempt: VecDeque<oneshot::Sender<StreamLease>>,
    /// Calls that the upstream did not process, which want another stream.
    pub(in crate::upstream) replays: VecDeque<oneshot::Sender<Result<StreamLease, Arc<DialError>>>>,
    /// Whether the upstream speaks h2; `None` before the first connection.
    pub(in crate::upstream) multiplexed: Option<bool>,
    /// A timer runs for the next dial that is due.
    pub(in crate::upstream) alarm: bool,
}

/// What a stream of a connection is opened with.
pub(in crate::upstream) enum Handle {
    Http1 {
        /// `None` while it serves a call.
        sender: Option<http1::SendRequest<Outgoing>>,
        traffic: Arc<Traffic>,
        driver: Option<AbortHandle>,
        reused: bool,
    },
    Http2(http2::SendRequest<Outgoing>),
}

/// What is to be done once the lock is let go.
#[derive(Default)]
pub(in crate::upstream) struct After {
    pub(in crate::upstream) room: i64,
    pub(in crate::upstream) unreachable: bool,
    pub(in crate::upstream) dials: usize,
    pub(in crate::upstream) alarm: Option<Moment>,
    pub(in crate::upstream) leases: Vec<StreamLease>,
    pub(in crate::upstream) handles: Vec<Handle>,
}

// === impl State ===

impl State {
    pub(in crate::upstream) fn new(multiplexed: Option<bool>) -> Self {
        Self {
            accounts: StreamAccounts::new(),
            pacing: Pacing::default(),
            exempt: VecDeque::new(),
            replays: VecDeque::new(),
            multiplexed,
            alarm: false,
        }
    }

    /// Opens a stream, passing over connections that have closed unnoticed.
    pub(in crate::upstream) fn open(
        &mut self,
        pool: &Arc<Pool>,
        granted: bool,
        after: &mut After,
    ) -> Option<StreamLease> {
        loop {
            let (taken, change) = self.accounts.take(granted);
            let Some((id, handle)) = taken else {
                after.room += change;
                return None;
            };
            if let Some(stream) = handle.open(pool, id) {
                after.room += change;
                return Some(StreamLease { pool: Arc::clone(pool), stream });
            }
            // the unit just taken is gone with the connection, whoever took it; a grant is still to be honoured
            after.room -= 1;
            self.close(id, after);
        }
    }

    /// Closes what is idle or old, as far as it can be spared.
    pub(in crate::upstream) fn retire(&mut self, now: Moment, after: &mut After) {
        for id in self.accounts.stale(now, MAX_IDLE) {
            self.close(id, after);
        }
    }

    pub(in crate::upstream) fn close(&mut self, id: ConnectionId, after: &mut After) {
        let (handle, change) = self.accounts.remove(id);
        after.room += change;
        after.handles.extend(handle);
    }

    /// The connection's call is over: it is free as soon as hyper is ready for the next.
    pub(in crate::upstream) fn release(&mut self, id: ConnectionId, after: &mut After, now: Moment) {
        let Some(Handle::Http1 { sender: Some(sender), traffic, .. }) = self.accounts.handle(id) else { return };
        if sender.is_ready() && traffic.releasing.swap(false, Ordering::SeqCst) {
            after.room += self.accounts.give(id, now);
        }
    }

    /// Gives free streams to those who wait for one here.
    pub(in crate::upstream) fn serve(&mut self, pool: &Arc<Pool>, after: &mut After) {
        loop {
            while self.exempt.front().is_some_and(oneshot::Sender::is_closed) {
                self.exempt.pop_front();
            }
            while self.replays.front().is_some_and(oneshot::Sender::is_closed) {
                self.replays.pop_front();
            }
            if (self.exempt.is_empty() && self.replays.is_empty()) || self.accounts.free() == 0 {
                return;
            }
            let Some(lease) = self.open(pool, false, after) else { return };
            let unsent = match (self.exempt.pop_front(), &mut self.replays) {
                (Some(waiter), _) => waiter.send(lease).err(),
                (None, replays) => match replays.pop_front() {
                    Some(waiter) => waiter.send(Ok(lease)).err().and_then(Result::ok),
                    None => Some(lease),
                },
            };
            after.leases.extend(unsent);
        }
    }

    /// Decides which dials to start.
    pub(in crate::upstream) fn plan(&mut self, now: Moment, after: &mut After) {
        if self.multiplexed == Some(true) && self.accounts.nearly_full() {
            self.pacing.want_ahead();
        }
        let at_once = if self.multiplexed == Some(false) { HTTP1_DIALS } else { 1 };
        after.dials += self.pacing.begin(at_once, self.replays.len(), self.accounts.free(), now);
        if !self.alarm
            && let Some(due) = self.pacing.due(self.replays.len())
            && due > now
        {
            self.alarm = true;
            after.alarm = Some(due);
        }
    }
}

// === impl Handle and Established ===

impl Handle {
    pub(in crate::upstream) fn open(&mut self, pool: &Arc<Pool>, id: ConnectionId) -> Option<Stream> {
        match self {
            Self::Http1 { sender, traffic, reused, .. } => {
                let open = sender.take().filter(|sender| !sender.is_closed())?;
                Some(Stream::Http1(Exclusive::new(Arc::clone(pool), id, open, Arc::clone(traffic), *reused)))
            }
            Self::Http2(sender) if sender.is_closed() => None,
            Self::Http2(sender) => {
                let unit = Arc::new(StreamUnit::new(Arc::clone(pool), id));
                Some(Stream::Http2 { unit, sender: sender.clone() })
            }
        }
    }
}

impl Established {
    pub(in crate::upstream) fn limit(&self) -> usize {
        match self {
            Self::Http1 { .. } => 1,
            Self::Http2 { limit, .. } => *limit,
        }
    }
}

/// kube-apiserver closes idle connections after 90 s: well before it, so as not to send into a closing one.
const MAX_IDLE: Duration = Duration::from_secs(75);
/// Dials at once to an HTTP/1.1 upstream, where every call needs a connection.
const HTTP1_DIALS: usize = 16;
