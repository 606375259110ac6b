//! A call: one API request, read into verb, group, resource, namespace, name and subresource.

use std::{fmt, time::Duration};

use super::path::ESCAPED_SLASH;

/// What a call does, in kube-apiserver's words. External APIs use the nearest: GET and HEAD are `Get`, POST `Create`, PUT `Update`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// POST.
    Create,
    /// DELETE of one object.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
    /// GET or HEAD of one object, or of anything that is not a resource.
    Get,
    /// GET or HEAD of a collection.
    List,
    /// PATCH.
    Patch,
    /// The old `/proxy/` path prefix.
    Proxy,
    /// PUT.
    Update,
    /// A stream of changes.
    Watch,
    /// Any other method (OPTIONS, TRACE, ...).
    Other,
}

/// One API request, read. A decoded copy for matching and naming; never used to build what is sent. One allocation.
#[derive(Clone, PartialEq, Eq)]
pub struct Call {
    /// The decoded path, then whatever the parts below could not borrow from it.
    pub(super) text: String,
    pub(super) verb: Verb,
    pub(super) is_resource: bool,
    pub(super) ambiguous: bool,
    pub(super) escaped_slash: bool,
    pub(super) long_running: bool,
    pub(super) lists_first: bool,
    pub(super) dry_run: bool,
    pub(super) apply: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) path: Part,
    pub(super) group: Part,
    pub(super) version: Part,
    pub(super) resource: Part,
    pub(super) namespace: Part,
    pub(super) name: Part,
    pub(super) subresource: Part,
}

/// A piece of `Call::text`. Offsets instead of strings: a call is one allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    start: u32,
    len: u32,
}

// === impl Verb ===

impl Verb {
    /// Every verb, for tables and for "did you mean".
    pub const ALL: [Self; 10] = [
        Self::Create,
        Self::Delete,
        Self::DeleteCollection,
        Self::Get,
        Self::List,
        Self::Patch,
        Self::Proxy,
        Self::Update,
        Self::Watch,
        Self::Other,
    ];

    /// The word that RBAC uses.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Get => "get",
            Self::List => "list",
            Self::Patch => "patch",
            Self::Proxy => "proxy",
            Self::Update => "update",
            Self::Watch => "watch",
            Self::Other => "other",
        }
    }

    /// Whether it reads: GET and HEAD, whatever they are called.
    #[must_use]
    pub const fn is_read(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch)
    }

    /// Whether it removes what others write: DELETE of one object or of many.
    #[must_use]
    pub const fn is_delete(self) -> bool {
        matches!(self, Self::Delete | Self::DeleteCollection)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

// === impl Call ===

impl Call {
    /// A call with nothing read but its path, which is the start of `text`.
    pub(super) fn of_path(text: String, path_len: usize, verb: Verb, ambiguous: bool) -> Self {
        Self {
            path: Part::new(0, path_len),
            text,
            verb,
            ambiguous,
            escaped_slash: false,
            is_resource: false,
            long_running: false,
            lists_first: false,
            dry_run: false,
            apply: false,
            timeout: None,
            group: Part::default(),
            version: Part::default(),
            resource: Part::default(),
            namespace: Part::default(),
            name: Part::default(),
            subresource: Part::default(),
        }
    }

    /// What it does.
    #[must_use]
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// The path, percent-decoded, without the query.
    ///
    /// Of a Kubernetes call, what is not UTF-8 in it is replaced, and the call then ambiguous. Of an external API's, a slash inside a segment
    /// stays `%2F`, and an ambiguous path is as it came.
    #[must_use]
    pub fn path(&self) -> &str {
        self.part(self.path)
    }

    /// The path as a server reads it that decodes before it splits, where that makes a difference: where a segment of [`Self::path`] has a `%2F`.
    #[must_use]
    pub fn path_split_later(&self) -> Option<String> {
        self.escaped_slash.then(|| self.path().replace(ESCAPED_SLASH, "/"))
    }

    /// The API group; empty for the core group and for what is not a resource.
    #[must_use]
    pub fn group(&self) -> &str {
        self.part(self.group)
    }

    /// The API version.
    #[must_use]
    pub fn version(&self) -> &str {
        self.part(self.version)
    }

    /// The resource, in the plural.
    #[must_use]
    pub fn resource(&self) -> &str {
        self.part(self.resource)
    }

    /// The namespace; empty for what has none.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.part(self.namespace)
    }

    /// The object's name: of the path, or of a collection read with `fieldSelector=metadata.name=NAME`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.part(self.name)
    }

    /// The subresource.
    #[must_use]
    pub fn subresource(&self) -> &str {
        self.part(self.subresource)
    }

    /// Whether it is read as a resource, so that group to subresource mean something.
    #[must_use]
    pub fn is_resource(&self) -> bool {
        self.is_resource
    }

    /// Whether other readers might read the path differently (`//`, `..`, a double escape, ...; of a Kubernetes call `%2F` too): such calls
    /// get no benefit of the doubt.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.ambiguous
    }

    /// Watch, exec, attach, port-forward, log follow, proxy: holds no slot, and spends no token unless it [lists first](Self::lists_first).
    #[must_use]
    pub fn is_long_running(&self) -> bool {
        self.long_running
    }

    /// A watch that begins with every object there is (`sendInitialEvents`, client-go's WatchList): to the API server it is as dear as a list.
    #[must_use]
    pub fn lists_first(&self) -> bool {
        self.lists_first
    }

    /// It asks to switch protocols: whatever its path says, nobody knows how long it will last.
    pub fn upgrade(&mut self) {
        self.long_running = true;
    }

    /// Whether it answers for something else than the API (a pod, a service): its status says nothing about the API.
    #[must_use]
    pub fn is_tunnel(&self) -> bool {
        self.long_running && self.verb != Verb::Watch && self.subresource() != "log"
    }

    /// Whether it reads a collection or a stream of its changes.
    #[must_use]
    pub fn is_collection_read(&self) -> bool {
        matches!(self.verb, Verb::List | Verb::Watch)
    }

    /// Whether it asks what the API offers: `/api`, `/apis` and what is below them, `/openapi`.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        let mut segments = self.path().split('/');
        !self.is_resource
            && self.verb == Verb::Get
            && segments.next() == Some("")
            && matches!(segments.next(), Some("api" | "apis" | "openapi"))
    }

    /// The client's own deadline (`?timeout=`), counted from arrival.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Whether `?dryRun=` is set: what becomes of it says nothing about the real write.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Its body is for the server to apply, as its head says.
    pub fn apply(&mut self) {
        self.apply = true;
    }

    /// Whether it is a server-side apply.
    #[must_use]
    pub fn is_apply(&self) -> bool {
        self.apply
    }

    fn part(&self, part: Part) -> &str {
        part.of(&self.text)
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.path())
    }
}

// === impl Part ===

impl Part {
    /// The piece of `len` bytes at `start`. Past 4 GiB it is empty; http's own limit is 64 KiB.
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
