//! Gates in processes of their own that share a bucket through a real Valkey or Redis.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tidegate::clock::Clock;

use super::cli::{Running, config, start, with_config};
use super::cli_input::get;
use super::ports::free_port;
use super::store_server::{program, spawn};

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
                while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {
                    seen.lock().expect("unpoisoned").push(clock.now().since_start());
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").ok();
                }
            });
        }
    });
    (port, came)
}

fn server(folder: &Path) -> Option<Child> {
    let child = spawn(&program()?, folder, &[]);
    while UnixStream::connect(folder.join("s")).is_err() {
        thread::yield_now();
    }
    Some(child)
}

fn gate(folder: &Path, upstream: u16) -> (Running, u16, tempfile::TempDir) {
    let port = free_port();
    let (kept, path) = config(&format!(
        "[admin]\nlisten = \"off\"\n[stores.main]\nurl = \"unix:{}\"\ntimeout = \"1s\"\n\
         [gates.api]\nkind = \"http\"\nupstream = \"http://127.0.0.1:{upstream}\"\nlisten = \"127.0.0.1:{port}\"\n\
         retry_bucket = \"off\"\nbucket = {{ rate = 40, burst = 20, adapt = \"off\", shared = \"account\" }}\n\
         queue = {{ max_wait = \"1m\" }}\n",
        folder.join("s").display()
    ));
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

    store.kill().expect("it runs");
    store.wait().expect("it ends");
    std::fs::remove_file(folder.path().join("s")).ok();
    call(&gates, 8);
    for (gate, ..) in &mut gates {
        let line = gate.line("the store does not answer");
        assert!(line.contains("main"), "{line}");
    }
    let mut store = server(folder.path()).expect("it was there");
    // Whoever calls learns that it is back, at the latest when its backoff is over.
    for (gate, port, _) in &mut gates {
        while !gate.has_said("the store answers again") {
            assert!(get(*port, "/things/1").starts_with("HTTP/1.1 200 "));
        }
    }
    call(&gates, 5);
    store.kill().expect("it runs");
    store.wait().expect("it ends");
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
    let mut store = std::process::Command::new(program).arg(conf).stdout(std::process::Stdio::null()).spawn();
    while std::net::TcpStream::connect(("127.0.0.1", tls_port)).is_err() {
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
    let store = store.as_mut().expect("it started");
    store.kill().expect("it runs");
    store.wait().expect("it ends");
}
