//! Requests read by a configuration: their class, connections and key.

use http::{HeaderMap, Uri};
use tidegate::api::{Group, Scope, Signal};
use tidegate::classify::{ClassifiedCall, Salt};
use tidegate::limit::policy::{BucketPolicy, Lane, Per, Strategy};
use tidegate::{config, spec};

fn load(text: &str) -> spec::Gate {
    let loaded = config::load_text("f.toml".to_owned(), text.to_owned(), &[]);
    let loaded =
        loaded.unwrap_or_else(|problems| panic!("{}", problems.iter().map(|p| format!("{p}\n")).collect::<String>()));
    loaded.settings.gates.into_values().next().expect("a gate")
}

fn kubernetes(more: &str) -> spec::Gate {
    load(&format!("[gates.g]\nupstream = \"in_cluster\"\n{more}"))
}

fn http(more: &str) -> spec::Gate {
    load(&format!("[gates.g]\nkind = \"http\"\nupstream = \"https://x\"\n{more}"))
}

fn classify(gate: &spec::Gate, line: &str) -> ClassifiedCall {
    let (method, target) = line.split_once(' ').expect("method and target");
    let target: Uri = target.parse().expect(line);
    gate.rules.classify(&method.parse().expect(line), &target, &HeaderMap::new(), &Salt::random())
}

fn class(gate: &spec::Gate, line: &str) -> String {
    gate.policy.classes[usize::from(classify(gate, line).class.0)].name.to_string()
}

fn rate(bucket: Option<BucketPolicy>) -> Option<(f64, u32, Per)> {
    bucket.map(|bucket| (bucket.rate, bucket.burst.get(), bucket.per))
}

const LEASE: &str = "PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/l";
const OBJECT: &str = "PUT /api/v1/namespaces/a/configmaps/c";

#[test]
fn user_classes_stand_between_leases_and_the_rest() {
    let greedy = "[[gates.g.classes]]\nname = \"all\"\nmatch = {}\nlane = \"low\"\n";
    let gate = kubernetes(greedy);
    let names: Vec<&str> = gate.policy.classes.iter().map(|class| &*class.name).collect();
    assert_eq!(names, ["leases", "health", "all", "discovery", "reviews", "events", "default"]);
    for (line, expected) in [(LEASE, "leases"), ("GET /livez", "health"), ("GET /apis", "all"), (OBJECT, "all")] {
        assert_eq!(class(&gate, line), expected, "{line}");
    }
    assert_eq!(classify(&gate, LEASE).group, Group::Exempt);
}

#[test]
fn naming_a_builtin_class_changes_its_settings_and_not_its_place() {
    let gate = kubernetes(
        "[[gates.g.classes]]\nname = \"leases\"\nlane = \"high\"\n\
         [[gates.g.classes]]\nname = \"discovery\"\nbucket = { rate = 7 }\n\
         [[gates.g.classes]]\nname = \"events\"\nmatch = { resources = [\"events\", \"noise\"] }\n",
    );
    let named = |name: &str| gate.policy.classes.iter().find(|class| &*class.name == name).unwrap();
    assert_eq!((class(&gate, LEASE).as_str(), named("leases").lane), ("leases", Lane::High));
    assert_eq!(classify(&gate, LEASE).group, Group::Short, "no longer exempt");
    assert_eq!(rate(named("discovery").bucket), Some((7.0, 300, Per::Gate)));
    assert!(named("discovery").own_bucket_only);
    assert_eq!(named("events").lane, Lane::Low);
    assert_eq!(class(&gate, "GET /apis/x.io/v1/noise"), "events");
}

