//! Shared buckets: one bucket for all gates that name it.
//!
//! Its state is one number in a store, which moves by the rules of the [`Ledger`]. Each gate that
//! uses it is a *member* and holds *tokens* of its own: rights to send one call each, from a moment
//! on and until another. It [asks](Ask) for more ahead of need while there is plenty, and for as
//! many as its waiting calls need while there is not. Spending is local. The gate's own bucket
//! stays in force beside it. A bucket that is split is a shared bucket for each [`BucketPart`], and all
//! parts that are due ask together.
//!
//! P13: in t seconds all members together send at most `max(burst, 1 + rate * lease) + rate * t`
//! calls. Each call spends its token at most one lease after the store made it available, and what
//! leases may add to a moment is taken from the store's burst beforehand.

mod ask;
mod cells;
mod demand;
mod ledger;
mod member;
mod outage;
mod questions;
mod tokens;

pub use self::ask::{Ask, AskId, BucketPart, Fallback, SharedLimits, StoreAnswer, StoreFailure};
pub(crate) use self::cells::SharedBuckets;
pub use self::ledger::Ledger;
pub use self::member::SharedView;
pub(crate) use self::member::{News, SharedPause, Want};
pub use self::questions::Questions;
