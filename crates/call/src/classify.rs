//! Ordered rules giving a call its class, flow and key.
//!
//! Rules are tried in order; the first match wins. A call with an ambiguous path goes to the
//! strictest class of the gate; on an `http` gate to the strictest class that the call could have
//! with any path. A `%2F` of an external API is read in both possible ways, and the stricter class
//! counts. The hot path allocates only the [`Call`] itself, and the name of a configured key.

// In the path of a call nothing may panic: every exception states its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

use std::hash::BuildHasher;
use std::sync::Arc;

use http::{HeaderMap, Method, Uri};

use self::caller::CallerFacts;
use self::matcher::Subject;
use crate::api::{Call, Group, Verb, apply, external, kubernetes};
use crate::dialect::{Dialect, Form, Head, Words};
use crate::limit::ClassId;
use crate::limit::policy::Per;
use crate::limit::quota::{QuotaHint, ResourceId};

mod caller;
mod classified;
mod cost;
mod everywhere;
mod flow;
mod glob;
mod key;
mod matcher;
mod parts;
mod salt;

pub use self::caller::{CallerSplits, QuotaRules};
pub use self::cost::{CostBy, CostReader};
pub use self::everywhere::number_of_origin;
pub use self::flow::{FairBy, FlowName};
pub use self::glob::Glob;
pub use self::key::KeySource;
pub use self::matcher::{Matcher, PatternList, RuleMatch};
pub use self::parts::{KeyPart, KeyPartError, KeyParts, KeyPartsError};
pub use self::salt::Salt;

/// The rules of one gate, in order; the first match wins.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The kind of API.
    pub kind: ApiKind,
    /// What divides a class into flows.
    pub fair_by: FairBy,
    splits: CallerSplits,
    /// True if writes go one at a time only for objects with changes taken [one at a
    /// time](Words::serial) by the provider.
    only_serial_writes: bool,
    dialect: Dialect,
    classes: Vec<Traits>,
    /// The keys configured for each class (`key = [...]`).
    keys: Vec<Option<KeyParts>>,
    rules: Vec<(ClassId, matcher::CompiledRule)>,
    /// The calls that the upstream never counts.
    uncounted: Vec<matcher::CompiledRule>,
    strictest: ClassId,
}

words! {
    /// The kind of API behind a gate.
    pub enum ApiKind {
        /// kube-apiserver.
        Kubernetes = "kubernetes",
        /// Any other HTTP API.
        Http = "http",
    }
}

/// The properties of a class, as needed to classify calls; indexed by [`ClassId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// True for an exempt class: its calls have no keys, and connections of their own.
    pub exempt: bool,
    /// True if calls of the class need keys, to remember failures or to send writes one at a time.
    pub remembers: bool,
    /// How strict the class is compared to others, by lane, then by rate. A call with an ambiguous
    /// path goes to the strictest, exempt classes aside.
    pub strictness: u16,
    /// How the cost of a call is determined.
    pub cost: CostBy,
}

/// A rule: a class, and the calls belonging to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The class of calls matched by the rule.
    pub class: ClassId,
    /// The conditions for a call.
    pub matching: RuleMatch,
}

/// A call with its class, flow and key.
#[derive(Debug)]
pub struct ClassifiedCall {
    /// The request.
    pub call: Call,
    /// The class of the call.
    pub class: ClassId,
    /// The salted hash of the credential, account or action that limits are split by; 0 if they are
    /// not.
    pub credential: u64,
    /// The call's upstream quota, as far as the request head shows it.
    pub quota: QuotaHint,
    /// The name of the call's client, if the gate knows its clients.
    pub client: Option<Arc<str>>,
    /// The call in its cloud provider's terms (service, region, action), if the gate is configured
    /// for a provider.
    pub words: Option<Box<Words>>,
    /// The call's cost in tokens, before the bounds of its class.
    pub cost: u16,
    /// The format of errors the call's sender expects, if it is not the gate's usual one.
    pub form: Option<Form>,
    /// True if the call must be the only one of its key in progress, on a gate sending writes one
    /// at a time.
    pub goes_alone: bool,
    /// The call's key, or how to get it from the body.
    pub key: KeySource,
    /// True if the key is of one object (or path), so that removing the object forgets its
    /// failures.
    pub key_is_of_object: bool,
    /// The group of connections the call uses.
    pub group: Group,
    /// True if the call's class is exempt.
    pub exempt: bool,
    fair: FlowParty,
    /// The readable name of a configured key. It is made early, because the key's parts are gone
    /// later.
    label: Option<Box<str>>,
}

/// A flow and its owner: a credential, account or client.
#[derive(Clone, Copy, Debug)]
struct FlowParty {
    by: FairBy,
    /// The hash of the credential, account or client; 0 if flows are not divided by these.
    identity: u64,
    /// The hash of the flow.
    flow: u64,
}

// === impl Rules ===

