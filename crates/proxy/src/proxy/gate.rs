//! A running gate, from its start to its stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::gauges;
use super::listener::{self, ListenSocket, Server};
use super::options::{Options, Past};
use super::parts::GateParts;
use super::peer::Peer;
use super::section::{Branch, Section};
use super::stack::Router;
use crate::api::Group;
use crate::bind::BindError;
use crate::clock::Clock;
use crate::limit::snapshot::{Changes, FreezeWalk, FrozenLimiter, Gap};
use crate::telemetry;
use crate::upstream::Upstream;

/// A running gate.
#[derive(derive_more::Debug)]
#[debug("Gate {:?} at {addresses:?}", section.name)]
pub struct Gate {
    pub(super) section: Arc<Section>,
    server: Arc<Server>,
    addresses: Vec<SocketAddr>,
    /// The upstream's URL, as text.
    pub(super) target: String,
    tasks: TaskTracker,
}

/// A gate with its sockets, before it serves clients.
pub(super) struct BoundGate {
    pub(super) section: Arc<Section>,
    sockets: Vec<ListenSocket>,
    frozen: Option<(FrozenLimiter, Gap)>,
}

// === impl Gate ===

impl Gate {
    /// Starts to listen. After `stop` the gate continues to serve until the last client is gone or
    /// the drain time is over; see [`Gate::finished`].
    ///
    /// # Errors
    /// A socket could not be bound.
    pub async fn start(options: Options, clock: Clock, stop: CancellationToken) -> Result<Self, BindError> {
        Self::go_on(options, Past::default(), clock, stop).await
    }

    /// Starts like [`Gate::start`], and restores what the gate remembered before a restart.
    ///
    /// # Errors
    /// A socket could not be bound.
    pub async fn go_on(options: Options, past: Past, clock: Clock, stop: CancellationToken) -> Result<Self, BindError> {
        Ok(Self::listen(Self::bind(options, past, clock).await?, None, stop))
    }

    /// Binds the sockets of a gate.
    ///
    /// # Errors
    /// A socket could not be bound.
    pub(super) async fn bind(mut options: Options, past: Past, clock: Clock) -> Result<BoundGate, BindError> {
        let mut sockets = Vec::new();
        let mut listen = Vec::new();
        for wanted in &options.gate.listen {
            let bound = ListenSocket::bind(&format!("gate {:?}", options.gate.name), wanted).await?;
            listen.push(bound.address().map_or_else(|| wanted.to_string(), |address| address.to_string()));
            sockets.push(bound);
        }
        options.upstream.own.extend(sockets.iter().filter_map(ListenSocket::address));
        let mut section = Section::new(options, past.salt, clock);
        section.listen = listen;
        let section = Arc::new(section);
        telemetry::metrics().sample_by(section.sampler.get_or_init(|| gauges::sampler(&section)));
        Ok(BoundGate { section, sockets, frozen: past.frozen })
    }

    /// Starts to serve clients. If there is a `router`, it answers their calls.
    pub(super) fn listen(bound: BoundGate, router: Option<Arc<dyn Router>>, stop: CancellationToken) -> Self {
        let BoundGate { section, sockets, frozen } = bound;
        let clock = section.clock;
        let addresses: Vec<_> = sockets.iter().filter_map(ListenSocket::address).collect();
        let (gate, over) = Self::open(section, None, router);
        if let Some((frozen, gap)) = &frozen {
            gate.own().driver.thaw(frozen, *gap);
        }

        let leaving = listener::leaving(&sockets);
        let accepting = TaskTracker::new();
        for socket in sockets {
            accepting.spawn(Arc::clone(&gate.server).accept(socket));
        }
        accepting.close();
        let server = Arc::clone(&gate.server);
        let section = Arc::clone(&gate.section);
        gate.tasks.spawn(async move {
            stop.cancelled().await;
            let drain = section.config.get().options.drain;
            server.clients.drain(&section.name, clock, leaving, drain).await;
            accepting.wait().await;
            over.cancel();
        });
        Self { addresses, ..gate }
    }

