//! Flows: the parts of a class taking turns.

use std::fmt;

use http::header::{AUTHORIZATION, USER_AGENT};
use http::{HeaderMap, HeaderName, Uri};

use super::ApiKind;
use crate::api::Call;
use crate::dialect::{self, Words};
use crate::limit::policy::Per;

words! {
    /// How a class is divided into flows. Flows take turns.
    pub enum FairBy {
        /// Nothing: all calls are one flow.
        None = "none",
        /// API group and resource; on `http` gates the first path segment.
        Resource = "resource",
        /// Namespace.
        Namespace = "namespace",
        /// The User-Agent header up to the first space.
        UserAgent = "user_agent",
        /// The client's credential.
        Credential = "credential",
        /// The cloud account of the call, with its quota.
        Account = "account",
        /// The cloud account and the action of the call.
        Action = "action",
        /// The client, by its authenticated name.
        Client = "client",
    }
}

/// The name of a flow, borrowed from the request. Equal names are one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowName<'a> {
    /// All calls of the class.
    All,
    /// A resource and its API group.
    Resource(&'a str, &'a str),
    /// A text from the request, such as a namespace or an action.
    Word(&'a str),
    /// A credential, as a salted hash.
    Credential(u64),
    /// An account, as a salted hash.
    Account(u64),
}

impl FairBy {
    /// Returns what identifies flows, if it is a credential, an account or a client.
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
    /// Returns the name of a call's flow. `identity` is the hash of its credential or account.
    pub(super) fn new(
        fair_by: FairBy,
        kind: ApiKind,
        call: &'a Call,
        words: Option<&'a Words>,
        headers: &'a HeaderMap,
        identity: u64,
    ) -> Self {
        match fair_by {
            FairBy::None => Self::All,
            FairBy::Resource if kind == ApiKind::Kubernetes && call.is_resource => {
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

/// Returns the User-Agent up to the first space: `manager/v0.1` of `manager/v0.1 (linux/amd64)`.
fn user_agent(headers: &HeaderMap) -> &str {
    let value = headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(' ').next().unwrap_or_default()
}

/// Calls `with` for each value of the call's credential. That of a SigV4 signature is its access key
/// id: all else differs in each call.
pub(super) fn each_of_credential(uri: &Uri, headers: &HeaderMap, mut with: impl FnMut(&[u8])) {
    match dialect::signing_key_id(uri, headers) {
        Some(key_id) => with(key_id.as_bytes()),
        None => CREDENTIALS.iter().flat_map(|name| headers.get_all(name)).for_each(|value| with(value.as_bytes())),
    }
}

/// The headers carrying credentials: the usual one, GitLab's, and that of AWS gateways and many
/// others.
static CREDENTIALS: [HeaderName; 3] =
    [AUTHORIZATION, HeaderName::from_static("private-token"), HeaderName::from_static("x-api-key")];
