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
mod walk;

pub(super) use self::{
    estimate::MinWait,
    group::{Queue, QueueKey},
    regroup::Move,
    scheduler::{ClassTurns, Next, Scheduler},
    timers::Timer,
    waiter::{KeyList, State, Waiter},
    waiting::Waiting,
    walk::{LOOKED_AT_ONCE, STEPS, Step, Sweep, WaiterWalk},
};
