//! Gates in processes of their own that share a bucket through a real Valkey or Redis.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tidegate::clock::Clock;

use crate::cli::input::get;
use crate::command::{Ended, Running, config, end, start, with_config};
use crate::ports::free_port;
use crate::store_server::{Process, program, spawn};

/// An upstream that remembers when calls came.
fn upstream(clock: Clock) -> (u16, Arc<Mutex<Vec<Duration>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let came = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&came);
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let seen = Arc::clone(&seen);
            thread::spawn(move || {
                let mut head = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut head) {
                    seen.lock().expect("unpoisoned").push(clock.now().since_start());
                    let asks_for_a_pause = head.get(..read).is_some_and(|head| head.starts_with(b"GET /pause"));
                    let status = if asks_for_a_pause { "429 No\r\nRetry-After: 600" } else { "200 OK" };
                    stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok").as_bytes()).ok();
                }
            });
        }
    });
    (port, came)
}

fn server(folder: &Path) -> Option<Process> {
    Some(spawn(&program()?, folder, &[]))
}

fn gate(folder: &Path, upstream: u16) -> (Running, u16, tempfile::TempDir) {
    gate_with(folder, upstream, "rate = 40, burst = 20", "signals = { scope = \"gate\" }")
}

fn gate_with(folder: &Path, upstream: u16, limits: &str, more: &str) -> (Running, u16, tempfile::TempDir) {
    let port = free_port();
    let (kept, path) = config("");
    let socket = kept.path().join("socket");
    let text = format!(
        "[admin]\nlisten = \"off\"\nsocket = \"{}\"\n[stores.main]\nurl = \"unix:{}\"\ntimeout = \"1s\"\n\
         [gates.api]\nkind = \"http\"\nupstream = \"http://127.0.0.1:{upstream}\"\nlisten = \"127.0.0.1:{port}\"\n\
         retry_bucket = \"off\"\nbucket = {{ {limits}, adapt = \"off\", shared = \"account\" }}\n\
         queue = {{ max_wait = \"1m\" }}\n{more}\n",
        socket.display(),
        folder.join("s").display()
    );
    std::fs::write(&path, text).expect("it can be written");
    let mut gate = start(with_config("run", &path));
    gate.ready();
    (gate, port, kept)
}

/// Makes so many calls to each gate at once. All of them must be answered.
fn call(gates: &[(Running, u16, tempfile::TempDir)], each: usize) {
    let calls = gates.iter().flat_map(|(_, port, _)| (0..each).map(|number| (*port, number)));
    let calls = calls.map(|(port, number)| thread::spawn(move || get(port, &format!("/things/{number}"))));
    for call in calls.collect::<Vec<_>>() {
        let answer = call.join().expect("it is answered");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[test]
fn p13_p16_three_processes_send_one_rate_and_no_call_fails_when_the_store_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut store) = server(folder.path()) else { return };
    let (port, came) = upstream(Clock::start());
    let mut gates: Vec<_> = (0..3).map(|_| gate(folder.path(), port)).collect();
    call(&gates, 30);
    let times = came.lock().expect("unpoisoned").clone();
    let (first, last) = (times.iter().min().expect("some"), times.iter().max().expect("some"));
    // 90 calls are 20 at once and 70 at 40/s; each gate alone would have had its 30 out at once.
    assert!(times.len() == 90 && *last - *first >= Duration::from_millis(1_740), "{:?}", *last - *first);

    store.kill();
    std::fs::remove_file(folder.path().join("s")).ok();
    call(&gates, 8);
    for (gate, ..) in &mut gates {
        let line = gate.line("the store does not answer");
        assert!(line.contains("store=\"main\"") && line.contains("alone=\"account at 13.333/s\""), "{line}");
    }
    let _store = server(folder.path()).expect("it was there");
    // Whoever calls learns that it is back, at the latest when its backoff is over.
    for (gate, port, _) in &mut gates {
        while !gate.has_said("the store answers again") {
            assert!(get(*port, "/things/1").starts_with("HTTP/1.1 200 "));
        }
        let line = gate.seen.iter().rfind(|line| line.contains("the store answers again")).expect("it said so");
        let calls = line.split("calls=").nth(1).and_then(|calls| calls.trim().parse::<u32>().ok());
        assert!(line.contains("after=\"") && calls.is_some_and(|calls| calls >= 8), "{line}");
    }
    call(&gates, 5);
}

