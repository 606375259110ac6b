//! An upstream's bytes against a whole gate. The first byte chooses the client's request and
//! whether the upstream speaks HTTP/1 or HTTP/2; the others are its answer. The client gets one
//! HTTP answer or none, and the gate keeps serving.
#![no_main]

use std::sync::{Arc, LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use tidegate::{proxy::Gate, tls};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    runtime::Runtime,
};
use tokio_rustls::TlsAcceptor;

#[path = "../support/gate.rs"]
mod gate;

/// The upstream's next answer.
static ANSWER: Mutex<Vec<u8>> = Mutex::new(Vec::new());

static GATES: LazyLock<(Runtime, [Arc<Gate>; 2])> = LazyLock::new(|| {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    let gates = runtime.block_on(async {
        let [plain, encrypted] = [listen().await, listen().await];
        let certificate = tls::self_signed(&[], &[], None).expect("a certificate");
        let acceptor = TlsAcceptor::from(certificate.config());
        let to = [plain.local_addr().expect("bound"), encrypted.local_addr().expect("bound")];
        tokio::spawn(async move {
            while let Ok((socket, _)) = plain.accept().await {
                tokio::spawn(answering(socket, b"\r\n\r\n", b""));
            }
        });
        tokio::spawn(async move {
            while let Ok((socket, _)) = encrypted.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    if let Ok(socket) = acceptor.accept(socket).await {
                        // settings at once; an answer when the method and path of a head have come
                        answering(socket, b"localhost", &[0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
                    }
                });
            }
        });
        [
            Arc::new(gate::gate(to[0], None).await),
            Arc::new(gate::gate(to[1], Some(&certificate.ca().to_string())).await),
        ]
    });
    (runtime, gates)
});

async fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a port")
}

/// Sends its greeting, and its answer once a request has come.
async fn answering<S: AsyncRead + AsyncWrite + Unpin>(mut socket: S, asked: &'static [u8], greeting: &'static [u8]) {
    if socket.write_all(greeting).await.is_err() || socket.flush().await.is_err() {
        return;
    }
    let mut some = Vec::new();
    while matches!(socket.read_buf(&mut some).await, Ok(read) if read > 0) {
        // HTTP/2 compresses: a head is there when more has come than preface and settings
        let is_asked =
            if greeting.is_empty() { some.windows(asked.len()).any(|piece| piece == asked) } else { some.len() > 90 };
        if is_asked {
            some.clear();
            let answer = ANSWER.lock().expect("no panic").clone();
            if socket.write_all(&answer).await.is_err() || socket.flush().await.is_err() {
                return;
            }
        }
    }
}

const ASKS: [&str; 6] = [
    "GET /api/v1/pods HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HEAD /api/v1/pods HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: localhost\r\nTE: trailers\r\n\r\n",
    "PUT /api/v1/namespaces/a/configmaps/b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
    "GET /api/v1/namespaces/a/pods/b/exec HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nx",
    "PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/l HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
];

fuzz_target!(|bytes: &[u8]| {
    let Some((how, answer)) = bytes.split_first() else { return };
    let (runtime, gates) = &*GATES;
    let gate = &gates[usize::from(how >> 7)];
    let ask = ASKS[usize::from(how & 0x7f) % ASKS.len()];
    runtime.block_on(async {
        ANSWER.lock().expect("no panic").clear();
        ANSWER.lock().expect("no panic").extend_from_slice(answer);
        let got = gate::exchange(gate, ask.as_bytes()).await;
        assert!(got.is_empty() || got.starts_with(b"HTTP/1.1 "), "{:?}", String::from_utf8_lossy(&got));
        let still = gate::exchange(gate, b"GET /livez HTTP/1.1\r\nHost: elsewhere\r\nConnection: close\r\n\r\n").await;
        assert!(still.starts_with(b"HTTP/1.1 421"), "{:?}", String::from_utf8_lossy(&still));
    });
});
