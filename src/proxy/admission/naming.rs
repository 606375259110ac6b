//! Keys that only the body knows: the name in a `create`, the digest of an operation.
//!
//! The body is looked at before the call leaves only where that can matter: while some key of the same collection or path fails, for a
//! short body of known length, and for a moment. A call is never held up to be read.

use std::{future::poll_fn, hash::RandomState, time::Duration};

use http::{header, request::Parts};

use super::{Door, Intake};
use crate::{
    api::{Key, names::PEEK},
    classify::{Classified, KeySource},
    upstream::Kept,
};

impl Door {
    /// The key of a call whose body must be asked; `None` when it is not worth it or cannot be known.
    pub(super) async fn key_in_body(&self, parts: &Parts, call: &Classified, intake: &mut Intake) -> Option<Key> {
        let collection = call.key.collection().filter(|_| call.key.needs_body())?;
        if !self.driver.keys().any_failing_in(collection) || !(intake.is_whole() || is_short(parts)) {
            return None;
        }
        let clock = self.driver.clock();
        let read = async {
            while !intake.is_whole() {
                // A client that broke off is noticed by whoever reads on.
                poll_fn(|cx| intake.poll_more(cx)).await.ok()?;
            }
            Some(())
        };
        tokio::select! {
            biased;
            whole = read => whole?,
            () = clock.sleep(if self.shadow { Duration::ZERO } else { MOMENT }) => return None,
        }
        let whole = intake.is_whole();
        call.key.with_body(intake.start(), whole, &self.hasher)
    }
}

/// The key of a call that was sent, from what was kept of its body.
pub(crate) fn body_key(source: &KeySource, kept: &Kept, hasher: &RandomState) -> (Option<Key>, Vec<u8>) {
    let start = kept.bytes().concat();
    (source.with_body(&start, kept.is_whole(), hasher), start)
}

/// Whether the body's length is known and within the peek.
fn is_short(parts: &Parts) -> bool {
    let length = parts.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse::<usize>().ok()).is_some_and(|length| length <= PEEK)
}

/// A body this short comes with its head; one that does not is not waited for.
const MOMENT: Duration = Duration::from_millis(100);
