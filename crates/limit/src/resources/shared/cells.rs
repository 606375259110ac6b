//! The shared buckets of one gate: for each, the gate's own bucket and the member.
//!
//! They stand apart from the other buckets, behind ids that no other bucket has, so that a gate
//! without them pays nothing: an id that leads nowhere among the usual buckets is looked up here.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use super::member::{Member, News, RESERVED, SharedPause, SharedView};
use super::questions::Questions;
use super::{Ask, AskId, BucketPart, StoreAnswer, StoreFailure, Want};
use crate::keys::mix;
use crate::moment::Moment;
use crate::policy::Per;
use crate::resources::{Bucket, BucketId, Start, Turn};
use crate::{BucketPolicy, GroupIndex, SharedPolicy};

/// Every shared bucket of a gate.
#[derive(Debug, Default)]
pub(crate) struct SharedBuckets {
    cells: Slab<Cell>,
    /// Makes the numbers of members.
    seed: u64,
    /// The origin that the gate's calls go to, as a number; zero for a gate of one upstream.
    pub(crate) origin: u64,
    /// The moments at which members may ask.
    pub(crate) questions: Questions,
    /// The last question that members of this gate had a part in.
    last: u64,
    /// The spent tokens of parts that were forgotten, by the names of their buckets.
    gone: BTreeMap<Arc<str>, SharedView>,
    /// The moment at which it was last looked who is due.
    looked: Moment,
    /// The moment at which the members are looked at though no call waits; `Moment::MAX` for none.
    pub(crate) tended: Moment,
}

/// The gate's own bucket, which stays in force, and the gate as a member of the shared one.
#[derive(Debug)]
pub(crate) struct Cell {
    serial: NonZeroU32,
    pub(crate) own: Bucket,
    pub(crate) member: Member,
    /// The queue groups that use this one of many.
    pub(crate) users: Vec<GroupIndex>,
}

// === impl SharedBuckets ===

