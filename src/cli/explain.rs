//! `tidegate explain`: shows the limits of a call, with the lines of the configuration that set
//! them, and what would happen to the call now.

mod egress;
mod limits;

use anyhow::anyhow;
use clap::Args;
use http::HeaderMap;

use self::egress::Way;
use self::limits::ExplainedCall;
pub(super) use self::limits::{backoff, size};
use super::running::{self, block_on};
use super::{ConfigOption, Failure, show};
use crate::admin::control::Ask;
use crate::app::operations;
use crate::classify::{ApiKind, ClassifiedCall, Salt};
use crate::config::Configuration;
use crate::spec::{ClusterPath, Gate};
use crate::status::Explanation;
use crate::status::text::{count, duration, meaning, printable};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate explain PATCH /apis/apps/v1/namespaces/prod/deployments/web/status
  tidegate explain POST /graphql --gate github --header 'X-Source: ci'
  tidegate explain CONNECT example.org:443
  tidegate explain GET http://ec2.eu-central-1.amazonaws.com/

A running gate with this configuration is asked what would happen now.";

/// The call to explain.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    configured: ConfigOption,
    /// Its method
    method: String,
    /// Its path with its query; at the egress listener a URL, or HOST:PORT of a CONNECT
    path: String,
    /// Its User-Agent
    #[arg(long, value_name = "TEXT")]
    user_agent: Option<String>,
    /// A header of it; may be given several times
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Only at this gate
    #[arg(long, value_name = "NAME")]
    gate: Option<String>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let loaded = options.configured.sources().load()?;
    let agent = options.user_agent.iter().map(|agent| ("user-agent".to_owned(), agent.clone()));
    let mut ask = Ask {
        gate: options.gate.clone(),
        method: options.method.clone(),
        path: options.path.clone(),
        headers: options.header.iter().cloned().chain(agent).collect(),
    };
    let mut way = String::new();
    match egress::way(&loaded, &ask.method, &ask.path)? {
        None => {}
        Some(Way::Past(says)) => {
            let asked = printable(&format!("{} {}", ask.method, ask.path));
            let says = printable(&says);
            return Ok(show::text(&format!("{asked}\n\n  egress        {says}\n"))?);
        }
        Some(Way::Gate { name, says, path, host }) => {
            way = format!("\n  egress        {}\n", printable(&says));
            (ask.gate, ask.path) = (Some(name), path);
            ask.headers.push(("host".to_owned(), host));
        }
    }
    let (method, uri, headers) = operations::request(&ask).map_err(anyhow::Error::msg)?;
    let all = &loaded.settings.gates;
    let gates: Vec<_> =
        all.values().filter(|gate| ask.gate.as_deref().is_none_or(|name| *gate.name == *name)).collect();
    if gates.is_empty() {
        let name = ask.gate.unwrap_or_default();
        return Err(anyhow!(operations::no_such_gate(&name, all.keys().map(|name| &**name))).into());
    }
    let now = block_on(running::ask(&loaded.settings, async |at| at.order("/explain", &ask).await))?;
    let now = now.map(|(_, explained)| explained).map_err(|error| error.to_string());
    let mut text = format!("{method} {}\n{way}", printable(&options.path));
    for gate in gates {
        let mut gate = gate;
        let mut uri = uri.clone();
        if gate.has_clusters() {
            let Some(ClusterPath { name, below }) = ClusterPath::of(&ask.path) else { continue };
            let limits = loaded.settings.clusters.iter().find(|limits| limits.are_for(&gate.name, name));
            gate = limits.map_or(gate, |limits| &limits.gate);
            uri = below.parse().map_err(|error| anyhow!("{below:?} is not a path: {error}"))?;
        }
        let call = gate.rules.classify(&method, &uri, &headers, &Salt::random());
        text.push_str(&format!("\n{}", explained(&loaded, gate, &call, &headers, &now)));
    }
    Ok(show::text(&text)?)
}

