//! A gate for many clusters: the calls below `/c/NAME/` are for the cluster `NAME`.
//!
//! Each cluster has a gate of its own, made at the first call from the settings of the hub (or of the
//! pattern in `per_cluster` that its name matches). The name is compared byte for byte, and what
//! follows it is the path of the call, unchanged: no spelling of a path leads to another cluster.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::Either;
use http::uri::PathAndQuery;
use http::{Method, Response, StatusCode, Uri};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::admission::PendingCall;
use super::body::Body;
use super::gate::Gate;
use super::options::{Options, Past};
use super::parts::GateParts;
use super::section::{Branch, Section};
use super::siblings::Siblings;
use super::stack::{self, PendingAnswer, Router};
use crate::bind::BindError;
use crate::classify::number_of_origin;
use crate::clock::Clock;
use crate::credentials::{Injector, Target};
use crate::moment::Moment;
use crate::spec::ClusterPath;
use crate::telemetry::meters::as_f64;
use crate::telemetry::table;
use crate::{Current, lock, spec, tls, upstream};

/// The clusters behind a gate, and the limits of some of them.
#[derive(Debug, Default)]
pub struct HubClusters {
    /// The clusters by name.
    pub clusters: BTreeMap<Arc<str>, HubCluster>,
    /// The gate's settings with other limits, by the patterns that clusters refer to.
    pub limits: BTreeMap<Arc<str>, spec::Gate>,
}

/// A cluster behind a gate.
#[derive(Clone, derive_more::Debug)]
#[debug("{version}")]
pub struct HubCluster {
    /// A number that differs for another description or other limits.
    version: u64,
    /// The pattern with limits for this cluster; `None` for the gate's own.
    limits: Option<Arc<str>>,
    open: Arc<dyn Fn() -> Result<OpenCluster, String> + Send + Sync>,
    /// The last failure to open it. The lock is held while its gate is made.
    failure: Arc<tokio::sync::Mutex<Option<OpenFailure>>>,
}

/// What is wrong with a cluster, and since when that is known.
struct OpenFailure {
    at: Moment,
    why: String,
}

/// The address of a cluster, and the access to it.
#[derive(Debug)]
pub struct OpenCluster {
    /// The address of the API server.
    pub target: Target,
    /// The TLS client for it; `None` for plain HTTP.
    pub tls: Option<Arc<tls::Client>>,
    /// Sets the credentials of requests.
    pub injector: Injector,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// A running gate for many clusters.
#[derive(derive_more::Debug)]
#[debug("Hub {:?}", section.name)]
pub struct Hub {
    section: Arc<Section>,
    clusters: Current<HubClusters>,
    /// The sections for patterns with limits of their own.
    limits: Mutex<BTreeMap<Arc<str>, Arc<Section>>>,
    gates: Siblings<Arc<str>>,
}

/// Why a call reaches no cluster.
#[derive(Debug, thiserror::Error)]
pub enum NoCluster {
    /// The path names none.
    #[error("the path is not below a cluster; expected /c/NAME/ and the path of the call")]
    Path,
    /// No cluster has this name.
    #[error("there is no cluster {0:?}; expected /c/NAME/ with the name of one of this gate's clusters")]
    Unknown(String),
    /// The cluster of this name cannot be opened, for this reason.
    #[error("the cluster {0:?} cannot be called: {1}")]
    Unusable(String, String),
}

// === impl HubCluster ===

impl HubCluster {
    /// Describes a cluster; `version` differs for another description, and `limits` is the pattern
    /// with limits for it. `open` reads its files, or says what is wrong with them.
    pub fn new(
        version: u64,
        limits: Option<Arc<str>>,
        open: impl Fn() -> Result<OpenCluster, String> + Send + Sync + 'static,
    ) -> Self {
        let version = BuildHasherDefault::<DefaultHasher>::default().hash_one((version, &limits));
        Self { version, limits, open: Arc::new(open), failure: Arc::default() }
    }

    /// Reads the files of the cluster. It blocks.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn open(&self) -> Result<OpenCluster, String> {
        (self.open)()
    }
}

// === impl Hub ===

