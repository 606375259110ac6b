//! The control plane by itself, which every other test relies on.

use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::ControlPlane;
use crate::support::gate::Way;
use crate::support::{block_on, turn};

#[test]
fn the_audit_log_names_who_called_and_what_was_answered() {
    let Some(plane) = ControlPlane::shared("the_audit_log_names_who_called_and_what_was_answered") else { return };
    let _turn = turn::light();
    let user = plane.master();
    let version = block_on(async {
        let mut connection = Connection::open(Way::Direct(plane), &user, Protocol::Http2).await;
        connection.get("/api/v1/namespaces/default").await;
        connection.get("/version").await
    });
    assert!(version.contains("v1.36.3"), "{version}");
    let seen = plane.audit().of(&user.name);
    let calls: Vec<_> = seen.0.iter().map(|event| (event.verb.as_str(), event.uri.as_str(), event.code)).collect();
    assert_eq!(calls, [("get", "/api/v1/namespaces/default", 200), ("get", "/version", 200)]);
    assert!(seen.0[0].is_metered() && !seen.0[1].is_metered());
    assert!(seen.0[0].answered >= seen.0[0].received);
}
