//! The gate ends and another takes its place: what it knew of failing objects, pauses and tokens is
//! in a file.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{disk, say};
use crate::cli::input::get;
use crate::command::{Running, config, start, with_config};
use crate::ports::free_port;

/// An upstream that counts calls. Those below `/fails` fail, and `/pause` asks for ten minutes
/// without calls.
fn upstream() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let count = Arc::clone(&count);
            thread::spawn(move || {
                let mut head = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut head) {
                    count.fetch_add(1, Ordering::SeqCst);
                    let status = match &head[..read] {
                        head if head.starts_with(b"GET /fails") => "500 Internal Server Error",
                        head if head.starts_with(b"GET /pause") => "429 Too Many Requests\r\nRetry-After: 600",
                        _ => "200 OK",
                    };
                    stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes()).ok();
                }
            });
        }
    });
    (port, asked)
}

struct Setup {
    folder: tempfile::TempDir,
    path: std::path::PathBuf,
    port: u16,
}

impl Setup {
    fn new(upstream: u16, limits: &str) -> Self {
        let (folder, path) = config("");
        let (port, setup) = (free_port(), folder.path().join("kept").join("state"));
        let text = format!(
            "[admin]\nlisten = \"off\"\nsocket = {:?}\n[state]\nfile = {:?}\n\
             [gates.api]\nkind = \"http\"\nupstream = \"http://127.0.0.1:{upstream}\"\nlisten = \"127.0.0.1:{port}\"\n\
             retry_bucket = \"off\"\nqueue = {{ max_wait = \"0s\" }}\nsignals = {{ scope = \"gate\" }}\n\
             backoff = {{ base = \"5m\", max = \"5m\", hold = \"0s\", forget_after = \"20m\" }}\n{limits}\n",
            folder.path().join("socket").display().to_string(),
            setup.display().to_string()
        );
        fs::write(&path, text).expect("it can be written");
        Self { folder, path, port }
    }

    fn state(&self) -> std::path::PathBuf {
        self.folder.path().join("kept").join("state")
    }

    fn start(&self) -> Running {
        let mut gate = start(with_config("run", &self.path));
        gate.ready();
        gate
    }

