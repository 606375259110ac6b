//! P24 and P25 with whatever a client may write as a target, and whatever a name server may answer:
//! no call for a listed host leaves without its limits, no address that must not be dialled is, and
//! what no gate lists arrives as it was sent.
//!
//! Addresses of loopback stand for others: the test's judge maps each to an address of its class,
//! and asks the judge that the gate has. So what is dialled can be seen.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use tidegate::upstream::{Dns, ForbiddenAddress};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::intercept::{Api, ca, speak_tls};
use super::tunnels::head;
use super::{Around, Listener, listener};
use crate::proxy::names::{NameServer, Says};
use crate::support::{header, within};

const LISTED: [&str; 2] = ["a.listed.example", "b.listed.example"];
const UNLISTED: [&str; 6] = [
    "one.other.example",
    "xa.listed.example",
    "a.listed.example.other.example",
    "listed.example",
    "alisted.example",
    "a-listed.example",
];

/// The classes of section 6: an address of each, the bits that may be any, and if it may be dialled.
const CLASSES: [(&str, u32, bool); 24] = [
    ("8.0.0.0", 24, true),
    ("10.0.0.0", 24, true),
    ("172.16.0.0", 20, true),
    ("192.168.0.0", 16, true),
    ("100.64.0.0", 16, true),
    ("2a00::", 100, true),
    ("fd00::", 64, true),
    ("::ffff:8.0.0.0", 24, true),
    ("127.0.0.0", 24, false),
    ("::1", 0, false),
    ("::", 0, false),
    ("0.0.0.0", 24, false),
    ("169.254.0.0", 16, false),
    ("168.63.129.16", 0, false),
    ("fe80::", 118, false),
    ("fd00:ec2::", 96, false),
    ("224.0.0.0", 28, false),
    ("240.0.0.0", 28, false),
    ("255.255.255.255", 0, false),
    ("192.0.2.0", 8, false),
    ("2001:db8::", 96, false),
    ("::ffff:169.254.0.0", 16, false),
    ("64:ff9b::127.0.0.0", 24, false),
    ("64:ff9b::a9fe:0", 16, false),
];

/// The address of a class with these bits.
fn of_class(class: usize, bits: u128) -> IpAddr {
    let (base, free, _) = CLASSES[class];
    let free = (1_u128 << free) - 1;
    match base.parse().expect("an address") {
        IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits() | u32::try_from(bits & free).expect("few bits")).into(),
        IpAddr::V6(base) => std::net::Ipv6Addr::from_bits(base.to_bits() | (bits & free)).into(),
    }
}

/// The loopback address that stands for one of a class.
fn stand_in(class: usize, bits: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 77, u8::try_from(class).expect("few"), bits)
}

/// The class that a loopback address stands for.
fn class_of(address: IpAddr) -> Option<usize> {
    match address.to_canonical() {
        IpAddr::V4(address) => match address.octets() {
            [127, 77, class, _] => Some(usize::from(class)).filter(|class| *class < CLASSES.len()),
            _ => None,
        },
        IpAddr::V6(_) => None,
    }
}

fn judge(address: IpAddr) -> Result<(), ForbiddenAddress> {
    let bits = match address.to_canonical() {
        IpAddr::V4(address) => u128::from(address.octets()[3]) * 0x0001_0203_0507_0b0d_1113_171d_1f25_292b,
        IpAddr::V6(_) => 0,
    };
    tidegate::proxy::judge(class_of(address).map_or(address, |class| of_class(class, bits)))
}

/// What a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// A call whose target is a URL; over HTTP/1.0 without a Host.
    Call { old: bool },
    /// A tunnel, and in it these bytes, or a call if the host is a listed one's.
    Tunnel { tls: bool },
}

/// A target as a client writes it.
#[derive(Clone, Debug)]
struct Target {
    text: String,
    /// The listed host that it certainly means.
    listed: Option<&'static str>,
    /// True if it is an address that must not be dialled.
    is_refused: bool,
}

