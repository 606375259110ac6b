//! Upgrades: a call that asks to switch protocols, on an HTTP/1.1 connection of its own.
//!
//! The connection serves nothing else, whatever the answer: nothing of one client's session can be read as another's response. It becomes a
//! tunnel only at a 101 that names the protocol that was asked for; every other answer is an ordinary response, after which the connection
//! is closed (CVE-2018-1002105 and CVE-2020-8559 are what happens otherwise).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::{
    HeaderMap, Request, Response, StatusCode, Version,
    header::{CONNECTION, UPGRADE},
    request,
};
use hyper::{client::conn::http1, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;

use super::{
    Meters, Occupancy, Upstream,
    body::Outgoing,
    dial::Dialer,
    error::{DialError, DialFailure, SendError},
    pool::connection::{self, Counted, Traffic},
    prepare::{self, Head},
    send::{Broken, lost, unsent},
    streaming::{Hold, Streaming},
};
use crate::{api::Group, moment::Moment};

/// What a call may ask to speak instead of HTTP. What is not here is not asked of the upstream: `h2c` above all, which Java's client offers
/// with every first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// kubectl until 1.30, and whenever WebSockets fail.
    Spdy,
    /// RFC 6455.
    WebSocket,
}

/// An HTTP/1.1 connection for one call.
#[derive(Debug)]
pub struct Dedicated {
    sender: http1::SendRequest<Outgoing>,
}

/// How a request to switch was answered.
#[derive(Debug)]
pub enum Upgraded {
    /// By switching: the head, and the bytes that follow it once it is on its way.
    Switched(Response<()>, OnUpgrade),
    /// As any other request.
    Answered(Response<Streaming>),
}

/// The connections of upgrades.
#[derive(Debug, Default)]
pub(super) struct Upgrades {
    open: AtomicUsize,
}

/// One of the connections of upgrades.
#[derive(Debug)]
pub(super) struct Open(Arc<Upgrades>);

// === impl Protocol ===

impl Protocol {
    /// What a request asks for, if it asks for one protocol that may be asked for.
    #[must_use]
    pub fn asked(parts: &request::Parts) -> Option<Self> {
        let connection = parts.headers.get_all(CONNECTION).iter();
        let mut tokens = connection.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        let asks = tokens.any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade"));
        if asks && parts.version == Version::HTTP_11 { Self::named(&parts.headers) } else { None }
    }

    /// The one protocol that the Upgrade field names.
    pub(super) fn named(headers: &HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all(UPGRADE).iter();
        let (Some(line), None) = (lines.next(), lines.next()) else { return None };
        let is = |name: &[u8]| line.as_bytes().trim_ascii().eq_ignore_ascii_case(name);
        if is(b"websocket") {
            Some(Self::WebSocket)
        } else if is(b"spdy/3.1") {
            Some(Self::Spdy)
        } else {
            None
        }
    }
}

// === impl Dedicated ===

impl Dedicated {
    pub(super) async fn dial(
        dialer: &Dialer,
        meters: &Meters,
        upgrades: &Arc<Upgrades>,
        now: Moment,
    ) -> Result<Self, Arc<DialError>> {
        let dialled = async {
            dialer.prepare(now).await?;
            let connecting = async {
                let socket = dialer.connect_http1().await?;
                let traffic = Traffic { open: Some(Open::one(upgrades)), ..Traffic::default() };
                let io = TokioIo::new(Counted::new(socket, Arc::new(traffic)));
                connection::http1_builder().handshake(io).await.map_err(DialFailure::Http)
            };
            dialer.within(connecting).await
        };
        let (sender, connection) = dialled.await.map_err(|what| {
            if let Some(meters) = meters.get() {
                meters.dial_failed(Group::Upgrades);
            }
            Arc::new(dialer.failure(what))
        })?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "the upstream connection of an upgrade ended");
            }
        });
        Ok(Self { sender })
    }
}

impl Upstream {
    pub(super) async fn switch(
        &self,
        mut connection: Dedicated,
        protocol: Protocol,
        request: Request<Outgoing>,
    ) -> Result<Upgraded, SendError> {
        let (parts, body) = request.into_parts();
        let settings = self.inner.settings();
        let links = self.links(&settings, &parts);
        let mut head = Head::new(parts, &self.inner.target, &settings.host, Some(protocol)).map_err(unsent)?;
        let shown = self.authorize(&mut head).await?;
        body.begin(&self.inner.budget, head.declares_length());
        let sent = connection.sender.send_request(head.http1(body.attempt(None))).await;
        let mut response = sent.map_err(|error| match body.broken() {
            Some(source) => SendError::Client { source },
            None => lost(error),
        })?;
        if let Some(broken) = Broken::in_answer(&response, Some(protocol)) {
            return Err(lost(broken));
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let bytes = hyper::upgrade::on(&mut response);
            let mut head = response.map(drop);
            prepare::switched(&mut head);
            return Ok(Upgraded::Switched(head, bytes));
        }
        let response = response.map(|body| Streaming::new(body, Hold::Nothing));
        Ok(Upgraded::Answered(self.answered(response, shown, links.as_ref())))
    }
}

// === impl Upgrades ===

impl Upgrades {
    /// Each has one use, and none is ever free.
    pub(super) fn occupancy(&self) -> Occupancy {
        let open = self.open.load(Ordering::Relaxed);
        Occupancy { connections: open, used: open, free: 0 }
    }
}

impl Open {
    fn one(upgrades: &Arc<Upgrades>) -> Self {
        upgrades.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(upgrades))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_protocol_of_the_two_is_asked_for() {
        let asked = |version, fields: &[(&str, &str)]| {
            let request = Request::get("/").version(version);
            let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            Protocol::asked(&request.body(()).expect("valid").into_parts().0)
        };
        let http11 = Version::HTTP_11;
        for (connection, upgrade, protocol) in [
            ("Upgrade", "websocket", Some(Protocol::WebSocket)),
            ("keep-alive, upgrade", "WebSocket", Some(Protocol::WebSocket)),
            ("Upgrade", "SPDY/3.1", Some(Protocol::Spdy)),
            ("Upgrade, HTTP2-Settings", "h2c", None),
            ("Upgrade", "TLS/1.2", None),
            ("Upgrade", "websocket, h2c", None),
            ("keep-alive", "websocket", None),
            ("xupgrade", "websocket", None),
        ] {
            assert_eq!(
                asked(http11, &[("connection", connection), ("upgrade", upgrade)]),
                protocol,
                "{connection} {upgrade}"
            );
        }
        let lines = [("connection", "a"), ("connection", "Upgrade"), ("upgrade", "websocket")];
        assert_eq!(asked(http11, &lines), Some(Protocol::WebSocket));
        assert_eq!(asked(Version::HTTP_10, &lines), None);
        let twice = [("connection", "Upgrade"), ("upgrade", "websocket"), ("upgrade", "SPDY/3.1")];
        assert_eq!(asked(http11, &twice), None);
    }
}
