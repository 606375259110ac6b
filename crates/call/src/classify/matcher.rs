//! The patterns of a rule, and how they match calls.

use std::collections::BTreeMap;

use http::header::USER_AGENT;
use http::{HeaderMap, HeaderName, Method};

use super::glob::Glob;
use crate::api::{Call, Verb, query_pairs};
use crate::dialect::Words;

/// The calls belonging to a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleMatch {
    /// Leases of coordination.k8s.io, and kopf's peerings. Leader election depends on them.
    Leases,
    /// Reads of /livez, /readyz, /healthz (and their parts) and /version.
    Health,
    /// gRPC's health checks.
    GrpcHealth,
    /// Reads of /api, /apis and the paths above the resources, and of /openapi.
    Discovery,
    /// Calls of authentication.k8s.io and authorization.k8s.io. Another request waits for each of
    /// them.
    Reviews,
    /// Events of either API group.
    Events,
    /// All calls.
    Everything,
    /// Calls fitting these patterns.
    Patterns(Box<Matcher>),
}

words! {
    /// A kind of list of patterns, by its name in a `match` table of the configuration.
    pub enum PatternList {
        /// Verbs, as RBAC spells them.
        Verbs = "verbs",
        /// API groups; "" is the core group.
        Groups = "groups",
        /// Kubernetes resources, such as `pods`.
        Resources = "resources",
        /// Namespaces; "" matches calls without one.
        Namespaces = "namespaces",
        /// Object names.
        Names = "names",
        /// Subresources; "" matches calls without one.
        Subresources = "subresources",
        /// HTTP methods.
        Methods = "methods",
        /// Decoded paths; in an external API `%2F` is a slash inside a segment.
        Paths = "paths",
        /// User agents.
        UserAgents = "user_agents",
        /// Cloud services, as the provider names them.
        Services = "services",
        /// Cloud regions; "" matches calls without one.
        Regions = "regions",
        /// Cloud accounts; "" matches an unknown one.
        Accounts = "accounts",
        /// Actions of a cloud service, as the provider names them; "" matches an unknown one.
        Actions = "actions",
    }
}

/// The patterns of a rule. A call must match one pattern of each list, and every pattern for a
/// header or a query parameter. `*` matches any run of characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// The lists that are not empty.
    pub(super) lists: BTreeMap<PatternList, Vec<String>>,
    /// Header names, each with a pattern for the value.
    pub headers: Vec<(HeaderName, String)>,
    /// Query parameters, each with a pattern for the value.
    pub query: Vec<(String, String)>,
    /// True to match only calls listing everything (EC2 counts them separately); false to match
    /// only the calls that do not.
    pub unfiltered: Option<bool>,
}

/// A request, as rules and keys read it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) call: &'a Call,
    /// The call's path, in one of the ways it can be read.
    pub(super) path: &'a str,
    pub(super) method: &'a Method,
    pub(super) query: Option<&'a str>,
    pub(super) headers: &'a HeaderMap,
    /// The call in its cloud provider's terms, if the gate is configured for a provider.
    pub(super) words: Option<&'a Words>,
}

/// A rule, ready to match.
#[derive(Clone, Debug)]
pub(super) enum CompiledRule {
    Builtin(RuleMatch),
    Patterns(Box<Patterns>),
}

/// Patterns, ready to match.
#[derive(Clone, Debug)]
pub(super) struct Patterns {
    /// The lists that are not empty, without paths.
    lists: Vec<(PatternList, Vec<Glob>)>,
    paths: Vec<Glob>,
    /// The path patterns containing `%2F`, matched against the path with `%2F` still in it.
    spelled_paths: Vec<Glob>,
    headers: Vec<(HeaderName, Glob)>,
    query: Vec<(String, Glob)>,
    unfiltered: Option<bool>,
}

// === impl Matcher ===

