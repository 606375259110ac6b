//! Asks a store as a gate would, to find out what is wrong with it.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::PreparedStore;
use super::cluster::Cluster;
use super::fault::Fault;
use super::script::{self, key};
use super::servers::Servers;
use crate::clock::wall_clock;
use crate::limit::policy::{BucketPolicy, SharedPolicy};
use crate::limit::{Ask, SharedLimits};
use crate::spec::{Endpoint, StoreAddress};

/// The findings of a probe.
#[derive(Clone, Debug, Default)]
pub struct Probed {
    /// The time from a question to its answer.
    pub took: Duration,
    /// The time by which the server's clock differs from this machine's.
    pub clock_off: Duration,
    /// The gates that use each shared bucket, by the names of their pods.
    pub members: BTreeMap<Arc<str>, Vec<String>>,
    /// The shared buckets for which gates have different limits.
    pub differ: Vec<Arc<str>>,
    /// The policy by which the server may drop keys, where it tells and may.
    pub evicts: Option<String>,
    /// The servers that have the buckets, unless there is but one at a Unix socket.
    pub at: Vec<Endpoint>,
    /// Other servers that take questions for the same buckets.
    pub others: Vec<Endpoint>,
}

/// The reason why a store is of no use, and what to do about it.
#[derive(Clone, Debug)]
pub struct Broken {
    pub what: String,
    pub remedy: String,
}

// === impl PreparedStore ===

impl PreparedStore {
    /// Connects, runs the script for a bucket of its own, which it removes, and looks at these
    /// shared buckets.
    ///
    /// # Errors
    /// A gate would get no answer.
    pub async fn probe(&self, buckets: &[Arc<str>]) -> Result<Probed, Broken> {
        self.look(buckets).await.map_err(|fault| Broken { what: fault.what(), remedy: fault.remedy() })
    }

    async fn look(&self, buckets: &[Arc<str>]) -> Result<Probed, Fault> {
        let store = &self.0.store;
        let mut connection = None;
        let mut cluster = None;
        let mut redis = match &store.address {
            StoreAddress::Cluster { seeds } => {
                let nodes = Arc::new(Cluster::new(Arc::clone(&self.0), seeds.clone()));
                Servers::Cluster(Arc::clone(cluster.insert(nodes)))
            }
            _ => Servers::from(&mut connection.insert(self.0.dial().await?).redis),
        };
        let name: Arc<str> = format!("doctor-{:016x}", RandomState::new().hash_one(())).into();
        let ask = ask(&name);
        script::ask(redis.clone(), (&ask, &store.prefix, LABEL)).await?;
        let others = self.0.other_primaries(&mut redis, &ask, LABEL).await;
        let began = self.0.clock.now();
        script::ask(redis.clone(), (&Ask { leave: true, ..ask }, &store.prefix, LABEL)).await?;
        let mut probed = Probed { took: self.0.clock.now() - began, others, ..Probed::default() };
        script::forget(&mut redis, (&name, &store.prefix)).await?;
        let (seconds, micros) = redis.query::<(u64, u32)>(&name, &redis::cmd("TIME")).await?;
        let theirs = Duration::new(seconds, 0) + Duration::from_micros(micros.into());
        let ours = wall_clock().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
        probed.clock_off = theirs.abs_diff(ours);
        for bucket in buckets {
            let get = redis::cmd("HGETALL").arg(key(&store.prefix, bucket, None)).to_owned();
            let fields = redis.query::<BTreeMap<String, String>>(bucket, &get).await?;
            let members = living(&fields);
            let limits: Vec<_> = members.iter().map(|member| &member.limits).collect();
            if limits.windows(2).any(|two| two[0] != two[1]) {
                probed.differ.push(Arc::clone(bucket));
            }
            let labels = members.into_iter().map(|member| member.label).collect();
            probed.members.insert(Arc::clone(bucket), labels);
        }
        probed.evicts = evicts(&mut redis, &name).await;
        probed.at = match cluster {
            Some(cluster) => cluster.homes(),
            None => connection.and_then(|connection| connection.at).into_iter().collect(),
        };
        Ok(probed)
    }
}

/// A gate as the store knows it.
struct Member {
    label: String,
    limits: [String; 2],
}

/// Returns the members that asked within the last minute.
fn living(fields: &BTreeMap<String, String>) -> Vec<Member> {
    let last: u64 = fields.get("n").and_then(|last| last.parse().ok()).unwrap_or_default();
    let member = |(name, value): (&String, &String)| {
        let words: Vec<&str> = value.split(' ').collect();
        let [_, seen, _, _, period, burst, label, ..] = words[..] else { return None };
        let seen: u64 = seen.parse().ok()?;
        let lives = name.starts_with("m:") && seen.saturating_add(script::MEMBER) >= last;
        let label = label.chars().filter(char::is_ascii_graphic).take(super::LONGEST_LABEL).collect();
        lives.then(|| Member { label, limits: [period.to_owned(), burst.to_owned()] })
    };
    fields.iter().filter_map(member).collect()
}

/// Returns the policy by which the server may drop keys. Most users may not ask.
async fn evicts(redis: &mut Servers, name: &Arc<str>) -> Option<String> {
    let get = redis::cmd("CONFIG").arg("GET").arg("maxmemory-policy").to_owned();
    let told = redis.query::<BTreeMap<String, String>>(name, &get).await.ok()?;
    let policy = told.get("maxmemory-policy")?.chars().filter(char::is_ascii_graphic).take(40).collect::<String>();
    (policy != "noeviction").then_some(policy)
}

/// Returns a question that wants nothing.
fn ask(name: &str) -> Ask {
    let bucket = BucketPolicy::new(1.0, NonZeroU32::MIN);
    let shared = SharedPolicy::new(name);
    Ask::new(1, SharedLimits::new(&bucket, &shared), Arc::new(shared))
}

/// The name under which the store sees it.
const LABEL: &str = "doctor";
