//! The lists of a gate as data: the page and the terminal show the same tables.

use super::text::{ago, bytes, count, duration, number, rejected_by, until};
use super::{Bucket, Class, Egress, Gate, Key, Refusal, Shared};

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
    let lists = [
        shadow(gate),
        waiting(gate),
        keys(gate, now_ms),
        hot,
        pauses(gate, now_ms),
        quotas,
        refusals(gate, now_ms),
        rejections,
        callers(gate, now_ms),
        buckets(gate),
        connections(gate),
        classes(gate),
    ];
    lists.into_iter().filter(|list| !list.rows.is_empty() || !list.note.is_empty())
}

fn pauses(gate: &Gate, now_ms: u64) -> List {
    list("Pauses", &["Who pauses", "Ends", "Because"], &gate.pauses, |pause| {
        vec![text(&pause.who), Cell::Time(until(pause.until_ms, now_ms), pause.until_ms), text(&pause.because())]
    })
}

/// Returns the last refusals. Those of one class and reason share a row that names the latest call.
fn refusals(gate: &Gate, now_ms: u64) -> List {
    let mut groups: Vec<Vec<&Refusal>> = Vec::new();
    for refusal in &gate.refusals {
        let alike = |group: &&mut Vec<&Refusal>| {
            group.first().is_some_and(|first| first.class == refusal.class && first.reason == refusal.reason)
        };
        match groups.iter_mut().find(alike) {
            Some(group) => group.push(refusal),
            None => groups.push(vec![refusal]),
        }
    }
    let row = |group: &Vec<&Refusal>| {
        let latest = *group.first()?;
        let longest = group.iter().map(|refusal| refusal.retry_in_seconds).fold(0.0, f64::max);
        let call = match group.len() {
            1 => latest.call.clone(),
            calls => format!("{} and {} more", latest.call, calls - 1),
        };
        Some(vec![
            Cell::Code(call),
            text(&latest.class),
            text(&group.iter().map(|refusal| refusal.count).sum::<u64>()),
            Cell::Word(gate.meaning(&latest.reason), latest.reason.clone()),
            Cell::Time(ago(latest.at_ms, now_ms), latest.at_ms),
            text(&format!("after {}", duration(longest))),
        ])
    };
    let columns = &["Call", "Class", "Times", "Refused because", "Last", "Come back"];
    let rows = groups.iter().filter_map(row).collect();
    List { heading: "Last refusals", columns, rows, note: String::new() }
}

/// Returns what a shadow would have done.
fn shadow(gate: &Gate) -> List {
    let by = gate.shadow.as_ref().map_or(&[][..], |shadow| &shadow.by);
    let columns = &["Class", "Because", "Would have waited", "p50", "p99", "Would have been refused"];
    list("Shadow", columns, by, |calls| {
        let time = |seconds: Option<f64>| text(&seconds.map_or_else(|| NONE.to_owned(), duration));
        vec![
            text(&calls.class),
            // Without its meaning, which is told of calls that are held.
            Cell::Code(calls.reason.clone()),
            text(&calls.would_have_waited),
            time(calls.median_seconds),
            time(calls.p99_seconds),
            text(&calls.would_have_been_refused),
        ]
    })
}

fn callers(gate: &Gate, now_ms: u64) -> List {
    list("Who calls", &["User agent", "Calls", "Refused", "Last call"], &gate.callers, |caller| {
        let agent = if caller.user_agent.is_empty() { "none sent" } else { &caller.user_agent };
        let agent = if caller.action.is_empty() { agent.to_owned() } else { format!("{agent}: {}", caller.action) };
        let agent = if caller.client.is_empty() { agent } else { format!("{}, {agent}", caller.client) };
        vec![
            text(&agent),
            text(&caller.calls),
            text(&caller.refused),
            Cell::Time(ago(caller.last_ms, now_ms), caller.last_ms),
        ]
    })
}

/// Returns the classes that have had calls; the others are only counted.
fn classes(gate: &Gate) -> List {
    let used: Vec<_> = gate.classes.iter().filter(|class| !class.is_idle()).collect();
    let slots = |class: &&Class| {
        let slots = &class.slots;
        text(&slots.max.map_or_else(|| NONE.to_owned(), |max| format!("{} of {max}", slots.used)))
    };
    let mut list = if gate.shadow.is_some() {
        let row = |class: &&Class| vec![text(&class.name), text(&class.lane), text(&class.calls), slots(class)];
        list("Classes", &["Class", "Lane", "Calls", "Slots"], &used, row)
    } else {
        list("Classes", &["Class", "Lane", "Calls", "Waiting", "Slots"], &used, |class| {
            vec![text(&class.name), text(&class.lane), text(&class.calls), text(&class.waiting), slots(class)]
        })
    };
    list.note = without_calls(gate.classes.len() - used.len());
    list
}

/// Counts classes that are not shown.
fn without_calls(classes: usize) -> String {
    match classes {
        0 => String::new(),
        classes => format!("And {} without calls.", count(classes, "class", "classes")),
    }
}

