//! The calls that wait: their records, the queues that they stand in, and the order in which they
//! leave.

mod estimate;
mod group;
mod held_calls;
mod lengths;
mod regroup;
mod scheduler;
mod shape_group;
mod stops;
mod timers;
mod waiter;
mod waiting;
mod waiting_bytes;
mod walk;

pub(crate) use self::estimate::MinWait;
pub(crate) use self::group::{Mode, Queue, QueueGroup, QueueGroups, QueueKey};
pub(crate) use self::held_calls::HeldCalls;
pub(crate) use self::lengths::QueueLengths;
pub(crate) use self::regroup::Move;
pub(crate) use self::scheduler::{ClassTurns, Next, PASSED, Scheduler};
pub(crate) use self::shape_group::{Limit, ShapeGroup};
pub(crate) use self::timers::{Timer, Timers};
pub(crate) use self::waiter::{By, KeyList, List, State, Waiter, Waiters};
pub(crate) use self::waiting::Waiting;
pub(crate) use self::waiting_bytes::WaitingBytes;
pub(crate) use self::walk::{LOOKED_AT_ONCE, STEPS, Step, Sweep, WaiterWalk};
