//! A second implementation of keys, slow and simple: what each answer means for which calls, and
//! which calls may leave when.
//!
//! The proxy's own code reads and classifies the requests, and reports their answers. The model
//! knows neither hashes nor heads: it has words for requests, a table of what answers mean, and a
//! list of waiting calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, StatusCode, Uri};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tidegate::api::{Answer, Call, Failures, PausePolicy, Scope, Signal, outcome, signals};
use tidegate::classify::{ApiKind, Rules, Salt};
use tidegate::limit::quota::QuotaKind;
use tidegate::limit::{Reason, policy};
use tidegate::moment::Moment;

use self::world::{Caller, World, ms, open, secs};

#[expect(dead_code, reason = "shared with the tests of the core, which use more of it")]
#[path = "../../crates/limit/tests/limit/world.rs"]
mod world;

/// Returns the number of cases, more or less where someone asks for it.
fn config(cases: u32) -> ProptestConfig {
    let chosen = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { chosen.cases } else { cases };
    ProptestConfig { cases, max_shrink_iters: 20_000, ..chosen }
}

/// The operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Get,
    List,
    Watch,
    Create,
    Put,
    Patch,
    Delete,
    DeleteAll,
}

/// A request in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ask {
    does: Does,
    object: char,
    /// The subresource, or nothing.
    part: &'static str,
    dry: bool,
}

/// The end of a request, if it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Answered(u16),
    /// This status with a Retry-After.
    Named(u16, u64),
    Lost,
    Left,
}

/// A request, the time since the one before, and its end, with the time since it left.
#[derive(Clone, Copy, Debug)]
struct Step {
    gap: Duration,
    ask: Ask,
    takes: Duration,
    end: End,
}

/// The actions of clients and of the upstream.
#[derive(Clone)]
struct History {
    kind: ApiKind,
    hold: Duration,
    longest: Duration,
    forget_after: Duration,
    steps: Vec<Step>,
}

/// The name under which a failure is remembered, in words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    object: String,
    touch: String,
}

/// The meaning of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    Nothing,
    Works,
    Fails(Option<Duration>),
    /// A DELETE worked; true if it was the one that removed the object.
    Deleted(bool),
    /// A write found no object.
    Missed,
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fate {
    left: Option<Moment>,
    refused: Option<(Reason, Moment)>,
}

/// The events of a run, in order.
#[derive(Clone, Copy, Debug)]
enum Event {
    Left(usize),
    Ended(usize),
}

#[derive(Clone, Debug)]
struct Known {
    failures: u32,
    last_failure: Moment,
    /// The event of the last failure that counted.
    failed: usize,
    ready_at: Moment,
    named: Moment,
    forget_at: Moment,
    trial: Option<usize>,
}

#[derive(Debug)]
struct Model<'a> {
    history: &'a History,
    now: Moment,
    events: usize,
    keys: BTreeMap<Name, Known>,
    /// The calls that wait for their key, in order, and the end of each wait.
    held: Vec<(usize, Moment)>,
    fates: Vec<Fate>,
    /// The event at which each call left.
    left: Vec<usize>,
}

// === impl Ask ===

impl Ask {
    fn is_read(self) -> bool {
        matches!(self.does, Does::Get | Does::List | Does::Watch)
    }

    fn head(self, kind: ApiKind) -> (Method, Uri) {
        let method = match self.does {
            Does::Get | Does::List | Does::Watch => Method::GET,
            Does::Create => Method::POST,
            Does::Put => Method::PUT,
            Does::Patch => Method::PATCH,
            Does::Delete | Does::DeleteAll => Method::DELETE,
        };
        let all = if kind == ApiKind::Http { "/things" } else { "/api/v1/namespaces/n/configmaps" };
        let mut target = match (kind, self.does) {
            (ApiKind::Kubernetes, Does::Create) | (_, Does::List | Does::Watch | Does::DeleteAll) => all.to_owned(),
            _ => format!("{all}/{}", self.object),
        };
        if !self.part.is_empty() {
            target = format!("{target}/{}", self.part);
        }
        target += match (self.does, self.dry) {
            (Does::Watch, _) => "?watch=1",
            (_, true) => "?dryRun=All",
            _ => "",
        };
        (method, target.parse().expect("a target"))
    }

