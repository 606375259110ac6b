//! The limits that providers publish, and what a gate makes of a share of one.
//!
//! A call leaves the gate at one moment and is counted by the provider at a later one, and the time
//! between differs from call to call. Calls that left at the gate's rate may so arrive closer
//! together, and would overdraw a bucket as large as the gate's. The documents also say that
//! buckets are refilled once a second, while the gate's fills all the time. So even the whole of a
//! figure is held with a little less, such that no call arrives before its token is there, as long
//! as no call takes [`SPREAD`] longer than another.

use std::fmt;
use std::time::Duration;

/// A limit as its provider publishes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Figure {
    /// A token bucket: the most tokens, and those that are added each second.
    Bucket { burst: u32, rate: f64 },
    /// So many calls in any window of that length.
    Window { calls: u32, length: Duration },
}

/// The document in which a provider publishes figures.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// The document's name.
    pub(super) name: &'static str,
    /// The day on which it was read.
    pub(super) read: &'static str,
    pub(super) url: &'static str,
}

// === impl Figure ===

impl Figure {
    pub(super) const fn bucket(burst: u32, rate: f64) -> Self {
        Self::Bucket { burst, rate }
    }

    pub(super) const fn window(calls: u32, seconds: u64) -> Self {
        Self::Window { calls, length: Duration::from_secs(seconds) }
    }

    /// Returns the rate and the burst of a bucket that keeps to a share of the figure, whatever
    /// moments the provider begins to count at. A call to a window takes `dearest` tokens at most.
    pub(super) fn held(self, share: f64, dearest: u16) -> (f64, u32) {
        match self {
            Self::Bucket { burst, rate } => held_bucket(f64::from(burst), rate, share),
            Self::Window { calls, length } => {
                held_window(f64::from(calls), length.as_secs_f64(), share, f64::from(dearest))
            }
        }
    }
}

/// What is added each second comes a second late at worst, and the calls of [`SPREAD`] more may
/// arrive with those of a second. So a burst is smaller by as much, if one call is left then.
/// Otherwise calls leave one by one, and slowly enough for each to find its token.
fn held_bucket(burst: f64, rate: f64, share: f64) -> (f64, u32) {
    let wanted = rate * share;
    let room = burst - wanted * (1.0 + SPREAD);
    if room >= 1.0 {
        return (wanted, whole(burst * share).min(whole(room)).max(1));
    }
    (wanted.min(1.0 / longest_period(burst, rate)), 1)
}

/// Returns the time between two calls that leave one by one, such that each finds its token. Call
/// `n` arrives after `(n - 1) * period - SPREAD` at the earliest, when `n - burst` tokens must have
/// been added, which takes whole seconds.
fn longest_period(burst: f64, rate: f64) -> f64 {
    let exact = |n: f64| (((n - burst) / rate).ceil() + SPREAD) / (n - 1.0);
    let first = (1..=LOOKED_AT).map(|n| exact(burst + f64::from(n)));
    // A bound for all later calls, which gets ever smaller.
    let later = (f64::from(LOOKED_AT) + rate * (1.0 + SPREAD)) / (rate * (burst + f64::from(LOOKED_AT) - 1.0));
    first.fold(later, f64::max)
}

/// A burst of `g` and the tokens of a window are together at most those of the figure; the first
/// token beyond them is there when the window ends. The burst has room for the dearest call.
fn held_window(calls: f64, length: f64, share: f64, dearest: f64) -> (f64, u32) {
    let wanted = calls * share;
    let calls = wanted.floor().max(dearest);
    let burst = (1.0 + (calls / IN_A_BURST).floor()).max(dearest);
    let rate = (calls + 1.0 - burst) / (length + SPREAD);
    (rate.min(wanted / length), whole(burst))
}

fn whole(calls: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, as is wanted")]
    let whole = calls as u32;
    whole
}

/// The most by which the ways of two calls to the provider may differ, in seconds.
const SPREAD: f64 = 0.05;
/// The calls that are looked at one by one.
const LOOKED_AT: u32 = 1000;
/// A burst is one call and a 25th of a window's: the rest comes evenly, so that most of the window
/// is used whenever it begins.
const IN_A_BURST: f64 = 25.0;

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bucket { burst, rate } => write!(f, "{rate}/s, burst {burst}"),
            Self::Window { calls, length } => match length.as_secs() {
                1 => write!(f, "{calls} a second"),
                60 => write!(f, "{calls} a minute"),
                3600 => write!(f, "{calls} an hour"),
                seconds => write!(f, "{calls} in {seconds} s"),
            },
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, read on {}: {}", self.name, self.read, self.url)
    }
}

