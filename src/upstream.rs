//! The upstream: connections of our own, by group, with every stream accounted for (being built).
//!
//! Not hyper-util's legacy client: that keeps one HTTP/2 connection per authority, so the 101st watch hangs every other call behind it.
//! Takes only [`Admitted`](crate::limit::Admitted) requests.
