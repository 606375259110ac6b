//! Instructions of a whole call: the binary that ships runs under callgrind, between a client and an
//! upstream of this program, which tells callgrind when the first calls have warmed it up and when
//! the last one has ended. What ran in between is what the calls cost.
//!
//! Two things made the count depend on how busy the machine is. A call that wakes the gate twice
//! costs more than one whose answer is there already: so a request or an answer is sent only when
//! the gate sleeps. And at its start the gate compares clocks (`quanta`) until they agree, which
//! takes some ten million instructions more or less under valgrind: so the start is not counted,
//! rather than taken away by a second run that has another start.
//!
//! ```text
//! cargo bench -p decide --bench calls               a line for each way of a call
//! cargo bench -p decide --bench calls -- check [BINARY]
//!                                                   counts the floor (`benches/peers/floor`) as well,
//!                                                   whose binary FLOOR names, and fails where a call
//!                                                   takes too many times what it takes there
//! cargo bench -p decide --bench calls -- profile FOLDER BINARY
//!                                                   leaves callgrind's files of each way in a folder
//!                                                   that is there, for callgrind_annotate: `.1` is the
//!                                                   start, `.2` the calls; to see names, build the
//!                                                   binary with `-C strip=none`
//! cargo bench -p decide --bench calls -- count WAY CALLS profile FOLDER BINARY
//!                                                   the same for one way, by its whole name, and so
//!                                                   many calls
//! cargo bench -p decide --bench calls -- only BINARY
//!                                                   makes the calls and counts nothing
//! cargo bench -p decide --bench calls -- qemu PLUGIN BINARY
//!                                                   counts by qemu's user emulation in place of
//!                                                   callgrind, which also runs a binary for arm64
//! ```
//!
//! The binary is the one that stands where this program's folder is, or the one that an argument
//! names. This builds none: run `.ci/ship build --bin tidegate` first. The gate has the limits of a Kubernetes gate, with a bucket that never runs dry; where
//! clients speak TLS and HTTP/2 it is one for an external API, which listens itself or opens TLS in
//! tunnels to it. Valgrind has to be installed, with `vgdb`, which tells callgrind of the moments.
//! `benches/decide/processors` makes what the last form needs, and compares two processors; with
//! qemu the calls are the difference between a longer run and a shorter one.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, thread};

use bytes::Bytes;
use counter::{Counter, until_it_sleeps};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::BufStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

mod counter;

/// A way that calls take through the gate.
struct Way {
    what: &'static str,
    /// The most that a call may take, in hundredths of what it takes through the floor. For the
    /// tunnel, in hundredths of a call by TLS through the gate.
    bar: u64,
    /// Starts the upstream. The folder is for files.
    upstream: fn(&Path) -> io::Result<Upstream>,
    client: Client,
}

/// An upstream on a port of this machine.
struct Upstream {
    port: u16,
    /// The file of its authority, if it speaks TLS.
    ca: Option<PathBuf>,
}

/// A program between client and upstream.
#[derive(Clone, Copy)]
enum Program<'a> {
    Gate(&'a Path),
    Floor(&'a Path),
}

/// The client of a gate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Client {
    /// It speaks HTTP/1.1 in the clear, and has a token of so many bytes.
    Plain(usize),
    /// It speaks HTTP/2 by TLS to the gate's own listener.
    Tls,
    /// The same through a tunnel of the egress listener, which is opened.
    Tunnel,
}

#[rustfmt::skip]
const WAYS: [Way; 5] = [
    Way { what: "a GET of 1 KiB, HTTP/1.1 to HTTP/1.1",       bar: 285, upstream: plain, client: Client::Plain(29) },
    Way { what: "a GET of 1 KiB, HTTP/1.1 to TLS and HTTP/2", bar: 187, upstream: tls, client: Client::Plain(29) },
    Way { what: "the same with a token of 900 bytes",         bar: 164, upstream: tls, client: Client::Plain(900) },
    Way { what: "a GET of 1 KiB, TLS and HTTP/2 to the same", bar: 142, upstream: tls, client: Client::Tls },
    Way { what: "the same through a tunnel that is opened",   bar: 105, upstream: tls, client: Client::Tunnel },
];

