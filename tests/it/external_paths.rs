//! Paths as clients of external APIs write them: slashes inside a segment, dots, spaces, plus
//! signs; and paths as an attacker would write them.

use http::{HeaderMap, Uri};
use tidegate::classify::{ClassifiedCall, Salt};
use tidegate::{config, spec};

struct Gate(spec::Gate);

impl Gate {
    fn with(more: &str) -> Self {
        let text = format!("[gates.g]\nkind = \"http\"\nupstream = \"https://x\"\n{more}");
        let loaded = config::load_text("f.toml".to_owned(), text, &[]);
        let loaded = loaded.unwrap_or_else(|problems| panic!("{}", problems[0]));
        Self(loaded.settings.gates.into_values().next().expect("a gate"))
    }

    fn classify(&self, line: &str, hasher: &Salt) -> ClassifiedCall {
        let (method, target) = line.split_once(' ').expect("method and target");
        let target: Uri = target.parse().expect(line);
        self.0.rules.classify(&method.parse().expect(line), &target, &HeaderMap::new(), hasher)
    }

    fn class(&self, line: &str) -> String {
        let class = self.classify(line, &Salt::random()).class;
        self.0.policy.classes[usize::from(class.0)].name.to_string()
    }

    /// True if two calls share the memory of failures.
    fn same_key(&self, one: &str, other: &str) -> bool {
        let hasher = Salt::random();
        self.classify(one, &hasher).key == self.classify(other, &hasher).key
    }
}

fn class(name: &str, matching: &str, more: &str) -> String {
    format!("[[gates.g.classes]]\nname = \"{name}\"\nmatch = {{ {matching} }}\n{more}\n")
}

#[test]
fn what_octokit_and_go_github_send_is_of_the_class_that_it_would_be_without_the_escapes() {
    let gate = Gate::with("preset = \"github\"\n");
    for (line, expected) in [
        // Octokit escapes every parameter as a whole.
        ("GET /repos/o/r/branches/feature%2Fx", "default"),
        ("GET /repos/o/r/git/ref/heads%2Ffeature%2Fx", "default"),
        ("GET /repos/o/r/contents/.github%2Fworkflows%2Fci.yml?ref=main", "default"),
        ("GET /repos/o/r/compare/main...feature%2Fx", "default"),
        ("GET /repos/o/r/commits/feature%2Fx/check-runs", "default"),
        ("PUT /repos/o/r/contents/docs%2Fread%20me.txt", "writes"),
        ("PUT /repos/o/r/branches/release%2F1.0/protection", "writes"),
        ("PATCH /repos/o/r/git/refs/heads%2Ffeature%2Fx", "writes"),
        ("DELETE /repos/o/r/git/refs/heads%2Ffeature%2Fx", "writes"),
        ("DELETE /repos/o/r/issues/1/labels/kind%2Fbug", "writes"),
        ("POST /repos/o/r/environments/prod%2Feu/deployment-branch-policies", "creates"),
        // go-github escapes branches as a whole, and references and file paths segment by segment.
        ("GET /repos/o/r/branches/feature%2Fx/protection", "default"),
        ("GET /repos/o/r/git/ref/heads/feature/x%23y", "default"),
        ("GET /repos/o/r/contents/docs/read%20me.txt", "default"),
        ("GET /repos/o/r/contents/caf%C3%A9/%E2%9C%93.txt", "default"),
        ("GET /repos/o/r/branches/a%2fb", "default"), // as some libraries write it
        ("GET /api/v3/search/code?q=path%3Aa%2Fb", "searches"),
        // Either reader might take this for a search.
        ("GET /search%2Fcode", "default"),
    ] {
        assert_eq!(gate.class(line), expected, "{line}");
    }
}

#[test]
fn gitlabs_projects_match_by_their_documented_spelling() {
    let gate = Gate::with(
        &[
            class(
                "own",
                "paths = [\"/api/v4/projects/group%2Fproject/*\"]",
                "bucket = { rate = 100, burst = 100 }\nown_bucket_only = true",
            ),
            class("lower", "paths = [\"/api/v4/projects/group%2flower\"]", "lane = \"high\""),
            class("files", "paths = [\"/api/v4/projects/*/repository/files/*\"]", "bucket = { rate = 5, burst = 5 }"),
        ]
        .concat(),
    );
    for (line, expected) in [
        ("GET /api/v4/projects/group%2Fproject/issues", "own"),
        ("GET /api/v4/projects/group%2fproject/issues", "own"),
        // gitlab.com/gitlab-org/api/client-go escapes dots too, python-gitlab and gitbeaker do not.
        ("PUT /api/v4/projects/group%2Fproject/repository/files/lib%2Fa%2Erb", "own"),
        ("GET /api/v4/projects/group%2Flower", "lower"),
        ("GET /api/v4/projects/other%2Fmy%2Eproject/repository/files/%2Egitlab-ci%2Eyml/raw", "files"),
        ("POST /api/v4/projects/17/repository/files/app%2Fmodels%2Fkey.rb", "files"),
        ("GET /api/v4/projects/a%2Fb%2Fc/merge_requests/1", "default"),
        ("GET /api/v4/groups/a%2Fb/-/epics", "default"),
        ("GET /api/v4/projects/group/project/issues", "default"), // no project has such a name
    ] {
        assert_eq!(gate.class(line), expected, "{line}");
    }
}

