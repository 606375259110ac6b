//! Questions to the admin listener of a gate under test.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// The whole answer to `GET path`, head and body; `None` if there is none.
pub fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let host = format!("localhost:{port}");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\nConnection: close\r\n\r\n")
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
