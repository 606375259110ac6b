//! Holds every file of a preset to its form, EC2's to its actions, and the document to the files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::config::{Configuration, Input, Problem, load};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Loads a gate whose preset is this file, in a folder of its own.
fn with_file(preset: &str, more: &str) -> Result<Configuration, Vec<String>> {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("mine.toml"), preset).expect("written");
    let path = folder.path().join("tidegate.toml");
    let gate = "[gates.g]\nupstream = \"https://x.example\"\npreset = \"./mine.toml\"\nrewrite_links = true\n";
    fs::write(&path, format!("{gate}{more}")).expect("written");
    let place = format!("{}/./", folder.path().display());
    let line = |problem: &Problem| problem.to_string().replace(&place, "");
    load(&Input { file: Some(path), env: Vec::new() }).map_err(|problems| problems.iter().map(line).collect())
}

#[test]
fn every_file_of_the_folder_is_embedded() {
    let files =
        fs::read_dir(root().join("config/presets")).expect("a folder").map(|file| file.expect("a file").file_name());
    let files: BTreeSet<String> = files.map(|name| name.to_string_lossy().into_owned()).collect();
    assert_eq!(files, PRESETS.iter().map(|preset| format!("{}.toml", preset.name)).collect());
}

#[test]
fn every_embedded_file_would_do_as_a_users() {
    for EmbeddedPreset { name, text } in PRESETS {
        let own = with_file(text, "kind = \"http\"\n").unwrap_or_else(|problems| panic!("{name}: {problems:#?}"));
        let gate = format!(
            "[gates.g]\nupstream = \"https://x.example\"\npreset = \"{name}\"\nrewrite_links = true\nkind = \"http\"\n"
        );
        let embedded = crate::config::load_text("f.toml".to_owned(), gate, &[]).expect("it is right");
        assert_eq!(own.effective.replace("./mine.toml", name), embedded.effective);
        assert_eq!(own.warnings.len(), embedded.warnings.len(), "{name}: {:?}", embedded.warnings);
    }
}

#[test]
fn every_provider_has_figures_a_source_of_a_day_and_a_trial() {
    for embedded in PRESETS.iter().filter(|embedded| embedded.load().dialect.is_some()) {
        let source = embedded.parse().source.unwrap_or_else(|| panic!("{} has no source", embedded.name)).to_string();
        let (_, day) = source.split_once("read on 20").expect("a day");
        let form: String =
            day.chars().take(8).map(|letter| if letter.is_ascii_digit() { '0' } else { letter }).collect();
        assert_eq!(form, "00-00-00", "{source}");
        assert!(source.contains(": https://"), "{source}");
        assert!(!embedded.load().take_share(1.0).expect("a provider's").figures.is_empty(), "{}", embedded.name);
        assert!(embedded.parse().gate.contains_key("tried"), "{}", embedded.name);
    }
}

#[test]
fn no_action_of_ec2_stands_twice() {
    let classes = EmbeddedPreset::named("aws_ec2").expect("a preset").load().classes;
    let actions = classes.iter().filter_map(|class| class.keys.get("match")?.get("actions")?.as_array());
    let all: Vec<&str> = actions.flatten().filter_map(Value::as_str).filter(|action| !action.ends_with('*')).collect();
    assert_eq!((classes.len(), all.len()), (25, 130));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    assert_eq!(classes.iter().map(|class| class.keys["name"].as_str()).collect::<BTreeSet<_>>().len(), classes.len());
    assert!(all.iter().all(|action| action.bytes().all(|letter| letter.is_ascii_alphanumeric())));
}

