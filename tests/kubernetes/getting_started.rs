//! Follows docs/getting-started.md: a shell in the project's folder runs its commands as they are
//! written, and their output is compared with the output on the page.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::audit::{Audit, worst_excess};
use crate::support::cluster::Cluster;
use crate::support::control_plane::ControlPlane;
use crate::support::process::scratch_dir;
use crate::support::{now, say, turn};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/getting-started.md");

/// Stands on the page for text that differs from run to run.
const ANYTHING: char = '…';

/// The limits that the page sets, and how much later than the gate the audit log may see a call.
const RATE: f64 = 5.0;
const BURST: f64 = 10.0;
const SLACK: Duration = Duration::from_millis(200);

/// Commands, and their output according to the page.
#[derive(Debug, Default)]
struct Step {
    commands: String,
    prints: Vec<String>,
}

/// Every `sh` block of the page, with the `text` block after it.
fn steps() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut within = "";
    for line in fs::read_to_string(PAGE).expect("the page").lines() {
        match (within, line) {
            ("", "```sh") => {
                within = "sh";
                steps.push(Step::default());
            }
            ("", "```text") => within = "text",
            ("sh" | "text", "```") => within = "",
            ("sh", line) => {
                let step = steps.last_mut().expect("one was begun");
                step.commands.push_str(line);
                step.commands.push('\n');
            }
            ("text", line) => steps.last_mut().expect("after commands").prints.push(line.to_owned()),
            _ => {}
        }
    }
    steps
}

/// True if a line is as the page shows it.
fn is_like(line: &str, said: &str) -> bool {
    let line = line.trim_end();
    let mut parts = said.trim_end().split(ANYTHING);
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[test]
fn whoever_follows_the_page_gets_an_operator_behind_a_gate() {
    let Some(cluster) = Cluster::shared("whoever_follows_the_page_gets_an_operator_behind_a_gate") else { return };
    let _turn = turn::light();
    let plane = &cluster.plane;
    let folder = scratch_dir();
    let programs = [
        ("kubectl", plane.binaries().path("kubectl")),
        ("tidegate", PathBuf::from(env!("CARGO_BIN_EXE_tidegate"))),
        ("deploy", PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy"))),
    ];
    for (name, path) in programs {
        symlink(path, folder.path().join(name)).expect("the folder is ours");
    }
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let config = plane.kubeconfig(&ControlPlane::harness());
    let begin = now();
    for step in steps() {
        let mut run = Command::new("bash");
        run.args(["-euo", "pipefail", "-c", &step.commands]).current_dir(folder.path()).stdin(Stdio::null());
        let out = run.env("PATH", &path).env("HOME", folder.path()).env("KUBECONFIG", &config).output();
        let out = out.expect("bash runs");
        let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{}{stdout}\n{stderr}", step.commands);
        let mut lines = stdout.lines();
        for said in step.prints.iter().filter(|line| !line.trim().is_empty()) {
            let found = lines.any(|line| is_like(line, said));
            assert!(found, "the page says\n{}it prints\n{said}\nand it prints\n{stdout}\n{stderr}", step.commands);
        }
        if std::env::var_os("TIDEGATE_SHOW_STEPS").is_some() {
            say(format!("\n$ {}{stdout}{stderr}", step.commands));
        }
    }
    let took = begin.elapsed();

    // The API server's own log confirms what the page says about the rate: free at first, held by
    // the gate, free again.
    let writes = plane
        .audit()
        .of("system:serviceaccount:getting-started:operator")
        .only(|event| event.resource == "widgets" && event.is_metered());
    let started = cluster.wait_container("up", "getting-started", "tidegate").at;
    let ended = cluster.wait_container("asked to stop", "getting-started", "tidegate").at;
    let (from, to) = (Duration::from_micros(started), Duration::from_micros(ended));
    let held = writes.only(|event| event.received >= from && event.received <= to);
    let free = writes.only(|event| event.received < from);
    let excess = |calls: &Audit| worst_excess(&calls.arrivals(), RATE, BURST, SLACK);
    assert!(excess(&free) > 0.0, "{} calls before the gate, and none too many for it: nothing was shown", free.len());
    assert!(held.len() > 10 && excess(&held) <= 0.0, "{} calls, {:.1} of them too many", held.len(), excess(&held));
    say(format!(
        "getting started: the whole page in {:.0} s; {} calls without the gate ({:.0} more than its limits allow), {} with it (none more)",
        took.as_secs_f64(),
        free.len(),
        excess(&free),
        held.len()
    ));
}
