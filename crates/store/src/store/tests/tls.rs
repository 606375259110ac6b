//! A store behind TLS, with a certificate of a CA that only the configuration knows.

use super::*;
use testing::store_servers::{Node, Nodes, Watched};

/// A certificate of this machine, which is its own CA, and its key: two files.
fn certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).expect("names").self_signed(&key).expect("signed");
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("it can be written");
        path
    };
    (write("cert", certificate.pem()), write("key", key.serialize_pem()))
}

/// The options of servers that have a certificate, and speak TLS with each other too.
fn options<'a>(cert: &'a str, key: &'a str) -> Vec<&'a str> {
    let mut options = vec!["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert];
    options.extend(["--tls-auth-clients", "no", "--tls-replication", "yes"]);
    options
}

/// A user with a password, who has all the rights that a gate needs.
fn user() -> Vec<&'static str> {
    let rights = "-@all +auth +ping +select +eval +evalsha +time +hgetall +hset +hdel +pexpire +asking";
    ["--user", "tidegate", "on", ">secret", "~tidegate:*"].into_iter().chain(rights.split(' ')).collect()
}

fn over_tls(nodes: &[Node]) -> Vec<Endpoint> {
    let port = |node: &Node| node.tls_port.expect("it has a certificate");
    nodes.iter().map(|node| Endpoint { host: "127.0.0.1".to_owned(), port: port(node) }).collect()
}

/// A store with TLS and a password, at this address.
fn with_tls(address: StoreAddress, folder: &Path, ca: Option<PathBuf>, server_name: Option<&str>) -> Store {
    let password = folder.join("password");
    std::fs::write(&password, "secret").expect("it can be written");
    let server_name = server_name.map(str::to_owned);
    Store {
        has_tls: true,
        tls: UpstreamTls { ca, server_name, ..UpstreamTls::default() },
        login: StoreLogin { user: Some("tidegate".to_owned()), password: Some(StorePassword::File(password)) },
        ..store_at(address)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_primary_that_sentinels_name_is_reached_over_tls_as_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cert, key) = certificate(folder.path());
    let cert_text = cert.display().to_string();
    let key_text = key.display().to_string();
    let options = options(&cert_text, &key_text);
    let of_sentinels = format!(
        "tls-cert-file {cert_text}\ntls-key-file {key_text}\ntls-ca-cert-file {cert_text}\n\
         tls-auth-clients no\ntls-replication yes"
    );
    let Some(watched) = Watched::start(folder.path(), &[options, user()].concat(), &of_sentinels) else { return };
    let address = StoreAddress::Sentinel { sentinels: over_tls(&watched.sentinels), primary: "account".to_owned() };
    let store = |ca, name| with_tls(address.clone(), folder.path(), ca, name);
    asked(&stores(store(Some(cert.clone()), None)), &ask(1, 1)).await.expect("it answers");
    let at = dialer(store(Some(cert.clone()), None)).dial().await.expect("it is found").at.expect("it has a port");
    assert_eq!(Some(at.port), watched.primary.tls_port, "and not the port without TLS");

    let fault = dialer(store(None, None)).dial().await.expect_err("the system does not know its CA").to_string();
    assert!(fault.contains("the store's sentinels: ") && fault.contains("stores.NAME.tls.ca"), "{fault}");
    let fault = dialer(store(Some(cert), Some("valkey.example"))).dial().await.expect_err("it has another name");
    assert!(fault.to_string().contains("stores.NAME.tls.server_name"), "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_nodes_that_a_cluster_names_are_reached_over_tls_and_told_the_password() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cert, key) = certificate(folder.path());
    let cert_text = cert.display().to_string();
    let key_text = key.display().to_string();
    let more = [options(&cert_text, &key_text), vec!["--tls-cluster", "yes"], user()].concat();
    let Some(nodes) = Nodes::start(folder.path(), &more) else { return };
    // One seed, which sends most questions on: the ports that it names are those for TLS.
    let address = StoreAddress::Cluster { seeds: over_tls(&nodes.nodes[1..2]) };
    let stores = stores(with_tls(address.clone(), folder.path(), Some(cert.clone()), Some("localhost")));
    let mut homes = BTreeSet::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        let shared = SharedPolicy { store: "main".into(), ..SharedPolicy::new(name) };
        let answer = asked(&stores, &Ask { shared: Arc::new(shared), ..ask(1, 1) }).await;
        answer.unwrap_or_else(|away| panic!("{name}: {away:?}: {:?}", stores.health()));
        homes.insert(nodes.home(&format!("tidegate:1:{{{name}}}")));
    }
    assert_eq!(homes.len(), 3, "each node was asked");
    let servers = stores.health()[0].1.servers.clone();
    let by_tls = |at: &Endpoint| nodes.nodes.iter().any(|node| node.tls_port == Some(at.port));
    assert!(servers.len() == 3 && servers.iter().all(by_tls), "{servers:?}");
}

#[tokio::test]
async fn a_server_is_reached_over_tls_and_only_with_its_own_ca() {
    let Some(program) = program() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (cert, key) = certificate(folder.path());
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let port_text = port.to_string();
    let cert_text = cert.display().to_string();
    let key_text = key.display().to_string();
    let more = [
        "--tls-port",
        &port_text,
        "--tls-cert-file",
        &cert_text,
        "--tls-key-file",
        &key_text,
        "--tls-auth-clients",
        "no",
        "--tls-ca-cert-file",
        &cert_text,
    ];
    let process = spawn(&program, folder.path(), &more);
    let server = Server { process, folder, port: Some(port) };
    let address = StoreAddress::Tcp(Endpoint { host: "localhost".to_owned(), port: server.port.expect("set") });
    let over = |tls: UpstreamTls| Store { address: address.clone(), has_tls: true, tls, ..server.store() };
    let trusting = over(UpstreamTls { ca: Some(cert), ..UpstreamTls::default() });
    asked(&stores(trusting), &ask(1, 1)).await.expect("it answers");
    let fault = dialer(over(UpstreamTls::default())).dial().await.expect_err("the system does not know its CA");
    let text = fault.to_string();
    assert!(text.contains("certificate") && text.contains("stores.NAME.tls.ca"), "{text}");
    assert_eq!(fault.away(), StoreFailure::Unreachable);
}