#[test]
fn problems_of_a_users_file_name_its_lines() {
    let figure = "bucket = { published = { calls = 100, seconds = 60 } }\n";
    let source = "[source]\nname = \"a page\"\nread = \"2026-11-27\"\nurl = \"https://x.example\"\neach = \"user\"\n";
    let class = "[[classes]]\nname = \"a\"\nmatch = { paths = [\"/a\"] }\n";
    for (file, expected) in [
        ("bukcet = { rate = 1, burst = 1 }\n".to_owned(), "mine.toml:1:1: bukcet: is not a valid key"),
        (
            figure.to_owned(),
            "mine.toml:1:12: bucket.published: is a figure without a source, expected [source] with name",
        ),
        (
            format!("{figure}{source}{class}{class}"),
            "mine.toml:11:8: classes[1].name: is \"a\", the name of classes[0] too",
        ),
        (
            format!("{source}{class}bucket = {{ rate = \"fast\", burst = 1 }}\n"),
            "mine.toml:9:19: classes[0].bucket.rate: is ",
        ),
        (format!("{source}{class}bucket = {{ rate = 1 }}\n"), "mine.toml:9:1: classes[0].bucket.burst: is missing"),
        (format!("{source}{class}buckets = 1\n"), "mine.toml:9:1: classes[0].buckets: is not a valid key"),
        (
            "bucket = { rate = 1, burst = 1, published = { calls = 5 } }\n".to_owned() + source,
            "mine.toml:1:45: bucket.published: is not a figure, expected { burst",
        ),
        ("[source]\nname = \"a page\"\n".to_owned(), "mine.toml:1:1: source: expected the texts name, url, read"),
        (
            "uncounted = [{ paths = [\"a\"] }]\n".to_owned(),
            "mine.toml:1:25: uncounted[0].paths[0]: is \"a\", expected a path from its",
        ),
        ("unchanged = { burst = 1 }\n".to_owned(), "mine.toml:1:1: unchanged.rate: is missing"),
        ("uncounted = [{ path = [\"/a\"] }]\n".to_owned(), "mine.toml:1:16: uncounted[0].path: is not a valid key"),
        ("like = \"asw\"\n".to_owned(), "mine.toml:1:8: like: is \"asw\", expected \"sidecar\""),
        ("preset = \"aws\"\n".to_owned(), "mine.toml:1:1: preset: is not for a preset, expected like"),
        ("share = 2\n".to_owned(), "mine.toml:1:9: share: is 2.0, expected a fraction"),
        ("bucket = {\n".to_owned(), "mine.toml:1:"),
    ] {
        let problems = with_file(&file, "").err().unwrap_or_default();
        assert!(problems.len() == 1 && problems[0].starts_with(expected), "{file}\n{problems:#?}");
    }
    let nowhere = "[gates.g]\nupstream = \"https://x\"\npreset = \"./none.toml\"\n";
    let problems = crate::config::load_text("f.toml".to_owned(), nowhere.to_owned(), &[]).expect_err("there is none");
    let expected = "f.toml:3:10: gates.g.preset: is \"./none.toml\", but ./none.toml cannot be read: No such file";
    assert!(problems[0].to_string().starts_with(expected), "{}", problems[0]);
}

#[test]
fn the_document_has_every_figure() {
    let file = root().join("docs/external-apis.md");
    let page = fs::read_to_string(&file).expect("the page is there");
    let (begin, end) = ("<!-- generated: presets -->\n", "\n<!-- generated: end -->");
    let before = page.split(begin).next().expect("the first marker");
    let after = page.split(end).nth(1).expect("the second marker");
    let providers = PRESETS.iter().filter(|preset| preset.load().dialect.is_some());
    let fresh =
        format!("{before}{begin}{HEAD}{}{end}{after}", providers.map(|preset| row(*preset)).collect::<String>());
    if std::env::var_os("TIDEGATE_WRITE_DOCS").is_some() {
        fs::write(&file, &fresh).expect("it can be written");
    } else {
        assert!(page == fresh, "docs/external-apis.md is stale: run this test with TIDEGATE_WRITE_DOCS=1");
    }
}

const HEAD: &str = "\n| preset | source, and the day it was read | for each | figures (rate+burst) | never counted | tried |\n|---|---|---|---|---|---|\n";

/// The row of a preset, without what it includes from others.
fn row(preset: EmbeddedPreset) -> String {
    let file: Table = toml::from_str(preset.text).expect("it is TOML");
    let text = |table: &Table, key: &str| table.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let source = file["source"].as_table().expect("a source");
    let parsed = preset.parse();
    let alone = Preset {
        classes: parsed.classes.into_iter().filter(|class| class.of.is_none()).collect(),
        like: None,
        ..parsed
    };
    let figures = Preset { dialect: preset.load().dialect, ..alone.completed(preset.name) }
        .take_share(1.0)
        .expect("a provider's")
        .figures;
    let figure = |figure: &spec::Figure| {
        let says = figure.says.split(" for each").next().unwrap_or_default().replace(", burst ", "+");
        figure.class.as_ref().map_or_else(|| says.clone(), |class| format!("`{class}` {says}"))
    };
    let figures: Vec<String> = figures.iter().map(figure).collect();
    let calls = |calls: &BTreeMap<String, Vec<String>>| {
        let words: Vec<String> = calls.values().map(|words| words.join(", ")).collect();
        format!("`{}`", words.join(" "))
    };
    let uncounted: Vec<String> = preset.parse().uncounted.iter().map(calls).collect();
    let uncounted = uncounted.join("; ");
    let uncounted = if uncounted.is_empty() { "-".to_owned() } else { uncounted };
    format!(
        "| `{}` | [{}]({}), {} | {} | {} | {uncounted} | {} |\n",
        preset.name,
        text(source, "name"),
        text(source, "url"),
        text(source, "read"),
        text(source, "each"),
        figures.join("; "),
        text(&file, "tried"),
    )
}