impl Matcher {
    /// Returns the patterns of a list.
    pub fn get(&self, list: PatternList) -> &[String] {
        self.lists.get(&list).map_or(&[], Vec::as_slice)
    }

    /// Sets the patterns of a list.
    #[must_use]
    pub fn with(mut self, list: PatternList, patterns: Vec<String>) -> Self {
        self.lists.remove(&list);
        if !patterns.is_empty() {
            self.lists.insert(list, patterns);
        }
        self
    }
}

// === impl Subject ===

impl Subject<'_> {
    /// Returns the text a list's patterns must match; `None` if the call has none, and so no
    /// pattern matches, not even `*`.
    pub(super) fn text(&self, list: PatternList) -> Option<&str> {
        let of_resource = |read: fn(&Call) -> &str| self.call.is_resource.then(|| read(self.call));
        match list {
            PatternList::Verbs => Some(self.call.verb.word()),
            PatternList::Groups => of_resource(Call::group),
            PatternList::Resources => of_resource(Call::resource),
            PatternList::Namespaces => of_resource(Call::namespace),
            PatternList::Names => of_resource(Call::name),
            PatternList::Subresources => of_resource(Call::subresource),
            PatternList::Methods => Some(self.method.as_str()),
            PatternList::Paths => Some(self.path),
            PatternList::UserAgents => None, // there may be several
            PatternList::Services => self.words.map(|words| &*words.service),
            PatternList::Regions => self.words.map(|words| &*words.region),
            PatternList::Accounts => self.words.map(|words| &*words.account),
            PatternList::Actions => self.words.map(|words| &*words.action),
        }
    }

    /// Returns true if a value of a header fits. A value that is not text fits nothing.
    fn has_header(&self, name: &HeaderName, fits: impl Fn(&str) -> bool) -> bool {
        self.headers.get_all(name).iter().any(|value| value.to_str().is_ok_and(&fits))
    }
}

// === impl CompiledRule ===

impl CompiledRule {
    pub(super) fn new(matching: RuleMatch) -> Self {
        match matching {
            RuleMatch::Patterns(matcher) => Self::Patterns(Box::new(Patterns::new(*matcher))),
            builtin => Self::Builtin(builtin),
        }
    }

    /// Returns true if the rule reads more than the call log contains.
    pub(super) fn looks_past_the_log(&self) -> bool {
        match self {
            Self::Builtin(builtin) => {
                matches!(builtin, RuleMatch::Health | RuleMatch::GrpcHealth | RuleMatch::Discovery)
            }
            Self::Patterns(patterns) => patterns.look_past_the_log(),
        }
    }

    pub(super) fn matches(&self, subject: &Subject<'_>) -> bool {
        match self {
            Self::Builtin(builtin) => matches_builtin(builtin, subject),
            Self::Patterns(patterns) => patterns.match_path(subject) && patterns.match_except_path(subject),
        }
    }

    /// Returns true for a matching call with an unambiguous path.
    pub(super) fn surely_matches(&self, subject: &Subject<'_>) -> bool {
        self.matches(subject) && !subject.call.is_ambiguous && subject.call.path_split_later().is_none()
    }

    /// Returns true if it could match with another path.
    pub(super) fn matches_some_path(&self, subject: &Subject<'_>) -> bool {
        match self {
            Self::Builtin(_) => true,
            Self::Patterns(patterns) => patterns.match_except_path(subject),
        }
    }

    /// Returns true if the rule does not depend on the path of an external API.
    pub(super) fn is_blind_to_paths(&self) -> bool {
        match self {
            Self::Builtin(builtin) => *builtin == RuleMatch::Everything,
            Self::Patterns(patterns) => patterns.is_blind_to_paths(),
        }
    }
}

