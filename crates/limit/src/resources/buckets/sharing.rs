//! The gate as a user of shared buckets: when it sends requests to their stores, and the pauses
//! that it exchanges with other gates.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::{Buckets, Cell, Family, Owner};
use crate::keys::mix;
use crate::moment::Moment;
use crate::policy::Per;
use crate::resources::BucketId;
use crate::resources::shared::{
    Ask, AskId, BucketPart, Member, News, Questions, RESERVED, SharedView, StoreAnswer, StoreFailure, TokenTally, Want,
};
use crate::{BucketPolicy, SharedPolicy};

/// The common state of a gate's shared buckets.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// A random number to make the identities of the gate's shared buckets from.
    seed: u64,
    /// A number for the upstream's host, where one egress gate has many; otherwise zero.
    pub(crate) origin: u64,
    /// The limit on requests to stores.
    pub(crate) questions: Questions,
    /// The number of this gate's last request to its stores.
    last: u64,
    /// The number of shared buckets and parts the gate uses.
    pub(super) members: usize,
    /// Token counts of parts no longer in use, by the name of their bucket.
    forgotten: BTreeMap<Arc<str>, TokenTally>,
    /// The moment all shared buckets were last checked.
    looked: Moment,
    /// The moment of the next check while no call waits; `Moment::MAX` for none.
    pub(crate) tended: Moment,
}

// === impl Sharing ===

impl Sharing {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, tended: Moment::MAX, ..Self::default() }
    }

    /// Makes the gate's membership in a shared bucket, or in its part for `who` if it is split.
    pub(super) fn join(
        &mut self,
        policy: BucketPolicy,
        shared: Arc<SharedPolicy>,
        who: Option<u64>,
        serial: NonZeroU32,
    ) -> Box<Member> {
        self.members += 1;
        let id = mix(self.seed ^ u64::from(serial.get()).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let per = policy.per;
        let origin = self.origin;
        let part = (per != Per::Gate || origin != 0).then_some(BucketPart { per, origin, who });
        Box::new(Member::new(policy, shared, part, id))
    }

    /// Drops the gate's use of a shared bucket, but keeps its counts.
    pub(super) fn forget(&mut self, member: &Member) {
        self.members -= 1;
        self.forgotten.entry(Arc::clone(&member.shared().name)).or_default().add(member.tally());
    }
}

// === impl Buckets ===

impl Buckets {
    fn member_mut(&mut self, id: BucketId) -> Option<&mut Member> {
        self.get_mut(id)?.member.as_deref_mut()
    }

    fn members(&self) -> impl Iterator<Item = &Member> {
        self.cells.iter().filter_map(|(_, cell)| cell.member.as_deref())
    }

    fn members_mut(&mut self) -> impl Iterator<Item = (BucketId, &mut Member)> {
        self.cells.iter_mut().filter_map(|(index, Cell { serial, member, .. })| {
            let index = u32::try_from(index).ok()? | BucketId::SHARED;
            Some((BucketId { index, serial: *serial }, member.as_deref_mut()?))
        })
    }

    /// Returns the shared bucket of an owner, or its part for `who`, if it was used.
    pub(crate) fn shared_of(&self, owner: Owner, who: u64) -> Option<BucketId> {
        let family = self.families.get(owner).filter(|family| family.shared.is_some())?;
        *family.split.own_or_rest(who)
    }

    /// Returns the owner of a shared bucket.
    pub(crate) fn owner_of(&self, id: BucketId) -> Option<Owner> {
        let who = self.get(id)?.member.as_ref()?.part().and_then(|part| part.who);
        let has = |family: &Family| match who {
            Some(who) => family.split.get(who) == Some(&Some(id)),
            None => family.split.rest == Some(id),
        };
        let class = self.families.classes.find(|family| family.as_ref().is_some_and(has));
        let is_gates = self.families.gate.as_ref().is_some_and(has);
        Some(if is_gates { Owner::Gate } else { Owner::Class(class?) })
    }

    /// Returns the requests due now. `wants` counts the waiting calls of each bucket.
    pub(crate) fn asks(&mut self, wants: impl FnOnce() -> HashMap<BucketId, Want>, now: Moment) -> Vec<Ask> {
        if self.sharing.members == 0 || self.question_at(now) > now {
            return Vec::new();
        }
        self.sharing.looked = now;
        let has_plenty = self.plenty_at(now) <= now;
        let wants = wants();
        let mut asks = self.due(&wants, has_plenty, now);
        if !asks.is_empty() {
            self.sharing.last = self.sharing.questions.take(self.sharing.last, now);
            if !has_plenty {
                // In a question that is asked anyhow there is room for those that look ahead.
                asks.extend(self.due(&wants, true, now));
            }
            self.count_fallback(&mut asks);
        }
        asks
    }

    fn due(&mut self, wants: &HashMap<BucketId, Want>, has_plenty: bool, now: Moment) -> Vec<Ask> {
        let due = |(bucket, member): (BucketId, &mut Member)| {
            member.ask(bucket, wants.get(&bucket).copied().unwrap_or_default(), has_plenty, now)
        };
        self.members_mut().filter_map(due).collect()
    }

