//! A call's object and body, for finding controllers that call the same object in a loop.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, StatusCode};
use http_body::Frame;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{CallContext, SALT};
use crate::api::{Key, names};
use crate::classify::{ApiKind, KeySource};
use crate::hot::{Act, CallNames, Content, ObjectCall, PerKey, RefusalKind};
use crate::limit::Reason;
use crate::proxy::tally::{Tally, shortened};

/// What was found in the body of a call, if its object is called too often or could not be created.
#[derive(Debug, Default)]
pub(super) struct BodyFindings {
    /// The salted digests of the body, to see whether the same body is sent again.
    content: Content,
    /// The key and the name of the object the call failed to create.
    made: Option<(Key, String)>,
    /// True if the call is judged once its answer was read.
    is_judged_later: bool,
}

/// A write whose answer is read, as far as its object's version.
#[derive(derive_more::Debug)]
pub(crate) struct WriteAnswer {
    #[debug(skip)]
    tally: Arc<Tally>,
    call: ObjectCall,
    names: CallNames,
    beginning: Vec<u8>,
}

// === impl CallContext ===

impl CallContext {
    /// Returns the allowed rate of calls to one object; `None` if calls to single objects are not
    /// counted.
    #[inline]
    fn per_key(&self) -> Option<&PerKey> {
        self.config.options.gate.policy.classes.get(usize::from(self.call.class.0))?.per_key.as_ref()
    }

    /// Returns true if the object is called so often that the bodies of its calls are compared.
    pub(crate) fn is_watched(&self) -> bool {
        self.key.is_some_and(|key| self.tally.hot.watches(key, self.act(), self.times.arrived))
    }

    /// Returns what a call of the Kubernetes API does. Only `Read` matters for other APIs.
    fn act(&self) -> Act {
        let call = &self.call.call;
        let is_judged = self.config.options.gate.kind == ApiKind::Kubernetes && call.is_resource && !call.is_dry_run;
        match Act::of(call.verb, call.resource()) {
            _ if self.call.reads() => Act::Read,
            act if is_judged => act,
            _ => Act::Other,
        }
    }

    /// Returns a reader of the answer to a write, if its object is written again and again.
    pub(crate) fn written(&mut self, status: StatusCode, headers: &HeaderMap) -> Option<WriteAnswer> {
        let observes = self.per_key().is_some_and(|per_key| per_key.writes.is_some());
        let is_written = observes && status.is_success() && self.act() == Act::Write;
        let key = self.key.filter(|_| is_written && !headers.contains_key(CONTENT_ENCODING))?;
        if !self.tally.hot.reads(key, self.times.arrived) {
            return None;
        }
        self.looked.get_or_insert_default().is_judged_later = true;
        let (tally, call, names) = (Arc::clone(&self.tally), self.object_call(key, status), self.names());
        Some(WriteAnswer { tally, call, names, beginning: Vec::new() })
    }

    /// Records the digests of the body.
    pub(crate) fn digested(&mut self, content: Content) {
        self.looked.get_or_insert_default().content = content;
    }

    /// Returns true if the call failed (with a 4xx) to create an object named only in its body.
    pub(crate) fn made_nothing(&self, status: StatusCode) -> bool {
        status.is_client_error() && self.key.is_none() && self.call.key.needs_body() && self.per_key().is_some()
    }

    /// Records the key and name of the object the call failed to create, read from the beginning of
    /// the body.
    pub(crate) fn would_have_made(&mut self, key: Option<Key>, body: &[u8]) {
        let name = self.call.object_name(Some(body));
        self.looked.get_or_insert_default().made = key.map(|key| (key, name));
    }

    /// Counts the call toward the rate of its object.
    #[inline]
    pub(super) fn count_object(&self, status: StatusCode) {
        let Some(per_key) = self.per_key() else { return };
        let made = || self.looked.as_ref().and_then(|looked| looked.made.as_ref()).map(|(key, _)| *key);
        let act = self.act();
        let too_soon = match self.key.or_else(made).filter(|key| !key.is_collection_read()) {
            Some(key) => {
                let pace = per_key.pace(act == Act::Read);
                let is_denied = status.is_client_error();
                self.tally.hot.count(key, act, pace, self.times.arrived, is_denied).map(|too_soon| (key, too_soon))
            }
            // The name of what a create made stays unknown.
            None => match self.call.key {
                KeySource::NameInBody { collection, facet } if per_key.writes.is_some() && act != Act::Other => {
                    Some((Key { object: collection, collection, facet }, false))
                }
                _ => None,
            },
        };
        if let Some((key, too_soon)) = too_soon {
            self.look_at_object(key, status, too_soon);
        }
    }