impl Hub {
    /// Starts a gate for many clusters; see [`Gate::go_on`]. The gate itself serves no call.
    ///
    /// # Errors
    /// A socket could not be bound.
    pub async fn start(
        options: Options,
        clusters: HubClusters,
        past: Past,
        clock: Clock,
        stop: CancellationToken,
    ) -> Result<(Gate, Arc<Self>), BindError> {
        let bound = Gate::bind(options, past, clock).await?;
        let section = Arc::clone(&bound.section);
        let hub = Arc::new(Self {
            section,
            clusters: Current::new(HubClusters::default()),
            limits: Mutex::default(),
            gates: Siblings::new(clock),
        });
        hub.adopt(clusters);
        tokio::spawn(tidy(Arc::downgrade(&hub), clock, stop.clone()));
        let gate = Gate::listen(bound, Some(Arc::clone(&hub) as _), stop);
        Ok((gate, hub))
    }

    /// Replaces the clusters and their limits; call it after [`Gate::reconfigure`]. Calls under way go
    /// on, those to a cluster that has gone too.
    pub fn adopt(&self, clusters: HubClusters) {
        let mut limits = lock(&self.limits);
        limits.retain(|pattern, _| clusters.limits.contains_key(pattern));
        let config = self.section.config.get();
        for (pattern, gate) in &clusters.limits {
            if let Some(section) = limits.get(pattern) {
                section.reconfigure(Options { gate: gate.clone(), ..config.options.clone() });
            } else {
                limits.insert(Arc::clone(pattern), self.section.with_limits(gate.clone()));
            }
        }
        self.clusters.set(clusters);
    }

    /// Returns the gates made so far, by cluster.
    pub fn gates(&self) -> Vec<(Arc<str>, Arc<Gate>)> {
        self.gates.all()
    }

    /// Returns the number of clusters.
    pub fn count(&self) -> usize {
        self.clusters.get().clusters.len()
    }