    fn body(self) -> String {
        format!("{{\"metadata\":{{\"name\":\"{}\"}}}}", self.object)
    }

    fn name(self, kind: ApiKind) -> Name {
        let object = match self.does {
            Does::List | Does::Watch => "all".to_owned(),
            Does::DeleteAll if kind == ApiKind::Kubernetes => "many".to_owned(),
            Does::DeleteAll => "all".to_owned(),
            // An operation on an external API is known by its body.
            Does::Create if kind == ApiKind::Http => format!("post to {}", self.object),
            _ => self.object.to_string(),
        };
        let does = match self.does {
            Does::Get => "read",
            Does::List if kind == ApiKind::Kubernetes => "list",
            Does::Watch if kind == ApiKind::Kubernetes => "watch",
            Does::List | Does::Watch => "read",
            Does::Create | Does::Put | Does::Patch => "write",
            Does::Delete | Does::DeleteAll => "delete",
        };
        Name { object, touch: format!("{does} {}", self.part) }
    }

    /// The table in docs/internals/design.md, "Outcomes".
    fn means(self, kind: ApiKind, end: End, takes: Duration) -> Means {
        let of_object = self.part.is_empty() && (kind == ApiKind::Http || self.does != Does::DeleteAll);
        match end {
            End::Named(_, seconds) => Means::Fails(Some(secs(seconds))),
            // A dry run says nothing about the real write, however it ends.
            _ if self.dry => Means::Nothing,
            End::Lost => Means::Fails(None),
            End::Left if kind == ApiKind::Http || self.does == Does::Watch || takes <= secs(1) => Means::Nothing,
            End::Left => Means::Fails(None),
            End::Answered(429 | 500 | 502 | 503 | 504) => Means::Fails(None),
            End::Answered(status @ (200..=299 | 304 | 404)) if of_object && self.name(kind).touch == "delete " => {
                Means::Deleted(status != 404)
            }
            End::Answered(200..=299 | 304) => Means::Works,
            End::Answered(404) if of_object && matches!(self.does, Does::Put | Does::Patch) => Means::Missed,
            End::Answered(_) => Means::Nothing,
        }
    }
}

impl fmt::Debug for History {
    /// One line for each step: a history that fails is to be read, not scrolled through.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, hold, longest, forget_after, steps } = self;
        writeln!(f, "{kind} gate, hold {hold:?}, backoff at most {longest:?}, forgotten after {forget_after:?}")?;
        let mut now = Duration::ZERO;
        for (number, Step { gap, ask, takes, end }) in steps.iter().enumerate() {
            now += *gap;
            let (method, target) = ask.head(*kind);
            writeln!(f, "  {now:?}: {number} {method} {target} ({}) {end:?} after {takes:?}", ask.object)?;
        }
        Ok(())
    }
}

// === impl Model ===

impl<'a> Model<'a> {
    fn new(history: &'a History) -> Self {
        let calls = history.steps.len();
        Self {
            history,
            now: Moment::ZERO,
            events: 0,
            keys: BTreeMap::new(),
            held: Vec::new(),
            fates: vec![Fate::default(); calls],
            left: vec![0; calls],
        }
    }

    fn name(&self, call: usize) -> Name {
        self.history.steps[call].ask.name(self.history.kind)
    }

    fn delay(&self, name: &Name, failures: u32) -> Duration {
        let informers = matches!(name.touch.as_str(), "list " | "watch ");
        let longest = if informers { self.history.longest.min(secs(5)) } else { self.history.longest };
        secs(1).saturating_mul(1 << (failures - 1).min(20)).min(longest)
    }

    fn leave(&mut self, call: usize) {
        let name = self.name(call);
        if let Some(known) = self.keys.get_mut(&name) {
            known.trial = Some(call);
        }
        self.events += 1;
        self.left[call] = self.events;
        self.fates[call].left = Some(self.now);
    }