    fn forget(&self, what: &str) {
        let mut command = with_config("forget", &self.path);
        command.arg(what);
        let done = command.output().expect("it runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// Waits until the file says something.
    fn kept(&self, is_there: impl Fn(&str) -> bool) -> String {
        loop {
            match fs::read_to_string(self.state()) {
                Ok(text) if is_there(&text) => return text,
                _ => thread::yield_now(),
            }
        }
    }
}

fn reason(answer: &str) -> &str {
    let header = answer.lines().find_map(|line| line.strip_prefix("tidegate-refusal: "));
    header.unwrap_or_else(|| answer.lines().next().unwrap_or_default())
}

const KEYS: usize = 1000;

#[test]
fn a_gate_killed_with_a_thousand_failing_keys_and_a_pause_tries_none_early_when_started_again() {
    let (upstream, asked) = upstream();
    let setup = Setup::new(upstream, "bucket = \"off\"");
    let gate = setup.start();
    for number in 0..KEYS {
        get(setup.port, &format!("/fails/hidden-{number}"));
    }
    get(setup.port, "/pause");
    let all = |text: &str| text.matches("],1,500,").count() == KEYS && text.contains("\"pauses\":[[[0,0],");
    let text = setup.kept(all);
    gate.kill();
    assert!(!text.contains("hidden"), "no path is in the file");
    let before = asked.load(Ordering::SeqCst);
    assert_eq!(before, KEYS + 1);

    let mut gate = start(with_config("run", &setup.path));
    let line = gate.line("loaded the state file");
    assert!(line.contains("keys=1001") && line.contains("pauses=1"), "{line}");
    gate.ready();
    let fails = |number: usize| get(setup.port, &format!("/fails/hidden-{number}"));
    let early: Vec<_> = (0..KEYS).step_by(50).map(fails).chain([get(setup.port, "/healthy")]).collect();
    assert!(early.iter().all(|answer| answer.starts_with("HTTP/1.1 429 ")), "{early:?}");
    assert_eq!(asked.load(Ordering::SeqCst), before, "the pause lasts ten minutes");
    setup.forget("--pauses");
    let early: Vec<_> = (0..KEYS).map(fails).collect();
    assert!(early.iter().all(|answer| reason(answer) == "backoff"), "{:?}", early.first());
    assert_eq!(asked.load(Ordering::SeqCst), before, "every key is known");
    assert!(get(setup.port, "/healthy").starts_with("HTTP/1.1 200 "));
    say(format_args!(
        "kill -9 with {KEYS} failing keys and a pause of 10 min: 0 calls before their time, file of {} KiB",
        text.len() >> 10
    ));
    assert_eq!(gate.terminate(), Some(0));
}

#[test]
fn a_gate_that_crashes_in_a_loop_sends_one_burst_and_not_one_for_each_crash() {
    let (upstream, asked) = upstream();
    let setup = Setup::new(upstream, "bucket = { rate = 0.01, burst = 5, adapt = \"off\" }");
    for _ in 0..5 {
        let gate = setup.start();
        setup.kept(|text| !text.is_empty());
        (0..8).for_each(|_| drop(get(setup.port, "/healthy")));
        gate.kill();
    }
    assert_eq!(asked.load(Ordering::SeqCst), 5, "the burst of the first");
    fs::remove_file(setup.state()).expect("it is there");
    let gate = setup.start();
    get(setup.port, "/healthy");
    assert_eq!(gate.terminate(), Some(0));
    let gate = setup.start();
    (0..8).for_each(|_| drop(get(setup.port, "/healthy")));
    assert_eq!(asked.load(Ordering::SeqCst), 10, "after a stop that was no crash every token is still there");
    assert_eq!(gate.terminate(), Some(0));
}

#[test]
fn a_state_file_that_is_cut_of_another_version_or_unsafe_is_ignored_with_one_line() {
    let (upstream, _) = upstream();
    let setup = Setup::new(upstream, "bucket = \"off\"");
    let gate = setup.start();
    get(setup.port, "/fails/a");
    let whole = setup.kept(|text| text.contains("],1,500,"));
    gate.kill();
    let put = |text: &str| fs::write(setup.state(), text).expect("ours");
    let elsewhere = setup.folder.path().join("elsewhere");
    fs::write(&elsewhere, &whole).expect("ours");
    let link = || {
        fs::remove_file(setup.state()).expect("ours");
        symlink(&elsewhere, setup.state()).expect("ours");
    };
    let cases: [(&dyn Fn(), &str); 3] = [
        (&|| put(whole.get(..whole.len() / 2).expect("text")), "is damaged"),
        (&|| put(&whole.replacen(env!("CARGO_PKG_VERSION"), "99.9.9", 1)), "was written by tidegate 99.9.9"),
        (&link, "is not a regular file of this user"),
    ];
    for (make, why) in cases {
        make();
        let mut gate = start(with_config("run", &setup.path));
        let line = gate.line("cannot use the state file");
        assert!(line.contains(why), "{line}");
        gate.ready();
        assert!(get(setup.port, "/healthy").starts_with("HTTP/1.1 200 "));
        assert_eq!(gate.terminate(), Some(0));
        fs::remove_file(setup.state()).expect("a new one was written");
        fs::write(setup.state(), &whole).expect("ours");
        fs::set_permissions(setup.state(), std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("ours");
    }
    assert_eq!(fs::read_to_string(&elsewhere).expect("ours"), whole, "what a link leads to is not written");

    let gate = setup.start();
    let mut other = Setup::new(upstream, "bucket = \"off\"");
    let text = fs::read_to_string(&other.path).expect("ours");
    let (theirs, ours) = (other.state().display().to_string(), setup.state().display().to_string());
    fs::write(&other.path, text.replace(&theirs, &ours)).expect("ours");
    let mut second = start(with_config("run", &other.path));
    let line = second.line("cannot use the folder of the state file");
    assert!(line.contains("another process uses that folder for its state file"), "{line}");
    second.ready();
    other.port = setup.port;
    assert_eq!((second.terminate(), gate.terminate()), (Some(0), Some(0)));
}

#[test]
fn a_file_that_is_no_state_is_left_as_it_is() {
    const MINE: &str = "my dearest notes\n";
    let (upstream, _) = upstream();
    let setup = Setup::new(upstream, "bucket = \"off\"");
    fs::create_dir(setup.state().parent().expect("a folder")).expect("ours");
    for mode in [0o600, 0o644] {
        fs::write(setup.state(), MINE).expect("ours");
        fs::set_permissions(setup.state(), std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("ours");
        let mut gate = start(with_config("run", &setup.path));
        gate.line("the file at the state file's path is not overwritten");
        gate.ready();
        assert!(get(setup.port, "/fails/a").starts_with("HTTP/1.1 500 "));
        assert_eq!(gate.terminate(), Some(0));
        assert_eq!(fs::read_to_string(setup.state()).expect("ours"), MINE);
    }
}

#[test]
fn calls_go_on_while_the_disk_of_the_state_file_is_full() {
    let test = "faults::state::calls_go_on_while_the_disk_of_the_state_file_is_full";
    if !super::is_alone(test, &["--mount"]) {
        return;
    }
    let (upstream, _) = upstream();
    let setup = Setup::new(upstream, "bucket = \"off\"");
    let disk: &Path = &setup.folder.path().join("kept");
    fs::create_dir(disk).expect("a folder");
    disk::small_disk(disk);
    let mut gate = setup.start();
    get(setup.port, "/fails/a");
    let before = setup.kept(|text| text.contains("],1,500,"));
    disk::fill(disk);
    get(setup.port, "/fails/b");
    gate.line("cannot write the state file");
    assert!(get(setup.port, "/healthy").starts_with("HTTP/1.1 200 "));
    assert_eq!(fs::read_to_string(setup.state()).expect("it is there"), before, "the last one stays whole");
    disk::unfill(disk);
    get(setup.port, "/fails/c");
    gate.line("the state file can be written again");
    setup.kept(|text| text.matches("],1,500,").count() == 3);
    assert_eq!(gate.terminate(), Some(0));
}
