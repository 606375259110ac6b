//! Looks for a second primary. Each grants the whole rate, so that gates whose questions reach two
//! of them send twice what is allowed.
//!
//! Whatever a gate may be led to is asked besides: each address behind the store's name, over a few
//! connections, since a Service leads to any of its pods; each server that a sentinel names; each
//! node of a cluster. A server that takes a question, and is not the one that took the first, is a
//! primary of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::join_all;

use super::dial::{Connection, Dialer};
use super::fault::Fault;
use super::script::{self, key};
use super::sentinel;
use super::servers::Servers;
use crate::limit::Ask;
use crate::spec::{Endpoint, StoreAddress};

/// A place where a server may be.
enum Place {
    /// One of the addresses behind a name, which its certificate is for.
    Behind(Endpoint, SocketAddr),
    At(Endpoint),
}

// === impl Dialer ===

impl Dialer {
    /// Returns the other servers that take questions for the bucket of this one, which a server has
    /// just taken.
    pub(super) async fn other_primaries(&self, taken_by: &mut Servers, ask: &Ask, label: &str) -> Vec<Endpoint> {
        let first = run(taken_by, &ask.shared.name).await;
        let tries = self.places().await.into_iter().map(async |place| {
            let connection = self.dial_place(&place).await.ok()?;
            self.is_another(first.as_deref(), &connection, (ask, label)).await.then_some(connection.at)?
        });
        let others: BTreeSet<Endpoint> = join_all(tries).await.into_iter().flatten().collect();
        others.into_iter().collect()
    }

    /// Returns the places that a question may be led to.
    async fn places(&self) -> Vec<Place> {
        match &self.store.address {
            StoreAddress::Unix(_) => Vec::new(),
            StoreAddress::Tcp(at) => {
                let found = self.in_time(async { Ok(tokio::net::lookup_host((&*at.host, at.port)).await?) }).await;
                let found: BTreeSet<_> = found.into_iter().flatten().take(MOST_ADDRESSES).collect();
                let each = found.into_iter().flat_map(|to| [to; CONNECTIONS]);
                each.map(|to| Place::Behind(at.clone(), to)).collect()
            }
            StoreAddress::Sentinel { sentinels, primary } => {
                let named = join_all(sentinels.iter().map(|at| sentinel::ask(self, at, primary))).await;
                let named: BTreeSet<Endpoint> = named.into_iter().flatten().collect();
                named.into_iter().map(Place::At).collect()
            }
            StoreAddress::Cluster { seeds } => seeds.iter().cloned().map(Place::At).collect(),
        }
    }

    async fn dial_place(&self, place: &Place) -> Result<Connection, Fault> {
        match place {
            Place::Behind(name, to) => self.dial_address(name, *to).await,
            Place::At(at) => self.dial_at(at).await,
        }
    }

    /// True if this server is another than the first, and takes the question too.
    async fn is_another(&self, first: Option<&str>, connection: &Connection, (ask, label): (&Ask, &str)) -> bool {
        let name = &ask.shared.name;
        let prefix = &self.store.prefix;
        let mut server = Servers::One(connection.redis.clone());
        let is_first = match (first, run(&mut server, name).await) {
            (Some(first), Some(this)) => first == this,
            // The first one has the bucket, and so has a replica of it.
            _ => {
                let get = redis::cmd("HGETALL").arg(key(prefix, name, None)).to_owned();
                server.query::<BTreeMap<String, String>>(name, &get).await.is_ok_and(|fields| !fields.is_empty())
            }
        };
        if is_first || script::ask(server.clone(), (ask, prefix, label)).await.is_err() {
            return false;
        }
        _ = script::forget(&mut server, (name, prefix)).await;
        true
    }
}

/// Returns the number that a server has given itself for this run. Most users may not ask for it.
async fn run(server: &mut Servers, name: &Arc<str>) -> Option<String> {
    let told = server.query::<String>(name, &redis::cmd("INFO").arg("server").to_owned()).await.ok()?;
    told.lines().find_map(|line| line.strip_prefix("run_id:")).map(|run| run.trim().to_owned())
}

/// The most addresses behind a name that are asked.
const MOST_ADDRESSES: usize = 8;
/// The connections to each of them. Behind a Service of two pods, all lead to the same one in one
/// of sixteen cases.
const CONNECTIONS: usize = 4;
