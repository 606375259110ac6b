//! More than one primary: behind one address, by the word of sentinels, and among the nodes of a
//! cluster.

use std::io::copy;
use std::net::{TcpListener, TcpStream};

use super::*;
use testing::store_servers::{Node, Watched, free_port, until};

fn endpoint(port: u16) -> Endpoint {
    Endpoint { host: "127.0.0.1".to_owned(), port }
}

/// Leads each connection to the next of these ports, as a Service leads to one of its pods.
fn service(ports: Vec<u16>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for (client, to) in listener.incoming().zip(ports.into_iter().cycle()) {
            let client = client.expect("a connection");
            let server = TcpStream::connect(("127.0.0.1", to)).expect("it listens");
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (mut from, mut to) = (from.try_clone().expect("a handle"), to.try_clone().expect("a handle"));
                std::thread::spawn(move || copy(&mut from, &mut to));
            }
        }
    });
    port
}

async fn others(address: StoreAddress) -> Vec<Endpoint> {
    let prepared = PreparedStore::new(store_at(address), Clock::start()).expect("its files are there");
    prepared.probe(&[]).await.unwrap_or_else(|broken| panic!("{broken:?}")).others
}

/// The buckets that a server has kept.
fn kept(node: &Node) -> u64 {
    node.must(&["DBSIZE"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_second_primary_behind_one_address_is_found_and_a_replica_is_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program() else { return };
    // One user may ask for a server's number, the other may not.
    for rights in [["+@all", "-debug"], ["+@all", "-info"]] {
        let user: Vec<_> = ["--user", "default", "on", "nopass", "~*"].into_iter().chain(rights).collect();
        let start = || Node::start(&program, folder.path(), &user);
        let (one, two) = (start(), start());
        let split = service(vec![one.port, two.port]);
        assert_eq!(others(StoreAddress::Tcp(endpoint(split))).await, [endpoint(split)], "{rights:?}");
        for at in [one.port, service(vec![one.port])] {
            assert!(others(StoreAddress::Tcp(endpoint(at))).await.is_empty(), "{rights:?}: it is alone");
        }
        // The second server follows the first.
        two.must::<()>(&["REPLICAOF", "127.0.0.1", &one.port.to_string()]);
        let is_connected = |node: &Node| node.must::<(String, String, u16, String, i64)>(&["ROLE"]).3 == "connected";
        until("it follows", || is_connected(&two));
        let split = service(vec![one.port, two.port]);
        assert!(others(StoreAddress::Tcp(endpoint(split))).await.is_empty(), "{rights:?}: one is read only");
        until("nothing is left", || kept(&one) == 0 && kept(&two) == 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_primary_that_only_one_sentinel_names_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(watched) = Watched::start(folder.path(), &[], "") else { return };
    watched.are_ready();
    let sentinels: Vec<_> = watched.sentinels.iter().map(|node| endpoint(node.port)).collect();
    let address = StoreAddress::Sentinel { sentinels, primary: "account".to_owned() };
    assert!(others(address.clone()).await.is_empty());
    let other = Node::start(&program().expect("it was there"), folder.path(), &[]);
    let port = other.port.to_string();
    watched.sentinels[2].must::<()>(&["SENTINEL", "REMOVE", "account"]);
    watched.sentinels[2].must::<()>(&["SENTINEL", "MONITOR", "account", "127.0.0.1", &port, "2"]);
    assert_eq!(others(address).await, [endpoint(other.port)]);
    until("nothing is left", || kept(&other) == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn two_nodes_that_both_have_a_slot_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program() else { return };
    let node = || {
        let bus = free_port().to_string();
        let node = Node::start(&program, folder.path(), &["--cluster-enabled", "yes", "--cluster-port", &bus]);
        node.must::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        node
    };
    let (one, two) = (node(), node());
    let ready = |node: &Node| node.must::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
    until("they take questions", || ready(&one) && ready(&two));
    let seeds = |ports: &[u16]| StoreAddress::Cluster { seeds: ports.iter().copied().map(endpoint).collect() };
    assert!(others(seeds(&[one.port])).await.is_empty());
    assert_eq!(others(seeds(&[one.port, two.port])).await, [endpoint(two.port)]);
}
