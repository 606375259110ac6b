//! Reasons for refusing a client.

use std::sync::Arc;

use http::StatusCode;

use crate::credentials::ApiError;

/// Why a client is refused. The text names no other client, and no token.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientRefusal {
    /// The client sent no token or certificate.
    #[error("this gate authenticates its clients, and this call has no token or certificate: {0}")]
    NothingShown(&'static str),
    /// The client sent several tokens.
    #[error("this call has several tokens; expected one")]
    Ambiguous,
    /// The client's token is invalid.
    #[error("TokenReview rejected this call's token: it has expired, was revoked, or is for another audience")]
    WrongToken,
    /// The client's certificate has no name.
    #[error("the client's certificate has no common name (CN), which this gate needs as the client's name")]
    NoName,
    /// The client's name is not in `clients.allowed`.
    #[error("client {0:?} may not use this gate: clients.allowed does not list it")]
    NotAllowed(Arc<str>),
    /// The API server cannot review the token.
    #[error("the gate cannot authenticate this call's client, because its TokenReview fails: {0}")]
    Unreviewed(Arc<ApiError>),
    /// Too many token reviews are under way.
    #[error("the gate cannot authenticate this call's client: too many TokenReviews are under way")]
    Busy,
}

// === impl ClientRefusal ===

impl ClientRefusal {
    /// Returns the HTTP status of the refusal, and the seconds until a retry makes sense.
    pub fn status(&self) -> (StatusCode, Option<u64>) {
        match self {
            Self::NothingShown(_) | Self::Ambiguous | Self::WrongToken | Self::NoName => {
                (StatusCode::UNAUTHORIZED, None)
            }
            Self::NotAllowed(_) => (StatusCode::FORBIDDEN, None),
            Self::Unreviewed(_) | Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, Some(1)),
        }
    }

    /// Returns the metrics label of the refusal.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::NothingShown(_) => "nothing_shown",
            Self::Ambiguous => "ambiguous",
            Self::WrongToken => "wrong_token",
            Self::NoName => "no_name",
            Self::NotAllowed(_) => "not_allowed",
            Self::Unreviewed(_) => "unreviewed",
            Self::Busy => "busy",
        }
    }
}
