//! Keys: the identities under which failures are remembered.
//!
//! They are hashes under the process's own hasher: the lookup of a healthy call does not allocate,
//! and no client can aim for a collision. The readable name is only made when a key starts to fail.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::hash::BuildHasher;

use super::checksum::{START, checksum};
use super::matcher::Subject as Request;
use super::{Classified, Kind, Salt};
use crate::api::names::{self, PEEK};
use crate::api::{self, Call, Key, Verb};
use crate::dialect::{TokenBody, Words};

/// The source of a call's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// There is none: no failure is remembered.
    None,
    /// The head tells it.
    Known(Key),
    /// A Kubernetes `create`: the name is in the body.
    NameInBody {
        /// The collection it creates in.
        collection: u64,
        /// Verb class and subresource.
        facet: u64,
    },
    /// An operation of an external API: a digest of the body is part of the key.
    BodyDigest {
        /// Method class and path.
        object: u64,
        /// Verb class.
        facet: u64,
        /// The kind of a body whose idempotency tokens do not count: they differ in each try.
        tokens: Option<TokenBody>,
    },
}

/// The part of an object that a call touches.
#[derive(Hash)]
enum Aspect<'a> {
    Read(&'a str),
    List,
    Watch,
    Write(&'a str),
}

impl KeySource {
    /// Returns the key of a call, as far as its head tells.
    pub(super) fn of(kind: Kind, call: &Call, hasher: &Salt) -> Self {
        if call.is_tunnel() {
            return Self::None; // a pod or service answers it, not the API
        }
        let facet = api::facet(hasher.hash_one(aspect(call)), call.verb.is_delete());
        if kind == Kind::Http || !call.is_resource {
            return Self::of_path(kind, call, facet, hasher);
        }
        let collection = hasher.hash_one((call.group(), call.resource(), call.namespace()));
        match call.verb {
            Verb::List | Verb::Watch => Self::Known(Key { object: collection, collection, facet }),
            Verb::DeleteCollection => {
                Self::Known(Key { object: hasher.hash_one((collection, true)), collection, facet })
            }
            Verb::Create if call.name().is_empty() => Self::NameInBody { collection, facet },
            _ => Self::Known(Key { object: object(collection, call.name(), hasher), collection, facet }),
        }
    }

    fn of_path(kind: Kind, call: &Call, facet: u64, hasher: &Salt) -> Self {
        let object = hasher.hash_one(call.path());
        let collection = hasher.hash_one((call.path(), true));
        match kind {
            Kind::Http if call.verb == Verb::Create => Self::BodyDigest { object, facet, tokens: None },
            Kind::Kubernetes if call.is_discovery() => Self::Known(Key { object: collection, collection, facet }),
            _ => Self::Known(Key { object, collection, facet }),
        }
    }

    /// Returns the key of a call to AWS. A read is told by its body or its query, and a write by
    /// its body without idempotency tokens; calls that the service takes one at a time have one
    /// key.
    pub(super) fn of_aws(words: &Words, request: &Request<'_>, hasher: &Salt) -> Self {
        let call = request.call;
        let Words { service, region, account, action, .. } = words;
        let collection = hasher.hash_one((service, region, account, action, call.path()));
        let deletes = call.verb.is_delete();
        let facet = api::facet(hasher.hash_one(("aws", words.reads)), deletes);
        if !words.serial.is_empty() {
            let object = hasher.hash_one((service, account, &words.serial, true));
            return Self::Known(Key { object, collection: hasher.hash_one((object, true)), facet });
        }
        let object = hasher.hash_one((collection, request.query));
        // S3's bodies are the objects themselves.
        if matches!(call.verb, Verb::Create | Verb::Update | Verb::Patch) && service != "s3" {
            return Self::BodyDigest { object, facet, tokens: TokenBody::of(request.headers) };
        }
        Self::Known(Key { object, collection, facet })
    }

    /// Returns the same of one caller: its failures are not another's.
    pub(super) fn of_caller(self, caller: u64, hasher: &Salt) -> Self {
        let own = |hash: u64| hasher.hash_one((hash, caller));
        match self {
            Self::None => Self::None,
            Self::Known(Key { object, collection, facet }) => {
                Self::Known(Key { object: own(object), collection: own(collection), facet })
            }
            Self::NameInBody { collection, facet } => Self::NameInBody { collection: own(collection), facet },
            Self::BodyDigest { object, facet, tokens } => Self::BodyDigest { object: own(object), facet, tokens },
        }
    }

    /// Returns the collection (or path) of the key. If no key of it fails, the body is not worth a
    /// look.
    pub fn collection(&self) -> Option<u64> {
        match *self {
            Self::None => None,
            Self::Known(key) => Some(key.collection),
            Self::NameInBody { collection, .. } => Some(collection),
            Self::BodyDigest { object, .. } => Some(object),
        }
    }

    /// True if only the body tells the key.
    pub fn needs_body(&self) -> bool {
        matches!(self, Self::NameInBody { .. } | Self::BodyDigest { .. })
    }

    /// Returns the key if the head alone tells it.
    pub fn known(&self) -> Option<Key> {
        match *self {
            Self::Known(key) => Some(key),
            Self::None | Self::NameInBody { .. } | Self::BodyDigest { .. } => None,
        }
    }

    /// Returns the key for (the start of) a body; `whole` is true if it is all of it. `None` if
    /// nothing can be remembered: no name is in it (`generateName`), or an operation's body is
    /// longer than the peek.
    pub fn with_body(&self, body: &[u8], whole: bool, hasher: &Salt) -> Option<Key> {
        match *self {
            Self::Known(key) => Some(key),
            Self::NameInBody { collection, facet } => {
                let name = names::of_object(body)?;
                Some(Key { object: object(collection, &name, hasher), collection, facet })
            }
            Self::BodyDigest { object, facet, tokens } if whole && body.len() <= PEEK => {
                let body = tokens.map_or(Cow::Borrowed(body), |tokens| tokens.without_tokens(body));
                Some(Key { object: hasher.hash_one((object, body)), collection: object, facet })
            }
            Self::None | Self::BodyDigest { .. } => None,
        }
    }
}

impl Classified {
    /// Returns the name of the object that the call is about: `deployments.apps prod/web`, or the
    /// operation of an external API. `body` is the kept part of the body, if the name is in it.
    pub fn object_name(&self, body: Option<&[u8]>) -> String {
        let call = &self.call;
        if self.label.is_some() || !call.is_resource {
            let name = self.key_name(body);
            return name.split_once(' ').map_or_else(|| name.clone(), |(_, name)| name.to_owned());
        }
        let from_body = body.filter(|_| self.key.needs_body()).and_then(names::of_object);
        let name = from_body.as_deref().unwrap_or_else(|| call.name());
        let place = if call.namespace().is_empty() { String::new() } else { format!("{}/", call.namespace()) };
        format!("{} {place}{name}", self.object_kind())
    }

    /// Returns its kind, without any name.
    pub fn object_kind(&self) -> String {
        match (&self.words, self.call.resource(), self.call.group()) {
            (Some(words), ..) if !words.action.is_empty() => format!("{} {}", words.service, words.action),
            (_, "", _) => verb_class(&self.call).to_owned(),
            (_, resource, "") => resource.to_owned(),
            (_, resource, group) => format!("{resource}.{group}"),
        }
    }
}

fn object(collection: u64, name: &str, hasher: &Salt) -> u64 {
    hasher.hash_one((collection, name))
}

/// Returns the part of an object that a call touches. Reads and writes fail apart, and so do lists
/// and watches: the success of one must not forget the failure of the other.
fn aspect(call: &Call) -> Aspect<'_> {
    match call.verb {
        Verb::Get => Aspect::Read(call.subresource()),
        Verb::List => Aspect::List,
        Verb::Watch => Aspect::Watch,
        _ => Aspect::Write(call.subresource()),
    }
}

