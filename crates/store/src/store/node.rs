//! One server, with the connection to it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use tidegate_upstream::lock;

use super::dial::{Dialer, StoreConnection};
use super::fault::Fault;
use crate::spec::Endpoint;

/// A server, with the connection to it.
#[derive(Debug, Default)]
pub(super) struct Node {
    connection: tokio::sync::Mutex<Option<StoreConnection>>,
    /// Set after a failed request: the connection must not be used again.
    is_broken: AtomicBool,
    dials: Mutex<DialResults>,
}

/// The results of the connection attempts so far.
#[derive(Debug, Default)]
struct DialResults {
    /// The number of failed attempts.
    failures: u64,
    /// The fault of the last failed attempt.
    fault: Option<Fault>,
    /// The server reached by the last successful attempt.
    at: Option<Endpoint>,
}

// === impl Node ===

impl Node {
    /// Returns the connection, made by `dial` if necessary, logged in with the present password.
    /// Of several requests that wait for a connection, the first makes it.
    pub(super) async fn connection(
        &self,
        dialer: &Dialer,
        dial: impl Future<Output = Result<StoreConnection, Fault>>,
    ) -> Result<MultiplexedConnection, Fault> {
        let failures = lock(&self.dials).failures;
        let mut connection = self.connection.lock().await;
        let is_broken = self.is_broken.swap(false, Ordering::SeqCst);
        // A request on a connection that the server has closed would look like an outage.
        let open = connection.take().filter(|open| !is_broken && !open.has_ended());
        if open.is_none() {
            let dials = lock(&self.dials);
            if let Some(fault) = dials.fault.as_ref().filter(|_| dials.failures != failures) {
                return Err(fault.clone());
            }
        }
        let current = dialer.current(open, dial).await;
        let mut dials = lock(&self.dials);
        match &current {
            Ok(open) => dials.at.clone_from(&open.at),
            Err(fault) => {
                dials.failures += 1;
                dials.fault = Some(fault.clone());
            }
        }
        Ok(connection.insert(current?).redis.clone())
    }

    /// Has the next request connect anew, so that no late reply is used.
    pub(super) fn break_off(&self) {
        self.is_broken.store(true, Ordering::SeqCst);
    }

    /// Returns the server reached by the last connection; `None` for a Unix socket.
    pub(super) fn at(&self) -> Option<Endpoint> {
        lock(&self.dials).at.clone()
    }
}
