//! Ten controllers in front of providers that count as they document it, in virtual time: with the
//! presets nobody is throttled and what is allowed is used; without a gate they are throttled.

mod aws;
mod azure;
mod calls;
mod rows;
mod town;

use std::time::Duration;

use testing::providers::{Cloudflare, Github, Hetzner, Refill, second_half};

use self::aws::{ACTIONS, Ec2, Elb, Route53};
use self::azure::Arm;
use self::town::{Job, Provider, Town, Traffic};
use crate::presets::gate;

const MINUTE: Duration = Duration::from_secs(60);
const TEN_MINUTES: Duration = Duration::from_secs(600);
const HOUR: Duration = Duration::from_secs(3600);

/// Runs ten controllers, each with a worker for each job.
fn ten_controllers<P: Provider>(preset: &str, jobs: Vec<Job>, provider: P, last: Duration) -> Town<P> {
    let gate = gate(preset, "share = 1\n");
    Town::run(Some(gate), Traffic { jobs, workers: 10, last }, provider)
}

/// Runs the same without limits.
fn without_a_gate<P: Provider>(jobs: Vec<Job>, provider: P) -> Town<P> {
    Town::run(None, Traffic { jobs, workers: 10, last: Duration::from_secs(60) }, provider)
}

/// Expects that nobody was throttled and that each bucket was used to 95% and more.
fn is_held_and_used<P: Provider>(town: &Town<P>, last: Duration, buckets: usize) {
    assert_eq!(town.throttled, 0, "of {} calls", town.served);
    let used = town.provider.used(last);
    assert_eq!(used.len(), buckets, "{used:?}");
    for (bucket, part) in used {
        assert!((0.95..=1.0).contains(&part), "{bucket}: {part:.3} was used");
    }
}

#[test]
fn ec2_throttles_no_action_and_all_are_used() {
    for refill in [Refill::EachSecond, Refill::Continuous] {
        let jobs = || ACTIONS.iter().map(|action| Job::ec2(1, "eu-central-1", action)).collect::<Vec<_>>();
        let town = ten_controllers("aws_ec2", jobs(), Ec2::new(refill), TEN_MINUTES);
        is_held_and_used(&town, TEN_MINUTES, ACTIONS.len());
        let direct = without_a_gate(jobs(), Ec2::new(refill));
        assert!(direct.throttled > direct.served, "{} of {}", direct.throttled, direct.served);
    }
}

#[test]
fn a_bucket_as_large_as_ec2s_would_be_overdrawn() {
    for refill in [Refill::EachSecond, Refill::Continuous] {
        let whole = "share = 1\nclasses = [{ name = \"ec2_reads\", bucket = { rate = 20, burst = 100 } }]\n";
        let traffic =
            Traffic { jobs: vec![Job::ec2(1, "eu-central-1", "DescribeVpcs")], workers: 10, last: TEN_MINUTES };
        let town = Town::run(Some(gate("aws_ec2", whole)), traffic, Ec2::new(refill));
        assert!(town.throttled > 0, "{refill:?}: {} calls were served", town.served);
    }
}

#[test]
fn ten_gates_that_share_ec2s_buckets_are_throttled_in_no_account_and_use_all_of_each() {
    let reads = ["DescribeVpcs", "DescribeSubnets", "DescribeImages", "DescribeAddresses", "DescribeKeyPairs"];
    let writes = ["CreateTags", "AttachVolume", "DeleteSnapshot", "DetachVolume", "CreateSubnet", "CreateRoute"];
    let mut actions: Vec<&str> = ACTIONS.into_iter().chain(reads).chain(writes).collect();
    actions.sort_unstable();
    actions.dedup();
    assert!(actions.len() >= 40, "{}", actions.len());
    let of = |account| actions.iter().map(move |action| Job::ec2(account, "eu-central-1", action));
    let jobs: Vec<Job> = (1..=3).flat_map(of).collect();
    let buckets = jobs.len();
    let shared = || gate("aws_ec2", "share = 1\nshared = \"aws\"\n");
    let last = 2 * MINUTE;
    let traffic = Traffic { jobs, workers: 10, last };
    let town = Town::run_all((0..10).map(|_| shared()).collect(), traffic.clone(), Ec2::new(Refill::EachSecond));
    assert_eq!(town.throttled, 0, "of {} calls", town.served);
    // A shared bucket that is new is empty: what counts is what flows. The first token of the
    // slowest comes after ten seconds, and the last may come after the end.
    let used = town.provider.taken_of_flow(last);
    assert_eq!(used.len(), buckets);
    for (bucket, taken, flow) in used {
        assert!(taken + 2.0 >= 0.95 * flow, "{bucket}: {taken} of {flow} was used");
    }
    for gate in 0..10 {
        let questions = town.questions.iter().filter(|(_, of)| *of == gate).count();
        assert!(questions <= 8 + 20 * 120, "gate {gate} asked {questions} times in two minutes");
    }
    // Each for itself they are throttled as if they had no gate.
    let alone = || gate("aws_ec2", "share = 1\n");
    let traffic = Traffic { last: MINUTE / 4, ..traffic };
    let town = Town::run_all((0..10).map(|_| alone()).collect(), traffic, Ec2::new(Refill::EachSecond));
    assert!(town.throttled > town.served / 10, "{} of {}", town.throttled, town.served);
}

