//! EC2, ELB and Route 53, counting as AWS documents it.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;
use std::time::Duration;

use http::{HeaderMap, Method};
use testing::providers::{Bucket, Refill, Reply, Window};

use super::town::{Job, Provider};

/// The published table of actions with figures of their own.
static TABLE: LazyLock<Vec<Published>> = LazyLock::new(|| {
    let file: toml::Table = include_str!("../../../config/presets/aws_ec2.toml").parse().expect("it is TOML");
    let classes = file["classes"].as_array().expect("a list");
    let numbers = |class: &toml::Value, key| class["bucket"]["published"][key].clone();
    let number = |value: toml::Value| value.try_into().expect("a number");
    let actions = |class: &toml::Value| class["match"].get("actions").and_then(toml::Value::as_array).cloned();
    let published = |class: &toml::Value| Published {
        burst: number(numbers(class, "burst")),
        rate: number(numbers(class, "rate")),
        actions: actions(class).unwrap_or_default(),
    };
    classes.iter().map(published).collect()
});

/// A figure and the actions that it is for; the categories have patterns.
struct Published {
    burst: f64,
    rate: f64,
    actions: Vec<toml::Value>,
}

/// An action of each line of the table, and some of each category.
pub(super) const ACTIONS: [&str; 32] = [
    "AdvertiseByoipCidr",
    "DescribeByoipCidrs",
    "CreateDefaultVpc",
    "ModifyInstanceMetadataDefaults",
    "CreateVpcEndpoint",
    "CreateCoipPool",
    "RunInstances",
    "StartInstances",
    "PurchaseReservedInstancesOffering",
    "PurchaseCapacityBlock",
    "CreateNatGateway",
    "CreateVerifiedAccessGroup",
    "DescribeIdFormat",
    "CreateVerifiedAccessEndpoint",
    "DescribeStaleSecurityGroups",
    "CreateStoreImageTask",
    "DescribeStoreImageTasks",
    "DescribeSpotFleetRequests",
    "CopyImage",
    "CreateVolume",
    "TerminateInstances",
    "CreateTags",
    "DescribeSpotDatafeedSubscription",
    "CreateKeyPair",
    "AuthorizeSecurityGroupIngress",
    "DescribeInstances",
    "DescribeVolumes",
    "DescribeVpcs",
    "DescribeSubnets",
    "GetConsoleOutput",
    "CreateVpc",
    "DeleteVpc",
];

/// A bucket for each account, region and action.
#[derive(Debug)]
pub(super) struct Ec2 {
    refill: Refill,
    buckets: BTreeMap<String, Bucket>,
}

