//! P29: origins, connections and what is told of them stay within the numbers of the
//! configuration, whatever comes.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::intercept::{Api, ca, speak_tls};
use super::{Around, Listener, listener};
use crate::support::{Backend, status, within};

const NAMES: usize = 12;
const MOST_ORIGINS: usize = 3;
const MOST_CONNECTIONS: usize = 5;

/// What a client does.
#[derive(Clone, Copy, Debug)]
enum Does {
    /// It calls a host in clear.
    Calls(usize),
    /// It calls a host through a tunnel that is opened, and stays.
    Opens(usize),
    /// It connects, and says nothing or half a word.
    Connects(bool),
    /// It tunnels to an address that no gate lists, and stays.
    Tunnels,
    /// The client that has stayed longest leaves.
    Leaves,
}

fn name(number: usize) -> String {
    format!("n{number}.example.com")
}

/// Does it. Returns the connection that stays, and the status that the client was told.
async fn act(does: Does, listener: &Listener, ca: &str, other: &str) -> (Option<TcpStream>, u16) {
    let connect = async |to: &str| {
        let mut stream = listener.connect().await;
        stream.write_all(format!("CONNECT {to} HTTP/1.1\r\n\r\n").as_bytes()).await.expect("sent");
        let mut told = [0; 12];
        let code = match within(stream.read_exact(&mut told)).await {
            Ok(_) => String::from_utf8_lossy(&told[9..]).parse().expect("a status"),
            Err(_) => 0, // so many are turned away that it is told nothing
        };
        (stream, code)
    };
    match does {
        Does::Calls(number) => {
            let to = name(number);
            let call = format!("GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n");
            let answer = listener.exchange(&call).await;
            (None, if answer.is_empty() { 0 } else { status(&answer) })
        }
        Does::Connects(says) => {
            let mut stream = listener.connect().await;
            if says {
                stream.write_all(b"CONN").await.expect("sent");
            }
            (Some(stream), 0)
        }
        Does::Tunnels => {
            let (stream, code) = connect(other).await;
            (Some(stream), code)
        }
        Does::Opens(number) => {
            let (mut stream, code) = connect(&format!("{}:443", name(number))).await;
            if code != 200 {
                return (Some(stream), code);
            }
            let mut rest = [0; 27];
            within(stream.read_exact(&mut rest)).await.expect("the rest of the head");
            let Ok(mut stream) = speak_tls(stream, ca, &name(number), &["http/1.1"]).await else { return (None, 503) };
            let call = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", name(number));
            stream.write_all(call.as_bytes()).await.expect("sent");
            let mut told = [0; 12];
            within(stream.read_exact(&mut told)).await.expect("an answer");
            let code = status(&String::from_utf8_lossy(&told));
            (Some(stream.into_inner().0), code)
        }
        Does::Leaves => (None, 0),
    }
}

/// True if the listener has not closed a connection.
fn is_open(stream: &TcpStream) -> bool {
    loop {
        match stream.try_read(&mut [0; 4096]) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn whatever_comes_the_listener_holds_no_more_than_it_may() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let names: Vec<String> = (0..NAMES).map(name).collect();
    let (api, backend) = runtime.block_on(async {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        (Api::start(&names, &["http/1.1"]).await, Backend::replying(200).await)
    });
    let connect_to: Vec<String> = names.iter().map(|name| format!("{name:?} = \"{}\"", api.address)).collect();
    let text = format!(
        "max_origins = {MOST_ORIGINS}\nmax_connections = {MOST_CONNECTIONS}\n[gates.api]\nhosts = [\"*.example.com\"]\npreset = \"none\"\n\
         intercept = true\nconnect_to = {{ {} }}\n",
        connect_to.join(", ")
    );
    let does = prop_oneof![
        4 => (0..NAMES).prop_map(Does::Calls),
        3 => (0..NAMES).prop_map(Does::Opens),
        1 => any::<bool>().prop_map(Does::Connects),
        2 => Just(Does::Tunnels),
        2 => Just(Does::Leaves),
    ];
    let crowded = std::cell::Cell::new(false);
    let mut runner = TestRunner::new(Config { cases: 12, failure_persistence: None, ..Config::default() });
    let passed = runner.run(&vec(does, 1..25), |story| {
        runtime.block_on(async {
            let around = Around { ca: Some(api.ca.clone()), ..Around::default() };
            let listener = listener(&text, around).await;
            let (ca, mut stay) = (ca(&listener), std::collections::VecDeque::new());
            for does in &story {
                if matches!(does, Does::Leaves) {
                    stay.pop_front();
                    continue;
                }
                let (stays, code) = act(*does, &listener, &ca, &backend.address.to_string()).await;
                stay.extend(stays.map(|stream| (stream, code)));
                // Past the listener's own bound a client is closed.
                let is_closed = code == 0 && matches!(does, Does::Tunnels | Does::Opens(_) | Does::Calls(_));
                crowded.set(crowded.get() || code == 503 || is_closed);
                let told = listener.egress.status();
                prop_assert!(told.origins <= MOST_ORIGINS, "{} origins after {:?} of {:?}", told.origins, does, story);
                prop_assert!([0, 200, 502, 503].contains(&code), "{does:?}: {code}");
                prop_assert!(told.tunnels.len() <= 20 && told.handshakes.len() <= 20);
                crowded.set(crowded.get() || stay.iter().any(|(stream, code)| *code == 200 && !is_open(stream)));
                // The idlest are closed for newer ones, a moment later.
                let are_few = within(async {
                    while stay.iter().filter(|(stream, code)| *code == 200 && is_open(stream)).count()
                        > MOST_CONNECTIONS
                    {
                        tokio::task::yield_now().await;
                    }
                });
                are_few.await;
            }
            // All leave: nothing is held for them.
            drop(stay);
            let gone = within(async {
                while listener.egress.status().connections > 0 {
                    tokio::task::yield_now().await;
                }
            });
            gone.await;
            let open: usize = listener.egress.status().tunnels.iter().map(|tunnels| tunnels.open).sum();
            prop_assert_eq!(open, 0);
            Ok(())
        })
    });
    passed.unwrap_or_else(|error| panic!("{error}"));
    assert!(crowded.get(), "nothing came to a bound");
}