fn main() -> ExitCode {
    // `cargo bench` adds a flag of its own.
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Returns false where a call takes more than its bar.
fn run(args: &[&str]) -> io::Result<bool> {
    match *args {
        ["count", what, calls, ref rest @ ..] => {
            let way =
                WAYS.iter().find(|way| way.what == what).ok_or_else(|| io::Error::other("there is no such way"))?;
            let (counter, rest) = counter(rest);
            let program = match *rest {
                ["floor", floor] => Program::Floor(Path::new(floor)),
                _ => Program::Gate(&binary(rest)?),
            };
            println!("{}", way.count(&counter, program, calls.parse().map_err(io::Error::other)?)?);
            Ok(true)
        }
        ["check", ref rest @ ..] => {
            let floor =
                env::var_os("FLOOR").ok_or_else(|| io::Error::other("FLOOR must name the binary of the floor"))?;
            compare(Path::new(&floor), &binary(rest)?)
        }
        ref rest => {
            let (counter, rest) = counter(rest);
            let binary = binary(rest)?;
            if matches!(counter, Counter::Profile(_) | Counter::Nothing) {
                return call_once(&counter, &binary);
            }
            for way in WAYS {
                println!("{:<50} {:>6} instructions", way.what, way.cost(&counter, Program::Gate(&binary))?);
            }
            Ok(true)
        }
    }
}

/// Reads which counter is asked for, and returns the arguments behind it.
fn counter<'a, 'b>(args: &'a [&'b str]) -> (Counter, &'a [&'b str]) {
    match args {
        ["qemu", plugin, rest @ ..] => (Counter::Qemu(plugin.into()), rest),
        ["only", rest @ ..] => (Counter::Nothing, rest),
        ["profile", folder, rest @ ..] => (Counter::Profile(folder.into()), rest),
        rest => (Counter::Callgrind, rest),
    }
}

/// Returns the binary that is named, or the one that was built where this program was.
fn binary(args: &[&str]) -> io::Result<PathBuf> {
    if let [named] = args {
        return Ok(PathBuf::from(named));
    }
    let beside = env::current_exe()?.parent().and_then(Path::parent).map(|folder| folder.join("tidegate"));
    beside
        .filter(|binary| binary.is_file())
        .ok_or_else(|| io::Error::other("build tidegate with the same profile first"))
}

/// Compares each way through the gate with the same way through the floor.
fn compare(floor: &Path, binary: &Path) -> io::Result<bool> {
    let (mut holds, mut by_tls) = (true, 0);
    for way in WAYS {
        let cost = way.cost(&Counter::Callgrind, Program::Gate(binary))?;
        let least = match way.client {
            Client::Tunnel => by_tls,
            _ => way.cost(&Counter::Callgrind, Program::Floor(floor))?,
        };
        if way.client == Client::Tls {
            by_tls = cost;
        }
        let ratio = cost * 100 / least.max(1);
        holds &= ratio <= way.bar;
        let verdict = if ratio <= way.bar { "of at most" } else { "ABOVE" };
        println!("{:<50} {cost:>6} instructions, {ratio}% of {least}, {verdict} {}%", way.what, way.bar);
    }
    Ok(holds)
}

/// Returns what a process has counted.
fn counted(run: Child) -> io::Result<u64> {
    let ended = run.wait_with_output()?;
    let said = String::from_utf8_lossy(&ended.stdout);
    said.trim().parse().map_err(|_| io::Error::other(String::from_utf8_lossy(&ended.stderr).into_owned()))
}

/// Makes many calls by each way, once.
fn call_once(counter: &Counter, binary: &Path) -> io::Result<bool> {
    for way in WAYS {
        match way.count(counter, Program::Gate(binary), MANY)? {
            0 => println!("{:<50} {} calls", way.what, WARM_UP + MANY),
            count => println!("{:<50} {count:>6} instructions for {} calls", way.what, WARM_UP + MANY),
        }
    }
    Ok(true)
}

