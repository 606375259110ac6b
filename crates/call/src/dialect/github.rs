//! GitHub: the resource whose quota a call uses, as `x-ratelimit-resource` names it.

use std::sync::LazyLock;

use super::route::{Route, action_of, routes};
use super::{Head, Words, form, is_read};

/// Returns true for a call to the GraphQL endpoint.
pub(super) fn is_graphql(head: &Head<'_>) -> bool {
    is_below(path(head), "/graphql")
}

fn is_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the path without the prefix of GitHub Enterprise Server, if there is one.
fn path<'a>(head: &Head<'a>) -> &'a str {
    let path = head.uri.path();
    path.strip_prefix("/api/v3").or_else(|| path.strip_prefix("/api")).unwrap_or(path)
}

/// Returns the resource of a call's quota.
pub(crate) fn resource(head: &Head<'_>) -> &'static str {
    let path = path(head);
    match action_of(&RESOURCES, head.method, path) {
        Some(resource) => resource,
        None if is_graphql(head) => "graphql",
        None if is_below(path, "/search/code") => "code_search",
        None if is_below(path, "/search") => "search",
        None if is_below(path, "/scim") => "scim",
        None => "core",
    }
}

pub(super) fn read(head: &Head<'_>, body: &[u8]) -> Words {
    let service = resource(head);
    let reads = is_read(head.method) || service == "graphql" && is_query(body);
    let action = match service {
        "graphql" => "graphql",
        _ if reads => "reads",
        _ => "writes",
    };
    Words { service: service.into(), action: action.into(), reads, ..Words::default() }
}

/// Returns true if the GraphQL document in a body certainly begins with a query. Any other may
/// change something.
fn is_query(body: &[u8]) -> bool {
    let value = form::text(body).split_once("\"query\"").and_then(|(_, rest)| rest.trim_start().strip_prefix(':'));
    let Some(mut document) = value.and_then(|value| value.trim_start().strip_prefix('"')) else { return false };
    while let Some(rest) = ["\\n", "\\r", "\\t", " ", ","].iter().find_map(|blank| document.strip_prefix(blank)) {
        document = rest;
    }
    let word = document.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    document.starts_with('{') || word == "query" || word == "subscription"
}

/// The calls with a quota of their own.
static RESOURCES: LazyLock<Vec<Route>> = LazyLock::new(|| routes(include_str!("github.tsv")));

#[cfg(test)]
mod tests {
    use http::Method;

    use super::super::Dialect;
    use super::super::tests::words;

    #[test]
    fn a_call_is_of_the_resource_that_it_is_charged_to() {
        for (method, target, service, action) in [
            (Method::GET, "/repos/o/r/branches/a%2Fb", "core", "reads"),
            (Method::POST, "/repos/o/r/issues", "core", "writes"),
            (Method::GET, "/search/issues?q=x", "search", "reads"),
            (Method::GET, "/search/code?q=x", "code_search", "reads"),
            (Method::GET, "/searches", "core", "reads"),
            (Method::POST, "/graphql", "graphql", "graphql"),
            (Method::POST, "/api/graphql", "graphql", "graphql"),
            (Method::GET, "/api/v3/search/users?q=x", "search", "reads"),
            (Method::POST, "/repos/o/r/actions/runners/registration-token", "actions_runner_registration", "writes"),
            (Method::POST, "/repos/o/r/code-scanning/sarifs", "code_scanning_upload", "writes"),
        ] {
            let words = words(Dialect::Github, &method, target, &[], b"");
            assert_eq!((words.service.as_str(), words.action.as_str()), (service, action), "{method} {target}");
        }
    }

    #[test]
    fn a_graphql_call_reads_if_its_document_begins_with_a_query() {
        for (body, reads) in [
            (r#"{"query":"{ viewer { login } }"}"#, true),
            (r#"{ "query" : "query { viewer { login } }" }"#, true),
            (r#"{"variables":{},"query":"\n  query Repositories($a: Int) {"#, true),
            (r#"{"query":"subscription { x }"}"#, true),
            (r#"{"query":"mutation { addStar(input: {}) { clientMutationId } }"}"#, false),
            (r#"{"query":"\n\tmutation M {"#, false),
            (r#"{"query":"querying { x }"}"#, false),
            (r#"{"query":"fragment F on User { id } mutation { x }"}"#, false),
            (r#"{"query": null}"#, false),
            (r#"[]"#, false),
            ("", false),
        ] {
            let words = words(Dialect::Github, &Method::POST, "/graphql", &[], body.as_bytes());
            assert_eq!(words.reads, reads, "{body}");
        }
    }
}
