//! One process with a gate for each lie that a server can tell, and with one for each way in which
//! none is there: no call fails, each gate keeps to its own bucket, and what is sent without end
//! is not kept.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tidegate::clock::Clock;

use crate::cli::input::get;
use crate::command::{config, end, start, with_config};
use crate::ports::free_port;

/// An answer of ten values, as the script's are: tokens, time of the first, time per token, level,
/// epoch, time, members, rivals, pause, and a list of paused quotas with the time left.
fn answer(of: [&str; 9], quotas: &[&str]) -> Vec<u8> {
    let value = |text: &&str| match text.strip_prefix(':') {
        Some(number) => format!(":{number}\r\n"),
        None => format!("${}\r\n{text}\r\n", text.len()),
    };
    let texts = |of: &[&str]| of.iter().map(value).collect::<String>();
    format!("*10\r\n{}*{}\r\n{}", texts(&of), quotas.len(), texts(quotas)).into_bytes()
}

/// What a server says to each question, and what comes of it: the word in the status.
fn lies() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let time = "1700000000000000";
    let of = |granted, first, period, level, members, pause| {
        answer([granted, first, period, level, "1", time, members, ":0", pause], &[])
    };
    let paused = |quotas: &[&str]| answer([":1", "0", "25000", "5", "1", time, ":3", ":0", "0"], quotas);
    vec![
        ("a billion tokens", of(":1000000000", "0", "25000", "5", ":3", "0"), "nonsense"),
        ("fewer than none", of(":-5", "0", "25000", "5", ":3", "0"), "nonsense"),
        ("tokens from before time", of(":1", "-9e300", "25000", "5", ":3", "0"), "nonsense"),
        ("tokens that take no time", of(":1", "0", "-1", "5", ":3", "0"), "nonsense"),
        ("no number", of(":1", "NaN", "25000", "inf", ":3", "0"), "nonsense"),
        ("a pause of no quota", paused(&["x", "5"]), "nonsense"),
        ("a pause that was over before it began", paused(&["1:2", "-5"]), "nonsense"),
        ("a pause without an end", paused(&["1:2", "99999999999999999999"]), "nonsense"),
        ("a quota without a pause", paused(&["1:2"]), "nonsense"),
        ("more pauses than it keeps", paused(&["1:2", "5"].repeat(65)), "nonsense"),
        ("a text for a number", of("1", "0", "25000", "5", "3", "0"), "nonsense"),
        ("lists in lists", format!("{}:1\r\n", "*1\r\n".repeat(90)).into_bytes(), "nonsense"),
        ("too many lists in lists", format!("{}:1\r\n", "*1\r\n".repeat(4_000)).into_bytes(), ""),
        ("a list of nothing", b"*0\r\n".to_vec(), "nonsense"),
        ("nothing", b"$-1\r\n".to_vec(), "nonsense"),
        ("a web page", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), ""),
        ("news", b">2\r\n$7\r\nmessage\r\n$2\r\nhi\r\n".repeat(3), "timeout"),
        ("an error of no kind", b"-\r\n".to_vec(), ""),
        ("half an answer", b"*10\r\n:1\r\n".to_vec(), "timeout"),
        ("a list that never ends", b"*2147483647\r\n".to_vec(), "timeout"),
    ]
}

/// The beginnings of answers that go on without end.
const ENDLESS: [(&str, &[u8]); 4] = [
    ("a text without end", b"$2000000000\r\n"),
    ("a list without end", b"*2000000000\r\n"),
    ("an error without end", b"-ERR "),
    ("words that nobody asked for", b""),
];

/// Answers every question with these bytes.
fn liar(says: Vec<u8>) -> u16 {
    serve(
        move |mut stream| {
            while stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) && stream.write_all(&says).is_ok() {}
        },
    )
}

/// Answers the first question with these bytes, and goes on with more until the connection ends.
/// Notes the most that went into one.
fn chatterer(begins: &'static [u8], most: Arc<Mutex<usize>>) -> u16 {
    serve(move |mut stream| {
        let more = if begins.starts_with(b"*") { b":1\r\n".repeat(16 << 10) } else { vec![b'x'; 64 << 10] };
        let mut sent = 0;
        if stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) && stream.write_all(begins).is_ok() {
            while sent < ENOUGH && stream.write_all(&more).is_ok() {
                sent += more.len();
            }
        }
        let mut most = most.lock().expect("unpoisoned");
        *most = sent.max(*most);
    })
}

fn serve(to: impl Fn(TcpStream) + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let to = to.clone();
            thread::spawn(move || to(stream));
        }
    });
    port
}

/// The calls that came, by gate and moment.
type Came = Arc<Mutex<Vec<(usize, Duration)>>>;

