//! The binary with a gate that intercepts: its CA lasts over a restart, its key is nowhere but
//! where it is kept, and a reload changes only what the CA is for.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use tidegate::tls::{self, Pem, Roots};

use super::EC2;
use super::intercept::{Api, get as request};
use crate::cli::input::get;
use crate::command::{Running, end, start, tidegate, with_config};
use crate::ports::free_port;

pub(super) struct Place {
    pub(super) folder: tempfile::TempDir,
    pub(super) egress: u16,
    pub(super) admin: u16,
}

impl Place {
    pub(super) fn write(&self, hosts: &str, more: &str) {
        let at = |name: &str| self.folder.path().join(name);
        let text = format!(
            "[admin]\nlisten = \"127.0.0.1:{}\"\nsocket = \"off\"\n[log]\nlevel = \"trace\"\ncalls = {:?}\n\
             [egress]\nlisten = \"127.0.0.1:{}\"\n[egress.ca]\nkeep = {:?}\nwrite_to = {:?}\n\
             [gates.aws]\nhosts = [{hosts}]\nintercept = true\ndialect = \"aws\"\nupstream_tls.ca = {:?}\n{more}\n",
            self.admin,
            at("calls.jsonl"),
            self.egress,
            at("keys"),
            at("shared"),
            at("api.crt"),
        );
        std::fs::write(self.config(), text).expect("written");
    }

    pub(super) fn config(&self) -> std::path::PathBuf {
        self.folder.path().join("tidegate.toml")
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).expect("it was written")
    }

    pub(super) fn run(&self) -> Running {
        let mut running = start(with_config("run", &self.config()));
        running.ready();
        running
    }

    /// A call as a client that trusts this CA makes it.
    pub(super) fn call(&self, ca: &str) -> Result<String, std::io::Error> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.egress)).expect("it listens");
        stream.set_read_timeout(Some(crate::command::PATIENCE)).expect("a socket");
        stream.write_all(format!("CONNECT {EC2}:443 HTTP/1.1\r\nUser-Agent: Go-http-client/1.1\r\n\r\n").as_bytes())?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let config = tls::client(&Roots::Only(Pem::new(ca.into(), "the CA")), None).expect("TLS");
        let mut config = (*config).clone();
        config.alpn_protocols.clear();
        let name = ServerName::try_from(EC2).expect("a name");
        let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).expect("TLS"), stream);
        stream.write_all(request(EC2).as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_client_goes_on_over_a_restart_and_the_key_shows_nowhere() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let api = runtime.block_on(Api::start(&[EC2], &["h2", "http/1.1"]));
    let place = Place { folder: tempfile::tempdir().expect("a folder"), egress: free_port(), admin: free_port() };
    std::fs::write(place.folder.path().join("api.crt"), &api.ca).expect("written");
    let connect_to = format!("connect_to = {{ {EC2:?} = \"{}\" }}", api.address);
    place.write("\"@aws\"", &connect_to);
    let check = end(with_config("check", &place.config()));
    for line in ["#   TLS to them is opened", "#   amazonaws.com.cn, and all names below it", "#   no address"] {
        assert!(check.out.contains(line), "{line}\n{}{}", check.out, check.err);
    }
    let explained = end({
        let mut command = tidegate(["explain", "CONNECT"]);
        command.arg(format!("{EC2}:443")).arg("--config").arg(place.config());
        command
    });
    assert!(explained.out.contains("a tunnel whose TLS is opened, and whose calls go through gate aws: @aws"));

    let mut said = Vec::new();
    let mut roots = Vec::new();
    for _ in 0..2 {
        let running = place.run();
        roots.push(place.read("shared/ca.crt"));
        let answer = place.call(&roots[0]).expect("the client trusts what it has read at first");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        place.call(&api.ca).expect_err("another CA");
        said.push(get(place.admin, "/status") + &get(place.admin, "/metrics") + &get(place.admin, "/"));
        running.signal("-TERM");
        said.extend(running.end());
    }
    assert_eq!(roots[0], roots[1]);
    assert_eq!(api.calls().len(), 2);

    // P26: the key is in the file that is kept, and in nothing else.
    let kept = place.read("keys/egress-ca.pem");
    let key: Vec<&str> = kept.lines().skip(1).take_while(|line| !line.starts_with('-')).collect();
    let secret = key.get(1).expect("a key has more lines than one");
    for path in files(place.folder.path()).iter().filter(|path| !path.ends_with("keys/egress-ca.pem")) {
        let text = std::fs::read(path).expect("readable");
        let text = String::from_utf8_lossy(&text);
        assert!(!text.contains(secret) && !text.contains("PRIVATE KEY"), "{}", path.display());
    }
    let said = said.concat();
    assert!(said.contains("the egress listener decrypts TLS to the hosts of gates with intercept = true"), "{said}");
    assert!(!said.contains(secret) && !said.contains("PRIVATE KEY"));
    assert!(!said.contains("Authorization: signed") && !said.contains("authorization: signed"));

    // Other hosts than the CA may sign for need another CA, and other clients.
    place.write("\"api.github.com\"", "");
    let mut running = place.run();
    assert!(running.has_said("the egress CA in egress.ca.keep cannot be used: a new one replaces it"));
    assert_ne!(place.read("shared/ca.crt"), roots[0]);
    running.signal("-TERM");
    running.end();
}

