//! Kubernetes Events about hot objects, written by the gate where `events = true`.
//!
//! Each object found to be called in a loop gets one Event, and a gate writes at most five in a
//! minute. The gate reads the object first, because an Event needs the object's uid. Both calls are
//! the gate's own: they take no token and no slot of other calls. If one fails, it is logged and
//! not retried.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT};
use http::{Method, Request};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};

use super::parts::GateParts;
use crate::api::Group;
use crate::clock::Clock;
use crate::hot::FoundLoop;
use crate::moment::Moment;
use crate::upstream::OutgoingBody;

/// The times of the Events in the last minute.
#[derive(Debug, Default)]
pub(super) struct Events(VecDeque<Moment>);

// === impl Events ===

impl Events {
    /// Writes an Event about a hot object in a background task, unless five were written in the
    /// last minute.
    pub(super) fn write(&mut self, gate: &Arc<str>, own: &Arc<GateParts>, clock: Clock, report: FoundLoop) {
        let now = clock.now();
        self.0.retain(|at| now - *at < MINUTE);
        if self.0.len() >= MOST || report.names.path.is_empty() {
            return;
        }
        self.0.push_back(now);
        let gate = Arc::clone(gate);
        let own = Arc::clone(own);
        // Bounded: a few in a minute, and each has a few seconds.
        tokio::spawn(async move {
            let written = tokio::select! {
                written = write(&own, &report) => written,
                () = clock.sleep(PATIENCE) => Err("the API server did not answer in time".to_owned()),
            };
            if let Err(error) = written {
                tracing::warn!(
                    gate = &*gate,
                    object = &*report.names.object,
                    error,
                    "cannot write a Kubernetes Event about a hot object"
                );
            }
        });
    }
}

async fn write(own: &GateParts, report: &FoundLoop) -> Result<(), String> {
    let object = call(own, Method::GET, &report.names.path, None).await?;
    let event = event(&object, report).ok_or("the object has no name")?;
    let namespace = event.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or(OF_CLUSTER);
    let path = format!("/api/v1/namespaces/{namespace}/events");
    call(own, Method::POST, &path, Some(event.to_string().into())).await.map(drop)
}

/// Returns the Event about an object as JSON; `None` if the object has no name.
fn event(object: &Value, report: &FoundLoop) -> Option<Value> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let name = text("/metadata/name")?;
    let namespace = text("/metadata/namespace");
    let message: String = report.says(true).chars().take(LONGEST).collect();
    Some(json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "generateName": "tidegate-", "namespace": namespace.unwrap_or(OF_CLUSTER) },
        "involvedObject": {
            "apiVersion": text("/apiVersion"),
            "kind": text("/kind"),
            "namespace": namespace,
            "name": name,
            "uid": text("/metadata/uid"),
        },
        "type": "Warning",
        "reason": "HotObject",
        "message": message,
        "source": { "component": "tidegate" },
        "count": 1,
    }))
}

/// Sends a request in the gate's own name, with the gate's own credentials, and returns the
/// response as JSON.
async fn call(own: &GateParts, method: Method, path: &str, body: Option<Bytes>) -> Result<Value, String> {
    let mut request = Request::builder().method(&method).uri(path).header(USER_AGENT, "tidegate").header(ACCEPT, JSON);
    if let Some(body) = &body {
        request = request.header(CONTENT_TYPE, JSON).header(CONTENT_LENGTH, body.len());
    }
    let body = body.map_or_else(OutgoingBody::default, |body| OutgoingBody::new(vec![body], None, None));
    let request = request.body(body).map_err(|error| error.to_string())?;
    let config = own.config.get();
    let call = config.options.gate.rules.classify(request.method(), request.uri(), request.headers(), &own.hasher);
    let flow_name = call.flow_name(request.headers());
    let permit = own.driver.admit_unmetered(&call.arrival(None, &flow_name));
    let lease = own.upstream.checkout_exempt(Group::Exempt).await.map_err(|error| error.to_string())?;
    let (request, _owed, _slot) = permit.admit(request);
    let response = own.upstream.send(lease, request).await.map_err(|error| error.to_string())?;
    let status = response.status();
    if !status.is_success() {
        return Err(format!("the API server answered {status} to {method} {path}"));
    }
    let body = Limited::new(response.into_body(), LARGEST).collect().await.map_err(|error| error.to_string())?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| error.to_string())
}

const JSON: &str = "application/json";
const MINUTE: Duration = Duration::from_secs(60);
/// The most Events in a minute.
const MOST: usize = 5;
const PATIENCE: Duration = Duration::from_secs(5);
/// The namespace of Events about cluster-scoped objects.
const OF_CLUSTER: &str = "default";
/// The API server's limit for the characters of an Event's message.
const LONGEST: usize = 1000;
/// The largest object to read.
const LARGEST: usize = 4 << 20;
