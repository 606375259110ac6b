//! The key table (being built): failing keys only, bounded, readable without the limiter's lock.

use super::permit::Receipt;
use super::verdict::KeyState;
use crate::{
    api::{Answer, Key},
    moment::Moment,
};

/// What is remembered of failing keys.
#[derive(Debug)]
pub struct Keys {}

impl Keys {
    /// Whether an outcome changes nothing (the usual case: success of a healthy key), in which case the receipt is settled. No lock of the limiter needed.
    ///
    /// # Errors
    /// Gives the receipt back when `Limiter::finish` must be called with it.
    pub fn settle(&self, _receipt: Receipt, _answer: Answer) -> Result<(), Receipt> {
        todo!()
    }
    /// Whether any key of the collection fails, so that names in bodies are worth reading.
    #[must_use]
    pub fn any_failing_in(&self, _collection: u64) -> bool {
        todo!()
    }
    /// Failing keys.
    #[must_use]
    pub fn len(&self) -> usize {
        todo!()
    }
    /// Whether no key fails.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        todo!()
    }
    /// Every failing key by name, for the status page.
    #[must_use]
    pub fn list(&self, _now: Moment) -> Vec<(String, Key, KeyState)> {
        todo!()
    }
}
