//! The API of a scenario, with its response time, capacity or seats, and periods of failure.

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::scenario::{ControllerModel, FailureSpan, Upstream};
use crate::moment::Moment;
use crate::random::Random;

/// The simulated API.
#[derive(Debug)]
pub(super) struct Server<'a> {
    spec: &'a Upstream,
    /// The time between two calls at full load; `None` without a capacity.
    gap: Option<Duration>,
    /// When the API will have served all calls accepted so far.
    free: Moment,
    /// The number of calls in seats: they are being served.
    seated: u32,
    /// The flows with waiting calls. The first one is served next.
    waiting: VecDeque<WaitingFlow>,
    /// The source of the time of a call in a seat.
    random: Random,
}

/// The waiting calls of one controller: a flow, in terms of API priority and fairness.
#[derive(Debug)]
struct WaitingFlow {
    controller: usize,
    calls: VecDeque<usize>,
}

/// A future response: its status and its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerAnswer {
    pub(super) at: Moment,
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
    /// True if the call occupies a seat until its end.
    pub(super) seated: bool,
}

// === impl Server ===

impl<'a> Server<'a> {
    pub(super) fn new(spec: &'a Upstream) -> Self {
        let gap = spec.capacity.map(|capacity| Duration::from_secs_f64(1.0 / capacity));
        Self { spec, gap, free: Moment::ZERO, seated: 0, waiting: VecDeque::new(), random: Random::new(0) }
    }

    /// Accepts a call of a controller, for an API with seats. Returns its response, or `None` if
    /// the call waits for a seat.
    ///
    /// Controllers take turns, as in API priority and fairness. Leases have seats of their own.
    pub(super) fn accept(&mut self, now: Moment, call: usize, controller: usize, status: u16) -> Option<ServerAnswer> {
        let seats = self.spec.seats?;
        if self.seated < seats {
            self.seated += 1;
            return Some(self.seat(now, status));
        }
        let flow = self.waiting.iter_mut().find(|flow| flow.controller == controller);
        match flow {
            None => self.waiting.push_back(WaitingFlow { controller, calls: VecDeque::from([call]) }),
            Some(flow) if flow.calls.len() < MOST_WAITING => flow.calls.push_back(call),
            Some(_) => return Some(ServerAnswer { at: now + REJECTED, ..ServerAnswer::rejection() }),
        }
        None
    }

    /// Returns the next waiting call, to take over the seat of a call just ended. If no call waits,
    /// frees the seat.
    pub(super) fn next_call(&mut self) -> Option<usize> {
        let Some(mut flow) = self.waiting.pop_front() else {
            self.seated -= 1;
            return None;
        };
        let call = flow.calls.pop_front();
        if !flow.calls.is_empty() {
            self.waiting.push_back(flow);
        }
        call
    }

    /// Returns the response to a call given a seat now. It takes between half of the latency and
    /// one and a half, because if all took the same time, the API would never be full by chance.
    pub(super) fn seat(&mut self, now: Moment, status: u16) -> ServerAnswer {
        let latency = self.spec.latency.mul_f64(0.5 + self.random.fraction());
        ServerAnswer { at: now + latency, status, retry_after: None, seated: true }
    }

    /// Returns true if the API limits the number of calls served at a time, by seats.
    pub(super) fn has_seats(&self) -> bool {
        self.spec.seats.is_some()
    }

    /// Accepts a call without a seat, and returns its response. `object` is the controller and the
    /// index of its object; `None` for a lease.
    pub(super) fn answer(&mut self, now: Moment, object: Option<(&ControllerModel, usize)>) -> ServerAnswer {
        let status = object.map_or(200, |(controller, object)| self.status(now, controller, object));
        let Some(gap) = self.gap else {
            return ServerAnswer { at: now + self.spec.latency, status, retry_after: None, seated: false };
        };
        if self.free - now > FULL {
            return ServerAnswer { at: now + self.spec.latency, ..ServerAnswer::rejection() };
        }
        self.free = self.free.max(now) + gap;
        ServerAnswer { at: self.free + self.spec.latency, status, retry_after: None, seated: false }
    }

    pub(super) fn status(&self, now: Moment, controller: &ControllerModel, object: usize) -> u16 {
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

// === impl ServerAnswer ===

impl ServerAnswer {
    /// Returns the response to a call beyond the capacity.
    const fn rejection() -> Self {
        Self { at: Moment::ZERO, status: 429, retry_after: Some(Duration::from_secs(1)), seated: false }
    }
}

/// Converts a number of objects to a float.
fn float(objects: usize) -> f64 {
    u32::try_from(objects).unwrap_or(u32::MAX).into()
}

/// The longest wait inside the API. It rejects further calls, as kube-apiserver's flow control
/// does.
const FULL: Duration = Duration::from_secs(1);
/// The most waiting calls of a controller. In kube-apiserver, a flow has six queues of fifty calls.
const MOST_WAITING: usize = 300;
/// The time until a rejection.
const REJECTED: Duration = Duration::from_millis(1);

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
