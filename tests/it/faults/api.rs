//! A scripted API over HTTP/1.1 on its own threads, for a gate in another process: it answers 200
//! to everything, and counts.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The requests it got, and how often.
#[derive(Debug, Default)]
struct Books {
    asked: Mutex<HashMap<String, usize>>,
}

/// An API on a loopback port.
#[derive(Clone, Debug)]
pub(super) struct Api {
    pub(super) port: u16,
    books: Arc<Books>,
}

impl Api {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let books = Arc::new(Books::default());
        let kept = Arc::clone(&books);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let books = Arc::clone(&kept);
                thread::spawn(move || serve(stream, &books));
            }
        });
        Self { port, books }
    }

    /// The number of requests for each `METHOD target`.
    pub(super) fn asked(&self) -> HashMap<String, usize> {
        self.books.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(mut stream: TcpStream, books: &Books) {
    stream.set_nodelay(true).expect("a socket");
    let (mut read, mut piece) = (Vec::new(), [0; 16 << 10]);
    loop {
        let whole = loop {
            if let Some(whole) = length(&read) {
                break whole;
            }
            match stream.read(&mut piece) {
                Ok(0) | Err(_) => return,
                Ok(more) => read.extend_from_slice(&piece[..more]),
            }
        };
        let line = String::from_utf8_lossy(&read).lines().next().unwrap_or_default().replace(" HTTP/1.1", "");
        *books.asked.lock().unwrap_or_else(PoisonError::into_inner).entry(line).or_default() += 1;
        read.drain(..whole);
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
            return;
        }
    }
}

/// The length of the first request in these bytes, if all of it is there. Bodies must have a length
/// here.
fn length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let body = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    (bytes.len() >= head + body).then_some(head + body)
}