#[test]
fn an_ambiguous_path_goes_to_the_lowest_lane_and_there_to_the_smallest_rate() {
    let path = "GET /livez/../api/v1/secrets";
    assert_eq!(class(&kubernetes(""), path), "events");
    let slow = "[[gates.g.classes]]\nname = \"slow\"\nmatch = { paths = [\"/slow\"] }\nlane = \"low\"\nbucket = { rate = 0.5, burst = 1 }\n";
    assert_eq!(class(&kubernetes(slow), path), "slow");
    let exempt = "[[gates.g.classes]]\nname = \"free\"\nmatch = {}\nlane = \"exempt\"\n";
    assert_eq!(class(&kubernetes(exempt), path), "events");
    assert_eq!(class(&http(""), "GET /a/%2e%2e/b"), "default");
}

#[test]
fn classes_charge_those_they_are_within() {
    let example = config::load_text("e".into(), include_str!("../../config/example.toml").into(), &[]).unwrap();
    let gate = &example.settings.gates["kubernetes"];
    let id = |name: &str| gate.policy.classes.iter().position(|class| &*class.name == name).unwrap();
    let within = gate.policy.classes[id("ec2")].within.unwrap();
    assert_eq!(usize::from(within.0), id("aws"));
    assert_eq!(class(gate, "POST /apis/ec2.aws.upbound.io/v1/namespaces/prod-a/instances"), "ec2");
    assert_eq!(class(gate, "GET /apis/ec2.aws.upbound.io/v1/namespaces/prod-a/instances"), "aws");
}

#[test]
fn presets_are_the_table_of_the_design() {
    let seconds = |base: f64, max: f64| Some((base, max));
    let backoff = |gate: &spec::Gate| match gate.policy.classes.last().unwrap().backoff.strategy {
        Strategy::Exponential { base, max, .. } => Some((base.as_secs_f64(), max.as_secs_f64())),
        Strategy::FastSlow { .. } | Strategy::Off => None,
    };
    let gate = Per::Gate;
    for (preset, bucket, retry, delays, slots) in [
        ("sidecar", Some((500.0, 1000, gate)), Some((0.5, 100, gate)), seconds(1.0, 60.0), None),
        ("client_go", Some((5.0, 10, gate)), None, None, None),
        ("controller_runtime", Some((20.0, 30, Per::Flow)), Some((10.0, 100, Per::Flow)), seconds(0.005, 1000.0), None),
        ("crossplane", Some((50.0, 100, gate)), None, seconds(1.0, 60.0), Some((10, Per::Flow))),
        ("none", None, None, None, None),
    ] {
        let gate = kubernetes(&format!("preset = \"{preset}\"\n"));
        assert_eq!(rate(gate.policy.bucket), bucket, "{preset}");
        assert_eq!(rate(gate.policy.retry_bucket), retry, "{preset}");
        assert_eq!(backoff(&gate), delays, "{preset}");
        assert_eq!(gate.policy.in_flight.map(|slots| (slots.max.get(), slots.per)), slots, "{preset}");
        let discovery = gate.policy.classes.iter().find(|class| &*class.name == "discovery").unwrap();
        assert_eq!(discovery.bucket.is_some(), bucket.is_some(), "{preset}: no limits means none");
        let remembered = classify(&gate, OBJECT).key.known().is_some();
        assert_eq!(remembered, delays.is_some(), "{preset}");
    }
    let crossplane = http("preset = \"crossplane\"\nmax_reconcile_rate = 3\n");
    assert_eq!(rate(crossplane.policy.bucket), Some((3.0, 30, Per::Gate)));
    assert_eq!(crossplane.policy.in_flight.map(|slots| slots.max.get()), Some(3));
    let overridden =
        kubernetes("preset = \"client_go\"\nbucket = { rate = 6 }\nretry_bucket = { rate = 1, burst = 2 }\n");
    assert_eq!(rate(overridden.policy.bucket), Some((6.0, 10, Per::Gate)), "one by one");
    assert_eq!(rate(overridden.policy.retry_bucket), Some((1.0, 2, Per::Gate)));
}