    fn refuse(&mut self, call: usize, reason: Reason, at: Moment) {
        self.fates[call].refused = Some((reason, at));
    }

    /// Another call is the trial, or earlier ones wait for it. The time given is the one that a
    /// failure of the trial would set.
    fn refuse_behind_another(&mut self, call: usize) {
        let name = self.name(call);
        let known = &self.keys[&name];
        let at = (self.now + self.delay(&name, known.failures + 1)).max(known.ready_at);
        self.refuse(call, Reason::Trial, at);
    }

    fn arrive(&mut self, call: usize) {
        let (name, ends) = (self.name(call), self.now + self.history.hold);
        let waits = self.held.iter().any(|(other, _)| self.name(*other) == name);
        match self.keys.get(&name) {
            None => self.leave(call),
            Some(known) if known.trial.is_none() && !waits && known.ready_at <= self.now => self.leave(call),
            Some(known) if known.ready_at > ends => self.refuse(call, Reason::Backoff, known.ready_at),
            Some(_) if self.history.hold.is_zero() => self.refuse_behind_another(call),
            Some(_) => self.held.push((call, ends)),
        }
        self.settle();
    }

    fn end(&mut self, call: usize) {
        let Step { ask, takes, end, .. } = self.history.steps[call];
        let name = self.name(call);
        match ask.means(self.history.kind, end, takes) {
            Means::Nothing => {}
            Means::Works => _ = self.keys.remove(&name),
            Means::Fails(after) => self.fail(call, &name, after),
            Means::Missed => self.lose(&name),
            Means::Deleted(did) => {
                if did {
                    self.keys.remove(&name);
                }
                let all: Vec<_> = self.keys.keys().filter(|other| other.object == name.object).cloned().collect();
                all.iter().for_each(|other| self.lose(other));
            }
        }
        if let Some(known) = self.keys.get_mut(&name).filter(|known| known.trial == Some(call)) {
            known.trial = None;
        }
        self.settle();
    }

    /// The object is gone: its failures are forgotten, but not a time that the upstream named.
    fn lose(&mut self, name: &Name) {
        let Some(known) = self.keys.get_mut(name) else { return };
        (known.failures, known.ready_at, known.forget_at) = (1, known.named, known.named);
    }

    fn fail(&mut self, call: usize, name: &Name, after: Option<Duration>) {
        let after = after.map_or(Moment::ZERO, |after| self.now + after);
        self.events += 1;
        let failures = self.keys.get(name).map_or(0, |known| known.failures);
        let delay = self.delay(name, failures + 1);
        let never = Moment::ZERO;
        let known = self.keys.entry(name.clone()).or_insert_with(|| Known {
            failures: 0,
            last_failure: never,
            failed: 0,
            ready_at: never,
            named: never,
            forget_at: never,
            trial: None,
        });
        known.named = known.named.max(after);
        // It left before the last failure was known: only a later time would be news.
        if self.left[call] < known.failed && after <= known.ready_at {
            return;
        }
        if self.left[call] > known.failed {
            known.failures += 1;
            (known.last_failure, known.failed) = (self.now, self.events);
            known.ready_at = known.ready_at.max(self.now + delay);
        }
        known.ready_at = known.ready_at.max(after);
        known.forget_at = (known.last_failure + self.history.forget_after).max(known.ready_at);
    }

    /// Every call whose wait is over goes or is refused.
    fn settle(&mut self) {
        let now = self.now;
        self.keys.retain(|_, known| known.forget_at > now);
        let names: BTreeSet<Name> = self.held.iter().map(|(call, _)| self.name(*call)).collect();
        for name in names {
            let line: Vec<_> = self.held.iter().copied().filter(|(call, _)| self.name(*call) == name).collect();
            let mut first = true;
            for (call, ends) in line {
                let Some(known) = self.keys.get(&name) else {
                    self.step_out(call);
                    self.leave(call);
                    continue;
                };
                if known.ready_at > ends {
                    let at = known.ready_at;
                    self.step_out(call);
                    self.refuse(call, Reason::Backoff, at);
                } else if known.trial.is_none() && first && known.ready_at <= now {
                    self.step_out(call);
                    self.leave(call);
                } else if ends <= now {
                    self.step_out(call);
                    self.refuse_behind_another(call);
                } else {
                    first = false;
                }
            }
        }
    }

