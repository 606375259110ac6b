//! Checks that the page shows an incident at the top, lets no text become markup, loads nothing,
//! and is accessible.

use super::*;
use crate::{Bucket, Bypass, Config, Connections, FailingKey, History, Pause, Queue, Refusal, Reload};

const EVIL: &str = "</td><script>alert('1')</script>\"\u{1b}[2J";

fn incident(name: &str) -> Status {
    let name = || name.to_owned();
    let gate = GateStatus {
        name: name(),
        kind: "kubernetes".to_owned(),
        listen: vec![name()],
        upstream: name(),
        bypass: Some(Bypass { until_ms: 70_000 }),
        waiting: 3,
        buckets: vec![Bucket {
            name: name(),
            rate: 5.0,
            full_rate: 50.0,
            burst: 10,
            level: 0.4,
            part: 0,
            shared: None,
        }],
        queues: vec![Queue {
            class: name(),
            flow: name(),
            waiting: 3,
            oldest_seconds: 2.5,
            reason: "bucket".to_owned(),
            retry: true,
        }],
        keys_failing: 7,
        keys: vec![FailingKey {
            key: name(),
            failures: 4,
            status: Some(500),
            error: name(),
            message: name(),
            failed_at_ms: 5_000,
            next_at_ms: 18_000,
        }],
        pauses: vec![Pause { who: name(), until_ms: 40_000, ..Pause::default() }],
        connections: vec![Connections { group: name(), down: Some(name()), ..Connections::default() }],
        refusals: vec![Refusal {
            at_ms: 9_000,
            count: 12,
            class: name(),
            reason: "backoff".to_owned(),
            call: name(),
            retry_in_seconds: 8.0,
        }],
        history: History { step_seconds: 5, admitted: vec![10, 250], refused: vec![0, 5], waiting: vec![0, 3] },
        ..GateStatus::default()
    };
    let last_reload = Some(Reload { result: "invalid".to_owned(), at_ms: 1_000, reasons: vec![name()] });
    Status {
        version: name(),
        now_ms: 10_000,
        names_shown: true,
        config: Config { hash: name(), since_ms: 0, last_reload },
        gates: vec![gate],
        ..Status::default()
    }
}

#[test]
fn an_incident_is_told_from_the_top() {
    let page = page(&incident("web"), true);
    let wanted = [
        "3 waiting, 7 failing",
        "Bypass: everything is let through",
        "ends by itself in 1 m (00:01:10 UTC)",
        "The file has changed, and the change is not in force (invalid, 9.0 s ago): web.",
        "3 calls wait, the longest for 2.5 s: the gate&#39;s bucket is empty; all of the flow web.",
        "7 keys are backing off (last answer 500); the next may be tried in 8.0 s.",
        "web (retries)",
        "4 times",
        "500, 5.0 s ago",
        "50<small>/s</small>",
        "5 of 50/s: slowed down",
        "And 6 more.",
        "state bad\">down: web",
    ];
    for wanted in wanted {
        assert!(page.contains(wanted), "{wanted}\n{page}");
    }
    assert!(page.find("The file has changed") < page.find("<h2"), "what is wrong comes first");
}

#[test]
fn what_calls_wait_for_is_told_by_number_and_with_the_flow_of_most_of_them() {
    let queue = |flow: &str, waiting, oldest_seconds, reason: &str| Queue {
        class: "default".to_owned(),
        flow: flow.to_owned(),
        waiting,
        oldest_seconds,
        reason: reason.to_owned(),
        retry: false,
    };
    let queues = vec![
        queue("secrets", 2, 9.0, "pause"),
        queue("configmaps", 40, 4.0, "bucket"),
        queue("pods", 3, 6.0, "bucket"),
    ];
    let key = |status| FailingKey { status, next_at_ms: 9_000, ..FailingKey::default() };
    let keys = vec![key(None), key(Some(500)), key(Some(500))];
    let rejections = vec![crate::Rejection { by: "credentials".to_owned(), count: 2, at_ms: 4_000 }];
    let gate =
        GateStatus { waiting: 45, keys_failing: 3, admitted: 1, queues, keys, rejections, ..GateStatus::default() };
    let told = gate.summary(5_000);
    let wanted = [
        "The upstream does not take the credentials: 2 calls got 401, the last 1.0 s ago.",
        "43 calls wait, the longest for 6.0 s: the gate's bucket is empty; 40 of them of the flow configmaps.",
        "2 calls wait, the longest for 9.0 s: the upstream asked for a pause; all of the flow secrets.",
        "3 keys are backing off (2 with 500, 1 with no answer); the next may be tried in 4.0 s.",
    ];
    assert_eq!(told, wanted);
    assert_eq!(gate.summary(70_000).len(), 3, "what the upstream did a minute ago is history");
    assert!(GateStatus::default().summary(0)[0].starts_with("No call has come yet"));
}

#[test]
fn without_names_the_page_still_says_what_fails_how_often_and_when_it_is_tried_next() {
    let mut status = incident("web");
    status.names_shown = false;
    status.gates[0].keys[0].key = String::new();
    let page = page(&status, true);
    for wanted in ["not shown", "4 times", "500, 5.0 s ago", "in 8.0 s", "7 keys are backing off (last answer 500)"] {
        assert!(page.contains(wanted), "{wanted}\n{page}");
    }
    assert!(page.contains("kubectl port-forward"), "how to see them");
}

