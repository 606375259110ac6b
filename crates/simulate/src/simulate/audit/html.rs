//! The findings of an audit as one HTML page: without scripts, and without anything from elsewhere.

use std::time::Duration;

use super::report::{self, COLUMNS, LOUDEST, MOST_LOOPS};
use super::{Audit, CallerTotals, FoundLoop, PeakSeries};
use crate::chart::thousands;
use crate::simulate::replay;
use crate::status::page::{STYLE, bar, grid};
use crate::status::spark;
use crate::status::text::{count, duration, escaped};

/// Renders the page.
pub fn page(found: &Audit) -> String {
    let calls: u64 = found.callers.iter().map(|caller| caller.calls).sum();
    let sections = [
        section("Callers", &[over_time(found), callers(found)]),
        section("Loops", &[loops(found), list(&report::more_loops(found))]),
        section("The worst second", &[list(&[report::worst(found)]), worst(found)]),
        section("Leases renewed late", &[list(&report::leases(found))]),
        section("What a gate would have done", &[list(&report::limits(found))]),
        section("What was not read", &[list(&replay::report::remarks(&found.read))]),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{} \u{b7} tidegate audit</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>\n{STYLE}{MORE_STYLE}</style>\n</head>\n\
         <body>\n<a class=\"skip\" href=\"#findings\">Skip to the findings</a>\n\
         <header>\n<h1>tidegate audit</h1>\n<p>{} calls of {} <span>{}</span> <span>from {}</span></p>\n</header>\n\
         <main id=\"findings\" tabindex=\"-1\">\n{}</main>\n\
         <footer>\n<p>The same as JSON: <code>tidegate audit LOG --json FILE</code></p>\n</footer>\n</body>\n</html>\n",
        count(found.loops.len(), "loop", "loops"),
        thousands(calls),
        count(found.callers.len(), "caller", "callers"),
        duration(found.read.length.as_secs_f64()),
        report::time(found, Duration::ZERO),
        sections.concat(),
    )
}

/// Renders a part of the page, if it has content.
fn section(heading: &str, content: &[String]) -> String {
    match content.concat() {
        content if content.is_empty() => content,
        content => format!("<section class=\"gate calm\">\n<h2>{heading}</h2>\n{content}</section>\n"),
    }
}

fn list(sentences: &[String]) -> String {
    if sentences.is_empty() {
        return String::new();
    }
    let items: String = sentences.iter().map(|says| format!("<li>{}</li>\n", escaped(says))).collect();
    format!("<ul class=\"why\">\n{items}</ul>\n")
}

/// Draws the calls of all callers over time.
fn over_time(found: &Audit) -> String {
    let from = report::time(found, Duration::ZERO);
    let to = report::time(found, found.read.length);
    let most = thousands(found.worst.calls);
    format!(
        "<div class=\"all\">{}<p class=\"axis\"><span>{from}</span> <span>all callers, at most {most} calls in a second</span> \
         <span>{to}</span></p></div>\n",
        spark(&found.over_time, &format!("All callers, from {from} to {to}")),
    )
}

/// Draws the most calls in one second over time.
fn spark(over_time: &PeakSeries, whose: &str) -> String {
    let peaks = over_time.peaks();
    let most = peaks.iter().max().copied().unwrap_or_default();
    let steps = count(over_time.step(), "second", "seconds");
    let says = format!("{whose}: the most calls in one second of each {steps}, at most {}", thousands(most));
    spark::svg(&peaks, peaks.len(), &says)
}

fn callers(found: &Audit) -> String {
    let row = |caller: &CallerTotals| {
        let picture = spark(&caller.over_time, &caller.name);
        let numbers = report::cells(caller, found);
        [escaped(&caller.name)].into_iter().chain(numbers).chain([picture]).collect::<Vec<_>>()
    };
    let caption = format!(
        "The loudest of {}; peak: the most calls in one second, without leases and watches. Each picture reaches up to its peak.",
        count(found.callers.len(), "caller", "callers")
    );
    let columns = [&["caller"], &COLUMNS[..], &["over time"]].concat();
    table("callers", &caption, &columns, found.callers.iter().take(LOUDEST).map(row))
}

fn loops(found: &Audit) -> String {
    let most = found.loops.iter().map(|one| one.calls).max().unwrap_or_default();
    let row = |one: &FoundLoop| {
        let vain = match one.judged {
            0 => "not known".to_owned(),
            judged => measured(&report::percent(one.in_vain, judged), one.in_vain, judged),
        };
        vec![escaped(&report::says(one)), measured(&thousands(one.calls), one.calls, most), vain]
    };
    let rows = found.loops.iter().take(MOST_LOOPS).map(row);
    table("loops", "Calls repeated in vain, the most first", &["loop", "calls", "in vain"], rows)
}

fn worst(found: &Audit) -> String {
    let all = found.worst.calls;
    let row = |(name, calls): &(String, u64)| vec![escaped(name), measured(&thousands(*calls), *calls, all)];
    table("worst", "Who called most in this second", &["caller", "calls"], found.worst.callers.iter().map(row))
}

/// Renders a number with a bar for its part of a whole.
fn measured(number: &str, part: u64, whole: u64) -> String {
    format!("{} {number}", bar("full", part as f64 / whole.max(1) as f64))
}

/// Renders a table, if it has rows. The cells are HTML; the first of a row is its heading.
fn table(id: &str, caption: &str, columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return String::new();
    }
    let grid = grid(columns, rows);
    format!(
        "<table role=\"table\" aria-labelledby=\"{id}\">\n<caption id=\"{id}\">{caption}</caption>\n{grid}</table>\n"
    )
}

/// Additions to the style sheet of the status page.
const MORE_STYLE: &str = include_str!("page.css");
