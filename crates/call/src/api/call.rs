//! A call: one API request, as verb, group, resource, namespace, name and subresource.

use std::fmt;
use std::time::Duration;

use super::path::ESCAPED_SLASH;

words! {
    /// The verb of a call, in the words of kube-apiserver and RBAC. For external APIs the nearest
    /// is used: GET and HEAD are `Get`, POST `Create`, PUT `Update`.
    #[derive(Default)]
    pub enum Verb {
        /// POST.
        Create = "create",
        /// DELETE of one object.
        Delete = "delete",
        /// DELETE of a collection.
        DeleteCollection = "deletecollection",
        /// GET or HEAD of one object, or of anything that is not a resource.
        Get = "get",
        /// GET or HEAD of a collection.
        List = "list",
        /// PATCH.
        Patch = "patch",
        /// The old `/proxy/` path prefix of kube-apiserver.
        Proxy = "proxy",
        /// PUT.
        Update = "update",
        /// A GET of a stream of changes.
        Watch = "watch",
        /// Any other method (OPTIONS, TRACE, ...).
        #[default]
        Other = "other",
    }
}

/// One API request: a decoded copy for matching and naming, never used for the forwarded request.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Call {
    /// The decoded path, followed by the parts of the call that are not in it.
    pub(super) text: String,
    /// The verb of the call.
    pub verb: Verb,
    /// True if the call is for a resource; only then the parts from group to subresource are set.
    pub is_resource: bool,
    /// True if two readers could read the path differently (`//`, `..`, a double escape, ...; in a
    /// Kubernetes call also `%2F`). Such a call gets the strictest class.
    pub is_ambiguous: bool,
    pub(super) escaped_slash: bool,
    /// True for watch, exec, attach, port-forward, log follow and proxy, with kube-apiserver's
    /// methods for each. Such a call does not count as in flight, and takes no token unless it
    /// [lists first](Self::lists_first).
    pub is_long_running: bool,
    /// True for a watch beginning with every existing object (`sendInitialEvents`, client-go's
    /// WatchList): it costs the API server as much as a list. Also true for a long poll of an
    /// external API, to make it cost as much as any other call.
    pub lists_first: bool,
    /// True for a write with `?dryRun=`: its result is not that of the real write.
    pub is_dry_run: bool,
    /// True for a server-side apply.
    pub is_apply: bool,
    /// The client's own deadline (`?timeout=`), counted from arrival.
    pub timeout: Option<Duration>,
    pub(super) parts: CallParts,
}

/// The positions of the resource, namespace, name and so on in the text that holds them all.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CallParts {
    pub(super) path: TextSpan,
    pub(super) group: TextSpan,
    pub(super) version: TextSpan,
    pub(super) resource: TextSpan,
    pub(super) namespace: TextSpan,
    pub(super) name: TextSpan,
    pub(super) subresource: TextSpan,
}

/// The position of a part in `Call::text`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TextSpan {
    start: usize,
    len: usize,
}

// === impl Verb ===

impl Verb {
    /// Returns true for GET and HEAD in all their forms.
    pub const fn is_read(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch)
    }

    /// Returns true for DELETE of one object or of many.
    pub const fn is_delete(self) -> bool {
        matches!(self, Self::Delete | Self::DeleteCollection)
    }
}

// === impl Call ===

/// Declares methods returning the parts of the text.
macro_rules! parts {
    ($($(#[$doc:meta])* $part:ident)+) => {
        $(
            $(#[$doc])*
            pub fn $part(&self) -> &str {
                self.parts.$part.of(&self.text)
            }
        )+
    };
}

impl Call {
    parts! {
        /// Returns the path, percent-decoded, without the query.
        ///
        /// In a Kubernetes call, bytes that are not UTF-8 are replaced, and the call is ambiguous.
        /// In a call of an external API, a slash inside a segment stays `%2F`, and an ambiguous path
        /// is unchanged.
        path
        /// Returns the API group; empty for the core group, and without a resource.
        group
        /// Returns the API version.
        version
        /// Returns the resource, in the plural.
        resource
        /// Returns the namespace; empty if there is none.
        namespace
        /// Returns the object's name: from the path, or from
        /// `fieldSelector=metadata.name=NAME` if a collection is read.
        name
        /// Returns the subresource.
        subresource
    }

    /// Creates a call with this path and nothing else.
    pub(super) fn of_path(text: String, verb: Verb, is_ambiguous: bool) -> Self {
        let parts = CallParts { path: TextSpan::new(0, text.len()), ..CallParts::default() };
        Self { text, verb, is_ambiguous, parts, ..Self::default() }
    }

    /// Returns the path as read by servers decoding it before splitting it; `None` if that is the
    /// same path, because no segment of [`Self::path`] has a `%2F`.
    pub fn path_split_later(&self) -> Option<String> {
        self.escaped_slash.then(|| self.path().replace(ESCAPED_SLASH, "/"))
    }

    /// Returns true if a pod or service answers the call: then the status says nothing about the
    /// API.
    pub fn is_tunnel(&self) -> bool {
        self.is_resource && self.is_long_running && self.verb != Verb::Watch && self.subresource() != "log"
    }

    /// Returns true if the call reads a collection or a stream of its changes.
    pub fn is_collection_read(&self) -> bool {
        matches!(self.verb, Verb::List | Verb::Watch)
    }

    /// Returns true for a read of the API's description: `/api`, `/apis`, the paths below them
    /// without resources, and `/openapi`.
    pub fn is_discovery(&self) -> bool {
        let mut segments = self.path().split('/');
        !self.is_resource
            && self.verb == Verb::Get
            && segments.next() == Some("")
            && matches!(segments.next(), Some("api" | "apis" | "openapi"))
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.path())
    }
}

// === impl TextSpan ===

impl TextSpan {
    pub(super) fn new(start: usize, len: usize) -> Self {
        Self { start, len }
    }

    pub(super) fn of(self, text: &str) -> &str {
        text.get(self.start..self.start + self.len).unwrap_or_default()
    }

    pub(super) fn is_empty(self) -> bool {
        self.len == 0
    }
}