impl Rules {
    /// Creates rules over `classes`, in order. A call without a matching rule belongs to the last
    /// class, so there must be at least one.
    pub fn new(kind: ApiKind, fair_by: FairBy, classes: Vec<Traits>, rules: Vec<Rule>) -> Self {
        let rules: Vec<_> =
            rules.into_iter().map(|rule| (rule.class, matcher::CompiledRule::new(rule.matching))).collect();
        let strictest = strictest(&classes);
        Self {
            kind,
            fair_by,
            splits: CallerSplits { of_gate: fair_by.identity(), ..CallerSplits::default() },
            only_serial_writes: false,
            dialect: Dialect::Plain,
            classes,
            keys: Vec::new(),
            rules,
            uncounted: Vec::new(),
            strictest,
        }
    }

    /// Sets the cloud provider of the API; its terms are read from calls.
    pub fn with_dialect(self, dialect: Dialect) -> Self {
        Self { dialect, ..self }
    }

    /// Sets the calls that the upstream never counts.
    pub fn with_uncounted(self, calls: Vec<Matcher>) -> Self {
        let compiled = |calls| matcher::CompiledRule::new(RuleMatch::Patterns(Box::new(calls)));
        Self { uncounted: calls.into_iter().map(compiled).collect(), ..self }
    }

    /// Sets how limits and failures are split among callers.
    pub fn with_splits(self, splits: CallerSplits) -> Self {
        let of_gate = splits.of_gate.or_else(|| self.fair_by.identity());
        Self { splits: CallerSplits { of_gate, ..splits }, ..self }
    }

    /// If true, only writes of objects that the provider itself changes one at a time (a zone of
    /// Route 53) go one at a time; if false, those of every object.
    pub fn with_only_serial_writes(self, only_serial_writes: bool) -> Self {
        Self { only_serial_writes, ..self }
    }

    /// Sets the configured keys, by class; `None` leaves the key to the kind of API.
    pub fn with_keys(self, keys: Vec<Option<KeyParts>>) -> Self {
        Self { keys, ..self }
    }

    /// Returns these rules, extended so that the limits of a gate with the `other` rules can use
    /// the classified calls. Both must have the same classes. `None` if the two split callers in
    /// different ways.
    pub fn joined(&self, other: &Self) -> Option<Self> {
        let mut joined = self.clone();
        for (traits, other) in joined.classes.iter_mut().zip(&other.classes) {
            traits.remembers |= other.remembers;
        }
        joined.splits = self.splits.joined(&other.splits, self.classes.len())?;
        Some(joined)
    }

    /// Creates rules with one class for everything, as on a gate with only a bucket configured.
    pub fn single(kind: ApiKind) -> Self {
        Self::new(kind, FairBy::Resource, vec![UNKNOWN], Vec::new())
    }

    /// Returns true if the rules of a class read more than the call log contains: names, paths,
    /// headers or the query.
    pub fn looks_past_the_log(&self, class: ClassId) -> bool {
        self.rules.iter().any(|(of, compiled)| *of == class && compiled.looks_past_the_log())
    }

    /// Returns true if calls are read in a cloud provider's terms.
    pub fn speaks_a_dialect(&self) -> bool {
        self.dialect != Dialect::Plain
    }

    /// Returns true if the beginning of a request's body may name its action, so that it should be
    /// read first.
    pub fn wants_body(&self, head: &Head<'_>) -> bool {
        let reads_graphql = |traits: &Traits| traits.cost == CostBy::Read(CostReader::Graphql);
        let is_graphql = || self.dialect.is_graphql(head) && self.classes.iter().any(reads_graphql);
        self.speaks_a_dialect() && (self.dialect.wants_body(head) || is_graphql())
    }

    /// Classifies a request by its head. Flow and key numbers are comparable only under one
    /// `hasher`.
    pub fn classify(&self, method: &Method, uri: &Uri, headers: &HeaderMap, hasher: &Salt) -> ClassifiedCall {
        self.classify_with(&Head { method, uri, headers }, &[], hasher)
    }

