//! Finds useless patterns: the values compared with them never contain some of their characters.
//! For example, a namespace has no upper case.

use crate::classify::{ApiKind, Glob, Matcher, PatternList};
use crate::config::cursor::Cursor;
use crate::config::problems::did_you_mean;

/// Checks the patterns of resources against the names Kubernetes allows.
pub(super) fn check_resources(matcher: &Matcher, at: &Cursor<'_>) {
    let names_metrics = names_metrics(matcher.get(PatternList::Groups));
    at.check_each("groups", matcher.get(PatternList::Groups), |group| {
        if group.contains('/') {
            return Some("expected a group without its version, such as \"apps\"".to_owned());
        }
        if is_version(group) {
            return Some("which is a version, not a group; the core group is \"\"".to_owned());
        }
        has_upper(group).then(|| "expected a group in lower case".to_owned())
    });
    at.check_each("resources", matcher.get(PatternList::Resources), |resource| {
        if resource.contains('/') {
            return Some("expected a resource without \"/\"; put the part after it into subresources".to_owned());
        }
        if names_metrics {
            return None;
        }
        if resource.contains('.') {
            return Some(format!("expected a resource such as \"pods\"; put its group into groups{METRICS}"));
        }
        has_upper(resource).then(|| format!("expected a resource as in API paths, in lower case and plural{METRICS}"))
    });
    at.check_each("namespaces", matcher.get(PatternList::Namespaces), |namespace| {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'*');
        (!namespace.bytes().all(fits)).then(|| "expected a namespace: lower case letters, digits and \"-\"".to_owned())
    });
    at.check_each("names", matcher.get(PatternList::Names), |name| {
        name.contains(['/', '%']).then(|| "expected the name of an object, which has no \"/\" and no \"%\"".to_owned())
    });
    at.check_each("subresources", matcher.get(PatternList::Subresources), |subresource| {
        if subresource.contains('/') {
            return Some("expected a subresource such as \"status\"; put its resource into resources".to_owned());
        }
        // Servers behind the aggregator may have others, in any case.
        let lower = subresource.to_lowercase();
        let is_slip = !names_metrics && has_upper(subresource) && SUBRESOURCES.contains(&lower.as_str());
        is_slip.then(|| format!("expected a subresource as in API paths{}", did_you_mean(&lower, SUBRESOURCES)))
    });
}

/// Reports percent-escapes in patterns of paths: a path is unescaped before it is compared.
pub(super) fn check_path_escapes(paths: &[String], at: &Cursor<'_>, kind: ApiKind) {
    let keeps = |escape: &str| kind == ApiKind::Http && escape.eq_ignore_ascii_case("2f");
    at.check_each("paths", paths, |path| {
        let mut escapes = path.split('%').skip(1).filter_map(|rest| rest.get(..2));
        let is_escaped = escapes.any(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit()) && !keeps(two));
        let but = if kind == ApiKind::Http { ", except %2F" } else { "" };
        is_escaped.then(|| format!("expected a path without %-escapes{but}"))
    });
}

/// Returns true if one of these groups is a metrics API. Its paths may have a metric's name in
/// place of a resource or subresource, or a resource with its group.
fn names_metrics(groups: &[String]) -> bool {
    groups.iter().map(|group| Glob::new(group)).any(|group| METRICS_GROUPS.iter().any(|name| group.matches(name)))
}

fn has_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase)
}

/// Returns true for a version such as `v1` or `v2beta1`.
fn is_version(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.strip_prefix('v').is_some_and(|rest| {
        let parts = rest.split_once("alpha").or_else(|| rest.split_once("beta"));
        is_number(rest) || parts.is_some_and(|(major, minor)| is_number(major) && is_number(minor))
    })
}

const METRICS_GROUPS: [&str; 2] = ["custom.metrics.k8s.io", "external.metrics.k8s.io"];
const METRICS: &str = " (that of a metrics API too, for the name of a metric)";
/// The subresources of Kubernetes itself.
const SUBRESOURCES: &[&str] = &[
    "approval",
    "attach",
    "binding",
    "ephemeralcontainers",
    "eviction",
    "exec",
    "finalize",
    "log",
    "portforward",
    "proxy",
    "resize",
    "scale",
    "status",
    "token",
];
