//! Every limit that is set and that no call can meet is named, and no other.

use http::{HeaderMap, Method, Uri};

use super::*;
use crate::classify::Salt;
use crate::limit::policy::{ClassPolicy, Lane, Strategy as Backoff};
use crate::spec::Gate;

/// The warnings of a configuration.
fn warnings(text: &str) -> Vec<String> {
    good(text).warnings
}

#[track_caller]
fn warned(text: &str, parts: &[&str]) {
    let warnings = warnings(text);
    let is_said = |warning: &String| parts.iter().all(|part| warning.contains(part));
    assert!(warnings.iter().any(is_said), "{parts:?} of\n{text}\n{warnings:#?}");
}

const HTTP: &str = "[gates.k]\nkind = \"http\"\nupstream = \"https://x\"\nrewrite_links = true\n";
const CLUSTER: &str = "[gates.k]\nupstream = \"in_cluster\"\n";

#[test]
fn a_bucket_that_a_preset_s_classes_pass_by_is_named() {
    let text =
        "[gates.k]\nupstream = \"https://ec2.eu-central-1.amazonaws.com\"\npreset = \"aws\"\nbucket = { rate = 2 }\n";
    warned(
        text,
        &["f.toml:4:1: gates.k.bucket: does not limit every call", "credentials, ", " more", "own_bucket_only = false"],
    );
    let said = |text: &str| warnings(text).iter().any(|warning| warning.contains("does not limit every call"));
    assert!(!said(&text.replace("bucket = { rate = 2 }\n", "")), "nothing was asked for");
    assert!(!said(&format!("{CLUSTER}bucket = {{ rate = 2 }}\n")), "discovery is known to have its own");
}

#[test]
fn a_bucket_that_is_shared_with_nobody_is_named() {
    let one = format!("{HTTP}shared = \"x\"\n");
    warned(&one, &["f.toml:5:1: gates.k.shared: is shared with no other gate", "[stores.NAME]"]);
    warned(&format!("{HTTP}bucket.shared = \"x\"\n"), &["gates.k.bucket.shared: is shared with no other gate"]);
    let other = one.replace("gates.k", "gates.other") + "listen = \"127.0.0.1:8002\"\n";
    assert_eq!(warnings(&format!("{one}{other}")), [""; 0], "two gates share");
    let store = "[stores.main]\nurl = \"redis://127.0.0.1\"\n";
    assert_eq!(warnings(&format!("{one}{store}")), [""; 0], "others may share");
}

