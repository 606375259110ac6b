//! The status as a page: HTML that works without scripts, loads nothing from other servers, and can
//! be read by eye or by ear.
//!
//! The first question at night is "who is held back, and why", so that comes first: first the
//! problems, then the numbers, then the lists.

mod lists;

use super::{
    Gate, Status, spark,
    text::{add, ago, clock, count, escaped, meaning, number, span, until},
};

/// The path of the style sheet: a file of its own, so that the policy needs no exception for inline
/// styles.
pub const STYLE_PATH: &str = "/status.css";
/// The style sheet.
pub const STYLE: &str = include_str!("page/style.css");
/// The content security policy: the page may load its own style sheet, and nothing else.
pub const POLICY: &str =
    "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Renders the page. With `refresh` it reloads itself every few seconds.
#[must_use]
pub fn page(status: &Status, refresh: bool) -> String {
    let mut out = String::with_capacity(16 * 1024);
    let title = escaped(&title(status));
    add(
        &mut out,
        format_args!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"stylesheet\" href=\"{STYLE_PATH}\">\n<link rel=\"icon\" href=\"data:,\">\n"
        ),
    );
    if refresh {
        out.push_str("<meta http-equiv=\"refresh\" content=\"5\">\n");
    }
    out.push_str("</head>\n<body>\n<a class=\"skip\" href=\"#gates\">Skip to the gates</a>\n");
    header(&mut out, status, refresh);
    out.push_str("<main id=\"gates\">\n");
    notices(&mut out, status);
    for (place, gate) in status.gates.iter().enumerate() {
        self::gate(&mut out, gate, status, place);
    }
    out.push_str("</main>\n");
    footer(&mut out, status);
    out.push_str("</body>\n</html>\n");
    out
}

/// Returns the most important facts, for the list of open tabs.
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

fn header(out: &mut String, status: &Status, refresh: bool) {
    let ready = match status.waiting_for.as_slice() {
        [] => "ready".to_owned(),
        waiting => escaped(&format!("not ready: waiting for {}", waiting.join(", "))),
    };
    let link = if refresh {
        "refreshes itself; <a href=\"?refresh=off\">hold it still</a>"
    } else {
        "held still; <a href=\"?\">let it refresh</a>"
    };
    add(
        out,
        format_args!(
            "<header>\n<h1>tidegate</h1>\n<p>{} <span>up {}</span> <span>{ready}</span> <span>at {}</span> <span>{link}</span></p>\n</header>\n",
            escaped(&status.version),
            span(status.uptime_seconds),
            clock(status.now_ms),
        ),
    );
}

/// Writes the notices that every reader must see first.
fn notices(out: &mut String, status: &Status) {
    for gate in &status.gates {
        if let Some(bypass) = &gate.bypass {
            add(
                out,
                format_args!(
                    "<p class=\"notice bad\" role=\"status\"><strong>Bypass.</strong> Gate {} lets everything through; that ends by itself {} \
                 ({}), or with <code>tidegate bypass off</code>. {} so far.</p>\n",
                    escaped(&gate.name),
                    until(bypass.until_ms, status.now_ms),
                    clock(bypass.until_ms),
                    count(gate.bypassed, "call", "calls"),
                ),
            );
        }
    }
    if let Some(reload) = status.config.last_reload.as_ref().filter(|reload| !reload.reasons.is_empty()) {
        let what = if reload.result == "restart_needed" { "needs a restart" } else { "cannot work" };
        add(
            out,
            format_args!(
                "<div class=\"notice bad\" role=\"status\"><p><strong>The new configuration {what}.</strong> The old one is in force. \
             It was judged {}:</p>\n<ul>\n",
                ago(reload.at_ms, status.now_ms),
            ),
        );
        for reason in &reload.reasons {
            add(out, format_args!("<li><code>{}</code></li>\n", escaped(reason)));
        }
        out.push_str("</ul></div>\n");
    }
}

