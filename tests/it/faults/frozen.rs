//! The gate's process stops and goes on: a paused virtual machine, a node that swaps, a debugger.

use std::time::Duration;
use std::{fs, thread};

use super::api::Api;
use super::clients::{Came, Client};
use super::say;
use crate::command::{config, start, with_config};
use crate::ports::free_port;

const RATE: f64 = 100.0;
const BURST: u32 = 5;

/// Calls that wait when it stops, and that come when it goes on.
const CALLS: usize = 300;

#[test]
fn a_gate_that_was_stopped_for_a_while_lets_out_no_more_than_its_bucket_allows() {
    let (api, port) = (Api::start(), free_port());
    let (folder, path) = config("");
    let log = folder.path().join("calls.jsonl");
    let text = format!(
        "[admin]\nlisten = \"off\"\n[log]\ncalls = {:?}\n[gates.kubernetes]\npreset = \"none\"\nupstream = \"http://127.0.0.1:{}\"\n\
         listen = \"127.0.0.1:{port}\"\nbucket = {{ rate = {RATE:.1}, burst = {BURST}, adapt = \"off\" }}\nqueue = {{ max_wait = \"5m\" }}\n",
        log.display().to_string(),
        api.port
    );
    fs::write(&path, text).expect("it can be written");
    let mut gate = start(with_config("run", &path));
    gate.ready();
    let clients: Vec<_> = (0..10)
        .map(|number| {
            thread::spawn(move || {
                let mut client = Client::plain(port).expect("it listens");
                for call in 0..CALLS / 10 {
                    let call = format!("GET /api/v1/namespaces/n/pods/p{number}-{call}");
                    assert_eq!(client.ask(&call, ""), Came::Whole(200));
                }
            })
        })
        .collect();
    for _ in 0..3 {
        let before = api.asked().len();
        while api.asked().len() < before + 20 {
            thread::yield_now();
        }
        gate.signal("-STOP");
        // This is about a time that passes for everything except the gate.
        thread::park_timeout(Duration::from_millis(400));
        gate.signal("-CONT");
    }
    clients.into_iter().for_each(|client| client.join().expect("every call is answered"));
    assert_eq!(gate.terminate(), Some(0));
    let text = fs::read_to_string(&log).expect("it is there");
    let mut left: Vec<Duration> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .map(|line| Duration::from_nanos(line["granted_ns"].as_u64().expect("it was sent")))
        .collect();
    left.sort_unstable();
    assert_eq!(left.len(), CALLS);
    let excess = crate::window::worst_excess(&left, RATE, f64::from(BURST), Duration::from_millis(2));
    say(format_args!(
        "stopped 3 times for 0.4 s under load: {CALLS} of {CALLS} calls answered, fullest window {excess:+.2} calls"
    ));
    assert!(excess <= 1e-6, "{excess:.2} calls too many left in one window");
}
