//! Checks the kernel's table of connections: does another process connect to the upstream without
//! the gate?

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http::Uri;

use super::{Finding, Verdict, upstream};
use crate::credentials::Environment;
use crate::spec::{Egress, Gate, HostPattern, Listen};
use crate::status::text::count;
use crate::status::{self, Status};

/// An established connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Socket {
    remote: SocketAddr,
    inode: u64,
}

/// The sockets of this network namespace, and the processes they belong to.
struct Sockets {
    all: Vec<Socket>,
    /// For each socket (by inode), the processes that use it. Processes of other users may be
    /// invisible.
    owners: BTreeMap<u64, BTreeSet<u32>>,
    /// The process id of the running gate, if its sockets are visible.
    gate: Option<u32>,
}

/// The processes connected to an address, without the gate.
#[derive(Default)]
struct Beside {
    gates: BTreeSet<String>,
    others: BTreeSet<String>,
    /// The number of connections of these processes, without those of other gates.
    count: usize,
    /// The connections whose process is unknown: they could be the gate's.
    unknown: usize,
}

/// Reports connections of other processes to a gate's upstream.
pub(super) async fn findings(gate: &Gate, around: &Environment, status: Option<&Status>) -> Vec<Finding> {
    let about = format!("past gate {}", gate.name);
    let Some(url) = upstream::url(gate, around, status).and_then(|url| url.parse::<Uri>().ok()) else {
        return Vec::new(); // already reported
    };
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let usual = if url.scheme_str() == Some("https") { 443 } else { 80 };
    let port = url.port_u16().unwrap_or(usual);
    let Ok(found) = tokio::net::lookup_host((host.as_str(), port)).await else { return Vec::new() };
    let advice = "point that process at the gate: KUBECONFIG or KUBERNETES_SERVICE_HOST in its container; tidegate kubeconfig prints one";
    vec![Sockets::read(status).judge(&about, &format!("{host}:{port}"), &found.collect(), advice)]
}

/// Reports connections of other processes to the hosts of a gate of the egress listener. It knows
/// the hosts that the configuration names in full, and those that were called.
pub(super) async fn past_hosts(gate: &Gate, egress: &Egress, status: Option<&Status>) -> Vec<Finding> {
    let Some(hosts) = &gate.hosts else { return Vec::new() };
    let about = format!("past gate {}", gate.name);
    let named = hosts.patterns.iter().flat_map(HostPattern::full_names).map(str::to_owned);
    let of_gate = |seen: &&status::GateStatus| *seen.name == *gate.name && !seen.host.is_empty();
    let called = status.into_iter().flat_map(|status| &status.gates).filter(of_gate).map(|seen| seen.host.clone());
    let names: BTreeSet<String> = named.chain(called).filter(|name| hosts.find(name).is_some()).collect();
    let sockets = Sockets::read(status);
    let mut findings = Vec::new();
    let mut looked_up = 0;
    let advice = if egress.listen.is_some() { TO_THE_PROXY } else { TO_THE_NAMES };
    for name in names {
        let to = match hosts.connect_to.get(&name) {
            Some(to) => vec![to.clone()],
            None => egress.ports.iter().map(|port| format!("{name}:{port}")).collect(),
        };
        for to in to {
            let found = tokio::time::timeout(LOOKUP, tokio::net::lookup_host(&to)).await;
            // Where the pod's hosts file leads the name to the gate, it is the gate.
            let found = found.ok().and_then(Result::ok).into_iter().flatten();
            let there: BTreeSet<_> = found.filter(|it| !egress.names.contains(&Listen::Tcp(*it))).collect();
            looked_up += usize::from(!there.is_empty());
            if sockets.connected_to(&there).next().is_some() {
                findings.push(sockets.judge(&about, &to, &there, advice));
            }
        }
    }
    findings.retain(|finding| finding.verdict != Verdict::Fine);
    if findings.is_empty() && looked_up > 0 {
        findings.push(Finding::fine(&about, "nothing is connected to its hosts but the gate"));
    }
    findings
}

// === impl Sockets ===

impl Sockets {
    fn read(status: Option<&Status>) -> Self {
        let before = table();
        let owners = owners();
        // A connection that ends meanwhile would seem to be of an invisible process.
        let all = table().into_iter().filter(|socket| before.contains(socket)).collect();
        let is_seen = |pid: &u32| is_tidegate(*pid) && sockets_of(*pid).is_some();
        Self { all, owners, gate: status.map(|status| status.pid).filter(is_seen) }
    }

    fn connected_to(&self, addresses: &BTreeSet<SocketAddr>) -> impl Iterator<Item = &Socket> {
        self.all.iter().filter(|it| addresses.contains(&it.remote))
    }

