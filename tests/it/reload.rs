//! A changed configuration takes effect while the gate runs, or changes nothing and says why (P11).

pub(crate) mod load;

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::limit::policy::Lane;

use crate::cli::input::get;
use crate::command::{Running, config, start, with_config};
use crate::ports::free_port;
use crate::support::{Backend, Proxy, status, within};

const RATE: &str = "tidegate_bucket_rate{gate=\"k\",bucket=\"gate\"}";

fn text(ports: (u16, u16), more: &str) -> String {
    format!(
        "[admin]\nlisten = \"127.0.0.1:{}\"\n[gates.k]\nupstream = \"http://127.0.0.1:9\"\nlisten = \"127.0.0.1:{}\"\n{more}",
        ports.0, ports.1
    )
}

fn ports() -> (u16, u16) {
    (free_port(), free_port())
}

/// The value of a metric, as text.
fn metric(port: u16, name: &str) -> String {
    let text = get(port, "/metrics");
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in\n{text}"));
    line.rsplit(' ').next().expect("a value").to_owned()
}

fn running(path: &Path) -> Running {
    let mut gate = start(with_config("run", path));
    gate.ready();
    gate
}

/// A folder as kubelet makes it: a link to a link to the file.
fn swap(folder: &Path, version: &str, text: &str) {
    std::fs::create_dir(folder.join(version)).expect("it can be made");
    std::fs::write(folder.join(version).join("tidegate.toml"), text).expect("it can be written");
    symlink(version, folder.join("..data_tmp")).expect("it can be linked");
    std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).expect("it can be renamed");
}

#[test]
fn a_config_map_that_is_swapped_is_noticed_within_ten_seconds() {
    let (folder, ports) = (tempfile::tempdir().expect("a folder"), ports());
    let path = folder.path().join("tidegate.toml");
    swap(folder.path(), "..1", &text(ports, "bucket = { rate = 7, burst = 3 }\n"));
    symlink("..data/tidegate.toml", &path).expect("it can be linked");
    let mut gate = running(&path);
    for (version, rate) in [("..2", "8"), ("..3", "9")] {
        swap(folder.path(), version, &text(ports, &format!("bucket = {{ rate = {rate}, burst = 3 }}\n")));
        let swapped = Clock::start();
        gate.line("the new configuration is in force");
        assert!(swapped.now().since_start() < Duration::from_secs(10), "{:?}", swapped.now());
        assert_eq!(metric(ports.0, RATE), rate, "the second swap is seen like the first");
    }
}

#[test]
fn an_invalid_configuration_changes_nothing_and_says_what_and_where() {
    let ports = ports();
    let (_folder, path) = config(&text(ports, "bucket = { rate = 7, burst = 3 }\n"));
    let mut gate = running(&path);
    let hash = metric(ports.0, "tidegate_config_hash");
    std::fs::write(&path, text(ports, "bucket = { rate = \"fast\", burst = 3 }\ncolour = \"blue\"\n"))
        .expect("written");
    gate.signal("-HUP");
    let said = gate.line("stays in force");
    for wanted in ["problems=2", "tidegate.toml:6:", "gates.k.bucket.rate", "gates.k.colour", "ERROR"] {
        assert!(said.contains(wanted), "{wanted}\n{said}");
    }
    assert_eq!(metric(ports.0, RATE), "7");
    assert_eq!(metric(ports.0, "tidegate_config_reloads_total{result=\"invalid\"}"), "1");
    assert_eq!(metric(ports.0, "tidegate_config_hash"), hash);
    std::fs::write(&path, text(ports, "bucket = { rate = 8, burst = 3 }\n")).expect("written");
    gate.signal("-HUP");
    gate.line("the new configuration is in force");
    assert_eq!(metric(ports.0, RATE), "8");
    assert_ne!(metric(ports.0, "tidegate_config_hash"), hash);
}

#[test]
fn what_an_invalid_configuration_waits_for_may_come_later() {
    let (folder, ports) = (tempfile::tempdir().expect("a folder"), ports());
    let (path, logs) = (folder.path().join("tidegate.toml"), folder.path().join("logs"));
    std::fs::write(&path, text(ports, "")).expect("written");
    let mut gate = running(&path);
    let log = format!("[log]\ncalls = {:?}\n", logs.join("calls.jsonl").display().to_string());
    std::fs::write(&path, format!("{}{log}", text(ports, "bucket = { rate = 8, burst = 3 }\n"))).expect("written");
    gate.signal("-HUP");
    gate.line("stays in force");
    std::fs::create_dir(&logs).expect("it can be made");
    gate.line("the new configuration is in force");
    assert_eq!(metric(ports.0, RATE), "8");
    assert_eq!(metric(ports.0, "tidegate_config_reloads_total{result=\"invalid\"}"), "1", "and it is said once");
}

