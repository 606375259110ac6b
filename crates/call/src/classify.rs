//! Ordered rules: a call gets its class, flow and key.
//!
//! Rules are tried in order; the first match wins. A call whose path others might read differently
//! never gets the benefit of the doubt. It goes to the strictest class of the gate, whatever
//! matches; on an `http` gate to the strictest of those that a call like it could be of, whatever
//! its path. A `%2F` of an external API is read in both possible ways, and the stricter class
//! counts. The hot path allocates only the [`Call`] itself, and the name of a configured key.

// In the path of a call nothing may panic: every exception states its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

use std::hash::BuildHasher;
use std::sync::Arc;

use http::{HeaderMap, Method, Uri};

use self::caller::{Caller, Identities};
use self::index::Index;
use self::parts::ClassKeys;
use crate::api::{Call, Group, Verb, apply, external, kubernetes};
use crate::dialect::{Dialect, Form, Head, Words};
use crate::limit::ClassId;
use crate::limit::policy::Per;

mod caller;
mod checksum;
mod classified;
mod cost;
mod everywhere;
mod flow;
mod glob;
mod index;
mod key;
mod matcher;
mod parts;
mod salt;

pub use self::cost::{CostBy, CostReader};
pub use self::everywhere::number_of_origin;
pub use self::flow::{FairBy, FlowName};
pub use self::glob::Glob;
pub use self::key::KeySource;
pub use self::matcher::{Matcher, Matching};
pub use self::parts::{KeyPart, KeyPartError, KeyParts, KeyPartsError};
pub use self::salt::Salt;

/// The rules of one gate, in order; the first match wins.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The kind of API that the rules are for.
    pub kind: Kind,
    /// The division into flows.
    pub fair_by: FairBy,
    /// The identities that buckets, slots or pauses are split by.
    identities: Identities,
    /// True if only the writes that their provider takes one at a time go alone.
    only_serial_writes: bool,
    dialect: Dialect,
    classes: Vec<Traits>,
    keys: ClassKeys,
    rules: Vec<(ClassId, matcher::Compiled)>,
    /// Finds the rules to try, if there are many.
    index: Option<Index>,
    strictest: ClassId,
}

words! {
    /// The kind of API behind a gate.
    pub enum Kind {
        /// kube-apiserver.
        Kubernetes = "kubernetes",
        /// Any other HTTP API.
        Http = "http",
    }
}

/// The properties of a class that the classifier needs; by [`ClassId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// True if its lane is exempt: no failure of its calls is remembered, and they have connections
    /// of their own.
    pub exempt: bool,
    /// True if its calls need keys: failures are remembered, or writes go one at a time.
    pub remembers: bool,
    /// Its rank for calls with an ambiguous path: the highest that is not exempt gets them.
    /// `config` ranks by lane, then by rate.
    pub strictness: u16,
    /// The cost of its calls.
    pub cost: CostBy,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The class of the calls that match.
    pub class: ClassId,
    /// The calls that match.
    pub matching: Matching,
}

/// A call as the limiter sees it.
#[derive(Debug)]
pub struct Classified {
    /// The request, read.
    pub call: Call,
    /// Its class.
    pub class: ClassId,
    /// The identity of its flow.
    pub flow: u64,
    /// The caller's credential, account or action as a salted hash, by which of them limits are
    /// split; 0 if they are not.
    pub credential: u64,
    /// The name of the client that makes it, where the gate knows its clients.
    pub client: Option<Arc<str>>,
    /// The call in its provider's words, on a gate with a dialect.
    pub words: Option<Box<Words>>,
    /// The tokens that it costs, as far as its class allows.
    pub cost: u16,
    /// The form in which its sender expects an error, where that is not the gate's usual one.
    pub form: Option<Form>,
    /// True if it is one of the writes that go one at a time, where the gate lets them.
    pub goes_alone: bool,
    /// True if it changes nothing.
    pub reads: bool,
    /// The key of its failures, as far as the request head tells.
    pub key: KeySource,
    /// True if the key is of one object (or path), whose end is the key's end.
    pub key_is_of_object: bool,
    /// The connections it will use.
    pub group: Group,
    /// True if its class is exempt.
    pub exempt: bool,
    /// True if it is never refused on arrival: its client falls back instead of retrying (exec,
    /// attach, port-forward, proxy).
    pub patient: bool,
    fair_by: FairBy,
    /// The hash of the credential or account that its flow is named by; 0 if it is named otherwise.
    fair_to: u64,
    /// The name of a configured key, made at once because its parts are gone when it starts to
    /// fail.
    label: Option<Box<str>>,
}

/// Rules shared by the calls of a gate.
pub type Shared = Arc<Rules>;

// === impl Rules ===

