//! `tidegate inject` over manifests in the styles that people and their tools write.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use proptest::prelude::*;
use serde_json::Value;
use tidegate::dialect::service_names;
use tidegate::inject::{Client, Edit, EgressOptions, Mode, Options, inject, uninject};
use tidegate::spec::{HostPattern, HostSet};

fn options(mode: Mode) -> Options {
    Options {
        image: "registry.example:5000/tidegate:0.1.0".to_owned(),
        mode,
        config_map: Some("limits".to_owned()),
        variables: vec![("TIDEGATE__GATES__KUBERNETES__BUCKET__RATE".to_owned(), "20".to_owned())],
        pod_monitor: true,
        egress: (mode == Mode::InCluster).then(|| EgressOptions {
            presets: vec!["aws".to_owned()],
            port: 18_003,
            plain: vec![("ec2".to_owned(), "eu-central-1".to_owned())],
            direct: Vec::new(),
            cluster_domain: None,
            intercept: true,
            clients: vec![Client::Go, Client::Java, Client::Node],
        }),
        // Some have a KUBECONFIG or a mount of their own.
        replace: true,
        ..Options::default()
    }
}

/// Every file of manifests, as it is and with the line ends of other systems.
fn streams() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/inject/manifests");
    let mut streams = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("can be read").path();
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("text");
        streams.push((format!("{name} with CRLF"), text.replace('\n', "\r\n")));
        streams.push((name, text));
    }
    streams.sort();
    streams
}

/// The values of a stream, read by another YAML reader than the edit's.
fn meaning(name: &str, stream: &str) -> Vec<Value> {
    serde_saphyr::from_multiple::<Value>(stream).unwrap_or_else(|error| panic!("{name}: {error}\n{stream}"))
}

/// Removes nulls: a key with null means the same as no key.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(entries) => entries
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

fn pretty(value: Value) -> String {
    serde_json::to_string_pretty(&without_nulls(value)).expect("a value is JSON")
}

/// Shows where two texts begin to differ: in full they would fill screens.
fn assert_same(name: &str, what: &str, left: &str, right: &str) {
    let differs = left.lines().zip(right.lines()).find(|(left, right)| left != right);
    assert!(left == right, "{name}: {what}: {differs:?}, {} and {} lines", left.lines().count(), right.lines().count());
}

