//! Three gates as processes that share one bucket, while the clock of one of them is a day ahead,
//! and that of the store jumps by hours: `libfaketime` lies to them about the time of day.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;

use tidegate::clock::Clock;

use crate::command::{PATIENCE, start, with_config};
use crate::shared::fleet::{BURST, Fleet, length};
use crate::store_server::{Process, programs};

/// A store with a clock that a file sets.
struct Store {
    _process: Process,
    folder: tempfile::TempDir,
}

// === impl Store ===

impl Store {
    fn start(program: &Path, library: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("clock"), "+0").expect("ours");
        let mut command = Command::new(program);
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(folder.path().join("s"));
        command.arg("--dir").arg(folder.path());
        command.env("FAKETIME_TIMESTAMP_FILE", folder.path().join("clock")).env("FAKETIME_NO_CACHE", "1");
        // The server's own allocator asks for the time before the library can answer.
        let of_libc = PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6");
        lied_to(&mut command, library);
        if of_libc.is_file() {
            command.env("LD_PRELOAD", format!("{}:{}", library.display(), of_libc.display()));
        }
        let mut process = Process::start(&mut command);
        let clock = Clock::start();
        while UnixStream::connect(folder.path().join("s")).is_err() {
            process.must_run();
            assert!(clock.now().since_start() < PATIENCE, "it does not start");
            thread::yield_now();
        }
        Self { _process: process, folder }
    }

    /// Sets its clock, as `+1h` says.
    fn set(&self, to: &str) {
        let (new, clock) = (self.folder.path().join("clock.new"), self.folder.path().join("clock"));
        std::fs::write(&new, to).expect("ours");
        std::fs::rename(&new, &clock).expect("ours");
    }

    fn run<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let url = format!("redis+unix://{}", self.folder.path().join("s").display());
        let mut connection = redis::Client::open(url).expect("a URL").get_connection().expect("it takes connections");
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| _ = command.arg(word));
        command.query(&mut connection).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Returns the seconds that its clock shows.
    fn time(&self) -> i64 {
        self.run::<(i64, i64)>(&["TIME"]).0
    }
}

/// Returns the library, unless it is not installed: then it says so, and fails where
/// `TIDEGATE_LIVE=1` is set.
fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().filter_map(Result::ok);
    let library = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1")).find(|file| file.is_file());
    if library.is_none() {
        let why = "there is no libfaketime: apt-get install faketime";
        assert!(!crate::live::is_required(), "{why}");
        eprintln!("skipped: {why}");
    }
    library
}

/// Lies to a program about the time of day. Its monotonic clock goes on.
fn lied_to<'a>(command: &'a mut Command, library: &Path) -> &'a mut Command {
    command.env("LD_PRELOAD", library).env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
}

#[test]
fn p18_a_gate_a_day_ahead_changes_nothing_and_a_store_that_jumps_by_hours_grants_a_burst_at_most() {
    // Redis, where both are there: under libfaketime Debian's valkey-server ends as it starts.
    let (Some(program), Some(library)) = (programs().pop(), library()) else { return };
    let store = Store::start(&program, &library);
    let mut fleet = Fleet::start(&format!("url = \"unix:{}\"", store.folder.path().join("s").display()));
    println!("| clock | calls | of the rate | fair (Jain) | over | asks | light, p99 |");
    fleet.until_all_ask(|words| store.run(words));
    fleet.judge("right", &fleet.watch(length(), || 0), 0.0, 0.95);

    fleet.world.down[0].store(true, Ordering::SeqCst);
    fleet.gates[0].take().expect("it runs").kill();
    let mut ahead = with_config("run", &fleet.configs[0].1);
    let mut ahead = start({
        lied_to(&mut ahead, &library).env("FAKETIME", "+1d");
        ahead
    });
    let ready = ahead.line("ready");
    fleet.gates[0] = Some(ahead);
    fleet.world.down[0].store(false, Ordering::SeqCst);
    let tomorrow = store.time() + 86_400;
    let day: i64 = Command::new("date")
        .args(["-u", "-d", &format!("@{tomorrow}"), "+%-d"])
        .output()
        .map_or(0, |told| String::from_utf8_lossy(&told.stdout).trim().parse().expect("a day"));
    assert!(ready.contains(&format!("-{day:02}T")), "its clock is ahead: {ready}");
    fleet.until_all_ask(|words| store.run(words));
    fleet.judge("a gate a day ahead", &fleet.watch(length(), || 0), 0.0, 0.95);

    let real = store.time();
    for (to, hours, more) in [("+1h", 1, BURST), ("-1h", -1, 0.0), ("+0", 0, BURST)] {
        store.set(to);
        let seen = fleet.watch(length(), || 0);
        assert!((store.time() - real - hours * 3_600).abs() < 600, "the store's clock has jumped");
        fleet.judge(&format!("store at {to}"), &seen, more, 0.95);
    }
}