fn gate(out: &mut String, gate: &Gate, status: &Status, place: usize) {
    let (word, class) = match gate {
        _ if gate.bypass.is_some() => ("bypassed", "bad"),
        _ if gate.is_cut_off() => ("cut off", "bad"),
        _ if gate.rejected_lately(status.now_ms).any(|rejection| rejection.by == "credentials") => {
            ("unauthorized", "bad")
        }
        _ if gate.pauses.iter().any(|pause| pause.who == "gate") => ("paused", "warn"),
        _ if gate.waiting > 0 => ("holding back", "warn"),
        _ if gate.keys_failing > 0 => ("keys failing", "warn"),
        _ => ("open", "good"),
    };
    let listen: Vec<_> = gate.listen.iter().map(|listen| format!("<code>{}</code>", escaped(listen))).collect();
    add(
        out,
        format_args!(
            "<section class=\"gate\" aria-labelledby=\"gate{place}\">\n<h2 id=\"gate{place}\">{} <span class=\"state {class}\">{word}</span></h2>\n\
         <p class=\"where\">{} <span class=\"to\">to</span> <code>{}</code></p>\n<ul class=\"why\">{}</ul>\n",
            escaped(&gate.name),
            listen.join(" "),
            escaped(&gate.upstream),
            why(gate, status.now_ms).iter().map(|says| format!("<li>{}</li>", escaped(says))).collect::<String>(),
        ),
    );
    figures(out, gate);
    lists::all(out, gate, status);
    out.push_str("</section>\n");
}

/// Describes the state of a gate in a sentence or two.
pub(super) fn why(gate: &Gate, now_ms: u64) -> Vec<String> {
    let mut says = gate.remarks(now_ms);
    says.extend(waits(gate));
    if gate.held > 0 {
        says.push(format!("{} by failing keys.", count(whole(gate.held), "call is held", "calls are held")));
    }
    if let Some(pause) = gate.pauses.iter().max_by_key(|pause| pause.until_ms) {
        says.push(format!("The upstream asked for a pause that ends {}.", until(pause.until_ms, now_ms)));
    }
    if gate.keys_failing > 0 {
        let next = gate.keys.iter().find(|key| key.next_at_ms > now_ms);
        let next =
            next.map(|key| format!("; the next may be tried {}", until(key.next_at_ms, now_ms))).unwrap_or_default();
        says.push(format!(
            "{} off{}{next}.",
            count(whole(gate.keys_failing), "key backs", "keys back"),
            last_answers(gate),
        ));
    }
    if says.is_empty() {
        says.push("Nothing waits and nothing fails.".to_owned());
    }
    says
}

/// Describes what calls wait for, the most common reason first, and the flow of most of them, if
/// there is one.
fn waits(gate: &Gate) -> Vec<String> {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for queue in &gate.queues {
        match reasons.iter_mut().find(|(reason, _)| *reason == queue.reason) {
            Some((_, waiting)) => *waiting += queue.waiting,
            None => reasons.push((&queue.reason, queue.waiting)),
        }
    }
    reasons.sort_by_key(|(_, waiting)| std::cmp::Reverse(*waiting));
    let sentence = |(reason, waiting): &(&str, usize)| {
        let queues = || gate.queues.iter().filter(|queue| queue.reason == *reason);
        let longest = queues().map(|queue| queue.oldest_seconds).fold(0.0, f64::max);
        let noisy = queues().max_by_key(|queue| queue.waiting).filter(|queue| !queue.flow.is_empty());
        let who = noisy.filter(|queue| queue.waiting * 2 > *waiting).map(|queue| match queue.waiting {
            all if all == *waiting => format!("; all of the flow {}", queue.flow),
            most => format!("; {most} of them of the flow {}", queue.flow),
        });
        format!(
            "{}, the longest for {}: {}{}.",
            count(whole(*waiting), "call waits", "calls wait"),
            span(longest),
            meaning(reason),
            who.unwrap_or_default(),
        )
    };
    reasons.iter().map(sentence).collect()
}

