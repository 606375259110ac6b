//! Questions to the admin listener of a gate under test, and to etcd.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// The whole answer to `GET path`, head and body; `None` if there is none.
pub fn get(port: u16, path: &str) -> Option<String> {
    ask(
        port,
        &format!(
            "GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
        ),
    )
}

/// The whole answer to `POST path` with this JSON. By HTTP/1.0 it is never in chunks.
pub fn post(port: u16, path: &str, json: &str) -> Option<String> {
    let length = json.len();
    ask(
        port,
        &format!("POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{json}"),
    )
}

fn ask(port: u16, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