// === impl Way ===

impl Way {
    /// Returns the instructions of one call.
    fn cost(&self, counter: &Counter, program: Program<'_>) -> io::Result<u64> {
        if counter.counts_calls_alone() {
            let [one, other] = self.least(counter, program, [MANY; 2], 1)?;
            return Ok(one.min(other) / MANY);
        }
        let [few, many] = self.least(counter, program, [FEW, MANY], RUNS)?;
        Ok(many.saturating_sub(few) / (MANY - FEW))
    }

    /// Counts calls of two numbers at once, several times. Returns the least of each.
    fn least(&self, counter: &Counter, program: Program<'_>, calls: [u64; 2], times: usize) -> io::Result<[u64; 2]> {
        let mut least = [u64::MAX; 2];
        for _ in 0..times {
            let [one, other] = calls.map(|calls| self.begin(counter, program, calls));
            for (least, run) in least.iter_mut().zip([one?, other?]) {
                *least = (*least).min(counted(run)?);
            }
        }
        Ok(least)
    }

    /// Begins to count in a process of its own, since there is one gate to a process: so that two
    /// runs are counted at once.
    fn begin(&self, counter: &Counter, program: Program<'_>, calls: u64) -> io::Result<Child> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["count", self.what, &calls.to_string()]);
        if let Counter::Qemu(plugin) = counter {
            command.arg("qemu").arg(plugin);
        }
        match program {
            Program::Gate(binary) => command.arg(binary),
            Program::Floor(floor) => command.arg("floor").arg(floor),
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    }

    fn count(&self, counter: &Counter, program: Program<'_>, calls: u64) -> io::Result<u64> {
        let folder = env::temp_dir().join(format!("tidegate-calls-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let counted = self.count_in(&folder, counter, program, calls);
        fs::remove_dir_all(&folder)?;
        counted
    }

    /// Returns the gate's configuration, for clients that come to this port.
    fn gate(&self, folder: &Path, port: u16, upstream: &Upstream) -> io::Result<String> {
        let to = upstream.port;
        let own = upstream.ca.as_ref().map_or_else(String::new, |ca| format!("upstream_tls.ca = {ca:?}"));
        let scheme = if upstream.ca.is_some() { "https" } else { "http" };
        let upstream = format!("upstream = \"{scheme}://localhost:{to}\"\n{own}");
        Ok(match self.client {
            Client::Plain(_) => format!("[gates.kubernetes]\nlisten = \"127.0.0.1:{port}\"\n{upstream}"),
            Client::Tls => {
                let (cert, key) = certificate(folder, NAME)?;
                format!(
                    "[gates.api]\nkind = \"http\"\npreset = \"none\"\nlisten = \"127.0.0.1:{port}\"\n{upstream}\n\
                     allowed_hosts = [{NAME:?}]\nhost = \"preserve\"\nrewrite_links = false\n\
                     tls = {{ mode = \"files\", cert = {cert:?}, key = {key:?} }}"
                )
            }
            Client::Tunnel => {
                format!(
                    "[egress]\nlisten = \"127.0.0.1:{port}\"\nca.write_to = {folder:?}\n[gates.api]\nhosts = [{NAME:?}]\n\
                     intercept = true\npreset = \"none\"\nconnect_to = {{ {NAME:?} = \"localhost:{to}\" }}\n{own}"
                )
            }
        })
    }

    /// Returns the floor's arguments.
    fn floor(&self, folder: &Path, port: u16, upstream: &Upstream) -> io::Result<Vec<OsString>> {
        let scheme = if upstream.ca.is_some() { "https" } else { "http" };
        let mut arguments =
            vec![format!("127.0.0.1:{port}").into(), format!("{scheme}://127.0.0.1:{}", upstream.port).into()];
        arguments.extend(upstream.ca.clone().map(PathBuf::into_os_string));
        if self.client == Client::Tls {
            let (cert, key) = certificate(folder, NAME)?;
            arguments.extend([cert.into_os_string(), key.into_os_string()]);
        }
        Ok(arguments)
    }

    fn count_in(&self, folder: &Path, counter: &Counter, program: Program<'_>, calls: u64) -> io::Result<u64> {
        let upstream = (self.upstream)(folder)?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let file = folder.join("tidegate.toml");
        let (binary, arguments) = match program {
            Program::Floor(floor) => (floor, self.floor(folder, port, &upstream)?),
            Program::Gate(binary) => {
                let gate = self.gate(folder, port, &upstream)?;
                let bucket = "bucket = { rate = 1e9, burst = 4294967295, adapt = \"off\" }";
                fs::write(&file, format!("[admin]\nlisten = \"off\"\nsocket = \"off\"\n{gate}\n{bucket}\n"))?;
                (binary, vec!["run".into(), "--config".into(), file.clone().into_os_string()])
            }
        };
        let mut gate = counter.start(binary, folder, &arguments)?;
        let called = connect(&mut gate, port).and_then(|stream| {
            // Before each call, and after the last.
            let before = |number| {
                until_it_sleeps();
                if number == WARM_UP || number == WARM_UP + calls { counter.next_part(&gate) } else { Ok(()) }
            };
            match self.client {
                Client::Plain(token) => call(&stream, WARM_UP + calls, token, before),
                client => call_by_tls(stream, client, folder, WARM_UP + calls, before),
            }
        });
        if let Some(pid) = i32::try_from(gate.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)?;
        }
        let said = gate.wait_with_output()?;
        let said = String::from_utf8_lossy(&said.stderr);
        called.map_err(|error| io::Error::other(format!("{error}\n{said}")))?;
        if matches!(counter, Counter::Nothing) {
            return Ok(0);
        }
        counter.collected(folder, &said).ok_or_else(|| io::Error::other(said.into_owned()))
    }
}

/// Connects to a gate as soon as it listens.
fn connect(gate: &mut Child, port: u16) -> io::Result<TcpStream> {
    for _ in 0..6_000 {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
            stream.set_nodelay(true)?;
            return Ok(stream);
        }
        if gate.try_wait()?.is_some() {
            return Err(io::Error::other("it ended"));
        }
        pause();
    }
    Err(io::Error::other("it does not listen"))
}

/// Makes calls with a token of this length, one after the other.
fn call(
    mut stream: &TcpStream,
    calls: u64,
    token: usize,
    mut before: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut answers = BufReader::new(stream);
    let token: String = "eyJhbGciOiJSUzI1NiJ9.e30.c2ln".chars().cycle().take(token).collect();
    let head = format!(
        "Host: localhost\r\nUser-Agent: manager/v1 (linux/amd64) kubernetes/abc\r\nAccept: application/json\r\n\
         Authorization: Bearer {token}\r\nAccept-Encoding: gzip\r\n\r\n"
    );
    for number in 0..calls {
        before(number)?;
        let target = format!("/api/v1/namespaces/default/configmaps/c{}", number % 100);
        stream.write_all(format!("GET {target} HTTP/1.1\r\n{head}").as_bytes())?;
        let (status, length) = head_of(&mut answers)?;
        let mut body = vec![0; length];
        answers.read_exact(&mut body)?;
        if status != "200" {
            return Err(io::Error::other(format!("{status}: {}", String::from_utf8_lossy(&body))));
        }
    }
    before(calls)
}

/// Makes calls over TLS and HTTP/2, one after the other.
fn call_by_tls(
    mut stream: TcpStream,
    client: Client,
    folder: &Path,
    calls: u64,
    mut before: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    if client == Client::Tunnel {
        write!(stream, "CONNECT {NAME}:443 HTTP/1.1\r\n\r\n")?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.extend(byte);
        }
    }
    let file = if client == Client::Tunnel { "ca.crt" } else { "listener.crt" };
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_file(folder.join(file)).map_err(io::Error::other)?;
    roots.add(root).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.map_err(io::Error::other)?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        stream.set_nonblocking(true)?;
        let stream = tokio::net::TcpStream::from_std(stream)?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        // A request's head goes out at once.
        let io = TokioIo::new(BufStream::new(stream));
        let made = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await;
        let (mut send, connection) = made.map_err(io::Error::other)?;
        tokio::spawn(connection);
        for number in 0..calls {
            before(number)?;
            let request =
                Request::get(format!("https://{NAME}/things/{}", number % 100)).body(Full::<Bytes>::default());
            let answer = send.send_request(request.map_err(io::Error::other)?).await.map_err(io::Error::other)?;
            let status = answer.status();
            let body = answer.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
            if status != 200 {
                return Err(io::Error::other(format!("{status}: {}", String::from_utf8_lossy(&body))));
            }
        }
        before(calls)
    })
}