    fn step_out(&mut self, call: usize) {
        self.held.retain(|(other, _)| *other != call);
    }

    fn pass_to(&mut self, to: Moment) {
        loop {
            let names = self.held.iter().map(|(call, _)| self.name(*call));
            let known =
                names.filter_map(|name| self.keys.get(&name)).flat_map(|known| [known.ready_at, known.forget_at]);
            let times = known.chain(self.held.iter().map(|(_, ends)| *ends));
            let next = times.filter(|at| *at > self.now).min();
            self.now = next.map_or(to, |next| next.min(to));
            self.settle();
            if self.now == to {
                return;
            }
        }
    }
}

/// A gate as the proxy has it, with one class.
struct Real {
    rules: Rules,
    hasher: Salt,
    failures: Failures,
    throttling: PausePolicy,
    world: World,
    calls: Vec<Call>,
}

impl Real {
    fn new(history: &History) -> Self {
        let (kind, mut limits) = (history.kind, open());
        let strategy = policy::Strategy::Exponential { base: secs(1), max: history.longest, jitter: 0.0 };
        limits.classes[0].backoff =
            policy::Backoff { strategy, hold: history.hold, forget_after: history.forget_after };
        Self {
            rules: Rules::single(kind),
            hasher: Salt::random(),
            failures: Failures {
                statuses: vec![429, 500, 502, 503, 504],
                transport: true,
                left: kind == ApiKind::Kubernetes,
            },
            throttling: PausePolicy {
                kubernetes: kind == ApiKind::Kubernetes,
                honour: [Signal::RetryAfter].into_iter().collect(),
                scope: Scope::Key,
                max_pause: secs(900),
                reserve: 0.0,
                quota: QuotaKind::Unknown,
                pace: false,
            },
            world: World::new(limits),
            calls: Vec::new(),
        }
    }

    fn arrive(&mut self, ask: Ask) {
        let (method, uri) = ask.head(self.rules.kind);
        let read = self.rules.classify(&method, &uri, &HeaderMap::new(), &self.hasher);
        let key = read.key.with_body(ask.body().as_bytes(), true, &self.hasher).expect("each has a key");
        let mut caller = Caller::new();
        caller.key = Some(key.object);
        caller.facet = key.facet;
        caller.collection = Some(key.collection);
        self.world.arrive(caller);
        self.calls.push(read.call);
    }

    fn end(&mut self, call: usize, step: &Step) {
        let asked = &self.calls[call];
        let told = |status: u16, after: Option<u64>| {
            let status = StatusCode::from_u16(status).expect("a status");
            let headers: HeaderMap = after.map(|seconds| (RETRY_AFTER, seconds.into())).into_iter().collect();
            let response = signals::Response { status, headers: &headers, body: b"", wall: None };
            outcome::answer(&self.failures, &self.throttling, asked, &response).answer
        };
        let answer: Answer = match step.end {
            End::Answered(status) => told(status, None),
            End::Named(status, seconds) => told(status, Some(seconds)),
            End::Lost => outcome::lost(&self.failures, asked),
            End::Left => outcome::left(&self.failures, asked, step.takes),
        };
        self.world.answer_with(call, answer);
        self.world.end(call);
    }

    fn fate(&self, call: usize) -> Fate {
        let refused = self.world.refusal(call).map(|refusal| (refusal.reason, refusal.retry_at));
        Fate { left: self.world.left_at(call), refused }
    }
}

