//! The calls that wait: their records, the queues that they stand in, and the order in which they
//! leave.

mod estimate;
mod group;
mod held_calls;
mod lengths;
mod regroup;
mod scheduler;
mod shape_group;
mod timers;
mod waiter;
mod waiting;
mod waiting_bytes;
mod walk;

pub(crate) use self::{
    estimate::MinWait,
    group::{Mode, Queue, QueueGroup, QueueGroups, QueueKey},
    held_calls::HeldCalls,
    lengths::QueueLengths,
    regroup::Move,
    scheduler::{ClassTurns, Next, PASSED, Scheduler},
    shape_group::ShapeGroup,
    timers::{Timer, Timers},
    waiter::{By, KeyList, List, State, Waiter, Waiters},
    waiting::Waiting,
    walk::{LOOKED_AT_ONCE, STEPS, Step, Sweep, WaiterWalk},
};
