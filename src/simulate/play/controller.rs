//! A controller: objects that change, workers, and a work queue like client-go's (an object is
//! queued once, and never worked on twice at the same time).

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{Event, Who, World};
use crate::{
    config::scenario::{self, Changes, Requeue},
    limit::ClassId,
    moment::Moment,
    simulate::{
        request::{Read, Request},
        tally::Row,
    },
};

/// A controller at work.
pub(super) struct Controller {
    pub(super) row: Row,
    queue: VecDeque<u32>,
    busy: usize,
    workers: usize,
    objects: Vec<Object>,
    /// Each call of a reconcile as the gate reads it, by verb: for the last object, and the parts
    /// that differ by object.
    reads: Vec<Option<Arc<Read>>>,
    keys: Vec<Vec<Option<ByName>>>,
}

/// The parts that depend on an object's name.
#[derive(Clone, Copy, Debug)]
struct ByName {
    class: ClassId,
    group: crate::api::Group,
    key: Option<crate::api::Key>,
}

/// An object at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Object {
    queued: bool,
    worked_on: bool,
    /// True if the object changed while a worker had it.
    dirty: bool,
    /// The call of its reconcile that is under way.
    verb: usize,
    /// The reconciles that failed in a row, for the queue's own backoff.
    failures: u32,
    /// True if its last call was answered with a failure.
    has_failed: bool,
    /// The moment since which it has waited to be reconciled.
    changed: Option<Moment>,
}

// === impl Controller ===

impl Controller {
    pub(super) fn new(spec: &scenario::Controller, step: Duration) -> Self {
        Self {
            row: Row::new(&spec.name, step),
            queue: VecDeque::new(),
            busy: 0,
            workers: spec.workers.unwrap_or(usize::MAX),
            objects: vec![Object::default(); spec.objects],
            reads: vec![None; spec.verbs.len()],
            keys: vec![Vec::new(); spec.verbs.len()],
        }
    }

    pub(super) fn into_row(mut self) -> Row {
        let late = self.objects.iter().filter(|object| object.changed.is_some()).count();
        self.row.unreconciled = u64::try_from(late).unwrap_or(u64::MAX);
        self.row
    }

    /// Queues an object, unless it is already queued or in work.
    pub(super) fn add(&mut self, object: u32) {
        let state = &mut self.objects[object as usize];
        if state.worked_on {
            state.dirty = true;
        } else if !state.queued {
            state.queued = true;
            self.queue.push_back(object);
        }
    }

    fn change(&mut self, object: u32, now: Moment) {
        self.objects[object as usize].changed.get_or_insert(now);
        self.add(object);
    }

    /// Returns the next object for a free worker.
    fn next(&mut self) -> Option<u32> {
        if self.busy >= self.workers {
            return None;
        }
        let object = self.queue.pop_front()?;
        let state = &mut self.objects[object as usize];
        (state.queued, state.worked_on, state.verb) = (false, true, 0);
        self.busy += 1;
        Some(object)
    }

    /// Ends the work on an object.
    fn done(&mut self, object: u32) {
        self.busy -= 1;
        let state = &mut self.objects[object as usize];
        state.worked_on = false;
        if std::mem::take(&mut state.dirty) {
            self.add(object);
        }
    }
}

// === impl World ===

