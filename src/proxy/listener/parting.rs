//! Notifies every connection of a gate, some of them at a time: a hundred thousand that woke at one
//! moment would hold the one thread that still carries leases.

use std::array;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use tokio_util::sync::CancellationToken;

/// The event for which all connections wait, in parts.
#[derive(Debug)]
pub(crate) struct Parting {
    parts: [CancellationToken; PARTS],
    next: AtomicUsize,
}

// === impl Parting ===

impl Parting {
    pub(crate) fn new() -> Self {
        Self { parts: array::from_fn(|_| CancellationToken::new()), next: AtomicUsize::new(0) }
    }

    /// Returns after the event: for some connections a moment later than for others.
    pub(crate) async fn told(&self) {
        let part = self.next.fetch_add(1, Relaxed) % PARTS;
        if let Some(part) = self.parts.get(part) {
            part.cancelled().await;
        }
    }

    /// Notifies every connection; other tasks have their turns in between.
    pub(crate) async fn tell(&self) {
        for part in &self.parts {
            part.cancel();
            tokio::task::yield_now().await;
        }
    }
}

/// Of a hundred thousand connections, some 1,600 at a time.
const PARTS: usize = 64;

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn is_told(told: &mut Pin<Box<impl Future>>, waker: &Waker) -> bool {
        told.as_mut().poll(&mut Context::from_waker(waker)).is_ready()
    }

    #[tokio::test]
    async fn everyone_is_told_some_at_a_time() {
        let (parting, woken) = (Parting::new(), Arc::new(Count(AtomicUsize::new(0))));
        let waker = Waker::from(Arc::clone(&woken));
        let mut waiting: Vec<_> = (0..6_400).map(|_| Box::pin(parting.told())).collect();
        assert!(!waiting.iter_mut().any(|told| is_told(told, &waker)));
        let mut telling = pin!(parting.tell());
        let (mut before, mut turns) = (0, 0);
        while telling.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Pending {
            let now = woken.0.load(Relaxed);
            assert!(now - before <= 100, "{} in one go", now - before);
            (before, turns) = (now, turns + 1);
        }
        assert_eq!((woken.0.load(Relaxed), turns), (6_400, PARTS));
        assert!(waiting.iter_mut().all(|told| is_told(told, &waker)));
    }
}
