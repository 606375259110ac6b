//! `tidegate audit`: the callers with the most calls, calls repeated in vain, and the bucket each
//! caller needs.
//!
//! One pass over a log, in order of arrival and in bounded memory. `callers` counts each caller's
//! calls, `loops` finds calls repeated in vain, and `renewals` finds leases that were renewed late.
//! A second pass replays the loudest callers (`what_if`).

mod callers;
pub mod html;
mod loops;
mod over_time;
mod redact;
mod renewals;
pub mod report;
mod what_if;

use std::time::Duration;

use self::callers::Callers;
use self::loops::Loops;
use self::renewals::Renewals;
use super::replay::{Candidate, LogReader, LogSelection, ReadCounts, RecordedLog, ReplayError};
use crate::moment::Moment;

pub use self::callers::{CallerTotals, WorstSecond};
pub use self::over_time::PeakSeries;
pub use self::renewals::LateRenewal;
pub use self::what_if::{WhatIf, what_if};
pub use crate::hot::{FoundLoop, LoopKind};

/// The findings of a log.
#[derive(Debug)]
pub struct Audit {
    /// All callers, the loudest first.
    pub callers: Vec<CallerTotals>,
    /// The loops, those with the most calls first.
    pub loops: Vec<FoundLoop>,
    /// All calls over the time of the log.
    pub over_time: PeakSeries,
    /// The second with the most calls.
    pub worst: WorstSecond,
    /// The leases renewed late, the latest first.
    pub late: Vec<LateRenewal>,
    /// What a gate would have done; empty before [`what_if`].
    pub what_if: Vec<WhatIf>,
    /// The time of the first call since the Unix epoch.
    pub begins: Duration,
    /// Counts of the read lines.
    pub read: ReadCounts,
}

/// Finds the loud callers, the loops, and the late leases of a log.
///
/// # Errors
/// The log has no call, or none of the selected caller.
pub fn audit(logs: Vec<RecordedLog<'_>>, selection: &LogSelection) -> Result<Audit, ReplayError> {
    let limits = super::usual();
    let mut gate = Candidate::new(&limits);
    let mut reader = LogReader::new(selection);
    let mut callers = Callers::default();
    let mut loops = Loops::default();
    let mut renewals = Renewals::default();
    reader.files(logs, &mut |record| {
        let caller = callers.count(record, gate.tokens(record));
        loops.count(record, caller, &callers);
        renewals.count(record);
    })?;
    let begins = reader.origin().unwrap_or(Moment::ZERO).since_start();
    let read = reader.counts;
    let loops = loops.found();
    let worst = callers.worst();
    let over_time = callers.over_time().clone();
    let callers = callers.loudest(read.length);
    let late = renewals.late();
    Ok(Audit { callers, loops, over_time, worst, late, what_if: Vec::new(), begins, read })
}