    /// Makes another gate from the same settings for a `branch`; see [`Gate::of`]. A bypass in force
    /// holds for it too.
    pub(super) fn sibling(&self, branch: Branch<'_>) -> Self {
        let gate = Self::of(Arc::clone(&self.section), branch);
        gate.follow(Some(self.own()), None);
        gate
    }

    /// Takes over a bypass in force at the gate `main`, and what a gate `before` this one remembers.
    /// It takes time in proportion to the failing keys.
    pub(super) fn follow(&self, main: Option<&Arc<GateParts>>, before: Option<&Self>) {
        let driver = &self.own().driver;
        if let Some(until) = main.and_then(|main| main.driver.bypassed_until()) {
            driver.bypass(Some(until));
        }
        if let Some(before) = before {
            let gap = Gap { length: Duration::ZERO, unseen: None };
            let mut freezing = FreezeWalk::with_names();
            let frozen = std::iter::repeat_with(|| before.freeze_some(&mut freezing, usize::MAX)).flatten().next();
            frozen.iter().for_each(|frozen| driver.thaw(frozen, gap));
        }
    }

    /// Makes a gate from a section for a `branch`. It has its own limits, keys and connections, and
    /// shares everything else. It has no listener (see [`Gate::serve`]). Its tasks end when it is
    /// dropped and no client is connected to it.
    pub(super) fn of(section: Arc<Section>, branch: Branch<'_>) -> Self {
        Self::open(section, Some(branch), None).0
    }

    /// Returns true if no call is waiting or under way, no key is failing and no pause is in force.
    pub(super) fn is_quiet(&self) -> bool {
        let parts = self.own();
        let now = parts.driver.look(|limiter, now| limiter.overview(now));
        let is_used = |group: Group| parts.upstream.occupancy(group).used > 0;
        let remembers = now.failing_keys > 0 || !now.pauses.is_empty();
        now.waiting == 0 && now.slots.used == 0 && !remembers && !Group::ALL.into_iter().any(is_used)
    }

    /// Makes a gate and starts its tasks. They end when the returned token is cancelled or the gate
    /// is dropped.
    fn open(
        section: Arc<Section>,
        branch: Option<Branch<'_>>,
        router: Option<Arc<dyn Router>>,
    ) -> (Self, CancellationToken) {
        let tasks = TaskTracker::new();
        let over = CancellationToken::new();
        let server = Arc::new(Server::new(&section, branch, router, over.clone().drop_guard()));
        let parts = &server.parts;
        let shown = parts.upstream.target().to_string();
        let gate = Arc::clone(&section.name);
        tasks.spawn(gauges::upkeep(Arc::clone(&gate), Arc::clone(parts), section.clock, over.clone()));
        tasks.spawn(parts.driver.clone().tick(over.clone(), move || gauges::bypass_is_over(&gate)));
        tasks.close();
        let gate = Self { section, server, addresses: Vec::new(), target: shown, tasks };
        (gate, over)
    }

    /// Returns the gate's name.
    pub fn name(&self) -> &Arc<str> {
        &self.section.name
    }

    /// Returns true if clients reach the gate through the egress listener.
    pub fn has_hosts(&self) -> bool {
        self.section.config.get().options.gate.hosts.is_some()
    }

    /// Returns the TCP addresses of its listeners, with the real port instead of 0.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Applies new settings to all gates made from the same configured gate. It cannot fail, drops
    /// no call, and keeps every call's place in its queue (P11). Only a restart changes the name,
    /// the kind, the listeners and their TLS, and the upstream with its TLS and credentials.
    pub fn reconfigure(&self, options: Options) {
        self.section.reconfigure(options);
    }

    /// Waits until an earlier `reconfigure` has moved all waiting calls to their new queues.
    /// Otherwise the next `reconfigure` would have to finish that first.
    pub async fn caught_up(&self) {
        self.own().driver.caught_up().await;
    }

