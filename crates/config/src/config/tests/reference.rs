//! The reference in docs/configuration.md: made from the keys in the code, their types and defaults,
//! and the meanings of `keys.toml`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use toml::{Table, Value};

use super::{HEADINGS, WHOLE, good, keys, load_plain, path, record};
use crate::config::shape::Shape;

const MEANINGS: &str = include_str!("keys.toml");
/// A configuration that sets next to nothing.
const SMALL: &str = "[egress]\n[gates.name]\nupstream = \"https://x\"\n";

/// A table of the configuration.
#[derive(Deserialize)]
pub(super) struct Section {
    pub(super) heading: String,
    #[serde(default)]
    about: String,
    keys: BTreeMap<String, Meaning>,
}

#[derive(Deserialize)]
pub(super) struct Meaning {
    meaning: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    pub(super) example: Option<Value>,
    /// The default of a key that only a whole configuration has in force.
    default: Option<Value>,
}

#[derive(Deserialize)]
struct Meanings {
    section: Vec<Section>,
}

// === impl Section ===

impl Section {
    /// Returns the path of the table, without brackets.
    pub(super) fn path(&self) -> String {
        self.heading.trim_matches(['[', ']']).to_owned()
    }

    pub(super) fn meaning(&self, key: &str) -> &Meaning {
        self.keys.get(key).unwrap_or_else(|| panic!("keys.toml has no {key} in {}", self.heading))
    }

    /// Returns the value of a key that nobody sets.
    pub(super) fn default(&self, key: &str) -> Option<Value> {
        let stated = self.meaning(key).default.clone();
        let found = default_of(&self.heading, key);
        assert!(stated.is_none() || found.is_none(), "the code has the default of {} {key}", self.heading);
        stated.or(found)
    }

    fn markdown(&self) -> String {
        let mut text = format!("\n## `{}`\n", self.heading);
        if !self.about.is_empty() {
            let _infallible = write!(text, "\n{}\n", self.about.trim());
        }
        text.push('\n');
        for key in record().keys(&path(&self.heading)) {
            let meaning = self.meaning(&key.name);
            let kind = meaning.kind.clone().unwrap_or_else(|| kind(key.shape));
            let default = self.default(&key.name);
            // A default shows a type of one word.
            let kind = if default.is_some() && !kind.contains(' ') { String::new() } else { format!(" ({kind})") };
            let default = default.map_or_else(String::new, |value| format!(" = {value}"));
            let _infallible = writeln!(text, "- `{}{default}`{kind}: {}.", key.name, meaning.meaning);
        }
        // keys.toml has links from the root.
        text.replace("](docs/", "](").replace("](SECURITY", "](../SECURITY")
    }
}

// === impl Meaning ===

impl Meaning {
    /// Returns the meaning without links, for editors.
    pub(super) fn plain(&self) -> String {
        let mut text = String::new();
        let mut rest = self.meaning.as_str();
        while let Some((before, from)) = rest.split_once("](") {
            let mut depth = 1;
            let opens = |c: char| {
                depth += i32::from(c == ']') - i32::from(c == '[');
                depth == 0
            };
            let start = before.rfind(opens).expect("a link begins");
            let (ahead, link) = before.split_at(start);
            text = text + ahead + link.strip_prefix('[').expect("a bracket");
            rest = from.split_once(')').expect("a link ends").1;
        }
        text + rest
    }
}

pub(super) fn sections() -> Vec<Section> {
    toml::from_str::<Meanings>(MEANINGS).expect("keys.toml is right").section
}

/// Returns the value that is in force for a key that nobody sets.
fn default_of(heading: &str, key: &str) -> Option<Value> {
    [SMALL, WHOLE].into_iter().find_map(|text| {
        let set: Table = toml::from_str(text).expect("it is TOML");
        let effective: Table = toml::from_str(&load_plain(text).ok()?.effective).expect("it is TOML");
        let is_set = table(&set, heading).is_some_and(|table| table.contains_key(key));
        let value = table(&effective, heading)?.get(key).filter(|_| !is_set)?.clone();
        let is_listed = key == "name" || value.as_array().is_some_and(|list| list.iter().any(Value::is_table));
        let is_shown = key == "adapt" || !value.is_table() && !is_listed;
        is_shown.then_some(value)
    })
}

