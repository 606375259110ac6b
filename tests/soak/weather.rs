//! The API's current trouble.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use crate::dice::Dice;

/// One kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Calm,
    /// Answers take up to a third of a second.
    Slow,
    /// A third of the answers are 500 or 503.
    Failing,
    /// Everything is 429, with Retry-After.
    Throttling,
    /// No call is answered until the weather changes.
    Stalled,
    /// A third of the answers break off in their body, by a reset.
    Cutting,
    /// Connections are closed as soon as they come, and open ones with the next call.
    Gone,
}

const ALL: [Weather; 7] = [
    Weather::Calm,
    Weather::Slow,
    Weather::Failing,
    Weather::Throttling,
    Weather::Stalled,
    Weather::Cutting,
    Weather::Gone,
];

/// The weather over both APIs, and a count of each kind.
#[derive(Debug)]
pub(crate) struct Sky {
    now: watch::Sender<Weather>,
    seen: Mutex<[usize; ALL.len()]>,
    pub(crate) answered: AtomicUsize,
}

impl Sky {
    pub(crate) fn new() -> Self {
        Self { now: watch::Sender::new(Weather::Calm), seen: Mutex::default(), answered: AtomicUsize::new(0) }
    }

    pub(crate) fn now(&self) -> Weather {
        *self.now.borrow()
    }

    /// Returns when the weather is no longer this.
    pub(crate) async fn passes(&self, weather: Weather) {
        let mut now = self.now.subscribe();
        drop(now.wait_for(|now| *now != weather).await);
    }

    /// Changes the weather; half of the time it is calm.
    pub(crate) fn change(&self, dice: &Dice) {
        let which = if dice.one_in(2) { 0 } else { usize::try_from(dice.below(7)).expect("few") };
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)[which] += 1;
        self.now.send_replace(ALL[which]);
    }

    pub(crate) fn clear(&self) {
        self.now.send_replace(Weather::Calm);
    }

    pub(crate) fn report(&self) -> String {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = format!("{} calls reached the API; weather:", self.answered.load(Ordering::Relaxed));
        for (weather, times) in ALL.iter().zip(*seen) {
            write!(text, " {weather:?} {times}").expect("text");
        }
        text
    }
}
