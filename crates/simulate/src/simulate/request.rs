//! Requests that were never sent, read and classified as the proxy does with real ones.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};

use crate::api::outcome::{self, Failures};
use crate::api::{self, Answer, Call, Group, Key, Outcome, Verb, signals};
use crate::classify::{ApiKind, Salt};
use crate::limit::{Arrival, ClassId, Flow};
use crate::spec::Gate;

/// A request, described in words.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Request<'a> {
    pub(super) verb: Verb,
    pub(super) group: &'a str,
    pub(super) resource: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) subresource: &'a str,
    pub(super) user_agent: &'a str,
    /// True for a log that is followed; other long-running calls are known by verb or subresource.
    pub(super) follows: bool,
    pub(super) dry_run: bool,
}

/// A request as a gate reads it.
#[derive(Clone, Debug)]
pub(super) struct Read {
    pub(super) class: ClassId,
    pub(super) group: Group,
    pub(super) key: Option<Key>,
    cost: u16,
    pub(super) shared: Rc<Shared>,
}

/// The parts that do not depend on the name of the object.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) call: Call,
    pub(super) flow: u64,
    pub(super) flow_name: String,
    patient: bool,
    goes_alone: bool,
    reads: bool,
    key_in_body: bool,
    key_is_of_object: bool,
}

/// Reads requests under a gate's rules.
#[derive(Debug, Default)]
pub(super) struct Reader {
    hasher: Salt,
    /// The numbers that replace hashes under the process's secret, in order of appearance: equal
    /// hashes stay equal, and every run has the same numbers.
    numbers: HashMap<u64, u64>,
    /// The requests that were read, by their hashes.
    reads: HashMap<u64, Read>,
    /// The parts that requests for many objects share.
    shared: HashMap<u64, Rc<Shared>>,
}

// === impl Request ===

impl Request<'_> {
    /// Returns the request line and the headers.
    pub(super) fn head(&self, kind: ApiKind) -> (Method, Uri, HeaderMap) {
        let method = match self.verb {
            Verb::Create => Method::POST,
            Verb::Delete | Verb::DeleteCollection => Method::DELETE,
            Verb::Get | Verb::List | Verb::Watch | Verb::Proxy => Method::GET,
            Verb::Patch => Method::PATCH,
            Verb::Update => Method::PUT,
            Verb::Other => Method::OPTIONS,
        };
        // Segments come from checked files, or are escaped by `segment`.
        let uri = self.target(kind).parse().unwrap_or_else(|_| Uri::from_static("/"));
        let agent = HeaderValue::from_str(self.user_agent).ok().filter(|agent| !agent.is_empty());
        (method, uri, agent.map(|agent| (header::USER_AGENT, agent)).into_iter().collect())
    }

    fn target(&self, kind: ApiKind) -> String {
        if kind == ApiKind::Http {
            return ["", self.namespace, self.resource, self.name].map(segment).join("/").replace("//", "/");
        }
        if self.resource.is_empty() {
            return "/version".to_owned();
        }
        let mut parts = match self.group {
            "" => vec!["api", "v1"],
            group => vec!["apis", group, "v1"],
        };
        if !self.namespace.is_empty() {
            parts.extend(["namespaces", self.namespace]);
        }
        parts.push(self.resource);
        let is_collection = matches!(self.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
        if !is_collection && (self.verb != Verb::Create || !self.subresource.is_empty()) {
            parts.push(self.name);
        }
        parts.extend(Some(self.subresource).filter(|part| !part.is_empty()));
        let query = match (self.verb == Verb::Watch, self.follows, self.dry_run) {
            (true, ..) => "?watch=1",
            (_, true, _) => "?follow=1",
            (_, _, true) => "?dryRun=All",
            _ => "",
        };
        parts.into_iter().map(|part| format!("/{}", segment(part))).chain([query.to_owned()]).collect()
    }
}

/// Escapes a text so that it stays one segment of a path.
fn segment(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
        .to_string()
        .replace("%2D", "-")
        .replace("%2E", ".")
        .replace("%5F", "_")
}

// === impl Reader ===

