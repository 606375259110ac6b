//! A memory limit, and clients that hold more than that with the bodies of waiting calls.

use std::path::{Path, PathBuf};
use std::{fs, thread};

use super::api::Api;
use super::clients::{Came, Client};
use super::say;
use crate::cli::input::get;
use crate::command::{config, start, with_config};
use crate::ports::free_port;

/// The limit that the deployment examples give the sidecar.
const LIMIT: u64 = 256 << 20;

/// Each has 1 MiB: three times what may be in memory in total.
const BODIES: usize = 400;

/// A control group of the kernel (version 1 or 2) with a memory limit; removed at the end.
pub(crate) struct Group(PathBuf);

impl Group {
    /// `None` if this user may not make one.
    pub(crate) fn limited(name: &str, bytes: u64) -> Option<Self> {
        let name = format!("tidegate-test-{name}-{}", std::process::id());
        for (root, limit) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let folder = Path::new(root).join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Self(folder);
            if fs::write(group.0.join(limit), bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }

    pub(crate) fn take(&self, process: u32) {
        fs::write(self.0.join("cgroup.procs"), process.to_string()).expect("the group is ours");
    }

    /// Returns the most that the group held, or how often it reached its limit, as far as the
    /// kernel says.
    fn peak(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.0.join(name)).ok();
        let peak = read("memory.max_usage_in_bytes").or_else(|| read("memory.peak")).unwrap_or_default();
        peak.trim().parse::<u64>().map_or_else(|_| "unknown".to_owned(), |bytes| format!("{} MiB", bytes >> 20))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // It is empty once its process is gone; a folder that stays behind does no harm.
        drop(fs::remove_dir(&self.0));
    }
}

/// The number of waiting calls.
fn waiting(admin: u16) -> usize {
    let page = get(admin, "/metrics");
    let line = page.lines().find_map(|line| line.strip_prefix("tidegate_waiting{gate=\"kubernetes\"} "));
    line.and_then(|count| count.parse().ok()).expect("the metric is there")
}

#[test]
fn under_a_memory_limit_waiting_bodies_are_refused_and_leases_go_on() {
    let (api, port, admin) = (Api::start(), free_port(), free_port());
    let (_folder, path) = config(&format!(
        "[admin]\nlisten = \"127.0.0.1:{admin}\"\n[gates.kubernetes]\npreset = \"none\"\nupstream = \"http://127.0.0.1:{}\"\n\
         listen = \"127.0.0.1:{port}\"\nbucket = {{ rate = 0.01, burst = 1 }}\nqueue = {{ max_wait = \"30m\" }}\n",
        api.port
    ));
    let group = Group::limited("bodies", LIMIT);
    if group.is_none() {
        say("no control group can be made here: the limit is not the kernel's, only the gate's own");
    }
    let mut gate = start(with_config("run", &path));
    if let Some(group) = &group {
        group.take(gate.id());
    }
    gate.ready();
    let mut first = Client::plain(port).expect("it listens");
    assert_eq!(first.ask("GET /api/v1/nodes/one", ""), Came::Whole(200), "it takes the only token");

    let body = "x".repeat(1 << 20);
    let mut clients = Vec::new();
    for number in 0..BODIES {
        let mut client = Client::plain(port).expect("it listens");
        let head = format!(
            "PUT /api/v1/namespaces/n/configmaps/c{number} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        // A client whose call is refused may see the connection close before it has sent
        // everything.
        drop(client.send(head.as_bytes()).and_then(|()| client.send(body.as_bytes())));
        clients.push(client);
    }
    let mut lease = Client::plain(port).expect("it listens");
    for _ in 0..20 {
        let call = "PUT /apis/coordination.k8s.io/v1/namespaces/n/leases/leader";
        assert_eq!(lease.ask(call, "{}"), Came::Whole(200));
    }
    while clients.iter_mut().filter_map(Client::was_answered).count() + waiting(admin) < BODIES {
        thread::yield_now();
    }
    let refused = clients.iter_mut().filter_map(Client::was_answered).filter(|status| *status == 429).count();
    let status = fs::read_to_string(format!("/proc/{}/status", gate.id())).expect("it lives");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).map(str::trim).expect("Linux says so");
    say(format_args!(
        "{BODIES} bodies of 1 MiB: {refused} refused, the rest held; at most {most} resident, the group's peak {}; 20 of 20 leases renewed",
        group.as_ref().map_or_else(|| "unknown".to_owned(), Group::peak)
    ));
    let kib: u64 = most.trim_end_matches(" kB").parse().expect("a number");
    assert!(kib << 10 < LIMIT, "{most}");
    assert!(refused > BODIES / 2, "only {refused} were refused");
    drop((clients, lease, first));
    while waiting(admin) > 0 {
        thread::yield_now();
    }
    let mut after = Client::plain(port).expect("it listens");
    let call = "PUT /apis/coordination.k8s.io/v1/namespaces/n/leases/leader";
    assert_eq!(after.ask(call, "{}"), Came::Whole(200));
    drop(after);
    assert_eq!(gate.terminate(), Some(0));
}
