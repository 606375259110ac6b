//! What clients of a gate that lends its own identity must show: a random token, made at start, that is in the folder which only the
//! controller mounts. Whoever merely reaches the port has it not.

use std::fmt;

use http::{HeaderMap, header::AUTHORIZATION};
use subtle::ConstantTimeEq;

use crate::tls::{self, TlsError};

/// A token that clients must show. Shows nothing of itself.
#[derive(Clone)]
pub struct PodToken(String);

impl PodToken {
    /// A new one.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn random() -> Result<Self, TlsError> {
        tls::random_text().map(Self)
    }

    /// Its text, to be written where the controller reads it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether a request shows it, once and as a bearer token.
    pub(super) fn is_shown(&self, headers: &HeaderMap) -> bool {
        let mut lines = headers.get_all(AUTHORIZATION).iter();
        let (Some(line), None) = (lines.next(), lines.next()) else { return false };
        let Some((scheme, shown)) = line.as_bytes().split_at_checked(BEARER.len()) else { return false };
        // how long it takes tells nothing about how much of it was right
        scheme.eq_ignore_ascii_case(BEARER) && bool::from(shown.trim_ascii().ct_eq(self.0.as_bytes()))
    }
}

impl fmt::Debug for PodToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

const BEARER: &[u8] = b"bearer ";

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_token_alone_lets_a_request_in() {
        let token = PodToken::random().expect("randomness");
        assert!(token.reveal().len() >= 43 && token.reveal() != PodToken::random().expect("randomness").reveal());
        let shown = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).expect("a value"));
            }
            token.is_shown(&headers)
        };
        let right = format!("Bearer {}", token.reveal());
        assert!(shown(&[&right]) && shown(&[&right.replace("Bearer", "bearer")]));
        let mut short = right.clone();
        short.pop();
        for wrong in [&[][..], &[short.as_str()], &["Bearer "], &["Bearer"], &[token.reveal()], &[&right, &right]] {
            assert!(!shown(wrong), "{wrong:?}");
        }
        assert_eq!(format!("{token:?}"), "***");
    }
}
