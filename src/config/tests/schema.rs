//! The JSON Schema that editors complete and check by: made from the keys in the code, the words and defaults of docs/configuration.md, and the
//! bounds below. Only tests make it; what they compare it with is config/tidegate.schema.json, which `tidegate schema` prints.
//!
//! Whatever `check` accepts fits the schema, which a test holds for anything that anybody may write. The reverse is not promised: what keys
//! mean together only `check` knows.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Map, Value, json};

use super::REFERENCE;
use crate::{
    api::Signal,
    config::{
        field::{Field, Listed, Named, Section},
        file::File,
        leaf::{Anything, Bytes, List, OneOrMore, OrAuto, OrOff, Span, Texts, Word, Words},
    },
};

/// Go's durations, with a unit.
const SPAN: &str = "\\+?(([0-9]+\\.?[0-9]*|\\.[0-9]+)(ns|us|\u{b5}s|\u{3bc}s|ms|s|m|h))+";
const SNAKE_CASE: &str = "^[a-z][a-z0-9]*(_[a-z0-9]+)*$";

/// Sections without a chapter of their own in the reference, and those whose keys they have.
pub(super) const LIKE: [(&str, &str); 6] = [
    ("gates.NAME.retry_bucket", "gates.NAME.bucket"),
    ("gates.NAME.retry_bucket.adapt", "gates.NAME.bucket.adapt"),
    ("gates.NAME.classes.bucket", "gates.NAME.bucket"),
    ("gates.NAME.classes.bucket.adapt", "gates.NAME.bucket.adapt"),
    ("gates.NAME.classes.backoff", "gates.NAME.backoff"),
    ("gates.NAME.classes.in_flight", "gates.NAME.in_flight"),
];

/// The schema of the configuration.
pub(in crate::config) fn schema() -> Value {
    let mut schema = of::<File>("The configuration of tidegate");
    for (heading, section) in chapters() {
        let section: Vec<Row> = rows(section);
        describe(&mut schema, &heading, &section, true);
        for (like, _) in LIKE.iter().filter(|(_, base)| *base == heading) {
            describe(&mut schema, like, &section, false);
        }
    }
    for (path, bounds) in bounds() {
        narrow(&mut schema, path, bounds);
    }
    schema
}

/// What values can be beyond their types: what `check` says of each by itself.
fn bounds() -> Vec<(&'static str, Value)> {
    let signals: Vec<&str> = Signal::ALL.into_iter().map(Signal::word).collect();
    let name = json!({ "pattern": SNAKE_CASE, "maxLength": 63 });
    let parts = json!({ "type": "string", "pattern": "^(verb|path|body|query:.+|header:.+)$" });
    let key = json!({ "type": ["string", "array"], "pattern": "^auto$", "items": parts, "minItems": 1 });
    let above_zero = json!({ "exclusiveMinimum": 0, "maximum": 1e9 });
    let at_least_one = json!({ "minimum": 1 });
    let mut bounds = vec![
        ("", json!({ "required": ["gates"] })),
        ("admin.listen", json!({ "pattern": "^(off|.+:[0-9]+)$" })),
        ("admin.socket", json!({ "pattern": "^(auto|off|/.*[^/])$" })),
        ("gates", json!({ "propertyNames": &name, "minProperties": 1 })),
        ("gates.NAME", json!({ "required": ["upstream"] })),
        ("gates.NAME.upstream", json!({ "pattern": "^(in_cluster|kubeconfig(:.+)?|[hH][tT][tT][pP][sS]?://.+)$" })),
        ("gates.NAME.max_reconcile_rate", at_least_one.clone()),
        ("gates.NAME.backoff.jitter", json!({ "minimum": 0, "maximum": 1 })),
        ("gates.NAME.backoff.max_keys", at_least_one.clone()),
        ("gates.NAME.signals.honour", json!({ "items": { "enum": signals } })),
        ("gates.NAME.signals.reserve", json!({ "minimum": 0, "exclusiveMaximum": 1 })),
        ("gates.NAME.classes", json!({ "items": { "required": ["name"] } })),
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
    ] {
        bounds.push((path, above_zero.clone()));
    }
    for path in [
        "gates.NAME.bucket.burst",
        "gates.NAME.retry_bucket.burst",
        "gates.NAME.classes.bucket.burst",
        "gates.NAME.in_flight.max",
        "gates.NAME.classes.in_flight.max",
    ] {
        bounds.push((path, at_least_one.clone()));
    }
    let failures = json!({ "items": { "pattern": "^(left|transport|\\+?0*[45][0-9][0-9])$" } });
    bounds.extend(
        ["gates.NAME.backoff.failures", "gates.NAME.classes.backoff.failures"].map(|at| (at, failures.clone())),
    );
    bounds
}

/// The bare schema of a table of the file.
pub(in crate::config) fn of<T: JsonSchema>(title: &str) -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    close(&mut schema);
    schema["title"] = json!(title);
    schema["description"] =
        json!("What keys mean together only tidegate itself knows: `tidegate check`, `tidegate simulate`.");
    schema
}

