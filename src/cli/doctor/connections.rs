//! Checks in the kernel's own table if a process of this network namespace is connected to an
//! upstream past the gate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::Finding;
use super::controller::processes;
use crate::app::gate::prepare_gate;
use crate::clock::Clock;
use crate::credentials::Environment;
use crate::spec::{Egress, Gate, HostPattern, Listen};
use crate::status::{self, Status};

/// An established connection as seen from this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Established {
    local: SocketAddr,
    remote: SocketAddr,
    inode: u64,
}

/// Reports connections to a gate's upstream that the gate did not open.
pub(super) async fn findings(gate: &Gate, around: &Environment, status: Option<&Status>) -> Vec<Finding> {
    let about = format!("past gate {}", gate.name);
    let Ok(prepared) = prepare_gate(gate.clone(), around, Duration::ZERO, Clock::start()) else {
        return Vec::new(); // already reported
    };
    let target = prepared.options.upstream.target;
    let host = target.authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = target.authority.port_u16().unwrap_or(if target.scheme == http::uri::Scheme::HTTPS { 443 } else { 80 });
    let Ok(found) = tokio::net::lookup_host((host.as_str(), port)).await else { return Vec::new() };
    let (upstream, text): (BTreeSet<SocketAddr>, _) = (found.collect(), format!("{host}:{port}"));
    let there: Vec<_> = established().into_iter().filter(|it| upstream.contains(&it.remote)).collect();
    let Some(own) = own_sockets(status) else { return vec![cannot_be_told(&about, there.len(), &text)] };
    let advice = "point that process at the gate: KUBECONFIG or KUBERNETES_SERVICE_HOST in its container; tidegate kubeconfig prints one";
    let finding = foreign(&about, &text, &there, &own, advice);
    vec![finding.unwrap_or_else(|| Finding::fine(&about, format!("nothing is connected to {text} but the gate")))]
}

/// Reports connections to the hosts of a gate behind the egress listener that it did not open: to
/// those that its configuration names in full, and those that were called.
pub(super) async fn past_hosts(gate: &Gate, egress: &Egress, status: Option<&Status>) -> Vec<Finding> {
    let Some(hosts) = &gate.hosts else { return Vec::new() };
    let about = format!("past gate {}", gate.name);
    let named = hosts.patterns.iter().flat_map(HostPattern::full_names).map(str::to_owned);
    let of_gate = |seen: &&status::Gate| *seen.name == *gate.name && !seen.host.is_empty();
    let called = status.into_iter().flat_map(|status| &status.gates).filter(of_gate).map(|seen| seen.host.clone());
    let names: BTreeSet<String> = named.chain(called).filter(|name| hosts.find(name).is_some()).collect();
    let (all, own) = (established(), own_sockets(status));
    let (mut findings, mut looked_up) = (Vec::new(), 0);
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
            let there: Vec<_> = all.iter().copied().filter(|it| there.contains(&it.remote)).collect();
            match &own {
                _ if there.is_empty() => {}
                None => findings.push(cannot_be_told(&about, there.len(), &to)),
                Some(own) => findings.extend(foreign(&about, &to, &there, own, advice)),
            }
        }
    }
    if findings.is_empty() && looked_up > 0 {
        findings.push(Finding::fine(&about, "nothing is connected to its hosts but the gate"));
    }
    findings
}

/// Returns the sockets of the running gate and of this process; `None` if they cannot be seen.
fn own_sockets(status: Option<&Status>) -> Option<BTreeSet<u64>> {
    let gates = status.and_then(|status| sockets_of(status.pid))?;
    Some(&gates | &sockets_of(std::process::id())?)
}

/// Says that some of the connections to a host may be the gate's.
fn cannot_be_told(about: &str, count: usize, to: &str) -> Finding {
    let unknown = "not known: the running gate's connections cannot be told from others";
    Finding::note(
        about,
        format!("{unknown}; there are {count} to {to}"),
        "run doctor beside the gate, as the same user",
    )
}

