//! The presets of providers: the classes of each, with the figures behind their buckets.
//!
//! A call that is in none of a preset's classes is metered by the gate's bucket, which is the
//! strictest figure or, where nothing is published, a guess that adapts.

use std::num::NonZeroU32;
use std::time::Duration;

use super::figures::{self, Figure};
use super::{PresetBucket, PresetClass, actions, ec2, list};
use crate::api::Signal;
use crate::classify::{CostBy, CostReader, Matcher, PatternList};
use crate::config::cost;
use crate::dialect::Dialect;
use crate::limit::policy::{Lane, Per};

/// A provider: its limits, and its ways.
#[derive(Clone, Copy, Debug)]
pub(super) struct Provider {
    pub(super) dialect: Dialect,
    /// The share of its figures that is taken if nothing is said.
    pub(super) share: f64,
    /// The bucket of calls that are in none of the classes.
    pub(super) others: PresetBucket,
    pub(super) classes: fn() -> Vec<PresetClass>,
    pub(super) honour: &'static [Signal],
    pub(super) in_flight: Option<NonZeroU32>,
    pub(super) max_wait: Duration,
    pub(super) max_pause: Duration,
    pub(super) reserve: f64,
    /// True if its answers have links in their heads that clients follow.
    pub(super) rewrite_links: bool,
    /// The calls that it does not count if it answers 304, as far as it counts them elsewhere.
    pub(super) uncounted: Option<PresetBucket>,
}

// === impl Provider ===

impl Provider {
    pub(super) const AWS: Self = Self {
        dialect: Dialect::Aws,
        share: HALF,
        others: AWS_OTHERS,
        classes: aws,
        honour: &[Signal::RetryAfter, Signal::Aws],
        in_flight: None,
        // A signature is good for five minutes, and holding is better than refusing.
        max_wait: Duration::from_secs(30),
        max_pause: super::MAX_PAUSE,
        reserve: 0.0,
        rewrite_links: false,
        uncounted: None,
    };
    pub(super) const AZURE: Self = Self {
        dialect: Dialect::Azure,
        others: AZURE_OTHERS,
        classes: azure,
        honour: &[Signal::RetryAfter, Signal::Azure],
        max_wait: super::MAX_WAIT,
        // Where to ask for what is under way, and the next page of a list.
        rewrite_links: true,
        ..Self::AWS
    };
    pub(super) const GOOGLE: Self = Self {
        dialect: Dialect::Google,
        others: GOOGLE_OTHERS,
        classes: google,
        honour: &[Signal::RetryAfter, Signal::Google],
        ..Self::AZURE
    };
    pub(super) const GITHUB: Self = Self {
        dialect: Dialect::Github,
        share: 1.0,
        others: GITHUB_OTHERS,
        classes: github,
        honour: &[Signal::RetryAfter, Signal::Github],
        in_flight: NonZeroU32::new(100),
        max_pause: Duration::from_secs(65 * 60),
        reserve: 0.1,
        uncounted: Some(GITHUB_UNCHANGED),
        ..Self::AZURE
    };
}

/// The quota is also used by other controllers of the account, and by people.
const HALF: f64 = 0.5;

/// Most of AWS's services publish nothing.
const AWS_OTHERS: PresetBucket = PresetBucket::guess(20.0, 40, Per::Account);
/// The strictest kind of operation.
const AZURE_OTHERS: PresetBucket = PresetBucket::of(Figure::bucket(200, 10.0), &figures::ARM, Per::Account);
/// The figure is an old one: what a project may do is on its quota page.
const GOOGLE_OTHERS: PresetBucket =
    PresetBucket::of(Figure::window(1500, 60), &figures::GOOGLE, Per::Account).adaptive();
/// 1.25/s with a burst of 20 are 4,520 calls in an hour: the others are left to other tools.
const GITHUB_OTHERS: PresetBucket =
    PresetBucket::of(Figure::window(5000, 3600), &figures::GITHUB, Per::Gate).numbers(1.25, 20);
/// A 304 is not counted in the quota of the hour. That of the minute, 900 points, is said of every
/// request: 95 calls of the gate's bucket (of which 61 write, and cost four points more), 40
/// searches and 440 of these make 819.
const GITHUB_UNCHANGED: PresetBucket =
    PresetBucket::of(Figure::window(900, 60), &figures::GITHUB, Per::Gate).numbers(7.0, 20);

fn aws() -> Vec<PresetClass> {
    let figure = Figure::window(600, 1);
    let bucket = PresetBucket::of(figure, &figures::STS, Per::Account).numbers(100.0, 200);
    let sts = Matcher::default().with(PatternList::Services, list(&["sts", "sso", "sso-oauth"]));
    // Without credentials nothing else goes on.
    let credentials = PresetClass { lane: Lane::High, ..PresetClass::new("credentials", sts).alone(bucket) };
    // S3 tells a caller who may not list a bucket that it may not see an object that is not there,
    // and clients poll for it to come.
    let s3 = Matcher::default().with(PatternList::Services, list(&["s3"]));
    let s3 = PresetClass { hides_by_403: true, ..PresetClass::new("s3", s3) };
    [vec![credentials], ec2::classes(), elb(), route53(), vec![s3]].into_iter().flatten().collect()
}

