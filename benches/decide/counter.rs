//! What counts the instructions of a gate: callgrind, or qemu's user emulation with a plugin
//! (`count.c`), which also runs a gate for another processor.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// A program that runs a gate and says at its end how many instructions that has executed.
pub(crate) enum Counter {
    Callgrind,
    /// Callgrind, which leaves what it has counted of each function in this folder.
    Profile(PathBuf),
    /// None: the gate runs by itself.
    Nothing,
    /// With the plugin, a shared object for this machine.
    Qemu(PathBuf),
}

// === impl Counter ===

impl Counter {
    /// Starts a program; the folder is for what callgrind counts.
    ///
    /// # Errors
    /// The binary cannot be read, is for a processor that is not known here, or the program that
    /// counts is not installed.
    pub(crate) fn start(&self, binary: &Path, folder: &Path, arguments: &[OsString]) -> io::Result<Child> {
        let mut command = match self {
            Self::Callgrind => counted(callgrind(&folder.join(COUNTED)), binary),
            Self::Profile(kept) => counted(callgrind(&kept.join("callgrind.out.%p")), binary),
            Self::Nothing => Command::new(binary),
            Self::Qemu(plugin) => {
                let mut command = Command::new(emulator(binary)?);
                let mut file = OsString::from("file=");
                file.push(plugin);
                // Else some of the processor's instructions for TLS are missing.
                command.args(["-cpu", "max", "-plugin"]).arg(file);
                counted(command, binary)
            }
        };
        command.args(arguments);
        let gate = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        GATE.store(gate.id(), Ordering::Relaxed);
        Ok(gate)
    }

    /// Says whether it counts what runs between two moments, and not the start of a gate and its
    /// end as well.
    pub(crate) const fn counts_calls_alone(&self) -> bool {
        matches!(self, Self::Callgrind)
    }

    /// Ends a part of the count of a gate that sleeps, and begins the next: the second part of three
    /// is the calls. Does nothing where there is one part only.
    ///
    /// # Errors
    /// `vgdb`, which comes with valgrind, is missing or cannot reach the gate.
    pub(crate) fn next_part(&self, gate: &Child) -> io::Result<()> {
        if !matches!(self, Self::Callgrind | Self::Profile(_)) {
            return Ok(());
        }
        let failed = |why: &str| io::Error::other(format!("vgdb, which comes with valgrind: {why}"));
        let told = Command::new("vgdb").arg(format!("--pid={}", gate.id())).arg("dump").output();
        let told = told.map_err(|error| failed(&error.to_string()))?;
        if told.status.success() { Ok(()) } else { Err(failed(&String::from_utf8_lossy(&told.stderr))) }
    }

    /// Returns the number of instructions of the calls, or of the whole run where there is one part
    /// only: from the files in the folder, and from what has been said at the end.
    pub(crate) fn collected(&self, folder: &Path, said: &str) -> Option<u64> {
        let count = |text: &str, before| text.lines().find_map(|line| line.split_once(before)?.1.trim().parse().ok());
        if self.counts_calls_alone() {
            let calls = fs::read_to_string(folder.join(format!("{COUNTED}.2"))).ok()?;
            return count(&calls, "totals:");
        }
        count(said, "Collected :")
    }
}

fn counted(mut counter: Command, binary: &Path) -> Command {
    counter.arg(binary);
    counter
}

fn callgrind(out: &Path) -> Command {
    let mut file = OsString::from("--callgrind-out-file=");
    file.push(out);
    let mut command = Command::new("valgrind");
    command.arg("--tool=callgrind").arg(file);
    command
}

/// Waits until the gate has done what it can and sleeps. It has one thread that works.
pub(crate) fn until_it_sleeps() {
    let stat = format!("/proc/{}/stat", GATE.load(Ordering::Relaxed));
    // The state stands behind the name, which is in parentheses.
    let sleeps = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
    let mut asleep = 0;
    for _ in 0..100_000 {
        asleep = if sleeps() { asleep + 1 } else { 0 };
        if asleep == 3 {
            return;
        }
        a_moment();
    }
}

#[expect(clippy::disallowed_methods, reason = "another process works in its own time")]
fn a_moment() {
    thread::sleep(Duration::from_micros(100));
}

/// Returns qemu's emulator for a program, by the processor that its head names.
fn emulator(binary: &Path) -> io::Result<&'static str> {
    let mut head = [0; 20];
    File::open(binary)?.read_exact(&mut head)?;
    match head {
        [0x7f, b'E', b'L', b'F', .., 62, 0] => Ok("qemu-x86_64"),
        [0x7f, b'E', b'L', b'F', .., 183, 0] => Ok("qemu-aarch64"),
        _ => Err(io::Error::other("it is neither for x86_64 nor for aarch64")),
    }
}

/// What callgrind's files are called; those of parts have a number behind it.
const COUNTED: &str = "callgrind.out";

/// The process that is counted.
static GATE: AtomicU32 = AtomicU32::new(0);