#[test]
fn s3_keys_are_what_they_say() {
    let gate = Gate::with(
        &[
            class(
                "photos",
                "methods = [\"PUT\"], paths = [\"/bucket/photos 2026/*\"]",
                "bucket = { rate = 5, burst = 5 }",
            ),
            class("plus", "paths = [\"/bucket/a+b\"]", "bucket = { rate = 6, burst = 5 }"),
            class("accents", "paths = [\"/bucket/café*\"]", "bucket = { rate = 7, burst = 5 }"),
            class("sheet", "methods = [\"DELETE\"]", "bucket = { rate = 1, burst = 1 }"),
        ]
        .concat(),
    );
    for (line, expected) in [
        ("PUT /bucket/photos%202026/a%2Bb.jpg", "photos"),
        ("GET /bucket/photos%202026/a%2Bb.jpg", "default"),
        ("GET /bucket/a%2Bb", "plus"),
        ("GET /bucket/a+b", "plus"), // a plus, not a space: only queries have those
        ("GET /bucket/a%20b", "default"),
        ("GET /bucket/caf%C3%A9/1", "accents"),
        ("GET /bucket/100%25", "default"),
        ("GET /bucket/a%2Fb", "default"),
        ("GET /bucket/%21%27%28%29%2A~%3A%40%26%3D%24%2C%3F%23", "default"),
        // Keys that others might read as another path: the strictest class that a PUT or a GET can
        // have.
        ("PUT /bucket/photos%202026//a.jpg", "photos"),
        ("PUT /bucket/other//a.jpg", "photos"),
        ("GET /bucket/other//a.jpg", "plus"),
        ("GET /bucket/a%2520b", "plus"),
        ("GET /bucket/../a", "plus"),
        ("GET /bucket/%2e%2e/a", "plus"),
        ("GET /bucket/a%00", "plus"),
        ("GET /bucket/a%3Bb", "plus"),
        ("GET /bucket/a%5Cb", "plus"),
        ("GET /bucket/%ff", "plus"),
    ] {
        assert_eq!(gate.class(line), expected, "{line}");
    }
}

#[test]
fn an_unclear_read_costs_no_token_of_what_only_writes_are_charged_to() {
    let gate = Gate::with("preset = \"github\"\n");
    for (line, expected) in [
        ("GET /repos/o/r//issues", "default"),
        ("GET /repos/o/r/../issues", "default"),
        ("GET /repos/o/r/contents/a%252Fb", "default"),
        ("HEAD /repos/o/r/contents/%2FREADME.txt", "default"),
        ("POST /repos/o/r//issues", "creates"),
        ("POST //graphql", "creates"),
        ("PATCH /repos/o/r/issues/%00", "writes"),
        ("DELETE /repos/o//r", "writes"),
        ("OPTIONS /repos//o", "default"),
    ] {
        assert_eq!(gate.class(line), expected, "{line}");
    }
}

#[test]
fn no_escape_talks_a_service_that_decodes_first_out_of_its_strict_class() {
    let gate = Gate::with(
        &[
            class("public", "paths = [\"/public/*\"]", "lane = \"exempt\""),
            class("runs", "methods = [\"POST\"], paths = [\"/jobs/*/run\"]", "bucket = { rate = 0.1, burst = 1 }"),
            class("issues", "paths = [\"/repos/*/issues\"]", "bucket = { rate = 1, burst = 1 }"),
        ]
        .concat(),
    );
    for (line, expected) in [
        ("GET /public/a", "public"),
        ("GET /public/a%2Fb", "public"),
        ("POST /jobs/1/run", "runs"),
        ("POST /jobs%2F1/run", "runs"),
        ("POST /jobs%2f1%2frun", "runs"),
        ("POST /jobs/1%2Frun", "runs"),
        ("POST /jobs/group%2Fone/run", "runs"),
        ("POST /job%73%2F1/run", "runs"),
        ("POST /jobs%252F1/run", "runs"),
        ("POST /public/..%2Fjobs/1/run", "runs"),
        ("POST /public%2F..%2Fjobs/1/run", "runs"),
        ("POST /public/%2e%2e/jobs/1/run", "runs"),
        ("POST /public/%252e%252e/jobs/1/run", "runs"),
        ("POST /public//jobs/1/run", "runs"),
        ("POST /public;/jobs/1/run", "runs"),
        ("GET /repos/o%2Fr/issues", "issues"),
        ("GET /repos%2Fo%2Fr%2Fissues", "issues"),
        ("GET /repos/o/r%2fissues", "issues"),
        // Exempt if one decodes first, and an ordinary call if one splits first.
        ("GET /public%2Fa", "default"),
        ("GET /repos/o/public%2F..%2Fissues", "issues"),
    ] {
        assert_eq!(gate.class(line), expected, "{line}");
    }
}

#[test]
fn a_slash_inside_a_segment_makes_another_key() {
    let gate = Gate::with("");
    assert!(gate.same_key("PUT /branches/feature%2Fx", "PUT /branches/feature%2fx"));
    assert!(gate.same_key("PUT /branches/%66eature%2Fx", "PUT /branches/feature%2Fx"));
    for other in ["/branches/feature/x", "/branches/feature%252Fx", "/branches/feature%25%32Fx", "/branches//feature/x"]
    {
        assert!(!gate.same_key("PUT /branches/feature%2Fx", &format!("PUT {other}")), "{other}");
    }
    let named = gate.classify("PUT /branches/feature%2fx", &Salt::random());
    assert_eq!(named.key_name(None), "write /branches/feature%2Fx");
}

#[test]
fn a_capital_api_is_a_path_like_others_where_no_kubernetes_is() {
    let gate = Gate::with(&class("strict", "paths = [\"/strict\"]", "bucket = { rate = 1, burst = 1 }"));
    assert_eq!(gate.class("GET /Api/v2/items"), "default");
}
