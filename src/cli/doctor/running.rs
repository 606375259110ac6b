//! Checks the running process, and the state of its gates.

use super::Finding;
use crate::cli::running;
use crate::spec::Settings;
use crate::status::Status;
use crate::status::text::duration;

/// Returns the status of the process, and findings about it and its listeners.
pub(super) async fn findings(settings: &Settings) -> (Option<Status>, Vec<Finding>) {
    let status = running::status(settings).await;
    let mut findings = vec![match &status {
        Ok((at, status)) => {
            Finding::fine("process", format!("answers at {at}, up {}", duration(status.uptime_seconds)))
        }
        Err(error) => {
            let advice = "start it with tidegate run and this configuration, and look at its log";
            Finding::wrong("process", format!("{error:#}"), advice)
        }
    }];
    for gate in settings.gates.values() {
        for listen in &gate.listen {
            let about = format!("gate {}", gate.name);
            findings.push(Finding::of_listener(&about, listen, &format!("gates.{}.listen", gate.name)).await);
        }
    }
    let status = status.ok().map(|(_, status)| status);
    if let Some(status) = &status {
        findings.extend(status.reload_fact().map(|fact| Finding::of_fact("reload", fact)));
        for gate in &status.gates {
            let about = format!("gate {}", gate.name);
            let facts = gate.facts(status.now_ms).into_iter().filter(|fact| !fact.remedy.is_empty());
            findings.extend(facts.map(|fact| Finding::of_fact(&about, fact)));
        }
    }
    (status, findings)
}