/// The spelling of a name: letters in any case, and perhaps the dot at the end.
fn spelled(name: &'static str) -> impl Strategy<Value = String> {
    (any::<u64>(), any::<bool>()).prop_map(move |(upper, dot)| {
        let letters = name.chars().enumerate();
        let mut text: String =
            letters.map(|(at, c)| if upper >> (at % 64) & 1 == 1 { c.to_ascii_uppercase() } else { c }).collect();
        text.extend(dot.then_some('.'));
        text
    })
}

/// An address as people and their tools write it.
fn written(address: IpAddr, form: u8) -> String {
    let IpAddr::V4(v4) = address else { return format!("[{address}]") };
    let [a, b, c, d] = v4.octets();
    match form % 9 {
        0 => format!("{}", v4.to_bits()),
        1 => format!("0x{:x}", v4.to_bits()),
        2 => format!("0{a:o}.{b}.{c}.{d}"),
        3 => format!("{a}.{b}.{}", u32::from(c) << 8 | u32::from(d)),
        4 => format!("[::ffff:{v4}]"),
        5 => format!("[::ffff:{a:02x}{b:02x}:{c:02x}{d:02x}]"),
        6 => format!("{v4}."),
        _ => v4.to_string(),
    }
}

/// Targets with ports of which `recorded` is the one where all that arrives is seen.
fn target(recorded: u16) -> impl Strategy<Value = Target> {
    let port = |fixed: Vec<String>| select(fixed);
    let read = ["", ":80", ":443", ":0443", ":00080"].map(str::to_owned).into_iter().chain([format!(":{recorded}")]);
    let seen = vec![format!(":{recorded}")];
    let odd = ["", ":", ":0", ":+443", ":443:443", ":65979", ":8443", ": 443", ":80@", ":443."];
    let odd: Vec<String> = odd.map(str::to_owned).into_iter().chain([format!(":{recorded}")]).collect();
    let listed = select(LISTED.to_vec()).prop_flat_map(|name| (Just(name), spelled(name)));
    let listed = (listed, port(read.collect())).prop_map(|((name, text), port)| Target {
        text: format!("{text}{port}"),
        listed: Some(name),
        is_refused: false,
    });
    let unlisted = select(UNLISTED.to_vec()).prop_flat_map(spelled);
    let unlisted = (unlisted, port(seen.clone())).prop_map(|(text, port)| Target {
        text: format!("{text}{port}"),
        listed: None,
        is_refused: false,
    });
    let address = (0..CLASSES.len(), any::<u128>(), any::<u8>(), any::<bool>(), port(seen));
    let address = address.prop_map(|(class, bits, form, stands, port)| {
        // Other addresses that may be dialled lead out of this machine.
        let stands = stands || CLASSES[class].2;
        let last = u8::try_from(bits & 0xff).expect("eight bits");
        let address = if stands { stand_in(class, last).into() } else { of_class(class, bits) };
        let text = format!("{}{port}", written(address, form));
        Target { text, listed: None, is_refused: !CLASSES[class].2 }
    });
    let names: Vec<&str> = LISTED.iter().chain(&UNLISTED).copied().collect();
    let wild = (select(names).prop_flat_map(spelled), "[ -~\u{e9}\u{2024}\u{ff0e}]{1,3}", any::<prop::sample::Index>());
    let prefix = select(vec!["", "", "me@", "a.listed.example@", "http://", "%61", ".", "["]);
    let wild = (wild, prefix, port(odd)).prop_map(|((mut text, odd, at), prefix, port)| {
        text.insert_str(at.index(text.len()), &odd);
        Target { text: format!("{prefix}{text}{port}"), listed: None, is_refused: false }
    });
    prop_oneof![4 => listed, 4 => unlisted, 3 => address, 3 => wild]
}

/// What arrived at an address that stands for another.
type Arrived = Arc<Mutex<Vec<(IpAddr, Vec<u8>)>>>;

