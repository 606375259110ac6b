//! Reads how a gate's buckets are shared with other gates.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::cursor::Cursor;
use super::fixed_part::FixedPart;
use super::problems::did_you_mean;
use super::values::OrAuto;
use crate::limit::policy::{BucketPolicy, Outage, Per, SharedId, SharedPolicy};
use crate::limit::{Policy, SharedLimits};
use crate::spec::{Settings, Store};

/// The first bucket found with some shared name. Others of the same name must have the same limits.
struct FirstBucket {
    rate: f64,
    burst: NonZeroU32,
    per: Per,
    at: String,
}

/// The keys configuring each shared bucket, by the bucket's store and shared name.
type Users<'a> = BTreeMap<(Arc<str>, Arc<str>), Vec<Cursor<'a>>>;

/// How gates share a bucket.
#[derive(Debug)]
pub(super) enum Sharing {
    /// They ask for tokens of one bucket with a name.
    Named(SharedPolicy),
    /// Each has a part of the rate.
    InParts(FixedPart),
}

/// Reads the key `shared` of a bucket; without one, `of_gate` holds. Cuts the bucket to its part if
/// gates share it in parts.
pub(super) fn shared(
    bucket_at: &Cursor<'_>,
    bucket: &mut Option<BucketPolicy>,
    of_gate: Option<&Sharing>,
) -> Option<SharedPolicy> {
    let own = sharing(bucket_at);
    let bucket = bucket.as_mut()?;
    match own.as_ref().or(of_gate)? {
        Sharing::InParts(part) => *bucket = part.of(*bucket, bucket_at),
        Sharing::Named(shared) if own.is_some() => {
            check_bucket(bucket_at, bucket, shared);
            return Some(shared.clone());
        }
        Sharing::Named(_) => {}
    }
    None
}

/// Reads the key `shared` of a gate or a bucket.
pub(super) fn sharing(at: &Cursor<'_>) -> Option<Sharing> {
    read(&at.table_or_text("shared"))
}

/// Shares all buckets of a gate with the key `shared`, except buckets with their own `shared`.
///
/// The gate's bucket gets the name in `shared`. A class's bucket gets the same name, a dot, and the
/// name of the class.
pub(super) fn share_all(sharing: Option<Sharing>, gate_at: &Cursor<'_>, policy: &mut Policy) {
    let at = gate_at.at("shared");
    let shared = match sharing {
        Some(Sharing::Named(shared)) => shared,
        Some(Sharing::InParts(_)) if policy.bucket.is_none() && policy.classes.iter().all(|it| it.bucket.is_none()) => {
            return at.key_problem(NOTHING);
        }
        _ => return,
    };
    let is_own = |at: &Cursor<'_>| at.at("bucket").has("shared");
    let gate = policy.bucket.iter_mut().filter(|_| !is_own(gate_at)).map(|bucket| (bucket, shared.name.to_string()));
    let tables = gate_at.at("classes");
    let classes = policy.classes.iter_mut().filter(|class| !tables.named(&class.name).is_some_and(|at| is_own(&at)));
    let classes =
        classes.filter_map(|class| Some((class.bucket.as_mut()?, format!("{}{OF}{}", shared.name, class.name))));
    for (bucket, name) in gate.chain(classes) {
        let why_not = match bucket.per {
            Per::Flow => Some("has per = \"flow\""),
            _ if bucket.rate > FASTEST => Some("has a rate above 10,000/s"),
            _ if bucket.largest_cost.get() > 1 => Some("counts tokens, and calls cost several of them"),
            _ => None,
        };
        if let Some(why) = why_not {
            at.warn(format!("does not share {name}, because its bucket {why}"));
            continue;
        }
        bucket.shared = u16::try_from(policy.shared.len()).ok().map(SharedId);
        policy.shared.push(Arc::new(SharedPolicy { name: name.into(), ..shared.clone() }));
    }
    if policy.shared.is_empty() {
        at.key_problem(NOTHING);
    }
}

