//! Accepts clients and serves HTTP/1.1 and HTTP/2 to them, until the drain is over.
//!
//! hyper-util's "auto" builder is not used: it costs 5 KiB more for each idle connection, and the
//! wire sees HTTP/2's preface anyway. With TLS, ALPN decides.

mod call;
mod connection;
mod early;
mod handshake_errors;
mod linger;
mod parting;
mod read_ahead;
mod socket;
mod stream;
mod wire;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::TlsAcceptor;
use tokio_util::sync::DropGuard;
use tokio_util::task::TaskTracker;

pub(super) use self::connection::{serve_calls, serve_calls_of_http2};
pub(super) use self::handshake_errors::HandshakeErrors;
pub(super) use self::linger::linger;
pub(super) use self::parting::Parting;
pub(crate) use self::socket::Bound;
pub(super) use self::stream::Stream;
pub(super) use self::wire::{Wire, WireHandle};
use super::parts::GateParts;
use super::peer::Peer;
use super::section::Section;
use crate::clock::Clock;
use crate::places::{self, Door, Place};
use crate::status::text::duration;
use crate::telemetry::table;
use crate::tls;
use crate::upstream::{Dns, Target};

/// Everything that serving clients of one gate takes.
pub(crate) struct Server {
    section: Arc<Section>,
    pub(crate) parts: Arc<GateParts>,
    handshake_errors: HandshakeErrors,
    clients: TaskTracker,
    /// Connections say goodbye: GOAWAY, `Connection: close`.
    pub(crate) closing: Parting,
    /// Connections end, whatever they carry.
    ending: Parting,
    /// Ends the tasks of the gate.
    _tasks: DropGuard,
}

// === impl Server ===

impl Server {
    /// Makes a gate for `target`; dropping it ends `tasks`.
    pub(crate) fn new(section: &Arc<Section>, target: Target, dns: Option<Dns>, tasks: DropGuard) -> Self {
        let parts = section.parts(target, dns);
        Self {
            section: Arc::clone(section),
            parts,
            handshake_errors: HandshakeErrors::default(),
            clients: TaskTracker::new(),
            closing: Parting::new(),
            ending: Parting::new(),
            _tasks: tasks,
        }
    }

    /// Accepts from one socket until the gate closes.
    pub(crate) async fn accept(self: Arc<Self>, socket: Bound) {
        let door = Door::to(places::of_process(), Arc::clone(&self.section.name), usize::MAX, self.section.clock);
        loop {
            let next = async {
                let accepted = door.accept(|| socket.accept()).await;
                (accepted, door.place().await)
            };
            let (accepted, place) = tokio::select! {
                next = next => next,
                () = self.closing.told() => return,
            };
            let server = Arc::clone(&self);
            self.clients.spawn(async move { server.receive(accepted, place).await });
        }
    }

    async fn receive(&self, (stream, local): (Box<dyn Stream>, Option<IpAddr>), place: Arc<Place>) {
        let gauge = table::CLIENT_CONNECTIONS.gauge(&[&self.section.name]);
        gauge.increment(1.0);
        tokio::select! {
            biased; // an idle connection that is lost begins no call
            () = place.lost() => {}
            () = async {
                let place = Some(Arc::clone(&place));
                match &self.section.tls {
                    None => self.serve(stream, Peer { local, place, name: None }, false).await,
                    Some(tls) => {
                        if let Some((stream, http2, name)) = Box::pin(self.shake_hands(tls, stream)).await {
                            self.serve(stream, Peer { local, name, place }, http2).await;
                        }
                    }
                }
            } => {}
            () = self.ending.told() => {}
        }
        gauge.decrement(1.0);
    }

