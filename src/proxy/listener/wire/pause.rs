//! Between calls: how long nothing has come, and whether hyper may be let go.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::Sleep;

use super::State;
use crate::clock::timer;

/// What is known of how long nothing has come between calls. Not timed anew with each call: of a busy connection it is asked ten times a
/// second.
pub(super) enum Pause {
    /// Nothing.
    Unknown,
    /// It is asked when this is over; something came since it began, or nothing did.
    Asked { timer: Pin<Box<Sleep>>, stirred: bool },
    /// Long enough, but for a call that is under way. hyper will not read again by itself once that is over.
    Over,
}

impl State {
    /// Ready when there has been nothing to do for [`PAUSE`] at least. Then hyper has nothing of this connection's: no call, and no bytes that
    /// it has not read as a call, since none but whole requests came.
    pub(super) fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_occupied = self.is_occupied();
        loop {
            self.pause = match &mut self.pause {
                Pause::Asked { timer, stirred } => {
                    ready!(timer.as_mut().poll(cx));
                    match (*stirred, is_occupied) {
                        (true, _) => Pause::Unknown,
                        (false, true) => Pause::Over,
                        (false, false) => {
                            self.pause = Pause::Unknown;
                            return Poll::Ready(());
                        }
                    }
                }
                Pause::Over if is_occupied => return Poll::Pending,
                Pause::Over | Pause::Unknown => Pause::Asked { timer: timer(PAUSE), stirred: false },
            };
        }
    }

    /// Whether hyper has a call, or something to write.
    pub(super) const fn is_occupied(&self) -> bool {
        self.busy || self.unflushed
    }

    /// hyper may have nothing more to do: it is to ask for a pause, if one was over too early.
    pub(super) fn released(&mut self) {
        if let Pause::Asked { stirred, .. } = &mut self.pause {
            *stirred = true;
        }
        if (self.turning || matches!(self.pause, Pause::Over))
            && !self.is_occupied()
            && let Some(reader) = self.reader.take()
        {
            reader.wake();
        }
    }
}

/// Nothing to do for so long: hyper is let go. Long beside the time between the calls of a client that is at work.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
