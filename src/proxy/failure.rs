//! Why a call gets no answer of the upstream's.

use std::sync::Arc;

use crate::{api::Verb, credentials::Forbidden, limit::Refusal, upstream::DialError};

use super::observe::Account;

/// A call without an answer of the upstream's, with what is needed to answer in its stead.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) failure: Failure,
    pub(crate) account: Account,
    pub(crate) verb: Verb,
    /// A HEAD is answered without a body, a GET may be asked again.
    pub(crate) method: http::Method,
}

/// Why.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The client's own body broke off.
    #[error("the request's body broke off")]
    Client,
    /// It may not pass with the gate's credentials.
    #[error(transparent)]
    Forbidden(Forbidden),
    /// It was sent, then lost before the response head.
    #[error(
        "the request was sent, and then the connection to the upstream was lost: whether it was carried out is not known"
    )]
    Lost,
    /// The limiter said no.
    #[error("{}", .0.reason)]
    Refused(Refusal),
    /// The response head did not come in time.
    #[error("the upstream did not answer within {0:?}: whether the request was carried out is not known")]
    Timeout(std::time::Duration),
    /// No connection could be had, and nothing was sent.
    #[error("the upstream cannot be reached, and nothing was sent: {}", .0.as_ref().map_or_else(|| CLOSED.to_owned(), ToString::to_string))]
    Unconnected(Option<Arc<DialError>>),
}

const CLOSED: &str = "it closed the connection";
