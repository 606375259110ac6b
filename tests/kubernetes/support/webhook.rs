//! A validating admission webhook that makes the real API server answer 500 for chosen objects.
//!
//! kube-apiserver passes a denial with a status to the client as its own answer. The objects that
//! fail, and their statuses, can change while it runs. It serves every namespace that is labelled
//! `test: NAME` with the name that it was given.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::control_plane::ControlPlane;

type Shared = Arc<Mutex<Orders>>;

#[derive(Debug, Default)]
struct Orders {
    /// The objects whose writes fail, by name, and the status that answers each.
    failing: HashMap<String, Value>,
    /// The time that each review takes.
    delay: Duration,
}

/// A webhook, registered and serving. Dropping it ends the serving, not the registration.
#[derive(Debug)]
pub(crate) struct Webhook {
    orders: Shared,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Webhook {
    /// Serves, and registers itself for the status of widgets in the namespace.
    pub(crate) fn start(plane: &ControlPlane, namespace: &str) -> Self {
        Self::of(plane, namespace, "UPDATE", &json!({"tidegate.test": ["widgets/status"]}))
    }

    /// Serves, and registers itself for one operation on the resources of these groups in the
    /// namespace.
    pub(crate) fn of(plane: &ControlPlane, namespace: &str, operation: &str, resources: &Value) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate can be made");
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .expect("the key fits the certificate");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be built");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a loopback port");
        let port = listener.local_addr().expect("it is bound").port();
        let orders = Shared::default();
        runtime.spawn(serve(listener, TlsAcceptor::from(Arc::new(config)), Arc::clone(&orders)));
        let bundle = base64::engine::general_purpose::STANDARD.encode(made.cert.pem());
        plane.apply(&registration(namespace, port, &bundle, &rules(operation, resources)));
        Self { orders, runtime: Some(runtime) }
    }

    /// From now on exactly these objects fail, with a 500.
    pub(crate) fn fail(&self, names: impl IntoIterator<Item = String>) {
        let status = json!({"code": 500, "reason": "InternalError", "message": "this one fails by order of the test"});
        self.fail_with(names, &status);
    }

    /// From now on exactly these objects fail, with this status.
    pub(crate) fn fail_with(&self, names: impl IntoIterator<Item = String>, status: &Value) {
        let failing = names.into_iter().map(|name| (name, status.clone())).collect();
        lock(&self.orders).failing = failing;
    }

    /// From now on each review takes this time.
    pub(crate) fn delay(&self, delay: Duration) {
        lock(&self.orders).delay = delay;
    }
}

fn lock(orders: &Shared) -> MutexGuard<'_, Orders> {
    orders.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Webhook {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn rules(operation: &str, resources: &Value) -> Value {
    let groups = resources.as_object().expect("a list of resources for each group");
    let rule = |(group, resources): (&String, &Value)| json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": [operation], "resources": resources});
    groups.iter().map(rule).collect()
}

fn registration(namespace: &str, port: u16, bundle: &str, rules: &Value) -> String {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [{
            "name": "fail.tidegate.test",
            "clientConfig": {"url": format!("https://127.0.0.1:{port}/"), "caBundle": bundle},
            "namespaceSelector": {"matchLabels": {"test": namespace}},
            "rules": rules,
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail", "timeoutSeconds": 10,
        }],
    })
    .to_string()
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, orders: Shared) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (tls, orders) = (tls.clone(), Arc::clone(&orders));
        tokio::spawn(async move {
            drop(stream.set_nodelay(true));
            let Ok(stream) = tls.accept(stream).await else { return };
            let service = service_fn(move |request| review(request, Arc::clone(&orders)));
            drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

#[expect(clippy::disallowed_methods, reason = "other programs run on real time")]
async fn review(request: Request<Incoming>, orders: Shared) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = match request.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => Bytes::new(),
    };
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let name = review.pointer("/request/name").and_then(Value::as_str).unwrap_or_default();
    let status = lock(&orders).failing.get(name).cloned();
    let delay = lock(&orders).delay;
    tokio::time::sleep(delay).await;
    let mut answer = json!({"uid": review.pointer("/request/uid"), "allowed": status.is_none()});
    if let Some(status) = status {
        answer["status"] = status;
    }
    let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer});
    let response = Response::builder().header("content-type", "application/json");
    Ok(response.body(Full::new(Bytes::from(answer.to_string()))).expect("a valid response"))
}
