//! Reads what a class matches: patterns that can match something, in words that exist.

use std::collections::BTreeMap;
use std::mem;

use http::{HeaderName, Method};

use super::cursor::Cursor;
use super::problems::did_you_mean;
use super::values::alternatives;
use crate::api::Verb;
use crate::classify::{Kind, Matcher, Matching};

/// A list of patterns in a matcher.
type List = fn(&mut Matcher) -> &mut Vec<String>;

/// The lists of a `match` table; an external API has none of those marked.
const LISTS: [(&str, List, bool); 9] = [
    ("verbs", |matcher| &mut matcher.verbs, false),
    ("groups", |matcher| &mut matcher.groups, true),
    ("resources", |matcher| &mut matcher.resources, true),
    ("namespaces", |matcher| &mut matcher.namespaces, true),
    ("names", |matcher| &mut matcher.names, true),
    ("subresources", |matcher| &mut matcher.subresources, true),
    ("methods", |matcher| &mut matcher.methods, false),
    ("paths", |matcher| &mut matcher.paths, false),
    ("user_agents", |matcher| &mut matcher.user_agents, false),
];

/// Reads what a class matches, which is what `base` matches if its table does not say.
pub(super) fn matching(class: &Cursor<'_>, base: Option<Matching>, kind: Kind) -> Option<Matching> {
    let why = "the class \"default\" takes whatever no other class matches";
    let class = class.unused_if(base == Some(Matching::Everything), why);
    let (at, mut matcher) = match (class.optional("match"), base) {
        (Some(at), _) => (at, Matcher::default()),
        (None, Some(Matching::Patterns(matcher))) => (class.table("match"), *matcher),
        (None, base) => return base,
    };
    for (key, list, kubernetes_only) in LISTS {
        let list = list(&mut matcher);
        *list = at.read(key).unwrap_or_else(|| mem::take(list));
        if !list.is_empty() {
            at.in_force(key, list);
            if kubernetes_only && kind == Kind::Http {
                at.at(key).key_problem("matches nothing on a gate of kind \"http\": use paths");
            }
        }
    }
    if let Some(headers) = at.option::<BTreeMap<_, _>>("headers", None) {
        for (name, pattern) in headers {
            match name.parse::<HeaderName>() {
                Ok(name) => matcher.headers.push((name, pattern)),
                Err(_) => at.at("headers").at(&name).key_problem("is not a valid name of a header"),
            }
        }
    }
    matcher.query.extend(at.option::<BTreeMap<_, _>>("query", None).unwrap_or_default());
    check(&matcher, &at, kind);
    Some(Matching::Patterns(Box::new(matcher)))
}

fn check(matcher: &Matcher, at: &Cursor<'_>, kind: Kind) {
    let verbs = verbs(kind);
    let is_pattern = |text: &str| text.contains('*');
    at.check_each("verbs", &matcher.verbs, |verb| {
        let is_verb = is_pattern(verb) || verbs.contains(&verb);
        (!is_verb).then(|| format!("expected {}{}", alternatives(&verbs), did_you_mean(verb, &verbs)))
    });
    at.check_each("methods", &matcher.methods, |method| {
        let is_upper = !method.bytes().any(|byte| byte.is_ascii_lowercase());
        let is_method = is_pattern(method) || (is_upper && Method::from_bytes(method.as_bytes()).is_ok());
        (!is_method).then(|| "expected a method such as \"POST\"".to_owned())
    });
    at.check_each("paths", &matcher.paths, |path| {
        (!path.starts_with(['/', '*'])).then(|| "expected a path from its \"/\"".to_owned())
    });
    at.check_each("resources", &matcher.resources, |resource| {
        resource.contains('/').then(|| "expected a resource; its part belongs into subresources".to_owned())
    });
}

/// Returns the verbs that calls can have.
fn verbs(kind: Kind) -> Vec<&'static str> {
    let all = Verb::ALL.into_iter().filter(|verb| *verb != Verb::Other);
    let kubernetes_only = [Verb::DeleteCollection, Verb::List, Verb::Proxy, Verb::Watch];
    all.filter(|verb| kind == Kind::Kubernetes || !kubernetes_only.contains(verb)).map(Verb::word).collect()
}
