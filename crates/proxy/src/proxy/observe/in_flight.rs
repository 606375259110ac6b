//! The end of a call: when its response body has ended, it no longer counts as in flight, and its
//! log line is written.

use crate::clock::Clock;
use crate::moment::Moment;
use crate::proxy::driver::{HeldSlot, TwinCall};
use crate::telemetry::{CallLog, CallRecord};

/// What a call holds until its response body has ended: its slot and its count as in flight.
/// Dropping it gives both back.
pub(crate) type CallHold = (Option<HeldSlot>, Option<InFlight>);

/// Counts a call as in flight until dropped, and then writes its line in the log.
#[derive(Debug)]
pub(crate) struct InFlight {
    gauge: metrics::Gauge,
    line: Option<Box<PendingRecord>>,
    /// The copies of the call: at the limiter of classes in shadow mode, and at the candidate's.
    pub(super) copies: [Option<TwinCall>; 2],
}

/// A log line of a call not ended yet.
#[derive(Debug)]
struct PendingRecord {
    log: CallLog,
    record: CallRecord,
    clock: Clock,
    /// The moment the client was answered.
    answered: Moment,
}

impl InFlight {
    pub(super) fn new(gauge: metrics::Gauge) -> Self {
        gauge.increment(1.0);
        Self { gauge, line: None, copies: [None, None] }
    }

    /// Keeps a line, to be written when the call ends.
    pub(super) fn write(&mut self, log: CallLog, record: CallRecord, clock: Clock) {
        self.line = Some(Box::new(PendingRecord { log, record, clock, answered: clock.now() }));
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.gauge.decrement(1.0);
        if let Some(pending) = self.line.take() {
            let PendingRecord { log, mut record, clock, answered } = *pending;
            let times = &mut record.times;
            times.ended = clock.now();
            times.body = times.sent.map(|_| times.ended - answered);
            log.record(record);
        }
    }
}
