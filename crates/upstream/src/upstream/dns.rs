//! Name lookup without the hosts file, for a name mapped by it to the gate itself.
//!
//! A client that signs its Host must call the gate by the API's real name, so the pod's
//! `hostAliases` point that name at the gate. The hosts file is the whole pod's, so the machine's
//! resolver sends every program to the gate, the gate included. `resolv.conf` is honoured with its
//! search list and `ndots`, as it is at each lookup.

use std::net::IpAddr;
use std::path::PathBuf;
use std::{fs, io};

use hickory_resolver::config::{ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{Resolver, TokioResolver, system_conf};

use super::error::ForbiddenAddress;

/// The files and the port for looking up names.
#[derive(Clone, Debug)]
pub struct Dns {
    /// The hosts file, with fixed addresses for some names.
    pub hosts: PathBuf,
    /// The `resolv.conf` file, with the name servers and their options.
    pub resolv_conf: PathBuf,
    /// The port of the name servers.
    pub port: u16,
    /// A check of each address before the gate connects to it. It does not apply if a proxy looks
    /// up the name.
    pub judge: Option<Judge>,
}

/// A function that returns an error for an address that must not be connected to.
pub type Judge = fn(IpAddr) -> Result<(), ForbiddenAddress>;

/// Why a lookup failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookupError {
    /// The name servers say that the name does not exist.
    #[error("no name server knows this host name ({0})")]
    NoSuchName(NetError),
    /// No name server has answered.
    #[error("{0}")]
    Unanswered(io::Error),
}

impl Default for Dns {
    fn default() -> Self {
        Self { hosts: "/etc/hosts".into(), resolv_conf: "/etc/resolv.conf".into(), port: 53, judge: None }
    }
}

impl Dns {
    /// Returns the addresses of a name in the hosts file; none if it cannot be read.
    pub(super) fn in_hosts(&self, name: &str) -> Vec<IpAddr> {
        let Ok(text) = fs::read_to_string(&self.hosts) else { return Vec::new() };
        let of_line = |line: &str| {
            let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
            let address = words.next()?.parse().ok()?;
            words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
        };
        text.lines().filter_map(of_line).collect()
    }

    /// Looks up all addresses of a name.
    pub(super) async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, LookupError> {
        let resolver = self.resolver().map_err(|error| {
            let text = format!("{}: {error}", self.resolv_conf.display());
            LookupError::Unanswered(io::Error::other(text))
        })?;
        match resolver.lookup_ip(name).await {
            Ok(found) => Ok(found.iter().collect()),
            Err(error) if error.is_nx_domain() => Err(LookupError::NoSuchName(error)),
            Err(error) => Err(LookupError::Unanswered(io::Error::other(error))),
        }
    }

    /// Returns the resolver for `resolv.conf` as it is now.
    fn resolver(&self) -> io::Result<TokioResolver> {
        let (config, mut options) = name_servers(&fs::read(&self.resolv_conf)?).map_err(io::Error::other)?;
        let (domain, search, mut servers) = config.into_parts();
        for connection in servers.iter_mut().flat_map(|server| &mut server.connections) {
            connection.port = self.port;
        }
        options.use_hosts_file = ResolveHosts::Never;
        let config = ResolverConfig::from_parts(domain, search, servers);
        let resolver = Resolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options);
        resolver.build().map_err(io::Error::other)
    }
}

/// Returns the name servers and options in a `resolv.conf`.
#[cfg(not(target_vendor = "apple"))]
fn name_servers(text: &[u8]) -> Result<(ResolverConfig, ResolverOpts), NetError> {
    system_conf::parse_resolv_conf(text)
}

/// Returns the system's name servers. On macOS the file does not list them.
#[cfg(target_vendor = "apple")]
fn name_servers(_: &[u8]) -> Result<(ResolverConfig, ResolverOpts), NetError> {
    Ok(system_conf::read_system_conf()?)
}
