//! Ordered rules: a call gets its class, flow and key (being built).

use std::sync::Arc;

use crate::{
    api::{Call, Key},
    limit::ClassId,
};

/// The rules of one gate, in order; first match wins.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The kind of API decides how a path is read.
    pub kind: Kind,
    /// Whom fairness is between.
    pub fair_by: FairBy,
    /// In order. The last matches everything.
    pub rules: Vec<Rule>,
}

/// What kind of API is behind the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// kube-apiserver.
    Kubernetes,
    /// Any other HTTP API.
    Http,
}

/// Whom fairness is between, inside a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FairBy {
    /// One flow.
    None,
    /// API group and resource; on `http` gates the first path segment.
    Resource,
    /// Namespace.
    Namespace,
    /// The User-Agent header up to the first space.
    UserAgent,
    /// The client's credential.
    Credential,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The class of what matches.
    pub class: ClassId,
    /// Strictness rank for ambiguous paths: the highest wins.
    pub strictness: u16,
    /// What must match; an empty list or map matches everything.
    pub matcher: Matcher,
}

/// What a rule looks at. Every non-empty field must match; within a field one pattern must. `*` matches any run of characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// Verbs, as RBAC spells them.
    pub verbs: Vec<String>,
    /// API groups; "" is the core group.
    pub groups: Vec<String>,
    /// Resources.
    pub resources: Vec<String>,
    /// Namespaces.
    pub namespaces: Vec<String>,
    /// Object names.
    pub names: Vec<String>,
    /// Subresources.
    pub subresources: Vec<String>,
    /// HTTP methods.
    pub methods: Vec<String>,
    /// Decoded paths.
    pub paths: Vec<String>,
    /// User agents.
    pub user_agents: Vec<String>,
    /// Headers, name (lower case) to pattern.
    pub headers: Vec<(String, String)>,
    /// Query parameters, name to pattern.
    pub query: Vec<(String, String)>,
}

/// What a call is to the limiter.
#[derive(Debug)]
pub struct Classified {
    /// The request, read.
    pub call: Call,
    /// Its class.
    pub class: ClassId,
    /// Identity of its flow.
    pub flow: u64,
    /// What its failure is remembered for, as far as the request head says.
    pub key: KeySource,
}

/// Where a call's key comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// Nothing is remembered.
    None,
    /// Known from the head.
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
    },
}

/// Rules shared by the calls of a gate.
pub type Shared = Arc<Rules>;