#[test]
fn the_store_of_a_slow_bucket_is_dialled_before_there_is_a_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = std::os::unix::net::UnixListener::bind(folder.path().join("s")).expect("a socket");
    let (dialled, heard) = std::sync::mpsc::channel();
    thread::spawn(move || dialled.send(store.accept().map(drop)));
    let _gate = gate_with(folder.path(), 9, "rate = 0.5, burst = 5", "");
    heard.recv_timeout(crate::command::PATIENCE).expect("it was dialled").expect("accepted");
}

/// Adds members to the bucket that ask for nothing.
fn crowd(connection: &mut redis::Connection, members: u64) {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection).expect("a time");
    let mut others = redis::cmd("HSET");
    others.arg("tidegate:1:{account}");
    for other in 0..members {
        // What it has received, when it asked last, until when it is short, weight, limits, pod.
        others.arg(format!("m:{other}")).arg(format!("0 {} 0 1 25000 15 pod", seconds * 1_000_000 + micros));
    }
    others.exec(connection).expect("they are there");
}

fn connection(folder: &Path) -> redis::Connection {
    let client = redis::Client::open(format!("redis+unix://{}", folder.join("s").display())).expect("a URL");
    client.get_connection().expect("it takes connections")
}

#[test]
fn a_bucket_of_more_than_a_hundred_gates_is_noticed_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(_store) = server(folder.path()) else { return };
    let (port, _) = upstream(Clock::start());
    let mut gates = [gate(folder.path(), port)];
    call(&gates, 1);
    crowd(&mut connection(folder.path()), 100);
    while !gates[0].0.has_said("more than 100 gates share this bucket") {
        call(&gates, 1);
    }
    call(&gates, 40);
    let [(gate, ..)] = &mut gates;
    gate.has_said("");
    let said: Vec<_> = gate.seen.iter().filter(|line| line.contains("more than 100 gates")).collect();
    assert!(said.len() == 1 && said[0].contains("bucket=\"account\" members=101"), "{said:?}");
}

/// Prints what a question costs the store by the number of gates; docs/fleets.md has the figures.
#[test]
fn p13_a_gate_among_a_thousand_gets_its_tokens() {
    for members in [2, 99, 299, 999] {
        let folder = tempfile::tempdir().expect("a folder");
        let Some(_store) = server(folder.path()) else { return };
        let (port, came) = upstream(Clock::start());
        let gates = [gate(folder.path(), port)];
        call(&gates, 1);
        let mut connection = connection(folder.path());
        crowd(&mut connection, members);
        redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut connection).expect("it resets");
        call(&gates, 40);
        let told: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).expect("it counts");
        let script = told.lines().find(|line| line.starts_with("cmdstat_evalsha:")).expect("it was asked");
        println!("{} gates: {script}", members + 1);
        assert_eq!(came.lock().expect("unpoisoned").len(), 41);
    }
}

