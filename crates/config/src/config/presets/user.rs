//! A user's preset: a file beside the configuration, in the form of the embedded ones.
//!
//! Its figures, calls and classes are checked here. All other keys are those of a gate, so the file
//! is also read as one, and each problem names its line in the file.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::figures::{Figure, FigureSource};
use super::{EmbeddedPreset, Preset, is_path};
use crate::classify::ApiKind;
use crate::config::cursor::Cursor;
use crate::config::limits;
use crate::config::problems::{Problem, Text};
use crate::config::report::Report;
use crate::spec::HostPattern;

/// Reads the file at `word` for a gate; `read` reads a gate. A file with problems has no limits.
pub(super) fn load(word: &str, at: &Cursor<'_>, read: &dyn Fn(&Cursor<'_>)) -> Preset {
    let file = at.report().folder().join(word);
    let shown = file.display().to_string();
    let expected = "expected the file of a preset, such as one that `tidegate check --preset github` prints";
    let unreadable = |error: std::io::Error| format!("is {word:?}, but {shown} cannot be read: {error}; {expected}");
    let Some(text) = at.at("preset").accept(std::fs::read_to_string(&file).map_err(unreadable)) else {
        return Preset::default();
    };
    check(shown, text, read).map(|preset| preset.completed(word)).unwrap_or_else(|problems| {
        at.report().add(problems);
        // Of the gate nothing more is to be said, and most are before external APIs.
        Preset { gate: Table::from_iter([("kind".to_owned(), "http".into())]), ..Preset::default() }
    })
}

/// Returns the preset files that a configuration's text names.
pub fn named(file: &Path, text: &str) -> Vec<PathBuf> {
    let root: Table = toml::from_str(text).unwrap_or_default();
    let gates = root.get("gates").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let words = gates.filter_map(|gate| gate.get("preset")?.as_str()).filter(|word| is_path(word));
    words.map(|word| file.with_file_name("").join(word)).collect()
}

/// Reads the text of the file `name`.
///
/// # Errors
/// All problems.
fn check(name: String, text: String, read: &dyn Fn(&Cursor<'_>)) -> Result<Preset, Vec<Problem>> {
    let (text, syntax) = Text::new(name, text);
    let root: Value = toml::from_str(&text.text).map_err(|_| syntax)?;
    let report = Report::new(&text, &[]);
    let at = Cursor::root(&root, &report);
    check_top(&at);
    let is_sourced = check_source(&at);
    check_figure(&at.at("bucket"), is_sourced);
    if let Some(unchanged) = at.table_alone("unchanged") {
        check_figure(&unchanged, is_sourced);
        limits::bucket(&unchanged);
    }
    for class in at.list("classes") {
        let is_sourced = check_source(&class) || is_sourced;
        check_figure(&class.at("bucket"), is_sourced);
        class.read::<EmbeddedPreset>("of");
        class.read::<bool>("hides_by_403");
        class.read::<bool>("serial_writes");
    }
    // What does not fit has been reported.
    let parse = || root.clone().try_into::<Preset>().unwrap_or_default();
    read(&Cursor::root(&as_gate(parse()).into(), &report));
    report.finish(&root, Vec::new(), &[]).map(|_| parse())
}

/// Checks the keys of a preset that a gate has not, or has for something else.
fn check_top(at: &Cursor<'_>) {
    at.read::<String>("tried");
    at.read::<Vec<HostPattern>>("hosts");
    at.table_alone("http");
    at.read::<u32>("max_reconcile_rate");
    at.get_if("share", 1.0, |share| *share > 0.0 && *share <= 1.0, "a fraction above 0 and at most 1");
    at.read::<EmbeddedPreset>("like");
    if at.has("preset") {
        at.at("preset").key_problem("is not for a preset, expected like = \"NAME\", which takes its keys from another");
    }
    for calls in at.list("uncounted") {
        calls.read::<Vec<String>>("methods");
        let paths = calls.read::<Vec<String>>("paths").unwrap_or_default();
        let fault = |path: &str| (!path.starts_with('/')).then(|| "expected a path from its \"/\"".to_owned());
        calls.check_each("paths", &paths, fault);
    }
}

/// Checks the source of a gate or class. Returns true if there is one.
fn check_source(at: &Cursor<'_>) -> bool {
    let Some(source) = at.table_alone("source") else { return false };
    if source.as_table().cloned().unwrap_or_default().try_into::<FigureSource>().is_err() {
        source.problem("expected the texts name, url, read (a day, \"2026-11-27\") and each (\"account\")");
    }
    true
}

/// Checks the figure of a bucket.
fn check_figure(bucket: &Cursor<'_>, is_sourced: bool) {
    let Some(figure) = bucket.table_alone("published") else { return };
    if figure.as_table().cloned().unwrap_or_default().try_into::<Figure>().is_err() {
        figure.problem("is not a figure, expected { burst = 100, rate = 20 } or { calls = 5000, seconds = 3600 }");
    }
    if !is_sourced {
        figure.key_problem("is a figure without a source, expected [source] with name, url, read and each");
    }
}

/// Returns the preset as a gate that a user could write. Its classes have their places in the file;
/// those from other presets follow.
fn as_gate(mut preset: Preset) -> Table {
    let mut included = Vec::new();
    for (place, class) in preset.classes.iter_mut().enumerate() {
        if let Some(other) = class.included() {
            included.extend(other.load().classes);
            class.of = None;
            class.keys = toml::from_str(&format!("name = \"of_{place}\"\nmatch = {{}}")).unwrap_or_default();
        }
    }
    preset.classes.extend(included);
    let mut preset = preset.completed("");
    preset.fit(ApiKind::Http, NonZeroU32::MIN);
    preset.take_share(1.0);
    let mut gate = preset.gate;
    gate.retain(|key, _| !matches!(key, "hosts" | "share" | "max_reconcile_rate"));
    gate.insert("preset".to_owned(), "none".into());
    gate.entry("upstream").or_insert("https://preset.invalid".into());
    let classes: Vec<Value> = preset.classes.into_iter().map(|class| class.keys.into()).collect();
    gate.insert("classes".to_owned(), classes.into());
    gate
}
