//! The patterns of a rule.

use http::header::USER_AGENT;
use http::{HeaderMap, HeaderName, Method};

use super::glob::Glob;
use crate::api::{Call, Verb, query_pairs};
use crate::dialect::Words;

/// The calls that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matching {
    /// Leases of coordination.k8s.io, and kopf's peerings, by which a leader stays the leader.
    Leases,
    /// Reads of /livez, /readyz, /healthz (and their parts) and /version.
    Health,
    /// gRPC's health checks.
    GrpcHealth,
    /// Reads of /api, /apis and the paths above the resources, and of /openapi.
    Discovery,
    /// authentication.k8s.io and authorization.k8s.io: another request waits for each of these.
    Reviews,
    /// Events of either group.
    Events,
    /// Everything.
    Everything,
    /// Calls that fit these patterns.
    Patterns(Box<Matcher>),
}

/// Patterns by the part of the request that they look at. Every field that is not empty must match;
/// in a list one pattern must match, in a map every entry. `*` matches any run of characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher<P = String> {
    /// Verbs, as RBAC spells them.
    pub verbs: Vec<P>,
    /// API groups; "" is the core group.
    pub groups: Vec<P>,
    /// Resources.
    pub resources: Vec<P>,
    /// Namespaces; "" is none.
    pub namespaces: Vec<P>,
    /// Object names.
    pub names: Vec<P>,
    /// Subresources; "" is none.
    pub subresources: Vec<P>,
    /// HTTP methods.
    pub methods: Vec<P>,
    /// Decoded paths; `%2F` is a slash inside a segment of an external API's.
    pub paths: Vec<P>,
    /// User agents.
    pub user_agents: Vec<P>,
    /// Headers, name to pattern.
    pub headers: Vec<(HeaderName, P)>,
    /// Query parameters, name to pattern.
    pub query: Vec<(String, P)>,
    /// Services, as the dialect of the gate names them.
    pub services: Vec<P>,
    /// Regions; "" is none.
    pub regions: Vec<P>,
    /// Accounts; "" is one that is not known.
    pub accounts: Vec<P>,
    /// Actions, as the dialect names them; "" is one that is not known.
    pub actions: Vec<P>,
    /// True for listings of everything alone, which EC2 counts apart; false for what is none.
    pub unfiltered: Option<bool>,
}

/// The parts of a request that rules and keys look at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) call: &'a Call,
    /// The call's path in one of its readings.
    pub(super) path: &'a str,
    pub(super) method: &'a Method,
    pub(super) query: Option<&'a str>,
    pub(super) headers: &'a HeaderMap,
    /// The call in its provider's words, on a gate with a dialect.
    pub(super) words: Option<&'a Words>,
}

/// A part of a call by which rules are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Name,
    Path,
    Account,
    Action,
    Namespace,
    Resource,
    Service,
    Group,
}

/// A rule that is ready to match.
#[derive(Clone, Debug)]
pub(super) enum Compiled {
    Builtin(Matching),
    Patterns(Box<Patterns>),
}

/// Patterns that are ready to match.
#[derive(Clone, Debug)]
pub(super) struct Patterns {
    globs: Matcher<Glob>,
    /// The patterns of paths that spell `%2F`. For them it is data, and they see only the path that
    /// keeps it.
    spelled_paths: Vec<Glob>,
}

// === impl Part ===

impl Part {
    /// All parts, the one that tells most rules apart first.
    pub(super) const ALL: [Self; 8] = [
        Self::Name,
        Self::Path,
        Self::Account,
        Self::Action,
        Self::Namespace,
        Self::Resource,
        Self::Service,
        Self::Group,
    ];
}

// === impl Subject ===

impl Subject<'_> {
    /// Returns a part of the call; `None` if it has none, and so matches no rule that names one.
    pub(super) fn part(&self, part: Part) -> Option<&str> {
        let of_resource = |read: fn(&Call) -> &str| self.call.is_resource.then(|| read(self.call));
        match part {
            Part::Name => of_resource(Call::name),
            Part::Namespace => of_resource(Call::namespace),
            Part::Resource => of_resource(Call::resource),
            Part::Group => of_resource(Call::group),
            Part::Path => Some(self.path),
            Part::Account => self.words.map(|words| &*words.account),
            Part::Action => self.words.map(|words| &*words.action),
            Part::Service => self.words.map(|words| &*words.service),
        }
    }
}

