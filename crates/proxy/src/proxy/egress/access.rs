//! Access to the forward proxy: TLS to the proxy itself, and the clients' credentials.

use std::sync::Arc;

use super::NAME;
use super::head;
use super::reason::{EgressRefusal, Why};
use crate::clients::{ClientRefusal, Clients};
use crate::clock::Clock;
use crate::credentials::Secret;
use crate::proxy::listener::{Handshakes, Stream};
use crate::tls;

/// The access check of the forward proxy.
#[derive(Debug)]
pub(super) struct Access {
    /// The token all clients must send, if one is configured.
    pub(super) token: Option<Secret>,
    /// Authenticates each client, if the listener requires it.
    pub(super) clients: Option<Arc<Clients>>,
    pub(super) tls: Option<Arc<tls::Listener>>,
    pub(super) handshakes: Handshakes,
    pub(super) clock: Clock,
}

impl Access {
    /// Does the TLS handshake, if the proxy listens with TLS. Returns the decrypted connection and
    /// the name in the client's certificate; `None` if the handshake fails.
    pub(super) async fn open(&self, stream: Box<dyn Stream>) -> Option<(Box<dyn Stream>, Option<Arc<str>>)> {
        let Some(tls) = &self.tls else { return Some((stream, None)) };
        let stream = self.handshakes.accept(tls.http1_config(), stream, NAME, || self.clock.now()).await?;
        let name = tls::client_name(stream.get_ref().1);
        Some((Box::new(stream), name))
    }

    /// Checks that a client may use the proxy. Returns the client's name, if the listener
    /// identifies its clients. `named` is the name in the client's certificate, and `shown` are the
    /// values of `Proxy-Authorization`.
    pub(super) async fn admit(
        &self,
        named: Option<&Arc<str>>,
        shown: &[&[u8]],
    ) -> Result<Option<Arc<str>>, EgressRefusal> {
        if let Some(clients) = &self.clients {
            let client = clients.identify_by(named, shown).await;
            return client.map(Some).map_err(|denied| refused(&denied));
        }
        let Some(token) = &self.token else { return Ok(None) };
        let token = token.reveal(self.clock.now()).unwrap_or_default();
        if !token.is_empty() && head::shows(&token, shown) {
            return Ok(None);
        }
        Err(EgressRefusal::new(Why::Authorization, "send the token of egress.token_file as the proxy's password"))
    }

    /// Loads the certificate again if it was renewed.
    pub(super) fn refresh(&self) {
        if let Some(tls) = &self.tls {
            tls.refresh(tls::wall());
        }
    }
}

/// Returns a client's refusal as text for the status line of the response.
fn refused(denied: &ClientRefusal) -> EgressRefusal {
    let text = match denied {
        ClientRefusal::NothingShown(_) => "send the token of a service account as the password in HTTPS_PROXY",
        ClientRefusal::Ambiguous => "several Proxy-Authorization headers; expected one",
        ClientRefusal::WrongToken => "TokenReview rejected this token",
        ClientRefusal::NoName => "the client's certificate has no common name",
        ClientRefusal::NotAllowed(_) => "egress.clients.allowed does not list this client",
        ClientRefusal::Unreviewed(_) => "the client cannot be authenticated: TokenReview fails; see the gate's log",
        ClientRefusal::Busy => "the client cannot be authenticated: too many TokenReviews are under way",
    };
    let refused = EgressRefusal::new(Why::Authorization, text);
    match denied.status().0 {
        http::StatusCode::UNAUTHORIZED => refused, // of a proxy it is 407
        status => refused.with(status),
    }
}
