//! The keys for which failures are remembered: the failing ones, their delays, and when they are
//! forgotten.

mod backoff;
mod due;
mod failing;
mod id;
mod order;
mod table;

pub use self::failing::Keys;
pub(super) use self::{
    failing::Spread,
    id::KeyId,
    order::Stand,
    table::{Failure, Recorded, Table},
};
