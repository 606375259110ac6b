//! `tidegate simulate` from outside: it prints the published figures, draws the published pictures,
//! and a replay of a live log waits as the live calls did.

mod audit_page;
mod audited;
mod cli;
pub(crate) mod days;
mod fleet;
mod live;
mod logs;
mod recommended;
mod recovery;
mod replayed;
mod seats;
mod twin;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tidegate::config;
use tidegate::limit::policy::Combine;
use tidegate::moment::Moment;
use tidegate::simulate::{self, Limits, ScenarioRun, Setup};

/// A scenario, and its run under each of its limits.
type Outcome = (Setup, Vec<ScenarioRun>);

/// A built-in scenario without changes; played once for all tests.
fn usual(name: &str) -> Arc<Outcome> {
    static PLAYED: LazyLock<Mutex<BTreeMap<String, Arc<Outcome>>>> = LazyLock::new(Mutex::default);
    let mut all = PLAYED.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(all.entry(name.to_owned()).or_insert_with(|| Arc::new(played(name, &[]))))
}

/// A built-in scenario with these numbers, under its own limits.
fn played(name: &str, numbers: &[&str]) -> Outcome {
    let numbers: Vec<String> = numbers.iter().map(|number| (*number).to_owned()).collect();
    let builtin = simulate::find(name).expect("it is built in");
    let setup = builtin.set_up(&numbers).expect("these numbers make sense");
    let played = setup.limits.iter().map(|limits| simulate::play(&setup.scenario, limits)).collect();
    (setup, played)
}

/// The moment at which the n-th retry left, counted from 1.
fn retry(played: &ScenarioRun, number: usize) -> Duration {
    played.retries[number - 1].since_start()
}

#[test]
fn one_failing_object_is_retried_seven_times_in_the_first_second_and_waits_1000_s_from_the_19th_on() {
    let usual = usual("one-failing-object");
    let (_, played) = &*usual;
    let retries = &played[0].retries;
    assert_eq!(retries.iter().filter(|retry| **retry < Moment::from_millis(1000)).count(), 7);
    assert_eq!((retry(&played[0], 7), retry(&played[0], 8)), (Duration::from_millis(635), Duration::from_millis(1275)));
    let delay = |number: usize| retry(&played[0], number) - retry(&played[0], number - 1);
    assert_eq!(delay(18), Duration::from_millis(655_360));
    for number in 19..=retries.len() {
        assert_eq!(delay(number), Duration::from_secs(1000), "retry {number}");
    }
    assert!(retries.len() > 20);
}

#[test]
fn ten_thousand_objects_failing_together_come_out_as_published() {
    let usual = usual("failing-together");
    let (setup, played) = &*usual;
    let names: Vec<&str> = played.iter().map(|one| one.limits.as_str()).collect();
    assert_eq!(names, ["backoff only", "bucket only", "both, max_of", "both, sequential"]);
    let [backoff, bucket, max_of, sequential] = &played[..] else { panic!("four limits") };

    assert_eq!((backoff.retries_in_first_second(), backoff.calls_in_first_second()), (70_000, 80_000));

    assert_eq!(bucket.first_retries, 100, "the burst at once");
    for number in 101..=120 {
        // Each first retry comes a nanosecond after the failure: that is the shortest backoff.
        let exact = Duration::from_millis(100) * (u32::try_from(number).expect("few") - 100);
        assert!(
            retry(bucket, number).abs_diff(exact) <= Duration::from_nanos(1),
            "retry {number}: {:?}",
            retry(bucket, number)
        );
    }

    // MaxOf: the tokens are computed when objects fail, all at the start, and the backoff is over
    // long before most of them come.
    assert_eq!((max_of.first_retries, retry(max_of, 1)), (100, Duration::from_millis(5)));
    assert_eq!((retry(max_of, 101), retry(max_of, 110)), (Duration::from_millis(100), Duration::from_secs(1)));
    // In sequence: each takes a token once its backoff is over.
    assert_eq!((sequential.first_retries, retry(sequential, 1)), (100, Duration::from_millis(5)));
    assert_eq!(
        (retry(sequential, 101), retry(sequential, 110)),
        (Duration::from_millis(105), Duration::from_millis(1005))
    );
    assert_eq!(setup.limits[2].gate.policy.queue.combine, Combine::MaxOf);
}

