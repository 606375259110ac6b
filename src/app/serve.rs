//! `run`: starts the gates and the admin port, serves, and shuts down in order.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use tokio::runtime::Builder;
use tokio::signal::unix::SignalKind;
use tokio_util::sync::CancellationToken;

use super::egress::PreparedEgress;
use super::gate::PreparedGate;
use super::operations::{Operations, RunningGates};
use super::prepare::{PreparedProcess, call_log};
use super::reload::{Content, Reloader};
use super::signals::{self, StopSignals};
use super::source::Sources;
use super::state_file::StateFile;
use super::{Failure, control_socket, egress, folder};
use crate::admin::Admin;
use crate::clock::Clock;
use crate::credentials::Target;
use crate::otlp::Exporter;
use crate::places;
use crate::proxy::{self, Gate, Hub, Past};
use crate::spec::{OwnFile, Settings};
use crate::status::text::count;
use crate::store::Stores;
use crate::telemetry::CallLog;
use crate::telemetry::log::{self, Level};

/// Runs the configuration until a signal ends it.
pub(crate) fn serve(sources: &Sources) -> Result<(), Failure> {
    places::bound_by_descriptors();
    let clock = Clock::start();
    let mut prepared = sources.prepare(clock)?;
    if let Some(missing) = prepared.missing.pop() {
        return Err(Failure::Other(missing));
    }
    let log = &prepared.settings.log;
    let level = log::start(log.json, &log.level)?;
    let runtime = runtime(prepared.settings.threads).enable_all().build()?;
    runtime.block_on(until_stopped(prepared, sources, level, clock))?;
    Ok(())
}

/// Returns the builder of the async runtime. One thread takes less CPU for this program than
/// several, because no task moves between threads.
fn runtime(threads: NonZeroU32) -> Builder {
    if threads.get() == 1 {
        return Builder::new_current_thread();
    }
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads.get() as usize);
    builder
}

/// Starts everything, waits for a signal, and shuts down.
async fn until_stopped(prepared: PreparedProcess, sources: &Sources, level: Level, clock: Clock) -> anyhow::Result<()> {
    let mut signals = StopSignals::listen()?;
    let hangup = signals::listen(SignalKind::hangup())?;
    let judged = Content::of(sources, &prepared.settings).await;
    for warning in &prepared.warnings {
        tracing::warn!("{warning}");
    }
    let stop = CancellationToken::new();
    let stop_admin = CancellationToken::new();
    let admin = Admin::new(clock, stop_admin.clone());
    let (port, socket) = open(&admin, &prepared.settings).await?;
    let otlp = prepared.otlp.map(|otlp| otlp.start(clock)).transpose()?;
    let spans = otlp.as_ref().map(Exporter::spans);
    let calls = call_log(prepared.settings.log.calls.as_deref(), spans.clone(), clock)?;
    let stores = Stores::new(clock, &std::env::var("HOSTNAME").unwrap_or_default());
    stores.adopt(prepared.stores);
    stores.connect(&prepared.settings.stores_of_slow_buckets());
    let state = StateFile::open(&prepared.settings);
    let starter = GateStarter {
        state: &state,
        calls: calls.as_ref(),
        stores: &stores,
        admin: prepared.settings.admin.listen,
        clock,
        stop: &stop,
    };
    let running = starter.start(prepared.gates, prepared.egress).await?;
    let operations = Operations::new(running, Arc::clone(&stores), &prepared.settings, &prepared.effective, clock);
    let operations = Arc::new(operations);
    admin.set_operator(Arc::clone(&operations) as _);
    let gates = &operations.gates;
    tracing::info!(gates = gates.len(), admin = port, socket, "ready");
    let kept = state.keep(Arc::clone(&operations), clock);
    let running = prepared.settings;
    let sources = sources.clone();
    let operating = Arc::clone(&operations);
    let reloader = Reloader { sources, clock, level, calls, spans, running, operations: operating, stores, judged };
    tokio::spawn(reloader.watch(hangup, stop.clone()));

    let signal = signals.next().await;
    tracing::info!(signal, "stopping: serving on until the last client has left");
    stop.cancel();
    tokio::select! {
        () = async {
            for gate in gates {
                gate.finished().await;
            }
            if let Some(egress) = &operations.egress {
                egress.finished().await;
            }
        } => {}
        signal = signals.next() => tracing::warn!(signal, "stopping now: a second signal came, so open calls are cut off"),
    }
    operations.take_leave().await;
    for gate in gates {
        gate.logged().await;
    }
    kept.written().await;
    if let Some(otlp) = otlp {
        otlp.finish().await;
    }
    // The admin port stops last, so that probes and scrapes see the drain.
    stop_admin.cancel();
    admin.finished().await;
    Ok(())
}

/// The values needed to start any gate.
struct GateStarter<'a> {
    state: &'a StateFile,
    calls: Option<&'a CallLog>,
    stores: &'a Arc<Stores>,
    /// The address of the admin port. The egress listener never connects to it.
    admin: Option<SocketAddr>,
    clock: Clock,
    stop: &'a CancellationToken,
}

