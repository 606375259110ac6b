//! The status page: HTML without scripts and without anything from other servers, for eyes and
//! screen readers.
//!
//! The first question at night is "whose calls wait, and why". So problems come first, then
//! numbers, then lists.

use super::lists::{List, TableCell, egress_lists, lists, overview, store_list};
use super::text::{ago, clock, count, duration, escaped};
use super::{EgressStatus, GateStatus, Status, spark};

/// The path of the style sheet. It is not part of the page, because the content security policy
/// forbids inline styles.
pub const STYLE_PATH: &str = "/status.css";
/// The style sheet.
pub const STYLE: &str = include_str!("page/style.css");
/// The content security policy: the browser may load nothing but the style sheet.
pub const POLICY: &str =
    "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Renders the page. With `refresh` it reloads itself every few seconds.
pub fn page(status: &Status, refresh: bool) -> String {
    let (reload, link) = match refresh {
        true => (RELOAD, "refreshes itself; <a href=\"?refresh=off\">hold it still</a>"),
        false => ("", "held still; <a href=\"?\">let it refresh</a>"),
    };
    let worst_first = status.worst_first();
    let gates = worst_first.iter().enumerate().map(|(place, gate)| self::gate(gate, status.now_ms, place));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"stylesheet\" href=\"{STYLE_PATH}\">\n<link rel=\"icon\" href=\"data:,\">\n{}</head>\n\
         <body>\n<a class=\"skip\" href=\"#gates\">Skip to the gates</a>\n{}\
         <main id=\"gates\" tabindex=\"-1\">\n{}{}{}{}{}</main>\n{}</body>\n</html>\n",
        title(status),
        reload,
        header(status, link),
        notice(status),
        if worst_first.len() > 1 { section(&overview(&worst_first, status.now_ms)) } else { String::new() },
        gates.collect::<String>(),
        status.egress.as_ref().map(egress).unwrap_or_default(),
        section(&store_list(status)),
        footer(status),
    )
}

/// Returns the page's title, with the most important facts.
fn title(status: &Status) -> String {
    let waiting: usize = status.gates.iter().map(|gate| gate.waiting).sum();
    let failing: usize = status.gates.iter().map(|gate| gate.keys_failing).sum();
    match (waiting, failing) {
        (0, 0) => "All calm \u{b7} tidegate".to_owned(),
        (waiting, 0) => format!("{waiting} waiting \u{b7} tidegate"),
        (0, failing) => format!("{failing} failing \u{b7} tidegate"),
        (waiting, failing) => format!("{waiting} waiting, {failing} failing \u{b7} tidegate"),
    }
}

fn header(status: &Status, link: &str) -> String {
    format!(
        "<header>\n<h1>tidegate</h1>\n<p>{} <span>up {}</span> <span>at {}</span> \
         <span>{link}</span></p>\n</header>\n",
        escaped(&status.version),
        duration(status.uptime_seconds),
        clock(status.now_ms),
    )
}

/// Returns the warning about a configuration that is not in force.
fn notice(status: &Status) -> String {
    let notice = |says: &str| format!("<p class=\"notice bad\" role=\"status\">{}.</p>\n", escaped(says));
    status.reload_fact().map(|fact| notice(&fact.says)).unwrap_or_default()
}

fn gate(gate: &GateStatus, now_ms: u64, place: usize) -> String {
    let state = gate.state(now_ms);
    let listen: Vec<_> = gate.listen.iter().map(|listen| format!("<code>{}</code>", escaped(listen))).collect();
    let summary = gate.summary(now_ms);
    format!(
        "<section class=\"gate\" aria-labelledby=\"gate{place}\">\n\
         <h2 id=\"gate{place}\">{} <span class=\"state {}\">{}</span></h2>\n\
         <p class=\"where\">{} <span class=\"to\">to</span> <code>{}</code></p>\n\
         <ul class=\"why\">{}</ul>\n{}{}</section>\n",
        escaped(&gate.name),
        state.severity.class,
        escaped(&state.word),
        listen.join(" "),
        escaped(&gate.upstream),
        summary.iter().map(|says| format!("<li>{}</li>", escaped(says))).collect::<String>(),
        figures(gate),
        lists(gate, now_ms).map(|list| table(&list, "h3")).collect::<String>(),
    )
}

