//! The status of all gates of the process, and the commands to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::effective;
use super::reloads::Reloads;
use crate::Current;
use crate::admin::control::{Ask, Bypass, BypassReport, Forget, ForgetReport, Operator};
use crate::classify::Glob;
use crate::clock::Clock;
use crate::moment::Moment;
use crate::proxy::{EgressListener, Gate, Hub, Origin};
use crate::spec::{Settings, ShowNames, Store};
use crate::status;
use crate::status::text::count;
use crate::store::{StoreHealth, Stores};

/// The running gates, sorted by name, and the egress listener.
pub(super) struct RunningGates {
    pub(super) gates: Vec<Arc<Gate>>,
    /// The hubs of gates for many clusters, by the gate's name.
    pub(super) hubs: BTreeMap<Arc<str>, Arc<Hub>>,
    pub(super) egress: Option<Arc<EgressListener>>,
}

/// The running gates, with the reloads and the stores of the process.
pub(crate) struct Operations {
    /// The gates in the configuration. A gate with hosts or clusters serves no calls itself, but is a
    /// template: the gates made from it for each host and port, or cluster, serve them.
    pub(super) gates: Vec<Arc<Gate>>,
    pub(super) hubs: BTreeMap<Arc<str>, Arc<Hub>>,
    pub(super) egress: Option<Arc<EgressListener>>,
    pub(super) reloads: Reloads,
    stores: Arc<Stores>,
    clock: Clock,
    /// Who may see names of objects on the admin port; a reload may change it.
    names: Current<ShowNames>,
}

// === impl Operations ===

impl Operations {
    /// Collects the gates and stores of a process at its start. `effective` is the text of its
    /// configuration.
    pub(super) fn new(
        running: RunningGates,
        stores: Arc<Stores>,
        settings: &Settings,
        effective: &str,
        clock: Clock,
    ) -> Self {
        let RunningGates { gates, hubs, egress } = running;
        let names = Current::new(settings.admin.show_names);
        Self { gates, hubs, egress, reloads: Reloads::new(clock, effective), stores, clock, names }
    }

    /// Applies the settings of a reload that concern operators.
    pub(crate) fn adopt(&self, settings: &Settings) {
        self.names.set(settings.admin.show_names);
    }

    /// Returns the gate of this name in the configuration, or all.
    fn named(&self, name: Option<&str>) -> Result<Vec<&Arc<Gate>>, String> {
        let named: Vec<_> = self.gates.iter().filter(|gate| name.is_none_or(|name| **gate.name() == *name)).collect();
        if named.is_empty() {
            return Err(no_such_gate(name.unwrap_or_default(), self.gates.iter().map(|gate| &**gate.name())));
        }
        Ok(named)
    }

    /// Returns the gates that a command concerns: those of [`Self::named`], and those made from them
    /// for hosts and clusters.
    fn meant(&self, name: Option<&str>) -> Result<Vec<Arc<Gate>>, String> {
        let with_origins = |gate: &Arc<Gate>| {
            let siblings = self.siblings(gate).into_iter().map(|(_, gate)| gate);
            [Arc::clone(gate)].into_iter().chain(siblings).collect::<Vec<_>>()
        };
        Ok(self.named(name)?.into_iter().flat_map(with_origins).collect())
    }

    /// Tells the stores of shared buckets that all gates have stopped.
    pub(super) async fn take_leave(&self) {
        let all = self.meant(None).unwrap_or_default();
        join_all(all.iter().map(|gate| gate.take_leave())).await;
    }

    /// Returns the gates made from a gate for single hosts or clusters, with their names.
    fn siblings(&self, gate: &Arc<Gate>) -> Vec<(String, Arc<Gate>)> {
        let clusters = self.hubs.get(gate.name()).map(|hub| hub.gates()).unwrap_or_default();
        let origins = self.egress.as_ref().map(|egress| egress.origins(gate.name())).unwrap_or_default();
        let origins = origins.into_iter().map(|(origin, gate)| (origin.host.to_string(), gate));
        origins.chain(clusters.into_iter().map(|(cluster, gate)| (cluster.to_string(), gate))).collect()
    }

    async fn shown(&self, gate: &Gate, names: bool) -> status::GateStatus {
        let shown = gate.status(names).await;
        if !gate.has_hosts() {
            return shown;
        }
        let listen = self.egress.iter().map(|egress| egress.status().listen).collect();
        status::GateStatus { listen, ..shown }
    }

    /// Returns the gate that serves a call: the one made for the call's host, if there is one.
    fn carrier(&self, gate: Arc<Gate>, headers: &HeaderMap) -> Arc<Gate> {
        let host = headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
        let host = host.and_then(|host| Some(Origin::read(host, Some(443)).ok()?.host.to_string()));
        let found = self.siblings(&gate).into_iter().find(|(of, _)| host.as_ref() == Some(of));
        found.map_or(gate, |(_, gate)| gate)
    }
}

impl Operator for Operations {
    fn show_names(&self) -> ShowNames {
        *self.names.get()
    }

