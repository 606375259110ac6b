//! The costs of the egress listener: the CPU time of a blind tunnel's bytes beside that of a bare
//! copy between two sockets, the memory of an idle origin, and the CPU time of a new certificate.
//!
//! ```text
//! cargo bench -p decide --bench egress              a line for each
//! cargo bench -p decide --bench egress -- check     compares them with their bars, and fails above
//!                                                   them
//! ```
//!
//! The binary is the one that stands where this program's folder is, or the one that an argument
//! names. The tunnel goes through a proxy on loopback, since the listener itself connects to no
//! address of it that it was not told. CPU time is what the kernel counts of
//! the process, and the least of a few rounds counts, as what disturbs a round only ever adds.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime};
use std::{env, fs, thread};

use rustix::process::{Pid, Signal, kill_process};
use tidegate::tls::Interception;

fn main() -> ExitCode {
    // `cargo bench` adds a flag of its own.
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [first, to] = args.as_slice()
        && first == "copy"
    {
        return copy(to).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let checks = args.iter().any(|arg| arg == "check");
    let Some(binary) = args.iter().find(|arg| *arg != "check").map(PathBuf::from).or_else(beside) else {
        eprintln!("the costs of the egress listener are left out: build tidegate with the same profile first");
        return if checks { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    };
    let mut above = false;
    let mut line = |what: &str, cost: f64, unit: &str, bar: f64| {
        let verdict = if cost > bar { "ABOVE" } else { "of at most" };
        above |= cost > bar;
        println!("{what:<70} {cost:>8.2} {unit} {verdict} {bar}");
    };
    let costs = [
        ("a blind tunnel's bytes, of a bare copy's CPU time", tunnel(&binary), "times", 1.2),
        ("an idle origin", origin(&binary), "KiB", 64.0),
        ("a new certificate, CPU time", certificate(), "ms", 1.0),
    ];
    for (what, cost, unit, bar) in costs {
        match cost {
            Ok(cost) => line(what, cost, unit, bar),
            Err(why) => {
                eprintln!("{what}: {why}");
                return ExitCode::FAILURE;
            }
        }
    }
    if checks && above { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Returns the binary that was built where this program was.
fn beside() -> Option<PathBuf> {
    let binary = env::current_exe().ok()?.parent()?.parent()?.join("tidegate");
    binary.is_file().then_some(binary)
}

/// A process that is measured; ended when dropped.
struct Process(Child);

impl Process {
    /// Starts the gate with this configuration.
    fn gate(binary: &Path, name: &str, config: &str) -> io::Result<Self> {
        let file = env::temp_dir().join(format!("tidegate-{name}-{}.toml", std::process::id()));
        fs::write(&file, format!("[admin]\nlisten = \"off\"\nsocket = \"off\"\n[log]\nlevel = \"error\"\n{config}"))?;
        let mut command = Command::new(binary);
        let run = command.args(["run", "--config"]).arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
        run.spawn().map(Self)
    }

    /// The CPU time so far, in ticks of 10 ms.
    fn ticks(&self) -> io::Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // The name, which is in parentheses, may have spaces.
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let of = |at: usize| rest.split(' ').nth(at).and_then(|word| word.parse::<f64>().ok());
        of(11).zip(of(12)).map(|(user, system)| user + system).ok_or_else(|| io::Error::other(stat))
    }

    /// The memory that is resident, in KiB.
    fn resident(&self) -> io::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).ok_or_else(|| io::Error::other(status))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM).ok(); // it may have ended already
        }
        drop(self.0.wait());
    }
}

// === the tunnel ===

/// Returns the CPU time of a tunnel's bytes, as a part of that of a copy.
fn tunnel(binary: &Path) -> io::Result<f64> {
    let host = TcpListener::bind(("127.0.0.1", 0))?;
    let to = host.local_addr()?.to_string();
    thread::spawn(move || host.incoming().flatten().for_each(|stream| drop(thread::spawn(move || serve(&stream)))));
    let port = free_port()?;
    let gate =
        Process::gate(binary, "tunnel", &format!("[egress]\nlisten = \"127.0.0.1:{port}\"\nvia = \"http://{to}\"\n"))?;
    let mut command = Command::new(env::current_exe()?);
    let mut bare = Process(command.args(["copy", &to]).stdout(Stdio::piped()).spawn()?);
    let mut said = String::new();
    BufReader::new(bare.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?).read_line(&mut said)?;
    let copied: u16 = said.trim().parse().map_err(io::Error::other)?;
    let (mut tunnels, mut copies) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        tunnels = tunnels.min(cost(&gate, port)?);
        copies = copies.min(cost(&bare, copied)?);
    }
    Ok(tunnels / copies)
}

