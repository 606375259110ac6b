//! From what stands in the file to what can be run: every value checked by itself and with the others.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use super::{
    file::{self, Format},
    gate::{self, Extras},
    layers::Shape,
    leaf::Word,
    names::{address, is_snake_case},
    path::Path,
    problems::{Report, did_you_mean},
    readable::FileUse,
    settings::{Admin, Listen, Log, Settings, ShowNames, Socket},
};

/// Everything that was understood, for `Settings` and for showing it.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) settings: Settings,
    pub(super) gates: BTreeMap<Arc<str>, Extras>,
    pub(super) files: Vec<FileUse>,
}

/// Checks it all. What is returned is only good if nothing was reported.
pub(super) fn check(shape: &Shape, report: &mut Report<'_>) -> Checked {
    let root = Path::default();
    let known = super::field::keys_of::<file::File>();
    for key in &shape.unknown {
        let expected = format!("is no key, expected one of {}{}", known.join(", "), did_you_mean(key, known));
        report.key_problem(&root.key(key), expected);
    }
    let mut files = Vec::new();
    let admin = admin(shape.file.admin.open(&root.key("admin"), report), &root.key("admin"), report);
    let log = log(shape.file.log.open(&root.key("log"), report), &root.key("log"), report);
    let shutdown = shape.file.shutdown.open(&root.key("shutdown"), report);
    let drain = shutdown.drain.get(&root.key("shutdown").key("drain"), report).map_or(DRAIN, |span| span.0);
    let (mut gates, mut extras) = (BTreeMap::new(), BTreeMap::new());
    let at = root.key("gates");
    let sections = shape.file.gates.open(&at, report);
    for (name, section) in sections {
        let at = at.key(name);
        if !is_snake_case(name) {
            report.key_problem(
                &at,
                "is no name for a gate, expected snake_case: lower-case letters, digits and single underscores",
            );
        }
        let name: Arc<str> = Arc::from(name.as_str());
        let (gate, extra) = gate::gate(section.open(&at, report), &at, Arc::clone(&name), &mut files, report);
        gates.insert(Arc::clone(&name), gate);
        extras.insert(name, extra);
    }
    if gates.is_empty() && report.problems.is_empty() {
        report.problem(
            &at,
            "is missing, expected at least one gate, such as [gates.kubernetes] with upstream = \"in_cluster\"",
        );
    }
    let settings = Settings { admin, log, drain, gates };
    check_addresses(&settings, report);
    check_paths(&settings, report);
    Checked { settings, gates: extras, files }
}

fn admin(keys: &file::Admin, at: &Path, report: &mut Report<'_>) -> Admin {
    let listen = keys.listen.get(&at.key("listen"), report).unwrap_or_else(|| ADMIN.to_owned());
    let listen = if listen == "off" { None } else { address(&listen, &at.key("listen"), ", or \"off\"", report) };
    let show_names = keys.show_names.get(&at.key("show_names"), report).map_or(ShowNames::Auto, |Word(show)| show);
    let socket = keys.socket.get(&at.key("socket"), report).map_or(Socket::Auto, |socket| match socket.as_str() {
        "auto" => Socket::Auto,
        "off" => Socket::Off,
        path => {
            check_socket(path, &at.key("socket"), report);
            Socket::At(path.into())
        }
    });
    Admin { listen, show_names, socket }
}

/// The kernel takes paths of 107 bytes, and it is made in a folder of its own first; a relative one would depend on who asks.
fn check_socket(path: &str, at: &Path, report: &mut Report<'_>) {
    if !path.starts_with('/') || path.len() > 80 || path.ends_with('/') {
        report.problem(
            at,
            format!("is {path:?}, expected \"auto\", \"off\" or an absolute path of at most 80 bytes, such as \"/run/tidegate/tidegate.sock\""),
        );
    }
}

fn log(keys: &file::Log, at: &Path, report: &mut Report<'_>) -> Log {
    let json = keys.format.get(&at.key("format"), report) == Some(Word(Format::Json));
    let level = keys.level.get(&at.key("level"), report).unwrap_or_else(|| "info".to_owned());
    // A single word that is no level would be taken for the name of a module.
    let is_plain = !level.contains(['=', ',']);
    if is_plain && !LEVELS.contains(&level.as_str()) {
        let expected = super::leaf::one_of(&LEVELS);
        let near = did_you_mean(&level, &LEVELS);
        report.problem(
            &at.key("level"),
            format!("is {level:?}, expected {expected}, or a filter such as \"info,tidegate=debug\"{near}"),
        );
    } else if let Err(error) = level.parse::<tracing_subscriber::filter::Targets>() {
        report.problem(&at.key("level"), format!("is {level:?}, which is no filter: {error}"));
    }
    let calls = keys.calls.get(&at.key("calls"), report).filter(|path| !path.is_empty()).map(PathBuf::from);
    Log { json, level, calls }
}

/// No two listeners on one port.
fn check_addresses(settings: &Settings, report: &mut Report<'_>) {
    let root = Path::default();
    let mut taken: Vec<(SocketAddr, Path)> = Vec::new();
    taken.extend(settings.admin.listen.map(|address| (address, root.key("admin").key("listen"))));
    for (name, gate) in &settings.gates {
        let at = root.key("gates").key(name).key("listen");
        for listen in &gate.listen {
            let Listen::Tcp(address) = listen else { continue };
            if let Some((_, other)) = taken.iter().find(|(other, _)| collide(*address, *other)) {
                report.problem(&at, format!("{address} is taken by {other} already, expected another port"));
            }
            taken.push((*address, at.clone()));
        }
    }
}

/// No two gates with one socket, or one folder: each would overwrite what the other's clients rely on.
fn check_paths(settings: &Settings, report: &mut Report<'_>) {
    let mut taken: Vec<(&std::path::Path, Path)> = Vec::new();
    for (name, gate) in &settings.gates {
        let at = Path::default().key("gates").key(name);
        let sockets = gate.listen.iter().filter_map(|listen| match listen {
            Listen::Tcp(_) => None,
            Listen::Unix(path) => Some((path.as_path(), at.key("listen"))),
        });
        let folder = gate.tls.as_ref().and_then(|tls| tls.write_to.as_deref());
        for (path, at) in sockets.chain(folder.map(|path| (path, at.key("tls").key("write_to")))) {
            if let Some((_, other)) = taken.iter().find(|(other, _)| *other == path) {
                report.problem(&at, format!("is {path:?}, which {other} has already, expected another"));
            }
            taken.push((path, at));
        }
    }
}

/// Whether two listeners would want the same port. An unspecified address takes it on all, `[::]` usually that of IPv4 too.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let covers = |wide: SocketAddr, narrow: SocketAddr| {
        wide.ip().is_unspecified() && (wide.is_ipv6() || wide.is_ipv4() == narrow.is_ipv4())
    };
    one.port() != 0
        && one.port() == other.port()
        && (one.ip() == other.ip() || covers(one, other) || covers(other, one))
}

const ADMIN: &str = "127.0.0.1:9464";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Within the 30 s that a pod is given, with time to write the last lines.
const DRAIN: Duration = Duration::from_secs(25);