#[test]
fn elb_throttles_no_kind_of_call_and_all_are_used() {
    // The writes of all kinds need less than the account has; what is left is for reads.
    let writes = ["RegisterTargets", "CreateLoadBalancer", "CreateTrustStore", "ModifyRule"];
    for (actions, buckets) in [(&writes[..], 4), (&["DescribeTargetHealth"], 2)] {
        let jobs = || actions.iter().map(|action| Job::elb(action)).collect::<Vec<_>>();
        let town = ten_controllers("aws_elb", jobs(), Elb::new(), TEN_MINUTES);
        is_held_and_used(&town, TEN_MINUTES, buckets);
        let direct = without_a_gate(jobs(), Elb::new());
        assert!(direct.throttled > 0);
    }
}

#[test]
fn route_53_gets_five_calls_a_second_and_one_change_of_a_zone_at_a_time() {
    let jobs = || {
        let changes = ["Z1", "Z2", "Z3"].map(Job::change);
        changes.into_iter().chain([Job::zones()]).collect::<Vec<_>>()
    };
    for preset in ["aws_route53", "aws"] {
        let town = ten_controllers(preset, jobs(), Route53::default(), TEN_MINUTES);
        assert_eq!(town.provider.overlapping, 0, "changes of one zone");
        assert!(town.provider.changes > 1000, "{}", town.provider.changes);
        is_held_and_used(&town, TEN_MINUTES, 1);
    }
    let direct = without_a_gate(jobs(), Route53::default());
    assert!(direct.throttled > 0 && direct.provider.overlapping > 0);
}

#[test]
fn azure_throttles_no_subscription_and_all_are_used() {
    let jobs = || {
        let of = |subscription| ["GET", "PUT", "DELETE"].map(|method| Job::arm(subscription, method));
        ["s1", "s2"].into_iter().flat_map(of).collect::<Vec<_>>()
    };
    let town = ten_controllers("azure_arm", jobs(), Arm::default(), TEN_MINUTES);
    is_held_and_used(&town, TEN_MINUTES, 6);
    let direct = without_a_gate(jobs(), Arm::default());
    assert!(direct.throttled > 0);
}

#[test]
fn github_refuses_nothing_and_what_the_reserve_leaves_is_used() {
    let jobs =
        || ["reads", "writes", "creates", "search", "code_search", "queries", "mutations"].map(Job::github).to_vec();
    let town = ten_controllers("github", jobs(), Github::default(), HOUR);
    is_held_and_used(&town, HOUR, 4);
    let direct = without_a_gate(jobs(), Github::default());
    assert!(direct.throttled > 0);
}

#[test]
fn accounts_and_regions_behind_one_gate_do_not_slow_each_other() {
    let two_minutes = Duration::from_secs(120);
    for preset in ["aws_ec2", "aws"] {
        let of = |account| ["eu-central-1", "us-east-1"].map(|region| Job::ec2(account, region, "DescribeVpcs"));
        let mut jobs: Vec<Job> = [1, 2].into_iter().flat_map(of).collect();
        // One more account that asks for less than it may.
        jobs.push(Job { idle: Duration::from_secs(1), ..Job::ec2(3, "eu-central-1", "DescribeVpcs") });
        let town = ten_controllers(preset, jobs, Ec2::new(Refill::EachSecond), two_minutes);
        assert_eq!(town.throttled, 0);
        assert_eq!(town.waited[4], 0, "calls of the account with tokens left");
        for (bucket, part) in town.provider.used(two_minutes) {
            assert!(bucket.starts_with("3 ") || part >= 0.95, "{bucket}: {part:.3} was used");
        }
    }
}

/// Runs ten controllers behind a preset, beside another tool that takes half.
fn beside_a_tool<P: Provider>(preset: &str, more: &str, jobs: Vec<Job>, provider: P, last: Duration) -> Town<P> {
    let gate = gate(preset, &format!("queue.max_wait = \"60s\"\n{more}\n"));
    Town::run(Some(gate), Traffic { jobs, workers: 10, last }, provider)
}

