//! Requests are read as kube-apiserver's `RequestInfo` and its long-running check read them; each
//! intended difference has a test.

use http::{Method, Uri};
use serde::Deserialize;
use serde_json::Value;
use tidegate::api::{Call, Verb, kubernetes, query_pairs};

#[test]
fn requests_are_read_as_the_api_server_reads_them() {
    let rows = rows();
    let (mut wrong, mut held) = (Vec::new(), 0);
    for (row, call, info) in read_by_both(&rows).filter(|(row, ..)| !row.differs_on_purpose()) {
        let ours = (call.verb.word(), call.is_resource, call.path(), parts(&call));
        let mut named = info.parts.each_ref().map(String::as_str);
        if row.has_malformed_label_selector() && named[NAME].is_empty() {
            named[NAME] = call.name(); // on purpose, below
        }
        let theirs = (info.word(&row.method), info.is_resource, info.path.as_str(), named);
        if ours != theirs {
            wrong.push(format!("{row}\n  ours   {ours:?}\n  theirs {theirs:?}"));
        }
        held += 1;
    }
    super::none(&wrong, rows.len());
    assert!(held > 10_000, "only {held} rows were held to the API server's");
}

#[test]
fn field_selectors_name_the_object_that_the_api_server_takes_from_them() {
    let selectors = file().selectors;
    assert!(selectors.len() >= 3000 && selectors.iter().filter(|(_, name)| !name.is_empty()).count() >= 500);
    let mut wrong = Vec::new();
    for (selector, name) in &selectors {
        let uri: Uri = format!("/api/v1/pods?fieldSelector={selector}").parse().expect("a target");
        let call = kubernetes::read(&Method::GET, &uri);
        if call.name() != name {
            wrong.push(format!("{selector}: ours {:?}, theirs {name:?}", call.name()));
        }
    }
    super::none(&wrong, selectors.len());
}

#[test]
fn calls_are_long_running_as_the_api_server_says() {
    let rows = rows();
    let (mut wrong, mut long) = (Vec::new(), 0);
    for (row, call, info) in read_by_both(&rows) {
        if is_log(&call) || info.is_profile() || info.has_verb_by_method(&row.method) || !is_served(row, &call) {
            continue; // on purpose, below
        }
        if call.is_long_running != info.long_running {
            wrong.push(format!("{row}: ours {}, theirs {}", call.is_long_running, info.long_running));
        }
        long += usize::from(info.long_running);
    }
    super::none(&wrong, rows.len());
    assert!(long > 800, "only {long} rows are long-running");
}

#[test]
fn a_method_or_prefix_that_nothing_serves_is_not_long_running() {
    let rows = rows();
    let mut long = 0;
    for (row, call, info) in read_by_both(&rows).filter(|(row, call, _)| !is_log(call) && !is_served(row, call)) {
        assert!(!call.is_long_running, "{row}");
        long += usize::from(info.long_running);
    }
    assert!(long > 10, "only {long} rows are long-running for the API server");
}

