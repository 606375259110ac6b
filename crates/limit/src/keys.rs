//! The keys for which failures are remembered: the failing ones, their delays, and when they are
//! forgotten.

mod backoff;
mod due;
mod failing;
mod id;
mod order;
mod table;

pub(crate) use self::backoff::{Dice, mix};
pub(crate) use self::due::Due;
pub use self::failing::Keys;
pub(crate) use self::failing::{Failing, Spread, View};
pub(crate) use self::id::KeyId;
pub(crate) use self::order::{Order, Position};
pub(crate) use self::table::{Failure, Recorded, Table};
