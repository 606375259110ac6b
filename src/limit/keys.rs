//! The keys for which failures are remembered: the failing ones, their delays, and when they are
//! forgotten.

mod backoff;
mod due;
mod failing;
mod id;
mod order;
mod table;

pub use self::failing::Keys;
pub(crate) use self::{
    backoff::Dice,
    due::Due,
    failing::{Failing, Spread},
    id::KeyId,
    order::{Order, Position},
    table::{Failure, Recorded, Table},
};
