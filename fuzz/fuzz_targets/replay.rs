//! A recorded log: for any bytes, a replay and an audit end and their reports can be written.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tidegate::{
    config,
    simulate::{
        Limits, audit,
        replay::{LogSelection, RecordedLog, replay, report},
    },
};

static LIMITS: LazyLock<Vec<Limits>> = LazyLock::new(|| {
    let text = "[gates.api]\nupstream = \"http://127.0.0.1:9\"\nbucket = { rate = 2, burst = 3 }\n";
    let loaded = config::load_text("f.toml".to_owned(), text.to_owned(), &[]).expect("a good configuration");
    let gates = loaded.settings.gates.into_values();
    gates.map(|gate| Limits { name: "candidate".to_owned(), gate }).collect()
});

fuzz_target!(|log: &[u8]| {
    let recorded = || vec![RecordedLog { name: "calls.jsonl".to_owned(), input: Box::new(log) }];
    let calls = LogSelection { gate: "api".to_owned(), caller: None };
    if let Ok(replays) = replay(recorded(), &calls, &LIMITS) {
        assert!(!report::table(&replays).is_empty() && !report::csv(&replays).is_empty());
        let _chart = report::chart(&replays, "calls.jsonl");
        let _json = report::json(&replays);
    }
    if let Ok(mut found) = audit::audit(recorded(), &calls) {
        found.what_if = audit::what_if(recorded(), &calls, &found, LIMITS.first()).expect("it has calls");
        found.redact();
        assert!(!audit::report::callers(&found).is_empty() && !audit::report::sentences(&found).is_empty());
        let _json = audit::report::json(&found);
    }
});
