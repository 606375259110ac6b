//! Stores of several servers, for tests: a primary with its replica and three sentinels, and a
//! cluster of three nodes, one of which has a replica.

use std::fmt::Display;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use redis::FromRedisValue;

use crate::store_server::{Process, program};

/// A server on a port of loopback that keeps nothing. It ends with this.
pub struct Node {
    pub port: u16,
    /// Its port for TLS, if it has a certificate.
    pub tls_port: Option<u16>,
    process: Process,
}

/// A primary with a replica, and the sentinels that watch them as `account`.
pub struct Watched {
    pub primary: Node,
    pub replica: Node,
    pub sentinels: Vec<Node>,
}

/// Three nodes with a third of the slots each, and a replica of the first.
pub struct Nodes {
    pub nodes: Vec<Node>,
    pub replica: Node,
}

// === impl Node ===

impl Node {
    /// Starts a server with these options.
    pub fn start(program: &Path, folder: &Path, more: &[&str]) -> Self {
        let port = free_port();
        let place = folder.join(port.to_string());
        std::fs::create_dir(&place).expect("a folder");
        let port_text = port.to_string();
        let mut command = Command::new(program);
        command.args(["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]);
        let tls_port = more.contains(&"--tls-cert-file").then(free_port);
        command.arg(&place).args(more);
        command.args(tls_port.into_iter().flat_map(|port| ["--tls-port".to_owned(), port.to_string()]));
        Self::spawn(&mut command, port, tls_port)
    }

    fn spawn(command: &mut Command, port: u16, tls_port: Option<u16>) -> Self {
        let process = Process::start(command);
        until("the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { port, tls_port, process }
    }

    /// Runs a command as the server's administrator.
    pub fn run<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).expect("an address");
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| _ = command.arg(word));
        command.query(&mut client.get_connection()?)
    }

    /// The same, where it cannot fail.
    pub fn must<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.run(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    fn says(&self, words: &[&str], expected: &str) -> bool {
        self.run::<String>(words).is_ok_and(|told| told.contains(expected))
    }
}

// === impl Watched ===

impl Watched {
    /// Starts all of them; `None` if no server is installed. Servers and sentinels get these
    /// options, too.
    pub fn start(folder: &Path, more: &[&str], of_sentinels: &str) -> Option<Self> {
        let program = program()?;
        let primary = Node::start(&program, folder, more);
        let watched = primary.tls_port.unwrap_or(primary.port);
        let of = ["--replicaof", "127.0.0.1", &watched.to_string()].map(str::to_owned);
        let replica = Node::start(&program, folder, &[&of.each_ref().map(|word| &**word), more].concat());
        until("the replica follows", || primary.says(&["INFO", "replication"], "state=online"));
        let sentinel = |_| {
            let (port, tls_port) = (free_port(), primary.tls_port.map(|_| free_port()));
            let place = folder.join(format!("sentinel-{port}"));
            let tls = tls_port.map(|port| format!("tls-port {port}")).unwrap_or_default();
            let text = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor account 127.0.0.1 {watched} 2\n\
                 sentinel down-after-milliseconds account 400\nsentinel failover-timeout account 3000\n{tls}\n{of_sentinels}\n",
                folder.display(),
            );
            std::fs::write(&place, text).expect("ours");
            Node::spawn(Command::new(&program).arg(&place).arg("--sentinel"), port, tls_port)
        };
        let sentinels = (0..3).map(sentinel).collect();
        Some(Self { primary, replica, sentinels })
    }

    /// Returns when the sentinels know each other and the replica.
    pub fn are_ready(&self) {
        for sentinel in &self.sentinels {
            until("the sentinels agree", || {
                sentinel.says(&["SENTINEL", "CKQUORUM", "account"], "3 usable")
                    && sentinel.says(&["INFO", "sentinel"], "slaves=1,sentinels=3")
            });
        }
    }

