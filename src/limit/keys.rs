//! The keys for which failures are remembered: the failing ones, their delays, and when they are
//! forgotten.

pub(crate) mod backoff;
pub(crate) mod due;
pub(crate) mod failing;
pub(crate) mod id;
pub(crate) mod order;
pub(crate) mod table;

pub use self::failing::Keys;
