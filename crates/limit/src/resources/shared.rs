//! Shared buckets: one bucket for all gates with its name.
//!
//! Its state is one number in a store, which moves by the rules of the [`Ledger`]. Each gate that
//! uses it is a *member* and holds *tokens*: rights to send one call each, from one moment until
//! another. It [asks](Ask) for more ahead of need while there is plenty, and for as many as its
//! waiting calls need while there is not. Spending is local, and the gate's own bucket stays in
//! force beside it. A split bucket is a shared bucket for each [`BucketPart`], and all parts that
//! are due ask together.
//!
//! P13: in t seconds all members together send at most `max(burst, 1 + rate * lease) + rate * t`
//! calls. Each call spends its token at most one lease after the store made it available. The calls
//! that leases may add at one moment are subtracted from the store's burst beforehand.

mod ask;
mod demand;
mod ledger;
mod member;
mod outage;
mod questions;
mod tokens;

pub use self::ask::{
    Ask, AskId, BucketPart, Fallback, MOST_PAUSES, PauseNotice, SharedLimits, StoreAnswer, StoreFailure, Wish,
};
pub use self::ledger::Ledger;
pub(crate) use self::member::{Member, News, Want};
pub use self::member::{SharedView, TokenTally};
pub use self::questions::Questions;
pub(crate) use self::questions::RESERVED;
