//! The groups of calls that wait for one answer, as a value: no locks, no requests.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::task::Waker;

/// The groups, by identity.
#[derive(Debug)]
pub(super) struct Table<I, A> {
    /// The groups that may be joined.
    open: HashMap<Arc<I>, u64>,
    groups: HashMap<u64, Group<I, A>>,
    next: u64,
}

/// A place in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    group: u64,
    member: u64,
}

/// A group of calls. It goes when its last waiting call does.
#[derive(Debug)]
struct Group<I, A> {
    identity: Arc<I>,
    /// The member that is out for it.
    leader: Option<u64>,
    answer: Option<Arc<A>>,
    waiting: Vec<(u64, Option<Waker>)>,
}

impl<I, A> Default for Table<I, A> {
    fn default() -> Self {
        Self { open: HashMap::new(), groups: HashMap::new(), next: 0 }
    }
}

impl<I: Eq + Hash, A> Table<I, A> {
    /// Joins the open group of this identity, or begins one.
    pub(super) fn join(&mut self, identity: I) -> Seat {
        let member = self.number();
        let group = match self.open.get(&identity) {
            Some(group) => *group,
            None => {
                let (group, identity) = (self.number(), Arc::new(identity));
                self.open.insert(Arc::clone(&identity), group);
                self.groups.insert(group, Group { identity, leader: None, answer: None, waiting: Vec::new() });
                group
            }
        };
        if let Some(group) = self.groups.get_mut(&group) {
            group.waiting.push((member, None));
        }
        Seat { group, member }
    }

    /// Takes the answer if it is there, and the seat is then empty; otherwise `waker` is woken when
    /// it is.
    pub(super) fn poll(&mut self, seat: Seat, waker: &Waker) -> Option<Arc<A>> {
        let group = self.groups.get_mut(&seat.group)?;
        let (_, waiting) = group.waiting.iter_mut().find(|(member, _)| *member == seat.member)?;
        let Some(answer) = group.answer.clone() else {
            waiting.get_or_insert_with(|| waker.clone()).clone_from(waker);
            return None;
        };
        self.leave(seat);
        Some(answer)
    }

    /// A member is sent. True if it leads: no other of the group is out, and another waits for its
    /// answer.
    pub(super) fn go(&mut self, seat: Seat) -> bool {
        let Some(group) = self.groups.get_mut(&seat.group) else { return false };
        let leads = group.leader.is_none() && group.answer.is_none();
        if leads {
            group.leader = Some(seat.member);
            let identity = Arc::clone(&group.identity);
            self.close(&identity, seat.group);
        }
        self.leave(seat);
        leads && self.groups.contains_key(&seat.group)
    }

    /// A member no longer waits.
    pub(super) fn leave(&mut self, seat: Seat) {
        let Some(group) = self.groups.get_mut(&seat.group) else { return };
        group.waiting.retain(|(member, _)| *member != seat.member);
        if group.waiting.is_empty() {
            let identity = Arc::clone(&group.identity);
            self.close(&identity, seat.group);
            self.groups.remove(&seat.group);
        }
    }

    /// The leader's answer is complete. Returns the wakers of the members that wait.
    pub(super) fn answer(&mut self, leader: Seat, answer: A) -> Vec<Waker> {
        let Some(group) = self.led_by(leader) else { return Vec::new() };
        group.answer = Some(Arc::new(answer));
        group.waiting.iter_mut().filter_map(|(_, waker)| waker.take()).collect()
    }

    /// The leader has no answer to share: the next to go leads, and others may join again, unless
    /// there is another open group.
    pub(super) fn give_up(&mut self, leader: Seat) {
        let Some(group) = self.led_by(leader) else { return };
        group.leader = None;
        let identity = Arc::clone(&group.identity);
        self.open.entry(identity).or_insert(leader.group);
    }

    fn led_by(&mut self, leader: Seat) -> Option<&mut Group<I, A>> {
        self.groups.get_mut(&leader.group).filter(|group| group.leader == Some(leader.member) && group.answer.is_none())
    }