impl World<'_> {
    pub(super) fn first_change(&mut self, index: usize) {
        let at = match self.scenario.controllers[index].changes {
            Changes::Together { at } => at,
            Changes::Steadily { rate, from, .. } => from + self.gap(rate),
        };
        self.agenda.put(Moment::ZERO + at, Event::Change(index));
    }

    /// Draws the time to the next of events that come at a rate, independent of each other.
    fn gap(&mut self, rate: f64) -> Duration {
        let gap = -(1.0 - self.random.fraction()).ln() / rate;
        Duration::try_from_secs_f64(gap).unwrap_or(Duration::MAX)
    }

    pub(super) fn change(&mut self, index: usize) {
        let count = self.controllers[index].objects.len();
        match self.scenario.controllers[index].changes {
            Changes::Together { .. } => {
                for object in 0..u32::try_from(count).unwrap_or(u32::MAX) {
                    self.controllers[index].change(object, self.now);
                }
            }
            Changes::Steadily { rate, to, .. } => {
                let object = u32::try_from(self.random.below(count)).unwrap_or(0);
                self.controllers[index].change(object, self.now);
                let next = self.now + self.gap(rate);
                if to.is_none_or(|to| next <= Moment::ZERO + to) {
                    self.agenda.put(next, Event::Change(index));
                }
            }
        }
        self.dispatch(index);
    }

    /// Gives every free worker an object.
    pub(super) fn dispatch(&mut self, index: usize) {
        while let Some(object) = self.controllers[index].next() {
            self.next_call(index, object);
        }
    }

    fn next_call(&mut self, index: usize, object: u32) {
        let state = self.controllers[index].objects[object as usize];
        let read = self.read(index, state.verb, object);
        self.call(Who::Object { controller: index, object }, read, state.has_failed);
    }

    /// Returns a call on an object as the gate reads it.
    fn read(&mut self, index: usize, verb: usize, object: u32) -> Arc<Read> {
        let controller = &mut self.controllers[index];
        let keys = &mut controller.keys[verb];
        if keys.is_empty() {
            keys.resize(controller.objects.len(), None);
        }
        let read = match (controller.keys[verb][object as usize], &mut controller.reads[verb]) {
            (Some(ByName { class, group, key }), Some(read)) => {
                // Usually there is no other owner, and then nothing is copied.
                let mine = Arc::make_mut(read);
                (mine.class, mine.group, mine.key) = (class, group, key);
                return Arc::clone(read);
            }
            _ => {
                let spec = &self.scenario.controllers[index];
                let request = Request {
                    verb: spec.verbs[verb],
                    group: &spec.group,
                    resource: &spec.resource,
                    namespace: &spec.namespace,
                    name: &format!("object-{object}"),
                    subresource: "",
                    user_agent: &spec.name,
                    follows: false,
                    dry_run: false,
                };
                Arc::new(self.reader.read(&request, &self.limits.gate))
            }
        };
        controller.keys[verb][object as usize] = Some(ByName { class: read.class, group: read.group, key: read.key });
        controller.reads[verb] = Some(Arc::clone(&read));
        read
    }

    pub(super) fn succeeded(&mut self, index: usize, object: u32) {
        let verbs = self.scenario.controllers[index].verbs.len();
        let controller = &mut self.controllers[index];
        let state = &mut controller.objects[object as usize];
        state.has_failed = false;
        state.verb += 1;
        if state.verb < verbs {
            return self.next_call(index, object);
        }
        state.failures = 0;
        // A change that came meanwhile is not yet reconciled.
        let since = if state.dirty { state.changed.replace(self.now) } else { state.changed.take() };
        if let Some(since) = since {
            controller.row.reconciled.add(self.now - since);
        }
        controller.done(object);
        self.dispatch(index);
    }

    /// Records a failed reconcile: an answer of the upstream or a refusal ended it.
    pub(super) fn failed(&mut self, index: usize, object: u32, by_upstream: bool) {
        let requeue = self.scenario.controllers[index].requeue;
        let controller = &mut self.controllers[index];
        let state = &mut controller.objects[object as usize];
        state.has_failed |= by_upstream;
        state.failures += 1;
        let again = self.now + requeue.delay(state.failures);
        controller.done(object);
        self.agenda.put(again, Event::Requeue { controller: index, object });
        self.dispatch(index);
    }

    /// Handles a refusal by the gate without a Retry-After that the client would wait for.
    pub(super) fn turned_away(&mut self, index: usize, object: u32, retry_at: Moment) {
        if self.scenario.controllers[index].requeue != Requeue::AtOnce {
            return self.failed(index, object, false);
        }
        self.controllers[index].done(object);
        self.agenda.put(retry_at, Event::Requeue { controller: index, object });
        self.dispatch(index);
    }
}
