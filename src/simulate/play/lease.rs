//! The holder of a lease, which behaves as client-go's leader election does: it renews, and stops
//! leading if it could not renew for too long.

use std::sync::Arc;

use super::{Event, Who, World};
use crate::{
    api::Verb,
    config::scenario,
    moment::Moment,
    simulate::{request::Request, tally::LeaseRow},
};

/// A lease at one moment.
#[derive(Debug)]
pub(super) struct Lease {
    row: LeaseRow,
    deadline: std::time::Duration,
    /// The moment of the last renewal.
    renewed: Moment,
    /// The call that is under way, and its number.
    call: Option<u32>,
    attempt: u64,
}

// === impl Lease ===

impl Lease {
    pub(super) fn new(spec: &scenario::Lease) -> Self {
        let row = LeaseRow::new(&spec.name);
        Self { row, deadline: spec.deadline, renewed: Moment::ZERO, call: None, attempt: 0 }
    }

    pub(super) fn into_row(mut self, end: Moment) -> LeaseRow {
        let age = end - self.renewed;
        self.row.longest = self.row.longest.max(age);
        self.row.lost += u64::from(age > self.deadline);
        self.row.ages.push((end.since_start(), age));
        self.row
    }
}

// === impl World ===

impl World<'_> {
    pub(super) fn renew(&mut self, index: usize) {
        let spec = &self.scenario.leases[index];
        let request = Request {
            verb: Verb::Update,
            group: "coordination.k8s.io",
            resource: "leases",
            namespace: "default",
            name: &spec.name,
            subresource: "",
            user_agent: &spec.name,
            follows: false,
            dry_run: false,
        };
        let read = Arc::new(self.reader.read(&request, &self.limits.gate));
        let lease = &mut self.leases[index];
        lease.attempt += 1;
        let attempt = lease.attempt;
        // client-go's client for leases allows each call half of the deadline.
        self.agenda.put(self.now + spec.deadline / 2, Event::Impatient { lease: index, attempt });
        let call = self.call(Who::Lease(index), read, false);
        self.leases[index].call = Some(call).filter(|call| self.calls.contains(*call as usize));
    }

    /// Ends a call for a lease.
    pub(super) fn renewed(&mut self, index: usize, successfully: bool) {
        let (every, now) = (self.scenario.leases[index].every, self.now);
        let lease = &mut self.leases[index];
        lease.call = None;
        lease.attempt += 1;
        if successfully {
            let age = now - lease.renewed;
            lease.row.lost += u64::from(age > lease.deadline);
            lease.row.renewed(now, age);
            lease.renewed = now;
        }
        self.agenda.put(now + every, Event::Renew(index));
    }

    pub(super) fn impatient(&mut self, index: usize, attempt: u64) {
        let lease = &self.leases[index];
        let Some(call) = lease.call.filter(|_| lease.attempt == attempt) else { return };
        if self.gate.give_up(call, self.now) {
            self.calls.try_remove(call as usize);
            self.renewed(index, false);
        }
    }
}
