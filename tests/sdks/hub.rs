//! A stand-in for `https://api.github.com`: lists of several pages, whose links and bodies have
//! URLs of that name, and a repository that has moved.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::wire::Head;

/// The stand-in; it lives as long as the process.
pub(crate) struct Hub {
    port: u16,
    dir: tempfile::TempDir,
    came: Arc<Mutex<Vec<String>>>,
}

// === impl Hub ===

impl Hub {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder can be made");
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate can be made");
        fs::write(dir.path().join("hub.crt"), made.cert.pem()).expect("the folder is ours");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = versions.expect("ring has them").with_no_client_auth();
        let config = Arc::new(config.with_single_cert(vec![made.cert.der().clone()], key).expect("they are a pair"));
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        let came = Arc::new(Mutex::new(Vec::new()));
        let coming = Arc::clone(&came);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (config, came) = (Arc::clone(&config), Arc::clone(&coming));
                let connection = ServerConnection::new(config).expect("the configuration is complete");
                thread::spawn(move || serve(StreamOwned::new(connection, client), &came));
            }
        });
        Self { port, dir, came }
    }

    /// The variables with which a gate `github` calls the stand-in by the name `api.github.com`.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("TIDEGATE__GATES__GITHUB__UPSTREAM", format!("https://127.0.0.1:{}", self.port)),
            ("TIDEGATE__GATES__GITHUB__HOST", NAME.to_owned()),
            ("TIDEGATE__GATES__GITHUB__UPSTREAM_TLS__CA", self.ca().display().to_string()),
            ("TIDEGATE__GATES__GITHUB__UPSTREAM_TLS__SERVER_NAME", NAME.to_owned()),
        ]
    }

    /// The requests that have come since it was asked before, as `GET /path`.
    pub(crate) fn came(&self) -> Vec<String> {
        std::mem::take(&mut *self.came.lock().expect("no panic"))
    }

    fn ca(&self) -> PathBuf {
        self.dir.path().join("hub.crt")
    }
}

/// Answers the requests of one connection until it ends.
fn serve<S: Read + Write>(stream: S, came: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let request = Head::read(&mut reader)?;
        request.request_body(&mut reader, &mut |_| {})?;
        let (method, target) = request.target();
        came.lock().expect("no panic").push(format!("{method} {target}"));
        let is_right = request.field("host") == Some(NAME) && request.field("authorization").is_some();
        let (head, body) = if is_right { answer(method, target) } else { ("400 Bad Request".into(), "{}".into()) };
        let length = body.len();
        let head = format!("HTTP/1.1 {head}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
        let stream = reader.get_mut();
        stream.write_all([head, body].concat().as_bytes()).ok()?;
        stream.flush().ok()?;
    }
}

/// The status line with further fields, and the body.
fn answer(method: &str, target: &str) -> (String, String) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let ok = "200 OK".to_owned();
    match path.split('/').skip(1).collect::<Vec<_>>()[..] {
        ["repos", "o", "moved", ref rest @ ..] => {
            let to = ["repositories/1"].iter().chain(rest).copied().collect::<Vec<_>>().join("/");
            (format!("301 Moved Permanently\r\nLocation: https://{NAME}/{to}"), "{}".into())
        }
        ["repos", "o", "r", "issues"] if method == "POST" => {
            (format!("201 Created\r\nLocation: https://{NAME}/repos/o/r/issues/11"), issue(11))
        }
        ["repositories", "1"] | ["repos", "o", "r"] => {
            let url = format!("https://{NAME}/repos/o/r");
            (
                ok,
                format!(
                    r#"{{"id":1,"name":"r","full_name":"o/r","url":"{url}","issues_url":"{url}/issues{{/number}}"}}"#
                ),
            )
        }
        ["repositories", "1", "issues"] | ["repos", "o", "r", "issues"] => {
            let page = query.split('&').find_map(|pair| pair.strip_prefix("page=")?.parse().ok()).unwrap_or(1);
            let list = format!("https://{NAME}/repositories/1/issues?page=");
            let next = format!("\r\nLink: <{list}{}>; rel=\"next\", <{list}{PAGES}>; rel=\"last\"", page + 1);
            let next = if page < PAGES { next } else { String::new() };
            (ok + &next, format!("[{},{}]", issue(2 * page - 1), issue(2 * page)))
        }
        ["repos", "o", "r", "issues", _, "comments"] => (ok, r#"[{"id":1,"body":"c"}]"#.into()),
        _ => ("404 Not Found".into(), r#"{"message":"Not Found"}"#.into()),
    }
}

fn issue(number: u32) -> String {
    let url = format!("https://{NAME}/repos/o/r/issues/{number}");
    format!(r#"{{"id":{number},"number":{number},"title":"{number}","url":"{url}","comments_url":"{url}/comments"}}"#)
}

/// The name by which clients know GitHub's API.
pub(crate) const NAME: &str = "api.github.com";
/// The pages of a list, with two issues each.
pub(crate) const PAGES: u32 = 5;
