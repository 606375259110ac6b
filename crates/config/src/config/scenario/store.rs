//! Reads the simulated store of a scenario, with its outages, data losses and clock jumps.

use std::time::Duration;

use super::{ClockJump, Jump, Loss, Outage, StoreModel};
use crate::config::cursor::Cursor;

pub(super) fn store(at: &Cursor<'_>, gates: usize) -> StoreModel {
    let usual = StoreModel::default();
    let rtt = at.get("rtt", usual.rtt);
    let timeout = at.get("timeout", usual.timeout);
    if timeout.is_zero() {
        at.at("timeout").problem("is 0, expected how long a gate waits for an answer, such as \"250ms\"");
    }
    StoreModel {
        rtt,
        timeout,
        outages: at.list("outages").iter().map(|at| outage(at, gates)).collect(),
        losses: at.list("losses").iter().map(loss).collect(),
        clock: at.list("clock").iter().filter_map(jump).collect(),
    }
}

fn outage(at: &Cursor<'_>, most: usize) -> Outage {
    let from = at.get("from", Duration::ZERO);
    if !at.has("to") {
        at.at("to").missing(", expected the end of the outage");
    }
    let to = at.read("to").unwrap_or(Duration::MAX);
    if to <= from {
        at.at("to").problem(format!("is {to:?}, expected a time after `from`, {from:?}"));
    }
    let gates: Vec<u32> = at.get("gates", Vec::new());
    for (index, gate) in gates.iter().enumerate() {
        if !usize::try_from(*gate).is_ok_and(|gate| (1..=most).contains(&gate)) {
            at.at("gates").item(index).problem(format!("is {gate}, expected the number of a gate, from 1 to {most}"));
        }
    }
    Outage { from, to, gates: gates.into_iter().filter_map(|gate| usize::try_from(gate).ok()).collect() }
}

fn loss(at: &Cursor<'_>) -> Loss {
    Loss { at: at.get("at", Duration::ZERO), back: at.option("back", None) }
}

fn jump(at: &Cursor<'_>) -> Option<ClockJump> {
    let moment = at.get("at", Duration::ZERO);
    let (ahead, back): (Option<Duration>, Option<Duration>) = (at.option("ahead", None), at.option("back", None));
    let by = match (ahead, back) {
        (Some(by), None) => Jump::Ahead(by),
        (None, Some(by)) => Jump::Back(by),
        _ => {
            at.problem("does not say how the clock jumps, expected one of ahead and back, such as ahead = \"1h\"");
            return None;
        }
    };
    Some(ClockJump { at: moment, by })
}
