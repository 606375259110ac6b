//! Why a call got no response from the upstream.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;

use crate::clients::ClientRefusal;
use crate::credentials::CredentialRefusal;
use crate::limit::Refusal;
use crate::upstream::DialError;

/// Why a call got no response from the upstream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallFailure {
    /// The client's request body broke off.
    #[error("the client's request body ended too early")]
    Client,
    /// The client did not authenticate, or may not use the gate.
    #[error(transparent)]
    Denied(ClientRefusal),
    /// The call may not be sent with the gate's own credentials.
    #[error(transparent)]
    Forbidden(CredentialRefusal),
    /// The call was sent, but the connection was lost before the response head.
    #[error("the connection to the upstream broke after the request was sent: whether it was carried out is not known")]
    Lost,
    /// The limiter refused the call.
    #[error("{}", .0.reason)]
    Refused(Refusal),
    /// The response head did not come in time.
    #[error("the upstream did not answer within {0:?}: whether the request was carried out is not known")]
    Timeout(Duration),
    /// The upstream answered 304 to the gate's own conditions, but it cannot be verified that the
    /// kept answer still holds. The request must be sent again without conditions.
    #[error("the upstream answered 304, but it is not certain that the kept response is the one it means")]
    Unproven(Box<Parts>),
    /// No connection to the upstream could be made, so nothing was sent.
    #[error("the upstream cannot be reached, and nothing was sent: {}", .0.as_ref().map_or_else(|| CLOSED.to_owned(), ToString::to_string))]
    Unconnected(Option<Arc<DialError>>),
}

const CLOSED: &str = "the upstream closed the connection";
