//! Follows a page of the documentation: one shell runs its commands as they are written, and their
//! output is compared with the output on the page.

use std::path::Path;
use std::process::{Command, Stdio};

/// Stands on a page for text that differs from run to run.
const ANYTHING: char = '…';

/// Between the outputs of two steps.
const NEXT: &str = "@@ next step @@";

/// Commands, and their output according to the page.
#[derive(Debug, Default)]
struct Step {
    commands: String,
    prints: Vec<String>,
}

/// Every `sh` block of a page, with the `text` block after it.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut within = "";
    for line in page.lines() {
        match (within, line) {
            ("", "```sh") => {
                within = "sh";
                steps.push(Step::default());
            }
            ("", "```text") => within = "text",
            ("", line) if line.starts_with("```") => within = "other",
            (_, "```") => within = "",
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

/// Follows a page in a folder whose programs come first, with these variables. Returns what was
/// typed and printed.
pub fn follow(page: &str, folder: &Path, variables: &[(&str, String)]) -> String {
    let steps = steps(page);
    assert!(steps.len() > 2, "the page has no commands");
    let commands: Vec<&str> = steps.iter().map(|step| step.commands.as_str()).collect();
    // What still runs at the end must not outlive the page.
    let script =
        format!("trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n{}", commands.join(&format!("echo '{NEXT}'\n")));
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &script]).current_dir(folder).stdin(Stdio::null());
    shell.env("PATH", &path).env("HOME", folder);
    for (name, value) in variables {
        shell.env(name, value);
    }
    let out = shell.output().expect("bash runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let printed: Vec<&str> = stdout.split(&format!("{NEXT}\n")).collect();
    for (step, printed) in steps.iter().zip(&printed) {
        let mut lines = printed.lines();
        for said in step.prints.iter().filter(|line| !line.trim().is_empty()) {
            let found = lines.any(|line| is_like(line, said));
            assert!(found, "the page says\n{}it prints\n{said}\nand it prints\n{printed}\n{stderr}", step.commands);
        }
    }
    let last = printed.len().min(steps.len()) - 1;
    assert!(out.status.success(), "{}{}\n{stderr}", steps[last].commands, printed[last]);
    let told: Vec<String> =
        steps.iter().zip(&printed).map(|(step, printed)| format!("$ {}{printed}", step.commands)).collect();
    told.join("\n")
}