#[test]
fn github_meters_what_changes_things() {
    let gate = http("preset = \"github\"\n");
    assert_eq!(rate(gate.policy.bucket), Some((1.25, 20, Per::Gate)));
    let signals = gate.answers.throttling;
    assert_eq!(signals.honour, [Signal::RetryAfter, Signal::Github].into_iter().collect());
    assert_eq!((signals.scope, signals.reserve, signals.max_pause.as_secs()), (Scope::Credential, 0.1, 65 * 60));
    for (line, expected) in [
        ("GET /repos/a/b", "default"),
        ("POST /repos/a/b/issues", "creates"),
        ("PATCH /repos/a/b/issues/1", "writes"),
        ("DELETE /repos/a/b", "writes"),
        ("POST /graphql", "graphql"),
        ("GET /search/issues?q=x", "searches"),
        ("GET /api/v3/search/code?q=x", "searches"),
    ] {
        assert_eq!(class(&gate, line), expected, "{line}");
    }
    let creates = gate.policy.classes.iter().find(|class| &*class.name == "creates").unwrap();
    let (per_second, burst, per) = rate(creates.bucket).expect("a bucket");
    assert_eq!((per_second, burst, per), (0.133, 20, Per::Gate));
    // The calls that it lets through in any hour, by P1; and no rate with three digits more does
    // that.
    let in_an_hour = |rate: f64| f64::from(burst) + rate * 3600.0;
    assert!(in_an_hour(per_second) < 500.0 && in_an_hour(per_second + 0.001) > 500.0, "GitHub's 500 an hour");
    for (document, says) in [
        (include_str!("../../config/github.toml"), "class creates 0.133/s burst 20"),
        (include_str!("../../docs/external-apis.md"), "20 + 0.133 × 3,600 = 498.8"),
    ] {
        assert!(document.contains(says) && !document.contains("0.138"), "{says}");
    }
    let writes = &gate.policy.classes[usize::from(creates.within.unwrap().0)];
    assert_eq!((&*writes.name, rate(writes.bucket)), ("writes", Some((1.0, 1, Per::Gate))));
}

#[test]
fn classes_change_only_what_they_say_of_the_backoff() {
    let gate = kubernetes(
        "backoff = { max = \"2m\", failures = [\"503\"] }\n[[gates.g.classes]]\nname = \"a\"\nmatch = {}\nbackoff = { base = \"5s\" }\n\
         [[gates.g.classes]]\nname = \"b\"\nmatch = {}\nbackoff = \"off\"\n",
    );
    let backoff = |class: usize| gate.policy.classes[class].backoff;
    let (a, b) = (backoff(2), backoff(3));
    assert_eq!(format!("{:?}", a.strategy), "Exponential { base: 5s, max: 120s, jitter: 0.0 }");
    assert_eq!((a.forget_after.as_secs(), a.hold.as_millis()), (600, 100));
    assert_eq!(b.strategy, Strategy::Off);
    assert_eq!(gate.answers.failures[2].statuses, [503]);
    assert!(!gate.answers.failures[2].transport && !gate.answers.failures[2].left);
}

#[test]
fn whether_leaving_counts_is_said_in_failures_and_by_default_on_kubernetes_gates_only() {
    let class = "[[gates.g.classes]]\nname = \"a\"\nmatch = {}\nbackoff = { failures = [\"503\", \"left\"] }\n";
    let left = |gate: &spec::Gate| gate.answers.failures.iter().map(|failures| failures.left).collect::<Vec<_>>();
    assert!(left(&kubernetes("")).iter().all(|left| *left));
    assert!(!left(&http("")).iter().any(|left| *left));
    assert!(!left(&kubernetes("backoff = { failures = [\"503\", \"transport\"] }")).iter().any(|left| *left));
    let gate = http(class);
    assert_eq!((&*gate.policy.classes[0].name, left(&gate)), ("a", vec![true, false]));
}

