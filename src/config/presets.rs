//! Presets: numbers for a whole gate, each of which can be overridden.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::api::{Failures, Scope, Signal};
use crate::classify::Kind;
use crate::limit::policy::{Adapt, BucketPolicy, InFlight, Per, Strategy};

words! {
    /// A preset by name (docs/configuration.md, "Presets").
    pub(super) enum Preset {
        /// The default preset.
        Sidecar = "sidecar",
        /// client-go's own limiter.
        ClientGo = "client_go",
        /// controller-runtime's before v0.21.
        ControllerRuntime = "controller_runtime",
        /// Crossplane's `--max-reconcile-rate`.
        Crossplane = "crossplane",
        /// GitHub's documented limits.
        Github = "github",
        /// No limits.
        None = "none",
    }
}

/// The numbers of a preset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) bucket: Option<BucketPolicy>,
    pub(super) retry_bucket: Option<BucketPolicy>,
    pub(super) strategy: Strategy,
    pub(super) in_flight: Option<InFlight>,
    pub(super) honour: &'static [Signal],
    pub(super) scope: Scope,
    pub(super) max_pause: Duration,
    pub(super) reserve: f64,
    pub(super) rewrite_links: bool,
}

impl Preset {
    /// Returns its numbers, for a gate of `kind` with `max_reconcile_rate`.
    pub(super) fn numbers(self, kind: Kind, max_reconcile_rate: NonZeroU32) -> Numbers {
        let none = Numbers {
            bucket: None,
            retry_bucket: None,
            strategy: Strategy::Off,
            in_flight: None,
            honour: &[Signal::RetryAfter],
            scope: Scope::Key,
            max_pause: MAX_PAUSE,
            reserve: 0.0,
            rewrite_links: false,
        };
        let gentle = exponential(Duration::from_secs(1), Duration::from_secs(60));
        match self {
            Self::Sidecar => Numbers {
                bucket: Some(BucketPolicy { adapt: Some(Adapt { floor: 5.0 }), ..bucket(50.0, 100, Per::Gate) }),
                // Its rate is a part of the bucket's.
                retry_bucket: Some(BucketPolicy { opens: true, ..bucket(2.5, 100, Per::Gate) }),
                strategy: gentle,
                ..none
            },
            Self::ClientGo => Numbers { bucket: Some(bucket(5.0, 10, Per::Gate)), ..none },
            Self::ControllerRuntime => Numbers {
                bucket: Some(bucket(20.0, 30, Per::Flow)),
                retry_bucket: Some(bucket(10.0, 100, Per::Flow)),
                strategy: exponential(Duration::from_millis(5), Duration::from_secs(1000)),
                ..none
            },
            Self::Crossplane => {
                let rate = max_reconcile_rate.get();
                // A reconcile makes about five calls to the API server and one to the cloud.
                let calls = if kind == Kind::Kubernetes { 5.0 } else { 1.0 };
                Numbers {
                    bucket: Some(bucket(calls * f64::from(rate), rate.saturating_mul(10), Per::Gate)),
                    strategy: gentle,
                    in_flight: Some(InFlight { max: max_reconcile_rate, per: Per::Flow }),
                    ..none
                }
            }
            Self::Github => Numbers {
                bucket: Some(bucket(1.25, 20, Per::Gate)),
                strategy: gentle,
                in_flight: NonZeroU32::new(100).map(|max| InFlight { max, per: Per::Gate }),
                honour: &[Signal::RetryAfter, Signal::Github],
                scope: Scope::Credential,
                max_pause: Duration::from_secs(65 * 60),
                reserve: 0.1,
                // Its clients read every list page by page, by the links of each answer.
                rewrite_links: true,
                ..none
            },
            Self::None => none,
        }
    }
}

/// Returns a bucket that starts full.
pub(super) fn bucket(rate: f64, burst: u32, per: Per) -> BucketPolicy {
    BucketPolicy { per, ..BucketPolicy::new(rate, NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN)) }
}

fn exponential(base: Duration, max: Duration) -> Strategy {
    Strategy::Exponential { base, max, jitter: 0.0 }
}

/// Returns the default failures (docs/design.md, "Outcomes"): what a server in trouble answers, and
/// no answer. A client that leaves an API server has given up on it; a client that leaves an
/// external API may have polled for as long as it meant to.
pub(super) fn failures(kind: Kind) -> Failures {
    Failures { statuses: vec![429, 500, 502, 503, 504], transport: true, left: kind == Kind::Kubernetes }
}

/// The longest pause that an upstream can ask for, where the preset says nothing else.
const MAX_PAUSE: Duration = Duration::from_secs(15 * 60);

/// `max_reconcile_rate`, where nothing is said: Crossplane's own default.
pub(super) const MAX_RECONCILE_RATE: NonZeroU32 = NonZeroU32::new(10).expect("ten is not zero");