impl SharedBuckets {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, tended: Moment::MAX, ..Self::default() }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Makes a bucket, whose id has this serial: the one of `who`, if it is split.
    pub(crate) fn open(
        &mut self,
        policy: BucketPolicy,
        start: Start,
        shared: Arc<SharedPolicy>,
        who: Option<u64>,
        serial: NonZeroU32,
    ) -> Option<BucketId> {
        let id = mix(self.seed ^ u64::from(serial.get()).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let per = policy.per;
        let origin = self.origin;
        let part = (per != Per::Gate || origin != 0).then_some(BucketPart { per, origin, who });
        let member = Member::new(policy, shared, part, id);
        let cell = Cell { serial, own: Bucket::new(policy, start), member, users: Vec::new() };
        let index = u32::try_from(self.cells.insert(cell)).ok()?;
        Some(BucketId { index: index | SHARED, serial })
    }

    /// Forgets a part that nobody uses and that is full. Returns true if it stays.
    pub(crate) fn keep(&mut self, id: BucketId, now: Moment) -> bool {
        let is_idle = |cell: &Cell| cell.users.is_empty() && cell.own.is_idle(now) && cell.member.is_idle(now);
        let kept = self.get(id).is_some_and(|cell| !is_idle(cell));
        if !kept && let Some(view) = self.get(id).map(|cell| cell.member.view(now)) {
            let name = Arc::clone(&view.policy.name);
            self.gone.entry(name).and_modify(|gone| gone.count(&view)).or_insert(view);
            self.close(id);
        }
        kept
    }

    pub(crate) fn close(&mut self, id: BucketId) {
        if self.get(id).is_some() {
            self.cells.try_remove(offset(id));
        }
    }

    #[cold]
    pub(crate) fn get(&self, id: BucketId) -> Option<&Cell> {
        self.cells.get(offset(id)).filter(|cell| cell.serial == id.serial && id.is_shared())
    }

    #[cold]
    pub(crate) fn get_mut(&mut self, id: BucketId) -> Option<&mut Cell> {
        self.cells.get_mut(offset(id)).filter(|cell| cell.serial == id.serial && id.is_shared())
    }

    /// Returns the asks to make now, of all members that are due. `want` says which calls wait for
    /// a bucket.
    pub(crate) fn asks(&mut self, mut want: impl FnMut(BucketId) -> Option<Want>, now: Moment) -> Vec<Ask> {
        if self.question_at(now) > now {
            return Vec::new();
        }
        self.looked = now;
        let has_plenty = self.questions.ready_at(self.last, RESERVED, now) <= now;
        let mut asks = self.due(&mut want, has_plenty, now);
        if !asks.is_empty() {
            self.last = self.questions.take(self.last, now);
            if !has_plenty {
                // In a question that is asked anyhow there is room for those that look ahead.
                asks.extend(self.due(&mut want, true, now));
            }
            self.count_alone(&mut asks);
        }
        asks
    }

    /// Adds to the first ask of each store that was away the calls that were sent without it.
    fn count_alone(&self, asks: &mut [Ask]) {
        let mut counted: Vec<Arc<str>> = Vec::new();
        for ask in asks.iter_mut().filter(|ask| ask.away) {
            let store = &ask.shared.store;
            if !counted.contains(store) {
                let members = self.cells.iter().map(|(_, cell)| &cell.member);
                ask.alone.sent = members.filter(|member| member.shared.store == *store).map(Member::sent_alone).sum();
                counted.push(Arc::clone(store));
            }
        }
    }

    fn due(&mut self, want: &mut impl FnMut(BucketId) -> Option<Want>, has_plenty: bool, now: Moment) -> Vec<Ask> {
        let ask = |(index, cell): (usize, &mut Cell)| {
            let bucket = BucketId { index: u32::try_from(index).ok()? | SHARED, serial: cell.serial };
            cell.member.ask(want(bucket), has_plenty, now, |number| AskId { bucket, number })
        };
        self.cells.iter_mut().filter_map(ask).collect()
    }

    /// Returns the moment from which the next question can be asked. With many members the look at
    /// them all takes its time, and is not taken for each of them.
    fn question_at(&self, now: Moment) -> Moment {
        let allowed = self.questions.ready_at(self.last, 0.0, now);
        match u32::try_from(self.cells.len()).unwrap_or(u32::MAX) {
            ..=FEW => allowed,
            many => allowed.max(self.looked + LOOK.saturating_mul(many)),
        }
    }

    /// Returns the moment at which to look again at a bucket, for a call that finds no token now.
    pub(crate) fn look_at(&self, id: BucketId, now: Moment) -> Option<Moment> {
        let cell = self.get(id)?;
        let is_short = !cell.member.held().has_token(now);
        Some(if is_short { cell.member.look_at(self.question_at(now), now) } else { cell.own.ready_at(now) })
    }

    /// Leaves the store alone for all members that use it, until the one asks again that found it
    /// away.
    pub(crate) fn spread_outage(&mut self, from: AskId, why: StoreFailure, now: Moment) {
        let Some(member) = self.get(from.bucket).map(|cell| &cell.member) else { return };
        let Some((store, retry_at)) = member.away_until().map(|at| (Arc::clone(&member.shared.store), at)) else {
            return;
        };
        let others = self.cells.iter_mut().map(|(_, cell)| &mut cell.member);
        others.filter(|other| other.shared.store == store).for_each(|other| other.hear_outage(why, retry_at, now));
    }

    /// Takes in what came of an ask. Returns the pause that another member told.
    pub(crate) fn answered(
        &mut self,
        asked: AskId,
        answer: Result<StoreAnswer, StoreFailure>,
        sent: Moment,
        now: Moment,
    ) -> Option<SharedPause> {
        self.get_mut(asked.bucket)?.member.answered(asked.number, answer, sent, now)
    }

    /// Returns the last asks of the members that the stores know.
    pub(crate) fn farewells(&mut self, now: Moment) -> Vec<Ask> {
        let ask = |(index, cell): (usize, &mut Cell)| {
            let bucket = BucketId { index: u32::try_from(index).ok()? | SHARED, serial: cell.serial };
            cell.member.farewell(now, |number| AskId { bucket, number })
        };
        self.cells.iter_mut().filter_map(ask).collect()
    }

    /// Forgets the queue groups of all: they are made again after a change of limits.
    pub(crate) fn forget_users(&mut self) {
        self.cells.iter_mut().for_each(|(_, cell)| cell.users.clear());
    }

    /// Tells the other members of a bucket what is new, if they share pauses.
    pub(crate) fn tell(&mut self, id: BucketId, news: News) {
        if let Some(cell) = self.get_mut(id).filter(|cell| cell.member.shared.pauses.is_some()) {
            cell.member.tell(news);
        }
    }

    /// Records what is left of the upstream's quota. Returns true if the other members of the
    /// bucket are to be told.
    pub(crate) fn note_left(&mut self, id: BucketId, left: u32, now: Moment) -> bool {
        self.get_mut(id).is_some_and(|cell| cell.member.note_left(left, now))
    }

    /// Tells those of every bucket.
    pub(crate) fn tell_all(&mut self, news: News) {
        let sharing = self.cells.iter_mut().map(|(_, cell)| cell).filter(|cell| cell.member.shared.pauses.is_some());
        sharing.for_each(|cell| cell.member.tell(news));
    }

    /// Returns what a status page shows of each bucket, with all its parts.
    pub(crate) fn views(&self, now: Moment) -> Vec<SharedView> {
        let mut views = BTreeMap::<_, SharedView>::new();
        for view in self.cells.iter().map(|(_, cell)| cell.member.view(now)) {
            match views.get_mut(&view.id.map(|id| id.0)) {
                Some(whole) => whole.add(&view),
                None => _ = views.insert(view.id.map(|id| id.0), view),
            }
        }
        let mut views: Vec<_> = views.into_values().collect();
        for view in &mut views {
            self.gone.get(&view.policy.name).into_iter().for_each(|gone| view.count(gone));
        }
        views
    }

    /// Returns the moment at which a member has something to do though no call waits.
    pub(crate) fn tend_at(&self, now: Moment) -> Option<Moment> {
        let next = self.cells.iter().filter_map(|(_, cell)| cell.member.tend_at(now)).min()?;
        Some(next.max(self.question_at(now)))
    }
}