    /// Classifies a request by its head and the beginning of its body, if [`Self::wants_body`].
    pub fn classify_with(&self, head: &Head<'_>, body: &[u8], hasher: &Salt) -> ClassifiedCall {
        let Head { method, uri, headers } = *head;
        let mut call = self.read(method, uri, headers);
        let words = self.speaks_a_dialect().then(|| Box::new(self.dialect.read(head, body)));
        let path = call.path();
        let subject = Subject { call: &call, path, method, query: uri.query(), headers, words: words.as_deref() };
        let class = self.class(&subject);
        let traits = self.traits(class);
        let caller = CallerFacts { dialect: self.dialect, words: words.as_deref(), request: *head, hasher };
        let credential = self.splits.identity(class, &caller);
        let mut quota = self.splits.quota(class, &caller);
        if self.uncounted.iter().any(|calls| calls.surely_matches(&subject)) {
            quota.word = ResourceId::FREE;
        }
        let cost = traits.cost.of(&subject);
        let form = words.as_deref().and_then(|words| self.dialect.form(head, words));
        let identity = caller.fair_to(self.fair_by);
        let flow = match identity {
            0 => hasher.hash_one(FlowName::new(self.fair_by, self.kind, &call, words.as_deref(), headers, 0)),
            flow => flow,
        };
        let own = self.keys.get(usize::from(class.0)).and_then(Option::as_ref);
        let key = match own {
            _ if traits.exempt || !traits.remembers => KeySource::None,
            Some(parts) => parts.source(self.kind, &subject, hasher),
            None => match words.as_deref() {
                Some(words) if self.dialect == Dialect::Aws => KeySource::of_aws(words, &subject, hasher),
                _ => KeySource::of(self.kind, &call, hasher),
            },
        };
        let key = match self.splits.are_callers_apart(class, words.as_deref()) {
            true => key.of_caller(caller.identity(Per::Credential, false), hasher),
            false => key,
        };
        let label = own.filter(|_| key != KeySource::None).map(|parts| parts.label(&subject).into());
        if words.as_deref().is_some_and(|words| words.waits_upstream) {
            call.is_long_running = true;
            call.lists_first = true; // the provider counts it like any other call
        }
        let group = match call.is_long_running {
            _ if traits.exempt => Group::Exempt,
            true => Group::LongRunning,
            false => Group::Short,
        };
        let goes_alone = match words.as_deref() {
            Some(words) if self.only_serial_writes => !words.serial.is_empty(),
            words => !reads(&call, words),
        };
        ClassifiedCall {
            call,
            class,
            credential,
            quota,
            client: None,
            words,
            cost,
            form,
            goes_alone,
            key,
            key_is_of_object: own.is_none_or(KeyParts::is_of_object),
            group,
            exempt: traits.exempt,
            fair: FlowParty { by: self.fair_by, identity, flow },
            label,
        }
    }

    fn read(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Call {
        let mut call = match self.kind {
            ApiKind::Kubernetes => kubernetes::read(method, uri),
            ApiKind::Http => return external::read(method, uri),
        };
        call.is_apply = call.verb == Verb::Patch && apply::is_apply(headers);
        call
    }

    fn class(&self, subject: &Subject<'_>) -> ClassId {
        if subject.words.is_some_and(|words| self.dialect.any_path_is_clear(words)) {
            return self.first_match(subject);
        }
        match self.kind {
            ApiKind::Kubernetes if subject.call.is_ambiguous => return self.strictest,
            ApiKind::Http if subject.call.is_ambiguous => return self.strictest_whatever_the_path(subject),
            ApiKind::Kubernetes | ApiKind::Http => {}
        }
        let class = self.first_match(subject);
        match subject.call.path_split_later() {
            None => class,
            // For a server that decodes before it splits.
            Some(path) => self.stricter(class, self.first_match(&Subject { path: &path, ..*subject })),
        }
    }

    fn first_match(&self, subject: &Subject<'_>) -> ClassId {
        let found = self.rules.iter().find(|(_, compiled)| compiled.matches(subject));
        found.map_or_else(|| last(&self.classes), |(class, _)| *class)
    }

    /// Returns the strictest class the call could have with any path; an exempt one only if
    /// there is no other.
    fn strictest_whatever_the_path(&self, subject: &Subject<'_>) -> ClassId {
        let mut strictest = None;
        for (class, compiled) in &self.rules {
            if self.traits(*class).exempt || !compiled.matches_some_path(subject) {
                continue;
            }
            strictest = Some(strictest.map_or(*class, |other| self.stricter(other, *class)));
            if compiled.is_blind_to_paths() {
                return strictest.unwrap_or(*class);
            }
        }
        let last = last(&self.classes);
        strictest.map_or(last, |class| self.stricter(class, last))
    }

    /// Returns the stricter of two classes; an exempt one is never stricter.
    fn stricter(&self, one: ClassId, other: ClassId) -> ClassId {
        let rank = |class| {
            let traits = self.traits(class);
            (!traits.exempt, traits.strictness)
        };
        if rank(one) >= rank(other) { one } else { other }
    }

    fn traits(&self, class: ClassId) -> Traits {
        self.classes.get(usize::from(class.0)).copied().unwrap_or(UNKNOWN)
    }
}

/// Returns true if a call changes nothing, by its provider's terms if it has any.
fn reads(call: &Call, words: Option<&Words>) -> bool {
    words.map_or_else(|| call.verb.is_read(), |words| words.reads)
}

/// Returns the strictest class that is not exempt; the last if all are exempt.
fn strictest(classes: &[Traits]) -> ClassId {
    let ranked = classes.iter().zip(0_u16..).filter(|(traits, _)| !traits.exempt);
    ranked.max_by_key(|(traits, _)| traits.strictness).map_or_else(|| last(classes), |(_, id)| ClassId(id))
}

fn last(classes: &[Traits]) -> ClassId {
    ClassId(u16::try_from(classes.len().saturating_sub(1)).unwrap_or(u16::MAX))
}

/// The properties assumed of an unknown class: no privileges.
const UNKNOWN: Traits = Traits { exempt: false, remembers: true, strictness: 0, cost: CostBy::Number(1) };

#[cfg(test)]
mod tests;
