//! Presets: numbers for a whole gate, each of which can be overridden.

mod classes;
mod ec2;
mod figures;
mod providers;

use std::num::NonZeroU32;
use std::time::Duration;

pub(super) use self::classes::{PresetBucket, PresetClass};
use self::classes::{actions, list};
use self::providers::Provider;
use crate::api::{Failures, Scope, Signal};
use crate::classify::ApiKind;
use crate::dialect::Dialect;
use crate::limit::policy::{Adapt, BucketPolicy, InFlight, Per, Strategy};
use crate::spec::{self, HostSet};

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
        /// AWS: each service as it counts, and those that publish nothing by how they answer.
        Aws = "aws",
        /// Amazon EC2, by action.
        AwsEc2 = "aws_ec2",
        /// Elastic Load Balancing.
        AwsElb = "aws_elb",
        /// Route 53.
        AwsRoute53 = "aws_route53",
        /// Azure Resource Manager.
        AzureArm = "azure_arm",
        /// Google Cloud.
        Gcp = "gcp",
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
    pub(super) max_wait: Duration,
    /// The calls that the provider does not count if it answers 304, as far as it counts them
    /// elsewhere.
    pub(super) uncounted: Option<BucketPolicy>,
}

impl Preset {
    /// Returns the provider whose limits it keeps to.
    fn provider(self) -> Option<Provider> {
        match self {
            Self::Aws => Some(Provider::AWS),
            Self::AwsEc2 => Some(Provider { classes: ec2::classes, ..Provider::AWS }),
            Self::AwsElb => Some(Provider { classes: providers::elb, ..Provider::AWS }),
            Self::AwsRoute53 => Some(Provider { classes: providers::route53, ..Provider::AWS }),
            Self::AzureArm => Some(Provider::AZURE),
            Self::Gcp => Some(Provider::GOOGLE),
            Self::Github => Some(Provider::GITHUB),
            Self::ClientGo | Self::ControllerRuntime | Self::Crossplane | Self::None | Self::Sidecar => None,
        }
    }

    /// Returns the share of its provider's figures that it takes if nothing is said.
    pub(super) fn usual_share(self) -> Option<f64> {
        self.provider().map(|provider| provider.share)
    }

    /// Returns the dialect that its provider's calls are read in.
    pub(super) fn dialect(self) -> Option<Dialect> {
        self.provider().map(|provider| provider.dialect)
    }

    /// Returns the hosts of its provider, for a gate behind the egress listener.
    pub(super) fn hosts(self) -> Option<HostSet> {
        match self {
            Self::Aws => Some(HostSet::Aws),
            Self::AzureArm => Some(HostSet::AzureArm),
            Self::Gcp => Some(HostSet::Gcp),
            Self::Github => Some(HostSet::Github),
            _ => None,
        }
    }

    /// True if writes go one at a time where its provider takes them so.
    pub(super) fn has_serial_writes(self) -> bool {
        matches!(self, Self::Aws | Self::AwsRoute53)
    }

    /// True if the answers of its classes are kept, to ask only if they have changed.
    pub(super) fn revalidates(self) -> bool {
        self.provider().is_some_and(|provider| provider.uncounted.is_some())
    }

    /// Returns the classes that come with it, in their order.
    pub(super) fn classes(self) -> Vec<PresetClass> {
        self.provider().map(|provider| (provider.classes)()).unwrap_or_default()
    }

    /// Returns the published figures that its buckets are made of.
    pub(super) fn figures(self, share: f64) -> Option<spec::Figures> {
        let provider = self.provider()?;
        let of_class = |class: &PresetClass| class.bucket?.figure(Some(class.name), provider.dialect);
        let of_classes = self.classes().iter().filter_map(of_class).collect::<Vec<_>>();
        let figures = provider.others.figure(None, provider.dialect).into_iter().chain(of_classes).collect();
        Some(spec::Figures { preset: self.word(), share, figures })
    }

    /// Returns its numbers, for a gate of `kind` with `max_reconcile_rate`, and for a share of its
    /// provider's figures.
    pub(super) fn numbers(self, kind: ApiKind, max_reconcile_rate: NonZeroU32, share: f64) -> Numbers {
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
            max_wait: MAX_WAIT,
            uncounted: None,
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
                let calls = if kind == ApiKind::Kubernetes { 5.0 } else { 1.0 };
                Numbers {
                    bucket: Some(bucket(calls * f64::from(rate), rate.saturating_mul(10), Per::Gate)),
                    strategy: gentle,
                    in_flight: Some(InFlight { max: max_reconcile_rate, per: Per::Flow }),
                    ..none
                }
            }
            Self::Aws | Self::AwsEc2 | Self::AwsElb | Self::AwsRoute53 | Self::AzureArm | Self::Gcp | Self::Github => {
                let of = |provider: Provider| Numbers {
                    bucket: Some(provider.others.at(share)),
                    strategy: gentle,
                    in_flight: provider.in_flight.map(|max| InFlight { max, per: Per::Gate }),
                    honour: provider.honour,
                    scope: Scope::Credential,
                    max_pause: provider.max_pause,
                    reserve: provider.reserve,
                    max_wait: provider.max_wait,
                    rewrite_links: provider.rewrite_links,
                    uncounted: provider.uncounted.map(|uncounted| uncounted.at(share)),
                    ..none
                };
                self.provider().map_or(none, of)
            }
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

/// Returns the default failures (docs/internals/design.md, "Outcomes"): what a server in trouble answers, and
/// no answer. A client that leaves an API server has given up on it; a client that leaves an
/// external API may have polled for as long as it meant to. Of a provider also the answers that no
/// retry changes, but somebody with rights.
pub(super) fn failures(kind: ApiKind, preset: Preset) -> Failures {
    let denials = if preset.provider().is_some() { &DENIALS[..] } else { &[] };
    let statuses = [denials, &[429, 500, 502, 503, 504]].concat();
    Failures { statuses, transport: true, left: kind == ApiKind::Kubernetes }
}

/// The answers that are about the caller: it is not known, or it may not.
pub(super) const DENIALS: [u16; 2] = [401, 403];

/// The longest wait, where the preset says nothing else: fabric8 gives up at 10 s, the API server's
/// own queue at 15 s.
const MAX_WAIT: Duration = Duration::from_secs(8);
/// The longest pause that an upstream can ask for, where the preset says nothing else.
const MAX_PAUSE: Duration = Duration::from_secs(15 * 60);

/// `max_reconcile_rate`, where nothing is said: Crossplane's own default.
pub(super) const MAX_RECONCILE_RATE: NonZeroU32 = NonZeroU32::new(10).expect("ten is not zero");
