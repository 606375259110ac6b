//! The page of `tidegate audit --html`: nothing from the log becomes markup, it has the words and
//! numbers of the other forms, and everyone can read it in a real browser.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::audited::{Event, every, healthy, log, write};
use crate::browser::{Browser, Proxy, Screen};
use crate::command::{end, tidegate};
use crate::fetched::{axe, chromium};
use crate::live::or_skip;
use crate::page::{audit, press};

/// A user whose name is markup.
const EVIL: &str = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>\u{1b}[2J";

/// The files of `tidegate audit` for a log with loops, a herd, a late lease, and a line that is broken.
struct Report {
    folder: tempfile::TempDir,
    /// What the terminal shows.
    text: String,
}

impl Report {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut events = healthy();
        events.retain(|event| event.resource != "leases" || !(1000.0..1012.0).contains(&event.second));
        events.extend(every(3.0, |at, _| write(at, EVIL, EVIL.to_owned(), Some(8))));
        events.extend(every(60.0 / 38.0, |at, number| write(at, "spread", format!("pod-{}", number % 38), Some(9))));
        events.extend((0..600).map(|number| Event {
            verb: "list",
            ..write(1001.0 + f64::from(number) / 1000.0, "starter", String::new(), None)
        }));
        fs::write(folder.path().join("audit.log"), log(events) + "{\"<b>half\": ").expect("written");
        let mut command = tidegate(["audit", "audit.log", "--html", "report.html", "--json", "found.json"]);
        command.current_dir(folder.path());
        let ended = end(command);
        let half = "tidegate: the findings lack 1 line that cannot be read\n";
        assert_eq!((ended.code, &*ended.err), (Some(65), half));
        Self { folder, text: ended.out }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("it was written")
    }
}

/// Returns the text between tags, with its entities read.
fn visible(html: &str) -> String {
    let parts = html.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
    let text = parts.collect::<Vec<_>>().join(" ");
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    let text = entities.iter().fold(text, |text, (entity, c)| text.replace(entity, c));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn nothing_of_the_log_becomes_markup() {
    let report = Report::new();
    let page = report.read("report.html");
    assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)"), "the name is shown");
    for wrong in ["<script", "<img", "<b>", "onerror=alert(1)>", "\u{1b}", "http://", "https://", "url("] {
        assert!(!page.contains(wrong), "{wrong}");
    }
    assert!(!report.text.contains('\u{1b}'), "{}", report.text);
}

#[test]
fn the_page_says_what_the_terminal_and_the_json_say() {
    let report = Report::new();
    let page = visible(&report.read("report.html"));
    let found: Value = serde_json::from_str(&report.read("found.json")).expect("JSON");
    let (_, said) = report.text.split_once("caller\n").expect("the table of callers");
    let (table, said) = said.split_once("\n\n").expect("sentences");
    for row in table.lines().filter(|row| !row.starts_with("and ")) {
        let name = row.get(85..).unwrap_or_default().trim();
        let numbers = row.split_whitespace().take(9).collect::<Vec<_>>().join(" ");
        assert!(page.contains(name) && page.contains(&numbers), "{row}\n{page}");
    }
    for sentence in said.split("\n\n") {
        let sentence = sentence.split_whitespace().collect::<Vec<_>>().join(" ");
        let sentence = sentence.trim_start_matches("Loop: ");
        assert!(page.contains(sentence), "{sentence}\n{page}");
    }
    assert!(page.contains("Lease n/lock was not renewed for 14.0 s until 10:16:52 UTC"), "{page}");
    let callers = found["callers"].as_array().expect("callers");
    let starter = callers.iter().find(|one| one["name"] == "starter (starter/v1)").expect("it is there");
    let peaks = starter["over_time"]["most_in_a_second"].as_array().expect("numbers");
    let step = found["over_time"]["step"].as_u64().expect("a number");
    assert_eq!((step, peaks.iter().filter(|peak| **peak != 0).count()), (16, 1), "{starter}");
    assert_eq!((&peaks[1001 / 16], &starter["peak"]), (&Value::from(600), &Value::from(600)));
}

const SCREENS: [(&str, Screen); 4] = [
    ("wide-light", Screen { width: 1280, height: 2400, phone: false, dark: false }),
    ("wide-dark", Screen { width: 1280, height: 2400, phone: false, dark: true }),
    ("narrow-light", Screen { width: 360, height: 5000, phone: true, dark: false }),
    ("narrow-dark", Screen { width: 360, height: 5000, phone: true, dark: true }),
];

/// `TIDEGATE_PICTURES` names a folder for pictures of the page.
#[test]
fn everyone_can_read_the_page_in_a_browser() {
    let test = "everyone_can_read_the_page_in_a_browser";
    let (Some(chromium), Some(axe)) = (or_skip(test, chromium()), or_skip(test, axe())) else { return };
    let report = Report::new();
    let url = format!("file://{}", report.path("report.html").display());
    let mut browser = Browser::start(&chromium, &Proxy::start(SocketAddr::from(([127, 0, 0, 1], 9))));
    for (name, screen) in SCREENS {
        browser.screen(screen);
        browser.open(&url);
        if let Some(folder) = std::env::var_os("TIDEGATE_PICTURES") {
            fs::write(Path::new(&folder).join(format!("report-{name}.png")), browser.picture()).expect("written");
        }
        assert_eq!(browser.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), true, "{name} fits");
        browser.evaluate(&axe);
        let (violations, passes) = audit(&mut browser);
        assert!(violations.is_empty(), "{name}:\n{}", violations.join("\n"));
        for rule in ["color-contrast", "svg-img-alt", "region", "heading-order", "skip-link"] {
            assert!(passes.iter().any(|passed| passed == rule), "{name}: {rule} was not looked at: {passes:?}");
        }
        let tables = "[...document.querySelectorAll('table')].map(it => it.caption.innerText && it.tHead.rows[0].cells.length > 1)";
        assert_eq!(browser.evaluate(tables), Value::from(vec![true; 3]), "{name}: tables have captions and headings");
    }
    press(&mut browser, "Tab", 9);
    press(&mut browser, "Enter", 13);
    assert_eq!(browser.evaluate("location.hash + ' ' + document.activeElement.tagName"), "#findings MAIN");
    let asked: Vec<&String> = browser.asked.iter().filter(|asked| !asked.starts_with("data:")).collect();
    assert!(asked.iter().all(|asked| asked.starts_with(&url)), "the page needs nothing else: {asked:?}");
    assert_eq!(browser.evaluate("document.scripts.length"), 0);
}