    fn close(&mut self, identity: &I, group: u64) {
        if self.open.get(identity) == Some(&group) {
            self.open.remove(identity);
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An event; its number chooses among the calls that it can happen to.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Arrive(u8),
        Leave(usize),
        Turn(usize),
        Answer(usize),
        GiveUp(usize),
        Poll(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let who = 0_usize..100;
        let step = prop_oneof![
            4 => (0_u8..3).prop_map(Step::Arrive),
            1 => who.clone().prop_map(Step::Leave),
            2 => who.clone().prop_map(Step::Turn),
            2 => who.clone().prop_map(Step::Answer),
            1 => who.clone().prop_map(Step::GiveUp),
            4 => who.prop_map(Step::Poll),
        ];
        proptest::collection::vec(step, 0..80)
    }

    /// A call as the model knows it.
    #[derive(Clone, Copy, Debug)]
    struct Call {
        identity: u8,
        seat: Seat,
        arrived: usize,
    }

    /// An answer: to what, and when its call left.
    #[derive(Debug)]
    struct Answer {
        identity: u8,
        left: usize,
    }

    proptest! {
        /// In whatever order calls arrive, leave, get their turn and are answered: no call gets the
        /// answer to another request, or to a call that had left before it asked; every call that
        /// still waits when a leader's answer comes gets exactly that one; and nothing is left
        /// behind.
        #[test]
        fn everybody_is_answered_once_and_never_across_identities(steps in steps()) {
            let mut table: Table<u8, Answer> = Table::default();
            let (mut waiting, mut out): (Vec<Call>, Vec<(Call, usize)>) = (Vec::new(), Vec::new());
            let mut owed: HashMap<u64, usize> = HashMap::new();
            for (now, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Arrive(identity) => waiting.push(Call { identity, seat: table.join(identity), arrived: now }),
                    Step::Leave(who) if !waiting.is_empty() => {
                        let call = waiting.swap_remove(who % waiting.len());
                        owed.remove(&call.seat.member);
                        table.leave(call.seat);
                    }
                    Step::Turn(who) if !waiting.is_empty() => {
                        let call = waiting.swap_remove(who % waiting.len());
                        owed.remove(&call.seat.member);
                        let led = out.iter().any(|(other, _)| other.seat.group == call.seat.group);
                        let leads = table.go(call.seat);
                        prop_assert!(!(leads && led), "two lead one group");
                        if leads {
                            prop_assert!(waiting.iter().any(|other| other.seat.group == call.seat.group), "it leads nobody");
                            out.push((call, now));
                        }
                    }
                    Step::Answer(who) if !out.is_empty() => {
                        let (call, left) = out.swap_remove(who % out.len());
                        table.answer(call.seat, Answer { identity: call.identity, left });
                        let followers = waiting.iter().filter(|other| other.seat.group == call.seat.group);
                        owed.extend(followers.map(|other| (other.seat.member, left)));
                    }
                    Step::GiveUp(who) if !out.is_empty() => {
                        let (call, _) = out.swap_remove(who % out.len());
                        table.give_up(call.seat);
                    }
                    Step::Poll(who) if !waiting.is_empty() => {
                        let place = who % waiting.len();
                        let call = waiting[place];
                        let answer = table.poll(call.seat, Waker::noop());
                        let left = owed.remove(&call.seat.member);
                        prop_assert_eq!(answer.as_ref().map(|answer| answer.left), left);
                        if let Some(answer) = answer {
                            prop_assert_eq!(answer.identity, call.identity);
                            prop_assert!(call.arrived < answer.left, "an answer older than the question");
                            waiting.swap_remove(place);
                        }
                    }
                    _ => {}
                }
                let groups: std::collections::HashSet<u64> = waiting.iter().map(|call| call.seat.group).collect();
                prop_assert_eq!(table.groups.len(), groups.len(), "a group goes with the last who waits");
                prop_assert!(table.open.values().all(|group| groups.contains(group)));
            }
        }
    }

    #[test]
    fn a_leader_that_leaves_is_followed_by_the_next_and_newcomers_join_again() {
        let mut table: Table<&str, u8> = Table::default();
        let [first, second, third] = ["a", "a", "a"].map(|identity| table.join(identity));
        assert!(table.go(first));
        let late = table.join("a");
        assert_ne!(late.group, second.group, "nobody joins one that is out");
        table.give_up(first);
        assert!(table.go(second), "the next leads");
        table.answer(second, 2);
        assert_eq!(table.poll(third, Waker::noop()).as_deref(), Some(&2));
        assert_eq!(table.poll(late, Waker::noop()), None);
        table.leave(late);
        assert!(table.groups.is_empty() && table.open.is_empty());
    }
}
