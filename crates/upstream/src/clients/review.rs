//! Token reviews (`TokenReview`), one at a time for each token, shared by all calls waiting for it.
//!
//! A token in use is reviewed again in the background before its cached result expires, so only its
//! first call waits. If the API server does not answer, clients not in the cache are refused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring::hmac;
use ring::rand::SystemRandom;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::cache::{CachedVerdict, Digest, VerdictCache};
use super::refusal::ClientRefusal;
use crate::clock::Clock;
use crate::credentials::{Api, ApiError};
use crate::lock;
use crate::telemetry::table;

/// Determines the client of a token, by a review or from the cache.
#[derive(derive_more::Debug)]
#[debug("Reviewer({api:?})")]
pub(super) struct Reviewer {
    api: Api,
    gate: Arc<str>,
    audiences: Vec<String>,
    key: hmac::Key,
    clock: Clock,
    state: Mutex<ReviewState>,
}

struct ReviewState {
    cache: VerdictCache,
    /// The reviews in progress, for calls to wait for.
    asked: HashMap<Digest, watch::Receiver<Option<ReviewAnswer>>>,
    /// The number of reviews in progress for tokens not in the cache.
    first: usize,
}

/// The result of a review: the token's client, or `None` for an invalid token.
type ReviewAnswer = Result<Option<Arc<str>>, Arc<ApiError>>;

// === impl Reviewer ===

impl Reviewer {
    /// Creates a reviewer; valid tokens are cached for `lasts`.
    pub(super) fn new(api: Api, gate: Arc<str>, audiences: Vec<String>, lasts: Duration, clock: Clock) -> Option<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok()?;
        let state = ReviewState { cache: VerdictCache::new(lasts), asked: HashMap::new(), first: 0 };
        Some(Self { api, gate, audiences, key, clock, state: Mutex::new(state) })
    }

    /// Returns the client of a token, from the cache or from a review.
    pub(super) async fn review(self: &Arc<Self>, token: &str) -> Result<Arc<str>, ClientRefusal> {
        let mut told = match self.look(token)? {
            ReviewLookup::Known(client) => return Ok(client),
            ReviewLookup::Asked(told) => told,
        };
        // The question ends with an answer, or with the process.
        let answer = told.wait_for(Option::is_some).await.map_err(|_| ClientRefusal::Busy)?.clone();
        match answer {
            Some(Ok(Some(client))) => Ok(client),
            Some(Ok(None)) => Err(ClientRefusal::WrongToken),
            Some(Err(error)) => Err(ClientRefusal::Unreviewed(error)),
            None => Err(ClientRefusal::Busy),
        }
    }

    /// Looks a token up in the cache, and starts a review if necessary.
    fn look(self: &Arc<Self>, token: &str) -> Result<ReviewLookup, ClientRefusal> {
        let digest = self.digest(token);
        let mut state = lock(&self.state);
        match state.cache.look(&digest, self.clock.now()) {
            CachedVerdict::Right { client, due } => {
                if due && !state.asked.contains_key(&digest) && state.asked.len() < MOST_ASKED {
                    self.ask(&mut state, digest, token, false);
                }
                Ok(ReviewLookup::Known(client))
            }
            CachedVerdict::Wrong => Err(ClientRefusal::WrongToken),
            CachedVerdict::Unknown => match state.asked.get(&digest) {
                Some(told) => Ok(ReviewLookup::Asked(told.clone())),
                // What is renewed has room beside it: a flood of tokens that are wrong turns away
                // nobody who is known.
                None if state.first >= MOST_FIRST => Err(ClientRefusal::Busy),
                None => Ok(ReviewLookup::Asked(self.ask(&mut state, digest, token, true))),
            },
        }
    }

    /// Starts a review in its own task, so that other calls can wait for it even if this one ends.
    fn ask(
        self: &Arc<Self>,
        state: &mut ReviewState,
        digest: Digest,
        token: &str,
        is_first: bool,
    ) -> watch::Receiver<Option<ReviewAnswer>> {
        let (tell, told) = watch::channel(None);
        state.asked.insert(digest, told.clone());
        state.first += usize::from(is_first);
        let reviewer = Arc::clone(self);
        let token = token.to_owned();
        let asked_at = self.clock.now();
        tokio::spawn(async move {
            let answer = reviewer.question(&token).await.map_err(Arc::new);
            let result = match &answer {
                Ok(Some(_)) => "right",
                Ok(None) => "wrong",
                Err(_) => "failed",
            };
            table::CLIENT_REVIEWS.counter(&[&reviewer.gate, result]).increment(1);
            {
                let mut state = lock(&reviewer.state);
                state.asked.remove(&digest);
                state.first -= usize::from(is_first);
                if let Ok(client) = &answer {
                    state.cache.learn(digest, client.clone(), asked_at);
                }
            }
            tell.send_replace(Some(answer));
        });
        told
    }

    async fn question(&self, token: &str) -> Result<Option<Arc<str>>, ApiError> {
        let mut spec = json!({ "token": token });
        if !self.audiences.is_empty() {
            spec = json!({ "token": token, "audiences": self.audiences });
        }
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec });
        let answer = tokio::time::timeout(PATIENCE, self.api.post(PATH, &review)).await;
        let answer = answer.unwrap_or(Err(ApiError::Late(PATIENCE)))?;
        client(&answer, &self.audiences)
    }

    fn digest(&self, token: &str) -> Digest {
        hmac::sign(&self.key, token.as_bytes()).as_ref().try_into().unwrap_or_default()
    }
}