#[test]
fn the_example_with_valkey_is_a_store_that_its_gate_can_use() {
    let Some(program) = program() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/examples/shared-quota");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("it can be written");
        path.display().to_string()
    };
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name").self_signed(&key);
    let cert = write("tls.crt", &certificate.expect("signed").pem());
    let (key, tls_port, text_of) = (write("tls.key", &key.serialize_pem()), free_port(), |name: &str| {
        std::fs::read_to_string(example.join(name)).expect("it is in the example")
    });
    let conf = text_of("valkey.conf")
        .replace("tls-port 6379", &format!("tls-port {tls_port}"))
        .replace("/tls/tls.crt", &cert)
        .replace("/tls/tls.key", &key)
        .replace("/tls/ca.crt", &cert)
        .replace("/etc/valkey/secret/users.acl", &example.join("users.acl").display().to_string());
    let conf = write("valkey.conf", &conf);
    let mut store = Process::start(std::process::Command::new(program).arg(conf));
    while std::net::TcpStream::connect(("127.0.0.1", tls_port)).is_err() {
        store.must_run();
        thread::yield_now();
    }
    let (upstream, came) = upstream(Clock::start());
    let port = free_port();
    let text = text_of("tidegate.toml")
        .replace("valkey.shared-quota.svc:6379", &format!("localhost:{tls_port}"))
        .replace("/run/secrets/valkey/password", &example.join("password").display().to_string())
        .replace("/run/secrets/valkey/ca.crt", &cert)
        .replace("https://api.github.com", &format!("http://127.0.0.1:{upstream}"));
    let (_kept, path) = config(&format!("{text}listen = \"127.0.0.1:{port}\"\n[admin]\nlisten = \"off\"\n"));
    let mut gate = start(with_config("run", &path));
    gate.ready();
    assert!(get(port, "/rate_limit").starts_with("HTTP/1.1 200 "));
    assert!(!gate.has_said("does not answer"), "{:?}", gate.seen);
    assert_eq!(came.lock().expect("unpoisoned").len(), 1);
}

/// A GitHub that says what is left of its quota.
fn github(left: Arc<AtomicU64>) -> (u16, Arc<Mutex<Vec<Duration>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (came, clock) = (Arc::new(Mutex::new(Vec::new())), Clock::start());
    let seen = Arc::clone(&came);
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (seen, left) = (Arc::clone(&seen), Arc::clone(&left));
            thread::spawn(move || {
                while let Ok(1..) = stream.read(&mut [0; 4096]) {
                    seen.lock().expect("unpoisoned").push(clock.now().since_start());
                    let left = left.load(Ordering::SeqCst);
                    let quota = format!(
                        "X-RateLimit-Limit: 5000\r\nX-RateLimit-Remaining: {left}\r\nX-RateLimit-Reset: 4000000000"
                    );
                    let answer = format!("HTTP/1.1 200 OK\r\n{quota}\r\nContent-Length: 2\r\n\r\nok");
                    stream.write_all(answer.as_bytes()).ok();
                }
            });
        }
    });
    (port, came)
}

#[test]
fn what_another_tool_has_spent_of_githubs_quota_is_heard_by_all_gates() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(_store) = server(folder.path()) else { return };
    let left = Arc::new(AtomicU64::new(5_000));
    let (port, came) = github(Arc::clone(&left));
    let signals = "signals = { honour = [\"github\"], scope = \"gate\", reserve = 0.1 }";
    let gates = [0, 1].map(|_| gate_with(folder.path(), port, "rate = 10, burst = 20", signals));
    call(&gates, 1);
    let client = redis::Client::open(format!("redis+unix://{}", folder.path().join("s").display())).expect("a URL");
    let mut connection = client.get_connection().expect("it takes connections");
    // The tokens that are there, as the store knows: fifteen once it is full.
    let mut level = || {
        let zero: f64 = redis::cmd("HGET").arg("tidegate:1:{account}").arg("z").query(&mut connection).expect("a time");
        let (seconds, micros): (f64, f64) = redis::cmd("TIME").query(&mut connection).expect("a time");
        (seconds * 1e6 + micros - zero) / 1e5
    };
    while level() < 15.0 {
        thread::yield_now();
    }
    // Another tool has spent all but two beyond the reserve of 500; the first gate learns of it.
    left.store(502, Ordering::SeqCst);
    while level() > 6.0 {
        assert!(get(gates[0].1, "/zen").starts_with("HTTP/1.1 200 "));
        let mut looks = 0..200;
        while level() > 6.0 && looks.next().is_some() {}
    }
    left.store(5_000, Ordering::SeqCst);
    let before = came.lock().expect("unpoisoned").len();
    call(&gates[1..], 15);
    let times = came.lock().expect("unpoisoned")[before..].to_vec();
    let (first, last) = (times.iter().min().expect("some"), times.iter().max().expect("some"));
    assert!(*last - *first >= Duration::from_millis(500), "without it they would have gone at once: {times:?}");
}