    /// Returns the gate for a call with this path and query, and the path and query that its cluster
    /// gets.
    ///
    /// # Errors
    /// The call reaches no cluster; the text says why.
    pub async fn carrier<'a>(self: &Arc<Self>, target: &'a str) -> Result<(Arc<Gate>, &'a str), NoCluster> {
        let path = ClusterPath::of(target).ok_or(NoCluster::Path)?;
        let late = |_| Err(NoCluster::Unusable(path.name.to_owned(), LATE.to_owned()));
        let gate = tokio::time::timeout(READ_WITHIN, self.gate(path.name)).await.unwrap_or_else(late);
        Ok((gate?, path.below))
    }

    /// Returns the gate of a cluster. If there is none yet, one of the calls that come meanwhile makes
    /// it, and the others wait. Calls to other clusters do not.
    async fn gate(self: &Arc<Self>, name: &str) -> Result<Arc<Gate>, NoCluster> {
        let clusters = self.clusters.get();
        let found = clusters.clusters.get_key_value(name);
        let (name, cluster) = found.ok_or_else(|| NoCluster::Unknown(name.to_owned()))?;
        if let Some(gate) = self.gates.find(name, cluster.version) {
            return Ok(gate);
        }
        let mut failure = Arc::clone(&cluster.failure).lock_owned().await;
        if let Some(gate) = self.gates.find(name, cluster.version) {
            return Ok(gate);
        }
        let unusable = |why| NoCluster::Unusable(name.to_string(), why);
        let now = self.section.clock.now();
        if let Some(last) = failure.as_ref().filter(|last| now - last.at < REMEMBERED) {
            return Err(unusable(last.why.clone()));
        }
        let hub = Arc::clone(self);
        let at = Arc::clone(name);
        let cluster = cluster.clone();
        // On another thread: this one carries calls. It holds the lock to the end, so that callers
        // who leave do not read slow files many times.
        let made = spawn_blocking(move || {
            let made = hub.make(&at, &cluster);
            *failure = made.as_ref().err().map(|why| OpenFailure { at: hub.section.clock.now(), why: why.clone() });
            made
        });
        made.await.unwrap_or_else(|fault| Err(fault.to_string())).map_err(unusable)
    }

    /// Makes the gate of a cluster. It goes on with what the gate of another version remembers.
    fn make(&self, name: &Arc<str>, cluster: &HubCluster) -> Result<Arc<Gate>, String> {
        let OpenCluster { target, tls, injector, .. } = cluster.open()?;
        let injector = Arc::new(injector);
        let mount = ClusterPath::mount(name);
        let point = |options: &mut upstream::Options| {
            options.target = target.clone();
            options.tls.clone_from(&tls);
            options.injector = Arc::clone(&injector);
            options.mount.clone_from(&mount);
        };
        let limits = cluster.limits.as_ref().and_then(|pattern| lock(&self.limits).get(pattern).cloned());
        let section = limits.unwrap_or_else(|| Arc::clone(&self.section));
        let calls = self.gates.counters(&table::HUB_CALLS, &self.section.name, name);
        let branch = Branch { name: Arc::clone(name), number: number_of_origin(name), calls, point: &point };
        let gate = Gate::of(section, branch);
        gate.follow(self.section.gates().first(), self.gates.of(name).as_deref());
        tracing::debug!(gate = &*self.section.name, cluster = &**name, "first call to a cluster");
        let gate = self.gates.put(name, cluster.version, gate);
        self.show_number();
        Ok(gate)
    }

    fn show_number(&self) {
        table::HUB_CLUSTERS.gauge(&[&self.section.name]).set(as_f64(self.gates.len()));
    }

    /// Finds the gate for a call, and gives the call the path that the cluster gets.
    async fn route(self: &Arc<Self>, uri: &mut Uri) -> Result<Arc<Gate>, NoCluster> {
        let target = uri.path_and_query().map_or("", PathAndQuery::as_str);
        let (gate, below) = self.carrier(target).await?;
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(below.try_into().map_err(|_| NoCluster::Path)?);
        *uri = Uri::from_parts(parts).map_err(|_| NoCluster::Path)?;
        Ok(gate)
    }

    fn refuse(&self, why: &NoCluster, method: &Method) -> Response<Body> {
        let status = match why {
            NoCluster::Path | NoCluster::Unknown(_) => StatusCode::NOT_FOUND,
            NoCluster::Unusable(..) => StatusCode::SERVICE_UNAVAILABLE,
        };
        table::GUARDED.counter(&[&self.section.name, "cluster"]).increment(1);
        tracing::debug!(gate = &*self.section.name, %why, "refused a call to no cluster");
        self.section.responder.turned_away(status, why, method)
    }
}

impl Router for Hub {
    fn answer(self: Arc<Self>, own: &Arc<GateParts>, mut call: PendingCall) -> PendingAnswer {
        let own = Arc::clone(own);
        Either::Right(Box::pin(async move {
            // First: an unknown client must not learn which clusters there are.
            let known = stack::identify(&own, &mut call).await;
            if known.is_err() {
                return stack::answer(own, call, Some(known)).await;
            }
            match self.route(&mut call.parts.uri).await {
                // The gate is held until the head has come; its connections show the rest.
                Ok(gate) => stack::answer(Arc::clone(gate.own()), call, Some(known)).await,
                Err(why) => Ok(self.refuse(&why, &call.parts.method)),
            }
        }))
    }
}

/// Drops the gates of idle clusters regularly.
async fn tidy(hub: Weak<Hub>, clock: Clock, stop: CancellationToken) {
    while stop.run_until_cancelled(clock.sleep(TIDY_EVERY)).await.is_some() {
        let Some(hub) = hub.upgrade() else { return };
        hub.gates.tidy(IDLE);
        hub.show_number();
    }
}

/// How long the limits of an idle cluster are kept, as those of an idle host by default.
const IDLE: Duration = Duration::from_secs(600);
const TIDY_EVERY: Duration = Duration::from_secs(10);
/// The longest time that a call waits for a cluster's files: a volume may hang.
const READ_WITHIN: Duration = Duration::from_secs(10);
const LATE: &str = "its files were not read within 10 s; look at the volume that holds them";
/// How long calls are refused without another look at a cluster that cannot be called.
const REMEMBERED: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
