//! A client that dies while its call waits leaves no trace: nothing upstream, no token spent.

use std::time::Duration;

use http::Method;
use tokio::io::AsyncWriteExt;

use crate::support::client::{Connection, Protocol, dial};
use crate::support::control_plane::{ControlPlane, User};
use crate::support::gate::{Gate, Way};
use crate::support::{block_on, now, pause, say, turn, wait_for};

/// One token every two seconds: time enough to see if it was spent.
const SETTINGS: &str =
    "preset = \"none\"\n[gates.kubernetes.bucket]\nrate = 0.5\nburst = 1\n[gates.kubernetes.queue]\nmax_wait = \"60s\"";
const REFILL: Duration = Duration::from_millis(2_100);

/// The victims' path; the audit log must never show it.
const VICTIM: &str = "/api/v1/namespaces/default/configmaps/never-sent";

#[test]
fn a_client_killed_while_its_call_waits_spends_nothing() {
    let Some(plane) = ControlPlane::shared("a_client_killed_while_its_call_waits_spends_nothing") else { return };
    let _turn = turn::light();
    let gate = Gate::start(plane, SETTINGS);
    let (user, victim) = (plane.master(), plane.master());
    let way = Way::Gate(&gate);
    let head = |method: &str, rest: &str| {
        format!("{method} {VICTIM} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n{rest}\r\n", victim.token)
    };
    let partial = format!(
        "{}{}",
        head("POST", "Content-Type: application/json\r\nContent-Length: 60000\r\n"),
        "x".repeat(20_000)
    );
    let chunked = format!("{}400\r\n{}\r\n", head("POST", "Transfer-Encoding: chunked\r\n"), "x".repeat(1_024));
    let pipelined = format!("{}{}", head("GET", ""), head("GET", ""));
    for (kind, bytes) in [
        ("h1 GET", head("GET", "")),
        ("h1 POST, half sent", partial),
        ("h1 POST, chunked", chunked),
        ("h1, pipelined", pipelined),
    ] {
        killed(&gate, &user, kind, async {
            let mut stream = dial(way, Protocol::Http1).await;
            stream.write_all(bytes.as_bytes()).await.expect("the gate takes it");
            stream.flush().await.expect("the gate takes it");
            stream
        });
    }
    killed(&gate, &user, "h2 GET", async {
        let mut connection = Connection::open(way, &victim, Protocol::Http2).await;
        let call = tokio::spawn(async move { drop(connection.send(Method::GET, VICTIM, "").await) });
        Aborting(call)
    });
    let reached = plane.audit().of(&victim.name);
    assert_eq!(reached.len(), 0, "{:?}", reached.0.first());
}

/// Kills a task, and with it the connection it owns.
struct Aborting(tokio::task::JoinHandle<()>);

impl Drop for Aborting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Spends the token, lets the victim wait, kills it by dropping it, and checks that the next token
/// is still there.
fn killed<V>(gate: &Gate, user: &User, kind: &str, victim: impl Future<Output = V>) {
    block_on(async {
        let mut connection = Connection::open(Way::Gate(gate), user, Protocol::Http1).await;
        connection.get("/api/v1/namespaces/default").await;
        let victim = victim.await;
        wait_for("the victim waits", Duration::from_secs(1), || (gate.waiting() >= 1.0).then_some(()));
        drop(victim);
        tokio::task::yield_now().await;
        let begin = now();
        wait_for("the victim's place is free", Duration::from_secs(1), || (gate.waiting() == 0.0).then_some(()));
        let noticed = begin.elapsed();
        pause(REFILL);
        let begin = now();
        connection.get("/api/v1/namespaces/default").await;
        let waited = begin.elapsed();
        say(format_args!("hangup: {kind}: noticed within {noticed:.0?}, the next call took {waited:.1?}"));
        assert!(waited < Duration::from_millis(800), "{kind}: its token was spent, the next call waited {waited:?}");
    });
    // The token just used comes back before the next kind is tried.
    pause(REFILL);
}