#[test]
fn several_gates_are_summed_up_first_and_the_worst_is_on_top() {
    let mut status = incident("web");
    let calm = GateStatus { name: "calm".to_owned(), admitted: 5, ..GateStatus::default() };
    let refusal = Refusal { at_ms: 9_500, reason: "queue_full".to_owned(), ..Refusal::default() };
    let latency = Some(crate::Latency { calls: 40, median_seconds: 0.02, p99_seconds: 1.5 });
    let refusing = GateStatus { name: "crowded".to_owned(), refusals: vec![refusal], latency, ..calm.clone() };
    status.gates = vec![calm, refusing, status.gates.swap_remove(0)];
    let page = page(&status, true);
    let place = |wanted: &str| page.find(wanted).unwrap_or_else(|| panic!("{wanted}\n{page}"));
    assert!(place("All gates") < place("<h2 id="), "the summary comes first");
    let rows = ["#gate0\">web<", "#gate1\">crowded<", "#gate2\">calm<"].map(place);
    let gates = ["<h2 id=\"gate0\">web ", "<h2 id=\"gate1\">crowded ", "<h2 id=\"gate2\">calm "].map(place);
    assert!(rows.is_sorted() && gates.is_sorted(), "{rows:?} {gates:?}");
    for wanted in
        ["state bad\">refusing: queue_full", "99% within 1.5 s", "half of 40 calls lately", "state good\">open"]
    {
        place(wanted);
    }
    assert!(!super::page(&incident("web"), true).contains("All gates"), "one gate is its own summary");
}

#[test]
fn times_and_pictures_have_their_scale_and_callers_their_names() {
    let mut status = incident("web");
    let caller = crate::CallerStatus {
        user_agent: "manager/1.2".to_owned(),
        action: "DescribeInstances".to_owned(),
        client: "system:serviceaccount:prod:manager".to_owned(),
        calls: 77,
        refused: 3,
        last_ms: 8_000,
    };
    status.gates[0].callers = vec![caller, crate::CallerStatus::default()];
    let page = page(&status, true);
    for wanted in [
        "500, 5.0 s ago <small>00:00:05 UTC</small>",
        "in 8.0 s <small>00:00:18 UTC</small>",
        "1.0 s ago <small>00:00:09 UTC</small>",
        "<span>10 min ago</span><span>top: 50/s</span><span>now</span>",
        "<span>top: 3</span>",
        "system:serviceaccount:prod:manager, manager/1.2: DescribeInstances",
        "none sent",
        "2.0 s ago <small>00:00:08 UTC</small>",
    ] {
        assert!(page.contains(wanted), "{wanted}\n{page}");
    }
}

#[test]
fn whatever_a_name_is_nothing_breaks_out_of_the_page() {
    let (harmless, page) = (page(&incident("web"), true), page(&incident(EVIL), true));
    let tags = |page: &str| page.matches('<').count();
    assert_eq!(tags(&page), tags(&harmless), "no name makes an element");
    let quotes = |page: &str| page.matches('"').count();
    assert_eq!(quotes(&page), quotes(&harmless), "or ends an attribute");
    assert!(!page.contains('\u{1b}'));
}

#[test]
fn the_page_loads_nothing_but_its_style_and_has_no_inline_style() {
    let page = page(&incident("web"), true);
    let links: Vec<_> = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let more =
        ["/metrics", "/docs/operations.md", "/docs/alerts.md", "/docs/troubleshooting.md", "/docs/configuration.md"];
    assert_eq!(links, [&[STYLE_PATH, "data:,", "#gates", "?refresh=off", "/config"][..], &more].concat());
    for forbidden in ["<script", "style=", "src=", "<img", "@import", "url("] {
        assert!(!page.contains(forbidden) && !STYLE.contains(forbidden), "{forbidden}");
    }
}

#[test]
fn who_hears_the_page_finds_their_way() {
    let page = page(&incident("web"), true);
    for landmark in
        ["<html lang=\"en\"", "<header>", "<main ", "<footer>", "<h1>", "aria-labelledby=\"gate0\"", "role=\"status\""]
    {
        assert!(page.contains(landmark), "{landmark}");
    }
    let (tables, heads) = (page.matches("<table").count(), page.matches("<thead").count());
    assert!(tables > 5 && tables == heads && page.matches("scope=\"col\"").count() > 20);
    assert_eq!(
        page.matches("<svg").count(),
        page.matches("role=\"img\" aria-label").count() + page.matches("aria-hidden=\"true\"><rect").count()
    );
}

/// Returns the relative luminance of `#rrggbb` (WCAG 2.2).
fn luminance(colour: &str) -> f64 {
    let part = |at: usize| {
        let value =
            f64::from(u8::from_str_radix(colour.get(at..at + 2).expect("digits"), 16).expect("hexadecimal")) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
}

#[test]
fn every_text_has_contrast_enough_in_light_and_dark() {
    let schemes: Vec<_> = STYLE.split("prefers-color-scheme: dark").collect();
    assert_eq!(schemes.len(), 2);
    for scheme in schemes {
        let colour = |name: &str| {
            let (_, rest) = scheme.split_once(&format!("--{name}: ")).unwrap_or_else(|| panic!("no {name}"));
            luminance(rest.get(..7).expect("a colour"))
        };
        let ratio = |one: f64, other: f64| (one.max(other) + 0.05) / (one.min(other) + 0.05);
        let texts = [
            ("ink", "paper"),
            ("ink", "ground"),
            ("soft", "paper"),
            ("soft", "ground"),
            ("tide", "ground"),
            ("good", "good-ground"),
            ("warn", "warn-ground"),
            ("bad", "bad-ground"),
        ];
        for (text, ground) in texts {
            let found = ratio(colour(text), colour(ground));
            assert!(found >= 4.5, "{text} on {ground}: {found:.2}");
        }
        for graphic in ["calm", "busy", "alarm"] {
            let found = ratio(colour(graphic), colour("paper"));
            assert!(found >= 3.0, "{graphic}: {found:.2}");
        }
    }
}