    /// Returns counters of state changes. If they are the same as before, [`Gate::freeze`] would
    /// return nothing new.
    pub fn changes(&self) -> Changes {
        self.own().driver.look(|limiter, _| limiter.changes())
    }

    /// Returns what the gate remembers, with at most `most` failing keys, for the state file.
    pub async fn freeze(&self, most: usize) -> FrozenLimiter {
        let mut freezing = FreezeWalk::default();
        loop {
            match self.freeze_some(&mut freezing, most) {
                Some(frozen) => return frozen,
                None => tokio::task::yield_now().await,
            }
        }
    }

    fn freeze_some(&self, freezing: &mut FreezeWalk, most: usize) -> Option<FrozenLimiter> {
        self.own().driver.look(|limiter, now| limiter.freeze_some(freezing, most, now))
    }

    /// Returns the connections to the upstream.
    pub fn upstream(&self) -> &Upstream {
        &self.own().upstream
    }

    /// Serves a connection accepted elsewhere, over plain HTTP, until its client is done.
    pub async fn serve<S>(&self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (read, write) = tokio::io::split(stream);
        self.server.serve(Box::new(tokio::io::join(read, write)), Peer::default(), false).await;
    }

    /// Waits until the gate has stopped: after `stop`, and the end of the last client or of the
    /// drain time.
    pub async fn finished(&self) {
        self.tasks.wait().await;
    }

    /// Tells the stores of shared buckets that the gate has stopped.
    pub async fn take_leave(&self) {
        self.own().driver.take_leave().await;
    }

    /// Waits until all ended calls are written to the call log.
    pub async fn logged(&self) {
        if let Some(log) = &self.section.config.get().options.call_log {
            log.flushed().await;
        }
    }

