//! The tables about a gate, as data for the status page and the terminal.

use super::text::{ago, bytes, count, duration, number, rejected_by, until};
use super::{Bucket, Class, EgressStatus, FailingKey, GateStatus, QuotaSpender, ShadowCalls, SharedBucket, Status};

/// A table with a title and headings.
pub(super) struct List {
    pub(super) heading: &'static str,
    pub(super) columns: Columns,
    pub(super) rows: Vec<Vec<TableCell>>,
    /// A remark shown below the table. Commands and configuration keys in it are in backticks.
    pub(super) note: String,
}

/// The headings of columns.
type Columns = &'static [&'static str];

/// A cell of a table.
pub(super) enum TableCell {
    Text(String),
    /// A name as the user would type it in a command.
    Code(String),
    /// A description for the reader, and the word of the data that it describes.
    Word(&'static str, String),
    /// A fill level as text, and as a fraction.
    Level(String, f64),
    /// A time as text relative to now, and the time itself.
    Time(String, u64),
    /// A state in words, with the CSS class of its colour.
    State(&'static str, String),
    /// A text linking to a place on the page.
    Link(String, String),
}

/// Returns the tables with rows, those about problems first.
pub(super) fn lists(gate: &GateStatus, now_ms: u64) -> impl Iterator<Item = List> {
    let hot = list("Hot objects", &["Object", "What is done to it", "Since", "Last"], &gate.hot, |hot| {
        let object = TableCell::Code(hot.title().to_owned());
        vec![object, text(&hot.says), past(hot.since_ms, now_ms), past(hot.last_ms, now_ms)]
    });
    let columns = &["Quota", "Whose", "Left", "Runs out", "Whole again", "Who spends it", "Told"];
    let quotas = list("The upstream's own quotas", columns, &gate.quotas, |quota| {
        let left = match quota.limit {
            Some(limit) => {
                let part = (quota.remaining as f64 / limit.max(1) as f64).clamp(0.0, 1.0);
                TableCell::Level(format!("{} of {limit}", quota.remaining), part)
            }
            None => text(&quota.remaining),
        };
        let resets = quota.resets_ms.map_or_else(|| text(&NONE), |at| future(at, now_ms));
        let whose = if quota.account.is_empty() { NONE } else { &quota.account };
        let runs_out = quota.runs_out_ms.map_or_else(|| text(&NONE), |at| future(at, now_ms));
        let part = |spender: &QuotaSpender| format!("{} {:.0}%", spender.caller, spender.part * 100.0);
        let spenders: Vec<_> = quota.spenders.iter().map(part).collect();
        let seen = past(quota.seen_ms, now_ms);
        vec![text(&quota.resource), text(&whose), left, runs_out, resets, text(&spenders.join(", ")), seen]
    });
    let columns = &["Turned away by", "Times", "Last"];
    let rejections = list("Turned away by the upstream, not by the gate", columns, &gate.rejections, |rejection| {
        let by = TableCell::Word(rejected_by(&rejection.by), rejection.by.clone());
        vec![by, text(&rejection.count), past(rejection.at_ms, now_ms)]
    });
    let lists = [
        shadow(gate),
        candidate(gate, now_ms),
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

fn pauses(gate: &GateStatus, now_ms: u64) -> List {
    list("Pauses", &["Who pauses", "Ends", "Because"], &gate.pauses, |pause| {
        vec![text(&pause.who), future(pause.until_ms, now_ms), text(&pause.because())]
    })
}

fn refusals(gate: &GateStatus, now_ms: u64) -> List {
    let columns = &["Call", "Class", "Times", "Refused because", "Last", "Come back"];
    list("Last refusals", columns, &gate.refusals, |refusal| {
        vec![
            TableCell::Code(refusal.call.clone()),
            text(&refusal.class),
            text(&refusal.count),
            TableCell::Word(gate.meaning(&refusal.reason), refusal.reason.clone()),
            past(refusal.at_ms, now_ms),
            text(&format!("after {}", duration(refusal.retry_in_seconds))),
        ]
    })
}

/// Returns the table of what the limits would have done in shadow mode.
fn shadow(gate: &GateStatus) -> List {
    let by = gate.shadow.as_ref().map_or(&[][..], |shadow| &shadow.by);
    let columns = &["Class", "Because", "Would have waited", "p50", "p99", "Would have been refused"];
    list("Shadow", columns, by, |calls| shadow_cells(calls).into())
}

fn shadow_cells(calls: &ShadowCalls) -> [TableCell; 6] {
    let time = |seconds: Option<f64>| text(&seconds.map_or_else(|| NONE.to_owned(), duration));
    [
        text(&calls.class),
        // Without its meaning, which is about waiting calls.
        TableCell::Code(calls.reason.clone()),
        text(&calls.would_have_waited),
        time(calls.median_seconds),
        time(calls.p99_seconds),
        text(&calls.would_have_been_refused),
    ]
}

/// Returns the table that compares the limits in force with the candidate's: first all calls, then
/// each class and reason.
fn candidate(gate: &GateStatus, now_ms: u64) -> List {
    let columns = &["Limits", "Class", "Because", "Wait", "p50", "p99", "Refused"];
    let both = gate.candidate.iter().flat_map(|both| [("in force", &both.in_force), ("candidate", &both.candidate)]);
    let both: Vec<_> = both.collect();
    let all = both.iter().map(|(limits, shadow)| {
        let calls = ShadowCalls { class: "all".to_owned(), reason: NONE.to_owned(), ..shadow.calls.clone() };
        (*limits, calls)
    });
    let by = both.iter().flat_map(|(limits, shadow)| shadow.by.iter().map(|calls| (*limits, calls.clone())));
    let rows: Vec<_> = all.chain(by).collect();
    let mut list = list("In force and candidate", columns, &rows, |(limits, calls)| {
        [text(limits)].into_iter().chain(shadow_cells(calls)).collect()
    });
    if let Some(both) = &gate.candidate {
        let calls = count(both.calls, "call", "calls");
        let since = ago(both.since_ms, now_ms);
        list.note =
            format!("{calls}, the first {since}. `tidegate promote` prints the file with the candidate in force.");
    }
    list
}

fn callers(gate: &GateStatus, now_ms: u64) -> List {
    list("Who calls", &["User agent", "Calls", "Refused", "Last call"], &gate.callers, |caller| {
        let agent = if caller.user_agent.is_empty() { "none sent" } else { &caller.user_agent };
        let agent = if caller.action.is_empty() { agent.to_owned() } else { format!("{agent}: {}", caller.action) };
        let agent = if caller.client.is_empty() { agent } else { format!("{}, {agent}", caller.client) };
        vec![text(&agent), text(&caller.calls), text(&caller.refused), past(caller.last_ms, now_ms)]
    })
}

/// Returns the table of the classes that had calls, with the number of the others in a note.
fn classes(gate: &GateStatus) -> List {
    let used: Vec<_> = gate.classes.iter().filter(|class| !class.is_idle()).collect();
    let slots = |class: &&Class| {
        let slots = &class.slots;
        text(&slots.max.map_or_else(|| NONE.to_owned(), |max| format!("{} of {max}", slots.used)))
    };
    let lane =
        |class: &&Class| text(&if class.shadow { format!("{}, shadow", class.lane) } else { class.lane.clone() });
    let mut list = if gate.is_shadow() {
        let row = |class: &&Class| vec![text(&class.name), text(&class.lane), text(&class.calls), slots(class)];
        list("Classes", &["Class", "Lane", "Calls", "Slots"], &used, row)
    } else {
        list("Classes", &["Class", "Lane", "Calls", "Waiting", "Slots"], &used, |class| {
            vec![text(&class.name), lane(class), text(&class.calls), text(&class.waiting), slots(class)]
        })
    };
    list.note = without_calls(gate.classes.len() - used.len());
    list
}

/// Returns a note with the number of classes left out because they had no calls.
fn without_calls(classes: usize) -> String {
    match classes {
        0 => String::new(),
        classes => format!("And {} without calls.", count(classes, "class", "classes")),
    }
}

/// Returns the tables of the egress listener that have rows.
pub(super) fn egress_lists(egress: &EgressStatus) -> impl Iterator<Item = List> {
    let columns = &["Tunnels to", "Open", "In all", "Bytes up", "Bytes down", "Listed by"];
    let mut tunnels = list("Tunnels, which are not read", columns, &egress.tunnels, |tunnels| {
        let gate = if tunnels.gate.is_empty() { NONE.to_owned() } else { format!("{}: not limited", tunnels.gate) };
        let size = |size| text(&bytes(usize::try_from(size).unwrap_or(usize::MAX)));
        vec![
            TableCell::Code(tunnels.host.clone()),
            text(&tunnels.open),
            text(&tunnels.total),
            size(tunnels.bytes_up),
            size(tunnels.bytes_down),
            text(&gate),
        ]
    });
    let more = egress.tunnel_hosts.saturating_sub(egress.tunnels.len());
    if more > 0 {
        tunnels.note = format!("And {more} more hosts.");
    }
    let refusals = list("Refused by the egress listener", &["Because of", "Times"], &egress.refusals, |refusals| {
        vec![text(&refusals.why.replace('_', " ")), text(&refusals.count)]
    });
    let columns = &["Handshakes failed for", "Because of", "First client", "Times", "Gate"];
    let handshakes = list("TLS handshakes that failed", columns, &egress.handshakes, |row| {
        vec![
            TableCell::Code(row.host.clone()),
            text(&row.why),
            text(&Some(row.client.as_str()).filter(|client| !client.is_empty()).unwrap_or(NONE)),
            text(&row.count),
            text(&row.gate),
        ]
    });
    [tunnels, refusals, handshakes].into_iter().filter(|list| !list.rows.is_empty())
}

/// Returns the table of the stores of shared buckets.
pub(super) fn store_list(status: &Status) -> List {
    list("Stores of shared buckets", &["Store", "Address", "State"], &status.stores, |store| {
        vec![text(&store.name), TableCell::Code(store.address.clone()), text(&store.summary(status.now_ms))]
    })
}

/// Returns the table of several gates, in this order, each with a link (`#gate` and its index).
pub(super) fn overview(gates: &[&GateStatus], now_ms: u64) -> List {
    let columns = &["Gate", "State", "Waiting", "Failing keys", "Admitted", "Refused", "Upstream answers"];
    let row = |(place, gate): (usize, &&GateStatus)| {
        let state = gate.state(now_ms);
        let rate = |values: &[u64]| format!("{}/s", gate.history.rate(values.last()));
        let unless_shadow = |says: String| text(&if gate.is_shadow() { NONE.to_owned() } else { says });
        let within = |latency: &super::Latency| format!("99% within {}", duration(latency.p99_seconds));
        vec![
            TableCell::Link(format!("#gate{place}"), gate.title()),
            TableCell::State(state.severity.class, state.word),
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

fn waiting(gate: &GateStatus) -> List {
    let columns = &["Flow", "Class", "Calls", "Oldest", "Waits because"];
    let mut list = list("Waiting", columns, &gate.queues, |queue| {
        let flow = if queue.flow.is_empty() { "not shown" } else { &queue.flow };
        vec![
            text(&format!("{flow}{}", if queue.retry { " (retries)" } else { "" })),
            text(&queue.class),
            text(&queue.waiting),
            text(&duration(queue.oldest_seconds)),
            TableCell::Word(gate.meaning(&queue.reason), queue.reason.clone()),
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

fn keys(gate: &GateStatus, now_ms: u64) -> List {
    let columns = &["Key", "Failed", "Last answer", "Next try", "Upstream says"];
    let mut list = list("Failing keys", columns, &gate.keys, |key| {
        let status = key.status.map_or_else(|| "lost".to_owned(), |status| status.to_string());
        vec![
            if key.key.is_empty() { text(&"not shown") } else { TableCell::Code(key.key.clone()) },
            text(&count(key.failures, "time", "times")),
            TableCell::Time(format!("{status}, {}", ago(key.failed_at_ms, now_ms)), key.failed_at_ms),
            future(key.next_at_ms, now_ms),
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

impl FailingKey {
    /// Returns the upstream's own words about the last failure.
    pub fn says(&self) -> Option<String> {
        match (&*self.error, &*self.message) {
            ("", "") => None,
            ("", says) | (says, "") => Some(says.to_owned()),
            (error, message) => Some(format!("{error}: {message}")),
        }
    }
}

impl SharedBucket {
    /// Describes with how many gates a bucket is shared, and its state. `place` is text to insert
    /// after the number.
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

fn buckets(gate: &GateStatus) -> List {
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
            TableCell::Level(format!("{} of {}", number(bucket.level.floor().max(0.0)), bucket.burst), full),
            text(&format!("{}{slowed}", number(bucket.rate))),
        ]
    });
    let slots = gate.slots.max.map(|max| format!("Slots: {} of {max} taken.", gate.slots.used));
    let idle = Some(without_calls(idle.len())).filter(|says| !says.is_empty());
    list.note = slots.into_iter().chain(idle).collect::<Vec<_>>().join(" ");
    list
}

fn connections(gate: &GateStatus) -> List {
    let columns = &["Calls of", "Connections", "Under way", "Room for", "State"];
    list("Upstream connections", columns, &gate.connections, |group| {
        let state = match &group.down {
            Some(why) => TableCell::State("bad", format!("down: {why}")),
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

fn list<T>(heading: &'static str, columns: Columns, items: &[T], row: impl Fn(&T) -> Vec<TableCell>) -> List {
    List { heading, columns, rows: items.iter().map(row).collect(), note: String::new() }
}

fn past(at_ms: u64, now_ms: u64) -> TableCell {
    TableCell::Time(ago(at_ms, now_ms), at_ms)
}

fn future(at_ms: u64, now_ms: u64) -> TableCell {
    TableCell::Time(until(at_ms, now_ms), at_ms)
}

fn text(value: &impl ToString) -> TableCell {
    TableCell::Text(value.to_string())
}

/// The text shown for a missing value.
const NONE: &str = "\u{2013}";
/// A hint shown below the failing keys.
const HEALED: &str = "Once the cause is healed, `tidegate forget --all` has them tried at once.";

impl GateStatus {
    /// Returns the gate's name, with its host if there are several.
    pub(super) fn title(&self) -> String {
        if self.host.is_empty() { self.name.clone() } else { format!("{} {}", self.name, self.host) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(list: &List) -> Vec<Vec<String>> {
        let cell = |cell: &TableCell| match cell {
            TableCell::Text(text) | TableCell::Code(text) | TableCell::Word(_, text) | TableCell::Level(text, _) => {
                text.clone()
            }
            TableCell::Time(text, _) | TableCell::State(_, text) | TableCell::Link(_, text) => text.clone(),
        };
        list.rows.iter().map(|row| row.iter().map(cell).collect()).collect()
    }

    #[test]
    fn classes_without_calls_are_only_counted() {
        let class = |name: &str, calls| Class { name: name.to_owned(), calls, ..Class::default() };
        let bucket = |name: &str| Bucket { name: name.to_owned(), ..Bucket::default() };
        let gate = GateStatus {
            classes: vec![class("ec2", 87), class("s3", 0), class("iam", 0)],
            buckets: ["gate", "class ec2", "class s3"].map(bucket).into(),
            ..GateStatus::default()
        };
        let classes = classes(&gate);
        let buckets = buckets(&gate);
        assert_eq!((rows(&classes).len(), &*classes.note), (1, "And 2 classes without calls."));
        assert_eq!((rows(&buckets).len(), &*buckets.note), (2, "And 1 class without calls."));
        assert!(!gate.summary(0).join(" ").contains("No call has come"), "87 have");
    }

    #[test]
    fn promised_tokens_are_not_there() {
        let shared = SharedBucket { name: "account".to_owned(), members: 2, level: -0.4, ..SharedBucket::default() };
        assert_eq!(shared.says(""), "shared as account with 1 other: 0 there, 0 held");
    }
}
