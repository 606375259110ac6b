//! Reasons to refuse a client.

use std::sync::Arc;

use http::StatusCode;

use crate::credentials::ApiError;

/// Why a client is refused. It names no other client, and no token.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientRefusal {
    /// The client sent no token or certificate.
    #[error("this gate asks its clients who they are, and this call does not say: {0}")]
    NothingShown(&'static str),
    /// The client sent several tokens.
    #[error("this call shows more than one token; expected one")]
    Ambiguous,
    /// The client's token is invalid.
    #[error("TokenReview rejected this call's token: it has expired, was revoked, or is for another audience")]
    WrongToken,
    /// The client's certificate has no name.
    #[error("the client's certificate has no common name (CN), by which this gate would know it")]
    NoName,
    /// The client's name is not in `clients.allowed`.
    #[error("client {0:?} is not one of those that this gate lets in (clients.allowed)")]
    NotAllowed(Arc<str>),
    /// The API server cannot review the token.
    #[error("the gate cannot find out who calls, because its TokenReview fails, and refuses unknown callers: {0}")]
    Unreviewed(Arc<ApiError>),
    /// Too many token reviews are under way.
    #[error("the gate cannot find out who calls: too many TokenReviews are under way")]
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