    /// Does the TLS handshake. Returns the connection inside, true if HTTP/2 was agreed on, and the
    /// name in the client's certificate where the gate knows clients by it.
    async fn shake_hands(
        &self,
        tls: &tls::Listener,
        stream: Box<dyn Stream>,
    ) -> Option<(Box<dyn Stream>, bool, Option<Arc<str>>)> {
        match tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(tls.config()).accept(stream)).await {
            Ok(Ok(stream)) => {
                let session = stream.get_ref().1;
                let http2 = session.alpn_protocol() == Some(b"h2");
                let is_asked = self.parts.clients.as_ref().is_some_and(|clients| clients.takes_certificates());
                let name = if is_asked { tls::client_name(session) } else { None };
                return Some((Box::new(stream), http2, name));
            }
            Ok(Err(error)) => self.handshake_errors.note(&self.section.name, &error, self.section.clock.now()),
            Err(_) => tracing::debug!(gate = &*self.section.name, "a TLS handshake took too long"),
        }
        None
    }

    /// Serves on, new calls too, until the last client is gone, and for the time of `leaving` at
    /// least. At the end of the drain it stops in any case.
    pub(crate) async fn drain(&self, leaving: Duration) {
        let Section { name, clock, config, .. } = &*self.section;
        let drain = [leaving, config.get().options.drain];
        self::drain(name, &self.clients, *clock, drain, [&self.closing, &self.ending]).await;
    }
}

/// Returns the time for which a gate that is told to stop serves on even with no client: clients on
/// other machines learn only then that it leaves. One that only its own machine reaches needs none.
pub(super) fn leaving<'a>(sockets: impl IntoIterator<Item = &'a Bound>) -> Duration {
    if sockets.into_iter().any(Bound::is_reached_from_elsewhere) { LEAVING } else { Duration::ZERO }
}

/// Serves on until the last client is gone or the drain is over: a controller's lease release must
/// still get through. For the time of `leaving` more clients may come after the last one. Then
/// connections say goodbye, and a little later they end.
pub(super) async fn drain(
    name: &str,
    clients: &TaskTracker,
    clock: Clock,
    [leaving, drain]: [Duration; 2],
    [closing, ending]: [&Parting; 2],
) {
    clients.close(); // from now on `wait` returns when there is none; new ones are still welcome
    tracing::info!(gate = name, clients = clients.len(), drain = duration(drain.as_secs_f64()), "draining");
    for (least, patience, parting) in [(leaving, drain, closing), (Duration::ZERO, LAST_WORDS, ending)] {
        tokio::select! {
            () = async {
                clock.sleep(least).await;
                clients.wait().await;
            } => {}
            () = clock.sleep(patience) => {}
        }
        parting.tell().await;
    }
    clients.wait().await;
    tracing::info!(gate = name, "stopped");
}

/// As long as Go's and kube-apiserver's.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The time in which every node's kube-proxy learns that a pod of a Service leaves.
const LEAVING: Duration = Duration::from_secs(5);
/// The time for answers that are on their way when the drain is over.
const LAST_WORDS: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the second in which a gate has stopped whose clients stay for so long.
    async fn stopped_after(leaving: u64, drain: u64, clients: &[u64]) -> u64 {
        let (clock, tracker, parting) = (Clock::start(), TaskTracker::new(), [Parting::new(), Parting::new()]);
        for seconds in clients {
            let until = clock.now() + Duration::from_secs(*seconds);
            tracker.spawn(async move { clock.sleep_until(until).await });
        }
        let patience = [leaving, drain].map(Duration::from_secs);
        super::drain("drained", &tracker, clock, patience, parting.each_ref()).await;
        clock.now().since_start().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_gate_that_others_reach_goes_on_for_those_that_have_not_heard() {
        assert_eq!(stopped_after(5, 25, &[]).await, 5);
        assert_eq!(stopped_after(5, 25, &[1]).await, 5, "the last client left early");
        assert_eq!(stopped_after(5, 25, &[7, 1]).await, 7);
        assert_eq!(stopped_after(5, 25, &[26]).await, 26, "a client has time for its last answer");
        assert_eq!(stopped_after(5, 2, &[]).await, 2, "no longer than the drain");
        assert_eq!(stopped_after(0, 25, &[]).await, 0);
        assert_eq!(stopped_after(0, 25, &[3]).await, 3);
    }
}
