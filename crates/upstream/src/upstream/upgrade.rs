//! Upgrades: calls to switch to another protocol, each on its own HTTP/1.1 connection.
//!
//! The connection serves nothing else, whatever the response, so that no part of one client's
//! session can be taken for another's response. It becomes a tunnel only after a 101 with the
//! requested protocol. Any other response is an ordinary one, and then the connection is closed.
//! (Otherwise vulnerabilities arise such as CVE-2018-1002105 and CVE-2020-8559.)

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;

use super::body::OutgoingBody;
use super::error::{DialError, SendError};
use super::http1::{Traffic, handshake};
use super::pool::SentBody;
use super::prepare::{self, Head};
use super::protocol::Protocol;
use super::response_body::{Hold, ResponseBody};
use super::send::BrokenAnswer;
use super::{Upstream, within};
use crate::api::Group;
use crate::limit::Admitted;

/// An HTTP/1.1 connection for a single upgrade.
#[derive(Debug)]
pub struct DedicatedConnection(http1::SendRequest<SentBody>);

/// The response to an upgrade request.
#[derive(Debug)]
pub enum UpgradeAnswer {
    /// The upstream has switched protocols. Contains the response head, and the tunnel after it.
    Switched(Response<()>, OnUpgrade),
    /// The upstream gave an ordinary response.
    Answered(Response<ResponseBody>),
}

impl Upstream {
    /// Makes an HTTP/1.1 connection for one upgrade. It serves nothing else, whatever the response.
    ///
    /// # Errors
    /// No connection could be made.
    pub async fn dedicate(&self) -> Result<DedicatedConnection, Arc<DialError>> {
        let dialing = async {
            let dialer = &self.inner.dialer;
            let connecting = async {
                let traffic = Traffic { upgrade: Some(Arc::clone(&self.inner.upgrades)), ..Traffic::default() };
                handshake(dialer.connect(true).await?, Arc::new(traffic)).await
            };
            let ((sender, connection), _) = dialer.dial(Group::Upgrades, self.inner.clock.now(), connecting).await?;
            tokio::spawn(async move {
                if let Err(error) = connection.with_upgrades().await {
                    tracing::debug!(%error, "the upstream connection of an upgraded call broke");
                }
            });
            Ok(DedicatedConnection(sender))
        };
        Box::pin(dialing).await // boxed: it is large and rare
    }

    /// Sends a request to switch to `protocol`, and returns when the response head has arrived.
    ///
    /// Unlike with [`Upstream::send`], a request is never sent twice. Long-running calls have no
    /// timeout.
    ///
    /// # Errors
    /// What happened to the request. A switch to another protocol is an error, too.
    pub async fn upgrade(
        &self,
        mut connection: DedicatedConnection,
        protocol: Protocol,
        is_long_running: bool,
        request: Admitted<Request<OutgoingBody>>,
    ) -> Result<UpgradeAnswer, SendError> {
        let settings = self.inner.settings.get();
        let limit = settings.response_timeout.filter(|_| !is_long_running);
        let switching = async {
            let (parts, body) = request.into_inner().into_parts();
            let links = self.links(&settings, &parts);
            let head = Head::new(parts, &self.inner.target, &settings.host, Some(protocol));
            let mut head = head.map_err(|error| SendError::Unsent(Arc::new(error)))?;
            let version = self.authorize(&mut head, Group::Upgrades).await?;
            body.begin(&self.inner.budget, || head.declares_length());
            let sending = connection.0.send_request(head.http1(body.attempt(None)));
            drop(connection); // it serves nothing else, and what it could not send comes back only so
            let mut response = sending.await.map_err(|error| match body.broken() {
                Some(source) => SendError::Client(source),
                None => SendError::Lost(Arc::new(error)),
            })?;
            if let Some(broken) = BrokenAnswer::find(&response, Some(protocol)) {
                return Err(SendError::Lost(Arc::new(broken)));
            }
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                let bytes = hyper::upgrade::on(&mut response);
                let mut head = response.map(drop);
                prepare::switched(&mut head);
                links.iter().for_each(|links| links.rewrite(head.headers_mut()));
                return Ok(UpgradeAnswer::Switched(head, bytes));
            }
            let response = response.map(|body| ResponseBody::new(body, Hold::Nothing));
            Ok(UpgradeAnswer::Answered(self.answered(response, version, links.as_ref())))
        };
        within(limit, Box::pin(switching)).await // it is large and rare
    }
}
