//! The process runs out of file descriptors.

use std::net::TcpStream;
use std::process::Command;

use super::api::Api;
use super::clients::{Came, Client};
use super::say;
use crate::command::{config, start, with_config};
use crate::ports::free_port;

/// The descriptors that the process may open; a gate with one client has about 20.
const MAY_OPEN: usize = 60;

/// More clients than that, which send nothing.
const IDLE: usize = 150;

#[test]
fn a_gate_with_few_descriptors_closes_the_idlest_for_new_clients() {
    let (api, port) = (Api::start(), free_port());
    let (_folder, path) = config(&format!(
        "[admin]\nlisten = \"off\"\n[gates.kubernetes]\nupstream = \"http://127.0.0.1:{}\"\nlisten = \"127.0.0.1:{port}\"\n",
        api.port
    ));
    let mut command = Command::new("prlimit");
    let gate = with_config("run", &path);
    command.arg(format!("--nofile={MAY_OPEN}")).arg(gate.get_program()).args(gate.get_args());
    command.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let mut gate = start(command);
    gate.ready();
    let lease = "PUT /apis/coordination.k8s.io/v1/namespaces/n/leases/leader";
    let mut early = Client::plain(port).expect("it listens");
    assert_eq!(early.ask("GET /api/v1/nodes/one", ""), Came::Whole(200));
    assert_eq!(early.ask(lease, "{}"), Came::Whole(200));

    let idle: Vec<TcpStream> =
        (0..IDLE).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("the kernel takes it")).collect();
    gate.line("each new connection closes the one that was idle longest");
    for number in 0..50 {
        let mut late = Client::plain(port).expect("it listens");
        assert_eq!(late.ask(lease, "{}"), Came::Whole(200), "a new client is served while they stay: {number}");
    }
    // It is one of those that have been idle.
    let mut early = Client::plain(port).expect("it listens");
    for _ in 0..50 {
        assert_eq!(early.ask("GET /api/v1/nodes/one", ""), Came::Whole(200), "who is connected is served");
        assert_eq!(early.ask(lease, "{}"), Came::Whole(200), "a lease too");
    }
    drop(idle);
    let mut late = Client::plain(port).expect("it listens");
    assert_eq!(late.ask("GET /api/v1/nodes/two", ""), Came::Whole(200));
    drop((early, late));
    let said = gate.end();
    let complaints = said.iter().filter(|line| line.contains("each new connection closes")).count();
    assert!(!said.iter().any(|line| line.contains("cannot accept a connection")));
    say(format_args!(
        "no more than {MAY_OPEN} descriptors, {IDLE} clients at once: 50 of 50 new clients and 100 of 100 calls served meanwhile, said once"
    ));
    assert_eq!(complaints, 1, "a line a minute, not for each try");
}
