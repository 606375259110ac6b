//! The disk is full: a file system of a few pages, in a mount namespace of the test's own.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use super::api::Api;
use super::clients::{Came, Client};
use super::{is_alone, must, say};
use crate::command::{config, end, start, with_config};
use crate::ports::free_port;

/// Mounts a small disk at a folder.
pub(super) fn small_disk(at: &Path) {
    must("mount", &["-t", "tmpfs", "-o", "size=64k", "tmpfs", &at.display().to_string()]);
}

/// Fills it to the last byte.
pub(super) fn fill(disk: &Path) {
    let mut file = File::create(disk.join("filler")).expect("there is room for a name");
    for size in [4096, 1] {
        while file.write_all(&vec![b'x'; size]).is_ok() {}
    }
}

pub(super) fn unfill(disk: &Path) {
    fs::remove_file(disk.join("filler")).expect("it is there");
}

#[test]
fn calls_go_on_while_the_disk_of_the_call_log_is_full_and_lines_come_again_when_it_has_room() {
    let test = "faults::disk::calls_go_on_while_the_disk_of_the_call_log_is_full_and_lines_come_again_when_it_has_room";
    if !is_alone(test, &["--mount"]) {
        return;
    }
    let (folder, path) = config("");
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).expect("a folder");
    small_disk(&disk);
    let (api, port, calls) = (Api::start(), free_port(), disk.join("calls.jsonl"));
    let text = format!(
        "[admin]\nlisten = \"off\"\n[log]\ncalls = {:?}\n[gates.kubernetes]\npreset = \"none\"\nupstream = \"http://127.0.0.1:{}\"\n\
         listen = \"127.0.0.1:{port}\"\n",
        calls.display().to_string(),
        api.port
    );
    fs::write(&path, text).expect("it can be written");
    let mut gate = start(with_config("run", &path));
    gate.ready();
    let mut client = Client::plain(port).expect("it listens");
    let mut ask =
        |name: &str| assert_eq!(client.ask(&format!("GET /api/v1/namespaces/{name}/pods/p"), ""), Came::Whole(200));
    ask("before");
    fill(&disk);
    let mut asked = 0;
    // The log may still hold some lines in memory, which go first; then it reports that it cannot
    // write.
    while !gate.has_said("cannot write the call log") {
        ask("while-full");
        asked += 1;
    }
    for _ in 0..200 {
        ask("while-full");
    }
    unfill(&disk);
    while !gate.has_said("the call log can be written again") {
        ask("afterwards");
    }
    ask("last");
    drop(client);
    let said = gate.end();
    let written = fs::read_to_string(&calls).expect("it is there");
    let lines: Vec<serde_json::Value> =
        written.lines().map(|line| serde_json::from_str(line).expect("whole lines only")).collect();
    let of = |name: &str| lines.iter().filter(|line| line["namespace"] == name).count();
    assert_eq!((of("before"), of("last")), (1, 1), "{written}");
    let complaints = said.iter().filter(|line| line.contains("cannot write the call log")).count();
    assert_eq!(complaints, 1, "{said:#?}");
    say(format_args!(
        "disk full: {} calls answered meanwhile, {} of their lines kept, the log went on by itself",
        asked + 200,
        of("while-full")
    ));
}

#[test]
fn a_folder_on_a_full_disk_is_named_at_start_and_what_was_in_it_stays_whole() {
    let test = "faults::disk::a_folder_on_a_full_disk_is_named_at_start_and_what_was_in_it_stays_whole";
    if !is_alone(test, &["--mount"]) {
        return;
    }
    let (folder, path) = config("");
    let disk = folder.path().join("shared");
    fs::create_dir(&disk).expect("a folder");
    small_disk(&disk);
    let text = format!(
        "[admin]\nlisten = \"off\"\n[gates.kubernetes]\nupstream = \"http://127.0.0.1:9\"\nlisten = \"127.0.0.1:{}\"\n\
         [gates.kubernetes.tls]\nwrite_to = {:?}\n",
        free_port(),
        disk.display().to_string()
    );
    fs::write(&path, text).expect("it can be written");
    let run = || with_config("run", &path);
    let mut gate = start(run());
    gate.ready();
    assert_eq!(gate.terminate(), Some(0));
    let read = |name: &str| fs::read_to_string(disk.join(name)).expect("it was written");
    let before = (read("ca.crt"), read("ca.key"), read("kubeconfig"));

    fill(&disk);
    let ended = end(run());
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains(&disk.display().to_string()), "the place is named: {}", ended.err);
    assert_eq!((read("ca.crt"), read("ca.key"), read("kubeconfig")), before, "nothing is half written");

    unfill(&disk);
    let mut gate = start(run());
    gate.ready();
    assert_eq!(read("ca.key"), before.1, "it goes on with the CA that clients trust");
    assert_eq!(gate.terminate(), Some(0));
}
