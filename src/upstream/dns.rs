//! Name servers asked directly, past the hosts file: for a name that the hosts file points at the gate itself.
//!
//! That is how a client that signs its Host is brought here: the pod's `hostAliases` give the API's real name to the gate. The file is the
//! whole pod's, so whoever asks the machine's resolver is sent to the gate, the gate included. `resolv.conf` is honoured with its search
//! list and `ndots`, answers are kept for as long as their TTL says, and the file is read again when it has changed.

use std::{
    fs, io,
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use hickory_resolver::{
    Resolver, TokioResolver, config::ResolveHosts, config::ResolverConfig, net::NetError,
    net::runtime::TokioRuntimeProvider, system_conf,
};

/// Where to look names up.
#[derive(Clone, Debug)]
pub struct Dns {
    /// Names with fixed addresses.
    pub hosts: PathBuf,
    /// Name servers and how to ask them.
    pub resolv_conf: PathBuf,
    /// Where name servers listen.
    pub port: u16,
}

/// Why there are no addresses.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookupError {
    /// The name servers say so.
    #[error("the name servers know no such name ({0})")]
    NoSuchName(NetError),
    /// Nobody knows at the moment.
    #[error("{0}")]
    Unanswered(io::Error),
}

/// Asks name servers, and keeps what they answer.
#[derive(Debug)]
pub(super) struct NameServers {
    dns: Dns,
    /// The resolver, and the `resolv.conf` that it was made from.
    made: Mutex<Option<(Vec<u8>, Arc<TokioResolver>)>>,
}

impl Default for Dns {
    fn default() -> Self {
        Self { hosts: "/etc/hosts".into(), resolv_conf: "/etc/resolv.conf".into(), port: 53 }
    }
}

impl Dns {
    /// The addresses that the hosts file has for a name. A file that cannot be read has none.
    pub(super) fn in_hosts(&self, name: &str) -> Vec<IpAddr> {
        let Ok(text) = fs::read_to_string(&self.hosts) else { return Vec::new() };
        let of_line = |line: &str| {
            let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
            let address = words.next()?.parse().ok()?;
            words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
        };
        text.lines().filter_map(of_line).collect()
    }
}

impl NameServers {
    pub(super) fn new(dns: Dns) -> Self {
        Self { dns, made: Mutex::new(None) }
    }

    /// Every address of a name, as the name servers have it.
    pub(super) async fn ask(&self, name: &str) -> Result<Vec<IpAddr>, LookupError> {
        let resolver = self.resolver().map_err(LookupError::Unanswered)?;
        match resolver.lookup_ip(name).await {
            Ok(found) => Ok(found.iter().collect()),
            Err(error) if error.is_nx_domain() => Err(LookupError::NoSuchName(error)),
            Err(error) => Err(LookupError::Unanswered(io::Error::other(error))),
        }
    }

    /// The resolver that `resolv.conf` asks for.
    fn resolver(&self) -> io::Result<Arc<TokioResolver>> {
        let path = self.dns.resolv_conf.display();
        let text = fs::read(&self.dns.resolv_conf).map_err(|error| io::Error::other(format!("{path}: {error}")))?;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((from, resolver)) = &*made
            && *from == text
        {
            return Ok(Arc::clone(resolver));
        }
        let resolver = self.make(&text).map_err(|error| io::Error::other(format!("{path}: {error}")))?;
        let resolver = Arc::new(resolver);
        *made = Some((text, Arc::clone(&resolver)));
        Ok(resolver)
    }

    fn make(&self, text: &[u8]) -> Result<TokioResolver, NetError> {
        let (config, mut options) = system_conf::parse_resolv_conf(text)?;
        let (domain, search, mut servers) = config.into_parts();
        for connection in servers.iter_mut().flat_map(|server| &mut server.connections) {
            connection.port = self.dns.port;
        }
        options.use_hosts_file = ResolveHosts::Never;
        let config = ResolverConfig::from_parts(domain, search, servers);
        Resolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options).build()
    }
}
