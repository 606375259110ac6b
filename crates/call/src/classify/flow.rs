//! Flows: the parties between which a class is fair.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};

use http::header::{AUTHORIZATION, USER_AGENT};
use http::{HeaderMap, HeaderName, Uri};

use super::{Kind, Salt};
use crate::api::Call;
use crate::dialect::{self, Words};
use crate::limit::policy::Per;

words! {
    /// The property of calls that divides a class into flows, between which it is fair.
    pub enum FairBy {
        /// None: one flow.
        None = "none",
        /// API group and resource; on `http` gates the first path segment.
        Resource = "resource",
        /// Namespace.
        Namespace = "namespace",
        /// The User-Agent header up to the first space.
        UserAgent = "user_agent",
        /// The client's credential.
        Credential = "credential",
        /// The account whose quota the call uses, as the gate's dialect tells it.
        Account = "account",
        /// That account and the call's action.
        Action = "action",
        /// The client, by the name that the gate knows it by.
        Client = "client",
    }
}

/// A flow by name, borrowed from the request. Equal names are one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowName<'a> {
    /// All calls of the class.
    All,
    /// A resource and its group.
    Resource(&'a str, &'a str),
    /// A word of the request.
    Word(&'a str),
    /// A credential, as a salted hash, so that the name of a flow does not tell it.
    Credential(u64),
    /// An account, likewise.
    Account(u64),
}

impl FairBy {
    /// Returns the identity that the flows are told apart by, if they are by one.
    pub(super) const fn identity(self) -> Option<Per> {
        match self {
            Self::Credential => Some(Per::Credential),
            Self::Account => Some(Per::Account),
            Self::Action => Some(Per::Action),
            Self::Client => Some(Per::Client),
            Self::Namespace | Self::None | Self::Resource | Self::UserAgent => None,
        }
    }
}

impl<'a> FlowName<'a> {
    /// Returns the name of a call's flow. `identity` is the credential's or the account's hash, by
    /// which of them the gate is fair.
    pub(super) fn new(
        fair_by: FairBy,
        kind: Kind,
        call: &'a Call,
        words: Option<&'a Words>,
        headers: &'a HeaderMap,
        identity: u64,
    ) -> Self {
        match fair_by {
            FairBy::None => Self::All,
            FairBy::Resource if kind == Kind::Kubernetes && call.is_resource => {
                Self::Resource(call.resource(), call.group())
            }
            FairBy::Resource => {
                Self::Word(call.path().split('/').find(|segment| !segment.is_empty()).unwrap_or_default())
            }
            FairBy::Namespace => Self::Word(call.namespace()),
            FairBy::UserAgent => Self::Word(user_agent(headers)),
            FairBy::Credential => Self::Credential(identity),
            FairBy::Account => Self::Account(identity),
            FairBy::Action => Self::Word(words.map_or("", |words| &words.action)),
            FairBy::Client => Self::Word(""), // its name is not in the request
        }
    }
}

impl fmt::Display for FlowName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::All => f.write_str("all"),
            Self::Resource("", "") | Self::Word("") => f.write_str("none"),
            Self::Resource(word, "") | Self::Word(word) => f.write_str(word),
            Self::Resource(resource, group) => write!(f, "{resource}.{group}"),
            // Enough to tell a handful of clients apart, useless for anything else.
            Self::Account(hash) => write!(f, "account {:06x}", hash & 0xff_ffff),
            Self::Credential(0) => f.write_str("no credential"),
            Self::Credential(hash) => write!(f, "credential {:06x}", hash & 0xff_ffff),
        }
    }
}

/// Returns the User-Agent up to the first space: of `manager/v0.1 (linux/amd64) kubernetes/abc` it
/// is `manager/v0.1`.
fn user_agent(headers: &HeaderMap) -> &str {
    let value = headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(' ').next().unwrap_or_default()
}

/// Returns a hash of the call's credential, salted per process and never shown whole; 0 without a
/// credential. A call that is signed by SigV4 has its access key id as credential: its header and
/// its query differ each time.
pub(super) fn credential(uri: &Uri, headers: &HeaderMap, hasher: &Salt) -> u64 {
    if let Some(key_id) = dialect::signing_key_id(uri, headers) {
        return hasher.hash_one(key_id).max(1);
    }
    let mut values = credentials(headers).peekable();
    if values.peek().is_none() {
        return 0;
    }
    let mut hash = hasher.build_hasher();
    values.for_each(|value| value.hash(&mut hash));
    hash.finish().max(1)
}

/// Calls `with` for each value that makes the call's credential; for none if it has none.
pub(super) fn each_of_credential(uri: &Uri, headers: &HeaderMap, mut with: impl FnMut(&[u8])) {
    match dialect::signing_key_id(uri, headers) {
        Some(key_id) => with(key_id.as_bytes()),
        None => credentials(headers).for_each(with),
    }
}

fn credentials(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    CREDENTIALS.iter().flat_map(|name| headers.get_all(name)).map(http::HeaderValue::as_bytes)
}

/// The headers in which clients send credentials: the usual one; GitLab's; that of AWS gateways and
/// many others.
static CREDENTIALS: [HeaderName; 3] =
    [AUTHORIZATION, HeaderName::from_static("private-token"), HeaderName::from_static("x-api-key")];
