//! Reads the whole configuration: the settings of the process, and each gate.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::cursor::{Cursor, TextValue};
use super::gate::gate;
use super::names::{self, address};
use super::path::Path;
use super::problems::{alternatives, did_you_mean};
use super::words::Format;
use super::{candidate, clusters, egress, otlp, shared, stores, unmet};
use crate::spec::{Admin, Gate, Listen, Log, OwnFile, Settings, ShowNames};

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
    check_paths(&settings, root);
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

/// Reports two listeners on one port.
fn check_addresses(settings: &Settings, root: &Cursor<'_>) {
    let admin = settings.admin.listen.map(|address| (address, root.at("admin").at("listen")));
    let addresses = listeners(settings, root).into_iter().filter_map(|(listen, at)| match listen {
        Listen::Tcp(address) => Some((*address, at)),
        Listen::Unix(_) => None,
    });
    let is_taken = |address, other: &Path| format!("{address} is already that of {other}, expected another port");
    check_taken(admin.into_iter().chain(addresses), collide, is_taken);
}

/// Reports each value in conflict with an earlier value, as judged by `collide`.
fn check_taken<'a, T: Copy>(
    all: impl Iterator<Item = (T, Cursor<'a>)>,
    collide: impl Fn(T, T) -> bool,
    message: impl Fn(T, &Path) -> String,
) {
    let mut taken: Vec<(T, Cursor<'a>)> = Vec::new();
    for (value, at) in all {
        if let Some((_, other)) = taken.iter().find(|(other, _)| collide(value, *other)) {
            at.given(&[&at, other]).problem(message(value, &other.path));
        }
        taken.push((value, at));
    }
}

/// Returns every listener for clients, with the position of its key in the configuration.
fn listeners<'a>(settings: &'a Settings, root: &Cursor<'a>) -> Vec<(&'a Listen, Cursor<'a>)> {
    let of_gate = |(name, gate): (&Arc<str>, &'a Gate)| {
        let at = root.at("gates").at(name).at("listen");
        gate.listen.iter().map(|listen| (listen, at.clone())).collect::<Vec<_>>()
    };
    let egress = settings.egress.iter().filter_map(|egress| egress.listen.as_ref());
    let egress = egress.map(|listen| (listen, root.at("egress").at("listen")));
    let names = settings.egress.iter().flat_map(|egress| &egress.names);
    let names = names.map(|listen| (listen, root.at("egress").at("names")));
    settings.gates.iter().flat_map(of_gate).chain(egress).chain(names).collect()
}

/// Reports two gates with one Unix socket or one folder: each would overwrite the other's files.
fn check_paths(settings: &Settings, root: &Cursor<'_>) {
    let sockets = listeners(settings, root).into_iter().filter_map(|(listen, at)| match listen {
        Listen::Tcp(_) => None,
        Listen::Unix(path) => Some((path.as_path(), at)),
    });
    let folders = settings.gates.iter().filter_map(|(name, gate)| {
        let folder = gate.access.tls.as_ref()?.write_to.as_deref()?;
        Some((folder, root.at("gates").at(name).at("tls").at("write_to")))
    });
    let is_taken = |path, other: &Path| format!("is {path:?}, which is already that of {other}, expected another");
    check_taken(sockets.chain(folders), |one: &std::path::Path, other| one == other, is_taken);
}

/// Returns true if two listeners need the same port on the same address.
///
/// The address `0.0.0.0` includes all IPv4 addresses, and `[::]` usually all addresses.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let covers = |wide: SocketAddr, narrow: SocketAddr| {
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
