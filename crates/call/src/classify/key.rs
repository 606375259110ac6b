//! Keys: what failures are remembered for.
//!
//! They are salted hashes: the lookup of a healthy call does not allocate, and no client can aim
//! for a collision. The readable name is only made for a key that starts to fail.

use std::borrow::Cow;
use std::hash::BuildHasher;

use super::matcher::Subject as Request;
use super::{ApiKind, ClassifiedCall, Salt};
use crate::api::names::{self, PEEK};
use crate::api::{self, Call, Key, Verb};
use crate::dialect::{TokenBody, Words};

/// Where a call's key comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// There is no key: failures are not remembered.
    None,
    /// The request head gives the key.
    Known(Key),
    /// The key comes from the head and the name in the body of a Kubernetes `create`.
    NameInBody {
        /// The collection of the object.
        collection: u64,
        /// Hash of kind of verb and subresource.
        facet: u64,
    },
    /// The key comes from the head and a digest of the body, for an operation of an external API.
    BodyDigest {
        /// Hash of kind of method, and path.
        object: u64,
        /// Hash of the kind of verb.
        facet: u64,
        /// The format of the body, if its idempotency tokens must be left out.
        tokens: Option<TokenBody>,
    },
}

/// The kind of access to an object: failures of reads, writes, lists and watches are separate.
#[derive(Hash)]
enum Aspect<'a> {
    Read(&'a str),
    List,
    Watch,
    Write(&'a str),
}

impl KeySource {
    /// Returns the key of a call, or how to get it from the call's body.
    pub(super) fn of(kind: ApiKind, call: &Call, hasher: &Salt) -> Self {
        if call.is_tunnel() {
            return Self::None; // a pod or service answers it, not the API
        }
        let facet = api::facet(hasher.hash_one(aspect(call)), call.verb.is_delete());
        if kind == ApiKind::Http || !call.is_resource {
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

    fn of_path(kind: ApiKind, call: &Call, facet: u64, hasher: &Salt) -> Self {
        let object = hasher.hash_one(call.path());
        let collection = hasher.hash_one((call.path(), true));
        match kind {
            ApiKind::Http if call.verb == Verb::Create => Self::BodyDigest { object, facet, tokens: None },
            ApiKind::Kubernetes if call.is_discovery() => Self::Known(Key { object: collection, collection, facet }),
            _ => Self::Known(Key { object, collection, facet }),
        }
    }

    /// Returns the key of a call to AWS, made of its query and its body without idempotency tokens.
    /// Changes the service takes one at a time have a common key.
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

    /// Returns the same key for one caller only, so that the caller's failures do not count for
    /// others.
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

    /// Returns the collection (or path) of the key: if no key in it fails, the body need not be
    /// read.
    pub fn collection(&self) -> Option<u64> {
        match *self {
            Self::None => None,
            Self::Known(key) => Some(key.collection),
            Self::NameInBody { collection, .. } => Some(collection),
            Self::BodyDigest { object, .. } => Some(object),
        }
    }

    /// Returns true if the body is needed for the key.
    pub fn needs_body(&self) -> bool {
        matches!(self, Self::NameInBody { .. } | Self::BodyDigest { .. })
    }

    /// Returns the key, if the head is enough for it.
    pub fn known(&self) -> Option<Key> {
        match *self {
            Self::Known(key) => Some(key),
            Self::None | Self::NameInBody { .. } | Self::BodyDigest { .. } => None,
        }
    }

    /// Returns the key for a body, or for the start of one if not `whole`. `None` if the body has
    /// no name (`generateName`), or if it is too long.
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

impl ClassifiedCall {
    /// Returns the name of the call's object (`deployments.apps prod/web`), or the operation of an
    /// external API. `body` is the kept part of the body, if the name is in it.
    pub fn object_name(&self, body: Option<&[u8]>) -> String {
        let call = &self.call;
        if self.label.is_some() || !call.is_resource {
            let name = self.key_name(body);
            return name.split_once(' ').map_or_else(|| name.clone(), |(_, name)| name.to_owned());
        }
        let name = self.name(body);
        let place = if call.namespace().is_empty() { String::new() } else { format!("{}/", call.namespace()) };
        format!("{} {place}{name}", self.object_kind())
    }

    /// Returns the readable name of the call's key, made when it starts to fail: `write
    /// deployments.apps/prod/web (status)`, `list pods/prod`, `write /graphql (body 8f3a01c2)`.
    /// `body` is the kept part of the body.
    pub fn key_name(&self, body: Option<&[u8]>) -> String {
        let call = &self.call;
        if self.label.is_some() || !call.is_resource {
            let mut text = self.label.as_deref().map_or_else(|| operation(call, self.words.as_deref()), str::to_owned);
            if let (KeySource::BodyDigest { tokens, .. }, Some(body)) = (self.key, body) {
                let body = &tokens.map_or(Cow::Borrowed(body), |tokens| tokens.without_tokens(body));
                text.push_str(&format!(" (body {:08x})", checksum([&**body])));
            }
            return text;
        }
        let mut text = format!("{} {}", verb_class(call), call.resource());
        for (before, part) in [(".", call.group()), ("/", call.namespace())] {
            if !part.is_empty() {
                text.extend([before, part]);
            }
        }
        let name = self.name(body);
        if !name.is_empty() && !call.is_collection_read() {
            text.extend(["/", &*name]);
        }
        if !call.subresource().is_empty() {
            text.extend([" (", call.subresource(), ")"]);
        }
        text
    }

    /// Returns the name of the call's object, from the path or the body.
    fn name<'a>(&'a self, body: Option<&'a [u8]>) -> Cow<'a, str> {
        let in_body = body.filter(|_| matches!(self.key, KeySource::NameInBody { .. })).and_then(names::of_object);
        in_body.unwrap_or_else(|| Cow::Borrowed(self.call.name()))
    }

    /// Returns the kind of the call's object, without a name.
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

/// Returns the kind of a call's access to its object. Reads, writes, lists and watches have
/// separate failures: the success of one must not forget the failure of another.
fn aspect(call: &Call) -> Aspect<'_> {
    match call.verb {
        Verb::Get => Aspect::Read(call.subresource()),
        Verb::List => Aspect::List,
        Verb::Watch => Aspect::Watch,
        _ => Aspect::Write(call.subresource()),
    }
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

/// Returns a checksum (FNV-1a) of values, shown in names of keys instead of possible secrets. It is
/// the same after a restart, so that logs can be compared.
pub(super) fn checksum<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let bytes = values.into_iter().flat_map(|value| b"\n".iter().chain(value)).skip(1);
    bytes.fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Returns the word for what a call does, in names of keys: read, list, watch, write or delete.
pub(super) fn verb_class(call: &Call) -> &'static str {
    match aspect(call) {
        Aspect::Read(_) => "read",
        Aspect::List => "list",
        Aspect::Watch => "watch",
        Aspect::Write(_) if call.verb.is_delete() => "delete",
        Aspect::Write(_) => "write",
    }
}
