//! The default gate before an API server of 20 seats with a webhook of 50 ms: it finds what the API
//! bears, and nobody beside it waits. Before a quick API a thousand writes take no longer than without it.

use std::time::Duration;

use serde_json::Value;
use tidegate::config;
use tidegate::config::scenario::{self, Scenario};
use tidegate::simulate::{self, Limits};

/// More workers than the API has seats and places for waiting calls, so that without a limit most of
/// their calls are rejected.
fn scenario(operators: usize) -> Scenario {
    load(&format!(
        "length = \"10m\"\n[upstream]\nlatency = \"50ms\"\nseats = 20\n\
         [[controllers]]\nname = \"operator\"\nresource = \"widgets\"\nobjects = 20000\nworkers = 1000\nchanges = 500\n\
         replicas = {operators}\n\
         [[controllers]]\nname = \"neighbour\"\nresource = \"secrets\"\nobjects = 100\nworkers = 5\nchanges = 5\ngate = 0\n\
         [[leases]]\n"
    ))
}

fn load(text: &str) -> Scenario {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("seats.toml");
    std::fs::write(&file, text).expect("the folder is ours");
    scenario::load(&file).expect("it has no problems")
}

/// Plays it under a gate with these limits, and returns the report.
fn play(scenario: &Scenario, more: &str) -> Value {
    let text = format!("[gates.k]\nupstream = \"in_cluster\"\n{more}");
    let loaded = config::load_text("f".to_owned(), text, &[]).expect("it is right");
    let gate = loaded.settings.gates.into_values().next().expect("there is one");
    let run = simulate::play(scenario, &Limits { name: more.to_owned(), gate });
    simulate::report::json(&[run])[0].take()
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn done(run: &Value) -> f64 {
    number(&run["controllers"][0]["reconciled"]["count"])
}

/// Returns how much the best of two fixed rates does.
fn best(scenario: &Scenario) -> f64 {
    let runs = [350, 395].map(|rate| play(scenario, &format!("bucket = {{ rate = {rate}, burst = 100 }}\n")));
    runs.iter().map(done).fold(0.0, f64::max)
}

/// The seconds from change to reconciled of the neighbour, who is the last; of a hundred 99 are less.
fn neighbour(run: &Value) -> f64 {
    let controllers = run["controllers"].as_array().expect("a list");
    number(&controllers.last().expect("the neighbour")["reconciled"]["p99"])
}

#[test]
fn the_default_uses_what_the_api_bears_and_nobody_beside_it_waits() {
    let scenario = scenario(1);
    let default = play(&scenario, "");
    let best = best(&scenario);
    assert!(done(&default) >= 0.97 * best, "{} of {best}", done(&default));
    let operator = &default["controllers"][0];
    assert!(number(&operator["failed"]) <= 0.02 * number(&operator["sent"]), "{operator}");
    let mut alone = scenario;
    alone.controllers.remove(0);
    let alone = neighbour(&play(&alone, ""));
    assert!(neighbour(&default) <= 1.2 * alone, "{}, alone {alone}", neighbour(&default));
    let lease = &default["leases"][0];
    assert!(number(&lease["lost"]) < 0.5 && number(&lease["longest"]) < 3.0, "{lease}");
}

#[test]
fn a_burst_that_the_api_rejects_costs_a_tenth_of_half_a_minute() {
    let scenario = Scenario { length: Duration::from_secs(30), ..scenario(1) };
    let default = play(&scenario, "");
    let best = best(&scenario);
    assert!(done(&default) >= 0.9 * best, "{} of {best}", done(&default));
}

#[test]
fn three_default_gates_get_equal_parts() {
    let run = play(&scenario(3), "");
    let operators = &run["controllers"].as_array().expect("a list")[..3];
    let done: Vec<f64> = operators.iter().map(|row| number(&row["reconciled"]["count"])).collect();
    let sum: f64 = done.iter().sum();
    let jain = sum * sum / (3.0 * done.iter().map(|done| done * done).sum::<f64>());
    assert!(jain >= 0.95, "{done:?}");
    let of = |key: &str| operators.iter().map(|row| number(&row[key])).sum::<f64>();
    assert!(of("failed") <= 0.02 * of("sent"), "{operators:?}");
}

#[test]
fn a_thousand_writes_take_no_longer_and_hold_up_no_new_object() {
    let scenario = load(
        "length = \"30s\"\n[upstream]\nlatency = \"5ms\"\n\
         [[controllers]]\nname = \"many\"\nresource = \"widgets\"\nobjects = 1000\nworkers = 20\nfrom = \"1s\"\n\
         [[controllers]]\nname = \"new\"\nresource = \"widgets\"\nnamespace = \"new\"\nobjects = 100\nworkers = 20\n\
         changes = 100\n",
    );
    let slowest = |run: &Value, row: usize| number(&run["controllers"][row]["reconciled"]["max"]);
    let [direct, gate] =
        ["preset = \"none\"\nbucket = { rate = 100000, burst = 100000 }\n", ""].map(|limits| play(&scenario, limits));
    assert!(slowest(&gate, 0) <= 1.2 * slowest(&direct, 0), "{gate}, {direct}");
    assert!(slowest(&gate, 1) <= 0.1, "{gate}");
}
