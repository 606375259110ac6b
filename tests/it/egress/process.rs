//! The egress listener in the binary: as configured, checked, explained, seen and reloaded.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

use super::EC2;
use crate::cli::input::get;
use crate::command::{end, start, tidegate, with_config};
use crate::operate::Connected;
use crate::ports::free_port;

/// An address of this machine that may be dialled for a client, if it has one: loopback may not.
fn outer_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?; // sends nothing
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| tidegate::proxy::judge(*ip).is_ok())
}

/// Everything that is answered to these bytes.
fn exchange(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(crate::command::PATIENCE)).expect("a socket");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}

fn config(egress: u16, admin: u16, others: &str, except: &str) -> String {
    let connect_to =
        if except == EC2 { String::new() } else { format!("connect_to = {{ {EC2:?} = \"127.0.0.1:9\" }}\n") };
    format!(
        "[admin]\nlisten = \"127.0.0.1:{admin}\"\nsocket = \"off\"\n[egress]\nlisten = \"127.0.0.1:{egress}\"\nothers = {others:?}\n\
         [gates.aws]\npreset = \"aws\"\nexcept = [{except:?}]\n{connect_to}"
    )
}

#[test]
fn a_process_with_a_forward_proxy_is_checked_explained_seen_and_reloaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, egress, admin) = (folder.path().join("tidegate.toml"), free_port(), free_port());
    std::fs::write(&path, config(egress, admin, "tunnel", "sts.amazonaws.com")).expect("written");

    let check = end(with_config("check", &path));
    assert_eq!(check.code, Some(0), "{}", check.err);
    for line in ["# Hosts of gates.aws:", "#   @aws: SERVICE.REGION.amazonaws.com", "#   not sts.amazonaws.com"] {
        assert!(check.out.contains(line), "{line}\n{}", check.out);
    }
    let explain = |arguments: &[&str]| {
        let mut command = tidegate(["explain"]);
        command.args(arguments).arg("--config").arg(&path);
        let ended = end(command);
        format!("{}{}", ended.out, ended.err)
    };
    for (arguments, expected) in [
        (&["CONNECT", "example.org:443"][..], "a tunnel, whose bytes are passed on unread: no gate lists this host"),
        (&["CONNECT", "sts.amazonaws.com:443"], "no gate lists this host"),
        (&["GET", "https://iam.amazonaws.com/"], "gate aws lists this host"),
        (&["CONNECT", "169.254.169.254:80"], "refused: 169.254.169.254: the address is a metadata service"),
        (&["CONNECT", "example.org:25"], "refused: port 25 is a mail server's port"),
        (&["CONNECT", "example.org"], "refused: the request's target has no valid port"),
        (&["GET", "http://example.org/"], "sent on in clear, without limits: no gate lists this host"),
        (
            &["CONNECT", "EC2.eu-central-1.amazonaws.com:80"],
            "a tunnel of plain HTTP, whose calls go through gate aws: @aws",
        ),
    ] {
        let said = explain(arguments);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    let url = format!("http://{EC2}/?Action=DescribeInstances&Version=2016-11-15");
    let said = explain(&["GET", &url]);
    for part in ["through gate aws, and on over TLS: @aws", "action DescribeInstances", "class"] {
        assert!(said.contains(part), "{part}\n{said}");
    }

    let mut running = start(with_config("run", &path));
    running.ready();
    let status = || -> Value {
        let answer = get(admin, "/status");
        serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
    };
    assert_eq!(
        (&status()["gates"][0]["name"], &status()["gates"][0]["upstream"]),
        (&"aws".into(), &"no host yet".into())
    );
    // Nothing listens where the host is dialled, which its client is told as AWS would.
    let call = format!("GET {url} HTTP/1.1\r\nHost: {EC2}\r\nConnection: close\r\n\r\n");
    let answer = exchange(egress, &call);
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("ServiceUnavailable"), "{answer}");
    let answer = exchange(egress, "CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n");
    assert!(
        answer.starts_with("HTTP/1.1 403 tidegate: 169.254.169.254: the address is a metadata service"),
        "{answer}"
    );
    if let Some(outer) = outer_address() {
        let there = std::net::TcpListener::bind((outer, 0)).expect("a port");
        let port = there.local_addr().expect("bound").port();
        let mut stream = TcpStream::connect(("127.0.0.1", egress)).expect("it listens");
        stream.write_all(format!("CONNECT {outer}:{port} HTTP/1.1\r\n\r\nhello").as_bytes()).expect("sent");
        let mut hello = [0; 5];
        there.accept().expect("a tunnel").0.read_exact(&mut hello).expect("its bytes");
        assert_eq!(&hello, b"hello");
        assert_eq!(status()["egress"]["tunnels"][0]["host"], format!("{outer}:{port}"));
    }
    if outer_address().is_none() {
        eprintln!("skipped in part: this machine has no address that may be dialled for a client");
    }
    let seen = status();
    let gate = &seen["gates"][0];
    assert_eq!(
        (&gate["name"], &gate["host"], &gate["upstream"]),
        (&"aws".into(), &EC2.into(), &format!("https://{EC2}").into())
    );
    assert_eq!(seen["egress"]["refusals"][0]["why"], "metadata");
    let metrics = get(admin, "/metrics");
    for line in [
        "tidegate_egress_origins 1",
        "tidegate_egress_refusals_total{why=\"metadata\"} 1",
        "tidegate_egress_connections_total{how=\"plain\"} 1",
        &format!("tidegate_egress_calls_total{{gate=\"aws\",host={EC2:?},decision=\"refuse\"}} 0"),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
    let mut top = tidegate(["top", "--once"]);
    top.arg("--config").arg(&path);
    let top = end(top);
    assert!(top.out.contains("Refused by the egress listener") && top.out.contains(EC2), "{}{}", top.out, top.err);
    let said = explain(&["GET", &url]);
    assert!(said.contains("it would be answered 502"), "{said}");

    let doctor = end(with_config("doctor", &path)).out;
    assert!(doctor.contains(&format!("ok     egress: listens on 127.0.0.1:{egress}")), "{doctor}");

    // Hosts and rules change while it runs; the listener does not.
    std::fs::write(&path, config(egress, admin, "refuse", EC2)).expect("written");
    running.line("the new configuration is in force");
    assert!(exchange(egress, &call).starts_with(&format!("HTTP/1.1 403 tidegate: {EC2} is not listed by a gate")));
    std::fs::write(&path, config(free_port(), admin, "refuse", EC2)).expect("written");
    let said = running.line("the new configuration needs a restart");
    assert!(said.contains("egress.listen can only be changed by a restart"), "{said}");
    assert_eq!(running.terminate(), Some(0));
}