impl Rules {
    /// Creates rules over `classes`, tried in order. A call that no rule matches belongs to the
    /// last class, so there must be one.
    ///
    /// `identity` is the property that buckets, slots or pauses are split by, so that each call's
    /// must be hashed: credential, account or action.
    pub fn new(kind: Kind, fair_by: FairBy, identity: Option<Per>, classes: Vec<Traits>, rules: Vec<Rule>) -> Self {
        let rules: Vec<_> = rules.into_iter().map(|rule| (rule.class, matcher::Compiled::new(rule.matching))).collect();
        let index = Index::new(rules.iter().map(|(_, compiled)| compiled));
        let strictest = strictest(&classes);
        let of_gate = identity.or_else(|| fair_by.identity());
        let identities = Identities { of_gate, ..Identities::default() };
        let keys = ClassKeys::default();
        let only_serial_writes = false;
        let dialect = Dialect::Plain;
        Self { kind, fair_by, identities, only_serial_writes, dialect, classes, keys, rules, index, strictest }
    }

    /// Returns the same rules for calls in a provider's dialect.
    pub fn with_dialect(self, dialect: Dialect) -> Self {
        Self { dialect, ..self }
    }

    /// Returns the same rules with the identity that splits the limits of each class; `agrees` if
    /// every process is to find the same, because parts of a bucket are shared.
    pub fn with_identities(self, of_classes: Vec<Option<Per>>, agrees: bool) -> Self {
        Self { identities: Identities { of_classes, agrees, ..self.identities }, ..self }
    }

    /// Returns the same rules, under which writes go one at a time only where their provider takes
    /// them so: changes to one zone of Route 53.
    pub fn with_only_serial_writes(self, only_serial_writes: bool) -> Self {
        Self { only_serial_writes, ..self }
    }

    /// Returns the same rules with configured keys, by class; `None` leaves the key to the kind of
    /// API.
    pub fn with_keys(mut self, parts: Vec<Option<KeyParts>>) -> Self {
        self.keys.parts = parts;
        self
    }

    /// Returns the same rules with the classes whose failures each credential has for itself.
    pub fn with_callers_apart(mut self, apart: Vec<bool>) -> Self {
        self.keys.apart = apart;
        self
    }

    /// Returns the same rules for a gate that knows its clients: failures are remembered for each
    /// of them.
    pub fn with_clients_apart(mut self, by_client: bool) -> Self {
        self.keys.by_client = by_client;
        self
    }

    /// Creates rules with one class for everything, for tests and tools. A gate with nothing
    /// configured except its buckets has the same.
    pub fn single(kind: Kind) -> Self {
        Self::new(kind, FairBy::Resource, None, vec![UNKNOWN], Vec::new())
    }

    /// True if the calls of a class are told by more than the log of calls has: by names, paths,
    /// headers or the query.
    pub fn looks_past_the_log(&self, class: ClassId) -> bool {
        self.rules.iter().any(|(of, compiled)| *of == class && compiled.looks_past_the_log())
    }

    /// True if calls are read in a provider's words.
    pub fn speaks_a_dialect(&self) -> bool {
        self.dialect != Dialect::Plain
    }

    /// True if the beginning of a request's body may tell its action: it is worth a short wait.
    pub fn wants_body(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
        let head = Head { method, uri, headers };
        let reads_graphql = |traits: &Traits| traits.cost == CostBy::Read(CostReader::Graphql);
        self.speaks_a_dialect()
            && (self.dialect.wants_body(&head)
                || self.dialect.is_graphql(&head) && self.classes.iter().any(reads_graphql))
    }

    /// Reads and classifies a request by its head. `hasher` is the process's own: identities
    /// compare only under the same one.
    pub fn classify(&self, method: &Method, uri: &Uri, headers: &HeaderMap, hasher: &Salt) -> Classified {
        self.classify_with(method, uri, headers, &[], hasher)
    }