// === impl Compiled ===

impl Compiled {
    pub(super) fn new(matching: Matching) -> Self {
        match matching {
            Matching::Patterns(matcher) => Self::Patterns(Box::new(Patterns::new(&matcher))),
            builtin => Self::Builtin(builtin),
        }
    }

    /// True if it looks at anything that the log of calls does not have.
    pub(super) fn looks_past_the_log(&self) -> bool {
        match self {
            Self::Builtin(builtin) => matches!(builtin, Matching::Health | Matching::GrpcHealth | Matching::Discovery),
            Self::Patterns(patterns) => {
                let Matcher { names, headers, query, .. } = &patterns.globs;
                let is_blind = names.is_empty() && patterns.is_blind_to_paths() && patterns.is_blind_to_words();
                !(is_blind && headers.is_empty() && query.is_empty())
            }
        }
    }

    /// Returns the part of a call that it names without a star, and the names: it matches no call
    /// that has another.
    pub(super) fn named(&self) -> Option<(Part, impl Iterator<Item = &str>)> {
        let Self::Patterns(patterns) = self else { return None };
        Part::ALL.into_iter().find_map(|part| {
            let globs = patterns.of(part);
            let all_are_names = !globs.is_empty() && globs.iter().all(|glob| glob.name().is_some());
            all_are_names.then(|| (part, globs.iter().filter_map(Glob::name)))
        })
    }

    pub(super) fn matches(&self, subject: &Subject<'_>) -> bool {
        match self {
            Self::Builtin(builtin) => matches_builtin(builtin, subject),
            Self::Patterns(patterns) => patterns.match_path(subject) && patterns.match_except_path(subject),
        }
    }

    /// True if it could match with another path, which no rule could tell from this one for sure.
    pub(super) fn matches_some_path(&self, subject: &Subject<'_>) -> bool {
        match self {
            Self::Builtin(_) => true,
            Self::Patterns(patterns) => patterns.match_except_path(subject),
        }
    }

    /// True if it does not look at the path of an external API.
    pub(super) fn is_blind_to_paths(&self) -> bool {
        match self {
            Self::Builtin(builtin) => *builtin == Matching::Everything,
            Self::Patterns(patterns) => patterns.is_blind_to_paths(),
        }
    }
}

fn matches_builtin(builtin: &Matching, subject: &Subject<'_>) -> bool {
    let call = subject.call;
    match builtin {
        Matching::Leases => match call.group() {
            "coordination.k8s.io" => true,
            "zalando.org" | "kopf.dev" => matches!(call.resource(), "kopfpeerings" | "clusterkopfpeerings"),
            _ => false,
        },
        Matching::Health => {
            let path = call.path().strip_suffix('/').unwrap_or_else(|| call.path());
            let is_below =
                |top: &&str| path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            call.verb == Verb::Get && (["/livez", "/readyz", "/healthz"].iter().any(is_below) || path == "/version")
        }
        Matching::GrpcHealth => subject.words.is_some_and(Words::is_health_check),
        Matching::Discovery => call.is_discovery(),
        Matching::Reviews => matches!(call.group(), "authentication.k8s.io" | "authorization.k8s.io"),
        Matching::Events => {
            call.is_resource && call.resource() == "events" && matches!(call.group(), "" | "events.k8s.io")
        }
        Matching::Everything => true,
        // Never here: `Compiled::new` compiles them.
        Matching::Patterns(_) => false,
    }
}

// === impl Patterns ===

impl Patterns {
    fn new(matcher: &Matcher) -> Self {
        let globs = |patterns: &[String]| -> Vec<Glob> { patterns.iter().map(|pattern| Glob::new(pattern)).collect() };
        let paths = matcher.paths.iter().map(|pattern| pattern.replace("%2f", "%2F"));
        let (spelled, paths): (Vec<_>, Vec<_>) = paths.partition(|pattern| pattern.contains("%2F"));
        let compiled = Matcher {
            verbs: globs(&matcher.verbs),
            groups: globs(&matcher.groups),
            resources: globs(&matcher.resources),
            namespaces: globs(&matcher.namespaces),
            names: globs(&matcher.names),
            subresources: globs(&matcher.subresources),
            methods: globs(&matcher.methods),
            paths: globs(&paths),
            user_agents: globs(&matcher.user_agents),
            headers: matcher.headers.iter().map(|(name, pattern)| (name.clone(), Glob::new(pattern))).collect(),
            query: matcher.query.iter().map(|(name, pattern)| (name.clone(), Glob::new(pattern))).collect(),
            services: globs(&matcher.services),
            regions: globs(&matcher.regions),
            accounts: globs(&matcher.accounts),
            actions: globs(&matcher.actions),
            unfiltered: matcher.unfiltered,
        };
        Self { globs: compiled, spelled_paths: globs(&spelled) }
    }

