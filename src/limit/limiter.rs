//! The limiter's operations: the whole of what the driver (or a simulation) does with it.
//!
//! Every operation first lets happen what time alone has brought about since the last one, then does its own, then lets go whoever may
//! go. All that happens to waiting calls comes out as events, so nothing in here calls out.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use super::{
    drops::Drops,
    keys::{Keys, Spread},
    lanes::Lanes,
    permit::{Permit, Slot, Ticket},
    policy::{Lane, Policy},
    reload::Move,
    stage::Line,
    supply::Supply,
    sweep::{Sweep, Walk},
    table::{KeyId, Table},
    timers::Timers,
    verdict::{Ended, Reason, Refusal},
    waiter::{Grant, Pass, State, Waiter, Waiters},
};
use crate::{api::Group, moment::Moment};

/// What `arrive` says.
#[derive(Debug)]
pub enum Verdict {
    /// It may go.
    Admit(Permit),
    /// It has a place in a queue; `claim` tells when it is its turn.
    Wait(Ticket),
    /// It may not.
    Refuse(Refusal),
}

/// What `claim` says.
#[derive(Debug)]
pub enum Claim {
    /// It is its turn.
    Permit(Permit),
    /// Not yet.
    Waiting,
    /// Its wait is over without a turn.
    Refused(Refusal),
    /// No connection of its group could be had (or the ticket was claimed before).
    Unconnected,
}

/// The limits of one gate at work.
#[derive(Debug)]
pub struct Limiter {
    pub(super) policy: Policy,
    /// For each class a number that stays the same over a reload.
    pub(super) serials: Vec<u32>,
    pub(super) table: Table,
    pub(super) supply: Supply,
    pub(super) lanes: Lanes,
    pub(super) waiters: Waiters,
    /// Waiting calls of keys that fail, or of which several wait.
    pub(super) lines: HashMap<KeyId, Line, Spread>,
    /// Keys (as [`KeyId::written`]) of which a write is past the key stage, where only one may be.
    pub(super) writes: HashSet<KeyId, Spread>,
    pub(super) timers: Timers,
    /// Keys whose line must be looked at.
    pub(super) stirred: Vec<KeyId>,
    /// Bundles whose own bucket or slots got something back.
    pub(super) freed: Vec<u32>,
    /// Calls in retry queues whose `hold` ended while a retry token was there: refused as soon as there is none.
    pub(super) overdue: Vec<Ticket>,
    pub(super) events: VecDeque<Ticket>,
    pub(super) drops: Drops,
    /// Calls that wait, and the bytes of their bodies.
    pub(super) waiting: usize,
    pub(super) waiting_bytes: usize,
    pub(super) now: Moment,
    /// When everyone who could go had last gone.
    pub(super) settled: Moment,
    pub(super) sequence: u64,
    /// Everything is let through.
    pub(super) bypassed: bool,
    /// What many waiting calls are yet to learn.
    pub(super) sweeps: VecDeque<Sweep>,
    /// A reload whose waiters are on their way to their new queues.
    pub(super) moving: Option<Box<Move>>,
    /// Something is left to do at this moment.
    pub(super) behind: bool,
    /// Steps that are left of the turn under way.
    pub(super) steps: u32,
}

// === impl Limiter ===

impl Limiter {
    /// A limiter at rest. `seed` feeds the jitter.
    #[must_use]
    pub fn new(policy: Policy, seed: u64, now: Moment) -> Self {
        debug_assert!(!policy.classes.is_empty(), "a policy has a class");
        Self {
            serials: (0..).take(policy.classes.len()).collect(),
            table: Table::new(policy.max_keys, seed),
            supply: Supply::new(&policy, now),
            lanes: Lanes::new(&policy),
            policy,
            waiters: Waiters::default(),
            lines: HashMap::default(),
            writes: HashSet::default(),
            timers: Timers::default(),
            stirred: Vec::new(),
            freed: Vec::new(),
            overdue: Vec::new(),
            events: VecDeque::new(),
            drops: Drops::new(),
            waiting: 0,
            waiting_bytes: 0,
            now,
            settled: now,
            sequence: 0,
            bypassed: false,
            sweeps: VecDeque::new(),
            moving: None,
            behind: false,
            steps: 0,
        }
    }

    /// The key table, which answers without the limiter's lock.
    #[must_use]
    pub fn keys(&self) -> &Arc<Keys> {
        self.table.keys()
    }