    /// The same with the beginning of the body, where [`Self::wants_body`] asked for it.
    pub fn classify_with(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        body: &[u8],
        hasher: &Salt,
    ) -> Classified {
        let mut call = self.read(method, uri, headers);
        let request = Head { method, uri, headers };
        let words = self.speaks_a_dialect().then(|| Box::new(self.dialect.read(&request, body)));
        let path = call.path();
        let head = matcher::Subject { call: &call, path, method, query: uri.query(), headers, words: words.as_deref() };
        let class = self.class(&head);
        let traits = self.traits(class);
        let caller = Caller { dialect: self.dialect, words: words.as_deref(), request, hasher };
        let credential = self.identities.of(class, &caller);
        let cost = traits.cost.of(&head);
        let form = words.as_deref().and_then(|words| self.dialect.form(&request, words));
        let fair_to = caller.fair_to(self.fair_by);
        let flow = match fair_to {
            0 => hasher.hash_one(FlowName::new(self.fair_by, self.kind, &call, words.as_deref(), headers, 0)),
            flow => flow,
        };
        let own = self.keys.of(class);
        let key = match own {
            _ if traits.exempt || !traits.remembers => KeySource::None,
            Some(parts) => parts.source(self.kind, &head, hasher),
            None => match words.as_deref() {
                Some(words) if self.dialect == Dialect::Aws => KeySource::of_aws(words, &head, hasher),
                _ => KeySource::of(self.kind, &call, hasher),
            },
        };
        let key = match self.keys.are_callers_own(class, words.as_deref()) {
            true => key.of_caller(caller.identity(Per::Credential), hasher),
            false => key,
        };
        let label = own.filter(|_| key != KeySource::None).map(|parts| parts.label(&head).into());
        let key_is_of_object = own.is_none_or(KeyParts::is_of_object);
        let waits = words.as_deref().is_some_and(|words| words.waits_upstream);
        // The wait holds nothing here, but the provider counts the call like any other.
        (call.is_long_running, call.lists_first) = (call.is_long_running || waits, call.lists_first || waits);
        let group = match call.is_long_running {
            _ if traits.exempt => Group::Exempt,
            true => Group::LongRunning,
            false => Group::Short,
        };
        let exempt = traits.exempt;
        let patient = call.is_tunnel();
        let fair_by = self.fair_by;
        let reads = reads(&call, words.as_deref());
        let goes_alone = match words.as_deref() {
            Some(words) if self.only_serial_writes => !words.serial.is_empty(),
            _ => !reads,
        };
        Classified {
            call,
            class,
            flow,
            credential,
            client: None,
            fair_to,
            words,
            cost,
            form,
            goes_alone,
            reads,
            key,
            key_is_of_object,
            group,
            exempt,
            patient,
            fair_by,
            label,
        }
    }

    fn read(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Call {
        let mut call = match self.kind {
            Kind::Kubernetes => kubernetes::read(method, uri),
            Kind::Http => return external::read(method, uri),
        };
        call.is_apply = call.verb == Verb::Patch && apply::is_apply(headers);
        call
    }

    fn class(&self, subject: &matcher::Subject<'_>) -> ClassId {
        if subject.words.is_some_and(|words| self.dialect.any_path_is_clear(words)) {
            return self.first_match(subject);
        }
        match self.kind {
            Kind::Kubernetes if subject.call.is_ambiguous => return self.strictest,
            Kind::Http if subject.call.is_ambiguous => return self.strictest_whatever_the_path(subject),
            Kind::Kubernetes | Kind::Http => {}
        }
        let class = self.first_match(subject);
        match subject.call.path_split_later() {
            None => class,
            // A server that decodes before it splits must not get more than was meant for it.
            Some(path) => self.stricter(class, self.first_match(&matcher::Subject { path: &path, ..*subject })),
        }
    }

    fn first_match(&self, subject: &matcher::Subject<'_>) -> ClassId {
        let matches = |(_, compiled): &&(ClassId, matcher::Compiled)| compiled.matches(subject);
        let found = match &self.index {
            None => self.rules.iter().find(matches),
            Some(index) => index.places(subject).filter_map(|place| self.rules.get(place)).find(matches),
        };
        found.map_or_else(|| last(&self.classes), |(class, _)| *class)
    }

    /// Returns the strictest class that a call like this could be of, whatever its path; an exempt
    /// one only if there is no other.
    fn strictest_whatever_the_path(&self, subject: &matcher::Subject<'_>) -> ClassId {
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

    /// Returns the class with the higher rank; an exempt one has none.
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

/// True if a call changes nothing, by its provider's words where they say so.
fn reads(call: &Call, words: Option<&Words>) -> bool {
    words.map_or_else(|| call.verb.is_read(), |words| words.reads)
}

/// Returns the class for calls with an ambiguous path: the one with the highest rank that is not
/// exempt; the last if all are exempt.
fn strictest(classes: &[Traits]) -> ClassId {
    let ranked = classes.iter().zip(0_u16..).filter(|(traits, _)| !traits.exempt);
    ranked.max_by_key(|(traits, _)| traits.strictness).map_or_else(|| last(classes), |(_, id)| ClassId(id))
}

fn last(classes: &[Traits]) -> ClassId {
    ClassId(u16::try_from(classes.len().saturating_sub(1)).unwrap_or(u16::MAX))
}

/// The properties of a class that `config` did not describe: no privilege.
const UNKNOWN: Traits = Traits { exempt: false, remembers: true, strictness: 0, cost: CostBy::Number(1) };

#[cfg(test)]
mod tests;