/// Reads a head; returns the second word of its first line, and the length of its body.
fn head_of(reader: &mut impl BufRead) -> io::Result<(String, usize)> {
    let (mut first, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let Some(begun) = first.take() else {
            first = Some(line.split(' ').nth(1).unwrap_or_default().to_owned());
            continue;
        };
        if line.is_empty() {
            return Ok((begun, length));
        }
        first = Some(begun);
        let field = line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        length = field.map_or(Ok(length), |(_, value)| value.trim().parse()).map_err(io::Error::other)?;
    }
}

/// An upstream that speaks HTTP/1.1 in the clear.
fn plain(_: &Path) -> io::Result<Upstream> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(&stream));
        }
    });
    Ok(Upstream { port, ca: None })
}

/// Answers until the connection ends.
fn answer(mut stream: &TcpStream) -> io::Result<()> {
    let mut requests = BufReader::new(stream);
    let date = "Date: Mon, 23 Nov 2026 00:00:00 GMT";
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{date}\r\nContent-Length: {SIZE}\r\n\r\n");
    let whole = [head.into_bytes(), vec![b'x'; SIZE]].concat();
    loop {
        head_of(&mut requests)?;
        until_it_sleeps();
        stream.write_all(&whole)?;
    }
}

/// An upstream that speaks HTTP/2 by TLS.
fn tls(folder: &Path) -> io::Result<Upstream> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned(), NAME.to_owned()])
        .map_err(io::Error::other)?;
    let ca = folder.join("upstream.crt");
    fs::write(&ca, made.cert.pem())?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key));
    let mut config = config.map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::spawn(move || runtime.block_on(serve(listener, TlsAcceptor::from(Arc::new(config)))));
    Ok(Upstream { port, ca: Some(ca) })
}

