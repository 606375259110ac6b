//! Lists too large for any buffer on the way, and readers that stop in the middle of them.

use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::block_on;
use super::client::{Connection, Protocol};
use super::control_plane::ControlPlane;
use super::gate::Way;

/// The whole list has more bytes than this.
pub(crate) const LIST_BYTES: usize = 15_000_000;

/// Fills a namespace with 400 objects of 48 KiB: a list of some 19 MiB.
pub(crate) fn fill(plane: &ControlPlane, namespace: &str) {
    plane.namespace(namespace);
    let filler = "x".repeat(48 * 1024);
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    block_on(async {
        let mut connection = Connection::open(Way::Direct(plane), &ControlPlane::harness(), Protocol::Http2).await;
        for number in 0..400 {
            let body = format!(r#"{{"metadata":{{"name":"large-{number}"}},"data":{{"filler":"{filler}"}}}}"#);
            let (status, answer) = connection.call(Method::POST, &path, &body).await;
            assert_eq!(status, 201, "{answer}");
        }
    });
}

/// Asks for the whole list, reads its first piece, and then stops.
pub(crate) async fn stall(connection: &mut Connection, namespace: &str) -> Incoming {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let answer = connection.send(Method::GET, &path, "").await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let mut body = answer.into_body();
    body.frame().await.expect("a first piece").expect("a first piece");
    body
}