pub(super) const EC2: Source = Source {
    name: "Amazon EC2 Developer Guide, \"Request throttling for the Amazon EC2 API\"",
    read: "2026-11-23",
    url: "https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html",
};
pub(super) const ELB: Source = Source {
    name: "Elastic Load Balancing User Guide, \"Request throttling for the ELB API\"",
    read: "2026-11-23",
    url: "https://docs.aws.amazon.com/elasticloadbalancing/latest/userguide/elb-api-throttling.html",
};
pub(super) const ROUTE_53: Source = Source {
    name: "Amazon Route 53 Developer Guide, \"Quotas\"",
    read: "2026-11-23",
    url: "https://docs.aws.amazon.com/Route53/latest/DeveloperGuide/DNSLimitations.html",
};
pub(super) const STS: Source = Source {
    name: "AWS IAM User Guide, \"IAM and AWS STS quotas\", as others quote it",
    read: "2026-11-23",
    url: "https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html",
};
pub(super) const ARM: Source = Source {
    name: "Azure Resource Manager, \"Understand how Azure Resource Manager throttles requests\"",
    read: "2026-11-23",
    url: "https://learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling",
};
pub(super) const GOOGLE: Source = Source {
    name: "Google Compute Engine, \"API rate limits\", older editions; today's figures are those of your project's quota page",
    read: "2026-11-23",
    url: "https://cloud.google.com/compute/api-quota",
};
pub(super) const GITHUB: Source = Source {
    name: "GitHub Docs, \"Rate limits for the REST API\" and \"for the GraphQL API\"",
    read: "2026-11-23",
    url: "https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api",
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The earliest arrivals, in nanoseconds, of a gate's calls in a window that begins with the
    /// first: the first of them were slow, the others fast.
    fn earliest(call: u32, (rate, burst): (f64, u32)) -> f64 {
        (f64::from(call.saturating_sub(burst)) / rate - SPREAD).max(0.0)
    }

    /// True if a provider's bucket that is refilled every `refill` seconds, at the worst moment,
    /// has a token for each of the first calls.
    fn bears(burst: u32, rate: f64, refill: Option<f64>, held: (f64, u32)) -> bool {
        (1..5000).all(|call| {
            let after = earliest(call, held) + 1e-9;
            let added = match refill {
                None => rate * after,
                Some(every) => rate * every * (after / every).floor(),
            };
            f64::from(call) <= f64::from(burst) + added + 1e-6
        })
    }

    fn window_bears(calls: u32, length: f64, held: (f64, u32)) -> bool {
        earliest(calls + 1, held) >= length - 1e-9
    }

    proptest! {
        #[test]
        fn no_call_arrives_before_its_token(
            burst in 1_u32..200, tenths in 1_u32..300, share in prop_oneof![Just(1.0), 0.01..1.0_f64],
        ) {
            let rate = f64::from(tenths.min(burst * 10)) / 10.0;
            let held = Figure::bucket(burst, rate).held(share, 1);
            prop_assert!(held.0 <= rate * share + 1e-9 && f64::from(held.1) <= (f64::from(burst) * share).max(1.0));
            prop_assert!(bears(burst, rate, None, held), "continuously: {held:?}");
            prop_assert!(bears(burst, rate, Some(1.0), held), "each second: {held:?}");
        }

        #[test]
        fn no_window_has_more_calls_than_its_figure(
            calls in 1_u32..6000, length in 1_u64..4000, share in prop_oneof![Just(1.0), 0.01..1.0_f64],
            dearest in prop_oneof![Just(1_u16), 1..20_u16],
        ) {
            let figure = Figure::window(calls, length);
            let held = figure.held(share, dearest);
            prop_assert!(held.1 >= u32::from(dearest) && held.0 > 0.0, "{held:?}");
            // `earliest` takes tokens for calls that cost one each.
            let most = whole((f64::from(calls) * share).max(f64::from(dearest)));
            #[expect(clippy::cast_precision_loss, reason = "an hour or so")]
            let length = length as f64;
            prop_assert!(window_bears(most, length, held), "{held:?}");
        }
    }

    #[test]
    fn a_share_scales_rate_and_burst_and_leaves_one_call() {
        assert_eq!(Figure::bucket(100, 20.0).held(1.0, 1), (20.0, 79));
        assert_eq!(Figure::bucket(100, 20.0).held(0.5, 1), (10.0, 50));
        assert_eq!(Figure::bucket(5, 2.0).held(0.5, 1), (1.0, 2));
        assert_eq!(Figure::bucket(1, 0.1).held(0.5, 1), (0.05, 1));
        assert_eq!(Figure::bucket(100, 20.0).held(0.001, 1), (0.02, 1));
    }
}
