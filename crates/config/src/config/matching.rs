//! Reads which calls belong to a class, and reports patterns that can never match.

mod patterns;

use std::collections::BTreeMap;

use http::{HeaderName, Method};

use super::cursor::Cursor;
use super::problems::{alternatives, did_you_mean};
use crate::api::Verb;
use crate::classify::{ApiKind, Matcher, PatternList, RuleMatch};
use crate::dialect::{Dialect, service_names};

/// Reads the patterns for a class's calls. Without a table `match`, returns `usual`.
pub(super) fn matching(
    class: &Cursor<'_>,
    usual: Option<RuleMatch>,
    kind: ApiKind,
    dialect: Dialect,
) -> Option<RuleMatch> {
    let why = "the class \"default\" has all calls that no other class matches";
    let class = class.unused_if(usual == Some(RuleMatch::Everything), why, &class.at("name"));
    let at = match class.optional("match") {
        // The patterns of a preset are not added to those of the file.
        Some(at) => at.without_preset(),
        None if class.at("match").has_preset_table() => class.table("match"),
        None => return usual,
    };
    let mut matcher = Matcher::default();
    for list in PatternList::ALL {
        let patterns = at.read::<Vec<String>>(list.word()).unwrap_or_default();
        if !patterns.is_empty() {
            at.in_force(list.word(), &patterns);
            let problem = why_nothing_matches(list, kind, dialect);
            problem.into_iter().for_each(|problem| at.at(list.word()).key_problem(problem));
        }
        matcher = matcher.with(list, patterns);
    }
    if let Some(headers) = at.option::<BTreeMap<_, _>>("headers", None) {
        for (name, pattern) in headers {
            match name.parse::<HeaderName>() {
                Ok(name) => matcher.headers.push((name, pattern)),
                Err(_) => at.at("headers").at(&name).key_problem("is not the name of a header"),
            }
        }
    }
    matcher.unfiltered = at.option("unfiltered", None);
    if matcher.unfiltered.is_some() && dialect != Dialect::Aws {
        at.at("unfiltered").key_problem("only matches calls to AWS; set dialect = \"aws\" on the gate");
    }
    matcher.query.extend(at.option::<BTreeMap<_, _>>("query", None).unwrap_or_default());
    check(&matcher, &at, kind);
    if dialect == Dialect::Aws {
        check_services(matcher.get(PatternList::Services), &at);
    }
    Some(RuleMatch::Patterns(Box::new(matcher)))
}

/// Returns why a list of patterns can never match at a gate of this kind; `None` if it can.
fn why_nothing_matches(list: PatternList, kind: ApiKind, dialect: Dialect) -> Option<&'static str> {
    use PatternList as List;
    let (matches, problem) = match list {
        List::Verbs | List::Methods | List::Paths | List::UserAgents => return None,
        List::Groups | List::Resources | List::Namespaces | List::Names | List::Subresources => {
            (kind == ApiKind::Kubernetes, "matches nothing on a gate of kind \"http\"; expected paths")
        }
        List::Services | List::Regions | List::Accounts | List::Actions => (dialect != Dialect::Plain, NO_DIALECT),
    };
    (!matches).then_some(problem)
}

fn check(matcher: &Matcher, at: &Cursor<'_>, kind: ApiKind) {
    let verbs = verbs(kind);
    let is_pattern = |text: &str| text.contains('*');
    at.check_each("verbs", matcher.get(PatternList::Verbs), |verb| {
        let is_verb = is_pattern(verb) || verbs.contains(&verb);
        (!is_verb).then(|| format!("expected {}{}", alternatives(&verbs), did_you_mean(verb, &verbs)))
    });
    at.check_each("methods", matcher.get(PatternList::Methods), |method| {
        let is_upper = !method.bytes().any(|byte| byte.is_ascii_lowercase());
        let is_method = is_pattern(method) || (is_upper && Method::from_bytes(method.as_bytes()).is_ok());
        (!is_method).then(|| "expected a method such as \"POST\"".to_owned())
    });
    at.check_each("paths", matcher.get(PatternList::Paths), |path| {
        (!path.starts_with(['/', '*'])).then(|| "expected a path that begins with \"/\"".to_owned())
    });
    patterns::check_path_escapes(matcher.get(PatternList::Paths), at, kind);
    if kind == ApiKind::Kubernetes {
        patterns::check_resources(matcher, at);
    }
}

/// Checks names of AWS services.
///
/// The list of known services is incomplete, so unknown names are accepted. A name similar to a
/// known one causes a warning.
fn check_services(services: &[String], at: &Cursor<'_>) {
    let names: Vec<&str> = service_names().map(|service| service.signed).collect();
    for (index, service) in services.iter().enumerate().filter(|(_, service)| !service.contains('*')) {
        let at = at.at("services").item(index);
        let near = did_you_mean(service, &names);
        match service_names().find(|known| known.sdk == service) {
            _ if names.contains(&service.as_str()) => {}
            Some(known) => at.problem(format!(
                "is {service:?}, expected the name that AWS signatures have for it: {:?}",
                known.signed
            )),
            None if near.is_empty() => {}
            None => {
                at.warn(format!("is {service:?}, which is not the name of a known AWS service in signatures{near}"))
            }
        }
    }
}

/// Returns the possible verbs of calls to this kind of API.
fn verbs(kind: ApiKind) -> Vec<&'static str> {
    let all = Verb::ALL.into_iter().filter(|verb| *verb != Verb::Other);
    let kubernetes_only = [Verb::DeleteCollection, Verb::List, Verb::Proxy, Verb::Watch];
    all.filter(|verb| kind == ApiKind::Kubernetes || !kubernetes_only.contains(verb)).map(Verb::word).collect()
}

const NO_DIALECT: &str = "matches nothing on a gate without a dialect; set dialect = \"aws\", \"azure\", \"google\" or \"github\" on the gate";
