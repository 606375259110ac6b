//! Gates of many hosts, as processes of their own, that share a limit for each host through a real
//! Valkey or Redis.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use tidegate::clock::Clock;

use super::encrypted;
use crate::command::{Running, end, start, with_config};
use crate::ports::free_port;
use crate::store_server::{members, program, spawn};
use crate::support::Backend;

/// A process with a forward proxy.
struct Process {
    running: Running,
    egress: u16,
    folder: tempfile::TempDir,
}

/// Calls a host through a forward proxy.
fn call(egress: u16, host: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", egress)).expect("it listens");
    stream.set_read_timeout(Some(crate::command::PATIENCE)).expect("a socket");
    let request = format!("GET http://{host}/zen HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Makes calls through both processes at once. Returns the time until all were answered.
fn calls(processes: &[Process], host: &'static str, each: usize) -> Duration {
    let clock = Clock::start();
    let all = processes.iter().flat_map(|process| std::iter::repeat_n(process.egress, each));
    let all: Vec<_> = all.map(|egress| std::thread::spawn(move || call(egress, host))).collect();
    for answer in all {
        let answer = answer.join().expect("it is answered");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    clock.now().since_start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn gates_of_many_hosts_share_a_limit_for_each_host() {
    let (backend, folder) = (Backend::replying(200).await, tempfile::tempdir().expect("a folder"));
    let (address, ca) = encrypted(backend.address, &["a.example", "b.example"]).await;
    let Some(program) = program() else { return };
    let _store = spawn(&program, folder.path(), &[]);
    let socket = folder.path().join("s");
    let ca_file = folder.path().join("api.crt");
    std::fs::write(&ca_file, ca).expect("ours");
    let process = |_| {
        let (folder, egress) = (tempfile::tempdir().expect("a folder"), free_port());
        let text = format!(
            "[admin]\nlisten = \"off\"\nsocket = {:?}\n[stores.main]\nurl = \"unix:{}\"\ntimeout = \"2s\"\n\
             [egress]\nlisten = \"127.0.0.1:{egress}\"\n[gates.api]\nkind = \"http\"\nhosts = [\"a.example\", \"b.example\"]\n\
             connect_to = {{ \"a.example\" = \"{address}\", \"b.example\" = \"{address}\" }}\nretry_bucket = \"off\"\n\
             upstream_tls.ca = {ca_file:?}\nqueue = {{ max_wait = \"1m\" }}\n\
             bucket = {{ rate = 20, burst = 10, adapt = \"off\", shared = \"account\" }}\n",
            folder.path().join("socket"),
            socket.display(),
        );
        let path = folder.path().join("tidegate.toml");
        std::fs::write(&path, text).expect("ours");
        let mut running = start(with_config("run", &path));
        running.ready();
        Process { running, egress, folder }
    };
    let processes: Vec<_> = (0..2).map(process).collect();
    let took = tokio::task::block_in_place(|| calls(&processes, "a.example", 20));
    // A new bucket is empty; alone each gate would have had its twenty out after half a second.
    assert!(took >= Duration::from_millis(1_700), "forty calls at 20/s took {took:?}");
    tokio::task::block_in_place(|| calls(&processes, "b.example", 1));

    let client = redis::Client::open(format!("redis+unix://{}", socket.display())).expect("a URL");
    let mut connection = client.get_connection().expect("it takes connections");
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).expect("a list");
    assert_eq!(keys.len(), 2, "one for each host: {keys:?}");
    for key in &keys {
        assert!(key.starts_with("tidegate:1:{account}:") && !key.contains("example"), "{key}");
        let fields: Vec<String> = redis::cmd("HKEYS").arg(key).query(&mut connection).expect("a list");
        assert_eq!(fields.iter().filter(|field| field.starts_with("m:")).count(), 2, "both share it: {fields:?}");
    }
    let mut explain = with_config("explain", &processes[0].folder.path().join("tidegate.toml"));
    explain.args(["GET", "http://a.example/zen"]);
    let told = end(explain);
    let says = "20/s, burst 10, shared as account with 1 other (store main): ";
    assert!(told.out.contains(says), "{}{}", told.out, told.err);
    let mut processes = processes.into_iter().map(|process| process.running);
    assert_eq!(processes.next().expect("two").terminate(), Some(0));
    assert_eq!(members(&socket), [1, 1], "who ends leaves its share of each host at once");
    processes.for_each(Running::kill);
}
