//! `tidegate explain`: shows what a call would meet, which line of the configuration says so, and
//! what would happen to the call now.

mod limits;

use std::hash::RandomState;

use clap::Args;
use http::{HeaderMap, Method, Uri};

use super::{Configured, Failure, running, show};
use crate::{
    admin::control::Ask,
    app::operations,
    classify::{Classified, Kind},
    config::{Loaded, settings::Gate},
    status::{
        Explained,
        text::{meaning, plain, span},
    },
};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate explain PATCH /apis/apps/v1/namespaces/prod/deployments/web/status
  tidegate explain POST /graphql --gate github --header 'X-Source: ci'

A running gate with this configuration is asked what would happen now.";

/// The call to explain.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    configured: Configured,
    /// Its method
    method: String,
    /// Its path, with its query if it has one
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
    let loaded = options.configured.load()?;
    let agent = options.user_agent.iter().map(|agent| ("user-agent".to_owned(), agent.clone()));
    let ask = Ask {
        gate: options.gate.clone(),
        method: options.method.clone(),
        path: options.path.clone(),
        headers: options.header.iter().cloned().chain(agent).collect(),
    };
    let (method, uri, headers) = operations::request(&ask).map_err(anyhow::Error::msg)?;
    let gates: Vec<_> = loaded
        .settings
        .gates
        .values()
        .filter(|gate| ask.gate.as_deref().is_none_or(|name| *gate.name == *name))
        .collect();
    if gates.is_empty() {
        let all: Vec<_> = loaded.settings.gates.keys().map(|name| &**name).collect();
        let name = ask.gate.unwrap_or_default();
        return Err(anyhow::anyhow!("there is no gate {name:?}; there is: {}", all.join(", ")).into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let now = runtime.block_on(ask_now(&loaded, &ask));
    let mut text = format!("{method} {}\n", plain(&ask.path));
    for gate in gates {
        text.push('\n');
        text.push_str(&explained(&loaded, gate, (&method, &uri, &headers), &now));
    }
    show::text(&text)?;
    Ok(())
}

/// Returns what the running process says, or the reason why it says nothing.
async fn ask_now(loaded: &Loaded, ask: &Ask) -> Result<Vec<Explained>, String> {
    let mut why = "there is neither an admin port nor a control socket".to_owned();
    for at in running::places(&loaded.settings) {
        match at.order("/explain", ask).await {
            Ok(explained) => return Ok(explained),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

/// Writes the part of one gate.
fn explained(
    loaded: &Loaded,
    gate: &Gate,
    (method, uri, headers): (&Method, &Uri, &HeaderMap),
    now: &Result<Vec<Explained>, String>,
) -> String {
    let call = gate.rules.classify(method, uri, headers, &RandomState::new());
    let mut rows = vec![("gate", format!("{} (kind {})", gate.name, gate.kind), String::new())];
    rows.push(("read as", read_as(&call, gate.kind), String::new()));
    rows.extend(limits::rows(loaded, gate, &call, headers));
    rows.push(("now", what_now(gate, now), String::new()));
    let running = now.iter().flatten().filter(|explained| *explained.gate == *gate.name);
    rows.extend(running.flat_map(|explained| &explained.notes).map(|note| ("but", note.clone(), String::new())));
    let width = rows.iter().map(|(_, says, from)| if from.is_empty() { 0 } else { says.chars().count() }).max();
    let width = width.unwrap_or_default().min(64);
    let line = |(what, says, from): &(&str, String, String)| {
        let from = if from.is_empty() { String::new() } else { format!("  {from}") };
        format!("  {what:<13} {}\n", format!("{:<width$}{}", plain(says), plain(&from)).trim_end())
    };
    rows.iter().map(line).collect()
}

/// Describes the call as the gate reads it.
fn read_as(call: &Classified, kind: Kind) -> String {
    let read = &call.call;
    let verb = read.verb().word();
    if !read.is_resource() {
        let doubt = match read.is_ambiguous() {
            true if kind == Kind::Http => {
                "; others might read this path differently: the strictest class of its method has it"
            }
            true => "; others might read this path differently: the strictest class has it",
            false => "",
        };
        return format!("{verb} {}{doubt}", read.path());
    }
    let mut text = format!("{verb} {}", read.resource());
    for (before, part) in [
        (".", read.group()),
        (", namespace ", read.namespace()),
        (", name ", read.name()),
        (", subresource ", read.subresource()),
    ] {
        if !part.is_empty() {
            text.push_str(before);
            text.push_str(part);
        }
    }
    text
}

/// Describes what would happen to the call now.
fn what_now(gate: &Gate, now: &Result<Vec<Explained>, String>) -> String {
    let explained = match now {
        Ok(explained) => explained,
        Err(why) => return format!("not known: {why}"),
    };
    let Some(explained) = explained.iter().find(|explained| *explained.gate == *gate.name) else {
        return "not known: the running tidegate has no such gate; does it run with this configuration?".to_owned();
    };
    let meaning = explained.reason.as_deref().map(meaning).unwrap_or_default();
    let reason = explained.reason.as_deref().unwrap_or_default();
    let mut says = match explained.now.as_str() {
        "goes" => "it would go at once".to_owned(),
        "unconnected" => "it would be answered 502, unless a connection can be made by then".to_owned(),
        "waits" => format!("it would wait for {} or more ({reason}: {meaning})", span(explained.seconds)),
        _ => format!("it would be refused ({reason}: {meaning}); to be tried again in {}", span(explained.seconds)),
    };
    if let Some(key) = &explained.failing {
        let status = key.status.map_or_else(|| "was lost".to_owned(), |status| format!("got {status}"));
        says.push_str(&format!("; its key failed {} times in a row and last {status}", key.failures));
    }
    says
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected a name, a colon and a value, such as 'X-Source: ci'")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