#[test]
fn a_key_of_ones_own_is_made_of_its_parts_and_a_class_has_its_own() {
    let gate = http(
        "key = [\"verb\", \"path\", \"query:Action\"]\n[[gates.g.classes]]\nname = \"auto\"\nmatch = { paths = [\"/auto/*\"] }\nkey = \"auto\"\n\
         [[gates.g.classes]]\nname = \"body\"\nmatch = { paths = [\"/body/*\"] }\nkey = [\"body\"]\n",
    );
    let hasher = Salt::random();
    let source = |line: &str| {
        let (method, target) = line.split_once(' ').unwrap();
        gate.rules.classify(&method.parse().unwrap(), &target.parse().unwrap(), &HeaderMap::new(), &hasher)
    };
    let key = |line: &str| source(line).key;
    assert_eq!(key("POST /?Action=Run&x=1"), key("PUT /?x=2&Action=Run"), "verb classes, and no other parameter");
    assert_ne!(key("POST /?Action=Run"), key("POST /?Action=Stop"));
    assert_ne!(key("POST /?Action=Run"), key("GET /?Action=Run"));
    assert_ne!(key("POST /?Action=Run"), key("DELETE /?Action=Run"));
    assert_eq!(source("DELETE /?Action=Run").key_name(None), "delete / Action=Run");
    assert!(key("POST /?Action=Run").known().is_some(), "no body is needed");
    assert_eq!(source("POST /?Action=Run").key_name(None), "write / Action=Run");
    assert!(key("POST /auto/a").needs_body(), "auto: an operation is known by its body");
    let body = key("PUT /body/a");
    assert_eq!(body, key("POST /body/b"));
    assert_ne!(body.with_body(b"1", true, &hasher), body.with_body(b"2", true, &hasher));
    assert_eq!(body.with_body(b"1", false, &hasher), None, "past the peek");
    assert!(!source("PUT /body/a").key_is_of_object && source("POST /?Action=Run").key_is_of_object);
}

#[test]
fn a_key_of_ones_own_on_a_kubernetes_gate_keeps_lists_short_and_leases_out() {
    let gate = kubernetes("key = [\"verb\", \"path\"]");
    for (line, is_known, is_collection) in [
        ("GET /api/v1/namespaces/a/pods/p", true, false),
        ("POST /api/v1/namespaces/a/pods", true, false),
        ("GET /api/v1/namespaces/a/pods", true, true),
        ("GET /apis/apps/v1", true, true),
        ("PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/l", false, false),
        ("POST /api/v1/namespaces/a/pods/p/exec", false, false),
    ] {
        let key = classify(&gate, line).key.known();
        assert_eq!(key.is_some(), is_known, "{line}");
        assert_eq!(key.is_some_and(|key| key.is_collection_read()), is_collection, "{line}");
    }
}

#[test]
fn whatever_is_split_by_credential_tells_credentials_apart_and_nothing_else_looks_at_them() {
    let class = |more: &str| format!("[[gates.g.classes]]\nname = \"own\"\nmatch = {{ names = [\"x\"] }}\n{more}\n");
    for (more, looks) in [
        (String::new(), false),
        ("bucket.per = \"flow\"".to_owned(), false),
        ("bucket.per = \"credential\"".to_owned(), true),
        ("retry_bucket.per = \"credential\"".to_owned(), true),
        ("in_flight = { max = 1, per = \"credential\" }".to_owned(), true),
        ("signals.scope = \"credential\"".to_owned(), true),
        ("queue.fair_by = \"credential\"".to_owned(), true),
        (class("bucket = { rate = 1, burst = 1, per = \"credential\" }"), true),
        (class("in_flight = { max = 1, per = \"credential\" }"), true),
        (class("in_flight = { max = 1, per = \"flow\" }"), false),
    ] {
        let gate = kubernetes(&more);
        let hasher = Salt::random();
        let credential = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            let target = Uri::from_static("/api/v1/nodes/n");
            gate.rules.classify(&http::Method::GET, &target, &headers, &hasher).credential
        };
        let [one, other, key] =
            [("authorization", "1"), ("authorization", "2"), ("x-api-key", "1")].map(|(n, v)| credential(n, v));
        assert_eq!(one != 0 && other != 0 && one != other && key != 0, looks, "{more}");
        assert_eq!(credential("x-other", "1"), 0, "{more}");
    }
}

