//! The vocabulary of a call: verb, key, connection group.

use std::{fmt, time::Duration};

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

/// Which upstream connections a call uses. Each group has its own, so that a flood of one never takes the other's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Leases and whatever else is exempt.
    Leases,
    /// Calls that end.
    Short,
    /// Watches, followed logs, tunnels.
    LongRunning,
}

/// What failure is remembered for: an object (or collection, or path) and the part of it that a call touches.
///
/// The parts are hashes keyed by a per-process secret, so that looking up a healthy key costs no allocation and nobody outside can aim
/// for a collision (64 bits: with 100,000 failing keys one lookup in 10^14 errs). The readable name is made when a key starts to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The object: group, resource, namespace and name; or the path.
    pub object: u64,
    /// The object's collection: group, resource and namespace.
    pub collection: u64,
    /// Verb class and subresource.
    pub facet: u64,
}

/// One API request, read. A decoded copy for matching and naming; never used to build what is sent. One allocation.
#[derive(Clone, PartialEq, Eq)]
pub struct Call {
    /// The decoded path, then whatever the parts below could not borrow from it.
    text: String,
    verb: Verb,
    is_resource: bool,
    ambiguous: bool,
    long_running: bool,
    dry_run: bool,
    timeout: Option<Duration>,
}

// === impl Call ===

impl Call {
    /// What it does.
    #[must_use]
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// Watch, exec, attach, port-forward, log, proxy: holds no slot and spends no token.
    #[must_use]
    pub fn is_long_running(&self) -> bool {
        self.long_running
    }

    /// The client's own deadline (`?timeout=`), counted from arrival.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Whether `?dryRun=` is set: its success says nothing about the real write.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Whether other readers might read the path differently (`//`, `..`, `%2F`, ...): such calls get the strictest class.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.ambiguous
    }

    /// Whether it is read as a resource, so that group to subresource mean something.
    #[must_use]
    pub fn is_resource(&self) -> bool {
        self.is_resource
    }

    /// The path, percent-decoded, without the query.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.verb, self.path())
    }
}
