//! The failing keys: their backoff, when each may be tried again, and when each is forgotten.

mod backoff;
mod failing;
mod id;
mod order;
mod table;

pub(crate) use self::backoff::{Dice, mix};
pub use self::failing::Keys;
pub(crate) use self::failing::{FailingKey, KeyView, ObjectChange, Spread};
pub(crate) use self::id::KeyId;
pub(crate) use self::order::{Order, Position};
pub(crate) use self::table::{KeyFailure, Table};
