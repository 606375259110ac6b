//! The party of a call, for its limits: a credential, an account's quota, or an action.

use std::hash::BuildHasher as _;

use super::everywhere::Everywhere;
use super::{FairBy, Salt, flow};
use crate::dialect::{Dialect, Head, Words};
use crate::limit::ClassId;
use crate::limit::policy::Per;

/// The identifying facts about a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerFacts<'a> {
    pub(super) dialect: Dialect,
    pub(super) words: Option<&'a Words>,
    pub(super) request: Head<'a>,
    pub(super) hasher: &'a Salt,
}

/// The split of limits and failures among callers.
#[derive(Clone, Debug, Default)]
pub struct CallerSplits {
    /// The default split of buckets, slots or pauses.
    pub of_gate: Option<Per>,
    /// The split of those of each class.
    pub of_classes: Vec<Option<Per>>,
    /// True if identities are the same number in every process, for shared parts of buckets.
    pub agrees: bool,
    /// True for classes with failures by credential, because some are the caller's.
    pub callers_apart: Vec<bool>,
    /// True if the gate remembers failures by client.
    pub clients_apart: bool,
}

// === impl CallerSplits ===

impl CallerSplits {
    /// True if failures of a class are remembered by credential. All callers share the key of calls
    /// that the provider takes one at a time.
    pub(super) fn are_callers_apart(&self, class: ClassId, words: Option<&Words>) -> bool {
        !is_serial(words) && self.callers_apart.get(usize::from(class.0)) == Some(&true)
    }

    /// True if failures of a call are remembered by client, with the same exception.
    pub(super) fn are_clients_apart(&self, words: Option<&Words>) -> bool {
        self.clients_apart && !is_serial(words)
    }

    fn of_class(&self, class: ClassId) -> Option<Per> {
        self.of_classes.get(usize::from(class.0)).copied().flatten().or(self.of_gate)
    }

    /// Returns the identity of a call of a class; 0 if nothing splits its limits.
    pub(super) fn identity(&self, class: ClassId, caller: &CallerFacts<'_>) -> u64 {
        match self.of_class(class) {
            Some(per) if self.agrees => caller.identity_everywhere(per),
            Some(per) => caller.identity(per),
            None => 0,
        }
    }

    /// Returns the identity of a client, for a class with limits split by client.
    pub(super) fn of_client(&self, class: ClassId, client: &str, hasher: &Salt) -> Option<u64> {
        (self.of_class(class)? == Per::Client).then(|| {
            if !self.agrees {
                return client_number(client, hasher);
            }
            let mut number = Everywhere::new(Per::Client.word());
            number.add(client.as_bytes());
            number.number()
        })
    }
}

/// True for a serial call: the provider takes it one at a time.
fn is_serial(words: Option<&Words>) -> bool {
    words.is_some_and(|words| !words.serial.is_empty())
}

/// Returns the number of a client within this process.
pub(super) fn client_number(client: &str, hasher: &Salt) -> u64 {
    hasher.hash_one((Per::Client.word(), client)).max(1)
}

// === impl CallerFacts ===

impl CallerFacts<'_> {
    /// Returns the identity for a split limit, as a salted hash.
    pub(super) fn identity(&self, per: Per) -> u64 {
        match self.terms(per) {
            _ if per == Per::Client => 0, // not in the request: see `ClassifiedCall::of_client`
            Some(terms) => self.hasher.hash_one((self.account(), terms)).max(1),
            None => self.credential(),
        }
    }

    /// Returns the identity for a split limit, as the same number in every process.
    fn identity_everywhere(&self, per: Per) -> u64 {
        let mut number = Everywhere::new(per.word());
        let terms = self.terms(per);
        let is_known = match self.words.filter(|_| terms.is_some()).map_or("", |words| &words.account) {
            _ if per == Per::Client => false,
            "" => self.add_credential(&mut number) || terms.is_some(),
            account => {
                number.add(account.as_bytes());
                true
            }
        };
        terms.iter().flatten().for_each(|term| number.add(term.as_bytes()));
        if is_known { number.number() } else { 0 }
    }

    /// Returns the provider's terms for a split of an account's limits; `None` for a split by
    /// credential.
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

    /// Adds the call's credential. Returns false if it has none.
    fn add_credential(&self, number: &mut Everywhere) -> bool {
        let mut is_known = false;
        number.add(b"credential");
        flow::each_of_credential(self.request.uri, self.request.headers, |value| {
            number.add(value);
            is_known = true;
        });
        is_known
    }

    /// Returns the hash of a flow's party; 0 if flows are named otherwise.
    pub(super) fn fair_to(&self, fair_by: FairBy) -> u64 {
        match fair_by.identity() {
            Some(Per::Account) => self.account(),
            Some(per) => self.identity(per),
            None => 0,
        }
    }

    /// Returns the account's hash; the credential's if it is unknown.
    fn account(&self) -> u64 {
        match self.words.map_or("", |words| &words.account) {
            "" => self.credential(),
            account => self.hasher.hash_one(account).max(1),
        }
    }

    fn credential(&self) -> u64 {
        flow::credential(self.request.uri, self.request.headers, self.hasher)
    }
}
