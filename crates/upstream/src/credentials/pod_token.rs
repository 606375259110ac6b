//! The token required from clients of a gate with credentials of its own.
//!
//! It is random, created when the pod starts, and stored in a folder that only the controller
//! mounts. So access to the port alone does not give access to the API.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use subtle::ConstantTimeEq;

use crate::tls::{self, TlsError};

/// The token required from clients. `Debug` does not show it.
#[derive(Clone, derive_more::Debug)]
#[debug("***")]
pub struct PodToken(String);

impl PodToken {
    /// Creates a random token.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn random() -> Result<Self, TlsError> {
        tls::random_text().map(Self)
    }

    /// Returns the token stored before a restart, if `text` is a valid token.
    pub fn again(text: &str) -> Option<Self> {
        let is_ours = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (text.len() == LENGTH && text.bytes().all(is_ours)).then(|| Self(text.to_owned()))
    }

    /// Returns the token as text, to be written to the controller's folder.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns true if a request has this token, as its only bearer token.
    pub(super) fn is_shown(&self, headers: &HeaderMap) -> bool {
        let mut lines = headers.get_all(AUTHORIZATION).iter();
        let (Some(line), None) = (lines.next(), lines.next()) else { return false };
        let Some((scheme, shown)) = line.as_bytes().split_at_checked(BEARER.len()) else { return false };
        // the time that this takes does not tell how much of it was right
        scheme.eq_ignore_ascii_case(BEARER) && bool::from(shown.trim_ascii().ct_eq(self.0.as_bytes()))
    }
}

const BEARER: &[u8] = b"bearer ";
/// The length of a token: 32 bytes in base64. Tokens of service accounts are much longer.
const LENGTH: usize = 43;

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_token_alone_lets_a_request_in() {
        let token = PodToken::random().expect("randomness");
        assert!(PodToken::again(token.reveal()).is_some_and(|again| again.reveal() == token.reveal()));
        assert!(PodToken::again("eyJhbGciOiJSUzI1NiJ9.e30.c2ln").is_none(), "a token of the API's is not ours");
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