pub(super) fn elb() -> Vec<PresetClass> {
    let bucket = |burst, rate| PresetBucket::of(Figure::bucket(burst, rate), &figures::ELB, Per::Account);
    let class = |name, named: &[&str], bucket| PresetClass {
        within: Some("elb"),
        ..PresetClass::new(name, actions("elasticloadbalancing", named)).alone(bucket)
    };
    let targets = [
        "DeregisterInstancesFromLoadBalancer",
        "DeregisterTargets",
        "RegisterInstancesWithLoadBalancer",
        "RegisterTargets",
    ];
    let reads = PresetClass { within: None, ..class("elb", &["Describe*", "Get*"], bucket(40, 10.0)) };
    vec![
        // The bucket of the account, which every call is charged to, is as large as that of reads.
        reads,
        class("elb_targets", &targets, bucket(20, 4.0)),
        class("elb_creates", &["CreateLoadBalancer", "SetSubnets"], bucket(10, 0.2)),
        class("elb_trust_stores", &["*TrustStore*"], bucket(10, 0.2)),
        class("elb_writes", &[], bucket(20, 3.0)),
    ]
}

pub(super) fn route53() -> Vec<PresetClass> {
    let bucket = PresetBucket::of(Figure::window(5, 1), &figures::ROUTE_53, Per::Account);
    let changes = actions("route53", &["ChangeResourceRecordSets"]);
    vec![
        PresetClass {
            within: Some("route53"),
            own_bucket_only: true,
            // A change waits for the one before it, which takes longer than a failing key may hold.
            hold: Some(Duration::from_secs(10)),
            ..PresetClass::new("route53_changes", changes)
        },
        PresetClass::new("route53", actions("route53", &[])).alone(bucket),
    ]
}

fn azure() -> Vec<PresetClass> {
    let class = |name, methods: &[&str], burst, rate| {
        let matcher = Matcher::default().with(PatternList::Methods, list(methods));
        let bucket = PresetBucket::of(Figure::bucket(burst, rate), &figures::ARM, Per::Account);
        PresetClass::new(name, matcher).alone(bucket)
    };
    vec![
        class("reads", &["GET", "HEAD"], 250, 25.0),
        class("deletes", &["DELETE"], 200, 10.0),
        class("writes", &["POST", "PUT", "PATCH"], 200, 10.0),
    ]
}

fn google() -> Vec<PresetClass> {
    let class = |name, methods: &[&str]| {
        let matcher = Matcher::default().with(PatternList::Methods, list(methods));
        PresetClass::new(name, matcher).alone(GOOGLE_OTHERS)
    };
    vec![class("reads", &["GET", "HEAD"]), class("writes", &["POST", "PUT", "PATCH", "DELETE"])]
}

/// Returns GitHub's limits on what changes things: one write a second, less than 500 new things in
/// any hour. A bucket lets `burst + rate * 3600` out in an hour: 20 + 0.133 * 3600 = 498.8 (with
/// 0.138 it would be 516.8). A GraphQL query is a POST that makes nothing. It and the searches have
/// quotas of their own, so that neither spends the other's, and a pause of theirs does not stop the
/// rest. A GraphQL query costs one of its points, a mutation five.
fn github() -> Vec<PresetClass> {
    let bucket = |calls, seconds| PresetBucket::of(Figure::window(calls, seconds), &figures::GITHUB, Per::Gate);
    let of_methods = |methods: &[&str]| Matcher::default().with(PatternList::Methods, list(methods));
    let of = |methods: &[&str], paths: &[&str]| of_methods(methods).with(PatternList::Paths, list(paths));
    let points = CostBy::Read(CostReader::Graphql);
    let graphql = bucket(2000, 60).dearest(cost::most_of(CostReader::Graphql));
    let graphql = PresetClass::new("graphql", of(&["POST"], &["/graphql", "*/graphql"])).alone(graphql);
    // The resource is read from a path that is clear: an unclear one is no search.
    let charged_to =
        |services: &[&str], paths: &[&str]| of(&["GET"], paths).with(PatternList::Services, list(services));
    let code = charged_to(&["code_search"], &["/search/code"]);
    let searches = charged_to(&["search", "code_search"], &["/search/*", "/api/v3/search/*"]);
    let creates = PresetClass::new("creates", of(&["POST"], &["*"])).metered(bucket(500, 3600).numbers(0.133, 20));
    vec![
        PresetClass { cost: points, ..graphql },
        PresetClass::new("code_search", code).alone(bucket(10, 60)),
        PresetClass::new("searches", searches).alone(bucket(30, 60)),
        PresetClass { within: Some("writes"), ..creates },
        PresetClass::new("writes", of(&["PUT", "PATCH", "DELETE"], &[])).metered(bucket(1, 1).numbers(1.0, 1)),
    ]
}
