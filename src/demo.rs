//! The demo: an embedded API server that fails for a while, a herd of controllers, and a gate
//! between them, all over real HTTP on loopback. It needs nothing else.
//!
//! The same herd runs twice, without the gate and with it, and the API itself counts everything
//! that is said afterwards. The gate is passed in: this module does not know the proxy. Times are
//! real; the seed alone decides which objects change, and in which order.

mod capacity;
mod client;
mod controller;
mod lease;
mod record;
mod scene;
mod server;
mod store;
mod story;
mod table;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;

use self::client::Client;
use self::controller::HttpController;
use self::record::{Backlog, Seen};
pub use self::scene::{BURST, RATE};
use self::scene::{CHANGES_PER_SECOND, KINDS, Kind, OBJECTS, RENEW_EVERY};
pub(crate) use self::scene::{RETRY_RATE, Scene};
use self::server::Api;
pub(crate) use self::story::Played;
use self::table::Now;
pub(crate) use self::table::Table;
use crate::clock::Clock;
use crate::moment::Moment;
use crate::random::Random;

/// The time between two measurements of the backlog.
const SAMPLE: Duration = Duration::from_millis(100);

/// An object that has waited longer than this is overdue.
const PATIENCE: Duration = Duration::from_secs(1);

/// The timer's granularity and a little more.
const CATCH_UP: Duration = Duration::from_millis(20);

/// The error that kept the gate from starting.
pub(crate) type GateError = Box<dyn std::error::Error + Send + Sync>;

/// The reason why the demo could not be played.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    /// No port of loopback was available for the API.
    #[error("cannot listen on loopback for the embedded API server")]
    Listen(#[source] io::Error),
    /// The gate did not start.
    #[error("cannot start the gate of the demo")]
    Gate(#[source] GateError),
    /// The table could not be shown.
    #[error("cannot write the table")]
    Show(#[source] io::Error),
}

/// Plays both runs and shows `table` meanwhile. `gate` starts a gate in front of the address it is
/// given, and returns the address at which the gate listens and a handle that stops it when
/// dropped.
///
/// # Errors
/// See [`DemoError`].
pub(crate) async fn play<Handle>(
    scene: Scene,
    table: &mut Table,
    gate: impl AsyncFnOnce(SocketAddr) -> Result<(SocketAddr, Handle), GateError>,
) -> Result<Played, DemoError> {
    let without = play_once(scene, table, "without the gate", async |api| Ok((api, ()))).await?;
    let with = play_once(scene, table, "with the gate", gate).await?;
    Ok(Played { scene, without, with })
}

/// Plays one run against an API of its own.
async fn play_once<Handle>(
    scene: Scene,
    table: &mut Table,
    name: &str,
    between: impl AsyncFnOnce(SocketAddr) -> Result<(SocketAddr, Handle), GateError>,
) -> Result<Seen, DemoError> {
    let clock = Clock::start();
    let api = Api::new(scene, clock);
    let mut tasks = JoinSet::new();
    let address = api.serve(&mut tasks).await.map_err(DemoError::Listen)?;
    let (address, stops_when_dropped) = between(address).await.map_err(DemoError::Gate)?;
    let herd = Herd::start(address, &api, clock, &mut tasks);
    tasks.spawn(life(Arc::clone(&api), scene, clock));
    table.begin(name).map_err(DemoError::Show)?;
    let mut at = clock.now();
    while at.since_start() < scene.length {
        let overdue = lock(&api.store).unreconciled(at, PATIENCE);
        lock(&api.seen).backlog.push(Backlog { at, overdue });
        if table.is_due(at) {
            table.show(&herd.now(&api, scene, at)).map_err(DemoError::Show)?;
        }
        let due = at + SAMPLE;
        clock.sleep_until(due).await;
        at = clock.now();
        let mut seen = lock(&api.seen);
        seen.stalled = seen.stalled.max(at - due);
    }
    table.end(&herd.now(&api, scene, at)).map_err(DemoError::Show)?;
    tasks.shutdown().await;
    drop(stops_when_dropped);
    let seen = std::mem::take(&mut *lock(&api.seen));
    Ok(seen)
}

/// Changes objects all the time, directly and through no gate, as users of a cluster do.
async fn life(api: Arc<Api>, scene: Scene, clock: Clock) {
    let mut random = Random::new(scene.seed);
    // The informers list first.
    let mut next = clock.now() + scene.length / 40;
    loop {
        clock.sleep_until(next).await;
        let (kind, item) = (random.below(KINDS.len()), random.below(OBJECTS));
        let now = clock.now();
        lock(&api.store).change(kind, item, now);
        // A small delay is made up for; a machine that was busy elsewhere must not look like a
        // flood of changes.
        next = (next + Duration::from_secs(1) / CHANGES_PER_SECOND).max(now.back(CATCH_UP));
    }
}

/// Locks a mutex of the demo, even if a task panicked while it held it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All controllers with their leases.
struct Herd {
    controllers: Vec<Arc<HttpController>>,
    /// Held by each call that is out.
    unanswered: Arc<()>,
}

// === impl Herd ===

impl Herd {
    fn start(server: SocketAddr, api: &Arc<Api>, clock: Clock, tasks: &mut JoinSet<()>) -> Self {
        let unanswered = Arc::new(());
        let mut controllers = Vec::new();
        let mut offset = Duration::ZERO;
        for (kind, Kind { resource, .. }) in KINDS.iter().enumerate() {
            let client = Client::new(server, format!("{resource}-controller"), clock, Arc::downgrade(&unanswered));
            tasks.spawn(lease::keep(client.clone(), Arc::clone(api), offset));
            offset += RENEW_EVERY / 4;
            controllers.push(HttpController::start(kind, client, tasks));
        }
        Self { controllers, unanswered }
    }

    /// Collects everything that the table shows.
    fn now(&self, api: &Api, scene: Scene, at: Moment) -> Now {
        let (waiting, backing_off) =
            self.controllers.iter().map(|it| it.waiting()).fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        let overdue = lock(&api.store).unreconciled(at, PATIENCE);
        let seen = lock(&api.seen);
        let second = at.back(Duration::from_secs(1));
        let (calls, errors) = seen.calls(second, at);
        let recently = at.back(table::RECENTLY);
        let quantile = |permille| seen.convergence(permille, |it| it.at >= recently);
        Now {
            at,
            length: scene.length,
            trouble: scene.trouble().contains(&at),
            calls,
            errors,
            unanswered: Arc::strong_count(&self.unanswered) - 1,
            waiting,
            backing_off,
            overdue,
            median: quantile(500),
            slowest: quantile(990),
            renewals: seen.renewals(),
        }
    }
}
