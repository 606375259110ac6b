//! The calls to the providers that other tests count with too.

use http::Method;

use super::town::Job;

// === impl Job ===

impl Job {
    pub(super) fn github(kind: &'static str) -> Self {
        let (method, path) = match kind {
            "reads" => (Method::GET, "/repos/a/b/issues/1"),
            "writes" => (Method::PATCH, "/repos/a/b/issues/1"),
            "creates" => (Method::POST, "/repos/a/b/issues"),
            "search" => (Method::GET, "/search/issues?q=x"),
            "code_search" => (Method::GET, "/search/code?q=x"),
            "manifests" => (Method::POST, "/app-manifests/c/conversions"),
            "snapshots" => (Method::POST, "/repos/o/r/dependency-graph/snapshots"),
            "sboms" => (Method::GET, "/repos/o/r/dependency-graph/sbom"),
            "sarifs" => (Method::POST, "/repos/o/r/code-scanning/sarifs"),
            "autofixes" => (Method::POST, "/repos/o/r/code-scanning/alerts/1/autofix"),
            "runners" => (Method::POST, "/repos/o/r/actions/runners/registration-token"),
            "audits" => (Method::GET, "/orgs/o/audit-log"),
            _ => (Method::POST, "/graphql"),
        };
        let form = match kind {
            "queries" => r#"{"query":"query { viewer { login } }"}"#,
            "mutations" => r#"{"query":"mutation { addStar(input: {starrableId: \"x\"}) { clientMutationId } }"}"#,
            _ => "",
        };
        Self { form: form.to_owned(), ..Self::new("github", method, path, kind) }
    }

    pub(super) fn hetzner(token: u64) -> Self {
        Self { account: token, ..Self::new("cloud", Method::GET, "/v1/servers", "servers") }
    }

    pub(super) fn cloudflare(token: u64) -> Self {
        Self { account: token, ..Self::new("api", Method::GET, "/client/v4/zones", "zones") }
    }
}
