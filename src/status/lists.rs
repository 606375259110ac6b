//! The lists of a gate as data: the page and the terminal show the same tables.

use super::text::{ago, bytes, count, duration, meaning, number, rejected_by, until};
use super::{Egress, Gate, Shared};

/// A list with headings.
pub(super) struct List {
    pub(super) heading: &'static str,
    pub(super) columns: Columns,
    pub(super) rows: Vec<Vec<Cell>>,
    /// A remark below it; commands and keys are in backticks.
    pub(super) note: String,
}

/// The headings of columns.
type Columns = &'static [&'static str];

/// One value in a list.
pub(super) enum Cell {
    Text(String),
    /// A name that commands take.
    Code(String),
    /// A word of a closed set with its meaning.
    Word(&'static str, String),
    /// A level in numbers, and as a fraction.
    Level(String, f64),
    /// A moment as seen from now, with the moment.
    Time(String, u64),
    /// A state of a gate, with the class of its colour.
    State(&'static str, String),
    /// A link to a place on the page.
    Link(String, String),
    /// The reason why something is down.
    Down(String),
}

/// Returns the lists that are not empty: those about what is wrong come first.
pub(super) fn lists(gate: &Gate, now_ms: u64) -> impl Iterator<Item = List> {
    let pauses = list("Pauses that the upstream asked for", &["Who pauses", "Ends"], &gate.pauses, |pause| {
        vec![text(&pause.who), Cell::Time(until(pause.until_ms, now_ms), pause.until_ms)]
    });
    let columns = &["Call", "Class", "Times", "Refused because", "Last", "Come back"];
    let refusals = list("Last refusals", columns, &gate.refusals, |refusal| {
        vec![
            Cell::Code(refusal.call.clone()),
            text(&refusal.class),
            text(&refusal.count),
            Cell::Word(meaning(&refusal.reason), refusal.reason.clone()),
            Cell::Time(ago(refusal.at_ms, now_ms), refusal.at_ms),
            text(&format!("after {}", duration(refusal.retry_in_seconds))),
        ]
    });
    let hot = list("Hot objects", &["Object", "What is done to it", "Since", "Last"], &gate.hot, |hot| {
        let time = |at| Cell::Time(ago(at, now_ms), at);
        vec![Cell::Code(hot.title().to_owned()), text(&hot.says), time(hot.since_ms), time(hot.last_ms)]
    });
    let columns = &["Quota", "Whose", "Left", "Whole again", "Told"];
    let quotas = list("The upstream's own quotas", columns, &gate.quotas, |quota| {
        let left = match quota.limit {
            Some(limit) => {
                #[expect(clippy::cast_precision_loss, reason = "a bar of a few pixels")]
                let part = (quota.remaining as f64 / limit.max(1) as f64).clamp(0.0, 1.0);
                Cell::Level(format!("{} of {limit}", quota.remaining), part)
            }
            None => text(&quota.remaining),
        };
        let resets = quota.resets_ms.map_or_else(|| text(&NONE), |at| Cell::Time(until(at, now_ms), at));
        let whose = if quota.account.is_empty() { NONE } else { &quota.account };
        vec![text(&quota.resource), text(&whose), left, resets, Cell::Time(ago(quota.seen_ms, now_ms), quota.seen_ms)]
    });
    let columns = &["Turned away by", "Times", "Last"];
    let rejections = list("Turned away by the upstream, not by the gate", columns, &gate.rejections, |rejection| {
        let by = Cell::Word(rejected_by(&rejection.by), rejection.by.clone());
        vec![by, text(&rejection.count), Cell::Time(ago(rejection.at_ms, now_ms), rejection.at_ms)]
    });
    let classes = list("Classes", &["Class", "Lane", "Waiting", "Slots"], &gate.classes, |class| {
        let slots = class.slots.max.map_or_else(|| NONE.to_owned(), |max| format!("{} of {max}", class.slots.used));
        vec![text(&class.name), text(&class.lane), text(&class.waiting), text(&slots)]
    });
    let callers = list("Who calls", &["User agent", "Calls", "Refused", "Last call"], &gate.callers, |caller| {
        let agent = if caller.user_agent.is_empty() { "none sent" } else { &caller.user_agent };
        let agent = if caller.action.is_empty() { agent.to_owned() } else { format!("{agent}: {}", caller.action) };
        let agent = if caller.client.is_empty() { agent } else { format!("{}, {agent}", caller.client) };
        vec![
            text(&agent),
            text(&caller.calls),
            text(&caller.refused),
            Cell::Time(ago(caller.last_ms, now_ms), caller.last_ms),
        ]
    });
    let (waiting, keys) = (waiting(gate), keys(gate, now_ms));
    let lists =
        [waiting, keys, hot, pauses, quotas, refusals, rejections, callers, buckets(gate), connections(gate), classes];
    lists.into_iter().filter(|list| !list.rows.is_empty() || !list.note.is_empty())
}

/// Returns the lists of the egress listener that are not empty.
pub(super) fn egress_lists(egress: &Egress) -> impl Iterator<Item = List> {
    let columns = &["Tunnels to", "Open", "In all", "Bytes up", "Bytes down", "Listed by"];
    let mut tunnels = list("Tunnels, which are not read", columns, &egress.tunnels, |tunnels| {
        let gate = if tunnels.gate.is_empty() { NONE.to_owned() } else { format!("{}: not limited", tunnels.gate) };
        let (up, down) = (tunnels.bytes_up, tunnels.bytes_down);
        let size = |size| text(&bytes(usize::try_from(size).unwrap_or(usize::MAX)));
        vec![
            Cell::Code(tunnels.host.clone()),
            text(&tunnels.open),
            text(&tunnels.total),
            size(up),
            size(down),
            text(&gate),
        ]
    });
    match egress.tunnel_hosts.saturating_sub(egress.tunnels.len()) {
        0 => {}
        more => tunnels.note = format!("And {more} more hosts."),
    }
    let refusals = list("Refused by the egress listener", &["Because of", "Times"], &egress.refusals, |refusals| {
        vec![text(&refusals.why.replace('_', " ")), text(&refusals.count)]
    });
    let columns = &["Handshakes failed for", "Because of", "First client", "Times", "Gate"];
    let handshakes = list("TLS handshakes that failed", columns, &egress.handshakes, |row| {
        vec![
            Cell::Code(row.host.clone()),
            text(&row.why),
            text(&Some(row.client.as_str()).filter(|client| !client.is_empty()).unwrap_or(NONE)),
            text(&row.count),
            text(&row.gate),
        ]
    });
    [tunnels, refusals, handshakes].into_iter().filter(|list| !list.rows.is_empty())
}

/// Returns the summary of several gates, in this order; each is at `#gate` and its place.
pub(super) fn overview(gates: &[&Gate], now_ms: u64) -> List {
    let columns = &["Gate", "State", "Waiting", "Failing keys", "Admitted", "Refused", "Upstream answers"];
    let row = |(place, gate): (usize, &&Gate)| {
        let (word, severity) = gate.state(now_ms);
        let rate = |values: &[u64]| format!("{}/s", gate.history.rate(values.last()));
        let within = |latency: &super::Latency| format!("99% within {}", duration(latency.p99_seconds));
        vec![
            Cell::Link(format!("#gate{place}"), gate.title()),
            Cell::State(severity.class, word.into_owned()),
            text(&gate.waiting),
            text(&gate.keys_failing),
            text(&rate(&gate.history.admitted)),
            text(&rate(&gate.history.refused)),
            text(&gate.latency.as_ref().map_or_else(|| NONE.to_owned(), within)),
        ]
    };
    let rows = gates.iter().enumerate().map(row).collect();
    List { heading: "All gates", columns, rows, note: String::new() }
}

fn waiting(gate: &Gate) -> List {
    let columns = &["Flow", "Class", "Calls", "Oldest", "Waits because"];
    let mut list = list("Waiting", columns, &gate.queues, |queue| {
        let flow = if queue.flow.is_empty() { "not shown" } else { &queue.flow };
        vec![
            text(&format!("{flow}{}", if queue.retry { " (retries)" } else { "" })),
            text(&queue.class),
            text(&queue.waiting),
            text(&duration(queue.oldest_seconds)),
            Cell::Word(meaning(&queue.reason), queue.reason.clone()),
        ]
    });
    if gate.held > 0 {
        list.rows.push(vec![text(&NONE), text(&NONE), text(&gate.held), text(&NONE), text(&"their keys fail")]);
    }
    if gate.waiting_bytes > 0 {
        list.note = format!("Bodies held meanwhile: {}.", bytes(gate.waiting_bytes));
    }
    list
}

fn keys(gate: &Gate, now_ms: u64) -> List {
    let columns = &["Key", "Failed", "Last answer", "Next try"];
    let mut list = list("Failing keys", columns, &gate.keys, |key| {
        let status = key.status.map_or_else(|| "lost".to_owned(), |status| status.to_string());
        vec![
            if key.key.is_empty() { text(&"not shown") } else { Cell::Code(key.key.clone()) },
            text(&count(key.failures, "time", "times")),
            Cell::Time(format!("{status}, {}", ago(key.failed_at_ms, now_ms)), key.failed_at_ms),
            Cell::Time(until(key.next_at_ms, now_ms), key.next_at_ms),
        ]
    });
    list.note = match gate.keys_failing.saturating_sub(gate.keys.len()) {
        0 if gate.keys.is_empty() => String::new(),
        0 => HEALED.to_owned(),
        more => format!("And {more} more. {HEALED}"),
    };
    list
}

impl Shared {
    /// Says with how many it is shared, and how it is; `place` says where.
    pub(crate) fn says(&self, place: &str) -> String {
        let Self { name, level, held, .. } = self;
        let others = match self.members.saturating_sub(1) {
            1 => "1 other".to_owned(),
            others => format!("{others} others"),
        };
        let others = match self.parts {
            Some(parts) => format!("{others} in {}", count(parts, "part", "parts")),
            None => others,
        };
        let state = match self.state.as_str() {
            "fallback" => format!("; its store is away, so that it goes on alone at {}/s", number(self.rate)),
            "stopped" => "; its store is away, so that calls wait".to_owned(),
            _ => format!(": {} there, {held} held", number(level.floor())),
        };
        let differs = if self.differs { "; another has stricter limits" } else { "" };
        format!("shared as {name} with {others}{place}{state}{differs}")
    }
}

fn buckets(gate: &Gate) -> List {
    let mut list = list("Buckets", &["Bucket", "Tokens", "Rate"], &gate.buckets, |bucket| {
        let part = if bucket.part > 0 { format!(" #{}", bucket.part) } else { String::new() };
        let slowed = if bucket.rate < bucket.full_rate {
            format!(" of {}/s: slowed down", number(bucket.full_rate))
        } else {
            "/s".to_owned()
        };
        let full = (bucket.level / f64::from(bucket.burst.max(1))).clamp(0.0, 1.0);
        vec![
            text(&format!(
                "{}{part}{}",
                bucket.name,
                bucket.shared.as_ref().map(|shared| format!(", {}", shared.says(""))).unwrap_or_default()
            )),
            Cell::Level(format!("{} of {}", number(bucket.level.floor().max(0.0)), bucket.burst), full),
            text(&format!("{}{slowed}", number(bucket.rate))),
        ]
    });
    if let Some(max) = gate.slots.max {
        list.note = format!("Slots: {} of {max} taken.", gate.slots.used);
    }
    list
}

fn connections(gate: &Gate) -> List {
    let columns = &["Calls of", "Connections", "Under way", "Room for", "State"];
    list("Upstream connections", columns, &gate.connections, |group| {
        let state = match &group.down {
            Some(why) => Cell::Down(why.clone()),
            None if group.connections == 0 => text(&"none needed yet"),
            None => text(&"up"),
        };
        vec![
            text(&group.group.replace('_', "-")),
            text(&group.connections),
            text(&group.used),
            text(&format!("{} more", group.free)),
            state,
        ]
    })
}

fn list<T>(heading: &'static str, columns: Columns, items: &[T], row: impl Fn(&T) -> Vec<Cell>) -> List {
    List { heading, columns, rows: items.iter().map(row).collect(), note: String::new() }
}

fn text(value: &impl ToString) -> Cell {
    Cell::Text(value.to_string())
}

/// Stands where there is no value.
const NONE: &str = "\u{2013}";
/// The advice about failing keys, beyond the repair itself.
const HEALED: &str = "Once the cause is healed, `tidegate forget --all` has them tried at once.";

impl Gate {
    /// Returns its name, with its host if it is one of several.
    pub(super) fn title(&self) -> String {
        if self.host.is_empty() { self.name.clone() } else { format!("{} {}", self.name, self.host) }
    }
}