/// The result of a lookup in the cache: a known client, or a review in progress.
enum ReviewLookup {
    Known(Arc<str>),
    Asked(watch::Receiver<Option<ReviewAnswer>>),
}

/// Returns the client's name from the API server's response; `None` for an invalid token.
///
/// A token must be for one of the expected audiences. If the response names no audience, because
/// the API server does not know audiences, the token is invalid.
fn client(answer: &Value, audiences: &[String]) -> Result<Option<Arc<str>>, ApiError> {
    let status = answer.get("status").filter(|_| answer.get("kind").and_then(Value::as_str) == Some("TokenReview"));
    let status = status.ok_or_else(|| ApiError::Answer("it is not a TokenReview with a status".to_owned()))?;
    if status.get("authenticated").and_then(Value::as_bool) != Some(true) {
        return Ok(None);
    }
    let is_for = |audience: &String| {
        let named = status.get("audiences").and_then(Value::as_array);
        named.is_some_and(|named| named.iter().any(|named| named.as_str() == Some(audience)))
    };
    if !audiences.is_empty() && !audiences.iter().any(is_for) {
        return Ok(None);
    }
    let name = status.get("user").and_then(|user| user.get("username")).and_then(Value::as_str);
    let name = name.filter(|name| !name.is_empty() && !name.chars().any(char::is_control));
    name.map(|name| Some(name.into())).ok_or_else(|| ApiError::Answer("it names no user".to_owned()))
}

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// The timeout of a review, below the response timeout of Go's clients.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most reviews in progress for tokens not in the cache.
const MOST_FIRST: usize = 256;
/// The most reviews in progress for all tokens.
const MOST_ASKED: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, audiences: &[&str]) -> String {
        let audiences: Vec<String> = audiences.iter().map(|audience| (*audience).to_owned()).collect();
        match client(&serde_json::from_str(text).expect("JSON"), &audiences) {
            Ok(Some(name)) => name.to_string(),
            Ok(None) => "nobody".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    fn review(status: &str) -> String {
        format!(r#"{{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{status}}}"#)
    }

    #[test]
    fn a_client_is_known_only_if_the_review_says_so_in_full() {
        let right =
            review(r#"{"authenticated":true,"user":{"username":"system:serviceaccount:a:b"},"audiences":["x"]}"#);
        assert_eq!(read(&right, &[]), "system:serviceaccount:a:b");
        assert_eq!(read(&right, &["y", "x"]), "system:serviceaccount:a:b");
        assert_eq!(read(&right, &["y"]), "nobody");
        let unaware = review(r#"{"authenticated":true,"user":{"username":"u"}}"#);
        assert_eq!(read(&unaware, &["x"]), "nobody", "an answer that names no audience is for none");
        for status in [
            "{}",
            r#"{"authenticated":false,"user":{"username":"u"}}"#,
            r#"{"authenticated":"true","user":{"username":"u"}}"#,
            r#"{"user":{"username":"u"},"error":"invalid bearer token"}"#,
        ] {
            assert_eq!(read(&review(status), &[]), "nobody", "{status}");
        }
        for status in [r#"{"authenticated":true}"#, r#"{"authenticated":true,"user":{"username":""}}"#] {
            assert!(read(&review(status), &[]).contains("names no user"), "{status}");
        }
        for text in ["{}", "[]", r#"{"kind":"Status","status":"Failure"}"#] {
            assert!(read(text, &[]).contains("not a TokenReview"), "{text}");
        }
    }
}
