//! Reads how often one object may be written and read.

use std::num::NonZeroU32;

use super::cursor::Cursor;
use super::limits::{is_rate, takes_centuries};
use super::presets::Preset;
use super::rate::{Rate, RateOrOff};
use crate::classify::ApiKind;
use crate::hot;

/// The rates at which one object may be written and read, as they were configured.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerKey {
    writes: Option<Rate>,
    reads: Option<Rate>,
    burst: NonZeroU32,
    enforce: bool,
}

// === impl PerKey ===

impl PerKey {
    /// Returns what a gate starts from: on Kubernetes, objects that are written too often are
    /// named, and with preset `crossplane` their writes are refused. Presets that remember no
    /// failure know no key either, and do not begin to for this.
    pub(super) fn of_preset(kind: ApiKind, preset: Preset) -> Option<Self> {
        match (kind, preset) {
            (ApiKind::Http, _) | (_, Preset::ClientGo | Preset::None) => None,
            (ApiKind::Kubernetes, Preset::Crossplane) => {
                Some(Self { writes: Some(Rate::per_second(0.5)), burst: THIRTY, enforce: true, ..USUAL })
            }
            (ApiKind::Kubernetes, _) => Some(USUAL),
        }
    }

    /// Returns it as the gate uses it.
    pub(super) fn paces(self) -> hot::PerKey {
        let pace = |rate: Rate| hot::Pace::new(rate.in_a_second(), self.burst);
        hot::PerKey { writes: self.writes.map(pace), reads: self.reads.map(pace), enforce: self.enforce }
    }
}

/// Reads how often one object may be called: `base` with what the table changes.
pub(super) fn per_key(at: &Cursor<'_>, base: Option<PerKey>) -> Option<PerKey> {
    let (at, base) = at.over(base);
    let is_on = base.is_some() || at.is_table();
    let usual = base.unwrap_or(USUAL);
    let rate = |name: &str, usual| {
        let RateOrOff(written) = at.get(name, RateOrOff(usual));
        written.filter(|rate| is_rate(*rate, &at.at(name)))
    };
    let writes = rate("writes", usual.writes);
    let reads = rate("reads", usual.reads);
    let burst = at.get("burst", usual.burst);
    let fills = |name: &str, rate: &Rate| {
        let is_slow = takes_centuries(rate.in_a_second(), burst);
        if is_slow {
            let rate = rate.describe();
            let message = format!("is {rate}, too slow for a burst of {burst}: it would take centuries to fill");
            at.at(name).given(&[&at.at(name), &at.at("burst")]).problem(message);
        }
        !is_slow
    };
    let writes = writes.filter(|rate| fills("writes", rate));
    let reads = reads.filter(|rate| fills("reads", rate));
    let enforce = at.get("enforce", usual.enforce);
    if at.is_table() && writes.is_none() && reads.is_none() {
        let given = [&at.at("writes"), &at.at("reads")];
        at.given(&given).problem("counts nothing: expected a rate of writes or reads, or per_key = \"off\"");
    }
    is_on.then_some(PerKey { writes, reads, burst, enforce })
}

/// Nothing that is healthy writes one object every second for a minute; a lock is written every
/// other second.
const USUAL: PerKey = PerKey { writes: Some(Rate::per_second(1.0)), reads: None, burst: TEN, enforce: false };
const TEN: NonZeroU32 = NonZeroU32::new(10).expect("ten is not zero");
/// A composite resource is written many times when it is made.
const THIRTY: NonZeroU32 = NonZeroU32::new(30).expect("thirty is not zero");