impl Reader {
    /// Reads a request as the gate does.
    pub(super) fn read(&mut self, request: &Request<'_>, gate: &Gate) -> Read {
        let hash = self.hasher.hash_one(request);
        if let Some(read) = self.reads.get(&hash) {
            return read.clone();
        }
        let (method, uri, headers) = request.head(gate.kind);
        let read = gate.rules.classify(&method, &uri, &headers, &self.hasher);
        let flow_name = read.flow_name(&headers).to_string();
        // Here, the name in a body is always known.
        let body = format!("{{\"metadata\":{{\"name\":\"{}\"}}}}", request.name);
        let key = read.key.with_body(body.as_bytes(), true, &self.hasher).map(|key| self.key(key));
        let flow = self.number(read.flow);
        let patient = read.is_patient();
        let key_is_of_object = read.key_is_of_object;
        let kind = self.hasher.hash_one(Request { name: "", ..*request });
        let goes_alone = read.goes_alone;
        let reads = read.reads();
        let key_in_body = read.key.needs_body();
        let new = || {
            let call = read.call;
            Rc::new(Shared { flow, flow_name, patient, goes_alone, reads, key_in_body, key_is_of_object, call })
        };
        let shared = Rc::clone(self.shared.entry(kind).or_insert_with(new));
        let read = Read { class: read.class, group: read.group, key, cost: read.cost, shared };
        self.reads.insert(hash, read.clone());
        read
    }

    /// Returns the same key in numbers that do not change from run to run.
    pub(super) fn key(&mut self, key: Key) -> Key {
        let Key { object, collection, facet } = key;
        let written = api::written_facet(facet);
        let facet = api::facet(2 * self.number(written), facet != written);
        Key { object: self.number(object), collection: self.number(collection), facet }
    }

    pub(super) fn number(&mut self, hash: u64) -> u64 {
        let next = u64::try_from(self.numbers.len()).unwrap_or(u64::MAX - 1) + 1;
        *self.numbers.entry(hash).or_insert(next)
    }
}

// === impl Read ===

impl Read {
    /// Returns the call as it arrives.
    pub(super) fn arrival(&self) -> Arrival<'_> {
        let Shared { call, flow, flow_name, patient, goes_alone, reads, key_in_body, .. } = &*self.shared;
        Arrival {
            key: self.key,
            key_in_body: *key_in_body,
            write: *goes_alone,
            reads: *reads,
            group: self.group,
            long_running: call.is_long_running,
            lists_first: call.lists_first,
            patient: *patient,
            cost: self.cost,
            ..Arrival::new(self.class, Flow { id: *flow, name: flow_name })
        }
    }

    /// Returns the meaning of an answer under a gate's settings. `by_apf` says that API
    /// priority and fairness gave it.
    pub(super) fn answer(&self, gate: &Gate, status: u16, retry_after: Option<Duration>, by_apf: bool) -> Answer {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        let seconds = retry_after.map(|after| (header::RETRY_AFTER, HeaderValue::from(whole_seconds(after))));
        let schema = by_apf.then_some((FLOW_SCHEMA, HeaderValue::from_static("simulated")));
        let kind = by_apf.then_some((header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")));
        let headers: HeaderMap = [seconds, schema, kind].into_iter().flatten().collect();
        self.judge(gate, |failures| {
            let response = signals::Response { status, headers: &headers, body: &[], wall: None };
            let answer = outcome::answer(failures, &gate.throttling, &self.shared.call, &response).answer;
            if self.shared.key_is_of_object { answer } else { answer.of_no_object() }
        })
    }

    /// Returns the meaning of a client that left, so long after the call was sent.
    pub(super) fn left(&self, gate: &Gate, upstream_for: Duration) -> Answer {
        self.judge(gate, |failures| outcome::left(failures, &self.shared.call, upstream_for))
    }

    /// Returns the meaning of a missing answer.
    pub(super) fn lost(&self, gate: &Gate) -> Answer {
        self.judge(gate, |failures| outcome::lost(failures, &self.shared.call))
    }

    fn judge(&self, gate: &Gate, judge: impl FnOnce(&Failures) -> Answer) -> Answer {
        gate.failures.get(usize::from(self.class.0)).map_or(NOTHING, judge)
    }
}

/// Returns a duration in whole seconds, rounded up, as Retry-After gives it.
pub(super) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// An answer from which the limiter learns nothing.
pub(super) const NOTHING: Answer = Answer::new(Outcome::Abandoned, None);
/// The header that priority and fairness adds to its answers.
const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