/// Reads a table `shared`, of a bucket or of a gate.
fn read(at: &Cursor<'_>) -> Option<Sharing> {
    let is_in_parts = at.is_table() && at.has("members") && !at.has("name");
    let named = at.unused_if(is_in_parts, ONLY_PARTS, &at.at("members"));
    let name = named.name_or_text("name");
    let store: Option<String> = named.option("store", None);
    let fits = |weight: &NonZeroU32| weight.get() <= HEAVIEST;
    let weight = named.get_if("weight", NonZeroU32::MIN, fits, &format!("a whole number from 1 to {HEAVIEST}"));
    let OrAuto(lease) = named.get("lease", OrAuto(None));
    let outage: Option<Outage> = named.option("outage", None);
    let members: Option<NonZeroU32> = at.option("members", None);
    let margin: Option<f64> = at.unused_if(!is_in_parts, ONLY_NAMED, &at.at("name")).option("margin", None);
    let pauses = named.get("pauses", true);
    if is_in_parts {
        return FixedPart::new(members?, margin.unwrap_or(0.0), at).map(Sharing::InParts);
    }
    if !at.is_present() {
        return None;
    }
    let name = name?;
    check_name(&name, at);
    if let Some(lease) = lease.filter(|lease| !LEASES.contains(lease)) {
        at.at("lease").problem(format!("is {lease:?}, expected \"auto\" or a duration from 100ms to 1m"));
    }
    let store = store.unwrap_or_default().into();
    let outage = outage.unwrap_or_default();
    let members = members.unwrap_or(MEMBERS);
    if members.get() > MANY {
        at.at("members").warn(format!(
            "is {members}: with more than {MANY} gates each request costs the store more than a quarter of a \
             millisecond; expected fewer gates, such as one for each cluster, run as a Service"
        ));
    }
    let name = name.into();
    let pauses = pauses.then_some(Duration::MAX); // bounded once the signals are known
    Some(Sharing::Named(SharedPolicy { name, store, weight, lease, outage, members, pauses }))
}

/// Returns true if a shared bucket is split: a separate one for each caller, account or action.
pub(super) fn has_parts(policy: &Policy) -> bool {
    let of_classes = policy.classes.iter().map(|class| class.bucket);
    of_classes.chain([policy.bucket]).flatten().any(|bucket| bucket.shared.is_some() && bucket.per != Per::Gate)
}

/// Reports the key `shared` at a bucket of the wrong kind, such as the retry bucket.
pub(super) fn not_shared(bucket_at: &Cursor<'_>, bucket: Option<&BucketPolicy>) {
    if sharing(bucket_at).is_some() && bucket.is_some() {
        let message = "can only be set for the bucket of the gate or of a class; each gate limits its own retries";
        bucket_at.at("shared").key_problem(message);
    }
}

fn check_name(name: &str, at: &Cursor<'_>) {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
    if !(1..=LONGEST_NAME).contains(&name.len()) || !name.bytes().all(fits) {
        let named = if at.is_table() { at.at("name") } else { at.clone() };
        named.problem(format!(
            "is {name:?}, expected a name of 1 to {LONGEST_NAME} lower-case letters, digits, \"_\" and \"-\""
        ));
    }
}

/// Checks a shared bucket's rate, burst and other keys.
fn check_bucket(at: &Cursor<'_>, bucket: &BucketPolicy, shared: &SharedPolicy) {
    if bucket.per == Per::Flow {
        let message = "is \"flow\", but flows are those of one gate, so gates cannot share a bucket for each; \
                       expected \"gate\", \"credential\", \"client\", \"account\" or \"action\"";
        at.at("per").problem(message);
    }
    if at.has("start") {
        at.at("start").key_problem("has no effect: a new shared bucket is always empty");
    }
    if bucket.rate > FASTEST {
        at.at("rate").problem(format!("is {:?}, expected at most {FASTEST:?} for a shared bucket", bucket.rate));
        return;
    }
    let terms = SharedLimits::new(bucket, shared);
    let burst = f64::from(bucket.burst.get());
    if terms.bound() > burst + 0.01 {
        at.at("burst").warn(format!(
            "is {burst}, less than 1 + rate * lease: all gates together may send {:.1} at once; expected {} or more{}",
            terms.bound(),
            least_burst(bucket.rate, shared.lease),
            if shared.lease.is_some() { ", or a shorter lease" } else { "" }
        ));
    } else if burst < bucket.rate / 2.0 {
        let least = (bucket.rate / 2.0).ceil();
        at.at("burst").warn(format!(
            "is {burst}, less than half of the rate, so many calls at once have to wait for an answer of the store; \
             expected {least} or more"
        ));
    }
}

