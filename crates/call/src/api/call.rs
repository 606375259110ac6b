//! A call: one API request, read into verb, group, resource, namespace, name and subresource.

use std::fmt;
use std::time::Duration;

use super::path::ESCAPED_SLASH;

words! {
    /// The action of a call, in the words of kube-apiserver and RBAC. External APIs use the
    /// nearest: GET and HEAD are `Get`, POST `Create`, PUT `Update`.
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
        /// The old `/proxy/` path prefix.
        Proxy = "proxy",
        /// PUT.
        Update = "update",
        /// A stream of changes.
        Watch = "watch",
        /// Any other method (OPTIONS, TRACE, ...).
        #[default]
        Other = "other",
    }
}

/// One API request, read: a decoded copy for matching and naming, never used to build the forwarded
/// request. It is one allocation.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Call {
    /// The decoded path, followed by any parts that could not be borrowed from it.
    pub(super) text: String,
    /// Its verb.
    pub verb: Verb,
    /// True if the call is for a resource, so that the parts from group to subresource mean
    /// something.
    pub is_resource: bool,
    /// True if other readers might read the path differently (`//`, `..`, a double escape, ...; in
    /// a Kubernetes call also `%2F`). Such a call gets no benefit of the doubt.
    pub is_ambiguous: bool,
    pub(super) escaped_slash: bool,
    /// True for watch, exec, attach, port-forward, log follow and proxy, by the methods that
    /// kube-apiserver serves them with. Such a call holds no slot, and spends no token unless it
    /// [lists first](Self::lists_first).
    pub is_long_running: bool,
    /// True for a watch that begins with every existing object (`sendInitialEvents`, client-go's
    /// WatchList): for the API server it is as expensive as a list. Also for a call that waits for
    /// its answer at an external API, which counts it like any other.
    pub lists_first: bool,
    /// True for a write with `?dryRun=`: the result says nothing about the real one.
    pub is_dry_run: bool,
    /// True for a server-side apply, which its head tells.
    pub is_apply: bool,
    /// The client's own deadline (`?timeout=`), counted from arrival.
    pub timeout: Option<Duration>,
    pub(super) path: Part,
    pub(super) group: Part,
    pub(super) version: Part,
    pub(super) resource: Part,
    pub(super) namespace: Part,
    pub(super) name: Part,
    pub(super) subresource: Part,
}

/// A piece of `Call::text`, as offsets instead of a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    start: u32,
    len: u32,
}

// === impl Verb ===

impl Verb {
    /// True for GET and HEAD in all their forms.
    pub const fn is_read(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch)
    }

    /// True for DELETE of one object or of many.
    pub const fn is_delete(self) -> bool {
        matches!(self, Self::Delete | Self::DeleteCollection)
    }
}

// === impl Call ===

/// Declares the methods that return a part of the text.
macro_rules! parts {
    ($($(#[$doc:meta])* $part:ident)+) => {
        $(
            $(#[$doc])*
            pub fn $part(&self) -> &str {
                self.$part.of(&self.text)
            }
        )+
    };
}

impl Call {
    parts! {
        /// Returns the path, percent-decoded, without the query.
        ///
        /// In the path of a Kubernetes call, bytes that are not UTF-8 are replaced, and the call is
        /// ambiguous. In the path of an external API, a slash inside a segment stays `%2F`, and an
        /// ambiguous path is unchanged.
        path
        /// Returns the API group; empty for the core group, and if the call is for no resource.
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

    /// Creates a call of which only the path is known; the path is the start of `text`.
    pub(super) fn of_path(text: String, verb: Verb, is_ambiguous: bool) -> Self {
        Self { path: Part::new(0, text.len()), text, verb, is_ambiguous, ..Self::default() }
    }

    /// Returns the path as read by a server that decodes before it splits; `None` if that makes no
    /// difference, because no segment of [`Self::path`] has a `%2F`.
    pub fn path_split_later(&self) -> Option<String> {
        self.escaped_slash.then(|| self.path().replace(ESCAPED_SLASH, "/"))
    }

    /// True if a pod or service answers the call, not the API: then the status says nothing about
    /// the API.
    pub fn is_tunnel(&self) -> bool {
        self.is_resource && self.is_long_running && self.verb != Verb::Watch && self.subresource() != "log"
    }

    /// True if the call reads a collection or a stream of its changes.
    pub fn is_collection_read(&self) -> bool {
        matches!(self.verb, Verb::List | Verb::Watch)
    }

    /// True if the call reads what the API offers: `/api`, `/apis` and the paths below them that
    /// are no resources, and `/openapi`.
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

// === impl Part ===

impl Part {
    /// Creates the piece of `len` bytes at `start`. Beyond 4 GiB it is empty; http's own limit is
    /// 64 KiB.
    pub(super) fn new(start: usize, len: usize) -> Self {
        match (u32::try_from(start), u32::try_from(len)) {
            (Ok(start), Ok(len)) => Self { start, len },
            _ => Self::default(),
        }
    }

    pub(super) fn of(self, text: &str) -> &str {
        let start = self.start as usize;
        text.get(start..start + self.len as usize).unwrap_or_default()
    }

    pub(super) fn is_empty(self) -> bool {
        self.len == 0
    }
}
