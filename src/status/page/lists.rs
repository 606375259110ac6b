//! The lists of a gate: each is a table with headings, and left out if it is empty.

use crate::status::{
    Bucket, Gate, Status,
    text::{add, ago, bytes, count, escaped, meaning, number, rejected_by, span, until},
};

/// A table in the making.
struct Table {
    columns: &'static [&'static str],
    rows: String,
}

/// Writes all lists.
pub(super) fn all(out: &mut String, gate: &Gate, status: &Status) {
    waiting(out, gate);
    keys(out, gate, status);
    pauses(out, gate, status);
    refusals(out, gate, status);
    rejections(out, gate, status);
    buckets(out, gate);
    connections(out, gate);
    classes(out, gate);
}

fn waiting(out: &mut String, gate: &Gate) {
    let mut table = Table::new(&["Flow", "Class", "Calls", "Oldest", "Waits because"]);
    for queue in &gate.queues {
        let flow = if queue.flow.is_empty() { "not shown" } else { &queue.flow };
        table.row(&[
            format!("{}{}", escaped(flow), if queue.retry { " (retries)" } else { "" }),
            escaped(&queue.class),
            queue.waiting.to_string(),
            span(queue.oldest_seconds),
            format!("{} <code>{}</code>", meaning(&queue.reason), escaped(&queue.reason)),
        ]);
    }
    if gate.held > 0 {
        let dash = || "\u{2013}".to_owned();
        table.row(&[dash(), dash(), gate.held.to_string(), dash(), "their keys fail".to_owned()]);
    }
    let more = format!("Bodies held meanwhile: {}.", bytes(gate.waiting_bytes));
    table.close(out, "Waiting", if gate.waiting_bytes > 0 { &more } else { "" });
}

fn keys(out: &mut String, gate: &Gate, status: &Status) {
    let mut table = Table::new(&["Key", "Failed", "Last answer", "Next try"]);
    for key in &gate.keys {
        table.row(&[
            format!("<code>{}</code>", escaped(&key.key)),
            count(u64::from(key.failures), "time", "times"),
            format!(
                "{}, {}",
                key.status.map_or_else(|| "lost".to_owned(), |status| status.to_string()),
                ago(key.failed_at_ms, status.now_ms)
            ),
            until(key.next_at_ms, status.now_ms),
        ]);
    }
    let more = match gate.keys_failing.saturating_sub(gate.keys.len()) {
        0 => HEALED.to_owned(),
        more if gate.keys.is_empty() => format!(
            "{}; their names are not shown here.",
            count(u64::try_from(more).unwrap_or(u64::MAX), "key", "keys")
        ),
        more => format!("And {more} more. {HEALED}"),
    };
    if gate.keys.is_empty() && gate.keys_failing > 0 {
        add(out, format_args!("<h3>Failing keys</h3>\n<p class=\"more\">{more}</p>\n"));
    }
    table.close(out, "Failing keys", &more);
}

fn pauses(out: &mut String, gate: &Gate, status: &Status) {
    let mut table = Table::new(&["Who pauses", "Ends"]);
    for pause in &gate.pauses {
        table.row(&[escaped(&pause.who), until(pause.until_ms, status.now_ms)]);
    }
    table.close(out, "Pauses that the upstream asked for", "");
}

fn refusals(out: &mut String, gate: &Gate, status: &Status) {
    let mut table = Table::new(&["Call", "Class", "Times", "Refused because", "Last", "Come back"]);
    for refusal in &gate.refusals {
        table.row(&[
            format!("<code>{}</code>", escaped(&refusal.call)),
            escaped(&refusal.class),
            refusal.count.to_string(),
            format!("{} <code>{}</code>", meaning(&refusal.reason), escaped(&refusal.reason)),
            ago(refusal.at_ms, status.now_ms),
            format!("after {}", span(refusal.retry_in_seconds)),
        ]);
    }
    table.close(out, "Last refusals", "");
}

fn rejections(out: &mut String, gate: &Gate, status: &Status) {
    let mut table = Table::new(&["Turned away by", "Times", "Last"]);
    for rejection in &gate.rejections {
        table.row(&[
            format!("{} <code>{}</code>", rejected_by(&rejection.by), escaped(&rejection.by)),
            rejection.count.to_string(),
            ago(rejection.at_ms, status.now_ms),
        ]);
    }
    table.close(out, "What the upstream turned away, not the gate", "");
}

