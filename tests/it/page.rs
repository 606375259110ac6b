//! The status page in a real browser, during an incident: it shows what is held back and why,
//! everyone can read it on every screen, it needs no scripts, and it requests nothing from
//! elsewhere.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::clock::Clock;

use crate::browser::{Browser, Proxy, Screen};
use crate::cli::input::get;
use crate::fetched::{axe, chromium};
use crate::live::or_skip;
use crate::operate::{Process, responding};
use crate::support::too_busy;

/// A webhook is down, so that no object of one kind can be written; the API server asks one class
/// to wait; a client lists without end.
fn api() -> u16 {
    let (port, _) = responding(|request| {
        let line = request.lines().next().unwrap_or_default();
        let (status, headers) = match line {
            _ if line.starts_with("PUT") && line.contains("/deployments/") => (500, ""),
            _ if line.starts_with("PUT") => (503, ""),
            _ if line.contains("/secrets") => return too_busy(600),
            _ => (200, ""),
        };
        format!("HTTP/1.1 {status} Said\r\n{headers}Content-Length: 2\r\n\r\nok")
    });
    port
}

/// Failing keys and waiting calls stay as they are for minutes.
fn limits(rate: f64) -> String {
    let limits =
        "backoff = { base = \"4m\", max = \"10m\" }\nqueue = { max_wait = \"20m\" }\nsignals = { scope = \"class\" }\n";
    format!(
        "bucket = {{ rate = {rate}, burst = 24 }}\n{limits}[[gates.k.classes]]\nname = \"secrets\"\nmatch = {{ resources = [\"secrets\"] }}\n"
    )
}

/// Sends calls, and does not wait for their answers.
fn calls(gate: u16, count: usize, path: &str) -> Vec<TcpStream> {
    let call = |_| {
        let mut stream = TcpStream::connect(("127.0.0.1", gate)).expect("the gate listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it is read");
        stream
    };
    (0..count).map(call).collect()
}

fn put(gate: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", gate)).expect("the gate listens");
    let request =
        format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}");
    stream.write_all(request.as_bytes()).expect("it is read");
    std::io::read_to_string(stream).expect("it is answered")
}

/// Sets up the incident. Calls wait for as long as the returned streams live.
fn incident(process: &Process) -> Vec<TcpStream> {
    let deployment = |name: &str| format!("/apis/apps/v1/namespaces/shop/deployments/{name}");
    for name in ["cart", "checkout", "frontend", "payments", "search", "stock", "web"] {
        assert!(put(process.gate, &deployment(name)).starts_with("HTTP/1.1 500"));
    }
    assert!(put(process.gate, "/api/v1/namespaces/shop/services/web").starts_with("HTTP/1.1 503"));
    for _ in 0..3 {
        assert!(put(process.gate, &deployment("web")).starts_with("HTTP/1.1 429"), "it backs off");
    }
    assert!(get(process.gate, "/api/v1/namespaces/shop/secrets/token").starts_with("HTTP/1.1 429"), "it is paused");
    let mut waiting = calls(process.gate, 4, "/api/v1/namespaces/shop/secrets/other");
    waiting.extend(calls(process.gate, 60, "/api/v1/namespaces/shop/configmaps"));
    process.until(|gate| gate["queues"].as_array().is_some_and(|queues| queues.len() == 2));
    waiting.extend(calls(process.gate, 8, "/api/v1/namespaces/shop/endpoints"));
    process.until(|gate| gate["queues"].as_array().is_some_and(|queues| queues.len() == 3));
    waiting
}

/// The page's icon, which is part of the page; not every browser looks there.
const NO_ICON: &str = "data:,";
/// The history that the manual's pictures show.
const HISTORY: Duration = Duration::from_secs(150);

