//! What a rule looks at.

use http::{HeaderMap, HeaderName, Method, header::USER_AGENT};

use super::glob::Glob;
use crate::api::{Call, Verb, query_pairs};

/// What a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matching {
    /// Leases of coordination.k8s.io, and kopf's peerings: what keeps a leader a leader.
    Leases,
    /// Reads of /livez, /readyz, /healthz (and their parts) and /version.
    Health,
    /// Reads of /api, /apis and what is above the resources, and of /openapi.
    Discovery,
    /// authentication.k8s.io and authorization.k8s.io: somebody waits for these before doing anything else.
    Reviews,
    /// Events of either group.
    Events,
    /// Everything.
    Everything,
    /// Whatever fits these patterns.
    Patterns(Box<Matcher>),
}

/// Patterns by what they look at. Every non-empty field must match; within a list one pattern must, of a map every entry. `*` matches any run of
/// characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// Verbs, as RBAC spells them.
    pub verbs: Vec<String>,
    /// API groups; "" is the core group.
    pub groups: Vec<String>,
    /// Resources.
    pub resources: Vec<String>,
    /// Namespaces; "" is none.
    pub namespaces: Vec<String>,
    /// Object names.
    pub names: Vec<String>,
    /// Subresources; "" is none.
    pub subresources: Vec<String>,
    /// HTTP methods.
    pub methods: Vec<String>,
    /// Decoded paths; `%2F` is a slash inside a segment of an external API's.
    pub paths: Vec<String>,
    /// User agents.
    pub user_agents: Vec<String>,
    /// Headers, name to pattern.
    pub headers: Vec<(HeaderName, String)>,
    /// Query parameters, name to pattern.
    pub query: Vec<(String, String)>,
}

/// A request, as far as rules look at it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) call: &'a Call,
    /// The call's path in one of its readings.
    pub(super) path: &'a str,
    pub(super) method: &'a Method,
    pub(super) query: Option<&'a str>,
    pub(super) headers: &'a HeaderMap,
}

/// A rule made ready.
#[derive(Clone, Debug)]
pub(super) enum Compiled {
    Builtin(Matching),
    Patterns(Box<Patterns>),
}

#[derive(Clone, Debug)]
pub(super) struct Patterns {
    verbs: Globs,
    groups: Globs,
    resources: Globs,
    namespaces: Globs,
    names: Globs,
    subresources: Globs,
    methods: Globs,
    paths: Paths,
    user_agents: Globs,
    headers: Vec<(HeaderName, Glob)>,
    query: Vec<(String, Glob)>,
}

/// Empty matches everything.
#[derive(Clone, Debug)]
struct Globs(Vec<Glob>);

/// Patterns of paths. One that spells `%2F` says that it is data there, and sees only the path in which it is.
#[derive(Clone, Debug)]
struct Paths {
    globs: Globs,
    spelled: Vec<Glob>,
}

// === impl Compiled ===

impl Compiled {
    pub(super) fn new(matching: Matching) -> Self {
        match matching {
            Matching::Patterns(matcher) => Self::Patterns(Box::new(Patterns::new(&matcher))),
            builtin => Self::Builtin(builtin),
        }
    }

    /// Whether it looks at what the log of calls does not have.
    pub(super) fn looks_past_the_log(&self) -> bool {
        match self {
            Self::Builtin(builtin) => matches!(builtin, Matching::Health | Matching::Discovery),
            Self::Patterns(patterns) => {
                let Patterns { names, paths, headers, query, .. } = &**patterns;
                !(names.0.is_empty() && paths.is_empty() && headers.is_empty() && query.is_empty())
            }
        }
    }

    pub(super) fn matches(&self, subject: &Subject<'_>) -> bool {
        match self {
            Self::Builtin(builtin) => matches_builtin(builtin, subject.call),
            Self::Patterns(patterns) => patterns.paths.matches(subject) && patterns.matches_but_for_path(subject),
        }
    }

    /// Whether it would match if the path were another: one that no rule could tell from this for sure.
    pub(super) fn matches_some_path(&self, subject: &Subject<'_>) -> bool {
        match self {
            Self::Builtin(_) => true,
            Self::Patterns(patterns) => patterns.matches_but_for_path(subject),
        }
    }

    /// Whether it does not look at the path of an external API.
    pub(super) fn is_blind_to_paths(&self) -> bool {
        match self {
            Self::Builtin(builtin) => *builtin == Matching::Everything,
            Self::Patterns(patterns) => patterns.paths.is_empty(),
        }
    }
}

