//! Leader election over HTTP, as client-go does it.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::client::{CallError, Client};
use super::lock;
use super::scene::{RENEW_DEADLINE, RENEW_EVERY};
use super::server::Api;
use crate::controller::LeaseHolder;

/// The path of leases.
const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/demo/leases";

/// Keeps one controller's lease for as long as the run lasts, and records each renewal.
pub(super) async fn keep(client: Client, api: Arc<Api>, offset: Duration) {
    let clock = client.clock;
    let mut holder = LeaseHolder::new(RENEW_EVERY, RENEW_DEADLINE);
    let mut lease = Value::Null;
    // Controllers do not start at the same instant.
    clock.sleep(offset).await;
    loop {
        holder.begin(clock.now());
        let renewed = tokio::select! {
            renewed = renew(&client, &mut lease, holder.timeout()) => renewed.is_ok(),
            () = clock.sleep(holder.timeout()) => false,
        };
        let attempt = holder.end(renewed, clock.now());
        lock(&api.seen).renewals.push(attempt.late);
        clock.sleep_until(attempt.next).await;
    }
}

/// Makes one attempt: an update of the known lease; if that fails, a read and another update.
async fn renew(client: &Client, lease: &mut Value, timeout: Duration) -> Result<(), CallError> {
    let (name, timeout) = (&client.agent, timeout.as_secs());
    let path = format!("{PATH}/{name}?timeout={timeout}s");
    if !lease.is_null()
        && let Ok(renewed) = client.call(Method::PUT, &path, lease).await
    {
        *lease = renewed;
        return Ok(());
    }
    *lease = match client.call(Method::GET, &path, &Value::Null).await {
        Ok(found) => client.call(Method::PUT, &path, &found).await?,
        Err(CallError::Status(StatusCode::NOT_FOUND)) => {
            let new = json!({ "metadata": { "name": &**name }, "spec": { "holderIdentity": &**name } });
            client.call(Method::POST, &format!("{PATH}?timeout={timeout}s"), &new).await?
        }
        Err(error) => return Err(error),
    };
    Ok(())
}