#[test]
fn a_reload_changes_only_what_the_ca_is_for() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let api = runtime.block_on(Api::start(&[EC2], &["http/1.1"]));
    let place = Place { folder: tempfile::tempdir().expect("a folder"), egress: free_port(), admin: free_port() };
    std::fs::write(place.folder.path().join("api.crt"), &api.ca).expect("written");
    let connect_to = format!("connect_to = {{ {EC2:?} = \"{}\" }}", api.address);
    place.write("\"ec2.*.amazonaws.com\"", &connect_to);
    let mut running = place.run();
    let ca = place.read("shared/ca.crt");
    assert!(place.call(&ca).expect("trusted").starts_with("HTTP/1.1 200 "));
    place.write("\"ec2.*.amazonaws.com\", \"api.github.com\"", &connect_to);
    let said = running.line("the new configuration needs a restart");
    let expected = "gates.aws.hosts: the egress CA may not sign for api.github.com; restart the pod, or list it in egress.ca.names from the beginning";
    assert!(said.contains(expected), "{said}");
    place.write("\"ec2.*.amazonaws.com\", \"sts.*.amazonaws.com\"", &connect_to);
    running.line("the new configuration is in force");
    assert!(place.call(&ca).expect("trusted").starts_with("HTTP/1.1 200 "));
    // What is not intercepted any more is not read any more.
    place.write("\"sts.*.amazonaws.com\"", "");
    running.line("the new configuration is in force");
    place.call(&ca).expect_err("a tunnel to the real host, or none");
    assert_eq!(place.read("shared/ca.crt"), ca);
    assert_eq!(running.terminate(), Some(0));
}

#[test]
fn doctor_says_which_file_of_the_ca_is_missing() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let api = runtime.block_on(Api::start(&[EC2], &["http/1.1"]));
    let place = Place { folder: tempfile::tempdir().expect("a folder"), egress: free_port(), admin: free_port() };
    std::fs::write(place.folder.path().join("api.crt"), &api.ca).expect("written");
    place.write("\"@aws\"", &format!("connect_to = {{ {EC2:?} = \"{}\" }}", api.address));
    let running = place.run();
    let doctor = || end(with_config("doctor", &place.config())).out;
    let said = doctor();
    assert!(said.contains("ok     egress: the files by which clients trust its CA are in "), "{said}");
    let bundle = place.folder.path().join("shared/bundle.crt");
    let kept = place.read("shared/bundle.crt");
    std::fs::write(&bundle, &api.ca).expect("written");
    let said = doctor();
    assert!(said.contains("shared/bundle.crt has another CA than ca.crt"), "{said}");
    std::fs::write(&bundle, kept).expect("written");
    let ca = place.read("shared/ca.crt");
    std::fs::write(place.folder.path().join("shared/ca.crt"), &api.ca).expect("written");
    let said = doctor();
    assert!(said.contains("shared/ca.crt is not the CA of the gate that runs"), "{said}");
    std::fs::write(place.folder.path().join("shared/ca.crt"), ca).expect("written");
    std::fs::remove_file(place.folder.path().join("shared/trust.jks")).expect("removed");
    let said = doctor();
    assert!(said.contains("shared/trust.jks is not there"), "{said}");
    running.signal("-TERM");
    running.end();
}