/// Runs a history, and calls `look` after each moment. Returns the events and the fates.
fn live(history: &History, mut look: impl FnMut(&Real, Doing)) -> (Vec<(Moment, Event)>, Vec<Fate>) {
    let mut real = Real::new(history);
    let mut agenda: BTreeSet<(Moment, bool, usize)> = BTreeSet::new();
    let mut at = Moment::ZERO;
    for (call, step) in history.steps.iter().enumerate() {
        at += step.gap;
        agenda.insert((at, false, call));
    }
    let (mut events, mut noted) = (Vec::new(), BTreeSet::new());
    loop {
        let wakeup = real.world.limiter.next_wakeup();
        let next = agenda.first().map(|(at, ..)| *at);
        let Some(at) = [wakeup, next].into_iter().flatten().min() else { break };
        let due = agenda.first().copied().filter(|(due, ..)| *due == at);
        real.world.pass_to(at, &mut || Duration::ZERO);
        look(&real, Doing::Pass(at));
        note(&real, history, &mut agenda, &mut events, &mut noted);
        if let Some((_, ends, call)) = due {
            agenda.remove(&(at, ends, call));
            if ends {
                events.push((at, Event::Ended(call)));
                real.end(call, &history.steps[call]);
                look(&real, Doing::End(call));
            } else {
                real.arrive(history.steps[call].ask);
                look(&real, Doing::Arrive(call));
            }
            note(&real, history, &mut agenda, &mut events, &mut noted);
        }
    }
    let fates = (0..history.steps.len()).map(|call| real.fate(call)).collect();
    real.world.wind_down();
    (events, fates)
}

/// The part of a history that was just done.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Pass(Moment),
    Arrive(usize),
    End(usize),
}

/// Schedules the end of each call that has left.
fn note(
    real: &Real,
    history: &History,
    agenda: &mut BTreeSet<(Moment, bool, usize)>,
    events: &mut Vec<(Moment, Event)>,
    noted: &mut BTreeSet<usize>,
) {
    for call in 0..real.calls.len() {
        let Some(left) = real.world.left_at(call).filter(|_| noted.insert(call)) else { continue };
        events.push((left, Event::Left(call)));
        agenda.insert((left + history.steps[call].takes, true, call));
    }
}

