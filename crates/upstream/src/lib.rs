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

use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_call::{api, classify};
use tidegate_config::{spec, yaml};
use tidegate_limit::{self as limit, moment};
use tidegate_telemetry::{clock, telemetry};

/// Locks a mutex. Nothing panics under these locks, so the data behind a poisoned one is whole.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