    /// Returns the patterns of a part, if a call must match one of them.
    fn of(&self, part: Part) -> &[Glob] {
        match part {
            Part::Name => &self.globs.names,
            // One that spells `%2F` looks at another path.
            Part::Path if !self.spelled_paths.is_empty() => &[],
            Part::Path => &self.globs.paths,
            Part::Account => &self.globs.accounts,
            Part::Action => &self.globs.actions,
            Part::Namespace => &self.globs.namespaces,
            Part::Resource => &self.globs.resources,
            Part::Service => &self.globs.services,
            Part::Group => &self.globs.groups,
        }
    }

    fn is_blind_to_paths(&self) -> bool {
        self.globs.paths.is_empty() && self.spelled_paths.is_empty()
    }

    fn is_blind_to_words(&self) -> bool {
        let Matcher { services, regions, accounts, actions, unfiltered, .. } = &self.globs;
        [services, regions, accounts, actions].iter().all(|globs| globs.is_empty()) && unfiltered.is_none()
    }

    /// Matches the provider's words. If one of them is set, a gate without a dialect has no match.
    fn match_words(&self, words: Option<&Words>) -> bool {
        let Matcher { services, regions, accounts, actions, unfiltered, .. } = &self.globs;
        let Some(words) = words else { return self.is_blind_to_words() };
        any(services, &words.service)
            && any(actions, &words.action)
            && any(regions, &words.region)
            && any(accounts, &words.account)
            && unfiltered.is_none_or(|unfiltered| unfiltered == words.unfiltered)
    }

    fn match_path(&self, subject: &Subject<'_>) -> bool {
        self.is_blind_to_paths()
            || self.globs.paths.iter().any(|glob| glob.matches(subject.path))
            || self.spelled_paths.iter().any(|glob| glob.matches(subject.call.path()))
    }

    /// Matches cheap and selective fields first.
    fn match_except_path(&self, subject: &Subject<'_>) -> bool {
        let globs = &self.globs;
        let call = subject.call;
        let has_header = |name, glob: &Glob| {
            // A value that is not text matches nothing.
            subject.headers.get_all(name).iter().any(|value| value.to_str().is_ok_and(|text| glob.matches(text)))
        };
        let has_query = |name: &str, glob: &Glob| {
            query_pairs(subject.query).any(|(found, value)| found == name && glob.matches(&value))
        };
        any(&globs.verbs, call.verb.word())
            && any(&globs.methods, subject.method.as_str())
            && self.match_resource(call)
            && self.match_words(subject.words)
            && (globs.user_agents.is_empty() || globs.user_agents.iter().any(|glob| has_header(&USER_AGENT, glob)))
            && globs.headers.iter().all(|(name, glob)| has_header(name, glob))
            && globs.query.iter().all(|(name, glob)| has_query(name, glob))
    }

    /// Matches the fields of resources, the one that tells most calls apart first. If one of them
    /// is set, only a resource matches, even by `*`.
    fn match_resource(&self, call: &Call) -> bool {
        let fits = |globs: &[Glob], part: fn(&Call) -> &str| {
            globs.is_empty() || call.is_resource && globs.iter().any(|glob| glob.matches(part(call)))
        };
        let Matcher { groups, resources, namespaces, names, subresources, .. } = &self.globs;
        fits(resources, Call::resource)
            && fits(groups, Call::group)
            && fits(namespaces, Call::namespace)
            && fits(names, Call::name)
            && fits(subresources, Call::subresource)
    }
}

/// True if one of the patterns matches, or if there is none.
fn any(globs: &[Glob], text: &str) -> bool {
    globs.is_empty() || globs.iter().any(|glob| glob.matches(text))
}
