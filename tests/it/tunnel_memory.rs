//! The memory that a tunnel takes, measured on a separate `tidegate` process: its peak resident
//! memory while bytes go both ways, and while they cannot.
//!
//! With TLS the test's own ends stay plain: one relay beside the gate encrypts the bytes to it, and
//! another decrypts those from it.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, thread};

use rustls::pki_types::ServerName;
use tidegate::tls::{self, Pem, Roots};
use tokio::io::copy_bidirectional;
use tokio::runtime::Runtime;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::command::{Running, config, start, with_config};
use crate::ports::free_port;

/// Bytes in each direction: 4 s without optimization.
const BYTES: u64 = 1 << 30;
/// The memory that it may take; 20 KiB were measured.
const MOST: u64 = 2 << 20;
/// Bytes in each direction with TLS, which takes four times as long without optimization. No byte
/// may stay in memory, so a quarter shows as much.
const BYTES_BY_TLS: u64 = 256 << 20;

/// Switches protocols, then echoes.
fn echo(listener: &TcpListener) {
    while let Ok((mut socket, _)) = listener.accept() {
        thread::spawn(move || {
            read_head(&mut socket);
            let switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
            socket.write_all(switched).expect("the gate reads");
            let mut back = socket.try_clone().expect("a socket");
            std::io::copy(&mut socket, &mut back).expect("the gate reads");
            back.shutdown(Shutdown::Write).expect("open");
        });
    }
}

fn read_head(socket: &mut TcpStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
}

fn tunnel(port: u16) -> TcpStream {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("the gate listens");
    let ask = "POST /api/v1/namespaces/d/pods/p/portforward HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\
               Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    socket.write_all(ask.as_bytes()).expect("the gate reads");
    read_head(&mut socket);
    socket
}

/// Sends bytes through a tunnel and gets them back. It begins to read only when nothing more can be
/// written.
fn through(port: u16, bytes: u64) {
    let mut reading = tunnel(port);
    let mut writing = reading.try_clone().expect("a socket");
    let written = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let chunk = vec![7; 64 << 10];
            while written.load(Ordering::Relaxed) < bytes {
                writing.write_all(&chunk).expect("the gate reads");
                written.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            }
            writing.shutdown(Shutdown::Write).expect("open");
        });
        let mut before = u64::MAX;
        while before != written.load(Ordering::Relaxed) {
            before = written.load(Ordering::Relaxed);
            thread::park_timeout(Duration::from_millis(100)); // to see that it has stopped; no time is measured
        }
        let (mut read, mut some) = (0, vec![0; 256 << 10]);
        loop {
            match reading.read(&mut some).expect("the gate writes") {
                0 => break,
                more => read += more as u64,
            }
        }
        assert_eq!(read, written.load(Ordering::Relaxed));
    });
}

/// A line of the kernel's about a process, in bytes.
fn memory(gate: &Running, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", gate.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("Linux says so");
    let kib: u64 = line.trim_matches([':', '\t', ' ']).trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// The additional peak memory of the gate for this many bytes in each direction.
fn cost(gate: &Running, port: u16, bytes: u64) -> u64 {
    through(port, 1 << 20); // allocates what is allocated only once
    fs::write(format!("/proc/{}/clear_refs", gate.id()), "5").expect("the peak can be reset");
    let before = memory(gate, "VmRSS");
    through(port, bytes);
    memory(gate, "VmHWM").saturating_sub(before)
}

fn echoing() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let upstream = listener.local_addr().expect("bound");
    thread::spawn(move || echo(&listener));
    upstream
}

#[test]
fn what_goes_through_a_tunnel_costs_no_memory() {
    let (upstream, port) = (echoing(), free_port());
    let (_folder, path) = config(&format!(
        "[admin]\nlisten = \"off\"\n[gates.kubernetes]\nupstream = \"http://{upstream}\"\nlisten = \"127.0.0.1:{port}\"\n"
    ));
    let mut gate = start(with_config("run", &path));
    gate.ready();
    let cost = cost(&gate, port, BYTES);
    assert!(cost < MOST, "{cost} bytes more at the peak");
    assert_eq!(gate.terminate(), Some(0));
}

/// Decrypts what comes and passes it on; returns its port.
async fn decrypting(acceptor: TlsAcceptor, to: std::net::SocketAddr) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut outside = acceptor.accept(socket).await.expect("the gate trusts it");
                let mut inside = tokio::net::TcpStream::connect(to).await.expect("it listens");
                drop(copy_bidirectional(&mut outside, &mut inside).await);
            });
        }
    });
    port
}

/// Encrypts what comes and passes it on; returns its port.
async fn encrypting(connector: TlsConnector, to: u16) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((mut inside, _)) = listener.accept().await {
            let connector = connector.clone();
            tokio::spawn(async move {
                let outside = tokio::net::TcpStream::connect(("127.0.0.1", to)).await.expect("the gate listens");
                let name = ServerName::try_from("localhost").expect("a name");
                let mut outside = connector.connect(name, outside).await.expect("it trusts the gate");
                drop(copy_bidirectional(&mut inside, &mut outside).await);
            });
        }
    });
    port
}

#[test]
fn what_goes_through_a_tunnel_costs_no_memory_with_tls_on_both_sides() {
    let runtime = Runtime::new().expect("a runtime");
    let server = tls::self_signed(&[], &[], None).expect("made");
    let upstream = runtime.block_on(decrypting(TlsAcceptor::from(server.config()), echoing()));
    let (port, (folder, path)) = (free_port(), config(""));
    let ca = folder.path().join("upstream.crt");
    fs::write(&ca, &*server.ca()).expect("it can be written");
    let shared = folder.path().join("shared");
    let text = format!(
        "[admin]\nlisten = \"off\"\n[gates.kubernetes]\nupstream = \"https://localhost:{upstream}\"\nlisten = \"127.0.0.1:{port}\"\n\
         upstream_tls = {{ ca = {:?} }}\ntls = {{ write_to = {:?} }}\n",
        ca.display().to_string(),
        shared.display().to_string()
    );
    fs::write(&path, text).expect("it can be written");
    let mut gate = start(with_config("run", &path));
    gate.ready();
    let pem = fs::read(shared.join("ca.crt")).expect("the gate wrote it");
    let mut trust = (*tls::client(&Roots::Only(Pem::new(pem, "ca.crt")), None).expect("TLS")).clone();
    trust.alpn_protocols = vec![b"http/1.1".to_vec()];
    let own = runtime.block_on(encrypting(TlsConnector::from(std::sync::Arc::new(trust)), port));
    let cost = cost(&gate, own, BYTES_BY_TLS);
    assert!(cost < MOST, "{cost} bytes more at the peak");
    assert_eq!(gate.terminate(), Some(0));
}
