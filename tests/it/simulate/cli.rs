//! The command itself: its output, the files that it writes, and its messages about wrong
//! arguments.

use std::path::Path;

use crate::command::{Ended, end, tidegate};

fn simulate<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Ended {
    end(tidegate(std::iter::once("simulate").chain(arguments)))
}

#[test]
fn without_a_scenario_it_lists_them_with_a_line_each() {
    let ended = simulate([]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for builtin in tidegate::simulate::ALL {
        let line = format!("  {:<20}{}", builtin.name, builtin.about);
        assert!(ended.out.lines().any(|other| other == line), "no {line:?} in\n{}", ended.out);
    }
    assert!(ended.out.lines().all(|line| line.chars().count() <= 80), "{}", ended.out);
}

#[test]
fn a_scenario_gives_a_table_a_picture_and_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (svg, csv, json) = (file("p.svg"), file("n.csv"), file("r.json"));
    let ended =
        simulate(["failing-together", "objects=50", "length=2s", "--svg", &svg, "--csv", &csv, "--json", &json]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for part in ["backoff only", "bucket only", "both, max_of", "retries in the first second"] {
        assert!(ended.out.contains(part), "no {part:?} in\n{}", ended.out);
    }
    assert!(ended.out.lines().all(|line| line.chars().count() <= 80), "{}", ended.out);
    assert!(!ended.out.contains('\x1b') && ended.err.is_empty(), "{}", ended.err);
    let read = |path: &str| std::fs::read_to_string(path).expect("it was written");
    assert!(read(&svg).starts_with("<svg ") && read(&svg).ends_with("</svg>\n"));
    assert!(read(&svg).contains("retries so far"));
    assert!(
        read(&csv).starts_with(
            "limits,name,seconds,step_seconds,arrived,sent,retries,failed,refused,waited_us\nbackoff only,"
        )
    );
    let results: serde_json::Value = serde_json::from_str(&read(&json)).expect("JSON");
    assert_eq!(results[0]["retries_in_first_second"], 350);
}

#[test]
fn limits_of_ones_own_are_compared_with_the_usual_ones() {
    let (_folder, path) =
        crate::command::config("[gates.mine]\nupstream = \"http://127.0.0.1:9\"\npreset = \"crossplane\"\n");
    let path = path.display().to_string();
    let ended = simulate(["recovery", "objects=20", "length=40s", "down=10s", "--config", &path]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("without a gate"), "{}", ended.out);
    assert!(!ended.out.contains("sidecar"), "{}", ended.out);
    let wrong = simulate(["recovery", "--config", &path, "--gate", "mime"]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.err.contains("did you mean \"mine\"?"), "{}", wrong.err);
}

#[test]
fn the_example_scenario_plays() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/scenario.toml");
    let ended = simulate([example.to_str().expect("text")]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for part in ["A webhook is down", "databases", "secrets", "operator", "not yet"] {
        assert!(ended.out.contains(part), "no {part:?} in\n{}", ended.out);
    }
}

#[test]
fn what_is_wrong_in_a_scenario_file_is_told_with_its_place() {
    for (text, code, said) in [
        ("lenght = \"1m\"\n", 78, "tidegate.toml:1:1: lenght: is not a valid key, expected one of title, length"),
        ("length = 5\n", 78, "tidegate.toml:1:10: length: is 5, expected a duration with a unit"),
        ("length = \"5\"\n", 78, "tidegate.toml:1:10: length: is \"5\", expected a duration with a unit"),
        ("[gates.k]\nupstream = \"kubeconfig\"\n", 78, "tidegate.toml:1:2: gates: is not a valid key"),
        ("seed = 2\n", 78, "tidegate.toml: has nothing to simulate, expected [[controllers]] or [[leases]]"),
        ("[[controllers]]\nverbs = [\"upddate\"]\n", 78, "(did you mean \"update\"?)"),
        (
            "[[controllers]]\nrequeue = \"soon\"\n",
            78,
            "2:11: controllers[0].requeue: is \"soon\", expected \"at_once\" or a table such as",
        ),
        ("[[controllers]]\nobjects = 0\n", 78, "2:11: controllers[0].objects: is 0, expected 1 to 1000000"),
        ("[[limits]]\nname = \"x\"\n", 78, "limits[0].config: is missing"),
        ("[[controllers]]\nworkers_of = \"a\"\n", 78, "workers_of: is \"a\", expected a controller above this one"),
    ] {
        let (_folder, path) = crate::command::config(text);
        let ended = simulate([path.to_str().expect("text")]);
        assert!(ended.code == Some(code) && ended.err.contains(said), "{text}: {}", ended.err);
    }
    let (_folder, path) = crate::command::config(
        "[upstream]\ncapacity = 0\n[[upstream.failures]]\nstatus = 200\ncontrollers = [\"dbs\"]\n\
         [[controllers]]\nname = \"db\"\n[[leases]]\nevery = \"20s\"\n[store]\noutages = [{ to = \"0s\" }]\n",
    );
    let ended = simulate([path.to_str().expect("text")]);
    for problem in [
        "tidegate.toml:2:12: upstream.capacity: is 0.0",
        "tidegate.toml:4:10: upstream.failures[0].status: is 200",
        "tidegate.toml:5:16: upstream.failures[0].controllers[0]: is \"dbs\", expected a controller of this file (did you mean \"db\"?)",
        "tidegate.toml:9:9: leases[0].every: is 20s, expected 0 < every < deadline",
        "store.outages[0].to: is 0ns, expected a time after `from`",
    ] {
        assert!(ended.code == Some(78) && ended.err.contains(problem), "no {problem:?} in\n{}", ended.err);
    }
}

#[test]
fn wrong_usage_says_what_is_right() {
    for (arguments, code, said) in [
        (&["one-failing-objekt"][..], 1, "did you mean \"one-failing-object\"?"),
        (&["recovery", "objcts=5"], 1, "did you mean \"objects\"?"),
        (&["--replay", "calls.jsonl"], 64, "--config"),
        (&["--baseline", "today.toml"], 64, "--replay"),
        (&["recovery", "--replay", "calls.jsonl", "--config", "x"], 64, "--replay"),
    ] {
        let ended = simulate(arguments.iter().copied());
        assert_eq!(ended.code, Some(code), "{arguments:?}\n{}", ended.err);
        assert!(ended.err.contains(said), "{arguments:?}\n{}", ended.err);
    }
}

#[test]
fn a_replay_shows_what_was_recorded_beside_the_candidate() {
    let (folder, config) =
        crate::command::config("[gates.api]\nupstream = \"http://127.0.0.1:9\"\nbucket = { rate = 1, burst = 1 }\n");
    let log = folder.path().join("calls.jsonl");
    let line = "{\"arrived_ns\":1,\"wall_ms\":1,\"gate\":\"api\",\"class\":\"default\",\"lane\":\"normal\",\"flow\":\"0a\",\"verb\":\"get\",\
                \"group\":\"\",\"resource\":\"pods\",\"sent_ns\":1,\"upstream_ns\":5,\"status\":200}\n";
    std::fs::write(&log, line.repeat(5) + "{\"arrived_ns\":1").expect("it can be written");
    let (log, config) = (log.display().to_string(), config.display().to_string());
    let csv = folder.path().join("out.csv").display().to_string();
    let ended = simulate(["--replay", &log, "--config", &config, "--baseline", &config, "--csv", &csv]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for part in ["5 calls of gate api", "recorded", "wait p99", "4.0 s", "1 lines cannot be read", "calls.jsonl:6:"] {
        assert!(ended.out.contains(part), "no {part:?} in\n{}", ended.out);
    }
    assert!(ended.out.lines().all(|line| line.chars().count() <= 80), "{}", ended.out);
    assert!(std::fs::read_to_string(csv).expect("written").contains("recorded,default,0,"));
    let missing = simulate(["--replay", "/nowhere/calls", "--config", &config]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.err.contains("/nowhere/calls"), "{}", missing.err);
}

/// Writes a scenario of gates that share a bucket, and plays it.
fn shared(store: &str) -> Ended {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("ours");
    write(
        "gate.toml",
        "[stores.main]\nurl = \"unix:/x\"\n[gates.it]\nupstream = \"http://x\"\npreset = \"none\"\n\
         bucket = { rate = 50, burst = 100, shared = \"a\" }\nqueue = { max_wait = \"1h\", max_waiting = 1000000 }\n",
    );
    let scenario = format!(
        "length = \"60s\"\n[upstream]\nquota = {{ rate = 50, burst = 100 }}\n[store]\n{store}\n\
         [[controllers]]\nobjects = 10000\nworkers = 0\nchanges = 30\nreplicas = 3\n[[limits]]\nconfig = \"gate.toml\"\n"
    );
    write("s.toml", &scenario);
    simulate([&*folder.path().join("s.toml").display().to_string()])
}

#[test]
fn a_store_that_is_away_brings_nobody_more_than_the_account_has() {
    for store in ["rtt = \"20ms\"", "outages = [{ from = \"10s\", to = \"15s\" }, { from = \"30s\", to = \"31s\" }]"] {
        let ended = shared(store);
        let text = ended.out.replace('\n', " ");
        assert!(text.contains("never more than the account may make"), "{store}: {}{}", ended.out, ended.err);
        assert!(text.contains("configmaps 3:") && text.contains("questions a second"), "{store}: {}", ended.out);
    }
}