/// Reports those of the connections to a host that are not the gate's, if there are any.
fn foreign(
    about: &str,
    to: &str,
    there: &[Established],
    own: &BTreeSet<u64>,
    advice: impl Into<String>,
) -> Option<Finding> {
    let foreign: Vec<_> = there.iter().filter(|it| !own.contains(&it.inode)).collect();
    if foreign.is_empty() {
        return None;
    }
    let owners = owners();
    let owner = |it: &&Established| owners.get(&it.inode).map_or("a process that is not visible here", String::as_str);
    let names: BTreeSet<&str> = foreign.iter().map(owner).collect();
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    let says = format!("{} connections to {to} are not the gate's, but of {names}", foreign.len());
    Some(Finding::wrong(about, says, advice))
}

/// Returns the established connections of this network namespace.
fn established() -> Vec<Established> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(read).collect()
}

/// Parses one line of the kernel's table; `None` if it is not an established connection.
fn read(line: &str) -> Option<Established> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, remote) = (address(fields.get(1)?)?, address(fields.get(2)?)?);
    let inode = fields.get(9)?.parse().ok()?;
    (*fields.get(3)? == "01").then_some(Established { local, remote, inode })
}

/// Parses an address such as `0100007F:1F90`: words of four bytes in this machine's byte order. An
/// IPv4 address inside IPv6 becomes IPv4.
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

/// Returns the sockets of a process by inode; `None` if they cannot be seen.
fn sockets_of(pid: u32) -> Option<BTreeSet<u64>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    Some(entries.flatten().filter_map(|entry| inode(&fs::read_link(entry.path()).ok()?.to_string_lossy())).collect())
}

/// Parses a link such as `socket:[12345]`.
fn inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Maps each socket to the process that owns it, among the processes that can be seen.
fn owners() -> BTreeMap<u64, String> {
    let mut owners = BTreeMap::new();
    for pid in processes() {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        for socket in sockets_of(pid).into_iter().flatten() {
            owners.insert(socket, format!("{} (pid {pid})", name.trim()));
        }
    }
    owners
}

const TO_THE_NAMES: &str = "lead the names of its hosts to egress.names by hostAliases, and set what makes it trust the CA (docs/external-apis.md, Interception)";
const TO_THE_PROXY: &str = "set HTTPS_PROXY in its container, and what makes it trust the CA; a client that takes no proxy (the AWS SDK for JavaScript, google-api-python-client without PySocks) comes by egress.names (docs/external-apis.md, Interception)";
/// A name server that does not answer must not hold up the other findings.
const LOOKUP: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_table_is_read() {
        let line = "   0: 0100007F:1F90 0200000A:01BB 01 00000000:00000000 00:00000000 00000000  1000        0 12345 1 0000000000000000";
        let read_line = read(line).expect("an established connection");
        assert_eq!((read_line.local.to_string().as_str(), read_line.inode), ("127.0.0.1:8080", 12345));
        assert_eq!(read_line.remote.to_string(), "10.0.0.2:443");
        assert_eq!(read(&line.replace(" 01 ", " 0A ")), None, "listening");
        let mapped = address("0000000000000000FFFF00000100007F:0050").expect("an address");
        assert_eq!(mapped.to_string(), "127.0.0.1:80");
        assert_eq!((inode("socket:[7]"), inode("pipe:[7]")), (Some(7), None));
    }

    #[test]
    fn a_connection_of_this_process_is_found_as_its_own() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let stream = std::net::TcpStream::connect(address).expect("it listens");
        let found = established()
            .into_iter()
            .find(|it| it.remote == address && it.local == stream.local_addr().expect("bound"));
        let found = found.expect("the kernel knows it");
        assert!(sockets_of(std::process::id()).expect("its own").contains(&found.inode));
    }
}