#[test]
fn keys_without_an_effect_in_the_whole_are_named() {
    let none = "preset = \"none\"\n";
    let exempt = "classes = [{ name = \"default\", lane = \"exempt\" }]\n";
    for (text, parts) in [
        (format!("{HTTP}bucket = {{ rate = 1 }}\n{exempt}"), &["5:1: gates.k.bucket: has no effect"][..]),
        (format!("{HTTP}in_flight = {{ max = 1 }}\n{exempt}"), &["gates.k.in_flight: has no effect"]),
        (format!("{HTTP}one_at_a_time = true\n{exempt}"), &["gates.k.one_at_a_time: has no effect"]),
        (
            format!("{HTTP}{none}retry_bucket = {{ rate = 1, burst = 1 }}\n"),
            &["gates.k.retry_bucket: has no effect", "backoff"],
        ),
        (format!("{HTTP}{none}backoff = {{ hold = \"1s\" }}\n"), &["gates.k.backoff: has no effect", "strategy"]),
        (
            format!(
                "{CLUSTER}per_key = {{ writes = 2 }}\nclasses = [{{ name = \"all\", match = {{}}, per_key = \"off\" }}]\n"
            ),
            &["gates.k.per_key: has no effect"],
        ),
        (format!("{HTTP}{none}queue.combine = \"max_of\"\n"), &["gates.k.queue.combine: has no effect"]),
        (
            format!("{HTTP}queue = {{ max_wait = \"0s\", fair_by = \"user_agent\" }}\n"),
            &["gates.k.queue.fair_by: has no effect"],
        ),
        (
            format!("{HTTP}revalidation = {{ max_bytes = \"1MiB\" }}\n"),
            &["gates.k.revalidation: has no effect", "revalidate = true"],
        ),
        (format!("{HTTP}impersonation = \"allow\"\n"), &["gates.k.impersonation: has no effect", "inject"]),
        (
            format!("{HTTP}signals = {{ honour = [], scope = \"gate\" }}\n"),
            &["gates.k.signals.scope: has no effect", "honour"],
        ),
        (
            format!(
                "{HTTP}classes = [{{ name = \"a\", match = {{}} }}, {{ name = \"b\", match = {{ methods = [\"GET\"] }} }}]\n"
            ),
            &["classes[1].match: is never used", "\"a\""],
        ),
        (
            format!(
                "{HTTP}classes = [{{ name = \"a\", bucket = {{ rate = 1, burst = 1 }}, in_flight = {{ max = 1 }} }}, {{ name = \"b\", within = \"a\", match = {{ methods = [\"GET\"] }} }}]\n"
            ),
            &["classes[0].in_flight: has no effect"],
        ),
        (
            format!("{HTTP}{none}classes = [{{ name = \"a\", match = {{ methods = [\"GET\"] }}, cost = 5 }}]\n"),
            &["classes[0].cost: has no effect"],
        ),
        (
            format!(
                "{HTTP}{none}classes = [{{ name = \"a\", match = {{ methods = [\"GET\"] }}, meter_long_running = true }}]\n"
            ),
            &["meter_long_running: has no effect"],
        ),
        (
            format!(
                "{HTTP}{none}classes = [{{ name = \"a\", match = {{ methods = [\"GET\"] }}, key = [\"path\"] }}]\n"
            ),
            &["classes[0].key: has no effect"],
        ),
        (
            format!(
                "{HTTP}classes = [{{ name = \"a\", match = {{ methods = [\"GET\"] }}, lane = \"exempt\", backoff = {{ base = \"2s\" }} }}]\n"
            ),
            &["classes[0].backoff: has no effect"],
        ),
        (
            format!(
                "{HTTP}classes = [{{ name = \"a\", match = {{ methods = [\"GET\"] }}, shadow = true, revalidate = true }}]\n"
            ),
            &["classes[0].revalidate: has no effect", "shadow"],
        ),
        (
            format!(
                "{HTTP}classes = [{{ name = \"a\", match = {{}} }}, {{ name = \"b\", match = {{ methods = [\"GET\"] }}, shadow = true }}]\n"
            ),
            &["classes[1].shadow: has no effect", "no call is of this class"],
        ),
        (
            "[egress]\nca = { keep = \"/k\" }\n[gates.k]\nhosts = [\"api.example.com\"]\n".to_owned(),
            &["egress.ca: has no effect"],
        ),
        (
            "[egress]\n[gates.k]\nhosts = [\"api.example.com\"]\nplain = \"refuse\"\n".to_owned(),
            &["gates.k.plain: ", "intercept = true"],
        ),
    ] {
        warned(&text, parts);
    }
}

#[test]
fn a_gate_in_shadow_has_all_of_its_classes_in_shadow() {
    let shadows = |text: &str| {
        let gate = good(text).settings.gates.remove("k").expect("one");
        gate.policy.classes.into_iter().filter(|class| class.shadow).map(|class| class.name.to_string()).collect()
    };
    let one: Vec<String> = shadows(&format!("{CLUSTER}classes = [{{ name = \"events\", shadow = true }}]\n"));
    assert_eq!(one, ["events"], "a built-in class can be");
    let aws: Vec<String> =
        shadows(&format!("{HTTP}preset = \"aws\"\nclasses = [{{ name = \"ec2_reads\", shadow = true }}]\n"));
    assert_eq!(aws, ["ec2_reads"], "a class of a preset can be");
    let both = format!("{CLUSTER}shadow = true\nclasses = [{{ name = \"events\", shadow = true }}]\n");
    let all: Vec<String> = shadows(&both);
    assert_eq!(all, ["leases", "health", "discovery", "reviews", "events", "default"]);
    assert_eq!(warnings(&both), [""; 0], "so that the gate's can be taken out first");
}

/// A class of the property: what it is called, matches, and sets.
fn any_class(name: &'static str) -> impl Strategy<Value = String> {
    let part = |all: &'static [&'static str]| prop::sample::select(all);
    let matches = part(&["match = {}", "match = { methods = [\"GET\"] }", "match = { methods = [\"GET\", \"POST\"] }"]);
    let lane = part(&["", ", lane = \"exempt\"", ", lane = \"low\""]);
    let limits = part(&[
        "",
        ", bucket = { rate = 1, burst = 2 }",
        ", bucket = { rate = 1, burst = 2 }, own_bucket_only = true",
        ", in_flight = { max = 1 }",
        ", backoff = \"off\"",
    ]);
    (matches, lane, limits)
        .prop_map(move |(matches, lane, limits)| format!("{{ name = {name:?}, {matches}{lane}{limits} }}"))
}

/// The class `default`, which takes all the rest.
fn any_default() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "",
        "{ name = \"default\", lane = \"exempt\" }",
        "{ name = \"default\", bucket = { rate = 3, burst = 3 }, own_bucket_only = true }",
        "{ name = \"default\", backoff = \"off\" }",
    ])
    .prop_map(str::to_owned)
}