/// Everything that is dialled on loopback at a port: calls are answered, and of tunnels the bytes
/// are sent back when they have ended.
async fn recorder() -> (u16, Arrived) {
    let socket = TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let (port, arrived) = (socket.local_addr().expect("bound").port(), Arrived::default());
    let log = Arc::clone(&arrived);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = socket.accept().await {
            let (log, mut came) = (Arc::clone(&log), Vec::new());
            let at = stream.local_addr().expect("connected").ip();
            log.lock().expect("no panic").push((at, Vec::new()));
            tokio::spawn(async move {
                let is_call = |came: &[u8]| came.starts_with(b"GET ") && came.ends_with(b"\r\n\r\n");
                while !is_call(&came) && stream.read_buf(&mut came).await.is_ok_and(|bytes| bytes > 0) {}
                let answer = if is_call(&came) { ANSWER.to_vec() } else { came.clone() };
                log.lock().expect("no panic").push((at, came));
                stream.write_all(&answer).await.ok(); // the client may have left
            });
        }
    });
    (port, arrived)
}

/// The host that a Host or a target means, as every reader of URLs would say, and its port.
fn means(authority: &str) -> (String, u16) {
    let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
    (host.trim_end_matches('.').to_lowercase(), port.parse().unwrap_or(80))
}

/// The status of an answer over either HTTP/1; 0 if there is none.
fn status(answer: &[u8]) -> u16 {
    let digits = answer.get(9..12).map(String::from_utf8_lossy);
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_default()
}

/// Sends it, and returns the status and all that was answered.
async fn send(how: How, target: &Target, bytes: &[u8], listener: &Listener, ca: &str) -> (u16, Vec<u8>) {
    let (mut stream, mut answer, text) = (listener.connect().await, Vec::new(), &target.text);
    let call = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let How::Tunnel { tls } = how else {
        let old = how == How::Call { old: true };
        let (version, host) = if old { ("1.0", String::new()) } else { ("1.1", format!("Host: {text}\r\n")) };
        let call =
            format!("GET http://{text}/p//..%2F?q HTTP/{version}\r\n{host}X-Odd:  Value\r\nConnection: close\r\n\r\n");
        stream.write_all(call.as_bytes()).await.expect("sent");
        within(stream.read_to_end(&mut answer)).await.ok();
        return (status(&answer), answer);
    };
    stream.write_all(format!("CONNECT {text} HTTP/1.1\r\n\r\n").as_bytes()).await.expect("sent");
    let told = status(head(&mut stream).await.as_bytes());
    if told != 200 {
        return (told, answer);
    }
    match target.listed {
        Some(name) if tls && means(text).1 != 80 => {
            let mut stream = speak_tls(stream, ca, name, &["http/1.1"]).await.expect("it is opened");
            stream.write_all(call(name).as_bytes()).await.expect("sent");
            within(stream.read_to_end(&mut answer)).await.ok();
        }
        Some(_) => {
            stream.write_all(call(text).as_bytes()).await.expect("sent");
            within(stream.read_to_end(&mut answer)).await.ok();
        }
        None => {
            stream.write_all(bytes).await.expect("sent");
            stream.shutdown().await.expect("ended");
            within(stream.read_to_end(&mut answer)).await.ok();
        }
    }
    (if target.listed.is_some() { status(&answer) } else { told }, answer)
}

