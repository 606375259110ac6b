//! Stores of several servers: sentinels that know where the primary is, and a cluster whose nodes
//! send a question on.

use std::io::{Read, Write};

use super::*;
use crate::store::fault::Fault;
use testing::store_servers::{Node, Nodes, Watched, free_port, until};

fn endpoints(nodes: &[Node]) -> Vec<Endpoint> {
    nodes.iter().map(|node| Endpoint { host: "127.0.0.1".to_owned(), port: node.port }).collect()
}

fn behind(watched: &Watched, name: &str) -> Store {
    let sentinels = endpoints(&watched.sentinels);
    store_at(StoreAddress::Sentinel { sentinels, primary: name.to_owned() })
}

fn of(nodes: &Nodes) -> Store {
    store_at(StoreAddress::Cluster { seeds: endpoints(&nodes.nodes[1..]) })
}

/// An ask for a bucket of this name.
fn ask_of(name: &str) -> Ask {
    let shared = SharedPolicy { store: "main".into(), ..SharedPolicy::new(name) };
    Ask { shared: Arc::new(shared), ..ask(1, 1) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn sentinels_are_asked_for_the_primary_at_each_dial_and_after_it_is_read_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut watched) = Watched::start(folder.path(), &[], "requirepass hush\nsentinel sentinel-pass hush") else {
        return;
    };
    let file = folder.path().join("password");
    std::fs::write(&file, "hush").expect("ours");
    let login = |file: Option<PathBuf>| StoreLogin { user: None, password: file.map(StorePassword::File) };
    let store = Store { sentinel: login(Some(file.clone())), ..behind(&watched, "account") };
    let stores = stores(store.clone());
    asked(&stores, &ask(1, 1)).await.expect("it answers");
    assert!(watched.primary.must::<bool>(&["EXISTS", "tidegate:1:{account}"]));

    // Errors say that they are the sentinels', and which key mends them.
    let fault = async |store: Store| dialer(store).dial().await.expect_err("it cannot be found");
    let said = fault(behind(&watched, "account")).await;
    assert_eq!((said.away(), said.code()), (StoreFailure::Wrong, "NOAUTH"));
    assert!(said.to_string().contains("they need a password; set sentinel.password_file"), "{said}");
    std::fs::write(&file, "wrong").expect("ours");
    let said = fault(Store { sentinel: login(Some(file.clone())), ..behind(&watched, "account") }).await;
    assert!(said.to_string().contains("the store's sentinels: the server answers WRONGPASS: sentinel.user"), "{said}");
    std::fs::write(&file, "hush").expect("ours");
    let said = fault(Store { sentinel: store.sentinel.clone(), ..behind(&watched, "acount") }).await;
    assert!(said.away() == StoreFailure::Wrong && said.to_string().contains("know no primary \"acount\""), "{said}");

    // The two change places. The open connection is to a replica then, which is found out once.
    let old = watched.primary.port.to_string();
    let new = watched.replica.port.to_string();
    watched.replica.must::<()>(&["REPLICAOF", "NO", "ONE"]);
    watched.primary.must::<()>(&["REPLICAOF", "127.0.0.1", &new]);
    assert_eq!(asked(&stores, &ask(1, 1)).await, Err(StoreFailure::Unreachable), "it is read only");
    for sentinel in &watched.sentinels {
        let sentinel = redis::Client::open(format!("redis://:hush@{sentinel}")).expect("an address");
        let mut connection = sentinel.get_connection().expect("it takes connections");
        let mut run = |words: &[&str]| {
            let mut command = redis::cmd("SENTINEL");
            words.iter().for_each(|word| _ = command.arg(word));
            command.query::<()>(&mut connection).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        };
        run(&["REMOVE", "account"]);
        run(&["MONITOR", "account", "127.0.0.1", &new, "2"]);
    }
    asked(&stores, &ask(1, 1)).await.expect("the other answers");

    // One sentinel that swallows everything, and one that is gone, take nothing away.
    watched.sentinels[0].signal("-STOP");
    watched.sentinels[1].kill();
    let at = dialer(store).dial().await.expect("the third knows").at.expect("it has a port");
    assert!(at.port.to_string() == new && new != old, "{at}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_question_finds_the_node_of_its_bucket_and_follows_its_slot() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(nodes) = Nodes::start(folder.path(), &[]) else { return };
    let stores = stores(of(&nodes));
    // The commands that a node was sent by clients, apart from this one.
    let calls = |node: &Node, command: &str| -> u64 {
        let told: String = node.must(&["INFO", "commandstats"]);
        let line = told.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:"))).unwrap_or_default();
        line.split("calls=").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or_default()
    };
    for name in ["a", "b", "c", "d", "e", "f"] {
        let answer = asked(&stores, &ask_of(name)).await.unwrap_or_else(|away| panic!("{name}: {away:?}"));
        let home = &nodes.nodes[nodes.home(&format!("tidegate:1:{{{name}}}"))];
        assert!(answer.granted == 1 && home.must::<bool>(&["EXISTS", &format!("tidegate:1:{{{name}}}")]), "{name}");
    }
    let moved = |nodes: &Nodes| nodes.nodes.iter().map(|node| rejected(node, "MOVED")).sum::<u64>();
    let before = moved(&nodes);
    for name in ["a", "b", "c", "d", "e", "f"] {
        asked(&stores, &ask_of(name)).await.expect("it answers");
    }
    assert_eq!(moved(&nodes), before, "where they are is remembered");

    // While its slot moves a bucket is asked for where it has gone, with one word more each time.
    let key = "tidegate:1:{account}";
    let first = asked(&stores, &ask(1, 1)).await.expect("it answers");
    let from = nodes.home(key);
    let to = (from + 1) % 3;
    let slot = nodes.begin_to_move(key, from, to);
    let asking = calls(&nodes.nodes[to], "asking");
    for total in 1..=3 {
        let ask = Ask { total, epoch: first.epoch, ..ask(1, 1) };
        let answer = asked(&stores, &ask).await.expect("it answers");
        assert_eq!((answer.epoch, answer.granted), (first.epoch, 1), "it is the same bucket");
    }
    assert!(calls(&nodes.nodes[to], "asking") >= asking + 3);
    nodes.has_moved(&slot, to);
    asked(&stores, &Ask { total: 4, epoch: first.epoch, ..ask(1, 1) }).await.expect("it answers");
    let before = (moved(&nodes), calls(&nodes.nodes[to], "asking"));
    let last = asked(&stores, &Ask { total: 5, epoch: first.epoch, ..ask(1, 1) }).await.expect("it answers");
    assert_eq!((moved(&nodes), calls(&nodes.nodes[to], "asking")), before, "its new node is remembered");
    assert_eq!(last.epoch, first.epoch);
}

/// Counts the errors of a kind that a node has answered.
fn rejected(node: &Node, code: &str) -> u64 {
    let told: String = node.must(&["INFO", "errorstats"]);
    let line = told.lines().find(|line| line.starts_with(&format!("errorstat_{code}:"))).unwrap_or_default();
    line.split("count=").nth(1).and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_replica_of_a_node_that_dies_is_found_and_the_other_nodes_answer_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut nodes) = Nodes::start(folder.path(), &[]) else { return };
    let stores = stores(Store { timeout: Duration::from_secs(1), ..of(&nodes) });
    let at = |node: usize| {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        names.into_iter().find(|name| nodes.home(&format!("tidegate:1:{{{name}}}")) == node).expect("one of them")
    };
    let dies = at(0);
    let lives = at(1);
    asked(&stores, &ask_of(dies)).await.expect("it answers");
    asked(&stores, &ask_of(lives)).await.expect("it answers");
    // One that swallows everything is away for its own buckets.
    nodes.nodes[0].signal("-STOP");
    assert_eq!(asked(&stores, &ask_of(dies)).await, Err(StoreFailure::Unreachable));
    asked(&stores, &ask_of(lives)).await.expect("it answers");
    nodes.nodes[0].kill();
    let mut answer = asked(&stores, &ask_of(dies)).await;
    while answer.is_err() {
        Clock::start().sleep(Duration::from_millis(50)).await;
        answer = asked(&stores, &ask_of(dies)).await;
        asked(&stores, &ask_of(lives)).await.expect("it answers");
    }
    until("it is at the replica", || {
        nodes.replica.run::<bool>(&["EXISTS", &format!("tidegate:1:{{{dies}}}")]).is_ok_and(|is| is)
    });
}

