//! The leader of a lease, in virtual time.

use super::{Event, Maker, ONLY, World};
use crate::api::Verb;
use crate::config::scenario;
use crate::controller::LeaseHolder;
use crate::moment::Moment;
use crate::simulate::request::Request;
use crate::simulate::tally::LeaseRow;

/// The state of a simulated lease.
#[derive(Debug)]
pub(super) struct Lease {
    row: LeaseRow,
    holder: LeaseHolder,
    /// The index of the current call.
    call: usize,
}

// === impl Lease ===

impl Lease {
    pub(super) fn new(spec: &scenario::Lease) -> Self {
        let row = LeaseRow { name: spec.name.clone(), ..LeaseRow::default() };
        Self { row, holder: LeaseHolder::new(spec.every, spec.deadline), call: 0 }
    }

    pub(super) fn into_row(mut self, end: Moment) -> LeaseRow {
        let (age, lost) = self.holder.age(end);
        self.row.longest = self.row.longest.max(age);
        self.row.lost += u64::from(lost);
        self.row.ages.push((end.since_start(), age));
        self.row
    }
}

// === impl World ===

impl World<'_> {
    /// Begins an attempt to renew a lease.
    pub(super) fn renew(&mut self, index: usize) {
        let spec = &self.scenario.leases[index];
        let request = Request {
            verb: Verb::Update,
            group: "coordination.k8s.io",
            resource: "leases",
            namespace: "default",
            name: &spec.name,
            user_agent: &spec.name,
            ..Request::default()
        };
        let read = self.reader.read(&request, &self.limits.gate);
        let holder = &mut self.leases[index].holder;
        let attempt = holder.begin(self.events.now);
        self.events.schedule(self.events.now + holder.timeout(), Event::Timeout { lease: index, attempt });
        self.leases[index].call = self.call(Maker::LeaseHolder(index), read, false);
    }

    /// Ends an attempt to renew a lease.
    pub(super) fn attempted(&mut self, index: usize, renewed: bool) {
        let lease = &mut self.leases[index];
        let attempt = lease.holder.end(renewed, self.events.now);
        if renewed {
            lease.row.lost += u64::from(attempt.lost);
            lease.row.renewed(self.events.now, attempt.age);
        }
        self.events.schedule(attempt.next, Event::Renew(index));
    }

    pub(super) fn timed_out(&mut self, index: usize, attempt: u64) {
        let lease = &self.leases[index];
        if lease.holder.is_under_way(attempt) && self.events.give_up(ONLY, lease.call) {
            self.calls.remove(lease.call);
            self.attempted(index, false);
        }
    }
}
