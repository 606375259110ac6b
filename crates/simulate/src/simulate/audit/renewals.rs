//! Late renewals of leaders' leases. A leader renews its lease every few seconds.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use crate::moment::Moment;
use crate::simulate::replay::{CallEnd, Record};

/// A lease, and its longest time without a renewal.
#[derive(Clone, Debug)]
pub struct LateRenewal {
    /// The namespace and the name.
    pub lease: String,
    /// The time from one renewal to the next.
    pub gap: Duration,
    /// The end of the gap, as the time since the first call of the log.
    pub at: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Renewals {
    /// By namespace and name.
    leases: HashMap<(String, Rc<str>), Lease>,
}

#[derive(Debug, Default)]
struct Lease {
    renewals: u32,
    first: Moment,
    last: Moment,
    longest: Duration,
    longest_ends: Moment,
}

// === impl Renewals ===

impl Renewals {
    pub(super) fn count(&mut self, record: &Record) {
        let request = &record.request;
        let is_renewal = request.resource == "leases" && !request.verb.is_read() && !record.object.name.is_empty();
        let CallEnd::Answered { status: 200..300, after, .. } = record.ending else { return };
        if !is_renewal || self.leases.len() > MOST_LEASES {
            return;
        }
        let at = record.at + after;
        let lease = self.leases.entry((request.namespace.clone(), Rc::clone(&record.object.name))).or_default();
        lease.renewals += 1;
        if lease.renewals == 1 {
            lease.first = at;
        } else if at.since(lease.last) > lease.longest {
            lease.longest = at.since(lease.last);
            lease.longest_ends = at;
        }
        lease.last = at;
    }

    /// Returns the leases renewed later than half of a leader's usual term, the latest first.
    pub(super) fn late(self) -> Vec<LateRenewal> {
        let is_leaders =
            |lease: &Lease| lease.renewals > LEAST && lease.last.since(lease.first) / lease.renewals < OFTEN;
        let late = self.leases.into_iter().filter(|(_, lease)| is_leaders(lease) && lease.longest > HALF_A_TERM);
        let mut late: Vec<_> = late
            .map(|((namespace, name), lease)| LateRenewal {
                lease: format!("{namespace}/{name}"),
                gap: lease.longest,
                at: lease.longest_ends.since_start(),
            })
            .collect();
        late.sort_by(|one, other| other.gap.cmp(&one.gap).then_with(|| one.lease.cmp(&other.lease)));
        late
    }
}

/// Half of client-go's 15 s, after which a leader that has not renewed is replaced.
const HALF_A_TERM: Duration = Duration::from_millis(7500);
/// The mean time between renewals of a leader's lease is below this one; a node renews every 10 s.
const OFTEN: Duration = Duration::from_secs(5);
/// Fewer renewals say nothing of the mean.
const LEAST: u32 = 5;
const MOST_LEASES: usize = 20_000;
