//! `key = [...]`: keys made of configured parts, instead of those of the kind of API.
//!
//! Values of parts come from clients and may be secrets. So a key's readable name has a checksum of
//! them, except for a few parts that name an operation.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher, Hash, Hasher};
use std::iter;
use std::str::FromStr;

use http::{HeaderName, header};

use super::key::{KeySource, checksum, verb_class};
use super::matcher::Subject;
use super::{ApiKind, Salt};
use crate::api::{self, Call, Key, query_pairs};

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The kind of verb: read, list, watch, write or delete.
    Verb,
    /// The decoded path, without the query.
    Path,
    /// Every value of a query parameter.
    Query(String),
    /// Every value of a header.
    Header(HeaderName),
    /// A digest of the body, of at most 64 KiB.
    Body,
}

/// The parts making up the keys of a gate or class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyParts(Vec<KeyPart>);

/// What is wrong with a part of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyPartError {
    /// The text names no part of a key.
    #[error("expected \"verb\", \"path\", \"query:NAME\", \"header:NAME\" or \"body\"")]
    Unknown,
    /// The name after the colon is missing.
    #[error("which has no name; expected one after the colon")]
    Unnamed,
    /// The name is not that of a header.
    #[error("expected the name of a header after the colon")]
    NoHeader,
    /// The part would contain a credential.
    #[error(
        "which is a credential, and cannot be part of a key; to limit each client: per = \"credential\" on a bucket"
    )]
    Credential,
}

/// What is wrong with a list of parts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyPartsError {
    /// The list has no parts.
    #[error("is an empty list, expected at least one part, or \"auto\"")]
    Empty,
    /// A part is in the list twice.
    #[error("is in the list twice, expected it once")]
    Twice {
        /// The index of the second occurrence.
        index: usize,
    },
}

// === impl KeyPart ===

impl FromStr for KeyPart {
    type Err = KeyPartError;

    fn from_str(text: &str) -> Result<Self, KeyPartError> {
        match text.split_once(':') {
            None if text == "verb" => Ok(Self::Verb),
            None if text == "path" => Ok(Self::Path),
            None if text == "body" => Ok(Self::Body),
            None => Err(KeyPartError::Unknown),
            Some(("query" | "header", "")) => Err(KeyPartError::Unnamed),
            Some(("query", name)) => Ok(Self::Query(name.to_owned())),
            Some(("header", name)) => match name.parse() {
                Ok(name) if CREDENTIALS.contains(&name) => Err(KeyPartError::Credential),
                Ok(name) => Ok(Self::Header(name)),
                Err(_) => Err(KeyPartError::NoHeader),
            },
            Some(_) => Err(KeyPartError::Unknown),
        }
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verb => f.write_str("verb"),
            Self::Path => f.write_str("path"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Body => f.write_str("body"),
        }
    }
}

// === impl KeyParts ===

impl KeyParts {
    /// Creates a key of these parts.
    ///
    /// # Errors
    /// There is no part, or one is there twice.
    pub fn new(parts: Vec<KeyPart>) -> Result<Self, KeyPartsError> {
        if parts.is_empty() {
            return Err(KeyPartsError::Empty);
        }
        let is_second = |(index, part): &(usize, &KeyPart)| parts.iter().take(*index).any(|earlier| earlier == *part);
        match parts.iter().enumerate().find(is_second).map(|(index, _)| index) {
            Some(index) => Err(KeyPartsError::Twice { index }),
            None => Ok(Self(parts)),
        }
    }

    /// Returns the parts, in their order.
    pub fn parts(&self) -> &[KeyPart] {
        &self.0
    }

    /// Returns true if each key is of one object, so that removing the object forgets its failures.
    pub(super) fn is_of_object(&self) -> bool {
        self.0.contains(&KeyPart::Path)
    }

