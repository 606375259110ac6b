//! Keys that only the body knows: the name in a `create`, the digest of an operation.
//!
//! The body is looked at before the call leaves only while some key of the same collection or path
//! fails, whatever its length or framing, and for a moment at most. A name is enough, so a body is
//! read no further than to its name; a digest needs the whole body.

use std::{future::poll_fn, hash::RandomState, pin::pin, time::Duration};

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
        if !self.driver.keys().any_failing_in(collection) || cannot_tell(parts, &call.key) {
            return None;
        }
        let clock = self.driver.clock();
        let mut moment = pin!(clock.sleep(if self.shadow { Duration::ZERO } else { MOMENT }));
        let mut next_look = 1;
        while !intake.is_whole() && intake.len() <= PEEK {
            if intake.len() >= next_look {
                if let Some(key) = call.key.with_body(intake.beginning(PEEK), false, &self.hasher) {
                    return Some(key);
                }
                next_look = intake.len() * 2; // a body that comes byte by byte is not parsed at each of them
            }
            tokio::select! {
                biased;
                // A client that broke off is noticed when the body is read on.
                read = poll_fn(|cx| intake.poll_more(cx)) => read.ok()?,
                () = &mut moment => break,
            };
        }
        let whole = intake.is_whole();
        call.key.with_body(intake.beginning(PEEK + 1), whole, &self.hasher)
    }
}

/// The key of a call that was sent, from what was kept of its body.
pub(crate) fn body_key(source: &KeySource, kept: &Kept, hasher: &RandomState) -> (Option<Key>, Vec<u8>) {
    let start = kept.bytes().concat();
    (source.with_body(&start, kept.is_whole(), hasher), start)
}

/// Whether the body cannot tell the key: a digest needs all of it, and it is announced to be longer
/// than what is looked at.
fn cannot_tell(parts: &Parts, source: &KeySource) -> bool {
    let length = parts.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let is_long = length.and_then(|length| length.parse::<usize>().ok()).is_some_and(|length| length > PEEK);
    is_long && matches!(source, KeySource::BodyDigest { .. })
}

/// The beginning of a body comes with its head; one that does not is not waited for.
const MOMENT: Duration = Duration::from_millis(100);
