//! Simulated requests, read and classified as the proxy reads real ones.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};

use crate::api::duration::whole_seconds;
use crate::api::outcome::{self, Failures};
use crate::api::{Answer, Group, Key, Outcome, Verb, signals};
use crate::classify::{ApiKind, ClassifiedCall, Salt};
use crate::limit::{Arrival, ClassId};
use crate::spec::Gate;

/// The parts of a request to simulate.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Request<'a> {
    pub(super) verb: Verb,
    pub(super) group: &'a str,
    pub(super) resource: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) subresource: &'a str,
    pub(super) user_agent: &'a str,
    /// True if the call follows a log; other long-running calls are known by verb or subresource.
    pub(super) follows: bool,
    pub(super) dry_run: bool,
}

/// A request as read by a gate.
#[derive(Clone, Debug)]
pub(super) struct ReadRequest {
    pub(super) class: ClassId,
    pub(super) group: Group,
    pub(super) key: Option<Key>,
    pub(super) classified: Rc<ClassifiedCall>,
    pub(super) flow_name: Rc<str>,
}

/// Reads simulated requests by a gate's rules. Its hashes are the same in every run.
#[derive(Debug)]
pub(super) struct RequestReader {
    salt: Salt,
    /// Requests read before, by their hashes.
    known: HashMap<u64, ReadRequest>,
}

// === impl Request ===

impl Request<'_> {
    /// Returns the request's method, URI and headers.
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

// === impl RequestReader ===

impl RequestReader {
    pub(super) fn new() -> Self {
        Self { salt: Salt::of([0, 1]), known: HashMap::new() }
    }

    /// Returns a request as the gate reads it.
    pub(super) fn read(&mut self, request: &Request<'_>, gate: &Gate) -> ReadRequest {
        let read = || {
            let (method, uri, headers) = request.head(gate.kind);
            let classified = gate.rules.classify(&method, &uri, &headers, &self.salt);
            // Here, the name in a body is always known.
            let body = format!("{{\"metadata\":{{\"name\":\"{}\"}}}}", request.name);
            let key = classified.key.with_body(body.as_bytes(), true, &self.salt);
            let flow_name = classified.flow_name(&headers).to_string().into();
            let class = classified.class;
            let group = classified.group;
            ReadRequest { class, group, key, classified: Rc::new(classified), flow_name }
        };
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.entry(self.salt.hash_one(request)).or_insert_with(read).clone()
    }
}

// === impl ReadRequest ===

impl ReadRequest {
    /// Returns the call in the form required by the limiter.
    pub(super) fn arrival(&self) -> Arrival<'_> {
        let arrival = self.classified.arrival(self.key, &self.flow_name);
        Arrival { class: self.class, group: self.group, ..arrival }
    }

    /// Returns the meaning of a response under a gate's settings. `by_apf` is true for a refusal by
    /// API priority and fairness.
    pub(super) fn answer(&self, gate: &Gate, status: u16, retry_after: Option<Duration>, by_apf: bool) -> Answer {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        let seconds = retry_after.map(|after| (header::RETRY_AFTER, HeaderValue::from(whole_seconds(after))));
        let schema = by_apf.then_some((FLOW_SCHEMA, HeaderValue::from_static("simulated")));
        let kind = by_apf.then_some((header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")));
        let headers: HeaderMap = [seconds, schema, kind].into_iter().flatten().collect();
        self.judge(gate, |failures| {
            let response = signals::Response { status, headers: &headers, body: &[], wall: None };
            let answer = outcome::answer(failures, &gate.answers.throttling, &self.classified.call, &response).answer;
            if self.classified.key_is_of_object { answer } else { answer.of_no_object() }
        })
    }

    /// Returns the meaning of a client hanging up, `upstream_for` after the call was sent.
    pub(super) fn left(&self, gate: &Gate, upstream_for: Duration) -> Answer {
        self.judge(gate, |failures| outcome::left(failures, &self.classified.call, upstream_for))
    }

    /// Returns the meaning of a missing response.
    pub(super) fn lost(&self, gate: &Gate) -> Answer {
        self.judge(gate, |failures| outcome::lost(failures, &self.classified.call))
    }

    fn judge(&self, gate: &Gate, judge: impl FnOnce(&Failures) -> Answer) -> Answer {
        gate.answers.failures.get(usize::from(self.class.0)).map_or(NOTHING, judge)
    }
}

/// The most requests to remember.
const MOST_KNOWN: usize = 1 << 14;
/// A response without any information for the limiter.
pub(super) const NOTHING: Answer = Answer::new(Outcome::Abandoned, None);
/// A header of responses by API priority and fairness.
const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_whatever_is_requested() {
        let limits = crate::simulate::usual();
        let mut reader = RequestReader::new();
        for number in 0..=MOST_KNOWN {
            let namespace = number.to_string();
            let request = Request { namespace: &namespace, resource: "pods", ..Request::default() };
            reader.read(&request, &limits.gate);
        }
        assert_eq!(reader.known.len(), 1);
    }
}