// === impl GateStarter ===

impl GateStarter<'_> {
    /// Starts all gates, and the egress listener with its gates.
    async fn start(&self, prepared: Vec<PreparedGate>, egress: Option<PreparedEgress>) -> anyhow::Result<RunningGates> {
        let mut gates = Vec::new();
        let mut hubs = BTreeMap::new();
        let mut behind = Vec::new();
        for mut gate in prepared {
            gate.options.call_log = self.calls.cloned();
            let stores = Arc::clone(self.stores);
            gate.options.stores = proxy::Stores::new(move |asks, done| stores.ask(asks, done));
            if gate.options.gate.hosts.is_some() {
                behind.push(gate);
            } else {
                let past = self.state.past(&gate.options.gate.name);
                let (gate, hub) = start(gate, past, self.clock, self.stop.clone()).await?;
                hubs.extend(hub.map(|hub| (Arc::clone(gate.name()), hub)));
                gates.push(Arc::new(gate));
            }
        }
        let mut running = RunningGates { gates, hubs, egress: None };
        if let Some(egress) = egress {
            let own = running.gates.iter().flat_map(|gate| gate.addresses()).copied().chain(self.admin).collect();
            let egress = egress::start(egress, behind, own, self.clock, self.stop.clone()).await?;
            running.gates.extend(egress.gates());
            running.egress = Some(egress);
        }
        running.gates.sort_by(|one, other| one.name().cmp(other.name()));
        Ok(running)
    }
}

/// Opens the admin port and the control socket, and returns their addresses.
async fn open(admin: &Admin, settings: &Settings) -> anyhow::Result<(Option<String>, Option<String>)> {
    let port = match settings.admin.listen {
        Some(listen) => Some(admin.listen(listen).await?.to_string()),
        None => None,
    };
    let mut failed = None;
    for place in control_socket::places(settings) {
        let opened = match place.prepare() {
            Ok(()) => admin.listen_at(&place.path).await.map_err(anyhow::Error::new),
            Err(error) => Err(error.into()),
        };
        match opened {
            Ok(()) => return Ok((port, Some(place.path.display().to_string()))),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        // The socket was not configured, so the gates run without it.
        Some(error) if settings.admin.socket == OwnFile::Auto => {
            tracing::warn!(
                error = format!("{error:#}"),
                "running without a control socket: forget and bypass are not possible; set admin.socket to a writable path"
            );
            Ok((port, None))
        }
        Some(error) => Err(error),
        None => Ok((port, None)),
    }
}

/// Starts one gate. If it is for many clusters, returns their hub too.
async fn start(
    prepared: PreparedGate,
    past: Past,
    clock: Clock,
    stop: CancellationToken,
) -> anyhow::Result<(Gate, Option<Arc<Hub>>)> {
    let PreparedGate { options, credentials, notes, folder, hub, .. } = prepared;
    let name = Arc::clone(&options.gate.name);
    let target = options.upstream.target.clone();
    let tls = options.tls.clone();
    let (gate, hub) = match hub {
        Some(clusters) => {
            let (gate, hub) = Hub::start(options, clusters, past, clock, stop.clone()).await?;
            (gate, Some(hub))
        }
        None => {
            tokio::spawn(look_up(Arc::clone(&name), target.clone()));
            (Gate::go_on(options, past, clock, stop.clone()).await?, None)
        }
    };
    let upstream = hub.as_ref().map_or_else(|| target.to_string(), |hub| count(hub.count(), "cluster", "clusters"));
    if let Some(tls) = tls {
        folder::keep(tls, folder, gate.addresses(), clock, stop)?;
    }
    let listen: Vec<String> = gate.addresses().iter().map(ToString::to_string).collect();
    tracing::info!(gate = &*name, listen = listen.join(","), upstream, credentials, "gate open");
    for note in notes {
        tracing::info!(gate = &*name, "{note}");
    }
    Ok((gate, hub))
}

/// Logs a warning if the upstream's name cannot be resolved, so that a typing error shows at the
/// start. The gate starts all the same: every connection attempt resolves the name again.
async fn look_up(gate: Arc<str>, target: Target) {
    let of_upstream = target.authority.host().trim_start_matches('[').trim_end_matches(']');
    let (of, host, port) = match &target.proxy {
        None => ("upstream", of_upstream, target.authority.port_u16().unwrap_or(443)),
        // The proxy resolves the upstream's name.
        Some(proxy) => ("proxy", proxy.host.as_str(), proxy.port),
    };
    if let Err(error) = tokio::net::lookup_host((host, port)).await {
        tracing::warn!(
            gate = &*gate,
            host,
            %error,
            "the host name of the {of} cannot be resolved: calls fail until it can; is it spelled right, and does DNS work here?"
        );
    }
}
