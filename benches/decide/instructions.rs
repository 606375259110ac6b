//! Instructions per decision: this binary runs itself under callgrind, once for so many decisions
//! and once for twice as many. The difference is what the decisions cost, without the stage, and
//! without symbols or markers in the code.

use std::env;
use std::process::{Command, Stdio};

use crate::scenes::Scene;

/// True if valgrind is installed.
pub(crate) fn can_count() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Returns the instructions of one decision.
///
/// # Errors
/// The output of valgrind, if it is not a number.
pub(crate) fn of(scene: &Scene) -> Result<u64, String> {
    let (once, twice) = std::thread::scope(|scope| {
        let once = scope.spawn(|| count(scene, TIMES));
        (once.join().expect("it does not panic"), count(scene, 2 * TIMES))
    });
    Ok((twice?.saturating_sub(once?) + TIMES / 2) / TIMES)
}

/// Plays a scene, in the child process.
pub(crate) fn play(scene: &Scene, times: u64) {
    let mut once = (scene.stage)();
    (0..WARM_UP + times).for_each(|_| once());
    // Taking the stage apart is not counted.
    std::mem::forget(once);
}

fn count(scene: &Scene, times: u64) -> Result<u64, String> {
    let this = env::current_exe().map_err(|error| error.to_string())?;
    let done = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(this)
        .args(["play", scene.name, &times.to_string()])
        .stdout(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    let collected = said.lines().find_map(|line| line.split_once("Collected :")).map(|(_, count)| count.trim().parse());
    match collected {
        Some(Ok(count)) if done.status.success() => Ok(count),
        _ => Err(format!("{} under valgrind: {}\n{said}", scene.name, done.status)),
    }
}

/// More than a thousand, so that a table that grows in between weighs little.
const TIMES: u64 = 5_000;

/// Decisions until tables and caches have their full size.
const WARM_UP: u64 = 1_000;
