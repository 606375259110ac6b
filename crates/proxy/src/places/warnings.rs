//! A limit on how often the same warning is logged.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::lock;
use crate::moment::Moment;

/// Limits each kind of warning to one a minute.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<BTreeMap<&'static str, Moment>>);

// === impl Warnings ===

impl Warnings {
    /// Returns true once a minute for each kind of warning.
    pub(crate) fn is_due(&self, kind: &'static str, now: Moment) -> bool {
        let mut logged = lock(&self.0);
        let is_due = logged.get(kind).is_none_or(|last| now.since(*last) >= AGAIN);
        if is_due {
            logged.insert(kind, now);
        }
        is_due
    }
}

const AGAIN: Duration = Duration::from_secs(60);
