//! FileContent the reading of configurations to its examples, its documentation, and any text that a user
//! may write.

use std::num::NonZeroU32;

use proptest::prelude::*;

use self::fits::Judge;
use super::presets::PRESETS;
use super::record::{Grafted, Record};
use super::*;
use crate::classify::ApiKind;

mod fits;
mod reference;
pub(in crate::config) mod schema;
mod unmet;

const EXAMPLE: &str = include_str!("../../../../config/example.toml");
const CROSSPLANE: &str = include_str!("../../../../config/crossplane.toml");
const GITHUB: &str = include_str!("../../../../config/github.toml");
const AWS: &str = include_str!("../../../../config/aws.toml");

fn load_plain(text: &str) -> Result<Configuration, Vec<Problem>> {
    load_text("f.toml".to_owned(), text.to_owned(), &[])
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

/// Returns the problems of a text, or its warnings after the word "fine".
pub(in crate::config) fn problems(text: &str) -> String {
    load_plain(text).map_or_else(|problems| lines(&problems), |loaded| format!("fine {}", loaded.warnings.join("\n")))
}

fn good(text: &str) -> Configuration {
    let loaded = load_plain(text).unwrap_or_else(|problems| panic!("{text}\n{}", lines(&problems)));
    assert_eq!(JUDGE.with(|judge| judge.complaint(text)), None, "{text}");
    loaded
}

/// A configuration with every table.
const WHOLE: &str = "[otlp]\nendpoint = \"http://x\"\n[stores.name]\nurl = \"redis://x\"\n[gates.name]\nupstream = \"https://x\"\nclasses = [{ name = \"a\", match = {} }]\n\
                     tls = {}\ncandidate = {}\nbucket.shared = { name = \"a\" }\nin_flight = { max = 1 }\nclients = { tokens = \"review\" }\ncredential = { file = \"/x\" }\n[egress]\ntls = { cert = \"/c\", key = \"/k\" }\nclients = { tokens = \"review\" }\n";

/// The tables that WHOLE cannot have beside its own.
const HUB: &str =
    "[gates.name]\nclusters = \"/x\"\nper_cluster = [{ match = \"*\" }]\nbucket.shared = { name = \"a\" }\n";

/// Every key there is, as reading asks for them.
fn record() -> Record {
    let mut record = record_of(WHOLE);
    let place = path("[gates.NAME]").key("per_cluster");
    record.graft(&record_of(HUB), &place, &Grafted { place: &place, keys: &["[0]"], hidden: &[] });
    record
}

fn record_of(text: &str) -> Record {
    let (text, _) = Text::new("f.toml".to_owned(), text.to_owned());
    let root = layers::layered(&text, &[]).expect("it is TOML");
    let report = Report::new(&text, &[]);
    process::settings(&Cursor::root(&root, &report));
    report.finish(&root, Vec::new(), &[]).expect("it is right").record
}

/// The path of a heading in the reference.
fn path(heading: &str) -> Path {
    let steps = heading.trim_matches(['[', ']']).replace("NAME.classes", "NAME.classes.[0]");
    let steps = steps.replace("NAME.per_cluster", "NAME.per_cluster.[0]");
    let steps = steps.split('.').map(|step| if step == "NAME" { "name" } else { step });
    steps.filter(|step| !step.is_empty()).map(str::to_owned).collect()
}

/// The keys of a table by its heading, in the order of the code.
fn keys(record: &Record, heading: &str) -> Vec<String> {
    record.keys(&path(heading)).iter().map(|key| key.name.clone()).collect()
}

const HEADINGS: [&str; 32] = [
    "[admin]",
    "[log]",
    "[shutdown]",
    "[process]",
    "[state]",
    "[otlp]",
    "[stores.NAME]",
    "[stores.NAME.sentinel]",
    "[stores.NAME.tls]",
    "[egress]",
    "[egress.ca]",
    "[egress.tls]",
    "[egress.clients]",
    "[gates.NAME]",
    "[gates.NAME.bucket]",
    "[gates.NAME.bucket.adapt]",
    "[gates.NAME.bucket.shared]",
    "[gates.NAME.backoff]",
    "[gates.NAME.queue]",
    "[gates.NAME.in_flight]",
    "[gates.NAME.per_key]",
    "[gates.NAME.candidate]",
    "[[gates.NAME.per_cluster]]",
    "[gates.NAME.revalidation]",
    "[gates.NAME.signals]",
    "[gates.NAME.timeouts]",
    "[[gates.NAME.classes]]",
    "[gates.NAME.classes.match]",
    "[gates.NAME.tls]",
    "[gates.NAME.clients]",
    "[gates.NAME.upstream_tls]",
    "[gates.NAME.credential]",
];

thread_local! {
    static JUDGE: Judge = Judge::of(SCHEMA);
}

#[test]
fn the_example_files_have_no_problems() {
    for (name, text) in [("example", EXAMPLE), ("crossplane", CROSSPLANE), ("github", GITHUB), ("aws", AWS)] {
        assert!(good(text).warnings.is_empty(), "{name}: {:?}", good(text).warnings);
    }
}

#[test]
fn the_example_mentions_every_key() {
    let is_there = |key: &String| {
        EXAMPLE.lines().any(|line| {
            let line = line.trim_start_matches(['#', ' ']);
            let sets =
                |line: &str| line.strip_prefix(key.as_str()).is_some_and(|rest| rest.trim_start().starts_with('='));
            let inner = line.split(['{', ',']).any(|part| sets(part.trim_start()));
            sets(line) || inner || line.contains(&format!(".{key}]")) || line.starts_with(&format!("[{key}"))
        })
    };
    let record = record();
    let all = ["[]"].into_iter().chain(HEADINGS).flat_map(|heading| keys(&record, heading));
    let missing: Vec<String> = all.filter(|key| !is_there(key)).collect();
    assert!(missing.is_empty(), "config/example.toml does not mention {missing:?}");
}

#[test]
fn the_example_shows_the_defaults() {
    // Without what the example adds to the defaults, it is the smallest file.
    let mut text: String = EXAMPLE.split("[[gates.kubernetes.classes]]").next().unwrap().to_owned();
    text = text.replace("[gates.kubernetes.in_flight]\nmax = 100\nper = \"gate\"", "");
    let smallest = good("[gates.kubernetes]\nupstream = \"in_cluster\"\n");
    assert_eq!(good(&text).effective, smallest.effective);
}

#[test]
fn the_effective_configuration_says_the_same_again() {
    let more = "
        [gates.a]
        upstream = \"kubeconfig:dev\"
        preset = \"none\"
        backoff = { strategy = \"fast_slow\", fast = \"5ms\", slow = \"10s\", fast_attempts = 3, forget_after = \"1h0m0.5s\" }
        host = \"api.example.com\"
        classes = [
            { name = \"leases\", lane = \"high\" },
            { name = \"discovery\", bucket = \"off\" },
            { name = \"x\", match = { headers = { X-A = \"b*\" }, query = { \"a.b\" = \"\\\"\" } }, backoff = \"off\" },
        ]
        tls = { mode = \"files\", cert = \"/c\", key = \"/k\" }
        clients = { tokens = \"review\", cache = \"1m\", allowed = [\"a*\"] }
        [gates.b]
        listen = [\"127.0.0.1:1\", \"[::1]:1\"]
        upstream = \"http://localhost:2\"
        preset = \"controller_runtime\"
        in_flight = { max = 3, per = \"credential\" }
        [egress]
        tunnel = [\"**.internal.example.com\"]
        [gates.z]
        preset = \"aws\"
        except = [\"sts.amazonaws.com\"]
        connect_to = { \"ec2.eu-central-1.amazonaws.com\" = \"vpce.example:443\" }
        [gates.y]
        hosts = [\"@github\", \"*.example.com\"]
        plain = \"refuse\"
    ";
    for text in [EXAMPLE, CROSSPLANE, GITHUB, AWS, more] {
        let loaded = good(text);
        let again = good(&loaded.effective);
        assert_eq!(format!("{:#?}", loaded.settings), format!("{:#?}", again.settings), "{}", loaded.effective);
        assert_eq!(loaded.effective, again.effective);
    }
}

#[test]
fn every_effective_key_can_be_looked_up() {
    let effective = good("[gates.kubernetes]\nupstream = \"in_cluster\"\n").effective;
    for line in [
        "bucket = { rate = 500.0, burst = 1000, per = \"gate\", start = \"full\", adapt = { floor = 20.0 }, counts = \"tokens\" }",
        "in_flight = \"off\"",
        "base = \"1s\"",
        "max = \"1m\"",
        "forget_after = \"5m\"",
        "max_wait = \"8s\"",
        "name = \"leases\"",
        "name = \"default\"",
    ] {
        assert!(effective.lines().any(|found| found == line), "{line}\n{effective}");
    }
}

/// A value of any kind, for a key that wanted another.
fn any_value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("5".to_owned()),
        Just("-1".to_owned()),
        Just("0".to_owned()),
        Just("2.5".to_owned()),
        Just("nan".to_owned()),
        Just("inf".to_owned()),
        Just("1e300".to_owned()),
        Just("9223372036854775807".to_owned()),
        Just("true".to_owned()),
        Just("\"\"".to_owned()),
        Just("\"off\"".to_owned()),
        Just("\"5s\"".to_owned()),
        Just("\"5000/h\"".to_owned()),
        Just("\"0s\"".to_owned()),
        Just("\"9999999h\"".to_owned()),
        Just("\"é\\u0000\\n\"".to_owned()),
        Just("[]".to_owned()),
        Just("[1, \"a\"]".to_owned()),
        Just("{}".to_owned()),
        Just("{ a = { b = 1 } }".to_owned()),
        Just("1979-05-27".to_owned()),
        "[ -~]{0,8}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_value_panics(at in 0_usize..200, value in any_value()) {
        let mut text: Vec<String> = EXAMPLE.lines().map(str::to_owned).collect();
        let settings: Vec<usize> = (0..text.len()).filter(|line| text[*line].contains(" = ")).collect();
        let line = settings[at % settings.len()];
        let key = text[line].split(" = ").next().unwrap().to_owned();
        text[line] = format!("{} = {value}", key.trim_start_matches("# "));
        match load_plain(&text.join("\n")) {
            Ok(_) => prop_assert_eq!(JUDGE.with(|judge| judge.complaint(&text.join("\n"))), None, "{}", text[line]),
            Err(problems) => {
                prop_assert!(problems.iter().all(|problem| !problem.to_string().contains('\n')), "{}", lines(&problems));
                prop_assert!(problems.iter().all(|problem| problem.to_string().starts_with("f.toml")), "{}", lines(&problems));
            }
        }
    }

    #[test]
    fn no_damage_panics(at in any::<prop::sample::Index>(), length in 0_usize..40, insert in "[ -~\\né]{0,6}") {
        let start = at.index(EXAMPLE.len());
        let end = (start + length).min(EXAMPLE.len());
        if let (Some(before), Some(after)) = (EXAMPLE.get(..start), EXAMPLE.get(end..)) {
            let problems = load_plain(&format!("{before}{insert}{after}")).err().unwrap_or_default();
            prop_assert!(problems.iter().all(|problem| !problem.to_string().contains('\n')), "{}", lines(&problems));
        }
    }

    #[test]
    fn file_and_environment_agree(key in 0_usize..18, value in any_value()) {
        let (table, name) = [
            ("bucket", "rate"), ("bucket", "burst"), ("bucket", "per"), ("bucket", "start"), ("backoff", "base"),
            ("backoff", "max"), ("backoff", "jitter"), ("backoff", "hold"), ("backoff", "forget_after"), ("backoff", "max_keys"),
            ("queue", "max_wait"), ("queue", "max_waiting"), ("queue", "max_waiting_bytes"), ("queue", "fair_by"),
            ("timeouts", "connect"), ("timeouts", "response"), ("in_flight", "max"), ("signals", "max_pause"),
        ][key];
        let base = "[gates.kubernetes]\nupstream = \"in_cluster\"\n";
        let in_file = load_plain(&format!("{base}{table}.{name} = {value}\n"));
        let bare = value.trim_matches('"');
        prop_assume!(!bare.contains(['\\', '{', '[', '-', '"']) && bare.trim() == bare && !bare.is_empty());
        // Text in quotes that would be a number outside of them is one in a variable.
        prop_assume!(value.starts_with('"') || bare.parse::<toml::Value>().is_ok_and(|parsed| !parsed.is_datetime()));
        let variable = format!("TIDEGATE__GATES__KUBERNETES__{}__{}", table.to_uppercase(), name.to_uppercase());
        let in_env = load_text("f.toml".into(), base.into(), &[(variable.clone(), bare.to_owned())]);
        match (in_file, in_env) {
            (Ok(file), Ok(env)) => prop_assert_eq!(file.effective, env.effective),
            (Err(_), Err(problems)) => {
                prop_assert!(problems.iter().any(|problem| problem.to_string().starts_with(&variable)), "{}", lines(&problems));
            }
            (file, env) => prop_assert!(false, "{value}: file {:?}, environment {:?}", file.err(), env.err()),
        }
    }

    #[test]
    fn no_environment_panics(names in prop::collection::vec("(?i:TIDEGATE__(GATES|LOG|X)(__(K|BUCKET|RATE|CLASSES|0|a\\.b|)){0,4})", 0..4), value in "[ -~é]{0,6}") {
        let env: Vec<(String, String)> = names.into_iter().map(|name| (name, value.clone())).collect();
        for text in ["", "gates = 5", "[gates.k]\nupstream = \"in_cluster\"\nbucket = 5"] {
            let problems = load_text("f.toml".into(), text.into(), &env).err().unwrap_or_default();
            prop_assert!(problems.iter().all(|problem| !problem.to_string().contains('\n')), "{}", lines(&problems));
        }
    }
}

#[test]
fn a_preset_says_what_a_user_could_write() {
    let record = record();
    let in_table = |key: &str, value: toml::Value| toml::Value::Table([(key.to_owned(), value)].into_iter().collect());
    let unknown_of = |gate: toml::Value| record.unknown(&in_table("gates", in_table("name", gate)));
    for (embedded, kind) in PRESETS.iter().flat_map(|preset| ApiKind::ALL.map(|kind| (preset, kind))) {
        let mut preset = embedded.load();
        if preset.dialect.is_none() || kind == ApiKind::Http {
            let gate =
                format!("kind = \"{kind}\"\npreset = \"{}\"\nrewrite_links = {}", embedded.name, kind == ApiKind::Http);
            good(&format!("[gates.k]\nupstream = \"https://x\"\n{gate}\n"));
        }
        preset.fit(kind, NonZeroU32::MIN);
        preset.take_share(1.0);
        let mut unknown = unknown_of(preset.gate.into());
        for class in preset.classes {
            unknown.extend(unknown_of(in_table("classes", vec![toml::Value::Table(class.keys)].into())));
        }
        assert!(unknown.is_empty(), "{}: {unknown:?}", embedded.name);
    }
}
