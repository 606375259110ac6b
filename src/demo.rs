//! The demo: an embedded API server that fails for a while, many controllers, and a gate between
//! them, over HTTP on loopback.
//!
//! The controllers run twice, first without the gate and then with it, and the API counts their
//! calls. The caller passes in the gate, so that this module does not depend on the proxy. Times
//! are real; the seed decides which objects change, and in which order.

mod controller;
mod record;
mod scene;
mod server;
mod story;
mod world;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::controller::HttpController;
use self::record::{Backlog, RunRecord};
pub use self::scene::{BURST, RATE};
use self::scene::{CHANGES_PER_SECOND, KINDS, OBJECTS, RENEW_EVERY};
pub(crate) use self::scene::{RETRY_RATE, Scene};
use self::server::Api;
pub(crate) use self::story::DemoResult;
use crate::clock::Clock;
use crate::own_client::OwnClient;
use crate::random::Random;

/// The time between two counts of the objects that wait.
const SAMPLE: Duration = Duration::from_millis(100);

/// The longest time from an object's change to its reconcile before it counts as overdue.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest delay of a change to make up for: a little more than the timer's precision. After a
/// longer delay, the missed changes are skipped.
const CATCH_UP: Duration = Duration::from_millis(20);

/// The error of a failed start of a demo gate.
pub(crate) type GateError = Box<dyn std::error::Error + Send + Sync>;

/// Why the demo failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    /// No port of loopback was available for the API.
    #[error("the demo cannot start: its API server cannot listen on 127.0.0.1")]
    Listen(#[source] io::Error),
    /// The gate did not start.
    #[error("the demo cannot start: its gate does not start")]
    Gate(#[source] GateError),
    /// The progress could not be shown.
    #[error("the demo stopped: its progress cannot be printed")]
    Show(#[source] io::Error),
}

/// Plays both runs, without and with a gate, and prints a line before each. `gate` starts a gate in
/// front of the API's address, which the token stops, and returns the gate's address.
///
/// # Errors
/// See [`DemoError`].
pub(crate) async fn play(
    scene: Scene,
    print: fn(&str) -> io::Result<()>,
    gate: impl AsyncFnOnce(SocketAddr, CancellationToken) -> Result<SocketAddr, GateError>,
) -> Result<DemoResult, DemoError> {
    let direct = async |address, _| Ok(address);
    let without = play_once(scene, print, "without the gate", direct).await?;
    let with = play_once(scene, print, "with the gate", gate).await?;
    Ok(DemoResult { scene, without, with })
}

/// Plays one run against a new API. `between` starts the gate in front of the API, or returns the
/// API's own address.
async fn play_once(
    scene: Scene,
    print: fn(&str) -> io::Result<()>,
    name: &str,
    between: impl AsyncFnOnce(SocketAddr, CancellationToken) -> Result<SocketAddr, GateError>,
) -> Result<RunRecord, DemoError> {
    let clock = Clock::start();
    let api = Api::new(scene, clock);
    let mut tasks = JoinSet::new();
    let address = api.serve(&mut tasks).await.map_err(DemoError::Listen)?;
    let stop = CancellationToken::new();
    let gate = stop.clone().drop_guard();
    let entrance = between(address, stop).await.map_err(DemoError::Gate)?;
    let herd = herd(entrance, &api, &mut tasks).map_err(|error| DemoError::Gate(error.into()))?;
    tasks.spawn(change_objects(herd, scene, clock));
    print(&format!("\n{:.0} s {name} ...\n", scene.length.as_secs_f64())).map_err(DemoError::Show)?;
    let mut at = clock.now();
    while at.since_start() < scene.length {
        let overdue = api.world().overdue(at, PATIENCE);
        api.world().record.backlog.push(Backlog { at, overdue });
        let due = at + SAMPLE;
        clock.sleep_until(due).await;
        at = clock.now();
        let record = &mut api.world().record;
        record.stalled = record.stalled.max(at - due);
    }
    tasks.shutdown().await;
    drop(gate);
    let record = std::mem::take(&mut api.world().record);
    Ok(record)
}

/// Starts all controllers. Their lease renewals are spread over time.
fn herd(
    server: SocketAddr,
    api: &Arc<Api>,
    tasks: &mut JoinSet<()>,
) -> Result<Vec<Arc<HttpController>>, http::uri::InvalidUri> {
    let authority: Authority = server.to_string().parse()?;
    let offsets = (0..).map(|number| RENEW_EVERY / 4 * number);
    let start = |(kind, offset)| {
        let client = OwnClient::new(authority.clone(), None, None, api.clock);
        HttpController::start(kind, client, Arc::clone(api), offset, tasks)
    };
    Ok((0..KINDS.len()).zip(offsets).map(start).collect())
}

/// Changes random objects at a steady rate, as users of a cluster do.
async fn change_objects(herd: Vec<Arc<HttpController>>, scene: Scene, clock: Clock) {
    let mut random = Random::new(scene.seed);
    let mut next = clock.now() + scene.length / 40;
    loop {
        clock.sleep_until(next).await;
        let controller = &herd[random.below(KINDS.len())];
        let now = clock.now();
        controller.change(random.below(OBJECTS), now);
        // A longer delay is not caught up: a busy machine must not cause a flood of changes.
        next = (next + Duration::from_secs(1) / CHANGES_PER_SECOND).max(now.back(CATCH_UP));
    }
}