    /// Returns the limiter, connections and counts of this gate alone; other gates from the same
    /// settings have their own.
    pub(super) fn own(&self) -> &Arc<GateParts> {
        &self.server.parts
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::Ordering;

    use futures_util::future::join_all;
    use http::uri::Scheme;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::net::TcpListener;
    use tokio::runtime::Handle;
    use tokio::sync::mpsc;

    use super::*;
    use crate::proxy::conservation;
    use crate::proxy::tally::CallCounters;
    use crate::spec::Listen;
    use crate::telemetry::CallLog;
    use crate::upstream::{self, Target};

    /// An API with its name as every answer, one for each read of a connection.
    async fn api(name: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    while matches!(stream.read(&mut [0; 4096]).await, Ok(1..)) {
                        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len());
                        stream.write_all(answer.as_bytes()).await.ok();
                    }
                });
            }
        });
        address
    }

    fn options(address: SocketAddr) -> Options {
        let (log, _) = mpsc::channel(1);
        let listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
        let mut options = conservation::options(1, address, CallLog::to(log));
        (options.gate.name, options.gate.listen) = ("siblings".into(), listen);
        options
    }

    /// The body of the answer to a call.
    async fn call(gate: &Gate, object: u32) -> String {
        let (mut client, server) = duplex(4096);
        let (answer, ()) = tokio::join!(
            async {
                let head =
                    format!("GET /api/v1/nodes/n{object} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
                client.write_all(head.as_bytes()).await.expect("open");
                let mut answer = String::new();
                client.read_to_string(&mut answer).await.expect("whole");
                answer
            },
            gate.serve(server)
        );
        answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned()
    }

    /// Every series of the gates without its value, and the number of waiting calls.
    fn series() -> (BTreeSet<String>, String) {
        let text = telemetry::metrics().render();
        let ours = text.lines().filter(|line| line.contains("gate=\"siblings\""));
        let series = ours.filter_map(|line| line.rsplit_once(' ')).map(|(series, value)| (series.to_owned(), value));
        let waiting = series.clone().find(|(series, _)| series.starts_with("tidegate_waiting{"));
        (series.map(|(series, _)| series).collect(), waiting.expect("a gauge").1.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_gate_that_others_reach_does_not_stop_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let unix = Listen::Unix(folder.path().join("gate.sock"));
        let tcp = |ip: [u8; 4]| Listen::Tcp((ip, 0).into());
        let sidecar = [vec![tcp([127, 0, 0, 1])], vec![unix.clone()], vec![unix.clone(), tcp([127, 0, 0, 2])]];
        let service = [vec![tcp([0, 0, 0, 0])], vec![unix, tcp([127, 0, 0, 1]), tcp([0, 0, 0, 0])]];
        let stopped_after = async |listen| {
            let (clock, stop) = (Clock::start(), CancellationToken::new());
            let mut options = options(api("the API").await);
            (options.gate.listen, options.drain) = (listen, Duration::from_secs(25));
            let gate = Gate::start(options, clock, stop.clone()).await.expect("it listens");
            stop.cancel();
            gate.finished().await;
            clock.now().since_start().as_secs()
        };
        for listen in sidecar {
            assert_eq!(stopped_after(listen.clone()).await, 0, "{listen:?}");
        }
        for listen in service {
            assert_eq!(stopped_after(listen.clone()).await, 5, "{listen:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_gate_of_a_section_comes_and_goes_and_leaves_nothing_behind() {
        let clock = Clock::start();
        let (one, other) = (api("one").await, api("other").await);
        let gate = Gate::start(options(one), clock, CancellationToken::new()).await.expect("a port");
        let target = Target {
            scheme: Scheme::HTTP,
            authority: other.to_string().parse().expect("an authority"),
            base_path: String::new(),
            server_name: None,
            proxy: None,
        };
        assert_eq!(call(&gate, 0).await, "one");
        let waiting_bytes = || gate.section.waiting_bytes.load(Ordering::Relaxed);
        for round in 1..4 {
            clock.sleep(Duration::from_secs(200)).await; // connections have gone by then
            let (alive, before) = (Handle::current().metrics().num_alive_tasks(), series().0);
            let point = |options: &mut upstream::Options| options.target = target.clone();
            let noop = metrics::Counter::noop;
            let calls = CallCounters { sent: noop(), refused: noop() };
            let sibling = gate.sibling(Branch { name: "other".into(), number: 0, calls, point: &point });
            assert_eq!((call(&gate, round).await, call(&sibling, round).await), ("one".to_owned(), "other".to_owned()));
            gate.reconfigure(options(one)); // reaches both
            assert_eq!((call(&gate, round).await, call(&sibling, round).await), ("one".to_owned(), "other".to_owned()));

            // More calls than may go at once: some wait, each with its body.
            let clients: Vec<_> = (0..9).map(|_| duplex(1 << 14)).collect();
            let (mut ours, theirs): (Vec<_>, Vec<_>) = clients.into_iter().unzip();
            for (client, object) in ours.iter_mut().zip(0..) {
                let head =
                    format!("PUT /api/v1/nodes/x{object} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n");
                client.write_all(&[head.as_bytes(), &[b'x'; 1000]].concat()).await.expect("room");
            }
            tokio::select! {
                _ = join_all(theirs.into_iter().map(|stream| sibling.serve(stream))) => panic!("clients stay"),
                () = async {
                    while waiting_bytes() == 0 {
                        tokio::task::yield_now().await;
                    }
                    assert_ne!(series().1, "0", "gauges are sums over the gates");
                } => {}
            }
            // The calls have left with their connections, and given everything back.
            assert_eq!((waiting_bytes(), gate.section.gates().len()), (0, 2));
            let tasks = sibling.tasks.clone();
            drop(sibling);
            tasks.wait().await;
            assert_eq!(gate.section.gates().len(), 1);
            assert_eq!(call(&gate, round + 10).await, "one");
            clock.sleep(Duration::from_secs(200)).await;
            assert_eq!(Handle::current().metrics().num_alive_tasks(), alive, "a task is left");
            assert_eq!(series(), (before, "0".to_owned()), "a series is left");
        }
    }
}
