//! Reads the whole configuration: the settings of the process, and each gate.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::cursor::{Cursor, TextValue};
use super::gate::gate;
use super::names::{self, address};
use super::problems::{alternatives, did_you_mean};
use super::words::Format;
use super::{candidate, clusters, egress, otlp, shared, stores, unmet};
use crate::spec::{Admin, Listen, Log, OwnFile, Settings, ShowNames};

/// Reads all settings. They may be used only if no problem was reported.
pub(super) fn settings(root: &Cursor<'_>) -> Settings {
    let admin = admin(&root.table("admin"));
    let log = log(&root.table("log"));
    let drain = root.table("shutdown").get("drain", DRAIN);
    let fits = |threads: &NonZeroU32| threads.get() <= MAX_THREADS;
    let at_most = format!("at most {MAX_THREADS}");
    let threads = root.table("process").get_if("threads", NonZeroU32::MIN, fits, &at_most);
    let otlp = otlp::otlp(root);
    let state = root.table("state").get("file", OwnFile::Auto);
    let stores = stores::stores(root);
    let egress = egress::egress(root);
    let mut of_clusters = Vec::new();
    let named = |(place, (name, at)): (usize, (&str, Cursor<'_>))| {
        if !names::is_snake_case(name) {
            at.key_problem(format!("is not a valid name for a gate, expected {}", names::SNAKE_CASE));
        }
        let name: Arc<str> = Arc::from(name);
        let behind = egress.as_ref().map(|egress| (place, egress.clients.is_some()));
        let read = |at: &Cursor<'_>| gate(at, Arc::clone(&name), behind);
        let mut gate = read(&at);
        candidate::compare(&at, &mut gate, read);
        of_clusters.extend(clusters::limits(&at, &gate, read));
        (name, gate)
    };
    let gates = root.tables("gates").into_iter().enumerate().map(named).collect();
    let clusters = of_clusters;
    let mut settings = Settings { admin, log, drain, threads, otlp, state, stores, egress, gates, clusters };
    if settings.gates.is_empty() && settings.egress.is_none() && root.is_right() {
        let message = ", expected at least one gate, such as [gates.kubernetes] with upstream = \"in_cluster\"";
        root.at("gates").missing(message);
    }
    shared::check_together(&mut settings, root);
    clusters::share(&mut settings);
    check_addresses(&settings, root);
    egress::check_interception(&settings, root);
    egress::warn_of_unreachable(&settings, root);
    unmet::warn_of_idle(&settings, root);
    settings
}

fn admin(at: &Cursor<'_>) -> Admin {
    let OrOff(listen) = at.get("listen", OrOff(Some(ADMIN)));
    let show_names = at.get("show_names", ShowNames::Auto);
    let socket = at.get("socket", OwnFile::Auto);
    if let OwnFile::At(path) = &socket
        && path.as_os_str().len() > MAX_SOCKET
    {
        at.at("socket").problem(format!("is {path:?}, expected a path of at most {MAX_SOCKET} bytes"));
    }
    Admin { listen, show_names, socket }
}

/// The address of the admin port, or `off`.
struct OrOff(Option<SocketAddr>);

impl TextValue for OrOff {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "off" { Ok(Self(None)) } else { address(text, ", or \"off\"").map(Some).map(Self) }
    }

    fn text(&self) -> String {
        self.0.map_or_else(|| "off".to_owned(), |address| address.to_string())
    }
}

impl TextValue for OwnFile {
    /// Reads `auto`, `off` or an absolute path. A relative path would depend on the working
    /// directory.
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            path if path.starts_with('/') && !path.ends_with('/') => Ok(Self::At(path.into())),
            path => Err(format!(
                "is {path:?}, expected \"auto\", \"off\" or the absolute path of a file, such as \"/run/tidegate/NAME\""
            )),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Off => "off".to_owned(),
            Self::At(path) => path.display().to_string(),
        }
    }
}