/// Returns the explanation for one gate, as text.
fn explained(
    loaded: &Configuration,
    gate: &Gate,
    call: &ClassifiedCall,
    headers: &HeaderMap,
    now: &Result<Vec<Explanation>, String>,
) -> String {
    let mut rows = Rows::default();
    rows.add("gate", format!("{} (kind {})", gate.name, gate.kind), "");
    rows.add("read as", read_as(call, gate.kind), "");
    if let Some(words) = call.words.as_deref() {
        rows.add("means", words.to_string(), "");
    }
    let explained = now.iter().flatten().find(|explained| *explained.gate == *gate.name);
    let shared = explained.map_or(&[][..], |explained| &explained.shared);
    limits::add(&mut rows, &ExplainedCall { loaded, gate, call, headers, now: shared });
    rows.add("now", what_now(gate, now), "");
    for explained in now.iter().flatten().filter(|explained| *explained.gate == *gate.name) {
        if let Some(candidate) = &explained.candidate {
            let says = decided(&candidate.now, &candidate.reason, candidate.seconds);
            rows.add("candidate", says, "");
        }
        explained.notes.iter().for_each(|note| rows.add("but", note, ""));
    }
    rows.text()
}

/// Describes how the gate reads the call: verb, resource and name, or its path.
fn read_as(call: &ClassifiedCall, kind: ApiKind) -> String {
    let read = &call.call;
    let verb = read.verb;
    if !read.is_resource {
        let of_method = if kind == ApiKind::Http { " of its method" } else { "" };
        let doubt = format!("; others might read this path differently: the strictest class{of_method} has it");
        return format!("{verb} {}{}", read.path(), if read.is_ambiguous { &doubt } else { "" });
    }
    let mut text = format!("{verb} {}", read.resource());
    for (before, part) in [
        (".", read.group()),
        (", namespace ", read.namespace()),
        (", name ", read.name()),
        (", subresource ", read.subresource()),
    ] {
        if !part.is_empty() {
            text.extend([before, part]);
        }
    }
    text
}

/// Describes what would happen to the call now.
fn what_now(gate: &Gate, now: &Result<Vec<Explanation>, String>) -> String {
    let explained = match now {
        Ok(explained) => explained,
        Err(why) => return format!("not known: {why}"),
    };
    let Some(explained) = explained.iter().find(|explained| *explained.gate == *gate.name) else {
        return "not known: the running tidegate has no such gate; does it run with this configuration?".to_owned();
    };
    let reason = explained.reason.as_deref().unwrap_or_default();
    let seconds = duration(explained.seconds);
    let mut says = match explained.now.as_str() {
        "waits" if explained.shadow => {
            format!("{SHADOW}; it would have waited for {seconds} or more ({reason})")
        }
        "refused" if explained.shadow => {
            format!("{SHADOW}; it would have been refused ({reason}), to be tried again in {seconds}")
        }
        "unconnected" => {
            "it would be answered 502, unless the upstream can be reached again before it is sent".to_owned()
        }
        now => decided(now, reason, explained.seconds),
    };
    if let Some(key) = &explained.failing {
        let status = key.status.map_or_else(|| "was lost".to_owned(), |status| format!("got {status}"));
        let words = key.says().map(|says| format!(" ({says})")).unwrap_or_default();
        let failed = count(key.failures, "time", "times");
        says.push_str(&format!("; its key failed {failed} in a row and last {status}{words}"));
    }
    says
}

/// Describes what the limits would do with the call.
fn decided(now: &str, reason: &str, seconds: f64) -> String {
    let meaning = meaning(reason);
    let seconds = duration(seconds);
    match now {
        "goes" => "it would go at once".to_owned(),
        "waits" => format!("it would wait for {seconds} or more ({reason}: {meaning})"),
        _ => format!("it would be refused ({reason}: {meaning}); to be tried again in {seconds}"),
    }
}

const SHADOW: &str = "it would go at once (shadow: nothing is held)";

/// The lines of the explanation for one gate.
#[derive(Default)]
struct Rows(Vec<ExplainRow>);

/// A line: a name, a value, and the place in the configuration that sets the value.
struct ExplainRow {
    name: &'static str,
    value: String,
    from: String,
}

impl Rows {
    fn add(&mut self, name: &'static str, value: impl AsRef<str>, from: impl AsRef<str>) {
        self.0.push(ExplainRow { name, value: printable(value.as_ref()), from: printable(from.as_ref()) });
    }

    fn text(&self) -> String {
        let placed = self.0.iter().filter(|row| !row.from.is_empty());
        let width = placed.map(|row| row.value.chars().count()).max().unwrap_or_default().min(64);
        let line = |ExplainRow { name, value, from }: &ExplainRow| {
            format!("  {name:<13} {}\n", format!("{value:<width$}  {from}").trim_end())
        };
        self.0.iter().map(line).collect()
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected a name, a colon and a value, such as 'X-Source: ci'")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
