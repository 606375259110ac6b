//! GitHub: the resource whose quota a call uses, by the words of `x-ratelimit-resource`.

use super::{Head, Words, is_read, route};

pub(super) fn read(head: &Head<'_>) -> Words {
    let path = head.uri.path();
    // GitHub Enterprise Server has its API below a path of its own.
    let path = path.strip_prefix("/api/v3").or_else(|| path.strip_prefix("/api")).unwrap_or(path);
    let known = route::action(&RESOURCES, head.method, path);
    let below = |word: &str| path.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let service = match known {
        Some(resource) => resource,
        None if below("/graphql") => "graphql",
        None if below("/search/code") => "code_search",
        None if below("/search") => "search",
        None if below("/scim") => "scim",
        None if below("/rate_limit") => "",
        None => "core",
    };
    let reads = is_read(head.method);
    let action = match service {
        "graphql" => "graphql",
        _ if reads => "reads",
        _ => "writes",
    };
    Words { service: service.into(), action: action.into(), reads, ..Words::default() }
}

/// The calls with a quota of their own. Source: the REST reference, "Rate limit", and the answers'
/// `x-ratelimit-resource`.
const RESOURCES: [route::Route; 9] = [
    ("POST", "repos/*/*/code-scanning/sarifs", "code_scanning_upload"),
    ("POST", "repos/*/*/dependency-graph/snapshots", "dependency_snapshots"),
    ("GET", "repos/*/*/dependency-graph/sbom", "dependency_sbom"),
    ("POST", "repos/*/*/actions/runners/registration-token", "actions_runner_registration"),
    ("POST", "orgs/*/actions/runners/registration-token", "actions_runner_registration"),
    ("POST", "enterprises/*/actions/runners/registration-token", "actions_runner_registration"),
    ("POST", "app-manifests/*/conversions", "integration_manifest"),
    ("GET", "orgs/*/audit-log", "audit_log"),
    ("GET", "enterprises/*/audit-log", "audit_log"),
];

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
            (Method::GET, "/rate_limit", "", "reads"),
            (Method::POST, "/repos/o/r/actions/runners/registration-token", "actions_runner_registration", "writes"),
            (Method::POST, "/repos/o/r/code-scanning/sarifs", "code_scanning_upload", "writes"),
        ] {
            let words = words(Dialect::Github, &method, target, &[], b"");
            assert_eq!((words.service.as_str(), words.action.as_str()), (service, action), "{method} {target}");
        }
    }
}