/// An upstream that notes when the calls of each gate came.
fn upstream(clock: Clock) -> (u16, Came) {
    let came = Came::default();
    let seen = Arc::clone(&came);
    let port = serve(move |mut stream| {
        let mut head = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut head) {
            let head = String::from_utf8_lossy(&head[..read]);
            let gate = head.strip_prefix("GET /").and_then(|head| head.split('/').next()?.parse().ok());
            seen.lock().expect("unpoisoned").extend(gate.map(|gate| (gate, clock.now().since_start())));
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").ok();
        }
    });
    (port, came)
}

fn resident(id: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says so");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

#[test]
fn p16_p20_no_call_fails_whatever_a_server_says_and_endless_words_are_not_kept() {
    let most = Arc::new(Mutex::new(0));
    let mut stores: Vec<(&str, String, &str)> = Vec::new();
    for (name, says, word) in lies() {
        stores.push((name, format!("redis://127.0.0.1:{}", liar(says)), word));
    }
    for (name, begins) in ENDLESS {
        let port = chatterer(begins, Arc::clone(&most));
        stores.push((name, format!("redis://127.0.0.1:{port}"), ""));
    }
    stores.push(("a port that is refused", format!("redis://127.0.0.1:{}", free_port()), "unreachable"));
    stores.push(("a name that is gone", "redis://valkey.gone.invalid:6379".to_owned(), ""));
    stores.push(("a socket that is gone", "unix:/nowhere/s".to_owned(), "unreachable"));

    let (upstream, came) = upstream(Clock::start());
    let (folder, path) = config("");
    let socket = folder.path().join("socket");
    let mut text = format!("[admin]\nlisten = \"off\"\nsocket = \"{}\"\n", socket.display());
    let mut ports = Vec::new();
    for (gate, (_, url, _)) in stores.iter().enumerate() {
        let port = free_port();
        ports.push(port);
        text += &format!(
            "[stores.s{gate}]\nurl = \"{url}\"\ntimeout = \"2s\"\n[gates.g{gate}]\nkind = \"http\"\nlisten = \"127.0.0.1:{port}\"\n\
             upstream = \"http://127.0.0.1:{upstream}\"\nretry_bucket = \"off\"\nqueue = {{ max_wait = \"1m\" }}\n\
             bucket = {{ rate = {RATE}, burst = {BURST}, adapt = \"off\", \
             shared = {{ name = \"account\", store = \"s{gate}\", outage = \"full\" }} }}\n"
        );
    }
    std::fs::write(&path, text).expect("it can be written");
    let mut process = start(with_config("run", &path));
    process.ready();
    let before = resident(process.id());

    let calls = ports.iter().enumerate().flat_map(|(gate, port)| (0..CALLS).map(move |call| (gate, *port, call)));
    let call = |(gate, port, call)| thread::spawn(move || (gate, get(port, &format!("/{gate}/{call}"))));
    for answered in calls.map(call).collect::<Vec<_>>() {
        let (gate, answer) = answered.join().expect("it is answered");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{}: {answer}", stores[gate].0);
    }
    let came = came.lock().expect("unpoisoned").clone();
    for (gate, (name, ..)) in stores.iter().enumerate() {
        let mut times: Vec<_> = came.iter().filter(|(of, _)| *of == gate).map(|(_, at)| at.as_secs_f64()).collect();
        times.sort_by(f64::total_cmp);
        let (mut least, mut over) = (f64::MAX, 0.0_f64);
        for (number, at) in (0_u32..).zip(&times) {
            let ahead = f64::from(number) - RATE * at;
            least = least.min(ahead);
            over = over.max(ahead + 1.0 - least - BURST);
        }
        assert!(times.len() == CALLS && over <= RATE * LATE, "{name}: {} calls, {over} over", times.len());
    }

    // Each is away, and the status has the word for it.
    let mut top = with_config("top", &path);
    top.arg("--once");
    let told = end(top).out;
    for (gate, (name, _, word)) in stores.iter().enumerate() {
        let is_row = |line: &&str| line.trim_start().starts_with(&format!("s{gate} ")) && line.contains("went away");
        let line = told.lines().find(is_row).unwrap_or_else(|| panic!("{name}: {told}"));
        assert!(line.contains(word), "{name} is {word}: {line}");
    }
    // The chatterers were cut off: no more was read than fits into buffers.
    let most = *most.lock().expect("unpoisoned");
    assert!(most > 0 && most < ENOUGH, "{most} bytes went into one connection");
    let grown = resident(process.id()).saturating_sub(before);
    println!("{} liars: {most} bytes into one connection at most, {} KiB more resident", stores.len(), grown >> 10);
    assert!(grown < 64 << 20, "{grown} bytes more are resident");
    assert!(!process.has_said("panicked"), "{:?}", process.seen);
}

const RATE: f64 = 40.0;
const BURST: f64 = 20.0;
/// More than the burst, so that some of them wait.
const CALLS: usize = 30;
/// The seconds by which a busy machine may bring calls closer together.
const LATE: f64 = 0.5;
/// More than a mebibyte and the kernel's own buffers.
const ENOUGH: usize = 64 << 20;