    /// Returns the key of a call, or how to get it from the call's body. The kind of verb is the
    /// key's operation, and the other parts are its object, so that removing an object forgets its
    /// failures with every verb.
    pub(super) fn source(&self, kind: ApiKind, head: &Subject<'_>, hasher: &Salt) -> KeySource {
        if head.call.is_tunnel() {
            return KeySource::None;
        }
        let mut hash = hasher.build_hasher();
        for part in &self.0 {
            hash_part(head, part, &mut hash);
        }
        let object = hash.finish();
        let facet = if self.0.contains(&KeyPart::Verb) { verb_facet(head.call, hasher) } else { 0 };
        if kind == ApiKind::Kubernetes && (head.call.is_collection_read() || head.call.is_discovery()) {
            return KeySource::Known(Key { object, collection: object, facet }); // backs off for a moment only
        }
        match self.0.contains(&KeyPart::Body) {
            true => KeySource::BodyDigest { object, facet, tokens: None },
            false => KeySource::Known(Key { object, collection: hasher.hash_one((object, true)), facet }),
        }
    }

    /// Returns the readable name of the key, without the digest of the body.
    pub(super) fn label(&self, head: &Subject<'_>) -> String {
        let mut text = String::new();
        for part in &self.0 {
            let gap = if text.is_empty() { "" } else { " " };
            // Writing to a String cannot fail.
            let _infallible = match part {
                KeyPart::Verb => write!(text, "{gap}{}", verb_class(head.call)),
                KeyPart::Path => write!(text, "{gap}{}", head.call.path()),
                KeyPart::Query(name) => {
                    let values: Vec<_> = query_values(head, name).collect();
                    write!(text, "{gap}{name}={}", value_label(name, values.iter().map(|value| value.as_bytes())))
                }
                KeyPart::Header(name) => {
                    let values = head.headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
                    write!(text, "{gap}{name}={}", value_label(name.as_str(), values))
                }
                KeyPart::Body => Ok(()),
            };
        }
        if text.is_empty() { "any".to_owned() } else { text }
    }
}

fn query_values<'a>(head: &Subject<'a>, name: &str) -> impl Iterator<Item = Cow<'a, str>> {
    query_pairs(head.query).filter(move |(found, _)| found == name).map(|(_, value)| value)
}

fn hash_part(head: &Subject<'_>, part: &KeyPart, hash: &mut impl Hasher) {
    match part {
        KeyPart::Verb | KeyPart::Body => {}
        KeyPart::Path => head.path.hash(hash),
        KeyPart::Query(name) => {
            query_values(head, name).for_each(|value| (true, value).hash(hash));
            false.hash(hash);
        }
        KeyPart::Header(name) => {
            head.headers.get_all(name).iter().for_each(|value| (true, value.as_bytes()).hash(hash));
            false.hash(hash);
        }
    }
}

fn verb_facet(call: &Call, hasher: &Salt) -> u64 {
    let class = if call.verb.is_delete() { "write" } else { verb_class(call) };
    api::facet(hasher.hash_one(class), call.verb.is_delete())
}

/// Returns the values of a part for the readable name: in clear text if they name an operation,
/// otherwise as a checksum.
fn value_label<'a>(name: &str, mut values: impl Iterator<Item = &'a [u8]>) -> String {
    let Some(first) = values.next() else { return "none".to_owned() };
    if OPERATIONS.contains(&name.to_ascii_lowercase().as_str()) {
        return String::from_utf8_lossy(first).chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect();
    }
    format!("{:08x}", checksum(iter::once(first).chain(values)))
}