/// Returns a table of a configuration by its heading.
fn table<'a>(root: &'a Table, heading: &str) -> Option<&'a Table> {
    heading.trim_matches(['[', ']']).split('.').try_fold(root, |table, step| {
        match table.get(if step == "NAME" { "name" } else { step })? {
            Value::Table(below) => Some(below),
            // The class that every gate has.
            Value::Array(classes) => {
                classes.iter().filter_map(Value::as_table).find(|class| class["name"].as_str() == Some("default"))
            }
            _ => None,
        }
    })
}

/// Returns the type of a key as readers see it.
fn kind(shape: Shape) -> String {
    let words = |words: &[&str]| words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ");
    match shape {
        Shape::Text => "text".to_owned(),
        Shape::Truth => "boolean".to_owned(),
        Shape::Whole(_) | Shape::Whole32(_) => "integer".to_owned(),
        Shape::Number => "number".to_owned(),
        Shape::Rate => "rate".to_owned(),
        Shape::Duration => "duration".to_owned(),
        Shape::Or(shape, word) => format!("{} or `\"{word}\"`", kind(*shape)),
        Shape::Size => "size".to_owned(),
        Shape::Word(all) => words(all),
        Shape::WordOrFile(all) => format!("{}, or a path", words(all)),
        Shape::WholeOr(all) => format!("integer, {}", words(all)),
        Shape::List(_) => "list".to_owned(),
        Shape::Addresses => "address or list".to_owned(),
        Shape::TextByName => "table of texts".to_owned(),
        Shape::Any => "any value".to_owned(),
        Shape::Table => "table".to_owned(),
        Shape::TableOrOff | Shape::Limit => "table or `\"off\"`".to_owned(),
        Shape::TableOrText => "text or table".to_owned(),
        Shape::TablesByName => "tables".to_owned(),
        Shape::ListOfTables => "list of tables".to_owned(),
    }
}

#[test]
fn the_reference_is_what_the_code_reads() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join("docs/configuration.md");
    let page = fs::read_to_string(&file).expect("the page is there");
    let (begin, end) = ("<!-- generated: begin -->\n", "\n<!-- generated: end -->");
    let before = page.split(begin).next().expect("the first marker");
    let after = page.split(end).nth(1).expect("the second marker");
    let made: String = sections().iter().map(Section::markdown).collect();
    let fresh = format!("{before}{begin}{made}{end}{after}");
    if std::env::var_os("TIDEGATE_WRITE_DOCS").is_some() {
        fs::write(&file, &fresh).expect("it can be written");
    } else {
        assert!(page == fresh, "docs/configuration.md is stale: run this test with TIDEGATE_WRITE_DOCS=1");
    }
}

#[test]
fn every_key_has_a_meaning_and_no_other() {
    let record = record();
    let sections = sections();
    assert_eq!(sections.iter().map(|section| &*section.heading).collect::<Vec<_>>(), HEADINGS);
    for section in sections {
        let mut known = keys(&record, &section.heading);
        known.sort();
        assert_eq!(section.keys.into_keys().collect::<Vec<_>>(), known, "{}", section.heading);
    }
}

#[test]
fn a_default_is_what_is_in_force_without_the_key() {
    assert_eq!(default_of("[gates.NAME.queue]", "max_wait"), Some("8s".into()));
    assert_eq!(default_of("[gates.NAME]", "upstream"), None, "it is required");
    assert_eq!(default_of("[stores.NAME]", "timeout"), Some("250ms".into()));
    assert_eq!(good(SMALL).settings.gates.len(), 1);
}
