//! The party that a call is counted for: its credential, its account's quota, or one action of it.

use std::hash::BuildHasher as _;

use super::{FairBy, Salt, flow};
use crate::dialect::{Dialect, Head, Words};
use crate::limit::policy::Per;

/// A call as far as it tells who makes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller<'a> {
    pub(super) dialect: Dialect,
    pub(super) words: Option<&'a Words>,
    pub(super) request: Head<'a>,
    pub(super) hasher: &'a Salt,
}

// === impl Caller ===

impl Caller<'_> {
    /// Returns the identity by which a limit is split, as a salted hash.
    pub(super) fn identity(&self, per: Per) -> u64 {
        match (per, self.words) {
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
