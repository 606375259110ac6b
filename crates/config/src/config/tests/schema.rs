//! The JSON Schema that editors complete and check by: made from the keys in the code, the meanings
//! of `keys.toml`, and the bounds below. Only tests make it, and compare it with
//! config/tidegate.schema.json, which `tidegate schema` prints.
//!
//! Whatever `check` accepts fits the schema, which a test holds for anything that a user may
//! write. The reverse is not promised: what keys mean together only `check` knows.

use serde_json::{Map, Value, json};

use super::reference::{Section, sections};
use super::{path, record};
use crate::config::path::Path;
use crate::config::record::Record;
use crate::config::shape::Shape;

/// Go's durations, with a unit.
const DURATION: &str = "\\+?(([0-9]+\\.?[0-9]*|\\.[0-9]+)(ns|us|\u{b5}s|\u{3bc}s|ms|s|m|h))+";
const SNAKE_CASE: &str = "^[a-z][a-z0-9]*(_[a-z0-9]+)*$";

/// Sections without a chapter of their own in the reference, and those whose keys they have.
pub(super) const LIKE: [(&str, &str); 30] = [
    ("gates.NAME.retry_bucket", "gates.NAME.bucket"),
    ("gates.NAME.retry_bucket.adapt", "gates.NAME.bucket.adapt"),
    ("gates.NAME.classes.bucket", "gates.NAME.bucket"),
    ("gates.NAME.shared", "gates.NAME.bucket.shared"),
    ("gates.NAME.retry_bucket.shared", "gates.NAME.bucket.shared"),
    ("gates.NAME.classes.bucket.adapt", "gates.NAME.bucket.adapt"),
    ("gates.NAME.classes.bucket.shared", "gates.NAME.bucket.shared"),
    ("gates.NAME.classes.backoff", "gates.NAME.backoff"),
    ("gates.NAME.classes.in_flight", "gates.NAME.in_flight"),
    ("gates.NAME.classes.per_key", "gates.NAME.per_key"),
    ("gates.NAME.candidate.bucket", "gates.NAME.bucket"),
    ("gates.NAME.candidate.bucket.adapt", "gates.NAME.bucket.adapt"),
    ("gates.NAME.candidate.retry_bucket", "gates.NAME.bucket"),
    ("gates.NAME.candidate.retry_bucket.adapt", "gates.NAME.bucket.adapt"),
    ("gates.NAME.candidate.bucket.shared", "gates.NAME.bucket.shared"),
    ("gates.NAME.candidate.retry_bucket.shared", "gates.NAME.bucket.shared"),
    ("gates.NAME.candidate.backoff", "gates.NAME.backoff"),
    ("gates.NAME.candidate.queue", "gates.NAME.queue"),
    ("gates.NAME.candidate.in_flight", "gates.NAME.in_flight"),
    ("gates.NAME.candidate.per_key", "gates.NAME.per_key"),
    ("gates.NAME.per_cluster.bucket", "gates.NAME.bucket"),
    ("gates.NAME.per_cluster.bucket.adapt", "gates.NAME.bucket.adapt"),
    ("gates.NAME.per_cluster.retry_bucket", "gates.NAME.bucket"),
    ("gates.NAME.per_cluster.retry_bucket.adapt", "gates.NAME.bucket.adapt"),
    ("gates.NAME.per_cluster.bucket.shared", "gates.NAME.bucket.shared"),
    ("gates.NAME.per_cluster.retry_bucket.shared", "gates.NAME.bucket.shared"),
    ("gates.NAME.per_cluster.backoff", "gates.NAME.backoff"),
    ("gates.NAME.per_cluster.queue", "gates.NAME.queue"),
    ("gates.NAME.per_cluster.in_flight", "gates.NAME.in_flight"),
    ("gates.NAME.per_cluster.per_key", "gates.NAME.per_key"),
];

/// The schema of the configuration.
pub(in crate::config) fn schema() -> Value {
    let mut schema = of(&record(), "The configuration of tidegate");
    let record = record();
    for section in sections() {
        let heading = section.path();
        describe(&mut schema, &heading, &section, &record, true);
        for (like, _) in LIKE.iter().filter(|(_, base)| *base == heading) {
            describe(&mut schema, like, &section, &record, false);
        }
    }
    for (path, bounds) in bounds() {
        narrow(&mut schema, path, bounds);
    }
    schema
}

