//! Accepts clients and serves HTTP/1.1 and HTTP/2 to them, until the gate has stopped.
//!
//! hyper-util's "auto" builder is not used: it costs 5 KiB more for each idle connection, and the
//! connection sees HTTP/2's preface anyway. With TLS, ALPN decides.

mod call;
mod connection;
mod early;
mod handshakes;
mod linger;
mod read_ahead;
mod socket;
mod stream;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub(super) use self::connection::{serve_calls, serve_calls_of_http2};
pub(super) use self::handshakes::Handshakes;
pub(crate) use self::socket::{ListenSocket, NewClient};
pub(super) use self::stream::Stream;
pub(super) use self::wire::{Wire, WireHandle};
use super::parts::GateParts;
use super::peer::Peer;
use super::section::{Branch, Section};
use super::stack::Router;
use crate::clock::Clock;
use crate::places::{self, Door, Place};
use crate::status::text::duration;
use crate::telemetry::table;
use crate::tls;

/// What one gate needs to serve its clients.
pub(crate) struct Server {
    section: Arc<Section>,
    pub(crate) parts: Arc<GateParts>,
    /// Answers the calls, if they are for several gates.
    router: Option<Arc<dyn Router>>,
    handshakes: Handshakes,
    pub(crate) clients: ClientTasks,
    /// Ends the tasks of the gate when dropped.
    _tasks: DropGuard,
}

/// The tasks that serve the clients of a listener, and the two steps of ending them.
#[derive(Debug, Default)]
pub(crate) struct ClientTasks {
    pub(crate) tasks: TaskTracker,
    /// Cancelled in the first step: connections announce their end (GOAWAY, `Connection: close`)
    /// and finish their calls.
    pub(crate) closing: CancellationToken,
    /// Cancelled in the second step: connections are closed, even with calls under way.
    pub(crate) ending: CancellationToken,
}

// === impl Server ===

impl Server {
    /// Makes a gate, for a `branch` or for the section's own upstream; dropping it ends `tasks`.
    pub(crate) fn new(
        section: &Arc<Section>,
        branch: Option<Branch<'_>>,
        router: Option<Arc<dyn Router>>,
        tasks: DropGuard,
    ) -> Self {
        let parts = section.parts(branch);
        let section = Arc::clone(section);
        let handshakes = Handshakes::default();
        Self { section, parts, router, handshakes, clients: ClientTasks::default(), _tasks: tasks }
    }

    /// Accepts clients from one socket until the gate closes.
    pub(crate) async fn accept(self: Arc<Self>, socket: ListenSocket) {
        let door = Door::to(places::of_process(), Arc::clone(&self.section.name), usize::MAX, self.section.clock);
        loop {
            let next = async {
                let accepted = door.accept(|| socket.accept()).await;
                (accepted, door.place().await)
            };
            let (accepted, place) = tokio::select! {
                next = next => next,
                () = self.clients.closing.cancelled() => return,
            };
            let server = Arc::clone(&self);
            self.clients.tasks.spawn(async move { server.receive(accepted, place).await });
        }
    }

    async fn receive(&self, NewClient { stream, local }: NewClient, place: Arc<Place>) {
        let gauge = table::CLIENT_CONNECTIONS.gauge(&[&self.section.name]);
        gauge.increment(1.0);
        tokio::select! {
            biased; // an idle connection that is lost begins no call
            () = place.lost() => {}
            () = async {
                let peer = Peer { local, place: Some(Arc::clone(&place)), name: None };
                match &self.section.tls {
                    None => self.serve(stream, peer, false).await,
                    Some(tls) => Box::pin(self.serve_tls(tls, stream, peer)).await,
                }
            } => {}
            () = self.clients.ending.cancelled() => {}
        }
        gauge.decrement(1.0);
    }

    /// Serves a client over TLS.
    async fn serve_tls(&self, tls: &tls::Listener, stream: Box<dyn Stream>, peer: Peer) {
        let now = || self.section.clock.now();
        let shaken = Box::pin(self.handshakes.accept(tls.config(), stream, &self.section.name, now)).await;
        let Some(stream) = shaken else { return };
        let session = stream.get_ref().1;
        let http2 = session.alpn_protocol() == Some(b"h2");
        let is_asked = self.parts.clients.as_ref().is_some_and(|clients| clients.takes_certificates());
        let name = if is_asked { tls::client_name(session) } else { None };
        self.serve(Box::new(stream), Peer { name, ..peer }, http2).await;
    }
}

// === impl ClientTasks ===

impl ClientTasks {
    /// Serves on until the last client is gone or the time `drain` is over: a controller must still
    /// be able to give up its leadership. For the time `leaving` it also waits for new clients if
    /// there is none. Then connections announce their end, and two seconds later they are closed.
    pub(super) async fn drain(&self, name: &str, clock: Clock, leaving: Duration, drain: Duration) {
        self.tasks.close(); // from now on `wait` returns when there is none; new ones are still welcome
        tracing::info!(gate = name, clients = self.tasks.len(), drain = duration(drain.as_secs_f64()), "draining");
        for (least, patience, event) in [(leaving, drain, &self.closing), (Duration::ZERO, LAST_ANSWERS, &self.ending)]
        {
            tokio::select! {
                () = async {
                    clock.sleep(least).await;
                    self.tasks.wait().await;
                } => {}
                () = clock.sleep(patience) => {}
            }
            event.cancel();
        }
        self.tasks.wait().await;
        tracing::info!(gate = name, "stopped");
    }
}

/// Returns for how long to accept new clients after `stop`. Clients on other machines need five
/// seconds to learn that the gate stops; if only this machine can reach the sockets, it is zero.
pub(super) fn leaving<'a>(sockets: impl IntoIterator<Item = &'a ListenSocket>) -> Duration {
    if sockets.into_iter().any(ListenSocket::is_reached_from_elsewhere) { LEAVING } else { Duration::ZERO }
}

/// The time until the kube-proxy of every node knows that a pod of a Service is stopping.
const LEAVING: Duration = Duration::from_secs(5);
/// The time for answers under way after the drain time is over.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the second of a gate's end; its clients stay for these times.
    async fn stopped_after(leaving: u64, drain: u64, clients: &[u64]) -> u64 {
        let clock = Clock::start();
        let stopping = ClientTasks::default();
        for seconds in clients {
            let until = clock.now() + Duration::from_secs(*seconds);
            stopping.tasks.spawn(async move { clock.sleep_until(until).await });
        }
        stopping.drain("drained", clock, Duration::from_secs(leaving), Duration::from_secs(drain)).await;
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