/// Returns the section about the egress listener.
fn egress(egress: &EgressStatus) -> String {
    format!(
        "<section class=\"gate\" aria-labelledby=\"egress\">\n<h2 id=\"egress\">Egress listener</h2>\n\
         <p class=\"where\"><code>{}</code></p>\n<ul class=\"why\"><li>{}</li></ul>\n{}</section>\n",
        escaped(&egress.listen),
        escaped(&egress.summary()),
        egress_lists(egress).map(|list| table(&list, "h3")).collect::<String>(),
    )
}

/// Renders a table as a section of its own, if it has rows.
fn section(list: &List) -> String {
    match list.rows.as_slice() {
        [] => String::new(),
        _ => format!("<section class=\"gate\">\n{}</section>\n", table(list, "h2")),
    }
}

/// Renders the main numbers of a gate, three of them with a picture of the last ten minutes.
fn figures(gate: &GateStatus) -> String {
    let history = &gate.history;
    let rates = |name: &str, class: &str, values: &[u64], total: u64| {
        let now = history.rate(values.last());
        let most = history.rate(values.iter().max());
        let says = format!("{name} calls in the last ten minutes: {now} a second now, {most} at most");
        let picture = picture(values, &format!("{most}/s"), &says);
        figure(name, class, &format!("{now}<small>/s</small>"), &format!("{total} since the start"), &picture)
    };
    let admitted = rates("Admitted", "calm", &history.admitted, gate.admitted);
    if let Some(shadow) = gate.shadow.as_ref().filter(|_| gate.is_shadow()) {
        let calls = &shadow.calls;
        let times = calls.median_seconds.zip(calls.p99_seconds);
        let times = times.map(|(median, p99)| format!("p50 {}, p99 {}", duration(median), duration(p99)));
        let waited = calls.would_have_waited.to_string();
        let refused = calls.would_have_been_refused.to_string();
        return format!(
            "<div class=\"figures\">\n{admitted}{}{}{}</div>\n",
            figure("Would have waited", "calm", &waited, &times.unwrap_or_default(), ""),
            figure("Would have been refused", "calm", &refused, "nothing is held", ""),
            answers(gate),
        );
    }
    let now = gate.waiting;
    let most = history.waiting.iter().copied().max().unwrap_or_default().max(now as u64);
    let says = format!("Waiting calls in the last ten minutes: {now} now, {most} at most");
    let waiting = picture(&history.waiting, &most.to_string(), &says);
    format!(
        "<div class=\"figures\">\n{}{}{}{}</div>\n",
        admitted,
        figure("Waiting", "busy", &now.to_string(), &format!("{} held by their keys", gate.held), &waiting),
        rates("Refused", "alarm", &history.refused, gate.refused),
        answers(gate),
    )
}

/// Renders the upstream's response times.
fn answers(gate: &GateStatus) -> String {
    let (median, more) = gate.latency.as_ref().map_or_else(
        || ("\u{2013}".to_owned(), "no answer lately".to_owned()),
        |latency| {
            let calls = count(latency.calls, "call", "calls");
            let more = format!("half of {calls} lately; 99% within {}", duration(latency.p99_seconds));
            (duration(latency.median_seconds), more)
        },
    );
    figure("Upstream answers within", "calm", &median, &more, "")
}

/// Draws the values of the last ten minutes, with the scale. `says` is the text for screen readers.
fn picture(values: &[u64], top: &str, says: &str) -> String {
    let spark = spark::svg(values, POINTS, says);
    // The text of the picture says the same.
    format!(
        "{spark}<p class=\"axis\" aria-hidden=\"true\"><span>10 min ago</span><span>top: {top}</span><span>now</span></p>"
    )
}

fn figure(name: &str, class: &str, value: &str, more: &str, picture: &str) -> String {
    format!(
        "<div class=\"figure {class}\"><h3>{name}</h3><p class=\"value\">{value}</p><p class=\"more\">{more}</p>{picture}</div>\n"
    )
}

/// Renders a table with its heading.
fn table(list: &List, level: &str) -> String {
    let heading = list.heading;
    let mut out = format!("<{level}>{heading}</{level}>\n");
    if !list.rows.is_empty() {
        let rows = list.rows.iter().map(|cells| cells.iter().map(html).collect());
        out += &format!("<table role=\"table\" aria-label=\"{heading}\">\n{}</table>\n", grid(list.columns, rows));
    }
    if !list.note.is_empty() {
        let note = escaped(&list.note);
        let code = |(place, part): (usize, &str)| {
            if place % 2 == 1 { format!("<code>{part}</code>") } else { part.to_owned() }
        };
        out += &format!("<p class=\"more\">{}</p>\n", note.split('`').enumerate().map(code).collect::<String>());
    }
    out
}

