//! Ten controllers in front of providers that count as they document it, in virtual time: with the
//! presets nobody is throttled and what is allowed is used; without a gate they are throttled.

mod aws;
mod azure;
mod github;
mod rows;
mod tokens;
mod town;

use std::time::Duration;

use self::aws::{ACTIONS, Ec2, Elb, Route53};
use self::azure::Arm;
use self::github::Github;
use self::tokens::Refill;
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