#[test]
fn what_only_a_restart_can_change_is_named_and_nothing_is_changed() {
    let ports = ports();
    let (_folder, path) = config(&text(ports, "bucket = { rate = 7, burst = 3 }\n"));
    let mut gate = running(&path);
    let other =
        text((free_port(), free_port()), "bucket = { rate = 8, burst = 3 }\ntls = { mode = \"self_signed\" }\n");
    std::fs::write(&path, other).expect("written");
    gate.signal("-HUP");
    let said = gate.line("needs a restart");
    for wanted in ["admin.listen", "gates.k.listen", "gates.k.tls"] {
        assert!(said.contains(wanted), "{wanted}\n{said}");
    }
    assert_eq!(metric(ports.0, RATE), "7");
    assert_eq!(metric(ports.0, "tidegate_config_reloads_total{result=\"restart_needed\"}"), "1");
}

#[test]
fn a_file_that_has_not_changed_changes_nothing() {
    let ports = ports();
    let (_folder, path) = config(&text(ports, ""));
    let mut gate = running(&path);
    gate.signal("-HUP");
    gate.line("has not changed");
    assert_eq!(metric(ports.0, "tidegate_config_reloads_total{result=\"unchanged\"}"), "1");
}

#[test]
fn the_log_s_level_and_file_of_calls_change_too() {
    let (folder, ports) = (tempfile::tempdir().expect("a folder"), ports());
    let (path, calls) = (folder.path().join("tidegate.toml"), folder.path().join("calls.jsonl"));
    std::fs::write(&path, text(ports, "")).expect("written");
    let mut gate = running(&path);
    let log = format!("[log]\nlevel = \"debug\"\ncalls = {:?}\n", calls.display().to_string());
    std::fs::write(&path, format!("{}{log}", text(ports, ""))).expect("written");
    gate.signal("-HUP");
    gate.line("the new configuration is in force");
    get(ports.1, "/api/v1/namespaces/default/pods/web");
    let mut stream = TcpStream::connect(("127.0.0.1", ports.1)).expect("the gate listens");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").expect("it is read");
    gate.line("DEBUG refused an invalid request");
    assert_eq!(gate.terminate(), Some(0));
    assert!(std::fs::read_to_string(&calls).expect("it is there").contains("\"pods\""));
}

#[tokio::test]
async fn a_call_whose_class_becomes_exempt_while_it_waits_goes_and_leaves_the_streams_as_they_were() {
    let backend = Backend::replying(200).await;
    let before = || Proxy::before(backend.address).bucket(0.001, 1).in_flight(4);
    let proxy = before().start().await;
    assert_eq!(proxy.get("/api/v1/namespaces/n/pods/one").await.0, 200);
    let mut waits = std::pin::pin!(proxy.get("/api/v1/namespaces/n/pods/two"));
    tokio::select! {
        answer = &mut waits => panic!("it went: {answer:?}"),
        () = proxy.reaches("tidegate_waiting", &[], 1.0) => {}
    }
    proxy.gate.reconfigure(before().policy(|policy| policy.classes[1].lane = Lane::Exempt).options());
    assert_eq!(within(waits).await.0, 200);
    proxy.gate.reconfigure(before().bucket(1000.0, 100).options());
    for call in 0..20 {
        assert_eq!(proxy.get(&format!("/api/v1/namespaces/n/pods/{call}")).await.0, 200);
    }
    proxy.reaches("tidegate_slots_in_use", &[], 0.0).await;
    proxy.reaches("tidegate_upstream_streams", &["short"], 0.0).await;
}

#[tokio::test]
async fn an_open_connection_goes_by_the_new_terms() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let backend = Backend::replying(200).await;
    let known = Proxy::before(backend.address)
        .with(|options| options.gate.access.allowed_hosts = vec!["gate.example".to_owned()]);
    let proxy = known.start().await;
    let mut stream = proxy.connect().await;
    // In this order, because a client that is turned away finds the connection closed.
    for (expected, allow) in [(200, true), (421, false)] {
        if !allow {
            proxy.gate.reconfigure(Proxy::before(backend.address).options());
        }
        stream.write_all(b"GET /api HTTP/1.1\r\nHost: gate.example\r\n\r\n").await.expect("it is read");
        let mut answer = [0; 4096];
        let length = within(stream.read(&mut answer)).await.expect("it is answered");
        assert_eq!(status(&String::from_utf8_lossy(&answer[..length])), expected);
    }
}