/// Returns the smallest sensible burst of a shared bucket with this lease. For a lease of `auto`,
/// it is computed with the shortest lease, which `auto` chooses for small bursts.
fn least_burst(rate: f64, lease: Option<Duration>) -> f64 {
    let lease = lease.unwrap_or(SHORTEST_LEASE);
    (1.0 + rate * lease.as_secs_f64()).ceil().max(2.0)
}

/// Sets the store of each shared bucket, and reports buckets of the same name with different
/// limits.
pub(super) fn check_together(settings: &mut Settings, root: &Cursor<'_>) {
    let Settings { stores, gates, .. } = settings;
    let mut seen = BTreeMap::<_, FirstBucket>::new();
    let mut users = Users::new();
    for (name, gate) in gates {
        let gate_at = root.at("gates").at(name);
        let longest_pause = gate.answers.throttling.max_pause;
        let Policy { bucket, classes, shared, .. } = &mut gate.policy;
        let all = gate_at.at("classes");
        let class_at = |class: &str| all.named(class).unwrap_or_else(|| all.clone()).at("bucket");
        let of_classes = classes.iter().map(|class| (class.bucket, class_at(&class.name)));
        let mut of_gate = BTreeSet::new();
        let mut resolved = None;
        let mut slow = Vec::new();
        for (bucket, at) in [(*bucket, gate_at.at("bucket"))].into_iter().chain(of_classes) {
            let Some((bucket, SharedId(id))) = bucket.and_then(|bucket| Some((bucket, bucket.shared?))) else {
                continue;
            };
            let Some(shared) = shared.get_mut(usize::from(id)).map(Arc::make_mut) else { continue };
            let bucket_at = at.path.to_string();
            let own_at = at.at("shared");
            shared.pauses = shared.pauses.map(|_| longest_pause);
            let at = if own_at.is_present() { own_at } else { gate_at.at("shared") };
            // What is wrong with the gate's own is said once.
            match &resolved {
                Some((path, store)) if *path == at.path => shared.store = Arc::clone(store),
                _ => resolve(shared, stores, &at),
            }
            resolved = Some((at.path.clone(), Arc::clone(&shared.store)));
            slow.extend(slow_alone(&bucket, shared).map(|rate| (at.clone(), Arc::clone(&shared.name), rate)));
            let id = (Arc::clone(&shared.store), Arc::clone(&shared.name));
            if !of_gate.insert(id.clone()) {
                at.problem(format!(
                    "is {:?}, the name of another bucket of this gate too, so a call would take its tokens twice; expected another name",
                    shared.name
                ));
            }
            users.entry(id.clone()).or_default().push(at.clone());
            let BucketPolicy { rate, burst, per, .. } = bucket;
            seen.entry(id).or_insert(FirstBucket { rate, burst, per, at: bucket_at }).check(&bucket, &shared.name, &at);
        }
        warn_of_slow(slow);
    }
    warn_of_alone(&users);
    let is_used = |store: &&Store| seen.keys().any(|(used, _): &(Arc<str>, Arc<str>)| *used == store.name);
    for store in stores.iter().filter(|store| !is_used(store)) {
        root.at("stores").at(&store.name).warn(
            "is not used, because no bucket is shared through it; expected bucket.shared at a gate; or remove this store",
        );
    }
}

