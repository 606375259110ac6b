//! What an operator sees of a gate that is only a shadow: it holds nothing, and says so everywhere.

use crate::cli::input::get;
use crate::operate::{Process, api};

/// One call would wait for a tenth of a second while all others would be refused.
const TIGHT: &str = "shadow = true\nbucket = { rate = 10, burst = 1 }\nqueue = { max_waiting = 1 }\nbackoff = { base = \"60s\" }\n[state]\nfile = \"off\"\n";
/// What may not be said of calls that went at once.
const HELD: [&str; 8] =
    ["call waits", "calls wait", "waiting", "Waiting", "holding", "it would wait", "backing off", "saturated"];

/// A shadow with a failing key, that has let 20 calls through which limits would have held or refused.
fn shadow() -> Process {
    let (upstream, calls) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), TIGHT);
    assert!(get(process.gate, "/api/v1/namespaces/n/pods/bad").starts_with("HTTP/1.1 500"));
    for _ in 0..20 {
        assert!(get(process.gate, "/api/v1/namespaces/n/secrets/s").starts_with("HTTP/1.1 200"));
    }
    assert_eq!(calls.load(std::sync::atomic::Ordering::Relaxed), 21);
    process
}

/// True once the call that would wait would have left.
fn would_have_waited(gate: &serde_json::Value) -> bool {
    gate["shadow"]["would_have_waited"].as_u64() > Some(0)
}

fn says_that_nothing_is_held(text: &str, wanted: &[&str]) {
    for wanted in wanted {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
    for held in HELD {
        assert!(!text.contains(held), "{held}\n{text}");
    }
}

#[test]
fn a_shadow_says_in_top_and_page_that_it_holds_nothing() {
    let process = shadow();
    process.until(would_have_waited);
    let columns = ["Would have waited", "p50", "p99", "Would have been refused"];
    let says =
        ["Shadow: nothing is held.", "calls would have been refused", "queue_full", "1 key fails (last answer 500)"];
    let top = process.command(&["top", "--once"]);
    says_that_nothing_is_held(&top.out, &[&columns[..], &says].concat());
    let page = get(process.admin, "/status?refresh=off HTTP/1.1\r\nAccept: text/html\r\nX-Rest:");
    says_that_nothing_is_held(&page, &[&columns[..], &says, &["state good\">shadow"]].concat());
}

#[test]
fn the_status_of_a_shadow_has_no_calls_that_wait() {
    let process = shadow();
    let gate = process.until(would_have_waited);
    for nothing in ["waiting", "waiting_bytes", "held", "refused"] {
        assert_eq!(gate[nothing], 0, "{nothing}: {gate}");
    }
    assert_eq!(gate["queues"], serde_json::json!([]));
    let shadow = &gate["shadow"];
    let (median, p99) = (shadow["median_seconds"].as_f64(), shadow["p99_seconds"].as_f64());
    assert!(median.is_some_and(|median| median > 0.0) && median <= p99, "{shadow}");
    let by = shadow["by"].as_array().expect("by class and reason");
    let refused = by.iter().find(|row| row["reason"] == "queue_full").expect("all but one at a time");
    assert!(refused["class"] == "default" && refused["would_have_been_refused"].as_u64() > Some(0), "{shadow}");
    let metrics = get(process.admin, "/metrics");
    assert!(metrics.contains("tidegate_waiting{gate=\"k\"} 0\n"), "{metrics}");
}

#[test]
fn explain_says_that_a_shadow_lets_the_call_go() {
    let process = shadow();
    process.until(would_have_waited);
    let held = process.command(&["explain", "GET", "/api/v1/namespaces/n/pods/bad"]);
    says_that_nothing_is_held(&held.out, &["shadow: nothing is held", "it would have been refused (backoff)"]);
}

#[test]
fn doctor_says_what_a_shadow_would_have_done() {
    let process = shadow();
    let doctor = process.command(&["doctor"]);
    let wanted = ["note   gate k: Shadow: nothing is held", "would have been refused", "gates.k.shadow = false"];
    says_that_nothing_is_held(&doctor.out, &wanted);
}

/// One class in shadow; one call of it in ten seconds would go, and all others would be refused.
const CLASS: &str = "[[gates.k.classes]]\nname = \"bulk\"\nmatch = { resources = [\"secrets\"] }\nbucket = { rate = 0.1, burst = 1 }\nown_bucket_only = true\nshadow = true\n[gates.k.queue]\nmax_wait = \"0s\"\n[state]\nfile = \"off\"\n";

#[test]
fn a_class_in_shadow_is_told_wherever_its_gate_is() {
    let (upstream, _) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), CLASS);
    for _ in 0..3 {
        assert!(get(process.gate, "/api/v1/namespaces/n/secrets/s").starts_with("HTTP/1.1 200"));
        assert!(get(process.gate, "/api/v1/namespaces/n/pods/p").starts_with("HTTP/1.1 200"));
    }
    let gate = process.until(|gate| gate["shadow"]["would_have_been_refused"] == 2);
    let shadows = |name: &str| {
        let all = gate["classes"].as_array().expect("classes").iter();
        all.filter(|class| class["name"] == *name).map(|class| class["shadow"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((shadows("bulk"), shadows("default")), (vec![true.into()], vec![serde_json::Value::Null]), "{gate}");
    let buckets = gate["buckets"].as_array().expect("buckets").iter();
    let level = buckets.filter(|bucket| bucket["name"] == "class bulk").find_map(|bucket| bucket["level"].as_f64());
    assert!(level.is_some_and(|level| level < 1.0), "as if in force: {gate}");
    let says = "hadow of bulk: nothing is held. 0 calls would have waited, 2 calls would have been refused";
    let top = process.command(&["top", "--once"]);
    let page = get(process.admin, "/status?refresh=off HTTP/1.1\r\nAccept: text/html\r\nX-Rest:");
    for text in [&top.out, &page] {
        for wanted in [says, "normal, shadow", "class_bucket", "Refused"] {
            assert!(text.to_lowercase().contains(&wanted.to_lowercase()), "{wanted}\n{text}");
        }
    }
    assert!(page.contains("state good\">open"), "{page}");
    let explain = |path: &str| process.command(&["explain", "GET", path]).out;
    let bulk = explain("/api/v1/namespaces/n/secrets/s");
    let wanted =
        ["bulk, lane normal, in shadow", "shadow: nothing is held", "it would have been refused (class_bucket)"];
    says_that_nothing_is_held(&bulk, &wanted);
    let rest = explain("/api/v1/namespaces/n/pods/p");
    assert!(!rest.contains("shadow") && rest.contains("it would go at once"), "{rest}");
    let doctor = process.command(&["doctor"]).out;
    for wanted in ["note   gate k: Shadow of bulk: nothing is held", "set shadow = false in these classes"] {
        assert!(doctor.contains(wanted), "{wanted}\n{doctor}");
    }
    let check = process.command(&["check"]).out;
    assert!(check.contains("#   shadow   bulk: nothing is held\n"), "{check}");
}