fn command(what: &str, kept: &tempfile::TempDir, more: &[&str]) -> Ended {
    let mut command = with_config(what, &kept.path().join("tidegate.toml"));
    command.args(more);
    end(command)
}

#[test]
fn p19_a_pause_that_one_process_is_asked_for_is_kept_and_lifted_by_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut store) = server(folder.path()) else { return };
    let (port, came) = upstream(Clock::start());
    let mut gates: Vec<_> = (0..3).map(|_| gate(folder.path(), port)).collect();
    call(&gates, 1);
    assert!(get(gates[0].1, "/pause").starts_with("HTTP/1.1 429 "));
    let before = came.lock().expect("unpoisoned").len();
    let refused = |port| get(port, "/things/1").contains("tidegate-refusal: pause");
    // A gate that still holds a token hears of it with its next question.
    gates.iter().for_each(|(_, port, _)| while !refused(*port) {});
    let spent = came.lock().expect("unpoisoned").len() - before;
    assert!(spent <= 6, "tokens from before the pause: {spent}");
    gates[1].0.line("pausing: a gate that shares this bucket was asked for a pause");
    let ended = command("forget", &gates[2].2, &["--pauses", "--shared"]);
    assert!(ended.code == Some(0) && ended.out.contains("1 pause lifted"), "{}{}", ended.out, ended.err);
    gates.iter().for_each(|(_, port, _)| while refused(*port) {});

    // Who has gone is no member any more.
    let ended = command("doctor", &gates[0].2, &[]);
    assert!(ended.out.contains("store main: account is shared by 3 gates"), "{}", ended.out);
    assert_eq!(gates.remove(2).0.terminate(), Some(0));
    let ended = command("doctor", &gates[0].2, &[]);
    assert!(ended.out.contains("store main: account is shared by 2 gates"), "{}", ended.out);
    assert!(ended.out.contains("and runs the script"), "{}", ended.out);
    store.kill();
    let ended = command("doctor", &gates[0].2, &[]);
    assert!(
        ended.out.contains("WRONG  store main: the store cannot be reached") && ended.code == Some(1),
        "{}",
        ended.out
    );
}

#[test]
fn doctor_says_what_a_store_lacks() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program() else { return };
    let user = ["--user", "tidegate", "on", ">hunter2", "~t:*", "-@all", "+auth", "+ping"];
    let more: Vec<_> = user.into_iter().chain(["--maxmemory-policy", "allkeys-lru"]).collect();
    let _store = spawn(&program, folder.path(), &more);
    let (kept, path) = config("");
    let (wrong, right) = (kept.path().join("wrong"), kept.path().join("right"));
    std::fs::write(&wrong, "hunter3").expect("ours");
    std::fs::write(&right, "hunter2").expect("ours");
    let told = |user: &str, password: &Path| {
        let login = if user.is_empty() {
            String::new()
        } else {
            format!("user = \"{user}\"\npassword_file = \"{}\"\n", password.display())
        };
        let text = format!(
            "[admin]\nlisten = \"off\"\n[stores.main]\nurl = \"unix:{}\"\nprefix = \"t\"\n{login}\
             [gates.api]\nkind = \"http\"\nupstream = \"http://127.0.0.1:9\"\nlisten = \"127.0.0.1:{}\"\n\
             bucket = {{ rate = 40, burst = 40, shared = \"account\" }}\n",
            folder.path().join("s").display(),
            free_port()
        );
        std::fs::write(&path, text).expect("ours");
        command("doctor", &kept, &[]).out
    };
    let out = told("tidegate", &wrong);
    assert!(out.contains("WRONG  store main: the server answers WRONGPASS"), "{out}");
    let out = told("tidegate", &right);
    assert!(out.contains("the server answers NOPERM") && out.contains("-@all +auth +ping +select +eval"), "{out}");
    let out = told("", &right);
    assert!(out.contains("may drop buckets (allkeys-lru)") && out.contains("set maxmemory-policy noeviction"), "{out}");
    assert!(out.contains("account is shared by 0 gates"), "{out}");
    assert!(!out.contains("hunter3") && !out.contains("hunter2"), "{out}");
}
