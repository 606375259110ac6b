//! The state of the embedded API: its capacity, and its objects.

use std::time::Duration;

use super::record::RunRecord;
use super::scene::{CAPACITY, KINDS, OBJECTS, ObjectId};
use crate::moment::Moment;

/// The API's capacity and objects, and the record of the run.
#[derive(Debug)]
pub(super) struct World {
    pub(super) capacity: Capacity,
    objects: Vec<Vec<Object>>,
    pub(super) record: RunRecord,
}

/// An object in the embedded API.
#[derive(Clone, Copy, Debug, Default)]
struct Object {
    /// The number of changes of the wanted state.
    generation: u64,
    /// The moment of the oldest change that is not reconciled yet.
    behind: Option<Moment>,
}

/// A capacity in calls per second. Even a rejected call uses some of it: real servers stay
/// overloaded after the cause is gone, because they are busy rejecting calls.
#[derive(Debug)]
pub(super) struct Capacity {
    per_second: f64,
    room: f64,
    counted: Moment,
}

// === impl World ===

impl World {
    /// Creates the API's state, with all objects reconciled.
    pub(super) fn new() -> Self {
        let objects = vec![vec![Object::default(); OBJECTS]; KINDS.len()];
        Self { capacity: Capacity::new(CAPACITY), objects, record: RunRecord::new() }
    }

    /// Changes the wanted state of an object, as a user would, and returns its new generation.
    pub(super) fn change(&mut self, object: ObjectId, now: Moment) -> u64 {
        let Some(object) = self.object(object) else { return 0 };
        object.generation += 1;
        object.behind.get_or_insert(now);
        object.generation
    }

    /// Returns the generation of an object that is not yet reconciled.
    pub(super) fn wanted(&mut self, id: ObjectId) -> Option<u64> {
        self.object(id).filter(|object| object.behind.is_some()).map(|object| object.generation)
    }

    /// Records that a controller has reconciled an object's generation `observed`. Returns the time
    /// since the object's change, if there is no later one.
    pub(super) fn report(&mut self, id: ObjectId, observed: u64, now: Moment) -> Option<Duration> {
        let object = self.object(id).filter(|object| observed >= object.generation)?;
        object.behind.take().map(|since| now - since)
    }

    /// Returns the number of objects whose last change has not been reconciled for longer than
    /// `patience`.
    pub(super) fn overdue(&self, now: Moment, patience: Duration) -> usize {
        self.objects.iter().flatten().filter(|it| it.behind.is_some_and(|since| now - since > patience)).count()
    }

    fn object(&mut self, id: ObjectId) -> Option<&mut Object> {
        self.objects.get_mut(id.kind)?.get_mut(id.number)
    }
}

// === impl Capacity ===

impl Capacity {
    fn new(per_second: u32) -> Self {
        Self { per_second: f64::from(per_second), room: f64::from(per_second) / 4.0, counted: Moment::ZERO }
    }

    /// Returns true if the API can serve a call at `now`, and counts the call. A burst may use the
    /// capacity of a quarter second.
    pub(super) fn serves(&mut self, now: Moment) -> bool {
        let gained = (now - self.counted).as_secs_f64() * self.per_second;
        self.room = (self.room + gained).min(self.per_second / 4.0);
        self.counted = now;
        let serves = self.room >= 1.0;
        self.room = (self.room - if serves { 1.0 } else { REJECTION_COST }).max(0.0);
        serves
    }
}

/// The cost of rejecting a call, as a fraction of serving one: connection, parsing and
/// authentication are done by then.
const REJECTION_COST: f64 = 0.4;

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

    #[test]
    fn an_object_is_behind_until_its_last_change_is_reported() {
        let mut world = World::new();
        let object = ObjectId { kind: 0, number: 3 };
        let old = world.change(object, Moment::ZERO);
        let new = world.change(object, Moment::from_millis(5));
        assert_eq!(world.report(object, old, Moment::from_millis(6)), None);
        assert_eq!(world.overdue(Moment::from_millis(7), Duration::ZERO), 1);
        let took = world.report(object, new, Moment::from_millis(7));
        assert_eq!(world.overdue(Moment::MAX, Duration::ZERO), 0);
        assert_eq!(took, Some(Duration::from_millis(7)));
    }
}