fn histories(length: usize) -> impl Strategy<Value = History> {
    let hold = prop_oneof![Just(Duration::ZERO), Just(ms(100)), Just(ms(2_500))];
    let times = (select(vec![2_u64, 8, 60]), 0_u64..3);
    (prop::bool::weighted(0.3), hold, times, vec(steps(), 1..length)).prop_map(
        |(external, hold, (longest, forgetful), mut steps)| {
            let kind = if external { ApiKind::Http } else { ApiKind::Kubernetes };
            for step in &mut steps {
                let ask = &mut step.ask;
                if external {
                    (ask.part, ask.dry) = ("", false);
                }
                ask.dry &= !ask.is_read();
                if matches!(ask.does, Does::List | Does::Watch | Does::Create | Does::DeleteAll) {
                    ask.part = "";
                }
                if ask.part == "log" {
                    ask.does = Does::Get;
                    ask.dry = false;
                }
            }
            // A nanosecond more than whole: no hold ends at the same moment as anything else.
            let hold = if hold.is_zero() { hold } else { hold + Duration::from_nanos(1) };
            let forget_after = secs(longest) * u32::try_from(forgetful + 1).expect("a few");
            History { kind, hold, longest: secs(longest), forget_after, steps }
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let gap = prop_oneof![3 => Just(0), 4 => 0_u64..300, 3 => 0_u64..3_000, 1 => 0_u64..40_000].prop_map(ms);
    let takes = prop_oneof![3 => Just(0), 4 => 0_u64..300, 3 => 0_u64..3_000].prop_map(ms);
    let does = prop_oneof![
        4 => Just(Does::Get),
        1 => Just(Does::List),
        1 => Just(Does::Watch),
        3 => Just(Does::Create),
        4 => Just(Does::Put),
        2 => Just(Does::Patch),
        3 => Just(Does::Delete),
        1 => Just(Does::DeleteAll),
    ];
    let part = prop_oneof![6 => Just(""), 1 => Just("status"), 1 => Just("scale"), 1 => Just("log")];
    let ask = (does, prop_oneof![3 => Just('a'), 1 => Just('b')], part, prop::bool::weighted(0.15))
        .prop_map(|(does, object, part, dry)| Ask { does, object, part, dry });
    let end = prop_oneof![
        6 => select(vec![500, 500, 502, 503, 504, 429]).prop_map(End::Answered),
        4 => (select(vec![429, 503]), prop_oneof![0_u64..4, 5_u64..40]).prop_map(|(status, after)| End::Named(status, after)),
        6 => Just(End::Answered(404)),
        2 => select(vec![200, 201, 204, 304]).prop_map(End::Answered),
        2 => select(vec![301, 400, 401, 403, 409, 410, 422, 501]).prop_map(End::Answered),
        1 => Just(End::Lost),
        1 => Just(End::Left),
    ];
    (gap, ask, takes, end).prop_map(|(gap, ask, takes, end)| Step { gap, ask, takes, end })
}

/// Runs a history with both.
fn agree(history: &History) -> Result<(), TestCaseError> {
    let mut model = Model::new(history);
    let mut differs = None;
    live(history, |real, doing| {
        if differs.is_some() {
            return;
        }
        match doing {
            Doing::Pass(to) => model.pass_to(to),
            Doing::Arrive(call) => model.arrive(call),
            Doing::End(call) => model.end(call),
        }
        let found: Vec<_> = (0..real.calls.len()).map(|call| real.fate(call)).collect();
        let now = real.world.now;
        let mut known: Vec<_> =
            real.world.limiter.keys().list(now).iter().map(|(.., key)| (key.ready_at, key.failures)).collect();
        let mut expected: Vec<_> = model.keys.values().map(|known| (known.ready_at, known.failures)).collect();
        known.sort_unstable();
        expected.sort_unstable();
        if found != model.fates[..found.len()] || known != expected {
            differs = Some(format!(
                "{doing:?} at {now:?}: {found:?}\nby the model: {:?}\nkeys: {known:?}\nby the model: {:?}",
                &model.fates[..found.len()],
                model.keys
            ));
        }
    });
    prop_assert!(differs.is_none(), "{}", differs.unwrap_or_default());
    Ok(())
}

proptest! {
    #![proptest_config(config(250))]

    #[test]
    fn who_may_try_again_when_is_what_a_slow_and_obvious_model_of_keys_says(history in histories(40)) {
        agree(&history)?;
    }

    /// Without the reads and the calls to subresources of a history, every call to the objects
    /// themselves leaves at the same moment.
    #[test]
    fn no_sequence_of_reads_changes_when_a_write_may_be_tried(history in histories(30)) {
        let is_write = |step: &Step| !step.ask.is_read() && step.ask.part.is_empty();
        let mut alone = History { steps: Vec::new(), ..history };
        let mut gap = Duration::ZERO;
        for step in &history.steps {
            gap += step.gap;
            if is_write(step) {
                alone.steps.push(Step { gap: std::mem::take(&mut gap), ..*step });
            }
        }
        let (_, among) = live(&history, |_, _| ());
        let (_, alone) = live(&alone, |_, _| ());
        let among: Vec<_> = among.into_iter().zip(&history.steps).filter(|(_, step)| is_write(step)).map(|(fate, _)| fate).collect();
        prop_assert_eq!(among, alone);
    }

    #[test]
    fn nothing_but_a_success_of_the_key_lifts_a_time_that_the_upstream_named(history in histories(40)) {
        let (events, _) = live(&history, |_, _| ());
        let mut named: BTreeMap<Name, Moment> = BTreeMap::new();
        for (at, event) in events {
            let (Event::Left(call) | Event::Ended(call)) = event;
            let Step { ask, end, takes, .. } = history.steps[call];
            let name = ask.name(history.kind);
            match (event, ask.means(history.kind, end, takes)) {
                (Event::Left(_), _) => {
                    let until = named.get(&name).copied().unwrap_or_default();
                    prop_assert!(at >= until, "{call} left at {at:?}, before {until:?}");
                }
                (Event::Ended(_), Means::Fails(Some(after))) => {
                    let until = named.entry(name).or_default();
                    *until = (*until).max(at + after);
                }
                (Event::Ended(_), Means::Works | Means::Deleted(true)) => _ = named.remove(&name),
                (Event::Ended(_), _) => {}
            }
        }
    }
}
