//! The identity of a call: its signing key, and its body without idempotency tokens.

use std::borrow::Cow;

use http::{HeaderMap, Method, Uri};
use serde_json::Value;

use super::{Head, aws, form, media_type};

/// Returns the access key id of a SigV4 signature. The id stays the same, while the whole header
/// differs in every call.
pub fn signing_key_id(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    aws::scope(&Head { method: &Method::GET, uri, headers }).map(|scope| scope.key_id)
}

/// A format of bodies that may contain idempotency tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenBody {
    /// Form fields (`application/x-www-form-urlencoded`).
    Form,
    /// JSON, under any media type.
    Json,
}

impl TokenBody {
    /// Returns the format of a request's body, if it may contain idempotency tokens.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let kind = media_type(headers).to_ascii_lowercase();
        match kind.strip_prefix("application/")? {
            "x-www-form-urlencoded" => Some(Self::Form),
            kind => kind.contains("json").then_some(Self::Json),
        }
    }

    /// Returns a body without its idempotency tokens, because these differ between two attempts of
    /// the same call.
    pub fn without_tokens(self, body: &[u8]) -> Cow<'_, [u8]> {
        let kept = std::str::from_utf8(body).ok().and_then(|text| match self {
            Self::Form => form_without(text),
            Self::Json => json_without(text),
        });
        kept.map_or(Cow::Borrowed(body), |kept| Cow::Owned(kept.into_bytes()))
    }
}

/// Returns a form without its idempotency tokens; `None` if it has none.
fn form_without(text: &str) -> Option<String> {
    let is_token = |pair: &&str| form::pairs(pair).any(|(name, _)| is_token(&name));
    let kept: Vec<&str> = text.split('&').filter(|pair| !is_token(pair)).collect();
    (kept.len() < text.split('&').count()).then(|| kept.join("&"))
}

/// Returns a JSON object without its idempotency tokens; `None` if it has none.
fn json_without(text: &str) -> Option<String> {
    let Ok(Value::Object(mut fields)) = serde_json::from_str(text) else { return None };
    let before = fields.len();
    fields.retain(|name, _| !is_token(name));
    (fields.len() < before).then(|| Value::Object(fields).to_string())
}

/// Returns true for the name of an idempotency token. Source: the Smithy trait `idempotencyToken`
/// in AWS's models.
fn is_token(name: &str) -> bool {
    let tokens =
        ["clienttoken", "clientrequesttoken", "callerreference", "idempotencytoken", "requesttoken", "creationtoken"];
    let name = name.to_ascii_lowercase();
    tokens.contains(&name.as_str()) || name.starts_with("x-amzn-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::tests::request;

    fn without(kind: &str, body: &str) -> Option<String> {
        let (_, headers) = request("/", &[("content-type", kind)]);
        match TokenBody::of(&headers)?.without_tokens(body.as_bytes()) {
            Cow::Owned(kept) => Some(String::from_utf8(kept).expect("of a text")),
            Cow::Borrowed(_) => None,
        }
    }

    #[test]
    fn tokens_are_left_out_of_forms_and_of_json() {
        let form = "application/x-www-form-urlencoded";
        assert_eq!(
            without(form, "Action=RunInstances&ClientToken=1-2&MinCount=1").as_deref(),
            Some("Action=RunInstances&MinCount=1")
        );
        assert_eq!(without(form, "Action=RunInstances&MinCount=1"), None);
        let json = "application/x-amz-json-1.1";
        assert_eq!(without(json, r#"{"name":"n","clientRequestToken":"t"}"#).as_deref(), Some(r#"{"name":"n"}"#));
        assert_eq!(without(json, r#"{"inner":{"ClientToken":"t"}}"#), None, "the top alone");
        assert_eq!(without(json, "[1]"), None);
        assert_eq!(without(json, "{\"a\":"), None, "cut off");
        assert_eq!(without("text/plain", "ClientToken=1"), None);
    }

    #[test]
    fn a_signed_call_is_its_key_ids() {
        let authorization = "AWS4-HMAC-SHA256 Credential=AKID/20261123/eu-west-1/sts/aws4_request, Signature=x";
        let (uri, headers) = request("/", &[("authorization", authorization)]);
        assert_eq!(signing_key_id(&uri, &headers).as_deref(), Some("AKID"));
        let (uri, headers) = request("/", &[("authorization", "Bearer x")]);
        assert_eq!(signing_key_id(&uri, &headers), None);
    }
}