/// Makes a certificate for a name, and writes it and its key.
fn certificate(folder: &Path, name: &str) -> io::Result<(PathBuf, PathBuf)> {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).map_err(io::Error::other)?;
    let (cert, key) = (folder.join("listener.crt"), folder.join("listener.key"));
    fs::write(&cert, made.cert.pem())?;
    fs::write(&key, made.signing_key.serialize_pem())?;
    Ok((cert, key))
}

async fn serve(listener: TcpListener, tls: TlsAcceptor) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let tls = tls.clone();
        tokio::spawn(async move {
            // An answer's head and body go out together.
            let stream = TokioIo::new(BufStream::new(tls.accept(stream).await?));
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            server.serve_connection(stream, service_fn(json)).await.map_err(io::Error::other)
        });
    }
}

async fn json(request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
    request.into_body().collect().await?;
    until_it_sleeps();
    let mut response = Response::new(Full::from(vec![b'x'; SIZE]));
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
    Ok(response)
}

#[expect(clippy::disallowed_methods, reason = "another process works in its own time")]
fn pause() {
    thread::sleep(Duration::from_millis(10));
}

/// The host of calls by TLS.
const NAME: &str = "api.example.com";
/// The runs of each length of which the least counts, where a start is counted too.
const RUNS: usize = 3;
/// The calls of a shorter run and of a longer one.
const FEW: u64 = 500;
const MANY: u64 = 4_000;
/// Calls until tables and caches have their full size.
const WARM_UP: u64 = 300;
/// The length of an answer, in bytes.
const SIZE: usize = 1024;
