//! What a class matches: patterns that can match something, in words that exist.

use http::{HeaderName, Method};

use super::{
    field::{Field, Section},
    file,
    leaf::{List, one_of},
    path::Path,
    problems::{Report, did_you_mean},
};
use crate::{
    api::Verb,
    classify::{Kind, Matcher, Matching},
};

/// The patterns of a `match` table.
pub(super) fn matching(section: &Section<file::Match>, at: &Path, kind: Kind, report: &mut Report<'_>) -> Matching {
    let keys = section.open(at, report);
    let mut list = |field: &Field<List>, key: &str| field.get(&at.key(key), report).unwrap_or_default().0;
    let mut matcher = Matcher {
        verbs: list(&keys.verbs, "verbs"),
        groups: list(&keys.groups, "groups"),
        resources: list(&keys.resources, "resources"),
        namespaces: list(&keys.namespaces, "namespaces"),
        names: list(&keys.names, "names"),
        subresources: list(&keys.subresources, "subresources"),
        methods: list(&keys.methods, "methods"),
        paths: list(&keys.paths, "paths"),
        user_agents: list(&keys.user_agents, "user_agents"),
        headers: Vec::new(),
        query: keys.query.get(&at.key("query"), report).unwrap_or_default().0.into_iter().collect(),
    };
    for (name, pattern) in keys.headers.get(&at.key("headers"), report).unwrap_or_default().0 {
        match name.parse::<HeaderName>() {
            Ok(name) => matcher.headers.push((name, pattern)),
            Err(_) => report.key_problem(&at.key("headers").key(&name), "is no name of a header"),
        }
    }
    check(&matcher, at, kind, report);
    Matching::Patterns(Box::new(matcher))
}

fn check(matcher: &Matcher, at: &Path, kind: Kind, report: &mut Report<'_>) {
    let is_exact = |pattern: &&String| !pattern.contains('*');
    let verbs = verbs(kind);
    for (index, verb) in matcher.verbs.iter().enumerate().filter(|(_, verb)| is_exact(verb)) {
        if !verbs.contains(&verb.as_str()) {
            let near = did_you_mean(verb, &verbs);
            report.problem(&at.key("verbs").index(index), format!("is {verb:?}, expected {}{near}", one_of(&verbs)));
        }
    }
    for (index, method) in matcher.methods.iter().enumerate().filter(|(_, method)| is_exact(method)) {
        let is_method =
            Method::from_bytes(method.as_bytes()).is_ok() && !method.bytes().any(|byte| byte.is_ascii_lowercase());
        if !is_method {
            report
                .problem(&at.key("methods").index(index), format!("is {method:?}, expected a method such as \"POST\""));
        }
    }
    for (index, path) in matcher.paths.iter().enumerate() {
        if !path.starts_with(['/', '*']) {
            report.problem(&at.key("paths").index(index), format!("is {path:?}, expected a path from its \"/\""));
        }
    }
    for (index, resource) in matcher.resources.iter().enumerate() {
        if resource.contains('/') {
            let message = format!("is {resource:?}, expected a resource; its part belongs into subresources");
            report.problem(&at.key("resources").index(index), message);
        }
    }
    if kind == Kind::Http {
        check_http(matcher, at, report);
    }
}

/// External APIs have no resources.
fn check_http(matcher: &Matcher, at: &Path, report: &mut Report<'_>) {
    let lists = [
        ("groups", &matcher.groups),
        ("resources", &matcher.resources),
        ("namespaces", &matcher.namespaces),
        ("names", &matcher.names),
        ("subresources", &matcher.subresources),
    ];
    for (key, list) in lists {
        if !list.is_empty() {
            report.key_problem(&at.key(key), "matches nothing on a gate of kind \"http\": use paths");
        }
    }
}

/// The verbs that calls can have.
fn verbs(kind: Kind) -> Vec<&'static str> {
    let all = Verb::ALL.into_iter().filter(|verb| *verb != Verb::Other);
    let kubernetes_only = [Verb::DeleteCollection, Verb::List, Verb::Proxy, Verb::Watch];
    all.filter(|verb| kind == Kind::Kubernetes || !kubernetes_only.contains(verb)).map(Verb::word).collect()
}