/// What values can be beyond their types: what `check` says of each by itself.
fn bounds() -> Vec<(&'static str, Value)> {
    let name = json!({ "pattern": SNAKE_CASE, "maxLength": 63 });
    let parts = json!({ "type": "string", "pattern": "^(verb|path|body|query:.+|header:.+)$" });
    let key = json!({ "type": ["string", "array"], "pattern": "^auto$", "items": parts, "minItems": 1 });
    let above_zero = json!({ "exclusiveMinimum": 0, "maximum": 1e9 });
    let at_least_one = json!({ "minimum": 1 });
    let mut bounds = vec![
        ("", json!({ "anyOf": [{ "required": ["gates"] }, { "required": ["egress"] }] })),
        ("admin.listen", json!({ "pattern": "^(off|.+:[0-9]+)$" })),
        ("admin.socket", json!({ "pattern": "^(auto|off|/.*[^/])$" })),
        ("state.file", json!({ "pattern": "^(auto|off|/.*[^/])$" })),
        ("process.threads", json!({ "minimum": 1, "maximum": 64 })),
        ("stores", json!({ "propertyNames": &name })),
        ("stores.NAME", json!({ "required": ["url"] })),
        ("gates", json!({ "propertyNames": &name, "minProperties": 1 })),
        // A provider's preset has hosts.
        (
            "gates.NAME",
            json!({ "anyOf": [
                { "required": ["upstream"] }, { "required": ["clusters"] }, { "required": ["hosts"] }, { "required": ["preset"] },
            ] }),
        ),
        ("egress.max_connections", at_least_one.clone()),
        ("egress.max_origins", at_least_one.clone()),
        ("egress.names", json!({ "pattern": "^(off|.+:[0-9]+)$", "items": { "pattern": "^.+:[0-9]+$" } })),
        ("egress.ports", json!({ "minItems": 1, "items": { "minimum": 1, "maximum": 65535 } })),
        ("gates.NAME.upstream", json!({ "pattern": "^(in_cluster|kubeconfig(:.+)?|[hH][tT][tT][pP][sS]?://.+)$" })),
        ("gates.NAME.max_reconcile_rate", at_least_one.clone()),
        ("gates.NAME.share", json!({ "exclusiveMinimum": 0, "maximum": 1 })),
        ("gates.NAME.backoff.jitter", json!({ "minimum": 0, "maximum": 1 })),
        ("gates.NAME.backoff.max_keys", at_least_one.clone()),
        ("gates.NAME.signals.honour", json!({ "items": { "type": "string" } })),
        ("gates.NAME.signals.reserve", json!({ "minimum": 0, "exclusiveMaximum": 1 })),
        ("gates.NAME.classes", json!({ "items": { "required": ["name"] } })),
        ("gates.NAME.per_cluster", json!({ "items": { "required": ["match"] } })),
        ("gates.NAME.classes.name", name),
        ("gates.NAME.classes.backoff.jitter", json!({ "minimum": 0, "maximum": 1 })),
        ("gates.NAME.classes.match.paths", json!({ "items": { "pattern": "^[/*]" } })),
        ("gates.NAME.classes.match.resources", json!({ "items": { "pattern": "^[^/]*$" } })),
        ("gates.NAME.credential", json!({ "required": ["file"] })),
    ];
    bounds.extend(["gates.NAME.key", "gates.NAME.classes.key"].map(|path| (path, key.clone())));
    for path in ["gates.NAME.bucket.rate", "gates.NAME.retry_bucket.rate", "gates.NAME.classes.bucket.rate"] {
        bounds.push((path, above_zero.clone()));
    }
    for path in [
        "gates.NAME.bucket.adapt.floor",
        "gates.NAME.retry_bucket.adapt.floor",
        "gates.NAME.classes.bucket.adapt.floor",
        "gates.NAME.per_key.writes",
        "gates.NAME.per_key.reads",
        "gates.NAME.classes.per_key.writes",
        "gates.NAME.classes.per_key.reads",
    ] {
        bounds.push((path, above_zero.clone()));
    }
    for path in [
        "gates.NAME.bucket.burst",
        "gates.NAME.retry_bucket.burst",
        "gates.NAME.classes.bucket.burst",
        "gates.NAME.in_flight.max",
        "gates.NAME.classes.in_flight.max",
        "gates.NAME.per_key.burst",
        "gates.NAME.classes.per_key.burst",
    ] {
        bounds.push((path, at_least_one.clone()));
    }
    let failures = json!({ "items": { "pattern": "^(left|transport|\\+?0*[45][0-9][0-9])$" } });
    bounds.extend(
        ["gates.NAME.backoff.failures", "gates.NAME.classes.backoff.failures"].map(|at| (at, failures.clone())),
    );
    bounds
}

/// The bare schema of everything that was asked for.
pub(in crate::config) fn of(record: &Record, title: &str) -> Value {
    let mut schema = of_table(record, &Path::default());
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    schema["title"] = json!(title);
    schema["description"] =
        json!("What keys mean together only tidegate itself knows: `tidegate check`, `tidegate simulate`.");
    schema
}