/// Returns the last answers to the listed failing keys: the status is where a repair begins.
fn last_answers(gate: &Gate) -> String {
    let mut answers: Vec<(Option<u16>, usize)> = Vec::new();
    for key in &gate.keys {
        match answers.iter_mut().find(|(status, _)| *status == key.status) {
            Some((_, count)) => *count += 1,
            None => answers.push((key.status, 1)),
        }
    }
    answers.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let word = |status: Option<u16>| status.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
    match answers.as_slice() {
        [] => String::new(),
        [(status, _)] => format!(" (last answer {})", word(*status)),
        several => {
            let each = several.iter().take(3).map(|(status, count)| format!("{count} with {}", word(*status)));
            format!(" ({})", each.collect::<Vec<_>>().join(", "))
        }
    }
}

fn whole(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Writes three numbers with their last ten minutes.
fn figures(out: &mut String, gate: &Gate) {
    let history = &gate.history;
    let step = f64::from(history.step_seconds.max(1));
    #[expect(clippy::cast_precision_loss, reason = "calls of a few seconds are exact in a double")]
    let rate = |value: Option<&u64>| number(value.copied().unwrap_or_default() as f64 / step);
    out.push_str("<div class=\"figures\">\n");
    let rates =
        [("Admitted", &history.admitted, gate.admitted, "calm"), ("Refused", &history.refused, gate.refused, "alarm")];
    let waiting = format!("{} now", gate.waiting);
    for (name, values, total, class) in rates {
        let (now, most) = (rate(values.last()), rate(values.iter().max()));
        let says = format!("{name} calls in the last ten minutes: {now} a second now, {most} at most");
        figure(
            out,
            name,
            class,
            &format!("{now}<small>/s</small>"),
            &format!("{total} since the start"),
            values,
            &says,
        );
        if name == "Admitted" {
            let most = history.waiting.iter().copied().max().unwrap_or_default().max(whole(gate.waiting));
            let says = format!("Waiting calls in the last ten minutes: {waiting}, {most} at most");
            let more = format!("{most} at most in ten minutes");
            figure(out, "Waiting", "busy", &gate.waiting.to_string(), &more, &history.waiting, &says);
        }
    }
    out.push_str("</div>\n");
}

fn figure(out: &mut String, name: &str, class: &str, value: &str, more: &str, values: &[u64], says: &str) {
    add(
        out,
        format_args!(
            "<div class=\"figure {class}\"><h3>{name}</h3><p class=\"value\">{value}</p><p class=\"more\">{more}</p>{}</div>\n",
            spark::svg(values, POINTS, says),
        ),
    );
}

fn footer(out: &mut String, status: &Status) {
    let reload = status.config.last_reload.as_ref().map_or_else(
        || "not reloaded since the start".to_owned(),
        |reload| format!("last reload {}: {}", ago(reload.at_ms, status.now_ms), reload.result.replace('_', " ")),
    );
    let names = if status.names_shown {
        ""
    } else {
        "<p>Names of objects are not shown here: see <code>admin.show_names</code>.</p>\n"
    };
    add(
        out,
        format_args!(
            "<footer>\n<p>Configuration <code>{}</code>, in force for {}; {}.</p>\n{names}\
         <p>The same as JSON: <code>curl -H 'Accept: application/json' \u{2026}/status</code></p>\n</footer>\n",
            escaped(&status.config.hash),
            span(seconds_since(status.config.since_ms, status.now_ms)),
            escaped(&reload),
        ),
    );
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of a process's life are exact in a double")]
fn seconds_since(then_ms: u64, now_ms: u64) -> f64 {
    now_ms.saturating_sub(then_ms) as f64 / 1000.0
}

/// The steps of ten minutes.
const POINTS: usize = 120;

#[cfg(test)]
mod tests;
