//! The load that the embedded API can bear: so many calls a second, and turning a call away costs
//! it something too. This is how real servers stay down after the cause is gone: they are busy
//! rejecting calls.

use crate::moment::Moment;

/// The cost of turning a call away, in calls: the connection, the parsing and the authentication
/// have happened by then.
const COST_OF_NO: f64 = 0.4;

/// The work that the API has room for.
#[derive(Debug)]
pub(super) struct Capacity {
    per_second: f64,
    room: f64,
    counted: Moment,
}

// === impl Capacity ===

impl Capacity {
    pub(super) fn new(per_second: u32) -> Self {
        Self { per_second: f64::from(per_second), room: f64::from(per_second) / 4.0, counted: Moment::ZERO }
    }

    /// True if a call at `now` can be served. A quarter of a second's work may come at once.
    pub(super) fn serves(&mut self, now: Moment) -> bool {
        let gained = (now - self.counted).as_secs_f64() * self.per_second;
        self.room = (self.room + gained).min(self.per_second / 4.0);
        self.counted = now;
        let serves = self.room >= 1.0;
        self.room = (self.room - if serves { 1.0 } else { COST_OF_NO }).max(0.0);
        serves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(capacity: &mut Capacity, second: u64, calls: u64) -> u64 {
        let times = (0..calls).map(|call| Moment::from_nanos(second * 1_000_000_000 + call * 1_000_000_000 / calls));
        times.filter(|now| capacity.serves(*now)).count() as u64
    }

    #[test]
    fn what_fits_is_served_and_a_flood_leaves_little_of_it() {
        let mut capacity = Capacity::new(100);
        assert_eq!(served(&mut capacity, 1, 100), 100);
        served(&mut capacity, 2, 200);
        let flooded = served(&mut capacity, 3, 200);
        assert!((25..45).contains(&flooded), "{flooded}");
        assert!(served(&mut capacity, 4, 400) < 5, "busy saying no");
        assert_eq!(served(&mut capacity, 6, 100), 100, "and well again when it is over");
    }
}
