//! The buckets and classes that a preset brings.

use std::num::NonZeroU32;
use std::time::Duration;

use super::figures::{Figure, Source};
use crate::classify::{CostBy, Matcher, PatternList};
use crate::dialect::Dialect;
use crate::limit::policy::{Adapt, BucketPolicy, Lane, Per};
use crate::spec;

/// A bucket by its provider's figure, or by a guess where nothing is published.
#[derive(Clone, Copy, Debug)]
pub(in crate::config) struct PresetBucket {
    published: Option<(Figure, &'static Source)>,
    /// Rate and burst of the whole share, where they are not what the figure makes them.
    numbers: Option<(f64, u32)>,
    /// The most tokens that one call takes.
    dearest: u16,
    per: Per,
    /// The least rate, for one that gives way to a provider that throttles.
    floor: Option<f64>,
}

/// A class that comes with a preset.
#[derive(Clone, Debug)]
pub(in crate::config) struct PresetClass {
    pub(in crate::config) name: &'static str,
    pub(in crate::config) matcher: Matcher,
    pub(in crate::config) bucket: Option<PresetBucket>,
    pub(in crate::config) lane: Lane,
    pub(in crate::config) within: Option<&'static str>,
    pub(in crate::config) own_bucket_only: bool,
    /// The longest wait for the key, where it is not the gate's.
    pub(in crate::config) hold: Option<Duration>,
    pub(in crate::config) cost: CostBy,
    /// True if a 403 may only mean that something is not there.
    pub(in crate::config) hides_by_403: bool,
}

// === impl PresetBucket ===

impl PresetBucket {
    pub(super) const fn of(figure: Figure, source: &'static Source, per: Per) -> Self {
        Self { published: Some((figure, source)), numbers: None, dearest: 1, per, floor: None }
    }

    /// A bucket for limits that nobody publishes, which adapts.
    pub(super) const fn guess(rate: f64, burst: u32, per: Per) -> Self {
        Self { published: None, numbers: Some((rate, burst)), dearest: 1, per, floor: Some(FLOOR) }
    }

    /// Replaces what the figure makes of rate and burst.
    pub(super) const fn numbers(self, rate: f64, burst: u32) -> Self {
        Self { numbers: Some((rate, burst)), ..self }
    }

    /// Lets a call take up to this many tokens.
    pub(super) const fn dearest(self, dearest: u16) -> Self {
        Self { dearest, ..self }
    }

    /// Lets the rate give way to a provider that throttles.
    pub(super) const fn adaptive(self) -> Self {
        Self { floor: Some(FLOOR), ..self }
    }

    /// Returns the bucket for a share of the figure.
    pub(in crate::config) fn at(&self, share: f64) -> BucketPolicy {
        let (rate, burst) = match (self.numbers, self.published) {
            (Some((rate, burst)), _) => (rate * share, scaled(burst, share)),
            (None, Some((figure, _))) => figure.held(share, self.dearest),
            (None, None) => (FLOOR, 1),
        };
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        let adapt = self.floor.map(|floor| Adapt { floor: floor.min(rate) });
        BucketPolicy { per: self.per, adapt, ..BucketPolicy::new(rate, burst) }
    }

    /// Returns the figure in words, as that of a class or of the gate.
    pub(super) fn figure(&self, class: Option<&'static str>, dialect: Dialect) -> Option<spec::Figure> {
        let (figure, source) = self.published?;
        let of = match (self.per, dialect) {
            (Per::Account, Dialect::Aws) => " for each account and region",
            (Per::Account, Dialect::Azure) => " for each subscription",
            (Per::Account, Dialect::Google) => " for each project",
            (Per::Account, _) => " for each account",
            (Per::Action, _) => " for each account, region and action",
            (Per::Client | Per::Credential | Per::Flow | Per::Gate, _) => "",
        };
        let points =
            if self.dearest > 1 { format!(", of which a call costs up to {}", self.dearest) } else { String::new() };
        Some(spec::Figure { class, says: format!("{figure}{of}{points}"), source: source.to_string() })
    }
}

// === impl PresetClass ===

impl PresetClass {
    /// A class that is metered by the gate's bucket alone.
    pub(super) const fn new(name: &'static str, matcher: Matcher) -> Self {
        Self {
            name,
            matcher,
            bucket: None,
            lane: Lane::Normal,
            within: None,
            own_bucket_only: false,
            hold: None,
            cost: CostBy::Number(1),
            hides_by_403: false,
        }
    }

    /// Adds a bucket on top of the gate's.
    pub(super) fn metered(self, bucket: PresetBucket) -> Self {
        Self { bucket: Some(bucket), ..self }
    }

    /// Adds a bucket in place of the gate's.
    pub(super) fn alone(self, bucket: PresetBucket) -> Self {
        Self { own_bucket_only: true, ..self.metered(bucket) }
    }
}

/// Returns a matcher for actions of a service; all of them if none is named.
pub(super) fn actions(service: &str, actions: &[&str]) -> Matcher {
    Matcher::default().with(PatternList::Services, list(&[service])).with(PatternList::Actions, list(actions))
}

pub(super) fn list(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Returns the whole calls of a share.
fn scaled(burst: u32, share: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, as is wanted")]
    let burst = (f64::from(burst) * share) as u32;
    burst.max(1)
}

/// The least rate of a guess, in calls a second.
const FLOOR: f64 = 1.0;