fn matches_builtin(builtin: &Matching, call: &Call) -> bool {
    match builtin {
        Matching::Leases => match call.group() {
            "coordination.k8s.io" => true,
            "zalando.org" | "kopf.dev" => matches!(call.resource(), "kopfpeerings" | "clusterkopfpeerings"),
            _ => false,
        },
        Matching::Health => {
            let path = call.path().strip_suffix('/').unwrap_or_else(|| call.path());
            let first = path.split('/').nth(1).unwrap_or_default();
            let is_health = matches!(first, "livez" | "readyz" | "healthz") || path == "/version";
            call.verb() == Verb::Get && path.starts_with('/') && is_health
        }
        Matching::Discovery => call.is_discovery(),
        Matching::Reviews => matches!(call.group(), "authentication.k8s.io" | "authorization.k8s.io"),
        Matching::Events => {
            call.is_resource() && call.resource() == "events" && matches!(call.group(), "" | "events.k8s.io")
        }
        Matching::Everything => true,
        // Taken apart in `Compiled::new`.
        Matching::Patterns(_) => false,
    }
}

// === impl Patterns ===

impl Patterns {
    fn new(matcher: &Matcher) -> Self {
        Self {
            verbs: Globs::new(&matcher.verbs),
            groups: Globs::new(&matcher.groups),
            resources: Globs::new(&matcher.resources),
            namespaces: Globs::new(&matcher.namespaces),
            names: Globs::new(&matcher.names),
            subresources: Globs::new(&matcher.subresources),
            methods: Globs::new(&matcher.methods),
            paths: Paths::new(&matcher.paths),
            user_agents: Globs::new(&matcher.user_agents),
            headers: matcher.headers.iter().map(|(name, pattern)| (name.clone(), Glob::new(pattern))).collect(),
            query: matcher.query.iter().map(|(name, pattern)| (name.clone(), Glob::new(pattern))).collect(),
        }
    }

    /// Cheap and selective fields first.
    fn matches_but_for_path(&self, subject: &Subject<'_>) -> bool {
        let call = subject.call;
        self.verbs.matches(call.verb().word())
            && self.methods.matches(subject.method.as_str())
            && self.of_resource(call)
            && self.user_agents.matches_header(subject.headers, &USER_AGENT)
            && self.headers.iter().all(|(name, glob)| header_matches(subject.headers, name, |text| glob.matches(text)))
            && self.query.iter().all(|(name, glob)| {
                query_pairs(subject.query).any(|(found, value)| found == name.as_str() && glob.matches(&value))
            })
    }

    /// Fields that mean something for resources only: where one is set, what is no resource does not match, not even `*`.
    fn of_resource(&self, call: &Call) -> bool {
        let fields = [
            (&self.groups, call.group()),
            (&self.resources, call.resource()),
            (&self.namespaces, call.namespace()),
            (&self.names, call.name()),
            (&self.subresources, call.subresource()),
        ];
        fields.iter().all(|(globs, value)| globs.0.is_empty() || call.is_resource() && globs.matches(value))
    }
}

// === impl Paths ===

impl Paths {
    fn new(patterns: &[String]) -> Self {
        let patterns = patterns.iter().map(|pattern| pattern.replace("%2f", "%2F"));
        let (spelled, others): (Vec<_>, Vec<_>) = patterns.partition(|pattern| pattern.contains("%2F"));
        Self { globs: Globs::new(&others), spelled: spelled.iter().map(|pattern| Glob::new(pattern)).collect() }
    }

    fn is_empty(&self) -> bool {
        self.globs.0.is_empty() && self.spelled.is_empty()
    }

    fn matches(&self, subject: &Subject<'_>) -> bool {
        self.is_empty()
            || self.globs.0.iter().any(|glob| glob.matches(subject.path))
            || self.spelled.iter().any(|glob| glob.matches(subject.call.path()))
    }
}

// === impl Globs ===

impl Globs {
    fn new(patterns: &[String]) -> Self {
        Self(patterns.iter().map(|pattern| Glob::new(pattern)).collect())
    }

    fn matches(&self, text: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|glob| glob.matches(text))
    }

    fn matches_header(&self, headers: &HeaderMap, name: &HeaderName) -> bool {
        self.0.is_empty() || header_matches(headers, name, |text| self.matches(text))
    }
}

/// Whether one of the header's values matches. A value that is not text matches nothing.
fn header_matches(headers: &HeaderMap, name: &HeaderName, matches: impl Fn(&str) -> bool) -> bool {
    headers.get_all(name).iter().any(|value| value.to_str().is_ok_and(&matches))
}
