//! A gate for many clusters: the calls below `/c/NAME/` are for the cluster `NAME`.
//!
//! Each cluster has a gate of its own, made at the first call from the settings of the hub (or of the
//! pattern in `per_cluster` that its name matches). The name is compared byte for byte, and what
//! follows it is the path of the call, unchanged: no spelling of a path leads to another cluster.

use std::collections::BTreeMap;
use std::future::ready;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::Either;
use http::uri::PathAndQuery;
use http::{Request, StatusCode, Uri};
use tokio_util::sync::CancellationToken;

use super::admission::PendingCall;
use super::gate::Gate;
use super::options::{Options, Past};
use super::section::{Branch, Section};
use super::siblings::Siblings;
use super::stack::{self, PendingAnswer, Router};
use crate::bind::BindError;
use crate::classify::number_of_origin;
use crate::clock::Clock;
use crate::credentials::{Injector, Target};
use crate::spec::ClusterPath;
use crate::telemetry::meters::{LabelCap, RESOURCES, as_f64};
use crate::telemetry::{self, Sampler, table};
use crate::upstream::Inbound;
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
#[derive(derive_more::Debug)]
#[debug("{version}")]
pub struct HubCluster {
    /// A number that differs for another description.
    pub version: u64,
    /// The pattern with limits for this cluster; `None` for the gate's own.
    pub limits: Option<Arc<str>>,
    /// Finds its address and credentials, or says what is wrong with them.
    pub open: Box<dyn Fn() -> Result<OpenCluster, String> + Send + Sync>,
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
    sampler: Arc<Sampler>,
    clusters: Current<HubClusters>,
    /// The sections for patterns with limits of their own.
    limits: Mutex<BTreeMap<Arc<str>, Arc<Section>>>,
    gates: Siblings<Arc<str>>,
    /// Counts the calls of clusters for as long as the hub exists.
    counting: Arc<Sampler>,
}

/// Why a call reaches no cluster.
#[derive(Debug, thiserror::Error)]
enum NoCluster {
    #[error("the path is not below a cluster; expected /c/NAME/ and the path of the call")]
    Path,
    #[error("there is no cluster {0:?}; expected /c/NAME/ with the name of one of this gate's clusters")]
    Unknown(String),
    #[error("the cluster {0:?} cannot be called: {1}")]
    Unusable(String, String),
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
        let sampler = Arc::clone(&bound.sampler);
        let hub = Arc::new_cyclic(|hub: &Weak<Self>| {
            let gate = Arc::clone(&section.name);
            let labels = LabelCap::new(RESOURCES);
            let gates = Siblings::new(clock, move |cluster: &Arc<str>, decision, more| {
                table::HUB_CALLS.counter(&[&gate, labels.value(cluster), decision]).increment(more);
            });
            let hub = Weak::clone(hub);
            let counting: Arc<Sampler> = Arc::new(move |_| hub.upgrade().iter().for_each(|hub| hub.sample()));
            let clusters = Current::new(HubClusters::default());
            Self { section, sampler, clusters, limits: Mutex::default(), gates, counting }
        });
        telemetry::metrics().sample_by(&hub.counting);
        hub.adopt(clusters);
        let gate = Gate::listen(bound, Some(Arc::clone(&hub) as _), stop.clone());
        tokio::spawn(tidy(Arc::downgrade(&hub), clock, stop));
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
    pub fn carrier(&self, target: &str) -> Result<(Arc<Gate>, String), String> {
        let path = ClusterPath::of(target).ok_or(NoCluster::Path).map_err(|error| error.to_string())?;
        let gate = self.gate(path.name).map_err(|error| error.to_string())?;
        Ok((gate, path.below.to_owned()))
    }