/// Returns the lists of the egress listener that are not empty.
pub(super) fn egress_lists(egress: &Egress) -> impl Iterator<Item = List> {
    let columns = &["Tunnels to", "Open", "In all", "Bytes up", "Bytes down", "Listed by"];
    let mut tunnels = list("Tunnels, which are not read", columns, &egress.tunnels, |tunnels| {
        let gate = if tunnels.gate.is_empty() { NONE.to_owned() } else { format!("{}: not limited", tunnels.gate) };
        let up = tunnels.bytes_up;
        let down = tunnels.bytes_down;
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
        let unless_shadow = |says: String| text(&if gate.shadow.is_some() { NONE.to_owned() } else { says });
        let within = |latency: &super::Latency| format!("99% within {}", duration(latency.p99_seconds));
        vec![
            Cell::Link(format!("#gate{place}"), gate.title()),
            Cell::State(severity.class, word.into_owned()),
            unless_shadow(gate.waiting.to_string()),
            text(&gate.keys_failing),
            text(&rate(&gate.history.admitted)),
            unless_shadow(rate(&gate.history.refused)),
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
            Cell::Word(gate.meaning(&queue.reason), queue.reason.clone()),
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
    let columns = &["Key", "Failed", "Last answer", "Next try", "Upstream says"];
    let mut list = list("Failing keys", columns, &gate.keys, |key| {
        let status = key.status.map_or_else(|| "lost".to_owned(), |status| status.to_string());
        vec![
            if key.key.is_empty() { text(&"not shown") } else { Cell::Code(key.key.clone()) },
            text(&count(key.failures, "time", "times")),
            Cell::Time(format!("{status}, {}", ago(key.failed_at_ms, now_ms)), key.failed_at_ms),
            Cell::Time(until(key.next_at_ms, now_ms), key.next_at_ms),
            text(&key.says().unwrap_or_else(|| NONE.to_owned())),
        ]
    });
    list.note = match gate.keys_failing.saturating_sub(gate.keys.len()) {
        0 if gate.keys.is_empty() => String::new(),
        0 => HEALED.to_owned(),
        more => format!("And {more} more. {HEALED}"),
    };
    list
}

impl Key {
    /// Returns the upstream's own words about the last failure.
    pub fn says(&self) -> Option<String> {
        match (&*self.error, &*self.message) {
            ("", "") => None,
            ("", says) | (says, "") => Some(says.to_owned()),
            (error, message) => Some(format!("{error}: {message}")),
        }
    }
}

impl Shared {
    /// Says with how many it is shared, and how it is; `place` says where.
    pub fn says(&self, place: &str) -> String {
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
            _ => format!(": {} there, {held} held", number(level.floor().max(0.0))), // below zero: promised
        };
        let differs = if self.differs { "; another has stricter limits" } else { "" };
        format!("shared as {name} with {others}{place}{state}{differs}")
    }
}

fn buckets(gate: &Gate) -> List {
    let is_idle = |bucket: &&Bucket| {
        let class = bucket.name.strip_prefix("class ");
        class.is_some_and(|name| gate.classes.iter().any(|class| class.name == *name && class.is_idle()))
    };
    let (idle, used): (Vec<_>, Vec<_>) = gate.buckets.iter().partition(is_idle);
    let mut list = list("Buckets", &["Bucket", "Tokens", "Rate"], &used, |bucket| {
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
    let slots = gate.slots.max.map(|max| format!("Slots: {} of {max} taken.", gate.slots.used));
    let idle = Some(without_calls(idle.len())).filter(|says| !says.is_empty());
    list.note = slots.into_iter().chain(idle).collect::<Vec<_>>().join(" ");
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(list: &List) -> Vec<Vec<String>> {
        let cell = |cell: &Cell| match cell {
            Cell::Text(text) | Cell::Code(text) | Cell::Word(_, text) | Cell::Level(text, _) => text.clone(),
            Cell::Time(text, _) | Cell::State(_, text) | Cell::Link(_, text) | Cell::Down(text) => text.clone(),
        };
        list.rows.iter().map(|row| row.iter().map(cell).collect()).collect()
    }

    #[test]
    fn equal_refusals_share_a_row() {
        let refusal = |call: &str, reason: &str, count, retry_in_seconds| Refusal {
            at_ms: 9_000,
            count,
            class: "default".to_owned(),
            reason: reason.to_owned(),
            call: call.to_owned(),
            retry_in_seconds,
        };
        let all = vec![refusal("a", "bucket", 3, 1.0), refusal("b", "slot", 1, 1.0), refusal("c", "bucket", 4, 8.0)];
        let found = rows(&refusals(&Gate { refusals: all, ..Gate::default() }, 10_000));
        let wanted = [
            ["a and 1 more", "default", "7", "bucket", "1.0 s ago", "after 8.0 s"],
            ["b", "default", "1", "slot", "1.0 s ago", "after 1.0 s"],
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn classes_without_calls_are_only_counted() {
        let class = |name: &str, calls| Class { name: name.to_owned(), calls, ..Class::default() };
        let bucket = |name: &str| Bucket { name: name.to_owned(), ..Bucket::default() };
        let gate = Gate {
            classes: vec![class("ec2", 87), class("s3", 0), class("iam", 0)],
            buckets: ["gate", "class ec2", "class s3"].map(bucket).into(),
            ..Gate::default()
        };
        let (classes, buckets) = (classes(&gate), buckets(&gate));
        assert_eq!((rows(&classes).len(), &*classes.note), (1, "And 2 classes without calls."));
        assert_eq!((rows(&buckets).len(), &*buckets.note), (2, "And 1 class without calls."));
        assert!(!gate.summary(0).join(" ").contains("No call has come"), "87 have");
    }

    #[test]
    fn promised_tokens_are_not_there() {
        let shared = Shared { name: "account".to_owned(), members: 2, level: -0.4, ..Shared::default() };
        assert_eq!(shared.says(""), "shared as account with 1 other: 0 there, 0 held");
    }
}
