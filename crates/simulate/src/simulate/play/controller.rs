//! A controller in virtual time: changing objects, and the calls of their reconciles.

use std::time::Duration;

use super::{Event, Maker, World};
use crate::config::scenario::{self, Requeue};
use crate::controller::{Controller, Overall, RateLimiter, ReconcileResult};
use crate::moment::Moment;
use crate::simulate::request::Request;
use crate::simulate::tally::Row;

/// A simulated controller: its queue, its objects and their calls.
pub(super) struct SimulatedController<'a> {
    pub(super) row: Row,
    /// The settings from the scenario.
    pub(super) spec: &'a scenario::ControllerModel,
    /// The index of the gate for the controller's calls; `None` if it calls the API directly.
    pub(super) gate: Option<usize>,
    /// The index of the owner of the queue and workers; usually this controller.
    owner: usize,
    /// The index of the controller's first object in that queue.
    first: usize,
    workers: Controller,
    objects: Vec<Object>,
}

/// The state of an object of a controller.
#[derive(Clone, Copy, Debug, Default)]
struct Object {
    /// The index of the current call in the list of a reconcile's calls.
    call: usize,
    /// True if the object's last call was answered with a failure.
    has_failed: bool,
    /// The time of the object's last change; `None` once it is reconciled.
    changed: Option<Moment>,
}

// === impl SimulatedController ===

impl<'a> SimulatedController<'a> {
    /// Creates a replica of a controller; `copy` is its index.
    pub(super) fn new(spec: &'a scenario::ControllerModel, copy: usize, step: Duration) -> Self {
        let name = if spec.replicas > 1 { format!("{} {}", spec.name, copy + 1) } else { spec.name.clone() };
        let limiter = match spec.requeue {
            Requeue::AtOnce => RateLimiter { base: Duration::ZERO, max: Duration::ZERO, overall: None },
            Requeue::Backoff { base, max, overall } => RateLimiter {
                base,
                max,
                overall: overall.map(|bucket| Overall { rate: bucket.rate, burst: bucket.burst }),
            },
        };
        let workers = if spec.workers == 0 { spec.objects } else { spec.workers };
        Self {
            row: Row::new(&name, step),
            spec,
            gate: spec.gate.checked_sub(1).map(|gate| gate + copy),
            owner: 0,
            first: 0,
            workers: Controller::new(limiter, spec.objects, workers),
            objects: vec![Object::default(); spec.objects],
        }
    }

    pub(super) fn into_row(mut self) -> Row {
        let late = self.objects.iter().filter(|object| object.changed.is_some()).count();
        self.row.unreconciled = u64::try_from(late).unwrap_or(u64::MAX);
        self.row
    }

    /// Adds the last of these controllers to the queue and workers of `owner`, perhaps its own.
    pub(super) fn join(all: &mut [Self], owner: usize) {
        let last = all.len() - 1;
        if owner != last {
            let items = all[last].objects.len();
            all[last].first = all[owner].workers.queue.grow(items);
        }
        all[last].owner = owner;
    }
}

// === impl World ===

impl World<'_> {
    pub(super) fn first_change(&mut self, index: usize) {
        let spec = self.controllers[index].spec;
        let gap = spec.changes.map_or(Duration::ZERO, |rate| self.gap(rate));
        self.events.schedule(Moment::ZERO + spec.from + gap, Event::Change(index));
    }

    /// Returns the random time until the next of independent events with this average rate.
    fn gap(&mut self, rate: f64) -> Duration {
        let gap = -(1.0 - self.random.fraction()).ln() / rate;
        Duration::try_from_secs_f64(gap).unwrap_or(Duration::MAX)
    }

    pub(super) fn change(&mut self, index: usize) {
        let now = self.events.now;
        let objects = self.controllers[index].objects.len();
        let spec = self.controllers[index].spec;
        match spec.changes {
            None => (0..objects).for_each(|object| self.change_object(index, object)),
            Some(rate) => {
                let object = self.random.below(objects);
                self.change_object(index, object);
                let next = now + self.gap(rate);
                if spec.to.is_none_or(|to| next <= Moment::ZERO + to) {
                    self.events.schedule(next, Event::Change(index));
                }
            }
        }
        self.start_reconciles(index);
    }

    fn change_object(&mut self, index: usize, object: usize) {
        let now = self.events.now;
        let SimulatedController { owner, first, objects, .. } = &mut self.controllers[index];
        objects[object].changed.get_or_insert(now);
        let item = *first + object;
        let owner = *owner;
        self.controllers[owner].workers.queue.add(item, now);
    }

    /// Starts a reconcile on every idle worker, as long as objects are due.
    pub(super) fn start_reconciles(&mut self, index: usize) {
        let owner = self.controllers[index].owner;
        while let Ok(item) = self.controllers[owner].workers.start(self.events.now) {
            let has_it = |one: &SimulatedController<'_>| one.owner == owner && one.first <= item;
            let index = self.controllers.iter().rposition(has_it).unwrap_or(owner);
            let object = item - self.controllers[index].first;
            self.controllers[index].objects[object].call = 0;
            self.next_call(index, object);
        }
    }

    fn next_call(&mut self, index: usize, object: usize) {
        let Object { call, has_failed, .. } = self.controllers[index].objects[object];
        let spec = self.controllers[index].spec;
        let request = Request {
            verb: spec.verbs[call],
            group: &spec.group,
            resource: &spec.resource,
            namespace: &spec.namespace,
            name: &format!("object-{object}"),
            user_agent: &spec.name,
            ..Request::default()
        };
        let read = self.reader.read(&request, &self.limits.gate);
        self.call(Maker::Worker { controller: index, object }, read, has_failed);
    }

    pub(super) fn succeeded(&mut self, index: usize, object: usize) {
        let now = self.events.now;
        let calls = self.controllers[index].spec.verbs.len();
        let controller = &mut self.controllers[index];
        let state = &mut controller.objects[object];
        state.has_failed = false;
        state.call += 1;
        if state.call < calls {
            return self.next_call(index, object);
        }
        // A change that came meanwhile is not yet reconciled.
        let owner = controller.owner;
        let item = controller.first + object;
        let is_dirty = self.controllers[owner].workers.queue.is_dirty(item, now);
        let controller = &mut self.controllers[index];
        let state = &mut controller.objects[object];
        if let Some(since) = std::mem::replace(&mut state.changed, is_dirty.then_some(now)) {
            controller.row.reconciled.add(now - since);
        }
        self.finish(index, object, ReconcileResult::Done);
    }

    /// Ends a reconcile after a failure response of the upstream.
    pub(super) fn failed(&mut self, index: usize, object: usize) {
        let controller = &mut self.controllers[index];
        controller.row.failed(self.events.now);
        controller.objects[object].has_failed = true;
        self.finish(index, object, ReconcileResult::Failed);
    }

    /// Ends a reconcile after a refusal by the gate.
    pub(super) fn refused_at(&mut self, index: usize, object: usize, retry_at: Moment) {
        let at_once = self.controllers[index].spec.requeue == Requeue::AtOnce;
        self.finish(
            index,
            object,
            if at_once { ReconcileResult::RequeueAt(retry_at) } else { ReconcileResult::Failed },
        );
    }

    fn finish(&mut self, index: usize, object: usize, result: ReconcileResult) {
        let SimulatedController { owner, first, .. } = self.controllers[index];
        let due = self.controllers[owner].workers.finish(first + object, result, self.events.now);
        if let Some(due) = due {
            self.events.schedule(due, Event::Requeue(owner));
        }
        self.start_reconciles(index);
    }
}