const SCREENS: [(&str, Screen); 4] = [
    ("desktop-light", Screen { width: 1200, height: 1180, phone: false, dark: false }),
    ("desktop-dark", Screen { width: 1200, height: 1180, phone: false, dark: true }),
    ("phone-light", Screen { width: 390, height: 1180, phone: true, dark: false }),
    ("phone-dark", Screen { width: 390, height: 1180, phone: true, dark: true }),
];

/// Returns axe's findings about the page as it is, one line each, and the rules that had something
/// to check.
pub(crate) fn audit(browser: &mut Browser) -> (Vec<String>, Vec<String>) {
    let script = "axe.run().then(found => JSON.stringify({ passes: found.passes.map(it => it.id), \
                  violations: found.violations.map(it => it.id + ': ' + it.nodes.map(node => node.html + ' ' + node.failureSummary).join(' | ')) }))";
    let found = browser.evaluate(script);
    let found: Value = serde_json::from_str(found.as_str().expect("text")).expect("JSON");
    let list = |name: &str| -> Vec<String> {
        found[name].as_array().expect("a list").iter().filter_map(|it| Some(it.as_str()?.to_owned())).collect()
    };
    (list("violations"), list("passes"))
}

#[test]
fn an_incident_is_on_the_page_in_a_browser_for_everybody_and_nothing_leaves() {
    let test = "an_incident_is_on_the_page_in_a_browser_for_everybody_and_nothing_leaves";
    let (Some(chromium), Some(axe)) = (or_skip(test, chromium()), or_skip(test, axe())) else { return };
    let writes = std::env::var_os("TIDEGATE_WRITE_DOCS").is_some();
    let limits = limits(if writes { 2.0 } else { 0.05 });
    let process = Process::start(&format!("http://127.0.0.1:{}", api()), &limits);
    let mut waiting = incident(&process);
    if writes {
        // For the manual's pictures: some history, in which the load goes on.
        let clock = Clock::start();
        while clock.now().since_start() < HISTORY {
            waiting.extend(calls(process.gate, 14, "/api/v1/namespaces/shop/configmaps"));
            waiting.extend(calls(process.gate, 3, "/api/v1/namespaces/shop/endpoints"));
            for name in ["web", "cart", "web"] {
                drop(put(process.gate, &format!("/apis/apps/v1/namespaces/shop/deployments/{name}")));
            }
            let step = process.status()["gates"][0]["history"]["admitted"].as_array().map_or(0, Vec::len);
            process.until(|gate| gate["history"]["admitted"].as_array().map_or(0, Vec::len) > step);
        }
    }
    if writes {
        waiting.extend(calls(process.gate, 40, "/api/v1/namespaces/shop/endpoints"));
    }
    let admin = SocketAddr::from(([127, 0, 0, 1], process.admin));
    let page = format!("http://{admin}/status");
    let proxy = Proxy::start(admin);
    let mut browser = Browser::start(&chromium, &proxy);
    for (name, screen) in SCREENS {
        browser.screen(screen);
        browser.order("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
        browser.open(&format!("{page}?refresh=off"));
        let picture = browser.picture();
        if writes {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/status-{name}.png"));
            fs::write(path, &picture).expect("written");
        }
        browser.order("Emulation.setScriptExecutionDisabled", &json!({ "value": false }));
        let text = browser.evaluate("document.body.innerText");
        let text = text.as_str().expect("text");
        for wanted in [
            " calls wait, the longest for ",
            " of them of the flow configmaps.",
            "4 calls wait, the longest for ",
            "9 keys are backing off (7 with 500, 1 with 503, 1 with 429)",
            "write deployments.apps/shop/checkout",
            "the gate's bucket is empty bucket",
            "the upstream asked for a pause pause",
            "class secrets",
            "API priority and fairness",
        ] {
            assert!(text.contains(wanted), "{name}: {wanted}\n{text}");
        }
        assert_eq!(browser.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), true, "{name} fits");
        browser.evaluate(&axe);
        let (violations, passes) = audit(&mut browser);
        assert!(violations.is_empty(), "{name}:\n{}", violations.join("\n"));
        for rule in [
            "color-contrast",
            "landmark-one-main",
            "region",
            "heading-order",
            "page-has-heading-one",
            "html-has-lang",
            "document-title",
            "meta-viewport",
        ] {
            assert!(passes.iter().any(|passed| passed == rule), "{name}: {rule} was not looked at: {passes:?}");
        }
    }
    browser.evaluate("document.querySelector('h1').style.color = '#303030'; document.documentElement.lang = ''");
    let (violations, _) = audit(&mut browser);
    assert_eq!(violations.len(), 2, "the audit can find something: {violations:?}");

    let leave = "fetch('http://192.0.2.1/').then(() => 'left', () => 'held')";
    assert_eq!(browser.evaluate(leave), "held", "not even a script could ask somebody else");

    browser.order("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    browser.asked.clear();
    browser.open(&page);
    browser.loaded(); // again, by itself
    let own = |path: &str| format!("http://{admin}{path}");
    let wanted: BTreeSet<_> = browser.asked.iter().map(String::as_str).filter(|url| *url != NO_ICON).collect();
    let (status, style) = (own("/status"), own("/status.css"));
    assert_eq!(wanted, BTreeSet::from([status.as_str(), &style]), "the page needs nothing else");
    // A browser makes requests of its own, which the proxy does not let out; the page makes only
    // these.
    let seen = proxy.seen();
    let times = |path: &str| seen.iter().filter(|seen| **seen == format!("GET {}", own(path))).count();
    assert!(times("/status") >= 2 && times("/status.css") >= 2, "{seen:?}");
    let strange = |seen: &&String| seen.contains(&admin.to_string()) || seen.contains("192.0.2.1");
    let known = times("/status") + times("/status?refresh=off") + times("/status.css");
    assert_eq!(seen.iter().filter(strange).count(), known, "{seen:?}");
    drop(process);
    drop(waiting);
}

/// Presses a key, as a reader without a mouse does.
pub(crate) fn press(browser: &mut Browser, key: &str, code: u32) {
    let text = if key == "Enter" { "\r" } else { "" };
    for kind in ["keyDown", "keyUp"] {
        let text = if kind == "keyDown" { text } else { "" };
        let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
        browser.order("Input.dispatchKeyEvent", &event);
    }
}

#[test]
fn the_page_can_be_used_by_keyboard_alone() {
    let test = "the_page_can_be_used_by_keyboard_alone";
    let Some(chromium) = or_skip(test, chromium()) else { return };
    let process = Process::start(&format!("http://127.0.0.1:{}", api()), &limits(2.0));
    let admin = SocketAddr::from(([127, 0, 0, 1], process.admin));
    let proxy = Proxy::start(admin);
    let mut browser = Browser::start(&chromium, &proxy);
    browser.screen(SCREENS[0].1);
    browser.open(&format!("http://{admin}/?refresh=off")); // leads to the page
    browser.open(&format!("http://{admin}/status?refresh=off"));
    let links = browser.evaluate("document.links.length").as_u64().expect("a number");
    let mut visited = BTreeSet::new();
    for _ in 0..links {
        press(&mut browser, "Tab", 9);
        let at = "[document.activeElement.tagName, document.activeElement.href, \
                  document.activeElement.getBoundingClientRect().left >= 0, \
                  getComputedStyle(document.activeElement).outlineStyle].join(' ')";
        let at = browser.evaluate(at).as_str().expect("text").to_owned();
        assert!(at.starts_with("A http") && at.ends_with(" true solid"), "a link, on the screen and marked: {at}");
        visited.insert(at);
    }
    assert_eq!(visited.len() as u64, links, "every link is reached: {visited:#?}");
    browser.evaluate("document.activeElement.blur(); document.querySelector('.skip').focus()");
    press(&mut browser, "Enter", 13);
    assert_eq!(browser.evaluate("location.hash + ' ' + document.activeElement.tagName"), "#gates MAIN");
}