/// The classes that calls of every kind are put into, and those of the preset.
fn met(gate: &Gate) -> Vec<&ClassPolicy> {
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        .map(|method| method.parse::<Method>().expect("a method"));
    let paths = [
        "/x",
        "/api/v1/namespaces/n/pods/p",
        "/apis",
        "/api/v1/events",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    ];
    let uris = paths.map(|path| path.parse::<Uri>().expect("a path"));
    let calls = methods.iter().flat_map(|method| uris.iter().map(move |uri| (method, uri)));
    let salt = Salt::random();
    let seen: Vec<usize> = calls
        .map(|(method, uri)| usize::from(gate.rules.classify(method, uri, &HeaderMap::new(), &salt).class.0))
        .collect();
    let is_own = |name: &str| ["a", "b", "c", "default"].contains(&name);
    let classes = gate.policy.classes.iter().enumerate();
    // A catch-all leaves nothing to the classes of a preset.
    let all_seen = |class: &ClassPolicy| !is_own(&class.name) && gate.figures.is_some() && !takes_all(gate);
    classes.filter(|(place, class)| seen.contains(place) || all_seen(class)).map(|(_, class)| class).collect()
}

/// True if a class of the file is before those of the preset, and takes every call.
fn takes_all(gate: &Gate) -> bool {
    let put = |uri: &str| {
        gate.rules.classify(&Method::PUT, &uri.parse().expect("a path"), &HeaderMap::new(), &Salt::random()).class
    };
    let class = &gate.policy.classes[usize::from(put("/x").0)];
    ["a", "b", "c"].contains(&&*class.name)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_limit_that_no_call_can_meet_is_named(
        preset in prop::sample::select(vec!["sidecar", "client_go", "controller_runtime", "crossplane", "aws", "azure_arm", "gcp", "github", "none"]),
        http in any::<bool>(),
        limits in prop::sample::subsequence(vec![
            ("bucket", "bucket = { rate = 2, burst = 4 }"),
            ("retry_bucket", "retry_bucket = { rate = 0.5, burst = 5 }"),
            ("backoff", "backoff = { hold = \"1s\" }"),
            ("in_flight", "in_flight = { max = 3 }"),
            ("one_at_a_time", "one_at_a_time = true"),
        ], 0..=5),
        classes in (any_class("a"), any_class("b"), any_default()),
    ) {
        let kind = if http || ["aws", "azure_arm", "gcp", "github"].contains(&preset) { "http" } else { "kubernetes" };
        let lines: Vec<&str> = limits.iter().map(|(_, line)| *line).collect();
        let classes = [classes.0, classes.1, classes.2];
        let tables: Vec<&str> = classes.iter().map(String::as_str).filter(|class| !class.is_empty()).collect();
        let text = format!(
            "[gates.k]\nkind = {kind:?}\nupstream = \"https://x\"\npreset = {preset:?}\n{}\nclasses = [{}]\n", lines.join("\n"), tables.join(", ")
        );
        let Ok(Configuration { settings, warnings, .. }) = load_plain(&text) else { return Ok(()) };
        let gate = &settings.gates["k"];
        let of_calls = met(gate);
        let waiting: Vec<_> = of_calls.iter().filter(|class| class.lane != Lane::Exempt).collect();
        let has_said = |path: &str| warnings.iter().any(|warning| warning.contains(&format!(" gates.k.{path}: has no effect")));
        for (key, _) in &limits {
            let is_met = match *key {
                "bucket" => waiting.iter().any(|class| !class.own_bucket_only),
                "retry_bucket" | "backoff" => waiting.iter().any(|class| class.backoff.strategy != Backoff::Off),
                _ => !waiting.is_empty(),
            };
            prop_assert_eq!(has_said(key), !is_met, "{}\n{}\n{:#?}", key, text, warnings);
        }
        for (index, table) in tables.iter().enumerate() {
            let is_called = of_calls.iter().any(|class| table.contains(&format!("name = {:?}", class.name)));
            let is_named = warnings.iter().any(|warning| warning.contains(&format!(" gates.k.classes[{index}].")));
            if table.contains("max = 1") || table.contains("rate = 1") {
                prop_assert!(is_called || is_named, "{}\n{}\n{:#?}", table, text, warnings);
            }
            let says_none = warnings.iter().any(|warning| warning.contains(&format!(" gates.k.classes[{index}].match: no call")));
            prop_assert!(!(says_none && is_called), "{}\n{}\n{:#?}", table, text, warnings);
        }
    }
}
