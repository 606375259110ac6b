//! Quotas: the numbers of calls an upstream allows, by holder (credential or account) and resource
//! (part of the API).
//!
//! A pause applies to a quota. A call waits for the pauses of its own holder and resource, and for
//! those of all holders or all resources.

use std::time::Duration;

use crate::moment::Moment;

/// The identity of a quota at the upstream: its holder, and its part of the API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuotaId {
    /// The credential or account, as a hash; zero for all of them.
    pub holder: u64,
    /// The part of the API.
    pub resource: ResourceId,
}

/// A part of an API with a quota of its own, as a hash of its name: the upstream's name for it
/// (`core`, `search`), or the name of a class. The hash is the same in every process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub u64);

crate::words! {
    /// The way a quota becomes full again.
    #[derive(Default)]
    pub enum QuotaKind {
        /// Not known in advance: found out by comparing two responses.
        #[default]
        Unknown = "told",
        /// All of it at one moment.
        Window = "window",
        /// Steadily, up to its limit.
        Refill = "refill",
    }
}

/// A rate of use in events per second; older events count less.
#[derive(Clone, Copy, Debug, Default)]
pub struct UseRate {
    /// The rate at the moment `at`. It is too low at first; `per_second` makes up for that.
    rate: f64,
    since: Moment,
    at: Moment,
    /// The averaging time.
    over: Duration,
}

/// The quota of a call, as far as its request tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaHint {
    /// The holder of the quota; zero if the gate does not distinguish holders.
    pub holder: u64,
    /// The resource the upstream charges the call to: [`ResourceId::ALL`] if it is not known,
    /// [`ResourceId::FREE`] if the upstream does not count the call.
    pub word: ResourceId,
    /// The class and action of the call, as a hash. An answer shows the resource of later calls
    /// with the same hash.
    pub action: u64,
}

/// The quota a call will probably be charged to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CallQuota {
    pub(crate) holder: u64,
    /// The resource the call is charged to besides its class, as in a [`QuotaHint`].
    pub(crate) word: ResourceId,
}

// === impl QuotaId ===

impl QuotaId {
    /// The quota of the whole API and of all holders.
    pub const ALL: Self = Self { holder: 0, resource: ResourceId::ALL };
}

// === impl ResourceId ===

impl ResourceId {
    /// The whole API.
    pub const ALL: Self = Self(0);
    /// No resource: the upstream does not count such calls.
    pub const FREE: Self = Self(u64::MAX);

    /// Returns the resource with this name in the upstream's responses.
    #[must_use]
    pub fn named(word: &str) -> Self {
        Self::hash(b'w', word)
    }

    /// Returns the resource of a class: what its calls are charged to if the upstream names nothing.
    #[must_use]
    pub fn of_class(name: &str) -> Self {
        Self::hash(b'c', name)
    }

    /// Returns the FNV-1a hash of a name. It needs no secret, because upstreams and configurations
    /// choose the names, not clients.
    fn hash(kind: u8, name: &str) -> Self {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let hash = std::iter::once(kind).chain(name.bytes()).fold(0xcbf2_9ce4_8422_2325, mix);
        Self(hash.clamp(1, u64::MAX - 1))
    }
}

// === impl UseRate ===

impl UseRate {
    /// Counts the use of a quota that is full again after `resets_in`. It is averaged over a twelfth
    /// of the longest such time, within bounds.
    pub fn add(&mut self, events: f64, resets_in: Duration, now: Moment) {
        if self.at == Moment::ZERO {
            self.since = now;
        }
        self.over = self.over.max(resets_in / 12).clamp(LEAST_OVER, MOST_OVER);
        self.rate = self.rate * self.faded(self.at, now) + events / self.over.as_secs_f64();
        self.at = now;
    }

    /// Returns the events a second.
    pub fn per_second(&self, now: Moment) -> f64 {
        // Without this a young rate would be too low.
        let known = 1.0 - self.faded(self.since, now);
        self.rate * self.faded(self.at, now) / known.max(LEAST_KNOWN)
    }

    fn faded(&self, since: Moment, now: Moment) -> f64 {
        (-(now - since).as_secs_f64() / self.over.max(LEAST_OVER).as_secs_f64()).exp()
    }
}

/// The bounds of the averaging time.
const LEAST_OVER: Duration = Duration::from_secs(5);
const MOST_OVER: Duration = Duration::from_secs(300);

/// A younger rate counts as if it were a tenth of its time old.
const LEAST_KNOWN: f64 = 0.1;

// === impl CallQuota ===

impl CallQuota {
    /// Returns true if the quota's pauses stop every call of the class.
    pub(crate) fn is_of_class(self) -> bool {
        self == Self::default()
    }

    /// Returns true if the upstream does not count the call.
    pub(crate) fn is_free(self) -> bool {
        self.word == ResourceId::FREE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_never_changes_because_gates_of_two_releases_share_pauses() {
        assert_eq!(ResourceId::named("core"), ResourceId(4_500_157_329_683_776_681));
        assert_ne!(ResourceId::named("search"), ResourceId::of_class("search"));
    }
}
