//! The party a call counts for where limits are split: a credential, an account's quota, or an
//! action.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _};

use super::everywhere::CallerDigest;
use super::{FairBy, Salt, flow};
use crate::api::{Scope, Signal, Signals};
use crate::dialect::{Dialect, Head, Words, github_resource};
use crate::limit::ClassId;
use crate::limit::policy::Per;
use crate::limit::quota::{QuotaHint, ResourceId};

/// The data of a request for identifying its caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerFacts<'a> {
    pub(super) dialect: Dialect,
    pub(super) words: Option<&'a Words>,
    pub(super) request: Head<'a>,
    pub(super) hasher: &'a Salt,
}

/// How limits and failures are split among callers.
#[derive(Clone, Debug, Default)]
pub struct CallerSplits {
    /// What the gate's buckets, slots or pauses are split by.
    pub of_gate: Option<Per>,
    /// What the limits of each class are split by.
    pub of_classes: Vec<Option<Per>>,
    /// True if a caller must have the same hash in every process, for parts of shared buckets.
    pub agrees: bool,
    /// For each class, true if failures are remembered for each credential, because some of them
    /// are the fault of one caller.
    pub callers_apart: Vec<bool>,
    /// True if failures are remembered for each client.
    pub clients_apart: bool,
    /// The rules for telling quotas apart.
    pub quotas: QuotaRules,
}

// === impl CallerSplits ===

impl CallerSplits {
    /// Returns true if failures of a class are remembered for each credential. Changes that the
    /// provider takes one at a time have one key for all callers.
    pub(super) fn are_callers_apart(&self, class: ClassId, words: Option<&Words>) -> bool {
        !is_serial(words) && self.callers_apart.get(usize::from(class.0)) == Some(&true)
    }

    /// Returns true if failures of a call are remembered for each client, with the same exception
    /// as for credentials.
    pub(super) fn are_clients_apart(&self, words: Option<&Words>) -> bool {
        self.clients_apart && !is_serial(words)
    }

    /// Returns the splits needed for the limits of `self` and `other`, for so many classes. `None`
    /// if the two split the limits of a class differently.
    pub(super) fn joined(&self, other: &Self, classes: usize) -> Option<Self> {
        let split = |class| match (self.of_class(class), other.of_class(class)) {
            (Some(per), Some(other)) if per != other => None,
            (per, other) => Some(per.or(other)),
        };
        let of_classes = (0..).map(ClassId).take(classes).map(split).collect::<Option<_>>()?;
        Some(Self { of_classes, ..self.clone() })
    }

    fn of_class(&self, class: ClassId) -> Option<Per> {
        self.of_classes.get(usize::from(class.0)).copied().flatten().or(self.of_gate)
    }

    /// Returns the hash a call's limits are split by; 0 if nothing splits them.
    pub(super) fn identity(&self, class: ClassId, caller: &CallerFacts<'_>) -> u64 {
        self.of_class(class).map_or(0, |per| caller.identity(per, self.agrees))
    }

    /// Returns the upstream quota of a call of this class, as far as the request head shows it.
    pub(super) fn quota(&self, class: ClassId, caller: &CallerFacts<'_>) -> QuotaHint {
        let QuotaRules { scope, honour } = self.quotas;
        if scope != Scope::Credential && caller.dialect == Dialect::Plain && !honour.are_of_providers() {
            return QuotaHint::default();
        }
        if scope == Scope::Key {
            return QuotaHint::default();
        }
        let holder = match scope {
            // Azure counts for each principal of a subscription.
            Scope::Credential => caller.account(caller.dialect == Dialect::Azure, self.agrees).max(1),
            Scope::Class | Scope::Gate | Scope::Key => 0,
        };
        let action = if honour.name_resources() { caller.action(class) } else { 0 };
        QuotaHint { holder, word: caller.word(honour), action }
    }

    /// Returns the hash of a client, if the limits of the class are split by client.
    pub(super) fn of_client(&self, class: ClassId, client: &str, hasher: &Salt) -> Option<u64> {
        (self.of_class(class)? == Per::Client).then(|| client_number(client, Some(hasher).filter(|_| !self.agrees)))
    }
}

/// The settings that decide which quota of the upstream a call counts against. A pause holds only
/// calls of the same quota.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuotaRules {
    /// The calls a pause applies to.
    pub scope: Scope,
    /// The rate-limit signals to obey.
    pub honour: Signals,
}