/// Expects that the provider refused nothing, that at least 97% of what the tool left was used, and
/// that none of these jobs stopped for longer than two calls take at its rate.
fn lasts<P: Provider>(town: &Town<P>, last: Duration, rates: &[(usize, f64)]) {
    let used = town.provider.used(last);
    let stops: Vec<_> = rates.iter().map(|(job, _)| town.stop(*job)).collect();
    println!("{used:.3?}, stops {stops:?}");
    assert_eq!(town.throttled, 0, "of {} calls", town.served);
    for (bucket, part) in used {
        assert!(part >= 0.97, "{bucket}: {part:.3} was used");
    }
    for (job, rate) in rates {
        let most = Duration::from_secs_f64(2.0 / rate);
        assert!(town.stop(*job) <= most, "job {job} stopped for {:?}, not {most:?}", town.stop(*job));
    }
}

#[test]
fn githubs_quotas_last_beside_a_tool_that_takes_half() {
    // A query takes a quarter of a second.
    let query = Job { idle: Duration::from_secs(8), ..Job::github("queries") };
    let jobs = ["reads", "search", "code_search"].map(Job::github).into_iter().chain([query]).collect();
    let town = beside_a_tool("github", "", jobs, Github::shared(), 2 * HOUR);
    let rate = second_half(5000.0, 3600.0, 0.1, 1.25);
    // Of a minute's searches one or two are left then.
    lasts(&town, 2 * HOUR, &[(0, rate), (3, rate)]);
}

#[test]
fn each_of_githubs_resources_is_spent_beside_the_others_without_a_refusal() {
    let kinds = [
        "reads",
        "search",
        "code_search",
        "queries",
        "manifests",
        "snapshots",
        "sboms",
        "sarifs",
        "autofixes",
        "runners",
        "audits",
    ];
    let idle = |kind| Duration::from_secs(if kind == "queries" { 8 } else { 0 });
    let jobs = kinds.map(|kind| Job { idle: idle(kind), ..Job::github(kind) }).to_vec();
    // So many that each quota is the limit of its calls, but for those of class `creates`.
    let town = beside_a_tool("github", "bucket = { rate = 8, burst = 20 }", jobs, Github::shared(), HOUR);
    assert_eq!(town.throttled, 0, "of {} calls", town.served);
    let used = town.provider.used(HOUR);
    assert_eq!(used.len(), kinds.len(), "{used:?}");
    for name in ["core", "search", "code_search", "graphql", "dependency_sbom", "audit_log"] {
        let part = used.iter().find(|(resource, _)| resource.ends_with(&format!(" {name}"))).map(|(_, part)| *part);
        assert!(part >= Some(0.97), "{name}: {part:?} was used");
    }
}

#[test]
fn hetzners_refill_lasts_beside_a_tool_that_takes_half() {
    let town = beside_a_tool("hetzner", "share = 1", vec![Job::hetzner(1)], Hetzner::default(), 3 * HOUR);
    lasts(&town, 3 * HOUR, &[(0, 0.5)]);
}

#[test]
fn cloudflares_window_lasts_beside_a_tool_that_takes_half() {
    let town = beside_a_tool("cloudflare", "share = 1", vec![Job::cloudflare(1)], Cloudflare::default(), HOUR);
    lasts(&town, HOUR, &[(0, second_half(1200.0, 300.0, 0.02, 4.0))]);
}

#[test]
fn azures_two_levels_last_beside_a_tool_that_takes_half() {
    let jobs = ["GET", "PUT", "DELETE"].map(|method| Job::arm("s1", method)).to_vec();
    let town = beside_a_tool("azure_arm", "", jobs, Arm::shared(), TEN_MINUTES);
    lasts(&town, TEN_MINUTES, &[(0, 12.5), (1, 5.0), (2, 5.0)]);
}

#[test]
fn nobody_of_ten_clients_with_three_tokens_waits_for_anothers_quota() {
    fn waits_alone<P: Provider>(preset: &str, job: impl Fn(u64) -> Job, idle: u64, provider: P) {
        let others = [2, 3].map(|token| Job { idle: Duration::from_secs(idle), ..job(token) });
        let jobs = [job(1)].into_iter().chain(others).collect();
        let more = match preset {
            "azure_arm" => "",
            _ => "bucket.per = \"credential\"",
        };
        let town = beside_a_tool(preset, more, jobs, provider, HOUR);
        assert!(town.waited[0] > 100, "{preset}: {:?}", town.waited);
        assert_eq!(town.waited[1..], [0, 0], "{preset}");
        assert_eq!(town.throttled, 0, "{preset}");
    }
    waits_alone("github", |account| Job { account, ..Job::github("reads") }, 30, Github::shared());
    waits_alone("hetzner", Job::hetzner, 30, Hetzner::default());
    waits_alone("cloudflare", Job::cloudflare, 10, Cloudflare::default());
    let subscription = |account| ["s1", "s2", "s3"][usize::try_from(account).expect("few") - 1];
    let arm = |account| Job { account, ..Job::arm(subscription(account), "GET") };
    waits_alone("azure_arm", arm, 10, Arm::shared());
}
