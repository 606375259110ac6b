//! Asks the API server whose a token is (`TokenReview`), once for all calls that wait for the same
//! answer.
//!
//! A token that is in use is asked about again before its answer is too old, beside the calls, so
//! that only its first call waits. Without an answer nobody is let in who is not known.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring::hmac;
use ring::rand::SystemRandom;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::cache::{Cache, Digest, Seen};
use super::denied::Denied;
use crate::clock::Clock;
use crate::credentials::{Api, ApiError};
use crate::telemetry::table;

/// Asks whose tokens are.
#[derive(derive_more::Debug)]
#[debug("Reviewer({api:?})")]
pub(super) struct Reviewer {
    api: Api,
    gate: Arc<str>,
    audiences: Vec<String>,
    key: hmac::Key,
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    cache: Cache,
    /// The questions under way.
    asked: HashMap<Digest, watch::Receiver<Option<Answer>>>,
    /// The number of those that nothing was known of before.
    first: usize,
}

/// The client that a token belongs to, if it is right.
type Answer = Result<Option<Arc<str>>, Arc<ApiError>>;

// === impl Reviewer ===

impl Reviewer {
    /// Makes one whose right answers last for `lasts`.
    pub(super) fn new(api: Api, gate: Arc<str>, audiences: Vec<String>, lasts: Duration, clock: Clock) -> Option<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok()?;
        let state = State { cache: Cache::new(lasts), asked: HashMap::new(), first: 0 };
        Some(Self { api, gate, audiences, key, clock, state: Mutex::new(state) })
    }

    /// Returns whose a token is.
    pub(super) async fn review(self: &Arc<Self>, token: &str) -> Result<Arc<str>, Denied> {
        let mut told = match self.look(token)? {
            Looked::Known(client) => return Ok(client),
            Looked::Asked(told) => told,
        };
        // The question ends with an answer, or with the process.
        let answer = told.wait_for(Option::is_some).await.map_err(|_| Denied::Busy)?.clone();
        match answer {
            Some(Ok(Some(client))) => Ok(client),
            Some(Ok(None)) => Err(Denied::WrongToken),
            Some(Err(error)) => Err(Denied::Unreviewed(error)),
            None => Err(Denied::Busy),
        }
    }

    /// Looks for an answer that is known, and asks where it is needed.
    fn look(self: &Arc<Self>, token: &str) -> Result<Looked, Denied> {
        let digest = self.digest(token);
        let mut state = self.state();
        match state.cache.look(&digest, self.clock.now()) {
            Seen::Right { client, due } => {
                if due && !state.asked.contains_key(&digest) && state.asked.len() < MOST_ASKED {
                    self.ask(&mut state, digest, token, false);
                }
                Ok(Looked::Known(client))
            }
            Seen::Wrong => Err(Denied::WrongToken),
            Seen::Nothing => match state.asked.get(&digest) {
                Some(told) => Ok(Looked::Asked(told.clone())),
                // What is renewed has room beside it: a flood of tokens that are wrong turns away
                // nobody who is known.
                None if state.first >= MOST_FIRST => Err(Denied::Busy),
                None => Ok(Looked::Asked(self.ask(&mut state, digest, token, true))),
            },
        }
    }

    /// Asks, in a task that outlives the call: others may wait for it.
    fn ask(
        self: &Arc<Self>,
        state: &mut State,
        digest: Digest,
        token: &str,
        is_first: bool,
    ) -> watch::Receiver<Option<Answer>> {
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
                let mut state = reviewer.state();
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
        let mut digest = [0; 32];
        let tag = hmac::sign(&self.key, token.as_bytes());
        digest.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
        digest
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client that is known, or a review under way.
enum Looked {
    Known(Arc<str>),
    Asked(watch::Receiver<Option<Answer>>),
}

/// Reads an answer: the name of the client, if the token is right and for one of the audiences that
/// were asked for. An API server that knows no audiences names none, and then the token is not for
/// one.
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
/// Less than the time after which Go's clients give up on a head.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most questions at once about tokens of which nothing is known.
const MOST_FIRST: usize = 256;
/// The most questions at once.
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
