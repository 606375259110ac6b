//! Checks the commands against their help, and against every document that names them.

use std::fs;
use std::path::Path;

use clap::CommandFactory as _;
use clap::error::ErrorKind;

use super::{CommandLine, definition};

#[test]
fn every_help_fits_a_screen_and_shows_an_example() {
    let mut command = CommandLine::command();
    command.clone().debug_assert();
    let mut all = vec![command.clone()];
    all.extend(command.get_subcommands_mut().map(|it| it.clone()));
    for mut command in all {
        let help = command.render_help().to_string();
        assert!(help.lines().count() <= 24, "{help}");
        assert!(help.contains("Example"), "{help}");
    }
}

#[test]
fn every_command_has_a_manual_page_and_is_named_in_the_help() {
    let help = CommandLine::command().render_help().to_string();
    for command in definition().get_subcommands() {
        assert!(!command.is_hide_set(), "{} has no manual page", command.get_name());
        let is_named = |name: &str| help.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == name);
        assert!(is_named(command.get_name()), "{} is not in\n{help}", command.get_name());
    }
}

/// Returns every line of a document in which `tidegate` is typed, from code blocks and from code in
/// the text.
fn typed(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    let mut joined = String::new();
    for line in text.lines() {
        let bare = line.trim_start();
        if bare.starts_with("```") {
            fence = if fence.is_some() { None } else { Some(bare.trim_start_matches('`')) };
            continue;
        }
        match fence {
            Some("sh" | "bash" | "console") => {
                joined.push_str(bare.strip_suffix('\\').unwrap_or(bare));
                if !bare.ends_with('\\') {
                    found.extend(commands(joined.trim_start_matches("$ ")));
                    joined.clear();
                }
            }
            Some(_) => {}
            None => {
                found.extend(
                    line.split('`').skip(1).step_by(2).filter(|code| code.starts_with("tidegate ")).flat_map(commands),
                );
            }
        }
    }
    found
}

/// Returns the commands of a shell line that are tidegate's: after a pipe, after `--`, or at its
/// beginning; without comments and redirections.
fn commands(line: &str) -> Vec<String> {
    // The arguments of a shell's function are those that its caller types.
    let line = line.split(" # ").next().unwrap_or(line).replace("\\|", "|").replace(" \"$@\"", "").replace(" 2>", " >");
    let pieces = line.split(['|', ';', '(']).flat_map(|piece| piece.split("&&")).flat_map(|piece| piece.split(" -- "));
    pieces
        .map(|piece| {
            piece.split([')', '>', '<']).next().unwrap_or(piece).trim_end_matches([' ', '&']).trim().to_owned()
        })
        .filter(|piece| piece.starts_with("tidegate ") && !piece.contains("..."))
        .collect()
}

/// Splits a command into words as a shell would, and removes the quotes.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in command.chars().chain([' ']) {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (' ', None) if !word.is_empty() => words.push(std::mem::take(&mut word)),
            (' ', None) => {}
            (c, _) => word.push(c),
        }
    }
    words
}

/// Collects every Markdown file of the project.
fn documents(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().unwrap().is_dir() {
            if !name.starts_with('.') && name != "target" && name != "node_modules" {
                documents(&entry.path(), found);
            }
        } else if name.ends_with(".md") {
            found.push(entry.path());
        }
    }
}

#[test]
fn every_command_in_the_documents_can_be_typed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut files, mut wrong, mut seen) = (Vec::new(), Vec::new(), 0);
    documents(root, &mut files);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for command in typed(&text) {
            seen += 1;
            let typed: Vec<String> = words(&command);
            // A command that is only named or has placeholders is not meant to be typed.
            if typed.len() == 2 || typed.iter().any(|word| word.starts_with(['[', '\u{2026}'])) {
                let known =
                    definition().get_subcommands().any(|one| Some(one.get_name()) == typed.get(1).map(String::as_str));
                if !known && !typed.get(1).is_some_and(|word| word.starts_with('-')) {
                    wrong.push(format!("{}: {command}: no such command", file.display()));
                }
                continue;
            }
            let refused = CommandLine::command().try_get_matches_from(&typed).err().filter(clap::Error::use_stderr);
            // `completions SHELL` is right except for its placeholder.
            let holds_a_place = typed.iter().any(|word| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase()));
            let refused = refused.filter(|error| !(holds_a_place && error.kind() == ErrorKind::InvalidValue));
            wrong.extend(refused.map(|error| format!("{}: {command}\n{error}", file.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 50, "only {seen} were found");
}

#[test]
fn commands_are_found_where_people_type_them() {
    let text = "a `tidegate forget 'a b'` and `tidegate`\n```sh\n$ kubectl exec x -c tidegate -- tidegate top --once | less # why\n\
                x | tidegate inject \\\n  -f a.yaml > b\n```\n```toml\ntidegate = 1\n```\n";
    assert_eq!(typed(text), ["tidegate forget 'a b'", "tidegate top --once", "tidegate inject -f a.yaml"]);
    assert_eq!(words("tidegate forget 'a b'"), ["tidegate", "forget", "a b"]);
}