    /// Returns the gate of a cluster. If there is none yet, it is made.
    fn gate(&self, name: &str) -> Result<Arc<Gate>, NoCluster> {
        let clusters = self.clusters.get();
        let found = clusters.clusters.get_key_value(name);
        let (name, cluster) = found.ok_or_else(|| NoCluster::Unknown(name.to_owned()))?;
        // Other limits need another gate, too.
        let version = BuildHasherDefault::<DefaultHasher>::default().hash_one((cluster.version, &cluster.limits));
        if let Some(gate) = self.gates.find(name, version) {
            return Ok(gate);
        }
        // Before the lock: slow or broken files of one cluster hold up no other.
        let opened = (cluster.open)().map_err(|why| NoCluster::Unusable(name.to_string(), why));
        let OpenCluster { target, tls, injector, .. } = opened?;
        let injector = Arc::new(injector);
        let mount = ClusterPath::mount(name);
        let unbounded = |_| NoCluster::Unknown(name.to_string());
        self.gates.meet(name, version, usize::MAX, unbounded, |before| {
            let point = |options: &mut upstream::Options| {
                options.target = target.clone();
                options.tls.clone_from(&tls);
                options.injector = Arc::clone(&injector);
                options.mount.clone_from(&mount);
            };
            let limits = cluster.limits.as_ref().and_then(|pattern| lock(&self.limits).get(pattern).cloned());
            let section = limits.unwrap_or_else(|| Arc::clone(&self.section));
            let branch = Branch { name: Arc::clone(name), number: number_of_origin(name), point: &point };
            let gate = Gate::of(section, branch, Arc::clone(&self.sampler));
            gate.follow(self.section.gates().first(), before);
            tracing::debug!(gate = &*self.section.name, cluster = &**name, "first call to a cluster");
            Ok(gate)
        })
    }

    fn sample(&self) {
        table::HUB_CLUSTERS.gauge(&[&self.section.name]).set(as_f64(self.gates.len()));
        self.gates.sample();
    }

    /// Finds the gate for a request, and gives the request the path that the cluster gets.
    fn route(&self, request: &mut Request<Inbound>) -> Result<Arc<Gate>, NoCluster> {
        let target = request.uri().path_and_query().map_or("", PathAndQuery::as_str);
        let path = ClusterPath::of(target).ok_or(NoCluster::Path)?;
        let below = PathAndQuery::try_from(path.below).map_err(|_| NoCluster::Path)?;
        let gate = self.gate(path.name)?;
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(below);
        *request.uri_mut() = Uri::from_parts(parts).map_err(|_| NoCluster::Path)?;
        Ok(gate)
    }
}

impl Router for Hub {
    fn answer(&self, mut request: Request<Inbound>, client: Option<&Arc<str>>) -> PendingAnswer {
        match self.route(&mut request) {
            Ok(gate) => {
                let answered = stack::answer(Arc::clone(gate.own()), PendingCall::new(request, client));
                Either::Right(Box::pin(async move {
                    let response = answered.await;
                    drop(gate); // held until the head has come; its connections show the rest
                    response
                }))
            }
            Err(why) => {
                let status = match why {
                    NoCluster::Path | NoCluster::Unknown(_) => StatusCode::NOT_FOUND,
                    NoCluster::Unusable(..) => StatusCode::SERVICE_UNAVAILABLE,
                };
                table::GUARDED.counter(&[&self.section.name, "cluster"]).increment(1);
                tracing::debug!(gate = &*self.section.name, %why, "refused a call to no cluster");
                let why = match why {
                    // The reason names files and users, and the client is not known yet.
                    NoCluster::Unusable(name, _) if self.section.config.get().options.clients.is_some() => {
                        NoCluster::Unusable(name, "the gate's log says why".to_owned())
                    }
                    why => why,
                };
                Either::Left(ready(Ok(self.section.responder.turned_away(status, &why, request.method()))))
            }
        }
    }
}

/// Drops the gates of idle clusters regularly.
async fn tidy(hub: Weak<Hub>, clock: Clock, stop: CancellationToken) {
    while stop.run_until_cancelled(clock.sleep(TIDY_EVERY)).await.is_some() {
        let Some(hub) = hub.upgrade() else { return };
        hub.gates.tidy(IDLE);
    }
}

/// How long the limits of an idle cluster are kept, as those of an idle host by default.
const IDLE: Duration = Duration::from_secs(600);
const TIDY_EVERY: Duration = Duration::from_secs(10);