#[test]
fn without_a_proxy_clients_come_by_the_names_of_hosts_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, named, admin) = (folder.path().join("tidegate.toml"), free_port(), free_port());
    let config = config(0, admin, "tunnel", "sts.amazonaws.com")
        .replace("listen = \"127.0.0.1:0\"", &format!("listen = \"off\"\nnames = [\"127.0.0.1:{named}\"]"));
    std::fs::write(&path, config).expect("written");
    let mut running = start(with_config("run", &path));
    running.ready();
    let call =
        |target: &str| exchange(named, &format!("{target} HTTP/1.1\r\nHost: {EC2}\r\nConnection: close\r\n\r\n"));
    let answer = call("GET /?Action=DescribeInstances&Version=2016-11-15");
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("ServiceUnavailable"), "{answer}");
    let answer = call(&format!("CONNECT {EC2}:443"));
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    let status = get(admin, "/status");
    assert!(status.contains("\"listen\":\"off\""), "{status}");
    let doctor = end(with_config("doctor", &path)).out;
    assert!(doctor.contains("ok     egress: clients come by the names of hosts alone"), "{doctor}");
    assert_eq!(running.terminate(), Some(0));
}

#[test]
fn doctor_names_who_is_connected_to_a_listed_host_past_the_gate() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, egress, admin) = (folder.path().join("tidegate.toml"), free_port(), free_port());
    let host = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let to = host.local_addr().expect("bound");
    let config = format!(
        "[admin]\nlisten = \"127.0.0.1:{admin}\"\nsocket = \"off\"\n[egress]\nlisten = \"127.0.0.1:{egress}\"\n\
         [gates.api]\nhosts = [\"api.example.com\", \"*.example.com\"]\npreset = \"none\"\n\
         connect_to = {{ \"api.example.com\" = \"{to}\" }}\n"
    );
    std::fs::write(&path, config).expect("written");
    let mut running = start(with_config("run", &path));
    running.ready();
    let doctor = || end(with_config("doctor", &path)).out;
    let said = doctor();
    assert!(said.contains("ok     past gate api: nothing is connected to its hosts but the gate"), "{said}");

    let past = Connected::to(to.port());
    let said = doctor();
    let own = format!("1 connection to {to} is not the gate's, but of ");
    let line = said.lines().find(|line| line.starts_with("WRONG  past gate api: ")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains(&own) && line.contains(&past.title()), "{said}");
    assert!(said.contains("set HTTPS_PROXY in its container"), "{said}");
    drop(past);
    assert_eq!(running.terminate(), Some(0));
}