/// Warns of shared buckets with one user: no other gate here shares them, and no other process can.
fn warn_of_alone(users: &Users<'_>) {
    let is_alone = |store: &str, at: &[Cursor<'_>]| store.is_empty() && at.len() == 1;
    let shared = users.iter().filter(|((store, _), at)| !is_alone(store, at)).flat_map(|(_, at)| at);
    // What shares one bucket of several does not stand there in vain.
    let mut done: BTreeSet<String> = shared.map(|at| at.path.to_string()).collect();
    let alone = users.iter().filter(|((store, _), at)| is_alone(store, at)).flat_map(|(_, at)| at);
    for at in alone {
        if done.insert(at.path.to_string()) {
            at.warn(
                "is shared with no other gate: there is no [stores.NAME], and no other gate of this process has this name; expected a store \
                 that other processes use too, or the same name at another gate; or remove this key",
            );
        }
    }
}

/// Returns the rate of a gate before it first reaches the store of this bucket. `None` unless the
/// rate is so low that the gate would seem to hang.
fn slow_alone(bucket: &BucketPolicy, shared: &SharedPolicy) -> Option<f64> {
    let part = bucket.rate / f64::from(shared.members.get());
    let goes_on = shared.outage == Outage::Share && !shared.store.is_empty();
    (goes_on && part < LEAST_PART).then_some(part)
}

/// Warns of gates with a very low rate before they reach their store. Each key gets one warning,
/// with the slowest bucket.
fn warn_of_slow(mut slow: Vec<(Cursor<'_>, Arc<str>, f64)>) {
    slow.sort_by(|one, other| one.2.total_cmp(&other.2));
    let mut told = BTreeSet::new();
    for (at, name, rate) in slow {
        if told.insert(at.path.to_string()) {
            at.warn(format!(
                "lets a gate that has not reached its store yet send only {rate:.3}/s for {name}, a call in {:.0} s; expected \
                 fewer members, or outage = \"full\" if calls matter more than the quota",
                1.0 / rate
            ));
        }
    }
}

// === impl FirstBucket ===

impl FirstBucket {
    /// Reports a bucket of the same name with limits different from this first one.
    fn check(&self, bucket: &BucketPolicy, name: &str, at: &Cursor<'_>) {
        let Self { rate, burst, per, at: first } = self;
        if (*rate, *burst) != (bucket.rate, bucket.burst) {
            at.problem(format!(
                "is {name:?}, but {first} shares this name with other limits ({rate}/s burst {burst}); expected the same rate \
                 and burst, or another name"
            ));
        } else if *per != bucket.per {
            let per = per.word();
            at.problem(format!("is {name:?}, which {first} shares per {per}; expected the same per, or another name"));
        }
    }
}

/// Sets the store of a shared bucket: its configured store, or else the only one.
///
/// Without any store in the configuration, the bucket is shared only by the gates of this process.
fn resolve(shared: &mut SharedPolicy, stores: &[Store], at: &Cursor<'_>) {
    let names: Vec<&str> = stores.iter().map(|store| &*store.name).collect();
    match (&*shared.store, stores) {
        ("", [only]) => shared.store = Arc::clone(&only.name),
        ("", []) => {
            for key in ["outage", "members"].into_iter().filter(|key| at.has(key)) {
                let message = "has no effect: there is no [stores.NAME], so that only the gates of this process share; expected a store, or \
                               members without a name for a fixed part of the rate";
                at.at(key).key_problem(message);
            }
        }
        ("", _) => at.problem(format!("needs a store, expected store = one of {}", names.join(", "))),
        (name, _) if names.contains(&name) => {}
        (name, _) => {
            let there = if names.is_empty() { "there is none".to_owned() } else { names.join(", ") };
            let near = did_you_mean(name, &names);
            at.at("store").problem(format!("is {name:?}, expected a [stores.NAME]: {there}{near}"));
        }
    }
    let timeout = stores.iter().find(|store| store.name == shared.store).map(|store| store.timeout);
    if let (Some(timeout), Some(lease)) = (timeout, shared.lease)
        && timeout > lease
    {
        let message = format!("is {lease:?}, less than the store's timeout of {timeout:?}: late answers are useless");
        at.at("lease").warn(message);
    }
}

const NOTHING: &str = "has no effect: the gate has no bucket that can be shared";
const ONLY_PARTS: &str =
    "members without a name gives each gate a fixed part, without a store; expected a name to share through a store";
const ONLY_NAMED: &str =
    "gates that share a name ask for each token; expected margin and members alone, without a name";
/// The separator between a gate's shared name and a class name; neither can contain it.
const OF: char = '.';
/// The largest weight of a gate at a shared bucket.
const HEAVIEST: u32 = 100;
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
const LEASES: std::ops::RangeInclusive<Duration> = SHORTEST_LEASE..=Duration::from_secs(60);
const LONGEST_NAME: usize = 64;
/// The default for `members`: the number of gates to assume until the store has replied.
const MEMBERS: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);
/// The most gates at a store without a warning: with more of them, the store's script takes a good
/// part of a millisecond.
const MANY: u32 = 100;
/// The least rate, in calls per second, of a gate without its store; below, it would seem to hang.
const LEAST_PART: f64 = 0.1;
/// The highest rate of a shared bucket: its time per token is stored in quarters of a microsecond.
const FASTEST: f64 = 10_000.0;
