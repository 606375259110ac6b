//! Sends requests to a store as a gate would, for `tidegate doctor`.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::PreparedStore;
use super::fault::Fault;
use super::script::{self, Asker, key};
use super::servers::Servers;
use crate::limit::policy::{BucketPolicy, SharedPolicy};
use crate::limit::{Ask, SharedLimits};
use crate::spec::Endpoint;

/// The findings of a probe about a store.
#[derive(Clone, Debug, Default)]
pub struct ProbeReport {
    /// The time from a request to its answer.
    pub took: Duration,
    /// The gates sharing each bucket, by the names of their pods.
    pub members: BTreeMap<Arc<str>, Vec<String>>,
    /// The buckets shared by gates with different limits.
    pub differ: Vec<Arc<str>>,
    /// The server's `maxmemory-policy`, if it lets the server drop keys; `None` if not, or if it is
    /// unknown.
    pub evicts: Option<String>,
    /// The servers the buckets are on; empty for a Unix socket.
    pub at: Vec<Endpoint>,
}

/// The reason why a store does not answer, and the remedy.
#[derive(Clone, Debug)]
pub struct ProbeFailure {
    /// The fault in words.
    pub what: String,
    /// What a person should do about the fault.
    pub remedy: &'static str,
}

// === impl PreparedStore ===

impl PreparedStore {
    /// Connects, runs the script for a temporary bucket, and looks up these shared buckets.
    ///
    /// # Errors
    /// The reason why a gate would get no answer.
    pub async fn probe(&self, buckets: &[Arc<str>]) -> Result<ProbeReport, ProbeFailure> {
        self.look(buckets).await.map_err(|fault| ProbeFailure { what: fault.what(), remedy: fault.remedy() })
    }

    async fn look(&self, buckets: &[Arc<str>]) -> Result<ProbeReport, Fault> {
        let store = &self.0.store;
        self.0.passwords().await?;
        let redis = Servers::of(&self.0);
        let name: Arc<str> = format!("doctor-{:016x}", RandomState::new().hash_one(())).into();
        let asker = Asker { prefix: &store.prefix, label: "doctor" };
        let ask = ask(&name);
        asker.ask(&redis, &ask).await?;
        let began = self.0.clock.now();
        asker.ask(&redis, &Ask { leave: true, ..ask }).await?;
        let mut probed = ProbeReport { took: self.0.clock.now() - began, ..ProbeReport::default() };
        asker.forget(&redis, &name).await?;
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
        probed.evicts = evicts(&redis, &name).await;
        probed.at = redis.at();
        Ok(probed)
    }
}

/// A gate, as the store has recorded it.
struct Member {
    label: String,
    limits: [String; 2],
}

/// Returns the gates with a request in the last minute before the bucket's latest one.
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

/// Returns the server's policy for dropping keys, if it may drop some. Most users are not allowed
/// to read the policy; then the result is `None`.
async fn evicts(redis: &Servers, name: &Arc<str>) -> Option<String> {
    let get = redis::cmd("CONFIG").arg("GET").arg("maxmemory-policy").to_owned();
    let settings = redis.query::<BTreeMap<String, String>>(name, &get).await.ok()?;
    let policy = settings.get("maxmemory-policy")?.chars().filter(char::is_ascii_graphic).take(40).collect::<String>();
    (policy != "noeviction").then_some(policy)
}

/// Makes a request for no tokens.
fn ask(name: &str) -> Ask {
    let bucket = BucketPolicy::new(1.0, NonZeroU32::MIN);
    let shared = SharedPolicy::new(name);
    Ask::new(1, SharedLimits::new(&bucket, &shared), Arc::new(shared))
}