    /// Calls that wait for their turn.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether nobody waits, nothing is in flight and no trial is out: nothing is owed to anyone.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let nobody = self.waiters.len() == 0
            && self.writes.is_empty()
            && self.lines.is_empty()
            && self.timers.is_empty()
            && self.waiting == 0
            && self.moving.is_none();
        nobody && self.lanes.is_empty() && self.supply.gate_slots.used() == 0 && self.table.trials_out() == 0
    }

    /// Lets go whoever's turn has come and ends whoever's wait is over. Spurious calls do nothing.
    pub fn advance(&mut self, now: Moment) {
        let now = self.catch_up(now);
        if self.behind {
            self.run_turns(now);
        }
    }

    /// A waiting call whose answer may have changed: wake it to `claim`. Drain after every operation.
    pub fn next_event(&mut self) -> Option<Ticket> {
        while let Some(ticket) = self.events.pop_front() {
            if self.waiters.find(ticket).is_some_and(|waiter| !waiter.is_waiting()) {
                return Some(ticket);
            }
        }
        None
    }

    /// Keys that do not fail any more, since this was asked last: at most a few dozen, more are not told. No allocation when there are none.
    pub fn take_ended(&mut self) -> Vec<Ended> {
        self.table.take_ended()
    }

    /// When to `advance` if nothing else happens; `None` when time alone changes nothing. The answer may change with every operation.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Moment> {
        if self.behind {
            return Some(self.now);
        }
        let turn = self.lanes.next_wakeup(&self.supply, self.now);
        [turn, self.timers.first()].into_iter().flatten().min()
    }

    /// Takes the verdict of a waiting call.
    pub fn claim(&mut self, ticket: Ticket, now: Moment) -> Claim {
        let now = self.catch_up(now);
        if self.supply.pauses.any(now) && self.waiters.find(ticket).is_some() {
            self.freshen(ticket.index, now);
            self.stop_if_paused(ticket.index, now);
        }
        match self.waiters.find(ticket).map(Waiter::is_waiting) {
            None => return Claim::Unconnected,
            Some(true) => return Claim::Waiting,
            Some(false) => {}
        }
        if let Some(key) = self.waiters.get(ticket.index).and_then(Waiter::key) {
            self.leave_line(key, ticket.index);
        }
        let Some(waiter) = self.waiters.remove(ticket.index) else { return Claim::Unconnected };
        match waiter.state {
            State::Granted(grant) => Claim::Permit(Permit::new(waiter.call, *grant)),
            State::Refused(refusal) => Claim::Refused(*refusal),
            State::Held | State::Queued(_) | State::Unconnected => Claim::Unconnected,
        }
    }

    /// The caller hung up while waiting. Idempotent. A turn that was granted and not claimed is given back, and the next has it.
    pub fn leave(&mut self, ticket: Ticket, now: Moment) {
        self.catch_up(now);
        if self.waiters.find(ticket).is_none() {
            return;
        }
        self.freshen(ticket.index, now);
        self.withdraw(ticket.index, now);
        self.waiters.remove(ticket.index);
        self.run(now);
    }

    /// `bytes` more of a waiting call are held; refuses past the limit (the call has then left).
    ///
    /// # Errors
    /// The refusal, with reason `BytesFull`.
    pub fn hold_bytes(&mut self, ticket: Ticket, bytes: usize, now: Moment) -> Result<(), Refusal> {
        let now = self.catch_up(now);
        let Some(arrived) = self.waiters.find(ticket).filter(|w| w.is_waiting()).map(|waiter| waiter.call.arrived)
        else {
            return Ok(());
        };
        let total = self.waiting_bytes.saturating_add(bytes);
        if total > self.policy.queue.max_waiting_bytes {
            let retry_at = self.drops.drop_one(now);
            self.leave(ticket, now);
            return Err(Refusal { reason: Reason::BytesFull, retry_at, waited: now - arrived, key: None });
        }
        self.waiting_bytes = total;
        if let Some(waiter) = self.waiters.get_mut(ticket.index) {
            waiter.bytes = waiter.bytes.saturating_add(bytes);
        }
        Ok(())
    }

    /// The call will not be sent: everything goes back.
    pub fn retract(&mut self, permit: Permit, now: Moment) {
        let now = self.catch_up(now);
        let Permit { receipt, slot } = permit;
        let (call, grant) = receipt.into_parts();
        if let Some(needs) = &grant.needs {
            self.supply.add_room(needs.group, 1);
            self.supply.give_back_tokens(needs, grant.number, &mut self.freed);
        }
        self.give_back_slot(&slot);
        self.end_pass(call.key.as_ref().map(KeyId::from), grant.pass);
        self.run(now);
    }

    /// The call found no connection: everything but the room goes back, and it waits again at the head of its queue (or for its key, if
    /// that has failed meanwhile).
    pub fn requeue(&mut self, permit: Permit, now: Moment) -> Ticket {
        let now = self.catch_up(now);
        let Permit { receipt, slot } = permit;
        let (mut call, mut grant) = receipt.into_parts();
        self.give_back_slot(&slot);
        if let Some(needs) = grant.needs.take() {
            self.supply.give_back_tokens(&needs, grant.number, &mut self.freed);
        }
        call.class = self.class_of(call.serial);
        let ticket = self.come_back(call, &grant, now);
        self.run(now);
        ticket
    }

    /// The end of a body.
    #[expect(clippy::needless_pass_by_value, reason = "a slot can be given back once: it is used up")]
    pub fn release(&mut self, slot: Slot, now: Moment) {
        let now = self.catch_up(now);
        self.give_back_slot(&slot);
        self.run(now);
    }

    /// Room on the connections of `group` came or went. Starts at zero; exempt calls need none.
    pub fn add_room(&mut self, group: Group, change: i64, now: Moment) {
        let now = self.catch_up(now);
        self.supply.add_room(group, change);
        self.run(now);
    }

    /// Calls of `group` that wait for nothing but room: how many would go now if there were any. Zero means zero; above that it is an
    /// estimate, never too high for one class alone.
    #[must_use]
    pub fn wants_room(&self, group: Group) -> usize {
        if self.supply.room(group) > 0 {
            return 0;
        }
        self.lanes.would_go(group, &self.supply, self.now)
    }

    /// A dial failed: everyone who waits for `group` gets `Claim::Unconnected`.
    pub fn fail_group(&mut self, group: Group, now: Moment) {
        let now = self.catch_up(now);
        self.begin_sweep(Sweep::Strand(group, Walk::over(&self.waiters)));
        self.run_turns(now);
    }

    /// Takes a waiter out of wherever it stands and gives back whatever it has. Its record stays.
    pub(super) fn withdraw(&mut self, index: u32, _now: Moment) {
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        let (key, pass) = (waiter.key(), std::mem::take(&mut waiter.pass));
        match std::mem::replace(&mut waiter.state, State::Unconnected) {
            State::Held => self.stop_waiting(index),
            State::Queued(queue) => {
                self.lanes.part(queue, index, &mut self.waiters, &mut self.supply);
                self.stop_waiting(index);
            }
            State::Granted(grant) => {
                self.undo(index, &grant);
                self.end_pass(key, grant.pass);
            }
            State::Refused(_) | State::Unconnected => return,
        }
        if let Some(key) = key {
            self.leave_line(key, index);
        }
        self.end_pass(key, pass);
    }

    /// Gives back what a granted call took that was not sent.
    pub(super) fn undo(&mut self, index: u32, grant: &Grant) {
        let Some(needs) = &grant.needs else { return };
        let class = self.waiters.get(index).map(|waiter| waiter.call.class);
        self.supply.add_room(needs.group, 1);
        self.supply.give_back_tokens(needs, grant.number, &mut self.freed);
        self.supply.give_back_slot(needs.places, class, &mut self.freed);
    }

    /// What a call got at the key stage goes back: the trial, being the one write, and a retry token reckoned on arrival.
    pub(super) fn end_pass(&mut self, key: Option<KeyId>, pass: Pass) {
        if let Some((bucket, number, _)) = pass.paid {
            self.supply.buckets.give_back(bucket, number, &mut self.freed);
        }
        if let Some(key) = key.filter(|_| pass.alone) {
            self.writes.remove(&key.written());
            // The last is looked at first: a delete that waits has its turn after a write, and a write after a delete.
            self.stirred.extend([key, key.neighbour()]);
        }
        if let Some(key) = key.filter(|_| pass.trial != 0) {
            self.table.end_trial(key, pass.trial);
            self.stirred.push(key);
        }
    }

    fn give_back_slot(&mut self, slot: &Slot) {
        let class = self.serials.iter().position(|serial| *serial == slot.serial);
        self.supply.give_back_slot(slot.places, class, &mut self.freed);
    }

    /// Where a class is now, by its lasting number. A class that is gone has become the default class: the one of that name, or the last.
    pub(super) fn class_of(&self, serial: u32) -> usize {
        let found = self.serials.iter().position(|other| *other == serial);
        found.unwrap_or_else(|| self.default_class())
    }

    pub(super) fn default_class(&self) -> usize {
        let classes = &self.policy.classes;
        let named = classes.iter().position(|class| &*class.name == "default" && class.lane != Lane::Exempt);
        named.unwrap_or_else(|| classes.len().saturating_sub(1))
    }

    /// Leaves the line of its key.
    pub(super) fn leave_line(&mut self, key: KeyId, index: u32) {
        let Some(line) = self.lines.get_mut(&key) else { return };
        line.remove(&mut self.waiters, index);
        if line.is_empty() {
            self.timers.cancel_key(key);
            self.lines.remove(&key);
        }
    }
}
