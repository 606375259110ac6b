//! The API of a scenario, with a response time, a capacity, and periods of failure.

use std::time::Duration;

use crate::config::scenario::{ControllerModel, FailureSpan, Upstream};
use crate::moment::Moment;

/// The API at work.
#[derive(Debug)]
pub(super) struct Server<'a> {
    spec: &'a Upstream,
    /// The time between two calls at full capacity.
    gap: Option<Duration>,
    /// When all accepted calls will have been served.
    free: Moment,
}

/// A coming answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerAnswer {
    pub(super) at: Moment,
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
}

// === impl Server ===

impl<'a> Server<'a> {
    pub(super) fn new(spec: &'a Upstream) -> Self {
        let gap = spec.capacity.map(|capacity| Duration::from_secs_f64(1.0 / capacity));
        Self { spec, gap, free: Moment::ZERO }
    }

    /// Accepts a call of a controller's object, or of a lease.
    pub(super) fn answer(&mut self, now: Moment, object: Option<(&ControllerModel, usize)>) -> ServerAnswer {
        let status = object.map_or(200, |(controller, object)| self.status(now, controller, object));
        let Some(gap) = self.gap else {
            return ServerAnswer { at: now + self.spec.latency, status, retry_after: None };
        };
        if self.free - now > FULL {
            return ServerAnswer {
                at: now + self.spec.latency,
                status: 429,
                retry_after: Some(Duration::from_secs(1)),
            };
        }
        self.free = self.free.max(now) + gap;
        ServerAnswer { at: self.free + self.spec.latency, status, retry_after: None }
    }

    fn status(&self, now: Moment, controller: &ControllerModel, object: usize) -> u16 {
        let concerned = |failure: &&FailureSpan| {
            let is_meant = failure.controllers.is_empty() || failure.controllers.contains(&controller.name);
            let from = Moment::ZERO + failure.from;
            let to = Moment::ZERO + failure.to;
            let share = float(object) < failure.share * float(controller.objects);
            is_meant && share && from <= now && now < to
        };
        self.spec.failures.iter().find(concerned).map_or(200, |failure| failure.status)
    }
}

/// Converts a number of objects to a float.
fn float(objects: usize) -> f64 {
    u32::try_from(objects).unwrap_or(u32::MAX).into()
}

/// The longest wait inside the API; it rejects further calls, as its own flow control does.
const FULL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_its_capacity_it_is_slower_and_then_turns_calls_away() {
        let spec = Upstream { latency: Duration::from_millis(5), capacity: Some(10.0), ..Upstream::default() };
        let mut server = Server::new(&spec);
        let answers: Vec<ServerAnswer> = (0..13).map(|_| server.answer(Moment::ZERO, None)).collect();
        assert_eq!(answers[0].at, Moment::from_millis(105));
        assert_eq!(answers[9].at, Moment::from_millis(1005));
        assert_eq!(answers.iter().filter(|answer| answer.status == 429).count(), 2);
        assert_eq!(server.answer(Moment::from_millis(500), None).status, 200, "some are served");
    }
}