    /// Records a call of an object that is called too often, or again and again in vain.
    #[cold]
    fn look_at_object(&self, key: Key, status: StatusCode, too_soon: bool) {
        let call = self.object_call(key, status);
        self.tally.hot.learn(&call, too_soon, &|| self.names());
    }

    fn object_call(&self, key: Key, status: StatusCode) -> ObjectCall {
        let call = &self.call.call;
        ObjectCall {
            object: key.object,
            collection: key.collection,
            kind: SALT.hash_one((call.group(), call.resource(), call.subresource())),
            facet: key.facet,
            act: self.act(),
            at: self.times.arrived,
            caller: self.caller.number(),
            status: status.as_u16(),
            is_upstreams: self.times.upstream.is_some(),
            is_judged_later: self.looked.as_ref().is_some_and(|looked| looked.is_judged_later),
            refused: self.refused.map(|reason| match reason {
                Reason::PerKey => RefusalKind::TooSoon,
                Reason::Backoff | Reason::RetryBucket | Reason::Trial => RefusalKind::Failing,
                Reason::Bucket
                | Reason::BytesFull
                | Reason::ClassBucket
                | Reason::Deadline
                | Reason::OneAtATime
                | Reason::Pause
                | Reason::QueueFull
                | Reason::Slot => RefusalKind::Other,
            }),
            content: self.looked.as_ref().map(|looked| looked.content).unwrap_or_default(),
        }
    }

    fn names(&self) -> CallNames {
        let call = &self.call.call;
        let made = self.looked.as_ref().and_then(|looked| looked.made.as_ref());
        let object = made.map_or_else(|| self.call.object_name(None), |(_, name)| name.clone());
        let action = self.call.words.as_ref().map(|words| &*words.action).filter(|action| !action.is_empty());
        let part = if action.is_some() { "" } else { call.subresource() };
        CallNames {
            object: shortened(object).into(),
            kind: shortened(self.call.object_kind()).into(),
            path: self.object_path().into(),
            caller: self.tally.callers.agent(self.caller).into(),
            verb: shortened(action.unwrap_or_else(|| call.verb.word()).to_owned()).into(),
            part: shortened(part.to_owned()).into(),
        }
    }

    /// Returns the path of the object in its API; empty if it is uncertain.
    fn object_path(&self) -> String {
        let call = &self.call.call;
        if !call.is_resource || call.is_ambiguous || call.name().is_empty() || call.path().len() > LONGEST_PATH {
            return String::new();
        }
        let path = call.path();
        let path = path.strip_suffix(call.subresource()).unwrap_or(path).trim_end_matches('/');
        // The escapes of its segments were undone when it was read.
        utf8_percent_encode(path, NOT_IN_PATHS).to_string()
    }
}

// === impl WriteAnswer ===

impl WriteAnswer {
    /// Adds a frame of the answer. Returns false once enough was recorded.
    pub(crate) fn keep(&mut self, frame: &Frame<Bytes>) -> bool {
        let Some(data) = frame.data_ref() else { return false };
        let room = VERSION_WITHIN - self.beginning.len();
        self.beginning.extend_from_slice(data.get(..room).unwrap_or(data));
        self.beginning.len() < VERSION_WITHIN
    }
}

impl Drop for WriteAnswer {
    fn drop(&mut self) {
        self.call.content.version = names::version_of_object(&self.beginning);
        self.tally.hot.read(&self.call, &|| self.names.clone());
    }
}

/// The bytes of an answer to look for a version in: a custom resource has it after its managed
/// fields.
const VERSION_WITHIN: usize = 16 << 10;
/// The characters to escape in a path: all but slashes and the unreserved ones of RFC 3986.
const NOT_IN_PATHS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The most bytes of an object's path to record: more than any in Kubernetes has.
const LONGEST_PATH: usize = 1024;