#[test]
fn keys_whose_backoff_ends_together_break_the_retry_buckets_bound_in_max_of_only() {
    let (_, played) = played("failing-together", &["base=60s", "max=60s", "length=61s"]);
    let [_, _, max_of, sequential] = &played[..] else { panic!("four limits") };
    // The burst, and the tokens of 60 s: all of them leave at the end of the minute, as under
    // client-go's limiter.
    assert_eq!((max_of.first_retries, retry(max_of, 1)), (700, Duration::from_secs(60)));
    assert_eq!((sequential.first_retries, retry(sequential, 1)), (100, Duration::from_secs(60)));
    let bound = |window: Duration| 100.0 + 10.0 * window.as_secs_f64();
    for (first, from) in sequential.retries.iter().enumerate() {
        for (last, to) in sequential.retries.iter().enumerate().skip(first) {
            let left = f64::from(u32::try_from(last - first).expect("few")) + 1.0;
            assert!(left <= bound(*to - *from) + 1e-6, "{left} between {from:?} and {to:?}");
        }
    }
}

#[test]
fn a_lease_in_the_queue_is_lost_and_an_exempt_one_is_not() {
    let usual = usual("lease-holder");
    let (_, played) = &*usual;
    let [queued, exempt] = &played[..] else { panic!("two limits") };
    assert!(queued.leases[0].lost > 0, "{:?}", queued.leases);
    assert_eq!(exempt.leases[0].lost, 0);
    assert!(exempt.leases[0].longest < Duration::from_millis(2100), "{:?}", exempt.leases[0].longest);
    assert!(exempt.leases[0].renewals >= 58);
}

#[test]
fn a_noisy_neighbour_costs_a_quiet_controller_little_when_its_queue_is_its_own() {
    let usual = usual("noisy-neighbour");
    let (_, played) = &*usual;
    let [together, fair] = &played[..] else { panic!("two limits") };
    let quiet =
        |played: &ScenarioRun| played.rows.iter().find(|row| row.name == "quiet").cloned().expect("it is there");
    assert!(quiet(together).waits.quantile(500) > Duration::from_secs(5));
    // A token comes every 20 ms, and every second one goes to the quiet controller.
    assert!(quiet(fair).waits.quantile(500) <= Duration::from_millis(41), "{:?}", quiet(fair).waits.quantile(500));
    assert_eq!(quiet(fair).refusals(), 0);
}

#[test]
fn a_retry_bucket_that_opens_recovers_sooner_than_one_of_a_fixed_rate() {
    let usual = usual("recovery");
    let (_, played) = &*usual;
    let [without, opening, fixed] = &played[..] else { panic!("three limits") };
    let row = |played: &ScenarioRun| played.rows[0].clone();
    assert_eq!((row(without).unreconciled, row(opening).unreconciled), (0, 0));
    assert!(row(fixed).unreconciled > 0);
    assert!(row(opening).sent < row(without).sent, "and makes fewer calls than without a gate");
}

/// A real API server's flow control marks its answers; the simulated one does so too, and an
/// adaptive rate gives way.
#[test]
fn a_rate_gives_way_to_an_api_that_is_too_slow_for_it() {
    let scenario = config::scenario::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tuning/slow-api.toml"));
    let scenario = scenario.expect("it has no problems");
    let retries = |adapt: &str| {
        let text =
            format!("[gates.k]\nupstream = \"in_cluster\"\nbucket = {{ rate = 50, burst = 100, adapt = {adapt} }}\n");
        let loaded = config::load_text("f".to_owned(), text, &[]).expect("it is right");
        let gate = loaded.settings.gates.into_values().next().expect("there is one");
        let played = simulate::play(&scenario, &Limits { name: adapt.to_owned(), gate });
        played.rows.iter().map(|row| row.retries).sum::<u64>()
    };
    let (fixed, adapting) = (retries("\"off\""), retries("{ floor = 5 }"));
    assert!(adapting * 2 < fixed, "{adapting} retries with a rate that adapts, {fixed} without");
}