    fn status(&self, names: bool) -> BoxFuture<'_, status::Status> {
        Box::pin(async move {
            let mut gates = Vec::with_capacity(self.gates.len());
            for gate in &self.gates {
                let siblings = self.siblings(gate);
                if siblings.is_empty() {
                    let mut shown = self.shown(gate, names).await;
                    if let Some(hub) = self.hubs.get(gate.name()) {
                        shown.upstream = format!("{}, none called yet", count(hub.count(), "cluster", "clusters"));
                    } else if gate.has_hosts() {
                        "no host yet".clone_into(&mut shown.upstream);
                    }
                    gates.push(shown);
                }
                for (host, sibling) in siblings {
                    let mut shown = self.shown(&sibling, names).await;
                    if gate.has_hosts() {
                        shown.upstream = format!("https://{host}");
                    }
                    gates.push(status::GateStatus { host, ..shown });
                }
            }
            let now = self.clock.now();
            status::Status {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                now_ms: self.clock.wall(now),
                uptime_seconds: (now - Moment::ZERO).as_secs_f64(),
                names_shown: names,
                config: self.reloads.config(),
                gates,
                egress: self.egress.as_ref().map(|egress| egress.status()),
                stores: self
                    .stores
                    .health()
                    .into_iter()
                    .map(|(store, health)| shown(&store, health, self.clock))
                    .collect(),
            }
        })
    }

    fn configuration(&self) -> String {
        effective::shown(&self.reloads.effective())
    }

    fn remark(&self) -> Option<String> {
        let bypassed: Vec<&str> =
            self.gates.iter().filter(|gate| gate.is_bypassed()).map(|gate| &**gate.name()).collect();
        (!bypassed.is_empty()).then(|| format!("bypass: {} lets everything through", bypassed.join(", ")))
    }

    fn egress_ca(&self) -> Option<String> {
        Some(self.egress.as_ref()?.ca()?.published())
    }

    fn explain<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Vec<status::Explanation>, String>> {
        Box::pin(async move {
            let (method, uri, headers) = request(ask)?;
            let mut explained = Vec::new();
            let mut no_cluster = None;
            for gate in self.named(ask.gate.as_deref())? {
                let Some(hub) = self.hubs.get(gate.name()) else {
                    explained.push(self.carrier(Arc::clone(gate), &headers).explain(&method, &uri, &headers));
                    continue;
                };
                match hub.carrier(&ask.path).await {
                    Ok((gate, below)) => {
                        let uri = below.parse().map_err(|error| format!("{below:?} is not a path: {error}"))?;
                        explained.push(gate.explain(&method, &uri, &headers));
                    }
                    Err(why) => no_cluster = Some(why.to_string()),
                }
            }
            match no_cluster {
                Some(why) if explained.is_empty() => Err(why),
                _ => Ok(explained),
            }
        })
    }

    fn forget<'a>(&'a self, order: &'a Forget) -> BoxFuture<'a, Result<Vec<ForgetReport>, String>> {
        Box::pin(async move {
            let pattern = order.keys.as_deref().map(|name| (name, Glob::new(name)));
            let mut forgotten: Vec<ForgetReport> = Vec::new();
            for gate in self.meant(order.gate.as_deref())? {
                let keys = match &pattern {
                    Some((whole, pattern)) => gate.forget(&|name: &str| name == *whole || pattern.matches(name)).await,
                    None => 0,
                };
                let lifted = if order.pauses { gate.lift_pauses(order.shared) } else { 0 };
                let paused = gate.pauses();
                let gate = gate.name().to_string();
                // The gates of origins follow their gate, and count with it.
                match forgotten.last_mut().filter(|last| last.gate == gate) {
                    Some(last) => {
                        last.keys += keys;
                        last.lifted += lifted;
                        last.paused += paused;
                    }
                    None => forgotten.push(ForgetReport { gate, keys, lifted, paused }),
                }
            }
            Ok(forgotten)
        })
    }

    fn bypass(&self, order: &Bypass) -> Result<Vec<BypassReport>, String> {
        let how_long = order.how_long();
        let until_ms = how_long.map(|how_long| self.clock.wall(self.clock.now() + how_long));
        let bypass = |gate: &Arc<Gate>| {
            gate.bypass(how_long);
            BypassReport { gate: gate.name().to_string(), until_ms }
        };
        let mut bypassed: Vec<BypassReport> = self.meant(order.gate.as_deref())?.iter().map(bypass).collect();
        bypassed.dedup_by(|one, other| one.gate == other.gate); // the gates of its origins
        Ok(bypassed)
    }
}

/// Returns the status of a store, for the status page.
fn shown(store: &Store, health: StoreHealth, clock: Clock) -> status::StoreStatus {
    status::StoreStatus {
        name: store.name.to_string(),
        address: store.address.url(store.has_tls),
        servers: health.servers.iter().map(ToString::to_string).collect(),
        up: health.is_up,
        since_ms: health.since.map(|since| clock.wall(since)),
        rtt_seconds: health.took.map(|took| took.as_secs_f64()),
        error: health.error,
    }
}

/// Returns the error text for an unknown gate, with the names of all gates.
pub(crate) fn no_such_gate<'a>(name: &str, gates: impl Iterator<Item = &'a str>) -> String {
    format!("there is no gate {name:?}; the gates are: {}", gates.collect::<Vec<_>>().join(", "))
}

/// Builds the request to be explained, as the gate would receive it.
pub(crate) fn request(ask: &Ask) -> Result<(Method, Uri, HeaderMap), String> {
    let method = ask.method.to_ascii_uppercase().parse();
    let method = method.map_err(|_| format!("{:?} is not a method, expected one such as GET or PATCH", ask.method))?;
    let uri: Uri = ask.path.parse().map_err(|error| format!("{:?} is not a path: {error}", ask.path))?;
    if !uri.path().starts_with('/') || uri.authority().is_some() {
        return Err(format!("{:?} is not a path, expected one such as /api/v1/namespaces/prod/pods/web", ask.path));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &ask.headers {
        let name: HeaderName = name.parse().map_err(|_| format!("{name:?} is not a header name"))?;
        let value: HeaderValue = value.parse().map_err(|_| format!("{value:?} is not valid in the header {name}"))?;
        headers.append(name, value);
    }
    Ok((method, uri, headers))
}