    /// Adds the number of calls sent without a store to the first request after its outage.
    fn count_fallback(&self, asks: &mut [Ask]) {
        let mut counted: Vec<Arc<str>> = Vec::new();
        for ask in asks.iter_mut().filter(|ask| ask.away) {
            let store = &ask.shared.store;
            if !counted.contains(store) {
                let members = self.members().filter(|member| member.shared().store == *store);
                ask.fallback.sent = members.map(Member::sent_alone).sum();
                counted.push(Arc::clone(store));
            }
        }
    }

    /// Returns the earliest moment of the next request to the stores. With many buckets it is
    /// later, because checking all of them takes time.
    pub(super) fn question_at(&self, now: Moment) -> Moment {
        let Sharing { questions, last, looked, members, .. } = &self.sharing;
        let allowed = questions.ready_at(*last, 0.0, now);
        match u32::try_from(*members).unwrap_or(u32::MAX) {
            ..=FEW => allowed,
            many => allowed.max(*looked + LOOK.saturating_mul(many)),
        }
    }

    /// Returns the earliest moment of a request leaving enough requests in reserve for waiting
    /// calls.
    fn plenty_at(&self, now: Moment) -> Moment {
        self.sharing.questions.ready_at(self.sharing.last, RESERVED, now)
    }

    /// Sets the moment of the next check of shared buckets while no call waits. Nothing but
    /// `Limiter::take_asks` is due then.
    pub(crate) fn set_member_timer(&mut self, now: Moment) {
        let plenty_at = self.plenty_at(now);
        let next = self.members().filter_map(|member| member.tend_at(plenty_at, now)).min();
        let next = next.map(|next| next.max(self.question_at(now)));
        // A member that is due and did not ask waits for something else.
        self.sharing.tended = next.map_or(Moment::MAX, |at| at.max(now + TEND_EVERY));
    }

    /// Applies the store's answer to a request, or its failure. Returns the pauses of other gates
    /// in the answer.
    pub(crate) fn answered(
        &mut self,
        asked: AskId,
        answer: Result<StoreAnswer, StoreFailure>,
        sent: Moment,
        now: Moment,
    ) -> Vec<News> {
        let member = self.member_mut(asked.bucket());
        member.map_or_else(Vec::new, |member| member.answered(asked, answer, sent, now))
    }

    /// Stops all buckets' requests to a store without answers, until the bucket in `from` tries it
    /// again.
    pub(crate) fn spread_outage(&mut self, from: AskId, why: StoreFailure, now: Moment) {
        let Some(member) = self.member_mut(from.bucket()) else { return };
        let Some(retry_at) = member.away_until() else { return };
        let store = Arc::clone(&member.shared().store);
        let others = self.members_mut().map(|(_, other)| other);
        others.filter(|other| other.shared().store == store).for_each(|other| other.hear_outage(why, retry_at, now));
    }

    /// Returns the last request for each shared bucket with an earlier answer from its store,
    /// unless the store is away.
    pub(crate) fn farewells(&mut self, now: Moment) -> Vec<Ask> {
        self.members_mut().filter_map(|(bucket, member)| member.farewell(bucket, now)).collect()
    }

    /// Reports the beginning or end of a pause to the other gates of one shared bucket, or of all.
    pub(crate) fn tell(&mut self, of: Option<BucketId>, news: News) {
        let meant = self.members_mut().filter(|(id, _)| of.is_none_or(|of| of == *id));
        meant.for_each(|(_, member)| member.tell(news));
    }

    /// Records the number of calls left in the upstream's quota. Returns true if the other gates
    /// sharing the bucket must be informed.
    pub(crate) fn note_left(&mut self, id: BucketId, left: u32, now: Moment) -> bool {
        self.member_mut(id).is_some_and(|member| member.note_left(left, now))
    }

    /// Returns each shared bucket as a status page shows it, with all its parts.
    pub(crate) fn shared_views(&self, now: Moment) -> Vec<SharedView> {
        let mut views = BTreeMap::<_, SharedView>::new();
        for view in self.members().map(|member| member.view(now)) {
            match views.get_mut(&view.id.map(|id| id.0)) {
                Some(whole) => whole.add(&view),
                None => _ = views.insert(view.id.map(|id| id.0), view),
            }
        }
        for view in views.values_mut() {
            let forgotten = self.sharing.forgotten.get(&view.policy.name);
            view.tally.add(forgotten.copied().unwrap_or_default());
        }
        views.into_values().collect()
    }
}

/// The most shared buckets to check at every opportunity. If there are more, checks are less
/// frequent.
const FEW: u32 = 16;
/// The time to leave between checks for each bucket beyond `FEW`: some fifty times the cost of a
/// check.
const LOOK: Duration = Duration::from_micros(5);
/// The least time between two checks while no call waits.
const TEND_EVERY: Duration = Duration::from_millis(5);
