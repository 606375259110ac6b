//! A call's object and body, for finding controllers that call the same object in a loop.

use http::StatusCode;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::CallContext;
use crate::api::Key;
use crate::hot::{CallNames, ObjectCall, PerKey, RefusalKind};
use crate::limit::Reason;
use crate::proxy::tally::shortened;

/// What was found in the body of a call, if its object is called too often or could not be created.
#[derive(Debug, Default)]
pub(super) struct BodyFindings {
    /// The salted digest of the body, to see whether the same body is sent again.
    digest: Option<u64>,
    /// The key and the name of the object the call failed to create.
    made: Option<(Key, String)>,
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
        self.key.is_some_and(|key| self.tally.hot.watches(key.object, self.call.reads()))
    }

    /// Records the digest of the body.
    pub(crate) fn digested(&mut self, digest: Option<u64>) {
        self.looked.get_or_insert_default().digest = digest;
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
        let Some(key) = self.key.or_else(made).filter(|key| !key.is_collection_read()) else { return };
        let pace = per_key.pace(self.call.reads());
        let too_soon =
            self.tally.hot.count(key.object, self.call.reads(), pace, self.times.arrived, status.is_client_error());
        if let Some(too_soon) = too_soon {
            self.look_at_object(key, status, too_soon);
        }
    }

    /// Records a call of an object that is called too often, or again and again in vain.
    #[cold]
    fn look_at_object(&self, key: Key, status: StatusCode, too_soon: bool) {
        let seen = ObjectCall {
            object: key.object,
            facet: key.facet,
            reads: self.call.reads(),
            at: self.times.arrived,
            caller: self.caller.number(),
            status: status.as_u16(),
            is_upstreams: self.times.upstream.is_some(),
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
            body: self.looked.as_ref().and_then(|looked| looked.digest),
            names: &|| self.names(),
        };
        self.tally.hot.learn(&seen, too_soon);
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

/// The characters to escape in a path: all but slashes and the unreserved ones of RFC 3986.
const NOT_IN_PATHS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The most bytes of an object's path to record: more than any in Kubernetes has.
const LONGEST_PATH: usize = 1024;
