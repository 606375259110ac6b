//! The end of a call: its gauge goes down, and its line is written, when its response body has
//! ended.

use crate::clock::Clock;
use crate::moment::Moment;
use crate::proxy::driver::HeldSlot;
use crate::proxy::tally::TwinCall;
use crate::telemetry::{CallLog, CallRecord};

/// The resources of a call until its response body has ended. They are only ever dropped.
pub(crate) type CallHold = (Option<HeldSlot>, Option<InFlight>);

/// Counts a call as in flight until dropped, and then writes its line in the log.
#[derive(Debug)]
pub(crate) struct InFlight {
    gauge: metrics::Gauge,
    line: Option<Box<PendingRecord>>,
    /// The call at the gate's twin.
    pub(super) twin: Option<Box<TwinCall>>,
}

/// A line of the log before the end of the body.
#[derive(Debug)]
struct PendingRecord {
    log: CallLog,
    record: CallRecord,
    clock: Clock,
    /// The moment of the answer.
    answered: Moment,
}

impl InFlight {
    pub(super) fn new(gauge: metrics::Gauge) -> Self {
        gauge.increment(1.0);
        Self { gauge, line: None, twin: None }
    }

    /// Has this line written when the call ends.
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
