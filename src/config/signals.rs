//! Checks what an upstream may ask for.

use super::{
    field::{Field, Section},
    file,
    leaf::{List, one_of},
    path::Path,
    presets::Numbers,
    problems::{Report, did_you_mean},
    settings::Throttling,
};
use crate::{
    api::{Scope, Signal, Signals},
    classify::Kind,
};

/// The signals of a gate.
pub(super) fn throttling(
    section: &Section<file::Signals>,
    at: &Path,
    kind: Kind,
    scope: Scope,
    numbers: &Numbers,
    report: &mut Report<'_>,
) -> Throttling {
    let keys = section.open(at, report);
    let honour = honour(&keys.honour, &at.key("honour"), report);
    let honour = honour.unwrap_or_else(|| numbers.honour.iter().copied().collect());
    let reserve = reserve(&keys.reserve, &at.key("reserve"), honour, scope, report);
    Throttling {
        kubernetes: kind == Kind::Kubernetes,
        honour,
        scope,
        max_pause: keys.max_pause.get(&at.key("max_pause"), report).map_or(numbers.max_pause, |span| span.0),
        reserve: reserve.unwrap_or(numbers.reserve),
    }
}

fn honour(field: &Field<List>, at: &Path, report: &mut Report<'_>) -> Option<Signals> {
    let words: Vec<&str> = Signal::ALL.iter().map(|signal| signal.word()).collect();
    let texts = field.get(at, report)?.0;
    let mut honoured = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        match Signal::ALL.into_iter().find(|signal| signal.word() == text) {
            Some(signal) => honoured.push(signal),
            None => {
                let near = did_you_mean(text, &words);
                report.problem(&at.index(index), format!("is {text:?}, expected {}{near}", one_of(&words)));
            }
        }
    }
    Some(honoured.into_iter().collect())
}

/// A reserve that nothing could keep is an error, not a promise.
fn reserve(field: &Field<f64>, at: &Path, honour: Signals, scope: Scope, report: &mut Report<'_>) -> Option<f64> {
    let reserve = field.get(at, report)?;
    if !(0.0..1.0).contains(&reserve) {
        report.problem(at, format!("is {reserve:?}, expected a fraction from 0 to less than 1"));
        return None;
    }
    if reserve > 0.0 && scope == Scope::Key {
        report.problem(at, "has no effect with scope = \"key\": a quota is everyone's, expected scope \"class\", \"credential\" or \"gate\"");
    } else if reserve > 0.0 && !honour.iter().any(Signal::tells_quota) {
        let telling: Vec<&str> =
            Signal::ALL.into_iter().filter(|signal| signal.tells_quota()).map(Signal::word).collect();
        report.problem(
            at,
            format!("has no effect: none of the signals in `honour` tells of a quota, expected {}", one_of(&telling)),
        );
    }
    Some(reserve)
}
