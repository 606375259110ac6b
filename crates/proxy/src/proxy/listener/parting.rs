//! Notifies every connection of a gate, some of them at a time: a hundred thousand that woke at one
//! moment would hold the one thread that still carries leases.

use std::array;
use std::pin::Pin;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use slab::Slab;

/// The event for which all connections wait, in parts.
#[derive(Debug)]
pub(crate) struct Parting {
    parts: [Part; PARTS],
    next: AtomicUsize,
}

/// Some of the connections.
#[derive(Debug, Default)]
struct Part {
    is_told: AtomicBool,
    waiting: Mutex<Slab<Waker>>,
}

/// Ready after the event. It is asked whenever a connection has something to do, so it takes the
/// lock only for a task that does not wait yet.
#[derive(Debug)]
pub(crate) struct Told<'a> {
    part: &'a Part,
    /// The task that waits, and its place in the list.
    waits: Option<(usize, Waker)>,
}

// === impl Parting ===

impl Parting {
    pub(crate) fn new() -> Self {
        Self { parts: array::from_fn(|_| Part::default()), next: AtomicUsize::new(0) }
    }

    /// Returns after the event: for some connections a moment later than for others.
    pub(crate) fn told(&self) -> Told<'_> {
        let [first, ..] = &self.parts;
        let part = self.parts.get(self.next.fetch_add(1, Relaxed) % PARTS);
        Told { part: part.unwrap_or(first), waits: None }
    }

    /// Notifies every connection; other tasks have their turns in between.
    pub(crate) async fn tell(&self) {
        for part in &self.parts {
            part.is_told.store(true, Release);
            let waiting = std::mem::take(&mut *part.lock());
            waiting.into_iter().for_each(|(_, waker)| waker.wake());
            tokio::task::yield_now().await;
        }
    }
}

// === impl Part ===

impl Part {
    fn lock(&self) -> MutexGuard<'_, Slab<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Told ===

impl Future for Told<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.part.is_told.load(Acquire) {
            return Poll::Ready(());
        }
        if self.waits.as_ref().is_some_and(|(_, waker)| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        let mut waiting = self.part.lock();
        // Asked again under the lock: `tell` sets the flag before it takes the list, so that a task
        // that finds it unset here is in the list that is taken.
        if self.part.is_told.load(Acquire) {
            return Poll::Ready(());
        }
        if let Some((place, _)) = &self.waits {
            waiting.try_remove(*place);
        }
        let place = waiting.insert(cx.waker().clone());
        drop(waiting);
        self.waits = Some((place, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        // Once it is told, the list is gone.
        if let Some((place, _)) = self.waits.take()
            && !self.part.is_told.load(Acquire)
        {
            self.part.lock().try_remove(place);
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
