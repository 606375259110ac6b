//! The last errors of failing keys, in the upstream's own words, for people.
//!
//! They are stored outside the limiter: an error's text may take more memory than everything else
//! about its key.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body::Frame;

use super::Tally;
use crate::api::Key;
use crate::api::signals::{ErrorBody, ErrorWords};
use crate::limit::Keys;
use crate::lock;
use crate::moment::Moment;

/// The last errors of failing keys, the latest at the end.
#[derive(Debug, Default)]
pub(crate) struct LastErrors(Mutex<VecDeque<KeyError>>);

#[derive(Debug)]
struct KeyError {
    key: Key,
    status: Option<u16>,
    words: ErrorWords,
}

/// An error response while its body flows to the client. It is recorded when dropped.
pub(crate) struct FailingAnswer {
    pub(crate) tally: Arc<Tally>,
    pub(crate) key: Key,
    pub(crate) status: Option<u16>,
    /// The beginning of the body; `None` if it cannot be read.
    pub(crate) body: Option<ErrorBody>,
}

// === impl LastErrors ===

impl LastErrors {
    /// Returns the last recorded error of a key, if it had this status.
    pub(crate) fn find(&self, key: &Key, status: Option<u16>) -> Option<ErrorWords> {
        let errors = lock(&self.0);
        let error = errors.iter().rev().find(|error| error.key == *key).filter(|error| error.status == status)?;
        Some(error.words.clone())
    }

    /// Drops the errors of keys no longer failing. Called every second.
    pub(crate) fn sweep(&self, keys: &Keys, now: Moment) {
        lock(&self.0).retain(|error| keys.find(&error.key, now).is_some());
    }

    fn note(&self, error: KeyError) {
        let mut errors = lock(&self.0);
        errors.retain(|known| known.key != error.key);
        if errors.len() >= MOST {
            errors.pop_front();
        }
        errors.push_back(error);
    }
}

// === impl FailingAnswer ===

impl FailingAnswer {
    /// Adds a frame to the beginning of the body. Returns false once enough was recorded.
    pub(crate) fn keep(&mut self, frame: &Frame<Bytes>) -> bool {
        self.body.as_mut().zip(frame.data_ref()).is_some_and(|(body, data)| body.add(data))
    }
}

impl Drop for FailingAnswer {
    fn drop(&mut self) {
        let words = self.body.as_ref().map(ErrorBody::words).unwrap_or_default();
        self.tally.errors.note(KeyError { key: self.key, status: self.status, words });
    }
}

/// The most errors to keep: a hundred are shown, and all may fail at once.
const MOST: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn error(object: u64, status: u16, code: &str) -> KeyError {
        let words = ErrorWords { code: code.to_owned(), message: "secret".to_owned() };
        KeyError { key: Key { object, collection: 0, facet: 0 }, status: Some(status), words }
    }

    #[test]
    fn each_key_has_the_words_of_its_last_answer() {
        let errors = LastErrors::default();
        [error(1, 500, "a"), error(2, 500, "b"), error(1, 500, "c")].into_iter().for_each(|error| errors.note(error));
        let find = |object, status| errors.find(&error(object, 0, "").key, Some(status)).map(|words| words.code);
        assert_eq!((find(1, 500).as_deref(), find(2, 500).as_deref(), find(3, 500)), (Some("c"), Some("b"), None));
        assert_eq!(find(1, 503), None, "another answer has come since");
        assert!(!format!("{errors:?}").contains("secret"));
    }

    #[test]
    fn errors_are_dropped_with_their_keys_and_bounded() {
        let errors = LastErrors::default();
        (0..5000).for_each(|object| errors.note(error(object, 500, "a")));
        assert_eq!(lock(&errors.0).len(), MOST);
        assert!(errors.find(&error(4999, 0, "").key, Some(500)).is_some(), "the latest are kept");
        errors.sweep(&Keys::default(), Moment::ZERO);
        assert!(lock(&errors.0).is_empty());
    }
}
