//! A configuration in a few lines: rate, leases, and what is refused at once.

use crate::api::duration::write;
use crate::cli::explain::{backoff, size};
use crate::limit::policy::{ClassPolicy, Lane};
use crate::spec::{Gate, Settings};
use crate::status::text::{number, printable};

/// The most gates that are summarized in full.
const FEW: usize = 2;

/// Returns the summary as TOML comments, so that the whole output is a configuration.
pub(super) fn summary(settings: &Settings) -> String {
    let is_short = settings.gates.len() > FEW;
    let lines = settings.gates.values().flat_map(|gate| lines(gate, is_short));
    let lines: String = lines.map(|line| format!("# {}\n", printable(&line))).collect();
    if lines.is_empty() { lines } else { format!("{lines}\n") }
}

fn lines(gate: &Gate, is_short: bool) -> Vec<String> {
    let listen: Vec<_> = gate.listen.iter().map(ToString::to_string).collect();
    let at = if listen.is_empty() { "behind the egress listener".to_owned() } else { listen.join(" ") };
    let shadow = if gate.shadow { "; shadow: nothing is held" } else { "" };
    let title = format!("gate {} ({}), {at}{shadow}", gate.name, gate.kind);
    if is_short {
        return vec![format!("{title}: {}", rate(gate))];
    }
    let mut lines = vec![title, row("rate", &rate(gate))];
    let exempt = gate.policy.classes.iter().filter(|class| class.lane == Lane::Exempt).map(|class| &*class.name);
    let exempt = exempt.collect::<Vec<_>>().join(", ");
    lines.push(row("at once", if exempt.is_empty() { "nothing: no class is exempt" } else { &exempt }));
    let shadow: Vec<&str> = gate.policy.classes.iter().filter(|class| class.shadow).map(|class| &*class.name).collect();
    let is_partly = !gate.shadow && !shadow.is_empty();
    lines.extend(is_partly.then(|| row("shadow", &format!("{}: nothing is held", shadow.join(", ")))));
    lines.extend(refuses(gate).map(|says| row("refuses", &says)));
    lines
}

fn row(name: &str, says: &str) -> String {
    format!("  {name:<8} {says}")
}

/// Describes the common rate of all calls, how far throttling may lower it, and how many classes
/// have a rate of their own.
fn rate(gate: &Gate) -> String {
    let bucket = gate.policy.bucket.as_ref();
    let size = bucket.map_or_else(|| "none for all calls together".to_owned(), size);
    let adapts = bucket.and_then(|bucket| bucket.adapt);
    let adapts = adapts.map(|adapt| format!("; down to {}/s while the upstream throttles", number(adapt.floor)));
    let own = match gate.policy.classes.iter().filter(|class| class.bucket.is_some()).count() {
        0 => String::new(),
        1 => "; 1 class has a rate of its own".to_owned(),
        classes => format!("; {classes} classes have a rate of their own"),
    };
    format!("{size}{}{own}", adapts.unwrap_or_default())
}

/// Describes which calls the gate refuses at once, or after a short wait.
fn refuses(gate: &Gate) -> impl Iterator<Item = String> {
    let queue = gate.policy.queue;
    let healthy = match queue.max_wait.is_zero() {
        true => "at once, whatever cannot leave: queue.max_wait is 0s".to_owned(),
        false => format!("a call that is certain to wait for more than {}, at once", write(queue.max_wait)),
    };
    let default = gate.policy.classes.iter().find(|class| &*class.name == "default");
    let failing = default.map(|class: &ClassPolicy| match backoff(class).as_str() {
        "off" => "no retry of what has failed: backoff is off".to_owned(),
        says => format!("a retry of what has failed that comes too soon: {says}"),
    });
    [Some(healthy), failing].into_iter().flatten()
}