/// Injects a stream, and checks that the result has the right values.
fn check(name: &str, stream: &str, mode: Mode) -> Edit {
    let once = inject(stream, &options(mode)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let twice = inject(&once.text, &options(mode)).unwrap_or_else(|error| panic!("{name}: {error}\n{}", once.text));
    assert_same(name, "twice is not once", &twice.text, &once.text);
    let back = uninject(&once.text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (before, after) = (meaning(name, stream), meaning(name, &back.text));
    assert_eq!(before.len(), after.len(), "{name}: {}", back.text);
    for (before, after) in before.into_iter().zip(after) {
        assert_eq!(
            without_nulls(before),
            without_nulls(after),
            "{name}: taken out, the original is not back\n{}",
            back.text
        );
    }
    assert!(uninject(&back.text).expect("YAML").changed.is_empty(), "{name}");
    once
}

#[test]
fn fifty_manifests_go_there_and_back() {
    let mut workloads = 0;
    for (name, stream) in streams() {
        for mode in [Mode::Kubeconfig, Mode::InCluster] {
            let edited = check(&name, &stream, mode);
            assert_eq!(
                edited.text.matches("TIDEGATE__GATES__KUBERNETES__UPSTREAM").count(),
                edited.changed.len(),
                "{name}: {:?}",
                edited.refused
            );
            if mode == Mode::Kubeconfig && !name.contains("CRLF") {
                workloads += edited.changed.len();
            }
        }
    }
    assert!(workloads >= 50, "{workloads} workloads");
}

#[test]
fn every_service_that_classes_know_is_known_by_its_variables() {
    let (_, stream) =
        streams().into_iter().find(|(name, _)| name == "kubebuilder.yaml").expect("the manifests of a new project");
    // S3 is not among the hosts of @aws, and what SDKs call SSO is the portal.
    for names in service_names().filter(|names| !["S3", "SSO"].contains(&names.sdk)) {
        let id = names.sdk;
        let service = names.signed;
        let mut options = options(Mode::InCluster);
        let egress = options.egress.as_mut().expect("there is one");
        egress.plain = vec![(service.to_owned(), "eu-central-1".to_owned())];
        let edited = inject(&stream, &options).expect("it can be read");
        let variable = format!("AWS_ENDPOINT_URL_{}\n", id.to_ascii_uppercase().replace(' ', "_"));
        assert!(edited.text.contains(&variable), "{id} {service}");
        assert!(!edited.notes.iter().any(|note| note.contains("a guess")), "{service}: {:?}", edited.notes);
        for (_, _, host) in options.egress.iter().flat_map(EgressOptions::plain_hosts) {
            assert!(HostPattern::Set(HostSet::Aws).matches(&host), "{host}");
        }
    }
}

#[test]
fn one_mode_after_the_other_is_the_other() {
    for (name, stream) in streams() {
        let one = inject(&stream, &options(Mode::Kubeconfig)).unwrap().text;
        let other = inject(&stream, &options(Mode::InCluster)).unwrap().text;
        let changed = inject(&one, &options(Mode::InCluster)).unwrap().text;
        for (left, right) in meaning(&name, &changed).into_iter().zip(meaning(&name, &other)) {
            assert_same(&name, "one mode after the other is not the other", &pretty(left), &pretty(right));
        }
    }
}

#[test]
fn a_key_order_and_a_quoting_stay() {
    for (name, stream) in streams() {
        let back = uninject(&inject(&stream, &options(Mode::Kubeconfig)).unwrap().text).unwrap().text;
        let again = uninject(&inject(&back, &options(Mode::InCluster)).unwrap().text).unwrap().text;
        assert_same(&name, "what was taken out changes when it is done again", &again, &back);
    }
}

/// A change of one line of a manifest, as people make them, and as they go wrong.
#[derive(Clone, Debug)]
enum Change {
    Drop,
    Comment(usize),
    Note,
    Blank,
    Indent,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::Drop),
        (0..12_usize).prop_map(Change::Comment),
        Just(Change::Note),
        Just(Change::Blank),
        Just(Change::Indent),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn a_changed_manifest_goes_there_and_back_too(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), change()), 1..6),
    ) {
        static STREAMS: OnceLock<Vec<(String, String)>> = OnceLock::new();
        let (name, stream) = which.get(STREAMS.get_or_init(streams));
        let mut lines: Vec<String> = stream.split('\n').map(str::to_owned).collect();
        for (at, change) in changes {
            let at = at.index(lines.len());
            match change {
                Change::Drop => drop(lines.remove(at)),
                Change::Comment(indent) => lines.insert(at, format!("{:indent$}# a comment", "")),
                Change::Note => lines[at].push_str("  # a note"),
                Change::Blank => lines.insert(at, String::new()),
                Change::Indent => lines[at].insert_str(0, "  "),
            }
            if lines.is_empty() {
                lines.push(String::new());
            }
        }
        let stream = lines.join("\n");
        for mode in [Mode::Kubeconfig, Mode::InCluster] {
            let Ok(once) = inject(&stream, &options(mode)) else { continue };
            let twice = inject(&once.text, &options(mode)).expect("what is written can be read");
            prop_assert!(twice.text == once.text, "{}: twice is not once:\n{}\n---- and\n{}", name, once.text, twice.text);
            let back = uninject(&once.text).expect("what is written can be read");
            prop_assert_eq!(&back.changed, &once.changed);
            // Another reader may take less than this one.
            if let (Ok(before), Ok(after)) =
                (serde_saphyr::from_multiple::<Value>(&stream), serde_saphyr::from_multiple::<Value>(&back.text))
            {
                let settled = |all: Vec<Value>| all.into_iter().map(without_nulls).collect::<Vec<_>>();
                prop_assert_eq!(settled(before), settled(after), "{}: the original is not back:\n{}", name, back.text);
            }
        }
    }
}
