//! The end of a gate's connections, as an event.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::task::{Poll, Waker};

use tokio::sync::Notify;

/// An event for all connections of a gate.
#[derive(Debug, Default)]
pub(crate) struct Farewell {
    has_begun: AtomicBool,
    begun: Notify,
}

// === impl Farewell ===

impl Farewell {
    /// Notifies every connection.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Release);
        self.begun.notify_waiters();
    }

    /// Returns after the event. It is polled whenever its connection has something to do, and takes
    /// the lock of `Notify` only for a task that does not wait yet.
    pub(crate) async fn begun(&self) {
        let mut begun = pin!(self.begun.notified());
        let mut waiting: Option<Waker> = None;
        poll_fn(|cx| {
            if self.has_begun.load(Acquire) {
                return Poll::Ready(());
            }
            if waiting.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                return Poll::Pending;
            }
            waiting = Some(cx.waker().clone());
            begun.as_mut().poll(cx)
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn every_connection_learns_of_it_before_and_after() {
        let farewell = Arc::new(Farewell::default());
        let waiting: Vec<_> = (0..1000)
            .map(|_| {
                let farewell = Arc::clone(&farewell);
                tokio::spawn(async move { farewell.begun().await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(!waiting.iter().any(tokio::task::JoinHandle::is_finished));
        farewell.begin();
        for waiting in waiting {
            waiting.await.expect("no panic");
        }
        farewell.begun().await;
    }
}
