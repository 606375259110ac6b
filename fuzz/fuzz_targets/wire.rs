//! A client's bytes against a whole gate: any bytes get an HTTP answer or none, and the gate keeps
//! serving.
#![no_main]

use std::{sync::LazyLock, time::Duration};

use libfuzzer_sys::fuzz_target;
use tidegate::{
    api::Failures,
    clock::Clock,
    config,
    credentials::Injector,
    proxy::{Gate, Listen, Options},
    upstream,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    runtime::Runtime,
};
use tokio_util::sync::CancellationToken;

/// A gate whose upstream does not exist: the gate itself answers every request that passes the
/// guard.
static GATE: LazyLock<(Runtime, Gate)> = LazyLock::new(|| {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    let gate = runtime.block_on(async {
        let settings = config::load_text("f.toml".to_owned(), CONFIG.to_owned(), &[]).expect("a good configuration");
        let mut gate = settings.settings.gates.into_values().next().expect("a gate");
        gate.listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
        let failures = Failures { statuses: vec![503], transport: true, left: true };
        gate.answers.failures = vec![failures; gate.policy.classes.len()];
        let options = Options {
            gate,
            tls: None,
            stores: tidegate::proxy::Stores::default(),
            upstream: upstream::Options {
                target: upstream::Target {
                    scheme: http::uri::Scheme::HTTP,
                    authority: "127.0.0.1:1".parse().expect("an authority"),
                    base_path: String::new(),
                    server_name: None,
                    proxy: None,
                },
                tls: None,
                host: upstream::Host::Rewrite,
                rewrite_links: None,
                mount: String::new(),
                injector: std::sync::Arc::new(Injector::pass_through()),
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
    });
    (runtime, gate)
});

const CONFIG: &str = "[gates.g]\nupstream = \"in_cluster\"\nqueue.max_wait = \"0s\"\n";

/// Returns what the gate answers. A client that closes its side counts as gone, so this one waits
/// for a while first. The time is the runtime's own, and passes when there is nothing else to do.
async fn exchange(gate: &Gate, bytes: &[u8]) -> Vec<u8> {
    let (client, server) = duplex(1 << 20);
    let (mut reads, mut writes) = tokio::io::split(client);
    let mut answer = Vec::new();
    let talk = async {
        let _gone = writes.write_all(bytes).await;
        let _waits_for_more = tokio::time::timeout(Duration::from_secs(1), reads.read_to_end(&mut answer)).await;
        let _gone = writes.shutdown().await;
        let _broken = reads.read_to_end(&mut answer).await;
    };
    tokio::join!(gate.serve(server), talk);
    answer
}

fuzz_target!(|bytes: &[u8]| {
    let (runtime, gate) = &*GATE;
    runtime.block_on(async {
        let http2 = bytes.starts_with(b"PRI * HTTP/2.0");
        let answer = exchange(gate, bytes).await;
        assert!(http2 || answer.is_empty() || answer.starts_with(b"HTTP/1."), "{:?}", String::from_utf8_lossy(&answer));
        let still = exchange(gate, b"GET /livez HTTP/1.1\r\nHost: elsewhere\r\nConnection: close\r\n\r\n").await;
        assert!(still.starts_with(b"HTTP/1.1 421"), "{:?}", String::from_utf8_lossy(&still));
    });
});