/// Returns the readable name of a key: `write deployments.apps/prod/web (status)`, `list
/// pods/prod`, `write /graphql (body 8f3a01c2)`. A `label` is the name of a configured key.
pub(super) fn name(
    call: &Call,
    words: Option<&Words>,
    source: KeySource,
    label: Option<&str>,
    body: Option<&[u8]>,
) -> String {
    if label.is_some() || !call.is_resource {
        let mut text = label.map_or_else(|| operation(call, words), ToOwned::to_owned);
        if let (KeySource::BodyDigest { tokens, .. }, Some(body)) = (source, body) {
            let body = &tokens.map_or(Cow::Borrowed(body), |tokens| tokens.without_tokens(body));
            // Writing to a String cannot fail.
            let _infallible = write!(text, " (body {:08x})", checksum(body, START));
        }
        return text;
    }
    let mut text = format!("{} {}", verb_class(call), call.resource());
    for (before, part) in [(".", call.group()), ("/", call.namespace())] {
        if !part.is_empty() {
            text.extend([before, part]);
        }
    }
    let from_body = body.filter(|_| matches!(source, KeySource::NameInBody { .. })).and_then(names::of_object);
    let name = from_body.as_deref().unwrap_or_else(|| call.name());
    if !name.is_empty() && !call.is_collection_read() {
        text.extend(["/", name]);
    }
    if !call.subresource().is_empty() {
        text.extend([" (", call.subresource(), ")"]);
    }
    text
}

/// Returns the readable name of an operation: `write /graphql`, `read ec2 DescribeInstances`.
fn operation(call: &Call, words: Option<&Words>) -> String {
    match words.filter(|words| !words.action.is_empty()) {
        Some(Words { service, action, serial, reads, .. }) => {
            let path = if serial.is_empty() && call.path() != "/" { call.path() } else { serial };
            let does = if *reads { "read" } else { "write" };
            format!("{does} {service} {action} {path}").trim_end().to_owned()
        }
        None => format!("{} {}", verb_class(call), call.path()),
    }
}

/// Returns the word for a call's action in names of keys.
pub(super) fn verb_class(call: &Call) -> &'static str {
    match aspect(call) {
        Aspect::Read(_) => "read",
        Aspect::List => "list",
        Aspect::Watch => "watch",
        Aspect::Write(_) if call.verb.is_delete() => "delete",
        Aspect::Write(_) => "write",
    }
}