/// Returns true for a change to be sent one at a time, by the provider's rules.
fn is_serial(words: Option<&Words>) -> bool {
    words.is_some_and(|words| !words.serial.is_empty())
}

/// Returns the hash of a client's name: the same in every process without a `salt`.
pub(super) fn client_number(client: &str, salt: Option<&Salt>) -> u64 {
    let mut digest = CallerDigest::new(Per::Client.word(), salt);
    digest.add(client.as_bytes());
    digest.number()
}

// === impl CallerFacts ===

impl CallerFacts<'_> {
    /// Returns a hash of the caller's identity to split limits by. If it `agrees`, it is the same in
    /// every process; otherwise it has the process's salt.
    pub(super) fn identity(&self, per: Per, agrees: bool) -> u64 {
        let mut digest = self.digest(per.word(), agrees);
        let terms = self.terms(per);
        let is_known = match self.words.filter(|_| terms.is_some()).map_or("", |words| &words.account) {
            _ if per == Per::Client => false, // not in the request: see `ClassifiedCall::of_client`
            "" => self.add_credential(&mut digest) || terms.is_some(),
            account => {
                digest.add(account.as_bytes());
                true
            }
        };
        terms.iter().flatten().for_each(|term| digest.add(term.as_bytes()));
        if is_known { digest.number() } else { 0 }
    }

    fn digest(&self, kind: &str, agrees: bool) -> CallerDigest {
        CallerDigest::new(kind, Some(self.hasher).filter(|_| !agrees))
    }

    /// Returns the provider's names splitting an account's limits, such as service and region;
    /// `None` for a split by credential.
    fn terms(&self, per: Per) -> Option<[&str; 3]> {
        let words = self.words?;
        match per {
            Per::Account => {
                let [one, other] = self.dialect.quota(words);
                Some([one, other, ""])
            }
            Per::Action => Some([&words.service, &words.region, &words.action]),
            Per::Client | Per::Credential | Per::Flow | Per::Gate => None,
        }
    }

    /// Adds the call's credential to a digest. Returns false if the call has none.
    fn add_credential(&self, digest: &mut CallerDigest) -> bool {
        let mut is_known = false;
        digest.add(b"credential");
        flow::each_of_credential(self.request.uri, self.request.headers, |value| {
            digest.add(value);
            is_known = true;
        });
        is_known
    }

    /// Returns the hash of the flow's owner (credential, account or client); 0 if flows are divided
    /// by something else.
    pub(super) fn fair_to(&self, fair_by: FairBy) -> u64 {
        match fair_by.identity() {
            Some(Per::Account) => self.account(false, false),
            Some(per) => self.identity(per, false),
            None => 0,
        }
    }

    /// Returns the hash of the call's account, or that of its credential if the account is unknown.
    /// With `of_principals`, each credential of an account has its own.
    fn account(&self, of_principals: bool, agrees: bool) -> u64 {
        let account = self.words.map_or("", |words| &words.account);
        if account.is_empty() {
            return self.identity(Per::Credential, agrees);
        }
        let mut digest = self.digest("holder", agrees);
        digest.add(account.as_bytes());
        if of_principals {
            self.add_credential(&mut digest);
        }
        digest.number()
    }

    /// Returns the resource the call is charged to, by its provider's rules. GitHub's rules are
    /// known even without its dialect.
    fn word(&self, honour: Signals) -> ResourceId {
        let word = match self.words {
            Some(words) => self.dialect.resource(&self.request, words),
            None if honour.contains(Signal::Github) => github_resource(&self.request).to_owned(),
            None => String::new(),
        };
        if word.is_empty() { ResourceId::ALL } else { ResourceId::named(&word) }
    }

    /// Returns the hash of the call's class, method and path, leaving out names in the path. The
    /// upstream charges calls with equal hashes to the same resource.
    fn action(&self, class: ClassId) -> u64 {
        let mut hash = self.hasher.build_hasher();
        (class.0, self.request.method).hash(&mut hash);
        let mut names = 0_u8;
        for segment in self.request.uri.path().split('/').take(LONGEST_ROUTE) {
            let is_name = names > 0 || !segment.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'_' | b'-'));
            if is_name { "*" } else { segment }.hash(&mut hash);
            names = match segment {
                "repos" if names == 0 => 2,
                "enterprises" | "orgs" | "users" if names == 0 => 1,
                _ => names.saturating_sub(1),
            };
        }
        hash.finish()
    }
}

/// The most path segments in the hash of an action.
const LONGEST_ROUTE: usize = 10;
