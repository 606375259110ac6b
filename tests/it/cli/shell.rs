//! The files for shells, editors and `man`, tried with the real programs where they are installed.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::command::{end, tidegate};

/// The output of a command.
fn printed(arguments: &[&str]) -> String {
    let ended = end(tidegate(arguments));
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{arguments:?}");
    ended.out
}

/// Runs a program of the machine. Prints a line and returns `None` if there is no such program.
fn run(program: &str, arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let spawned = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else {
        eprintln!("skipped: there is no {program} here");
        return None;
    };
    child.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("it reads");
    let done = child.wait_with_output().expect("it ends");
    let said = [done.stdout, done.stderr].concat();
    Some((done.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn the_schema_is_printed_as_it_is_committed() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config/tidegate.schema.json");
    assert!(printed(&["schema"]) == fs::read_to_string(path).expect("it is there"));
}

#[test]
fn bash_completes_commands_options_and_values() {
    let script = printed(&["completions", "bash"]);
    let complete = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let last = words.len() - 1;
        let ask = format!(
            "{script}\nCOMP_WORDS=({})\nCOMP_CWORD={last}\n_tidegate tidegate \"${{COMP_WORDS[{last}]}}\" \
             \"${{COMP_WORDS[{}]}}\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            words.join(" "),
            last - 1
        );
        let (done, said) = run("bash", &["--norc", "--noprofile"], &ask)?;
        assert!(done, "{said}");
        Some(said.lines().map(str::to_owned).collect::<Vec<_>>())
    };
    let Some(commands) = complete(&["tidegate", ""]) else { return };
    for wanted in ["run", "check", "simulate", "doctor", "forget", "completions", "man", "schema"] {
        assert!(commands.iter().any(|command| command == wanted), "{wanted}: {commands:?}");
    }
    assert_eq!(complete(&["tidegate", "expl"]).expect("bash is there"), ["explain"]);
    assert_eq!(complete(&["tidegate", "forget", "--pa"]).expect("bash is there"), ["--pauses"]);
    assert_eq!(complete(&["tidegate", "bypass", "o"]).expect("bash is there"), ["on", "off"]);
    assert_eq!(complete(&["tidegate", "inject", "--mode", "in"]).expect("bash is there"), ["in-cluster"]);
}

#[test]
fn the_completions_of_other_shells_are_scripts_of_theirs() {
    for (shell, check) in [("zsh", &["-n"][..]), ("fish", &["--no-execute"])] {
        let script = printed(&["completions", shell]);
        assert!(script.contains("forget") && script.contains("pauses"), "{shell}");
        if let Some((done, said)) = run(shell, check, &script) {
            assert!(done && said.is_empty(), "{shell}: {said}");
        }
    }
    for shell in ["elvish", "powershell"] {
        assert!(printed(&["completions", shell]).contains("forget"), "{shell}");
    }
    assert_eq!(end(tidegate(["completions", "tcsh"])).code, Some(64));
}

#[test]
fn every_command_has_a_manual_page_without_a_warning() {
    let folder = tempfile::tempdir().expect("a folder");
    let inside = folder.path().join("man1");
    printed(&["man", "--output", &inside.display().to_string()]);
    let mut pages: Vec<_> =
        fs::read_dir(&inside).expect("it was made").map(|page| page.expect("readable").path()).collect();
    pages.sort();
    assert!(pages.len() > 12, "{pages:?}");
    assert!(pages.iter().any(|page| page.ends_with("tidegate-forget.1")), "{pages:?}");
    for page in &pages {
        let text = fs::read_to_string(page).expect("text");
        let name = page.file_stem().expect("a name").to_string_lossy().into_owned();
        let Some((done, said)) = run("groff", &["-man", "-ww", "-Tutf8", "-P-cbou"], &text) else { return };
        assert!(done && !said.contains("warning") && !said.contains("error:"), "{name}: {said}");
        assert!(said.contains("NAME") && said.contains("SYNOPSIS"), "{name}: {said}");
    }
    let page = printed(&["man"]);
    assert_eq!(page, fs::read_to_string(inside.join("tidegate.1")).expect("it is there"));
    assert!(page.contains("completions") && page.contains("explain"), "{page}");
    let taken = folder.path().join("taken");
    fs::write(&taken, "").expect("it can be written");
    let failed = end(tidegate(["man".as_ref(), "--output".as_ref(), taken.as_os_str()]));
    assert!(failed.code == Some(1) && failed.err.contains("taken"), "{}", failed.err);
}