fn buckets(out: &mut String, gate: &Gate) {
    let mut table = Table::new(&["Bucket", "Tokens", "Rate"]);
    for bucket in &gate.buckets {
        let part = if bucket.part > 0 { format!(" #{}", bucket.part) } else { String::new() };
        let slowed = if bucket.rate < bucket.full_rate {
            format!(" of {}/s: slowed down", number(bucket.full_rate))
        } else {
            "/s".to_owned()
        };
        table.row(&[
            format!("{}{part}", escaped(&bucket.name)),
            format!("{} {} of {}", bar(bucket), number(bucket.level.floor().max(0.0)), bucket.burst),
            format!("{}{slowed}", number(bucket.rate)),
        ]);
    }
    let slots = match gate.slots.max {
        Some(max) => format!("Slots: {} of {max} taken.", gate.slots.used),
        None => String::new(),
    };
    table.close(out, "Buckets", &slots);
}

/// Draws the level of a bucket. The numbers beside it say the same.
fn bar(bucket: &Bucket) -> String {
    let full = (bucket.level / f64::from(bucket.burst.max(1))).clamp(0.0, 1.0) * 100.0;
    let class = if full < 10.0 { "low" } else { "full" };
    format!(
        "<svg class=\"bar {class}\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect class=\"track\" width=\"100\" \
         height=\"8\"/><rect class=\"level\" width=\"{full:.0}\" height=\"8\"/></svg>"
    )
}

fn connections(out: &mut String, gate: &Gate) {
    let mut table = Table::new(&["Calls of", "Connections", "Under way", "Room for", "State"]);
    for group in &gate.connections {
        let state = match &group.down {
            Some(why) => format!("<span class=\"state bad\">down</span> {}", escaped(why)),
            None if group.connections == 0 => "none needed yet".to_owned(),
            None => "up".to_owned(),
        };
        table.row(&[
            escaped(&group.group.replace('_', "-")),
            group.connections.to_string(),
            group.used.to_string(),
            count(u64::try_from(group.free).unwrap_or(u64::MAX), "more", "more"),
            state,
        ]);
    }
    table.close(out, "Upstream connections", "");
}

fn classes(out: &mut String, gate: &Gate) {
    let mut table = Table::new(&["Class", "Lane", "Waiting", "Slots"]);
    for class in &gate.classes {
        let slots =
            class.slots.max.map_or_else(|| "\u{2013}".to_owned(), |max| format!("{} of {max}", class.slots.used));
        table.row(&[escaped(&class.name), escaped(&class.lane), class.waiting.to_string(), slots]);
    }
    table.close(out, "Classes", "");
}

/// The advice about failing keys, beyond the repair itself.
const HEALED: &str = "Once it is healed, <code>tidegate forget --all</code> has them tried at once.";

// === impl Table ===

impl Table {
    fn new(columns: &'static [&'static str]) -> Self {
        Self { columns, rows: String::new() }
    }

    /// Adds one row of HTML cells, of which the first is the row's heading. Roles are explicit,
    /// because the narrow layout takes them from a table.
    fn row(&mut self, cells: &[String]) {
        self.rows.push_str("<tr role=\"row\">");
        for (place, (cell, column)) in cells.iter().zip(self.columns).enumerate() {
            let (tag, role) = if place == 0 { ("th scope=\"row\"", "rowheader") } else { ("td", "cell") };
            let end = if place == 0 { "th" } else { "td" };
            add(&mut self.rows, format_args!("<{tag} role=\"{role}\" data-is=\"{column}\">{cell}</{end}>"));
        }
        self.rows.push_str("</tr>\n");
    }

    /// Writes the table with its heading, and `more` as HTML below it; nothing if there is no row.
    fn close(self, out: &mut String, heading: &str, more: &str) {
        if self.rows.is_empty() {
            return;
        }
        add(
            out,
            format_args!(
                "<h3>{heading}</h3>\n<table role=\"table\" aria-label=\"{heading}\">\n<thead role=\"rowgroup\"><tr role=\"row\">"
            ),
        );
        for column in self.columns {
            add(out, format_args!("<th scope=\"col\" role=\"columnheader\">{column}</th>"));
        }
        add(out, format_args!("</tr></thead>\n<tbody role=\"rowgroup\">\n{}</tbody>\n</table>\n", self.rows));
        if !more.is_empty() {
            add(out, format_args!("<p class=\"more\">{more}</p>\n"));
        }
    }
}