    /// Returns when most of the sentinels name the replica as the primary.
    pub fn failed_over(&self) {
        let ask = ["SENTINEL", "get-master-addr-by-name", "account"];
        let names = |sentinel: &&Node| sentinel.must::<(String, u16)>(&ask).1 == self.replica.port;
        until("the sentinels name the other", || self.sentinels.iter().filter(names).count() >= 2);
        until("it is a primary", || self.replica.says(&["INFO", "replication"], "role:master"));
    }

    /// The URL of a store.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/account", list(&self.sentinels))
    }
}

// === impl Nodes ===

impl Nodes {
    /// Starts all of them; `None` if no server is installed.
    pub fn start(folder: &Path, more: &[&str]) -> Option<Self> {
        let program = program()?;
        let node = || {
            let bus = free_port().to_string();
            let mut all = vec!["--cluster-enabled", "yes", "--cluster-node-timeout", "500", "--cluster-port", &bus];
            all.extend(["--cluster-require-full-coverage", "no", "--cluster-replica-validity-factor", "0"]);
            all.extend(more);
            (Node::start(&program, folder, &all), bus)
        };
        let all: Vec<_> = (0..4).map(|_| node()).collect();
        for ((node, _), (number, slots)) in all.iter().zip((1..).zip([(0, 5_460), (5_461, 10_922), (10_923, 16_383)])) {
            node.must::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &number.to_string()]);
            node.must::<()>(&["CLUSTER", "ADDSLOTSRANGE", &slots.0.to_string(), &slots.1.to_string()]);
        }
        for (node, bus) in &all[1..] {
            all[0].0.must::<()>(&["CLUSTER", "MEET", "127.0.0.1", &node.port.to_string(), bus]);
        }
        let mut nodes: Vec<_> = all.into_iter().map(|(node, _)| node).collect();
        let replica = nodes.pop().expect("the fourth");
        let first = nodes[0].id();
        until("the replica knows its primary", || replica.run::<()>(&["CLUSTER", "REPLICATE", &first]).is_ok());
        until("the replica follows", || nodes[0].says(&["INFO", "replication"], "state=online"));
        for node in nodes.iter().chain([&replica]) {
            until("the cluster is ready", || {
                node.says(&["CLUSTER", "INFO"], "cluster_state:ok") && node.says(&["CLUSTER", "INFO"], "known_nodes:4")
            });
        }
        Some(Self { nodes, replica })
    }

    /// Returns the number of the node that has a key, of the three that began with slots.
    pub fn home(&self, key: &str) -> usize {
        let slot: u16 = self.nodes[0].must(&["CLUSTER", "KEYSLOT", key]);
        usize::from(slot > 5_460) + usize::from(slot > 10_922)
    }

    /// Begins to move the slot of a key, and moves the key: from then on the old node says `ASK`.
    pub fn begin_to_move(&self, key: &str, from: usize, to: usize) -> String {
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        let slot = from.must::<u16>(&["CLUSTER", "KEYSLOT", key]).to_string();
        to.must::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from.id()]);
        from.must::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to.id()]);
        from.must::<String>(&["MIGRATE", "127.0.0.1", &to.port.to_string(), key, "0", "5000"]);
        slot
    }

    /// Says to all nodes that a slot has moved.
    pub fn has_moved(&self, slot: &str, to: usize) {
        let id = self.nodes[to].id();
        let others = self.nodes.iter().enumerate().filter(|(number, _)| *number != to).map(|(_, node)| node);
        for node in [&self.nodes[to]].into_iter().chain(others) {
            node.must::<()>(&["CLUSTER", "SETSLOT", slot, "NODE", &id]);
        }
    }

    /// The URL of a store that knows the second and third node.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", list(&self.nodes[1..]))
    }
}

impl Node {
    fn id(&self) -> String {
        self.must(&["CLUSTER", "MYID"])
    }
}

impl Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "127.0.0.1:{}", self.port)
    }
}

fn list(nodes: &[Node]) -> String {
    nodes.iter().map(Node::to_string).collect::<Vec<_>>().join(",")
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port()
}

/// Returns when something is so.
#[expect(clippy::disallowed_methods, reason = "the servers of others do not say when they are ready")]
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..6_000 {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: not within a minute");
}
