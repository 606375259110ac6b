//! Reads `per_key`: how often one object may be written and read.

use std::num::NonZeroU32;

use super::cursor::Cursor;
use super::limits::{is_rate, takes_centuries};
use super::rate::Rate;
use super::values::OrOff;
use crate::hot;

/// The rates for writes and reads of one object, as configured.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerKey {
    writes: Option<Rate>,
    reads: Option<Rate>,
    burst: NonZeroU32,
    enforce: bool,
}

// === impl PerKey ===

impl PerKey {
    /// Converts the rates to the form used while calls are counted.
    pub(super) fn paces(self) -> hot::PerKey {
        let pace = |rate: Rate| hot::Pace::new(rate.in_a_second(), self.burst);
        hot::PerKey { writes: self.writes.map(pace), reads: self.reads.map(pace), enforce: self.enforce }
    }
}

/// Reads how often one object may be written and read; `gate` has the values for keys not set here.
pub(super) fn per_key(at: &Cursor<'_>, gate: Option<PerKey>) -> Option<PerKey> {
    let at = at.limit_over("per_key", gate.is_some());
    let usual = gate.unwrap_or(USUAL);
    let rate = |name: &str, usual| {
        let OrOff(written) = at.get(name, OrOff(usual));
        written.filter(|rate| is_rate(*rate, &at.at(name)))
    };
    let writes = rate("writes", usual.writes);
    let reads = rate("reads", usual.reads);
    let burst = at.get("burst", usual.burst);
    let fills = |name: &str, rate: &Rate| {
        let is_slow = takes_centuries(rate.in_a_second(), burst);
        if is_slow {
            let rate = rate.describe();
            let message = format!("is {rate}, too slow to ever fill a burst of {burst}; expected a higher rate");
            at.at(name).given(&[&at.at(name), &at.at("burst")]).problem(message);
        }
        !is_slow
    };
    let writes = writes.filter(|rate| fills("writes", rate));
    let reads = reads.filter(|rate| fills("reads", rate));
    let enforce = at.get("enforce", usual.enforce);
    if at.is_table() && writes.is_none() && reads.is_none() {
        let given = [&at.at("writes"), &at.at("reads")];
        at.given(&given).problem("has no rate; set one for writes or reads, or per_key = \"off\"");
    }
    at.has_effect().then_some(PerKey { writes, reads, burst, enforce })
}

const USUAL: PerKey = PerKey { writes: Some(Rate::per_second(1.0)), reads: None, burst: TEN, enforce: false };
const TEN: NonZeroU32 = NonZeroU32::new(10).expect("ten is not zero");
