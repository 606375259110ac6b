//! The connections of tidegate to an API.
//!
//! [`tls`] has rustls configurations that follow their files. [`credentials`] reads an upstream's
//! address and credentials. [`own_client`] makes the process's own calls. [`clients`] authenticates
//! a gate's clients. [`upstream`] counts every stream of a connection, and sends requests.

pub mod clients;
pub mod credentials;
pub mod own_client;
pub mod tls;
pub mod upstream;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tidegate_call::{api, classify};
use tidegate_config::{spec, yaml};
use tidegate_limit::{self as limit, moment};
use tidegate_telemetry::{clock, telemetry};

/// Locks a mutex. Nothing panics under these locks, so the data behind a poisoned one is whole.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Formats an error with its causes: hyper's errors say little without them.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A value that is replaced as a whole, while others use the one before.
#[derive(Debug)]
pub struct Current<T>(RwLock<Arc<T>>);

impl<T> Current<T> {
    /// Starts with this value.
    pub fn new(value: T) -> Self {
        Self(RwLock::new(Arc::new(value)))
    }

    /// Returns the present value.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the value for later users.
    pub fn set(&self, value: impl Into<Arc<T>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = value.into();
    }
}