/// A node that gives the same answer to each of its commands, and tells of each. It says its own
/// port in the place of `PORT`.
pub(super) fn node_that_says(answer: &str) -> (Endpoint, std::sync::mpsc::Receiver<()>) {
    let node = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = node.local_addr().expect("bound").port();
    let answer = answer.replace("PORT", &port.to_string());
    let (sender, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = node.accept().expect("it is called");
        let mut bytes = [0; 4096];
        while let Ok(1..) = stream.read(&mut bytes) {
            sender.send(()).ok();
            stream.write_all(answer.as_bytes()).ok();
        }
    });
    (Endpoint { host: "127.0.0.1".to_owned(), port }, heard)
}

#[tokio::test]
async fn a_node_that_is_not_ready_is_not_asked_for_the_way_again_while_others_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(nodes) = Nodes::start(folder.path(), &[]) else { return };
    for code in ["CLUSTERDOWN", "LOADING"] {
        let answer = format!("-{code} not now\r\n");
        let (silent, heard) = node_that_says(&answer);
        let seeds = [vec![silent.clone()], endpoints(&nodes.nodes)].concat();
        let all = stores(store_at(StoreAddress::Cluster { seeds }));
        asked(&all, &ask(1, 1)).await.expect("another node knows the way");
        asked(&all, &ask(1, 1)).await.expect("and is remembered");
        assert_eq!(heard.try_iter().count(), 1);
        // Fallback it is asked once for each question, and says what it lacks.
        let (silent, heard) = node_that_says(&answer);
        let alone = stores(store_at(StoreAddress::Cluster { seeds: vec![silent] }));
        assert_eq!(asked(&alone, &ask(1, 1)).await, Err(StoreFailure::Unreachable));
        assert_eq!((heard.try_iter().count(), alone.health()[0].1.error.as_deref()), (1, Some(code)));
    }
}