#[test]
fn a_log_is_long_running_only_when_it_follows() {
    let rows = rows();
    let mut seen = [0, 0];
    for (row, call, info) in read_by_both(&rows).filter(|(row, call, _)| is_log(call) && row.method == "GET") {
        let follow = row.query("follow").is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"));
        assert_eq!((call.is_long_running, info.long_running), (follow, true), "{row}");
        seen[usize::from(follow)] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn a_profile_is_a_call_like_any_other() {
    let rows = rows();
    let profiles: Vec<_> = read_by_both(&rows).filter(|(.., info)| info.is_profile()).collect();
    assert!(profiles.len() > 1);
    for (row, call, info) in profiles {
        assert_eq!((call.is_long_running, info.long_running), (false, true), "{row}");
    }
}

#[test]
fn an_invented_method_is_no_watch() {
    let rows = rows();
    let invented: Vec<_> = read_by_both(&rows).filter(|(row, _, info)| info.has_verb_by_method(&row.method)).collect();
    assert!(invented.len() > 1);
    for (row, call, info) in invented {
        assert_eq!((call.is_long_running, info.long_running), (false, true), "{row}");
        assert_eq!(call.verb.word(), "other", "{row}");
    }
}

#[test]
fn what_is_no_resource_has_the_verb_of_its_method() {
    let rows = rows();
    let mut seen = 0;
    for (row, call, info) in read_by_both(&rows).filter(|(.., info)| !info.is_resource || info.failed) {
        assert_eq!(info.verb, row.method.as_str().to_ascii_lowercase(), "{row}");
        assert_eq!(call.verb.word(), info.word(&row.method), "{row}");
        seen += 1;
    }
    assert!(seen > 100);
}

#[test]
fn a_malformed_label_selector_does_not_take_the_name_away() {
    let rows = rows();
    let differs: Vec<_> = read_by_both(&rows)
        .filter(|(row, call, info)| row.has_malformed_label_selector() && call.name() != info.parts[NAME])
        .collect();
    assert!(!differs.is_empty());
    for (row, call, info) in differs {
        assert!(info.parts[NAME].is_empty() && matches!(call.verb.word(), "list" | "watch"), "{row}");
        assert!(row.query("fieldSelector").is_some_and(|fields| fields.contains("metadata.name")), "{row}");
    }
}

#[test]
fn a_name_that_is_not_utf8_is_none() {
    let (ours, theirs) = listed("GET", "/api/v1/pods?fieldSelector=metadata.name=%ff");
    assert_eq!((ours.name(), theirs.parts[NAME].as_str()), ("", "\u{fffd}"));
}

#[test]
fn a_fragment_is_cut_off_before_anybody_reads_it() {
    // The upstream gets the target without the fragment, and reads it as we do.
    for (with, without) in
        [("/api/v1/pods#fragment", "/api/v1/pods"), ("/api/v1/pods?watch=1#fragment", "/api/v1/pods?watch=1")]
    {
        let (cut, _) = listed("GET", with);
        let uri: Uri = with.parse().expect("a target");
        assert_eq!(uri.to_string(), without);
        assert_eq!(cut, kubernetes::read(&Method::GET, &without.parse().expect("a target")));
    }
}

#[test]
fn an_absolute_target_without_a_path_is_the_root() {
    let (ours, theirs) = listed("GET", "http://other.example");
    assert_eq!((ours.path(), theirs.path.as_str()), ("/", ""));
    assert!(!ours.is_resource && !theirs.is_resource);
}

#[test]
fn what_go_answers_with_400_is_ambiguous_if_it_gets_here_at_all() {
    let rows = rows();
    let refused: Vec<_> = rows.iter().filter(|row| row.info.is_none()).collect();
    assert!(refused.len() > 10);
    for row in refused {
        assert!(row.call().is_none_or(|call| call.is_ambiguous), "{row}");
    }
}

#[test]
fn hyper_refuses_no_target_that_go_reads_but_with_characters_no_url_may_have() {
    let rows = rows();
    let refused: Vec<_> = rows.iter().filter(|row| row.info.is_some() && row.call().is_none()).collect();
    assert!(!refused.is_empty());
    for row in refused {
        assert!(row.target.contains(['<', '>', '`', '^', '|', '{', '}', '"', '\\']), "{row}");
    }
}

/// A request and the API server's reading of it.
struct Row {
    method: Method,
    target: String,
    /// `None` if Go's HTTP server answers 400 before any handler reads the URL.
    info: Option<Info>,
}

/// The part of `RequestInfo` that we read too.
struct Info {
    failed: bool,
    verb: String,
    is_resource: bool,
    path: String,
    /// Group, version, namespace, resource, name, subresource.
    parts: [String; 6],
    long_running: bool,
}

const NAME: usize = 4;

#[derive(Deserialize)]
struct File {
    columns: Vec<String>,
    listed: Vec<Vec<Value>>,
    random: Vec<Vec<Value>>,
    selectors: Vec<(String, String)>,
}

fn file() -> File {
    super::vectors("requestinfo")
}

fn rows() -> Vec<Row> {
    let file = file();
    assert!(file.listed.len() >= 60 && file.random.len() == 10_000);
    file.listed.iter().chain(&file.random).map(|row| Row::of(&file.columns, row)).collect()
}

/// The rows that both we and the API server accept as requests.
fn read_by_both(rows: &[Row]) -> impl Iterator<Item = (&Row, Call, &Info)> {
    rows.iter().filter_map(|row| Some((row, row.call()?, row.info.as_ref()?)))
}

/// Both readings of one request in the list.
fn listed(method: &str, target: &str) -> (Call, Info) {
    let row = rows().into_iter().find(|row| row.method == method && row.target == target).expect("it is listed");
    (row.call().expect("we read it"), row.info.expect("the API server reads it"))
}

fn parts(call: &Call) -> [&str; 6] {
    [call.group(), call.version(), call.namespace(), call.resource(), call.name(), call.subresource()]
}

/// True unless kube-apiserver answers 404 or 405 to what its long-running check takes for a watch, a
/// tunnel or the prefix `/proxy/`.
fn is_served(row: &Row, call: &Call) -> bool {
    match (call.verb, call.subresource()) {
        (Verb::Proxy, _) => false,
        (Verb::Watch, _) => row.method == "GET",
        (_, "attach" | "exec" | "portforward") => matches!(row.method, Method::GET | Method::POST),
        _ => true,
    }
}

/// True for a log request, unless it is long-running for another reason.
fn is_log(call: &Call) -> bool {
    call.is_resource && call.subresource() == "log" && !matches!(call.verb.word(), "watch" | "proxy")
}

// === impl Row ===

impl Row {
    fn of(columns: &[String], row: &[Value]) -> Self {
        let at = |name: &str| {
            let at = columns.iter().position(|column| column == name).unwrap_or_else(|| panic!("no column {name}"));
            row.get(at).unwrap_or(&Value::Null)
        };
        let text = |name: &str| at(name).as_str().unwrap_or_default().to_owned();
        let target = text("target");
        let info = (at("outcome") != 2).then(|| Info {
            failed: at("outcome") == 1,
            verb: text("verb"),
            is_resource: at("is_resource") == 1,
            path: at("path").as_str().or_else(|| target.split('?').next()).unwrap_or_default().to_owned(),
            parts: ["group", "version", "namespace", "resource", "name", "subresource"].map(text),
            long_running: at("long_running") == 1,
        });
        Self { method: text("method").parse().expect("a method"), target, info }
    }

    /// Our reading; `None` if hyper does not accept the target.
    fn call(&self) -> Option<Call> {
        let uri: Uri = self.target.parse().ok()?;
        Some(kubernetes::read(&self.method, &uri))
    }

    /// The first value of a parameter.
    fn query(&self, name: &str) -> Option<String> {
        let query = self.target.split_once('?').map(|(_, query)| query);
        query_pairs(query).find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
    }

    /// True for a few requests that no client sends; each kind has its test above.
    fn differs_on_purpose(&self) -> bool {
        self.target.contains('#') || self.target == "http://other.example" || self.target.ends_with("metadata.name=%ff")
    }

    fn has_malformed_label_selector(&self) -> bool {
        let labels = self.query("labelSelector");
        labels.is_some_and(|labels| ["a in (", "a in (b", "a=b=c", "=", "==", "-"].contains(&labels.as_str()))
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.target)
    }
}

// === impl Info ===

impl Info {
    /// The verb in our words. A path that is not a resource (or an error) has its method as verb
    /// there, and the nearest verb here.
    fn word(&self, method: &Method) -> &str {
        match (self.is_resource && !self.failed, method.as_str()) {
            (true, _) if self.verb.is_empty() => "other",
            (true, _) => &self.verb,
            (false, "GET" | "HEAD") => "get",
            (false, "POST") => "create",
            (false, "PUT") => "update",
            (false, "PATCH") => "patch",
            (false, "DELETE") => "delete",
            (false, _) => "other",
        }
    }

    fn is_profile(&self) -> bool {
        !self.is_resource && self.path.starts_with("/debug/pprof/")
    }

    /// True for `WATCH /healthz`: the verb of a path that is not a resource (or of an error) is its
    /// method.
    fn has_verb_by_method(&self, method: &Method) -> bool {
        (!self.is_resource || self.failed) && matches!(method.as_str(), "WATCH" | "PROXY")
    }
}
