//! The demo as a user starts it: it ends by itself, reports what it saw, leaves a picture, and the
//! gate keeps its promise in it.

use crate::command::{Ended, end, tidegate};

fn played(seconds: u64) -> (Ended, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("calls.svg");
    let mut command = tidegate(["demo", "--seconds", &seconds.to_string(), "--svg"]);
    command.arg(&svg).current_dir(folder.path());
    let ended = end(command);
    let picture = std::fs::read_to_string(&svg).unwrap_or_default();
    (ended, picture)
}

/// The number in front of or behind some words.
fn number_between(text: &str, before: &str, after: &str) -> usize {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let rest = flat.split_once(before).unwrap_or_else(|| panic!("no {before:?} in\n{text}")).1;
    let number = rest.split_once(after).unwrap_or_else(|| panic!("no {after:?} in\n{text}")).0;
    number.trim().replace(',', "").parse().unwrap_or_else(|_| panic!("{number:?} is no number"))
}

#[test]
fn the_demo_ends_with_a_picture_and_the_gate_keeps_its_rate() {
    let (ended, picture) = played(5);
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
    assert!(!ended.out.contains('\x1b'), "no escapes where there is no terminal");
    for part in ["without the gate", "with the gate", "calls per second", "webhook down"] {
        assert!(picture.contains(part), "no {part:?} in\n{picture}");
    }
    assert!(ended.out.contains("renewals"), "{}", ended.out);
    let (rate, burst) = (tidegate::demo::RATE as usize, tidegate::demo::BURST as usize);
    let most = number_between(&ended.out, "With the gate never more than", "calls in one second");
    // The API counts what arrives: a busy machine may deliver a quarter of a second's calls late.
    // Leases are exempt.
    let bound = burst + rate * 5 / 4 + 20;
    assert!(most <= bound, "{most} calls in a second, more than {bound}\n{}", ended.out);
}

#[test]
fn a_picture_that_cannot_be_written_is_found_out_at_the_start() {
    let mut command = tidegate(["demo", "--svg", "/nowhere/calls.svg"]);
    command.current_dir(std::env::temp_dir());
    let ended = end(command);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains("/nowhere/calls.svg"), "{}", ended.err);
}