// === impl Cell ===

impl Cell {
    /// Returns the moment at which both have a token.
    pub(crate) fn ready_at(&self, now: Moment) -> Moment {
        self.own.ready_at(now).max(self.member.held().ready_at(now))
    }

    /// Returns the moment since when both have had the token that is there now.
    pub(crate) fn there_since(&self, now: Moment) -> Moment {
        self.own.ready_at(Moment::ZERO).max(self.member.held().there_since(now))
    }

    /// Returns the earliest moment, `from` or later, at which both have a token once `calls` others
    /// have had theirs.
    pub(crate) fn ready_after(&self, calls: usize, from: Moment, now: Moment) -> Moment {
        self.own.ready_after(calls, from, now).max(self.member.held().ready_after(calls, from, now))
    }

    /// Returns the number of calls that could have a token now.
    pub(crate) fn whole_tokens(&self, now: Moment) -> u32 {
        let own = self.own.whole_tokens(now).max(u32::from(self.own.ready_at(now) <= now));
        own.min(self.member.held().available(now))
    }

    /// Takes a token of both. Queue groups whose next token now comes at another time are added to
    /// `unblocked`.
    pub(crate) fn take(&mut self, turn: Turn, number: u64, unblocked: &mut Vec<GroupIndex>) {
        let awaited = turn.there_since.is_some_and(|there_since| self.own.ready_at(Moment::ZERO) >= there_since);
        let taken = self.own.take(turn.at, number, 1) > 0;
        let spent = self.member.take(turn.at, turn.now, number);
        debug_assert!(taken && spent, "a token was taken that was not there");
        if self.own.learn(awaited, turn.now, number) {
            unblocked.extend_from_slice(&self.users);
        }
    }

    pub(crate) fn give_back(&mut self, number: u64, unblocked: &mut Vec<GroupIndex>) {
        self.own.give_back(number);
        self.member.give_back(number);
        unblocked.extend_from_slice(&self.users);
    }

    pub(crate) fn note_short(&mut self, now: Moment) {
        self.own.note_short(now);
        self.member.note_short();
    }

    pub(crate) fn resize(&mut self, policy: BucketPolicy, shared: Arc<SharedPolicy>, now: Moment, number: u64) {
        self.own.resize(policy, now, number);
        self.member.resize(policy, shared);
    }
}

impl BucketId {
    /// True if it is that of a shared bucket.
    pub(crate) fn is_shared(self) -> bool {
        self.index & SHARED != 0
    }
}

fn offset(id: BucketId) -> usize {
    (id.index & !SHARED) as usize
}

/// The mark of an id that belongs to a shared bucket.
const SHARED: u32 = 1 << 31;
/// The members that are looked at without counting the time that it takes, and the time that one
/// more of them asks for: some fifty times what a look costs.
const FEW: u32 = 16;
const LOOK: Duration = Duration::from_micros(5);
