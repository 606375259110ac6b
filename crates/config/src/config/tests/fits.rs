//! The committed schema is what the code makes; it fits whatever `check` accepts, and nothing of
//! what it can tell to be wrong by itself.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use boon::{Compiler, SchemaIndex, Schemas};

use serde_json::Value;

use super::record;
use super::reference::sections;
use super::schema::{LIKE, schema};
use crate::config::SCHEMA;

/// A schema, compiled.
pub(in crate::config) struct Judge {
    schemas: Schemas,
    index: SchemaIndex,
}

impl Judge {
    /// Of this schema.
    pub(in crate::config) fn of(schema: &str) -> Self {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("schema.json", serde_json::from_str(schema).unwrap()).unwrap();
        let index = compiler.compile("schema.json", &mut schemas).unwrap_or_else(|error| panic!("{error:#}"));
        Self { schemas, index }
    }

    /// What it says against a TOML text, if anything.
    pub(in crate::config) fn complaint(&self, text: &str) -> Option<String> {
        let value: Value = toml::from_str(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
        self.schemas.validate(&value, self.index).err().map(|error| error.to_string())
    }
}

fn root(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_committed_schema_is_what_the_code_makes() {
    let path = "config/tidegate.schema.json";
    let text = format!("{:#}\n", schema());
    if std::env::var_os("TIDEGATE_WRITE_SCHEMA").is_some() {
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path), &text).unwrap();
    }
    assert!(root(path) == text, "{path} is not what the code makes; run this test with TIDEGATE_WRITE_SCHEMA=1");
}

#[test]
fn the_schema_has_every_key_of_the_reference_and_no_other() {
    fn keys(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
        for (key, below) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            keys(below, &path, found);
            found.insert(path);
        }
        for inner in ["items", "additionalProperties"].into_iter().filter(|inner| schema[*inner].is_object()) {
            let path = match path {
                "gates" => "gates.NAME",
                "stores" => "stores.NAME",
                path => path,
            };
            keys(&schema[inner], path, found);
        }
    }
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let mut found = BTreeSet::new();
    keys(&schema, "", &mut found);
    let mut documented: BTreeSet<String> =
        ["admin", "log", "shutdown", "process", "otlp", "state", "stores", "egress", "gates"].map(str::to_owned).into();
    for section in sections() {
        let heading = section.path();
        let like = LIKE.iter().filter(|(_, base)| *base == heading).map(|(like, _)| (*like).to_owned());
        for path in [heading.clone()].into_iter().chain(like) {
            documented.extend(super::keys(&record(), &section.heading).iter().map(|key| format!("{path}.{key}")));
        }
    }
    assert_eq!(found, documented);
    assert!(found.len() > 120, "{}", found.len());
}

#[test]
fn every_key_says_what_it_is_for() {
    fn silent(schema: &Value, path: &str, found: &mut Vec<String>) {
        for (key, below) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{key}");
            silent(below, &path, found);
            if below["description"].as_str().is_none_or(str::is_empty) && path.matches('.').count() > 1 {
                found.push(path);
            }
        }
        for inner in ["items", "additionalProperties"] {
            if schema[inner].is_object() {
                silent(&schema[inner], path, found);
            }
        }
    }
    let mut found = Vec::new();
    silent(&serde_json::from_str(SCHEMA).unwrap(), "", &mut found);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn what_can_be_run_fits_the_schema() {
    let judge = Judge::of(SCHEMA);
    for path in ["config/example.toml", "config/crossplane.toml", "config/github.toml", "config/aws.toml"] {
        assert_eq!(judge.complaint(&root(path)), None, "{path}");
    }
    for path in ["deploy/kustomize/tidegate.toml", "deploy/kustomize-in-cluster/tidegate.toml"] {
        assert_eq!(judge.complaint(&root(path)), None, "{path}");
    }
}

#[test]
fn what_is_wrong_by_itself_does_not_fit_the_schema() {
    let judge = Judge::of(SCHEMA);
    let gate = |more: &str| format!("[gates.k]\nupstream = \"in_cluster\"\n{more}\n");
    assert_eq!(judge.complaint(&gate("")), None);
    for wrong in [
        "bukcet = { rate = 1 }",
        "bucket.rat = 1",
        "bucket.rate = \"50\"",
        "bucket.rate = 0",
        "bucket.rate = -1.5",
        "bucket.burst = 0",
        "bucket.burst = 2.5",
        "bucket.burst = 4294967296",
        "bucket = \"on\"",
        "bucket = 5",
        "bucket.per = \"pod\"",
        "bucket.adapt.floor = 0",
        "retry_bucket.rate = 0",
        "backoff.base = \"1 s\"",
        "backoff.base = \"10\"",
        "backoff.base = 1",
        "backoff.base = \"1d\"",
        "backoff.jitter = 1.5",
        "backoff.forget_after = \"never\"",
        "backoff.failures = [\"200\"]",
        "backoff.failures = [500]",
        "backoff.max_keys = 0",
        "backoff.strategy = \"linear\"",
        "queue.max_wait = 8",
        "queue.max_waiting = -1",
        "queue.max_waiting_bytes = \"16M\"",
        "queue.fair_by = \"pod\"",
        "in_flight.max = 0",
        "signals.honour = [\"github\", \"gitea\"]",
        "signals.reserve = 1.0",
        "timeouts.response = \"none\"",
        "listen = []",
        "listen = \"localhost\"",
        "listen = \"unix:relative.sock\"",
        "shadow = \"yes\"",
        "key = \"path\"",
        "key = [\"paths\"]",
        "max_reconcile_rate = 0",
        "kind = \"grpc\"",
        "classes = { name = \"a\" }",
        "classes = [{ lane = \"low\" }]",
        "classes = [{ name = \"A-B\" }]",
        "classes = [{ name = \"a\", match = { verb = [\"get\"] } }]",
        "classes = [{ name = \"a\", match = { verbs = \"get\" } }]",
        "classes = [{ name = \"a\", match = { paths = [\"repos\"] } }]",
        "classes = [{ name = \"a\", match = { headers = { x = 1 } } }]",
        "classes = [{ name = \"a\", bucket = { rate = 0, burst = 1 } }]",
        "credential = { header = \"X\" }",
        "tls.mode = \"auto\"",
    ] {
        let text = gate(wrong);
        assert!(judge.complaint(&text).is_some(), "{wrong} fits the schema");
        let loaded = crate::config::load_text("f.toml".into(), text, &[]);
        assert!(loaded.is_err(), "{wrong} is right, so it should fit the schema");
    }
    for wrong in [
        "",
        "[gates.k]",
        "[gates]",
        "[gates.K8s]\nupstream = \"in_cluster\"",
        "[gates.k]\nupstream = \"ftp://x\"",
        "[log]\nformat = \"xml\"",
        "[egress]\nports = []",
        "[egress]\nmax_origins = 0",
        "[egress]\nothers = \"pass\"",
    ] {
        assert!(judge.complaint(wrong).is_some(), "{wrong} fits the schema");
    }
}