/// The schema of one value.
pub(in crate::config) fn shape_of<T: JsonSchema>() -> Value {
    SchemaGenerator::default().subschema_for::<Field<T>>().to_value()
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

/// No keys but the known ones; numbers bounded as their types are, without formats that no editor knows.
fn close(schema: &mut Value) {
    if let Value::Object(object) = schema {
        if object.contains_key("properties") {
            object.insert("additionalProperties".to_owned(), json!(false));
        }
        if let Some(format) = object.get("format").and_then(Value::as_str).map(str::to_owned) {
            object.remove("format");
            if format == "uint32" {
                object.insert("maximum".to_owned(), json!(u32::MAX));
            }
        }
        object.values_mut().for_each(close);
    }
    if let Value::Array(items) = schema {
        items.iter_mut().for_each(close);
    }
}

/// The schema of a key, by its path; `NAME` stands for any name, and lists and words like `off` are looked through.
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

/// A row of the reference.
pub(super) struct Row {
    pub(super) key: &'static str,
    what: &'static str,
    default: Option<Value>,
    meaning: String,
    example: Option<Value>,
}

/// The chapters of the reference that have keys, by their path.
pub(super) fn chapters() -> impl Iterator<Item = (String, &'static str)> {
    REFERENCE.split("\n## `[").skip(1).map(|chapter| {
        let (heading, text) = chapter.split_once("`\n").expect("a heading ends");
        (heading.trim_matches(['[', ']']).to_owned(), text)
    })
}

pub(super) fn rows(chapter: &'static str) -> Vec<Row> {
    let table = chapter.lines().skip_while(|line| !line.starts_with("| key |")).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let value = |cell: &str| {
            let text = cell.strip_prefix('`')?.strip_suffix('`')?;
            toml::from_str::<Value>(&format!("x = {text}")).ok().map(|table| table["x"].clone())
        };
        let [key, what, default, meaning, example] = cells[..] else { panic!("{row} has five cells") };
        let meaning = meaning.replace("[Keys](#keys)", "docs/configuration.md");
        Row { key: key.trim_matches('`'), what, default: value(default), meaning, example: value(example) }
    })
    .collect()
}

/// Says of each key of a table what the reference says of it; defaults only where they are the section's own.
fn describe(schema: &mut Value, path: &str, rows: &[Row], with_defaults: bool) {
    for row in rows {
        let here = at(schema, &format!("{path}.{}", row.key));
        if row.what == "table, or `\"off\"`" {
            // Not `anyOf`: of that editors only say that none of it fits.
            merge(here, json!({ "type": ["object", "string"], "pattern": "^off$" }));
        }
        let more = [
            Some(("description", json!(row.meaning))).filter(|_| !row.meaning.is_empty()),
            row.default.clone().filter(|_| with_defaults).map(|default| ("default", default)),
            row.example.clone().map(|example| ("examples", json!([example]))),
        ];
        merge(
            here,
            more.into_iter().flatten().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>().into(),
        );
    }
}

/// A schema by itself, wherever it stands.
macro_rules! shape {
    ([$($generics:tt)*] $type:ty, |$generator:ident| $schema:expr) => {
        impl<$($generics)*> JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($type))
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

shape!([T: JsonSchema] Field<T>, |generator| T::json_schema(generator));
shape!([T: JsonSchema] Section<T>, |generator| T::json_schema(generator));
shape!([T: JsonSchema] Named<T>, |generator| {
    json_schema!({ "type": "object", "additionalProperties": T::json_schema(generator) })
});
shape!([T: JsonSchema] Listed<T>, |generator| json_schema!({ "type": "array", "items": T::json_schema(generator) }));
shape!([] Span, |_generator| json_schema!({ "type": "string", "pattern": format!("^{SPAN}$") }));
shape!([] OrOff, |_generator| json_schema!({ "type": "string", "pattern": format!("^(off|{SPAN})$") }));
shape!([] OrAuto, |_generator| json_schema!({ "type": "string", "pattern": format!("^(auto|{SPAN})$") }));
shape!([] Bytes, |_generator| {
    json_schema!({ "type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB|kB|KB|MB|GB)$" })
});
shape!([] List, |_generator| json_schema!({ "type": "array", "items": { "type": "string" } }));
shape!([] OneOrMore, |_generator| {
    let address = "^(unix:/.+|.+:[0-9]+)$";
    let items = json!({ "type": "string", "pattern": address });
    json_schema!({ "type": ["string", "array"], "pattern": address, "items": items, "minItems": 1 })
});
shape!([] Texts, |_generator| json_schema!({ "type": "object", "additionalProperties": { "type": "string" } }));
shape!([] Anything, |_generator| json_schema!({}));
shape!([T: Words] Word<T>, |_generator| {
    json_schema!({ "enum": T::WORDS.iter().map(|(word, _)| *word).collect::<Vec<_>>() })
});
