//! A client of one program, which connects when it has to.

use std::path::PathBuf;
use std::time::Duration;

use http::Method;
use http_body_util::BodyExt as _;
use serde_json::Value;

use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::{ControlPlane, User};
use crate::support::gate::Way;

pub(super) struct Operator<'a> {
    way: Way<'a>,
    user: User,
    agent: String,
    connection: Option<Connection>,
}

impl<'a> Operator<'a> {
    pub(super) fn new(way: Way<'a>, user: &User, agent: &str) -> Self {
        Self { way, user: user.clone(), agent: agent.to_owned(), connection: None }
    }

    /// Makes a call, once more if the connection was idle for too long.
    pub(super) async fn call(&mut self, method: &Method, path: &str, body: &str) -> (u16, Value) {
        for _ in 0..3 {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => Connection::open(self.way, &self.user, Protocol::Http2).await.with_agent(&self.agent),
            };
            let Ok(answer) = connection.send(method.clone(), path, body).await else { continue };
            let status = answer.status().as_u16();
            let Ok(body) = answer.into_body().collect().await else { continue };
            self.connection = Some(connection);
            return (status, serde_json::from_slice(&body.to_bytes()).unwrap_or_default());
        }
        panic!("{} gets no answer to {method} {path}", self.agent);
    }
}

/// Writes the audit log's events in a namespace to a file, as this level would have them. `time` gives each the
/// time of its arrival, if that is not the real one.
pub(super) fn log_of(
    plane: &ControlPlane,
    namespace: &str,
    level: &str,
    mut time: impl FnMut() -> Option<Duration>,
) -> PathBuf {
    let log = std::fs::read_to_string(plane.audit_log()).expect("it is there");
    let is_ours = |line: &&str| line.contains(&format!("\"namespace\":\"{namespace}\"")) && line.contains(ANSWERED);
    let mut text = String::new();
    for line in log.lines().filter(is_ours) {
        let mut event: Value = serde_json::from_str(line).expect("JSON");
        let fields = event.as_object_mut().expect("an event");
        for (object, has_object) in
            [("requestObject", level == "Metadata"), ("responseObject", level != "RequestResponse")]
        {
            if has_object {
                fields.remove(object);
            }
        }
        if let Some(at) = time() {
            let seconds = at.as_secs();
            let micros = at.subsec_micros();
            let at =
                format!("2026-01-01T{:02}:{:02}:{:02}.{micros:06}Z", seconds / 3600, seconds / 60 % 60, seconds % 60);
            ["requestReceivedTimestamp", "stageTimestamp"].iter().for_each(|field| event[*field] = at.as_str().into());
        }
        text += &format!("{event}\n");
    }
    let path = plane.file(&format!("{namespace}-{level}.log"));
    std::fs::write(&path, text).expect("the folder is ours");
    path
}

const ANSWERED: &str = "\"stage\":\"ResponseComplete\"";