fn matches_builtin(builtin: &RuleMatch, subject: &Subject<'_>) -> bool {
    let call = subject.call;
    match builtin {
        RuleMatch::Leases => match call.group() {
            "coordination.k8s.io" => true,
            "zalando.org" | "kopf.dev" => matches!(call.resource(), "kopfpeerings" | "clusterkopfpeerings"),
            _ => false,
        },
        RuleMatch::Health => {
            let path = call.path().strip_suffix('/').unwrap_or_else(|| call.path());
            let is_below =
                |top: &&str| path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            call.verb == Verb::Get && (["/livez", "/readyz", "/healthz"].iter().any(is_below) || path == "/version")
        }
        RuleMatch::GrpcHealth => subject.words.is_some_and(Words::is_health_check),
        RuleMatch::Discovery => call.is_discovery(),
        RuleMatch::Reviews => matches!(call.group(), "authentication.k8s.io" | "authorization.k8s.io"),
        RuleMatch::Events => {
            call.is_resource && call.resource() == "events" && matches!(call.group(), "" | "events.k8s.io")
        }
        RuleMatch::Everything => true,
        RuleMatch::Patterns(_) => false, // `CompiledRule::new` compiles them
    }
}

// === impl Patterns ===

impl Patterns {
    fn new(matcher: Matcher) -> Self {
        let Matcher { mut lists, headers, query, unfiltered } = matcher;
        let paths = lists.remove(&PatternList::Paths).unwrap_or_default();
        let paths = paths.iter().map(|pattern| pattern.replace("%2f", "%2F"));
        let (spelled, paths): (Vec<_>, Vec<_>) = paths.partition(|pattern| pattern.contains("%2F"));
        Self {
            lists: lists.into_iter().map(|(list, patterns)| (list, globs(&patterns))).collect(),
            paths: globs(&paths),
            spelled_paths: globs(&spelled),
            headers: headers.into_iter().map(|(name, pattern)| (name, Glob::new(&pattern))).collect(),
            query: query.into_iter().map(|(name, pattern)| (name, Glob::new(&pattern))).collect(),
            unfiltered,
        }
    }

    fn is_blind_to_paths(&self) -> bool {
        self.paths.is_empty() && self.spelled_paths.is_empty()
    }

    fn look_past_the_log(&self) -> bool {
        use PatternList::{Accounts, Actions, Names, Regions, Services};
        let is_blind = self.is_blind_to_paths() && self.headers.is_empty() && self.query.is_empty();
        let is_logged = |list: &PatternList| !matches!(list, Names | Services | Regions | Accounts | Actions);
        !is_blind || self.unfiltered.is_some() || !self.lists.iter().all(|(list, _)| is_logged(list))
    }

    fn match_path(&self, subject: &Subject<'_>) -> bool {
        self.is_blind_to_paths() || any(&self.paths, subject.path) || any(&self.spelled_paths, subject.call.path())
    }

    /// Returns true if the call matches in everything but the path. A call without a resource, or
    /// not read in a provider's terms, matches no list for these.
    fn match_except_path(&self, subject: &Subject<'_>) -> bool {
        let fits = |(list, globs): &(PatternList, Vec<Glob>)| match list {
            PatternList::UserAgents => subject.has_header(&USER_AGENT, |text| any(globs, text)),
            list => subject.text(*list).is_some_and(|text| any(globs, text)),
        };
        let has_query = |(name, glob): &(String, Glob)| {
            query_pairs(subject.query).any(|(found, value)| found == *name && glob.matches(&value))
        };
        let is_unfiltered = subject.words.map(|words| words.unfiltered);
        self.lists.iter().all(fits)
            && (self.unfiltered.is_none() || self.unfiltered == is_unfiltered)
            && self.headers.iter().all(|(name, glob)| subject.has_header(name, |text| glob.matches(text)))
            && self.query.iter().all(has_query)
    }
}

fn globs(patterns: &[String]) -> Vec<Glob> {
    patterns.iter().map(|pattern| Glob::new(pattern)).collect()
}

/// Returns true if one of the patterns matches.
fn any(globs: &[Glob], text: &str) -> bool {
    globs.iter().any(|glob| glob.matches(text))
}