#[tokio::test]
async fn nodes_that_send_a_question_on_without_end_are_away() {
    let (node, heard) = node_that_says("-MOVED 7 :PORT\r\n");
    let stores = stores(store_at(StoreAddress::Cluster { seeds: vec![node] }));
    assert_eq!(asked(&stores, &ask(1, 1)).await, Err(StoreFailure::Unreachable));
    assert_eq!(heard.try_iter().count(), 6, "once, and five times more");
    assert!(Fault::Redirected.to_string().contains("without end"));
}

#[tokio::test]
async fn no_password_is_sent_in_the_clear_to_where_a_node_points() {
    let Some(server) = Server::start(&[]) else { return };
    let login = StoreLogin { user: None, password: Some(StorePassword::File(server.file("password", "secret"))) };
    let dialer = dialer(Store { login, ..server.store() });
    let fault = dialer.dial_at(&Endpoint { host: "192.0.2.1".to_owned(), port: 6379 }).await;
    let fault = fault.expect_err("it is not dialled");
    assert!(
        fault.to_string().contains("192.0.2.1:6379 is on another machine") && fault.away() == StoreFailure::Wrong,
        "{fault}"
    );
}

#[tokio::test]
async fn an_address_that_is_silent_takes_no_time_of_the_others_behind_the_name() {
    let open = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    // Its queue is full with the first connection, and what comes then is dropped.
    let silent = tokio::net::TcpSocket::new_v4().expect("a socket");
    silent.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let silent = silent.listen(0).expect("listens");
    let of = |listener: &tokio::net::TcpListener| listener.local_addr().expect("bound");
    let _first = std::net::TcpStream::connect(of(&silent)).expect("it is taken");
    let store = store_at(StoreAddress::Tcp(Endpoint { host: "unused".to_owned(), port: 0 }));
    let dialer = dialer(Store { timeout: Duration::from_secs(2), ..store });
    let refused = free_port();
    for addresses in [vec![of(&silent), of(&open)], vec![of(&silent), ([127, 0, 0, 1], refused).into(), of(&open)]] {
        let stream = dialer.in_time(dialer.first(&*addresses)).await.expect("one takes it");
        assert_eq!(stream.peer_addr().expect("it is connected"), of(&open));
    }
    let fault = dialer.in_time(dialer.first(&[of(&silent)][..])).await.expect_err("nobody takes it");
    assert_eq!(fault.code(), "timeout");
}
