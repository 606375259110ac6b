//! Leader election as client-go does it: the lease is renewed every two seconds, with a timeout of
//! five.

use std::{sync::Arc, time::Duration};

use http::Method;
use serde_json::{Value, json};

use super::{
    client::{CallError, Client, Session},
    record::Renewal,
    scene::{LEASE_TIMEOUT, RENEW_EVERY},
    server::Api,
};

/// The path of leases.
const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/demo/leases";

/// Keeps one controller's lease for as long as the run lasts, and records each renewal.
pub(super) async fn keep(client: Client, api: Arc<Api>, offset: Duration) {
    let clock = client.clock;
    let name = client.agent.to_string();
    let mut session = Session::new(client.clone());
    let mut lease = Value::Null;
    // Controllers do not start at the same instant.
    clock.sleep(offset).await;
    loop {
        let at = clock.now();
        let renewed = tokio::select! {
            renewed = renew(&mut session, &name, &mut lease) => renewed.is_ok(),
            () = clock.sleep(LEASE_TIMEOUT) => false,
        };
        if !renewed {
            // The answer to a call that timed out may still be on its way.
            session = Session::new(client.clone());
        }
        let late = !renewed || clock.now() - at > RENEW_EVERY;
        api.record.open().renewals.push(Renewal { at, late });
        clock.sleep(RENEW_EVERY).await;
    }
}

/// Makes one attempt: an update of the known lease; if that fails, a read and another update.
async fn renew(session: &mut Session, name: &str, lease: &mut Value) -> Result<(), CallError> {
    let timeout = LEASE_TIMEOUT.as_secs();
    let path = format!("{PATH}/{name}?timeout={timeout}s");
    if !lease.is_null()
        && let Ok(renewed) = session.call(Method::PUT, &path, lease).await
    {
        *lease = renewed;
        return Ok(());
    }
    *lease = match session.call(Method::GET, &path, &Value::Null).await {
        Ok(found) => session.call(Method::PUT, &path, &found).await?,
        Err(CallError::Status(http::StatusCode::NOT_FOUND)) => {
            let new = json!({ "metadata": { "name": name }, "spec": { "holderIdentity": name } });
            session.call(Method::POST, &format!("{PATH}?timeout={timeout}s"), &new).await?
        }
        Err(error) => return Err(error),
    };
    Ok(())
}