/// No keys but the known ones.
fn of_table(record: &Record, table: &Path) -> Value {
    let of_key = |name: &str, shape: Shape| {
        let at = table.key(name);
        let below = || {
            // Classes that are built in may come before the first of the file.
            let name = if shape == Shape::ListOfTables { "[0]" } else { "name" };
            of_table(record, &at.key(name))
        };
        match shape {
            Shape::Table | Shape::TableOrOff | Shape::TableOrText | Shape::Limit => of_table(record, &at),
            Shape::TablesByName => json!({ "type": "object", "additionalProperties": below() }),
            Shape::ListOfTables => json!({ "type": "array", "items": below() }),
            shape => of_value(shape),
        }
    };
    let keys = record.keys(table).iter().map(|key| (key.name.clone(), of_key(&key.name, key.shape)));
    json!({ "type": "object", "properties": keys.collect::<Map<_, _>>(), "additionalProperties": false })
}

/// The schema of one value.
pub(in crate::config) fn of_value(shape: Shape) -> Value {
    match shape {
        Shape::Text => json!({ "type": "string" }),
        Shape::Truth => json!({ "type": "boolean" }),
        Shape::Whole(least) => json!({ "type": "integer", "minimum": least }),
        Shape::Whole32(least) => json!({ "type": "integer", "minimum": least, "maximum": u32::MAX }),
        Shape::Number => json!({ "type": "number" }),
        Shape::Rate => {
            json!({ "type": ["number", "string"], "pattern": "^[0-9]+(\\.[0-9]+)?/(s|min|h|d)$" })
        }
        Shape::Duration => json!({ "type": "string", "pattern": format!("^{DURATION}$") }),
        Shape::Or(shape, word) => {
            let mut schema = of_value(*shape);
            if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
                schema["pattern"] = format!("^({word}|{})$", pattern.trim_matches(['^', '$'])).into();
            }
            schema
        }
        Shape::Size => json!({ "type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB|kB|KB|MB|GB)$" }),
        Shape::Word(words) => json!({ "enum": words }),
        Shape::WordOrFile(words) => {
            json!({ "anyOf": [{ "enum": words }, { "type": "string", "pattern": "/|\\.toml$" }] })
        }
        Shape::WholeOr(words) => json!({ "anyOf": [{ "type": "integer", "minimum": 1 }, { "enum": words }] }),
        Shape::List(items) => json!({ "type": "array", "items": of_value(*items) }),
        Shape::Addresses => {
            let address = "^(unix:/.+|.+:[0-9]+)$";
            let items = json!({ "type": "string", "pattern": address });
            json!({ "type": ["string", "array"], "pattern": address, "items": items, "minItems": 1 })
        }
        Shape::TextByName => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        _ => json!({}),
    }
}

/// Adds to what stands at a path.
pub(in crate::config) fn narrow(schema: &mut Value, path: &str, more: Value) {
    merge(at(schema, path), more);
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

/// Finds the schema of a key by its path; `NAME` stands for any name, and the path goes through
/// lists and words like `off`.
fn at<'a>(schema: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('.').filter(|step| !step.is_empty()).fold(schema, |mut here, step| {
        if here.get("items").is_some() {
            here = &mut here["items"];
        }
        let next = if step == "NAME" { "additionalProperties" } else { "properties" };
        let here = here.get_mut(next).unwrap_or_else(|| panic!("no {next} on the way to {path}"));
        if step == "NAME" { here } else { here.get_mut(step).unwrap_or_else(|| panic!("no {step} in {path}")) }
    })
}

/// Adds to each key of a table its meaning; defaults only where they are the section's own.
fn describe(schema: &mut Value, table: &str, section: &Section, record: &Record, with_defaults: bool) {
    for key in record.keys(&path(&section.heading)) {
        let here = at(schema, &format!("{table}.{}", key.name));
        if matches!(key.shape, Shape::TableOrOff | Shape::Limit) {
            // Not `anyOf`: of that editors only say that none of it fits.
            merge(here, json!({ "type": ["object", "string"], "pattern": "^off$" }));
        }
        if key.shape == Shape::TableOrText {
            merge(here, json!({ "type": ["object", "string"], "required": ["name"] }));
        }
        let meaning = section.meaning(&key.name);
        let default = section.default(&key.name).filter(|_| with_defaults);
        let more = [
            Some(("description", json!(meaning.plain()))),
            default.map(|default| ("default", json!(default))),
            meaning.example.as_ref().map(|example| ("examples", json!([example]))),
        ];
        merge(
            here,
            more.into_iter().flatten().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>().into(),
        );
    }
}
