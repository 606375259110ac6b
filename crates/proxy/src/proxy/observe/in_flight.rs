//! The end of a call: its gauge goes down, and its line is written, when its response body has
//! ended.

use crate::clock::Clock;
use crate::moment::Moment;
use crate::proxy::driver::HeldSlot;
use crate::telemetry::{CallLog, CallRecord};

/// Everything that a call holds until its response body has ended. It is only ever dropped.
pub(crate) type Held = (Option<HeldSlot>, Option<InFlight>);

/// Counts a call as in flight until dropped, and then writes its line in the log.
#[derive(Debug)]
pub(crate) struct InFlight {
    gauge: metrics::Gauge,
    line: Option<Box<Pending>>,
}

/// A line of the log that lacks only the end of the body.
#[derive(Debug)]
struct Pending {
    log: CallLog,
    record: CallRecord,
    clock: Clock,
    /// The moment at which the client was answered.
    answered: Moment,
}

impl InFlight {
    pub(super) fn new(gauge: metrics::Gauge) -> Self {
        gauge.increment(1.0);
        Self { gauge, line: None }
    }

    /// Has this line written when the call ends.
    pub(super) fn write(&mut self, log: CallLog, record: CallRecord, clock: Clock) {
        self.line = Some(Box::new(Pending { log, record, clock, answered: clock.now() }));
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.gauge.decrement(1.0);
        if let Some(pending) = self.line.take() {
            let Pending { log, mut record, clock, answered } = *pending;
            let times = &mut record.times;
            times.ended = clock.now();
            times.body = times.sent.map(|_| times.ended - answered);
            log.record(record);
        }
    }
}
