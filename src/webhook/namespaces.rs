//! Reads the namespaces of new pods, because an `AdmissionReview` has neither their labels nor their
//! annotations. Nothing is kept: a cluster makes few pods at a time.

use std::time::Duration;

use serde_json::Value;

use crate::credentials::{Api, ApiError};

/// Reads namespaces from the API server.
#[derive(Debug)]
pub struct Namespaces(Api);

impl Namespaces {
    /// Creates a reader with a client of the API server.
    pub const fn new(api: Api) -> Self {
        Self(api)
    }

    /// Returns a namespace.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub(super) async fn get(&self, name: &str) -> Result<Value, String> {
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(format!("{name:?} is not the name of a namespace"));
        }
        // "0": from the API server's memory, at no cost for etcd
        let path = format!("/api/v1/namespaces/{name}?resourceVersion=0");
        let reading = tokio::time::timeout(PATIENCE, self.0.get(&path)).await;
        let reading = reading.unwrap_or(Err(ApiError::Late(PATIENCE)));
        reading.map_err(|error| format!("its namespace cannot be read for the policies: {error}"))
    }
}

/// The longest wait, less than the five seconds that the API server waits for the webhook.
const PATIENCE: Duration = Duration::from_secs(3);