#[test]
fn gates_that_share_a_bucket_use_all_of_an_account_and_no_more() {
    let usual = usual("shared-account");
    let [whole, part, shared] = &usual.1[..] else { panic!("three limits") };
    let used = |played: &ScenarioRun| f64::from(u32::try_from(played.together.sent).expect("few")) / (50.0 * 60.0);
    assert!(whole.together.over > 500.0, "{:?}", whole.together);
    assert!(part.together.over <= 0.0 && used(part) < 0.7, "{:?}", part.together);
    assert!(shared.together.over <= 1e-6 && used(shared) >= 0.99, "{:?}", shared.together);
    assert!(
        shared.rows[1].waits.quantile(990) < Duration::from_millis(250),
        "a quiet gate does not wait for a busy one"
    );
    assert!(shared.together.asks <= 60 * 3 * 20 && whole.together.asks == 0);
    let far = &played("shared-account", &["replicas=10", "rtt=50ms"]).1[2];
    assert!(far.together.over <= 1e-6 && used(far) >= 0.98, "{:?}", far.together);
}

#[test]
fn the_table_of_three_operators_that_use_one_github_app_is_what_simulate_says() {
    let played = &played("shared-account", &["replicas=3", "rate=1.25", "burst=20"]).1[..];
    let document = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/sharing-a-quota.md"));
    let document = document.expect("it is there");
    let seconds = |time: Duration| match time.as_secs_f64() {
        0.0 => "0 s".to_owned(),
        seconds => format!("{seconds:.1} s"),
    };
    for (name, played) in ["the whole rate", "a third of it", "the shared bucket"].into_iter().zip(played) {
        let [busy, quiet @ ..] = &played.rows[..] else { panic!("gates") };
        let used = f64::from(u32::try_from(played.together.sent).expect("few")) / (1.25 * 60.0) * 100.0;
        let most = quiet.iter().map(|row| row.waits.quantile(1000)).max().expect("two");
        let (sent, median) = (busy.sent, seconds(busy.waits.quantile(500)));
        let row = format!("| {name} | {used:.0}% | {sent}, {median} | {} |", seconds(most));
        assert!(document.contains(&row), "docs/sharing-a-quota.md is stale: {row}");
    }
}

#[test]
fn while_the_store_is_away_gates_go_on_as_their_words_say() {
    let usual = usual("shared-outage");
    let (setup, all) = &*usual;
    let [share, full, stop] = &all[..] else { panic!("three words") };
    let outage = &setup.scenario.store.outages[0];
    assert!(share.together.over <= 1e-6 && stop.together.over <= 1e-6 && full.together.over > 0.0);
    let sent = |played: &ScenarioRun| {
        let steps = played.rows.iter().flat_map(|row| row.counts_sent());
        steps
            .filter(|(at, _)| *at > outage.from + Duration::from_secs(3) && *at < outage.to)
            .map(|(_, sent)| sent)
            .sum()
    };
    let (share, full, stop): (u64, u64, u64) = (sent(share), sent(full), sent(stop));
    assert!(stop == 0 && share > 100 && full > share, "{share}, {full}, {stop}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for name in ["noisy-neighbour", "recovery", "lease-holder", "shared-outage"] {
        let result = |(setup, played): &(Setup, Vec<ScenarioRun>)| {
            (simulate::report::csv(played), setup.picture.chart(&setup.scenario, played).svg())
        };
        assert!(result(&usual(name)) == result(&played(name, &[])), "{name} differs from run to run");
    }
}

/// Regenerate with `tidegate simulate SCENARIO --svg docs/simulate/<SCENARIO>.svg`.
#[test]
fn the_pictures_in_the_documents_are_what_simulate_draws() {
    for builtin in simulate::ALL {
        let usual = usual(builtin.name);
        let (setup, played) = &*usual;
        let drawn = setup.picture.chart(&setup.scenario, played).svg();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/simulate/{}.svg", builtin.name));
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == drawn, "{} is stale: tidegate simulate {} --svg {0}", path.display(), builtin.name);
    }
}