/// Renders the headings and the rows of a table. The cells are HTML; the first of a row is its heading.
/// ARIA roles are written out, because the narrow layout removes a table's own.
pub fn grid(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head = |column: &&str| format!("<th scope=\"col\" role=\"columnheader\">{column}</th>");
    let cell = |(place, (cell, column)): (usize, (&String, &&str))| {
        let (tag, end) = match place {
            0 => ("th scope=\"row\" role=\"rowheader\"", "th"),
            _ => ("td role=\"cell\"", "td"),
        };
        format!("<{tag} data-is=\"{column}\">{cell}</{end}>")
    };
    let cells = |row: Vec<String>| row.iter().zip(columns).enumerate().map(cell).collect::<String>();
    format!(
        "<thead role=\"rowgroup\"><tr role=\"row\">{}</tr></thead>\n<tbody role=\"rowgroup\">\n{}</tbody>\n",
        columns.iter().map(head).collect::<String>(),
        rows.map(|row| format!("<tr role=\"row\">{}</tr>\n", cells(row))).collect::<String>(),
    )
}

fn html(cell: &TableCell) -> String {
    match cell {
        TableCell::Text(text) => escaped(text),
        TableCell::Time(text, at_ms) => format!("{} <small>{}</small>", escaped(text), clock(*at_ms)),
        TableCell::State(class, word) => format!("<span class=\"state {class}\">{}</span>", escaped(word)),
        TableCell::Link(to, text) => format!("<a href=\"{to}\">{}</a>", escaped(text)),
        TableCell::Code(name) => format!("<code>{}</code>", escaped(name)),
        TableCell::Word(meaning, word) => format!("{meaning} <code>{}</code>", escaped(word)),
        TableCell::Level(text, full) => {
            format!("{} {}", bar(if *full < 0.1 { "low" } else { "full" }, *full), escaped(text))
        }
    }
}

/// Draws a level from 0 to 1. A number beside it must say the same.
pub fn bar(class: &str, level: f64) -> String {
    format!(
        "<svg class=\"bar {class}\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect class=\"track\" width=\"100\" height=\"8\"/><rect class=\"level\" width=\"{:.0}\" height=\"8\"/></svg>",
        level * 100.0,
    )
}

fn footer(status: &Status) -> String {
    let reload = status.config.last_reload.as_ref().map_or_else(
        || "not reloaded since the start".to_owned(),
        |reload| format!("last reload {}: {}", ago(reload.at_ms, status.now_ms), reload.result.replace('_', " ")),
    );
    let (names, config) = if status.names_shown { ("", CONFIG_LINK) } else { (NAMELESS, "") };
    format!(
        "<footer>\n<p>Configuration <code>{}</code>, in force for {}; {}.{config}</p>\n{names}{MORE}\
         <p>The same as JSON: <code>curl -H 'Accept: application/json' \u{2026}/status</code></p>\n</footer>\n",
        escaped(&status.config.hash),
        ago(status.config.since_ms, status.now_ms).trim_end_matches(" ago"),
        escaped(&reload),
    )
}

const CONFIG_LINK: &str = " <a href=\"/config\">See all of it</a>.";
/// Links to the other pages of the admin port.
const MORE: &str = "<nav aria-label=\"More\"><p><a href=\"/metrics\">Metrics</a> <a href=\"/docs/operations.md\">Operations</a> \
                    <a href=\"/docs/alerts.md\">Alerts</a> <a href=\"/docs/troubleshooting.md\">Troubleshooting</a> \
                    <a href=\"/docs/configuration.md\">Every setting</a></p></nav>\n";
/// Makes the browser load the page again every few seconds.
const RELOAD: &str = "<meta http-equiv=\"refresh\" content=\"5\">\n";
const NAMELESS: &str = "<p>Names of objects are shown on loopback only (<code>kubectl port-forward</code>, <code>tidegate top</code>), \
                        unless <code>admin.show_names</code> says otherwise.</p>\n";
/// The number of steps in ten minutes.
const POINTS: usize = 120;

#[cfg(test)]
mod tests;