/// The longest name of an operation to show.
const LONGEST_NAME: usize = 100;
/// Parameters and headers naming an operation: AWS's, SOAP's, GraphQL's.
const OPERATIONS: [&str; 5] = ["action", "x-amz-target", "soapaction", "operation", "operationname"];
/// Headers containing credentials.
static CREDENTIALS: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
    HeaderName::from_static("private-token"),
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-amz-security-token"),
];

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method, Uri};
    use proptest::prelude::*;

    use super::*;
    use crate::api::external;

    fn parts(texts: &[&str]) -> KeyParts {
        KeyParts::new(texts.iter().map(|text| text.parse().expect(text)).collect()).expect("parts")
    }

    fn subject<'a>(call: &'a Call, query: Option<&'a str>, headers: &'a HeaderMap) -> Subject<'a> {
        Subject { call, path: call.path(), method: &Method::GET, query, headers, words: None }
    }

    fn key(parts: &KeyParts, target: &str, headers: &HeaderMap, hasher: &Salt) -> Key {
        let uri: Uri = target.parse().expect(target);
        let call = external::read(&Method::GET, &uri);
        let head = subject(&call, uri.query(), headers);
        parts.source(ApiKind::Http, &head, hasher).with_body(b"", true, hasher).expect("a key")
    }

    #[test]
    fn every_part_is_read_and_written_and_nothing_else_is_one() {
        for text in ["verb", "path", "body", "query:Action", "query:a:b", "header:x-amz-target"] {
            assert_eq!(text.parse::<KeyPart>().expect(text).to_string(), text);
        }
        for (text, error) in [
            ("", KeyPartError::Unknown),
            ("Verb", KeyPartError::Unknown),
            ("query", KeyPartError::Unknown),
            ("cookie:a", KeyPartError::Unknown),
            ("query:", KeyPartError::Unnamed),
            ("header:", KeyPartError::Unnamed),
            ("header:a b", KeyPartError::NoHeader),
            ("header:Authorization", KeyPartError::Credential),
            ("header:Private-Token", KeyPartError::Credential),
        ] {
            assert_eq!(text.parse::<KeyPart>(), Err(error), "{text}");
        }
        assert_eq!(KeyParts::new(Vec::new()), Err(KeyPartsError::Empty));
        let twice = vec![KeyPart::Path, KeyPart::Body, KeyPart::Path];
        assert_eq!(KeyParts::new(twice), Err(KeyPartsError::Twice { index: 2 }));
    }

    #[test]
    fn values_of_different_number_or_place_are_different_keys() {
        let hasher = Salt::random();
        let none = HeaderMap::new();
        let both = parts(&["query:a", "query:b"]);
        let targets = ["/", "/?a", "/?a=1", "/?a=1&a=2", "/?a=12", "/?b=1", "/?a=1&b=1", "/?a=2&a=1", "/?a=%31%00"];
        for (place, one) in targets.iter().enumerate() {
            for other in &targets[..place] {
                assert_ne!(key(&both, one, &none, &hasher), key(&both, other, &none, &hasher), "{one} {other}");
            }
        }
        assert_eq!(key(&both, "/?c=9&a=%31", &none, &hasher), key(&both, "/x?a=1", &none, &hasher));
    }

    #[test]
    fn a_key_of_nothing_but_the_body_has_a_name_too() {
        let uri = Uri::from_static("/a");
        let call = external::read(&Method::POST, &uri);
        let headers = HeaderMap::new();
        let head = subject(&call, None, &headers);
        assert_eq!(parts(&["body"]).label(&head), "any");
    }

    #[test]
    fn a_name_shows_no_value_that_could_be_a_secret() {
        let uri: Uri = "/?Action=RunInstances&access_token=hunter2".parse().expect("a target");
        let mut headers = HeaderMap::new();
        headers.insert("x-tenant", "hunter2".parse().expect("a value"));
        let call = external::read(&Method::POST, &uri);
        let head = subject(&call, uri.query(), &headers);
        let all =
            parts(&["verb", "path", "query:Action", "query:access_token", "query:none", "header:x-tenant", "body"]);
        let label = all.label(&head);
        assert!(label.starts_with("write / Action=RunInstances access_token="), "{label}");
        assert!(label.contains(" none=none x-tenant=") && !label.contains("hunter2"), "{label}");
    }

    proptest! {
        #[test]
        fn keys_are_equal_exactly_where_every_part_is(
            which in proptest::sample::subsequence(vec!["path", "query:a", "header:x"], 1..=3),
            one in ("[pq]", proptest::collection::vec("[12]", 0..3), proptest::collection::vec("[12]", 0..3)),
            other in ("[pq]", proptest::collection::vec("[12]", 0..3), proptest::collection::vec("[12]", 0..3)),
        ) {
            let hasher = Salt::random();
            let parts = parts(&which);
            let made = |(path, query, header): &(String, Vec<String>, Vec<String>)| {
                let query: Vec<String> = query.iter().map(|value| format!("a={value}")).collect();
                let mut headers = HeaderMap::new();
                for value in header {
                    headers.append("x", value.parse().expect("a value"));
                }
                key(&parts, &format!("/{path}?{}", query.join("&")), &headers, &hasher)
            };
            let has = |part: &str| which.contains(&part);
            let same = (!has("path") || one.0 == other.0)
                && (!has("query:a") || one.1 == other.1)
                && (!has("header:x") || one.2 == other.2);
            prop_assert_eq!(made(&one) == made(&other), same);
        }
    }
}
