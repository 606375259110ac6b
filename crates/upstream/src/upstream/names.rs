//! Lookup of the upstream's addresses.
//!
//! The machine's resolver is queried for every connection, so that the hosts file and split DNS
//! apply to the gate as to any program. But if the hosts file maps the upstream's name to the gate
//! itself, name servers are queried directly (see [`dns`](super::dns)). If none answers, the last
//! good answer stays in use.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use super::dns::{Dns, LookupError};
use super::error::DialFailure;
use super::lock;
use crate::clock::Clock;
use crate::moment::Moment;

/// Looks up the addresses of one host name.
#[derive(Debug)]
pub(super) struct NameLookup {
    host: String,
    port: u16,
    /// The gate's own addresses.
    own: Vec<SocketAddr>,
    dns: Dns,
    pub(super) clock: Clock,
    /// The last good answer, and its time.
    known: Mutex<Option<(Vec<SocketAddr>, Moment)>>,
}

impl NameLookup {
    pub(super) fn new(host: String, port: u16, own: Vec<SocketAddr>, dns: Dns, clock: Clock) -> Self {
        Self { host, port, own, dns, clock, known: Mutex::new(None) }
    }

    /// Returns at least one address to connect to, none of them the gate's own.
    ///
    /// `limit` is the timeout of the whole connection attempt. If there is an old answer to use
    /// instead, the lookup may take only half of it.
    pub(super) async fn addresses(&self, limit: Duration) -> Result<Vec<SocketAddr>, DialFailure> {
        let limit = if self.last_good().is_some() { limit / 2 } else { limit };
        let failure = match tokio::time::timeout(limit, self.ask()).await {
            Ok(Ok(found)) if found.is_empty() => LookupError::Unanswered(io::Error::other("the name has no address")),
            Ok(Ok(mut found)) => {
                // To dial the gate itself would go round in circles until something runs out.
                found.retain(|address| !self.is_own(*address));
                if found.is_empty() {
                    return Err(DialFailure::Itself);
                }
                self.judge(&mut found)?;
                *lock(&self.known) = Some((found.clone(), self.clock.now()));
                return Ok(found);
            }
            Ok(Err(failure)) => failure,
            Err(_elapsed) => LookupError::Unanswered(io::Error::other(format!("no DNS answer within {limit:?}"))),
        };
        match (&failure, self.last_good()) {
            (LookupError::Unanswered(_), Some(known)) => {
                tracing::warn!(name = self.host, %failure, addresses = ?known, "cannot resolve this host name: its last known addresses stay in use");
                Ok(known)
            }
            _ => Err(DialFailure::Name(io::Error::other(failure))),
        }
    }

    /// Removes forbidden addresses. An error if none is left.
    fn judge(&self, found: &mut Vec<SocketAddr>) -> Result<(), DialFailure> {
        let Some(judge) = self.dns.judge else { return Ok(()) };
        let mut fault = None;
        found.retain(|address| judge(address.ip()).map_err(|why| fault = Some(why)).is_ok());
        fault.filter(|_| found.is_empty()).map_or(Ok(()), |why| Err(DialFailure::Forbidden(why)))
    }

    async fn ask(&self) -> Result<Vec<SocketAddr>, LookupError> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(vec![(address, self.port).into()]);
        }
        let with_port = |address: IpAddr| SocketAddr::new(address, self.port);
        if self.dns.in_hosts(&self.host).into_iter().map(with_port).any(|address| self.is_own(address)) {
            return Ok(self.dns.lookup(&self.host).await?.into_iter().map(with_port).collect());
        }
        // It does not tell "no answer" from "no such name", so the last answer holds for both.
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
        Ok(found.map_err(LookupError::Unanswered)?.collect())
    }

    fn is_own(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.own.iter().any(|own| {
            let listens = own.ip().to_canonical();
            own.port() == address.port() && (listens == ip || (listens.is_unspecified() && ip.is_loopback()))
        })
    }

    /// Returns true if a connection between these addresses leads to the gate's own listener.
    ///
    /// A gate may listen on all addresses of its machine, which are not known beforehand. But a
    /// connection to an address of the same machine also comes from that address.
    pub(super) fn is_own_connection(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        let on_this_machine = local.ip().to_canonical() == peer.ip().to_canonical();
        on_this_machine && self.own.iter().any(|own| own.port() == peer.port() && own.ip().is_unspecified())
    }

    fn last_good(&self) -> Option<Vec<SocketAddr>> {
        let known = lock(&self.known);
        known.as_ref().filter(|(_, at)| self.clock.now() - *at < STALE).map(|(known, _)| known.clone())
    }
}

/// How long an old answer may be used, as in RFC 8767. After that the address probably belongs to
/// another host.
const STALE: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_every_address_is_known_by_a_connection_whose_ends_are_on_one_machine() {
        let end = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let names = |own: &[&str]| {
            let own = own.iter().map(|text| end(text)).collect();
            NameLookup::new("api.test".to_owned(), 443, own, Dns::default(), Clock::start())
        };
        for (own, local, peer, expected) in [
            (&["0.0.0.0:8001"][..], "10.0.0.1:4000", "10.0.0.1:8001", true),
            (&["127.0.0.1:9", "[::]:8001"], "[fd00::2]:4000", "[fd00::2]:8001", true),
            (&["[::]:8001"], "10.0.0.1:4000", "[::ffff:10.0.0.1]:8001", true),
            (&["0.0.0.0:8001"], "10.0.0.1:4000", "10.0.0.2:8001", false),
            (&["0.0.0.0:8001"], "10.0.0.1:4000", "10.0.0.1:8002", false),
            (&["10.0.0.9:8001"], "10.0.0.1:4000", "10.0.0.1:8001", false),
        ] {
            assert_eq!(names(own).is_own_connection(end(local), end(peer)), expected, "{own:?}: {local} to {peer}");
        }
    }
}
