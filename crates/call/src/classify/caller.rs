//! The party that a call is counted for: its credential, its account's quota, or one action of it.

use std::hash::BuildHasher as _;

use super::everywhere::Everywhere;
use super::{FairBy, Salt, flow};
use crate::dialect::{Dialect, Head, Words};
use crate::limit::ClassId;
use crate::limit::policy::Per;

/// A call as far as it tells who makes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller<'a> {
    pub(super) dialect: Dialect,
    pub(super) words: Option<&'a Words>,
    pub(super) request: Head<'a>,
    pub(super) hasher: &'a Salt,
}

/// The identities that buckets, slots or pauses are split by.
#[derive(Clone, Debug, Default)]
pub(super) struct Identities {
    /// That of classes without one of their own.
    pub(super) of_gate: Option<Per>,
    pub(super) of_classes: Vec<Option<Per>>,
    /// True if identities are numbers that are the same in every process.
    pub(super) agrees: bool,
}

// === impl Identities ===

impl Identities {
    /// Returns the identity of a call of a class; 0 if nothing is split by any.
    pub(super) fn of(&self, class: ClassId, caller: &Caller<'_>) -> u64 {
        match self.of_classes.get(usize::from(class.0)).copied().flatten().or(self.of_gate) {
            Some(per) if self.agrees => caller.identity_everywhere(per),
            Some(per) => caller.identity(per),
            None => 0,
        }
    }

    /// Returns the identity of a call of a class by the client that makes it, if its limits are
    /// split by that.
    pub(super) fn of_client(&self, class: ClassId, client: &str, hasher: &Salt) -> Option<u64> {
        let per = self.of_classes.get(usize::from(class.0)).copied().flatten().or(self.of_gate);
        (per == Some(Per::Client)).then(|| {
            if !self.agrees {
                return client_number(client, hasher);
            }
            let mut number = Everywhere::new(Per::Client.word());
            number.add(client.as_bytes());
            number.number()
        })
    }
}

/// Returns the number of a client within this process.
pub(super) fn client_number(client: &str, hasher: &Salt) -> u64 {
    hasher.hash_one((Per::Client.word(), client)).max(1)
}

// === impl Caller ===

impl Caller<'_> {
    /// Returns the identity by which a limit is split, as a salted hash.
    pub(super) fn identity(&self, per: Per) -> u64 {
        match (per, self.words) {
            (Per::Client, _) => 0, // not of the request: see `Classified::of_client`
            (Per::Account, Some(words)) => {
                let quota = self.dialect.quota(words);
                self.hasher.hash_one((self.account(), quota)).max(1)
            }
            (Per::Action, Some(words)) => {
                let Words { service, region, action, .. } = words;
                self.hasher.hash_one((self.account(), service, region, action)).max(1)
            }
            _ => self.credential(),
        }
    }

    /// Returns the same as a number that every process finds.
    fn identity_everywhere(&self, per: Per) -> u64 {
        let mut number = Everywhere::new(per.word());
        let mut is_known = true;
        match (per, self.words) {
            (Per::Client, _) => is_known = false,
            (Per::Account | Per::Action, Some(words)) => {
                match &*words.account {
                    "" => _ = self.add_credential(&mut number),
                    account => number.add(account.as_bytes()),
                }
                let Words { service, region, action, .. } = words;
                match per {
                    Per::Account => self.dialect.quota(words).iter().for_each(|word| number.add(word.as_bytes())),
                    _ => [service, region, action].iter().for_each(|word| number.add(word.as_bytes())),
                }
            }
            _ => is_known = self.add_credential(&mut number),
        }
        if is_known { number.number() } else { 0 }
    }

    /// Adds the call's credential. False if it has none.
    fn add_credential(&self, number: &mut Everywhere) -> bool {
        let mut is_known = false;
        number.add(b"credential");
        flow::each_of_credential(self.request.uri, self.request.headers, |value| {
            number.add(value);
            is_known = true;
        });
        is_known
    }

    /// Returns the party between which and others a class is fair; 0 if flows are named otherwise.
    pub(super) fn fair_to(&self, fair_by: FairBy) -> u64 {
        match fair_by.identity() {
            Some(Per::Account) => self.account(),
            Some(per) => self.identity(per),
            None => 0,
        }
    }

    /// An account that is not known is the credential's.
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