#[test]
fn every_number_of_a_preset_is_overridden_by_itself() {
    fn flat(text: &str) -> Vec<(String, String)> {
        fn walk(path: &str, value: &toml::Value, out: &mut Vec<(String, String)>) {
            match value {
                toml::Value::Table(table) => {
                    table.iter().for_each(|(key, value)| walk(&format!("{path}.{key}"), value, out))
                }
                value => out.push((path.to_owned(), value.to_string())),
            }
        }
        let mut value: toml::Value = toml::from_str(text).unwrap();
        // A class begins with the settings of its gate.
        value["gates"]["g"].as_table_mut().unwrap().remove("classes");
        let mut out = Vec::new();
        walk("", &value, &mut out);
        out
    }
    let overrides = [
        ("bucket.rate", "7.5"),
        ("bucket.burst", "77"),
        ("bucket.per", "\"credential\""),
        ("bucket.start", "\"empty\""),
        ("retry_bucket.rate", "7.5"),
        ("retry_bucket.burst", "77"),
        ("backoff.base", "\"3s\""),
        ("backoff.jitter", "0.5"),
        ("backoff.hold", "\"7ms\""),
        ("in_flight.max", "7"),
        ("in_flight.per", "\"credential\""),
        ("signals.max_pause", "\"7s\""),
        ("queue.max_wait", "\"7s\""),
    ];
    let mut overridden = 0;
    for (preset, kind) in [
        ("sidecar", "kubernetes"),
        ("client_go", "kubernetes"),
        ("controller_runtime", "kubernetes"),
        ("crossplane", "kubernetes"),
        ("github", "http"),
        ("none", "kubernetes"),
    ] {
        let base = format!("[gates.g]\nkind = \"{kind}\"\nupstream = \"https://x\"\npreset = \"{preset}\"\n");
        let load = |text: &str| {
            config::load_text("f.toml".to_owned(), text.to_owned(), &[]).map(|loaded| flat(&loaded.effective))
        };
        let plain = load(&base).unwrap_or_else(|problems| panic!("{}", problems[0]));
        for (key, value) in overrides {
            // A value that a preset switches off has no number to override.
            let path = format!(".gates.g.{key}");
            let Some(at) = plain.iter().position(|(found, _)| *found == path) else { continue };
            let changed =
                load(&format!("{base}{key} = {value}\n")).unwrap_or_else(|problems| panic!("{}", problems[0]));
            let differ: Vec<usize> = (0..plain.len()).filter(|place| plain[*place] != changed[*place]).collect();
            // The time after which a failure is forgotten follows from the longest delay, and the most
            // of a preset's burst and floor from the rate.
            let follows = |place: &usize| {
                let path = &plain[*place].0;
                let of_rate = key == "bucket.rate"
                    && (path.ends_with("g.bucket.burst") || path.ends_with("g.bucket.adapt.floor"));
                path.ends_with("forget_after") || of_rate
            };
            let differ: Vec<usize> = differ.into_iter().filter(|place| !follows(place)).collect();
            assert_eq!(differ, [at], "{preset}: {key} = {value}");
            assert_eq!(changed.len(), plain.len());
            overridden += 1;
        }
    }
    assert!(overridden > 50, "{overridden}");
}

#[test]
fn each_signal_has_a_row_in_the_manual() {
    let manual = include_str!("../../docs/external-apis.md");
    let rows =
        manual.split("`signals.honour` lists").nth(1).expect("its section").split("\n\n").nth(1).expect("a table");
    for signal in Signal::ALL {
        let has = |row: &str| row.trim_start_matches(['|', ' ', '[']).starts_with(&format!("`{signal}`"));
        assert!(rows.lines().any(has), "{signal}");
    }
    assert_eq!(rows.lines().count(), 2 + Signal::ALL.len());
}