fn log(at: &Cursor<'_>) -> Log {
    let json = at.get("format", Format::Text) == Format::Json;
    let level = at.get("level", "info".to_owned());
    // A single word that is no level would be taken for the name of a module.
    let is_plain = !level.contains(['=', ',']);
    if is_plain && !LEVELS.contains(&level.as_str()) {
        let expected = alternatives(&LEVELS);
        let near = did_you_mean(&level, &LEVELS);
        at.at("level")
            .problem(format!("is {level:?}, expected {expected}, or a filter such as \"info,tidegate=debug\"{near}"));
    } else if let Err(error) = level.parse::<tracing_subscriber::filter::Targets>() {
        at.at("level").problem(format!("is {level:?}, which is not a valid filter of log lines: {error}"));
    }
    let calls: Option<PathBuf> = at.get("calls", None);
    Log { json, level, calls }
}

/// Reports two listeners on one port, and two gates with one Unix socket or one folder: each would
/// overwrite the other's files.
fn check_addresses(settings: &Settings, root: &Cursor<'_>) {
    let mut taken: Vec<(Listen, Cursor<'_>)> = Vec::new();
    for (listen, at) in addresses(settings, root) {
        if let Some((_, other)) = taken.iter().find(|(other, _)| is_same(&listen, other)) {
            let place = &other.path;
            let message = match &listen {
                Listen::Tcp(address) => format!("{address} is already that of {place}, expected another port"),
                Listen::Unix(path) => format!("is {path:?}, which is already that of {place}, expected another"),
            };
            at.given(&[&at, other]).problem(message);
        }
        taken.push((listen, at));
    }
}

/// Returns every address and path that the process needs for itself, with the position of its key in
/// the configuration. A folder is like a socket.
fn addresses<'a>(settings: &Settings, root: &Cursor<'a>) -> Vec<(Listen, Cursor<'a>)> {
    let mut all: Vec<(Listen, Cursor<'a>)> = Vec::new();
    all.extend(settings.admin.listen.map(|address| (Listen::Tcp(address), root.at("admin").at("listen"))));
    for (name, gate) in &settings.gates {
        let at = root.at("gates").at(name);
        all.extend(gate.listen.iter().map(|listen| (listen.clone(), at.at("listen"))));
        let folder = gate.folder().map(|folder| Listen::Unix(folder.to_owned()));
        all.extend(folder.map(|folder| (folder, at.at("tls").at("write_to"))));
    }
    if let Some(egress) = &settings.egress {
        let at = root.at("egress");
        all.extend(egress.listen.iter().map(|listen| (listen.clone(), at.at("listen"))));
        all.extend(egress.names.iter().map(|listen| (listen.clone(), at.at("names"))));
    }
    all
}

/// Returns true if two listeners need the same path, or the same port on the same address.
///
/// The address `0.0.0.0` includes all IPv4 addresses, and `[::]` usually all addresses.
fn is_same(one: &Listen, other: &Listen) -> bool {
    let (Listen::Tcp(one), Listen::Tcp(other)) = (one, other) else { return one == other };
    let covers = |wide: &SocketAddr, narrow: &SocketAddr| {
        wide.ip().is_unspecified() && (wide.is_ipv6() || wide.is_ipv4() == narrow.is_ipv4())
    };
    one.port() != 0
        && one.port() == other.port()
        && (one.ip() == other.ip() || covers(one, other) || covers(other, one))
}

/// The longest path of the control socket, in bytes. The kernel accepts 107, but the socket is
/// created in a folder of its own first, which has a longer path.
const MAX_SOCKET: usize = 80;
const ADMIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9464);
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// The most threads: more processors are of no use to a gate, as its limiter has one lock.
const MAX_THREADS: u32 = 64;
/// The default drain time: less than a pod's 30 s, with time left to write the last log lines.
const DRAIN: Duration = Duration::from_secs(25);