/// The CPU time of a process while bytes pass it in both directions, one after the other. What is
/// behind a copy answers the CONNECT as the gate does.
fn cost(process: &Process, port: u16) -> io::Result<f64> {
    let mut stream = connected(port)?;
    stream.write_all(b"CONNECT host.example.com:443 HTTP/1.1\r\n\r\n")?;
    let head = head_of(&stream)?;
    if !head.starts_with("HTTP/1.1 200 ") {
        return Err(io::Error::other(head));
    }
    let before = process.ticks()?;
    let block = vec![0; BLOCK];
    for _ in 0..BLOCKS {
        stream.write_all(&block)?;
    }
    let mut room = vec![0; BLOCK];
    for _ in 0..BLOCKS {
        stream.read_exact(&mut room)?;
    }
    Ok(process.ticks()? - before)
}

/// Reads a head, and no byte that follows it.
fn head_of(mut stream: &TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// A proxy that is the host too: it reads as many bytes as it sends then.
fn serve(mut stream: &TcpStream) -> io::Result<()> {
    head_of(stream)?;
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let mut room = vec![0; BLOCK];
    for _ in 0..BLOCKS {
        stream.read_exact(&mut room)?;
    }
    for _ in 0..BLOCKS {
        stream.write_all(&room)?;
    }
    Ok(())
}

/// Copies between clients and an address, with the buffers of a tunnel and nothing else.
fn copy(to: &str) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        println!("{}", listener.local_addr()?.port());
        loop {
            let mut client = listener.accept().await?.0;
            let mut host = tokio::net::TcpStream::connect(to).await?;
            client.set_nodelay(true)?;
            host.set_nodelay(true)?;
            tokio::spawn(async move {
                drop(tokio::io::copy_bidirectional_with_sizes(&mut client, &mut host, BUFFER, BUFFER).await);
            });
        }
    })
}

// === an idle origin ===

/// Returns what an origin takes that has been called and is idle. Its calls end at a proxy that
/// connects nowhere, so that no connection is counted.
fn origin(binary: &Path) -> io::Result<f64> {
    let next = TcpListener::bind(("127.0.0.1", 0))?;
    let (via, port) = (next.local_addr()?.port(), free_port()?);
    thread::spawn(move || {
        for mut stream in next.incoming().flatten() {
            let mut head = BufReader::new(&stream).lines();
            while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            drop(stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"));
        }
    });
    let config = format!(
        "[egress]\nlisten = \"127.0.0.1:{port}\"\nmax_origins = 4000\nidle_origin = \"1h\"\nvia = \"http://127.0.0.1:{via}\"\n\
         [gates.g]\nhosts = [\"*.example.com\"]\npreset = \"none\"\nbackoff = \"off\"\nbucket = {{ rate = 1e9, burst = 4294967295, adapt = \"off\" }}\n"
    );
    let gate = Process::gate(binary, "origin", &config)?;
    let call = |number: u32| {
        let (mut stream, mut answer) = (connected(port)?, Vec::new());
        let host = format!("h{number}.example.com");
        write!(stream, "GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        stream.read_to_end(&mut answer)?;
        let told = String::from_utf8_lossy(&answer).into_owned();
        if told.starts_with("HTTP/1.1 502 ") { Ok(()) } else { Err(io::Error::other(told)) }
    };
    (0..FEW).try_for_each(call)?;
    let before = gate.resident()?;
    (FEW..FEW + MANY).try_for_each(call)?;
    Ok((gate.resident()? - before) / f64::from(MANY))
}

// === a certificate ===

/// Returns the CPU time of a certificate for a new name, in ms.
fn certificate() -> io::Result<f64> {
    let ca = Interception::new(&["example.com".to_owned()]).map_err(io::Error::other)?;
    let before = thread_time()?;
    for number in 0..CERTIFICATES {
        ca.config(&format!("h{number}.example.com"), true, SystemTime::UNIX_EPOCH + DAY).map_err(io::Error::other)?;
    }
    Ok((thread_time()? - before) / f64::from(CERTIFICATES))
}

/// The time that this thread has run, in ms.
fn thread_time() -> io::Result<f64> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = stat.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    nanos.map(|nanos| nanos / 1e6).ok_or_else(|| io::Error::other(stat))
}

// === sockets ===

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Connects as soon as a process listens.
fn connected(port: u16) -> io::Result<TcpStream> {
    for _ in 0..500 {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
            return Ok(stream);
        }
        pause();
    }
    Err(io::Error::other("it does not listen"))
}

#[expect(clippy::disallowed_methods, reason = "another process works in its own time")]
fn pause() {
    thread::sleep(Duration::from_millis(10));
}

const ROUNDS: usize = 5;
/// 1 GiB each way.
const BLOCK: usize = 64 << 10;
const BLOCKS: usize = 16 << 10;
/// The buffers of a tunnel.
const BUFFER: usize = 16 << 10;
/// The origins that are there before the ones that are measured.
const FEW: u32 = 100;
const MANY: u32 = 1_000;
const CERTIFICATES: u32 = 2_000;
/// Some day within the CA's dates.
const DAY: Duration = Duration::from_secs(1_795_000_000);