/// A bucket for the account, and one for each kind of call.
#[derive(Debug)]
pub(super) struct Elb(BTreeMap<&'static str, Bucket>);

/// Five calls in any second, and one change of a zone at a time.
#[derive(Debug, Default)]
pub(super) struct Route53 {
    second: Window,
    served: u32,
    changing: HashSet<String>,
    pub(super) changes: usize,
    pub(super) overlapping: usize,
}

// === impl Job ===

impl Job {
    pub(super) fn ec2(account: u64, region: &'static str, action: &'static str) -> Self {
        Self { account, region, form: format!("Action={action}"), ..Self::new("ec2", Method::POST, "/", action) }
    }

    pub(super) fn elb(action: &'static str) -> Self {
        Self { form: format!("Action={action}"), ..Self::new("elasticloadbalancing", Method::POST, "/", action) }
    }

    pub(super) fn change(zone: &'static str) -> Self {
        let path = format!("/2013-04-01/hostedzone/{zone}/rrset/");
        Self::new("route53", Method::POST, &path, "ChangeResourceRecordSets")
    }

    pub(super) fn zones() -> Self {
        Self::new("route53", Method::GET, "/2013-04-01/hostedzone", "ListHostedZones")
    }
}

// === impl Ec2 ===

impl Ec2 {
    pub(super) fn new(refill: Refill) -> Self {
        Self { refill, buckets: BTreeMap::new() }
    }

    /// The calls that each bucket served, and those that flowed into it.
    pub(super) fn taken_of_flow(&self, last: Duration) -> Vec<(String, f64, f64)> {
        let of = |(name, bucket): (&String, &Bucket)| (name.clone(), f64::from(bucket.taken), bucket.flow(last));
        self.buckets.iter().map(of).collect()
    }
}

impl Provider for Ec2 {
    fn serve(&mut self, job: &Job, at: Duration) -> Reply {
        let name = format!("{} {} {}", job.account, job.region, job.action);
        let seed = self.buckets.len();
        let new = || {
            let (burst, rate) = published(job.action);
            Bucket::new(burst, rate, self.refill, seed)
        };
        let bucket = self.buckets.entry(name).or_insert_with(new);
        if bucket.level(at) < 1.0 {
            return refused(
                503,
                "<Response><Errors><Error><Code>RequestLimitExceeded</Code></Error></Errors></Response>",
            );
        }
        bucket.take();
        served(20)
    }

    fn used(&self, last: Duration) -> Vec<(String, f64)> {
        self.buckets.iter().map(|(name, bucket)| (name.clone(), bucket.used(last))).collect()
    }
}

/// The bucket of an action: of its own, or of its category.
fn published(action: &str) -> (f64, f64) {
    let is_own = |one: &&Published| one.actions.iter().any(|own| own.as_str() == Some(action));
    if let Some(own) = TABLE.iter().find(is_own) {
        return (own.burst, own.rate);
    }
    match action {
        "DescribeInstances" | "DescribeVolumes" => (50.0, 10.0), // nothing narrows them here
        read if ["Describe", "Get", "List", "Search"].iter().any(|word| read.starts_with(word)) => (100.0, 20.0),
        _ => (50.0, 5.0),
    }
}

// === impl Elb ===

impl Elb {
    pub(super) fn new() -> Self {
        let kinds = [
            ("account", 40.0, 10.0),
            ("reads", 40.0, 10.0),
            ("writes", 20.0, 3.0),
            ("targets", 20.0, 4.0),
            ("creates", 10.0, 0.2),
            ("trust stores", 10.0, 0.2),
        ];
        let new = |(seed, (kind, burst, rate))| (kind, Bucket::new(burst, rate, Refill::EachSecond, seed));
        Self(kinds.into_iter().enumerate().map(new).collect())
    }
}

impl Provider for Elb {
    fn serve(&mut self, job: &Job, at: Duration) -> Reply {
        let kind = match job.action {
            "RegisterTargets" => "targets",
            "CreateLoadBalancer" => "creates",
            "CreateTrustStore" => "trust stores",
            read if read.starts_with("Describe") => "reads",
            _ => "writes",
        };
        let mut both = self.0.iter_mut().filter(|(name, _)| [kind, "account"].contains(name));
        if both.any(|(_, bucket)| bucket.level(at) < 1.0) {
            return refused(400, "<ErrorResponse><Error><Code>Throttling</Code></Error></ErrorResponse>");
        }
        self.0.iter_mut().filter(|(name, _)| [kind, "account"].contains(name)).for_each(|(_, bucket)| bucket.take());
        served(20)
    }

    /// The account's bucket is in demand only if reads are.
    fn used(&self, last: Duration) -> Vec<(String, f64)> {
        let has_reads = self.0["reads"].taken > 0;
        let in_demand = |name: &str, bucket: &Bucket| bucket.taken > 0 && (name != "account" || has_reads);
        let asked = self.0.iter().filter(|(name, bucket)| in_demand(name, bucket));
        asked.map(|(name, bucket)| ((*name).to_owned(), bucket.used(last))).collect()
    }
}

// === impl Route53 ===

impl Provider for Route53 {
    fn serve(&mut self, job: &Job, at: Duration) -> Reply {
        if self.second.sum(Duration::from_secs(1), at) >= 5 {
            return refused(400, "<ErrorResponse><Error><Code>Throttling</Code></Error></ErrorResponse>");
        }
        let is_change = job.action == "ChangeResourceRecordSets";
        if is_change && !self.changing.insert(job.path.clone()) {
            self.overlapping += 1;
            return refused(400, "<ErrorResponse><Error><Code>PriorRequestNotComplete</Code></Error></ErrorResponse>");
        }
        self.second.add(at, 1);
        self.served += 1;
        self.changes += usize::from(is_change);
        served(if is_change { 300 } else { 20 })
    }

    fn end(&mut self, job: &Job, status: u16) {
        if status == 200 {
            self.changing.remove(&job.path);
        }
    }

    fn used(&self, last: Duration) -> Vec<(String, f64)> {
        vec![("calls".to_owned(), f64::from(self.served) / (5.0 * last.as_secs_f64()))]
    }
}

fn served(millis: u64) -> Reply {
    Reply { status: 200, headers: HeaderMap::new(), body: "", takes: Duration::from_millis(millis) }
}

fn refused(status: u16, body: &'static str) -> Reply {
    Reply { status, body, ..served(5) }
}
