//! One stream of a live connection.

use crate::api::Group;

/// One stream of a live connection. Given back when dropped.
#[derive(Debug)]
#[must_use = "a lease is a stream: send on it, or drop it"]
pub struct Lease {
    group: Group,
}

impl Lease {
    /// The connections it is of.
    #[must_use]
    pub fn group(&self) -> Group {
        self.group
    }
}