    /// Returns a finding: whether processes other than the gate have connections to these
    /// addresses.
    fn judge(&self, about: &str, to: &str, addresses: &BTreeSet<SocketAddr>, advice: &str) -> Finding {
        let Beside { gates, others, count: number, unknown } = self.beside(addresses);
        if number > 0 {
            let connections = count(number, "connection", "connections");
            let others = joined(others);
            let are = if number == 1 { "is" } else { "are" };
            return Finding::wrong(
                about,
                format!("{connections} to {to} {are} not the gate's, but of {others}"),
                advice,
            );
        }
        if unknown > 0 || self.gate.is_none() {
            let says = format!(
                "cannot tell whether the gate is bypassed: {} to {to}, whose process cannot be seen from here",
                count(unknown, "connection", "connections")
            );
            return Finding::note(about, says, "run doctor beside the gate, as the same user");
        }
        let gates = if gates.is_empty() { String::new() } else { format!(", and {}", joined(gates)) };
        Finding::fine(about, format!("nothing is connected to {to} but the gate{gates}"))
    }

    fn beside(&self, addresses: &BTreeSet<SocketAddr>) -> Beside {
        let mut beside = Beside::default();
        let known = [self.gate, Some(std::process::id())];
        for it in self.connected_to(addresses) {
            let owners: Vec<u32> = self.owners.get(&it.inode).into_iter().flatten().copied().collect();
            let title = joined(owners.iter().map(|pid| format!("{} (pid {pid})", name_of(*pid))));
            if owners.iter().any(|pid| known.contains(&Some(*pid))) {
                continue;
            }
            if self.gate.is_none() {
                beside.unknown += 1;
            } else if owners.iter().any(|pid| is_tidegate(*pid)) {
                beside.gates.insert(title);
            } else {
                let is_visible = !owners.is_empty();
                beside.others.insert(if is_visible { title } else { "a process that is not visible here".to_owned() });
                beside.count += 1;
            }
        }
        beside
    }
}

fn joined(texts: impl IntoIterator<Item = String>) -> String {
    texts.into_iter().collect::<Vec<_>>().join(", ")
}

/// Returns the established connections of this network namespace.
fn table() -> Vec<Socket> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(read).collect()
}

/// Parses one line of the kernel's table; `None` for a socket in any other state.
fn read(line: &str) -> Option<Socket> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let remote = address(fields.get(2)?)?;
    let inode = fields.get(9)?.parse().ok()?;
    (*fields.get(3)? == "01").then_some(Socket { remote, inode })
}

/// Parses an address such as `0100007F:1F90`: the IP address as words of four bytes in this
/// machine's byte order, and the port. An IPv4 address inside IPv6 becomes IPv4.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::new();
    for word in ip.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        _ => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
    };
    Some(SocketAddr::new(ip, port))
}

/// Returns the inodes of the sockets of a process; `None` if they are not visible.
fn sockets_of(pid: u32) -> Option<BTreeSet<u64>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    Some(entries.flatten().filter_map(|entry| inode(&fs::read_link(entry.path()).ok()?.to_string_lossy())).collect())
}

/// Parses a link such as `socket:[12345]`.
fn inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Returns the visible processes that use each socket.
fn owners() -> BTreeMap<u64, BTreeSet<u32>> {
    let mut owners = BTreeMap::<_, BTreeSet<u32>>::new();
    for pid in processes() {
        for socket in sockets_of(pid).into_iter().flatten() {
            owners.entry(socket).or_default().insert(pid);
        }
    }
    owners
}

/// Returns the ids of the visible processes.
fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the name of a process, cut to 15 bytes; empty if the process does not exist.
fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// Returns true for a process of this program, even if its file has another name.
fn is_tidegate(pid: u32) -> bool {
    let name = name_of(pid);
    name == "tidegate" || name == name_of(std::process::id())
}

const TO_THE_NAMES: &str = "lead the names of its hosts to egress.names by hostAliases, and set what makes it trust the CA (docs/egress.md, Interception)";
const TO_THE_PROXY: &str = "set HTTPS_PROXY in its container, and what makes it trust the CA; a client that takes no proxy (the AWS SDK for JavaScript, google-api-python-client without PySocks) comes by egress.names (docs/egress.md, Interception)";
/// The longest wait for the lookup of a name: the other checks must not wait for a broken name
/// server.
const LOOKUP: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_table_is_read() {
        let line = "   0: 0100007F:1F90 0200000A:01BB 01 00000000:00000000 00:00000000 00000000  1000        0 12345 1 0000000000000000";
        let read_line = read(line).expect("an established connection");
        assert_eq!((read_line.remote.to_string().as_str(), read_line.inode), ("10.0.0.2:443", 12345));
        assert_eq!(read(&line.replace(" 01 ", " 0A ")), None, "it listens");
        assert_eq!(read(&line.replace(" 01 ", " 06 ")), None, "it has ended");
        let mapped = address("0000000000000000FFFF00000100007F:0050").expect("an address");
        assert_eq!(mapped.to_string(), "127.0.0.1:80");
        assert_eq!((inode("socket:[7]"), inode("pipe:[7]")), (Some(7), None));
    }

    #[test]
    fn a_connection_of_this_process_is_found_as_its_own() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let stream = std::net::TcpStream::connect(address).expect("it listens");
        let found = table().into_iter().find(|it| it.remote == address).expect("the kernel knows it");
        assert!(sockets_of(std::process::id()).expect("its own").contains(&found.inode));
        drop(stream);
    }
}