#[test]
fn whatever_is_written_and_resolved_nothing_passes_the_limits_or_the_judge_or_is_changed() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let (api, names, (port, arrived)) = runtime
        .block_on(async { (Api::start(&LISTED, &["http/1.1"]).await, NameServer::start().await, recorder().await) });
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("it can be written");
        folder.path().join(name)
    };
    // Listed names too lead to where they would be seen.
    let all: Vec<&'static str> = LISTED.iter().chain(&UNLISTED).copied().collect();
    let dns = Dns {
        hosts: file("hosts", &format!("127.0.0.1 {}\n", all.join(" "))),
        resolv_conf: file("resolv.conf", "nameserver 127.0.0.1\n"),
        port: names.address.port(),
        judge: None,
    };
    let [a, b] = LISTED.map(|name| format!("{name:?} = \"{}\"", api.address));
    let text = format!(
        "ports = [443, {port}]\nmax_origins = 10000\n[gates.g]\nhosts = {LISTED:?}\npreset = \"none\"\nintercept = true\n\
         queue.max_wait = \"0s\"\nbucket = {{ rate = 0.000001, burst = 1 }}\nconnect_to = {{ {a}, {b} }}\n"
    );
    let own = [80, 443, port].map(|port| ([127, 0, 0, 1], port).into()).to_vec();
    let around = Around { ca: Some(api.ca.clone()), judge: Some(judge), dns, own, ..Around::default() };
    let listener = runtime.block_on(listener(&text, around));
    let ca = ca(&listener);

    let how = prop_oneof![
        5 => any::<bool>().prop_map(|old| How::Call { old }),
        5 => (0..8).prop_map(|one| How::Tunnel { tls: one == 0 }),
    ];
    let answers = vec((0..CLASSES.len(), any::<u8>()), 0..5);
    let bytes = vec(any::<u8>(), 0..2000).prop_map(|bytes| [vec![0], bytes].concat());
    let strategy = (how, target(port), answers, bytes);
    let counts = std::cell::RefCell::new([0; 4]);
    let mut runner = TestRunner::new(Config { cases: 10_000, failure_persistence: None, ..Config::default() });
    let passed = runner.run(&strategy, |(how, target, answers, bytes)| {
        let addresses: Vec<Ipv4Addr> = answers.iter().map(|(class, bits)| stand_in(*class, *bits)).collect();
        for name in &all {
            names.now_says(name, Says::Here(addresses.clone(), 0));
        }
        let (told, answer) = runtime.block_on(send(how, &target, &bytes, &listener, &ca));
        let came = std::mem::take(&mut *arrived.lock().expect("no panic"));
        let text = String::from_utf8_lossy(&answer);
        for (at, _) in &came {
            let class = class_of(*at);
            prop_assert!(class.is_some_and(|class| CLASSES[class].2), "{at} was dialled: {class:?}");
        }
        if target.is_refused {
            prop_assert!([400, 403].contains(&told) && came.is_empty(), "{told}");
            counts.borrow_mut()[0] += 1;
        }
        if target.listed.is_some() {
            // The first call of each origin had the only token; an authority has no port for CONNECT.
            let refused = told == 429 && header(&text, "tidegate-refusal") == Some("bucket");
            let is_expected = refused || told == 200 || (told == 400 && !target.text.contains(':'));
            prop_assert!(is_expected && came.is_empty(), "{told}: {text}");
            counts.borrow_mut()[1] += usize::from(refused);
        }
        for (_, sent) in came.iter().filter(|(_, sent)| !sent.is_empty()) {
            counts.borrow_mut()[2] += 1;
            if matches!(how, How::Tunnel { .. }) {
                prop_assert!(*sent == bytes && answer == bytes, "{} of {} bytes", sent.len(), bytes.len());
                continue;
            }
            let sent = String::from_utf8_lossy(sent);
            prop_assert!(sent.starts_with("GET /p//..%2F?q HTTP/1.1\r\n"), "{sent}");
            let host = header(&sent, "host").unwrap_or_default();
            prop_assert_eq!(host, &target.text);
            prop_assert!(sent.contains("\r\nX-Odd: Value\r\n") || sent.contains("\r\nX-Odd:  Value\r\n"), "{}", sent);
            prop_assert!(!LISTED.contains(&means(host).0.as_str()), "{sent}");
        }
        // A call may be told how the dial before went, or take the connection that it made.
        let is_name = UNLISTED.contains(&means(&target.text).0.as_str());
        if is_name && matches!(how, How::Tunnel { .. }) && means(&target.text).1 == port {
            let may = |address: &Ipv4Addr| class_of((*address).into()).is_some_and(|class| CLASSES[class].2);
            prop_assert_eq!(!came.is_empty(), addresses.iter().any(may), "{}", told);
            prop_assert!(came.iter().all(|(at, _)| addresses.iter().any(|address| at == address)));
            counts.borrow_mut()[3] += 1;
        }
        Ok(())
    });
    passed.unwrap_or_else(|error| panic!("{error}"));
    // Each listed host has a token for each port at which it was met.
    assert!(api.calls().len() <= LISTED.len() * 2, "{:?}", api.calls());
    let counts = counts.into_inner();
    assert!(counts.iter().all(|count| *count > 100), "refused addresses, limited, passed, looked up: {counts:?}");
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
