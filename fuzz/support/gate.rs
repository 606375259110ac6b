//! A gate in memory, and bytes to send to it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tidegate::{
    api::Failures,
    clock::Clock,
    config,
    credentials::Injector,
    proxy::{Gate, Listen, Options},
    tls, upstream,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio_util::sync::CancellationToken;

const CONFIG: &str = "[gates.g]\nupstream = \"in_cluster\"\nqueue.max_wait = \"0s\"\nbucket = \"off\"\nretry_bucket = \"off\"\nbackoff.strategy = \"off\"\n";

/// Makes a gate for this upstream; with a CA it connects over TLS.
pub async fn gate(to: SocketAddr, ca: Option<&str>) -> Gate {
    let settings = config::load_text("f.toml".to_owned(), CONFIG.to_owned(), &[]).expect("a good configuration");
    let mut gate = settings.settings.gates.into_values().next().expect("a gate");
    gate.listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
    let failures = Failures { statuses: vec![503], transport: true, left: true };
    gate.answers.failures = vec![failures; gate.policy.classes.len()];
    let scheme = if ca.is_some() { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP };
    let roots = ca.map(|ca| tls::Roots::Only(tls::Pem::new(ca.into(), "the fuzzer's CA")));
    let options = Options {
        stores: tidegate::proxy::Stores::default(),
        gate,
        tls: None,
        upstream: upstream::Options {
            target: upstream::Target {
                scheme,
                authority: to.to_string().parse().expect("an authority"),
                base_path: String::new(),
                server_name: None,
                proxy: None,
            },
            tls: roots.map(|roots| Arc::new(tls::Client::new(roots, None).expect("TLS"))),
            host: upstream::Host::Rewrite,
            rewrite_links: Some(http::uri::Scheme::HTTP),
            mount: String::new(),
            injector: Arc::new(Injector::pass_through()),
            own: Vec::new(),
            dns: upstream::Dns::default(),
            connect_timeout: Duration::from_secs(1),
            response_timeout: None,
        },
        clients: None,
        call_log: None,
        drain: Duration::ZERO,
    };
    Gate::start(options, Clock::start(), CancellationToken::new()).await.expect("a port")
}

/// Returns what the gate answers. A client that closes its side counts as gone, so this one waits
/// for a while first. The time is the runtime's own, and passes when there is nothing else to do.
pub async fn exchange(gate: &Gate, bytes: &[u8]) -> Vec<u8> {
    let (client, server) = duplex(1 << 20);
    let (mut reads, mut writes) = tokio::io::split(client);
    let mut answer = Vec::new();
    let talk = async {
        let _gone = writes.write_all(bytes).await;
        let _waits_for_more = tokio::time::timeout(Duration::from_millis(100), reads.read_to_end(&mut answer)).await;
        let _gone = writes.shutdown().await;
        let _broken = reads.read_to_end(&mut answer).await;
    };
    tokio::join!(gate.serve(server), talk);
    answer
}
