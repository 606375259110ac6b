//! Looks for a second primary. Each primary grants the whole rate: if some gates reach one and some
//! the other, together they send at twice the rate.
//!
//! All places are asked that a gate may be led to: each address behind the store's name, over a few
//! connections, since a Service leads to any of its pods; each server that a sentinel names; each
//! node of a cluster. Another server that accepts the ask is a second primary.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;

use super::dial::{Dialer, StoreConnection};
use super::script::{Asker, key};
use super::sentinel;
use super::servers::Servers;
use crate::limit::Ask;
use crate::spec::{Endpoint, StoreAddress};

// === impl Dialer ===

impl Dialer {
    /// Returns the other servers to accept an ask, beside `first`.
    pub(super) async fn other_primaries(&self, first: &Servers, asker: Asker<'_>, ask: &Ask) -> Vec<Endpoint> {
        let id = run_id(first, &ask.shared.name).await;
        let tries = self.dial_candidates().await.into_iter().map(async |connection| {
            let servers = Servers::One(connection.redis.clone());
            is_another_primary(id.as_deref(), &servers, asker, ask).await.then_some(connection.at)?
        });
        let others: BTreeSet<Endpoint> = join_all(tries).await.into_iter().flatten().collect();
        others.into_iter().collect()
    }

    /// Dials all servers within a gate's reach.
    async fn dial_candidates(&self) -> Vec<StoreConnection> {
        let dialled = match &self.store.address {
            StoreAddress::Unix(_) => Vec::new(),
            StoreAddress::Tcp(at) => {
                let found = self.in_time(async { Ok(tokio::net::lookup_host((&*at.host, at.port)).await?) }).await;
                let found: BTreeSet<_> = found.into_iter().flatten().take(MOST_ADDRESSES).collect();
                let each = found.into_iter().flat_map(|to| [to; CONNECTIONS]);
                join_all(each.map(|to| self.dial_address(at, to))).await
            }
            StoreAddress::Sentinel { sentinels, primary } => {
                let named = join_all(sentinels.iter().map(|at| sentinel::ask(self, at, primary))).await;
                let named: BTreeSet<Endpoint> = named.into_iter().flatten().collect();
                join_all(named.iter().map(|at| self.dial_at(at))).await
            }
            StoreAddress::Cluster { seeds } => join_all(seeds.iter().map(|at| self.dial_at(at))).await,
        };
        dialled.into_iter().flatten().collect()
    }
}

/// True if this server is not the first one, and accepts the ask too.
async fn is_another_primary(first: Option<&str>, server: &Servers, asker: Asker<'_>, ask: &Ask) -> bool {
    let bucket = &ask.shared.name;
    let is_first = match (first, run_id(server, bucket).await) {
        (Some(first), Some(this)) => first == this,
        // The first one has the bucket, and so has a replica of it.
        _ => {
            let get = redis::cmd("HGETALL").arg(key(asker.prefix, bucket, None)).to_owned();
            server.query::<BTreeMap<String, String>>(bucket, &get).await.is_ok_and(|fields| !fields.is_empty())
        }
    };
    if is_first || asker.ask(server, ask).await.is_err() {
        return false;
    }
    _ = asker.forget(server, bucket).await;
    true
}

/// Returns the id of a server's run. Most users may not ask for it.
async fn run_id(server: &Servers, bucket: &Arc<str>) -> Option<String> {
    let info = server.query::<String>(bucket, &redis::cmd("INFO").arg("server").to_owned()).await.ok()?;
    info.lines().find_map(|line| line.strip_prefix("run_id:")).map(|id| id.trim().to_owned())
}

/// The most addresses behind a name.
const MOST_ADDRESSES: usize = 8;
/// The connections to each address. Behind a Service of two pods, all four miss the other pod in one
/// case of sixteen.
const CONNECTIONS: usize = 4;
