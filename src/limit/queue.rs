//! The calls that wait: their records, the queues that they stand in, and the order in which they
//! leave.

pub(crate) mod estimate;
pub(crate) mod group;
pub(crate) mod held_calls;
pub(crate) mod lengths;
pub(crate) mod regroup;
pub(crate) mod scheduler;
pub(crate) mod shape_group;
pub(crate) mod timers;
pub(crate) mod waiter;
pub(crate) mod waiting_bytes;
pub(crate) mod walk;
