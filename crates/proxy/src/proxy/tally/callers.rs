//! Counts calls by program (User-Agent), for the status page.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Mutex;

use crate::clock::Clock;
use crate::lock;
use crate::moment::Moment;
use crate::status;

/// The calling programs with their numbers of calls. The first 20 are counted separately and all
/// others together, because a client may send any User-Agent.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    rows: Mutex<Vec<CallerTotals>>,
    salt: RandomState,
}

#[derive(Debug)]
struct CallerTotals {
    agent: Box<str>,
    /// The cloud provider's name of the action, if the gate is configured for a provider.
    action: Box<str>,
    /// The client's name, if clients are known by name.
    client: Box<str>,
    calls: u64,
    refused: u64,
    last: Moment,
}

/// The number of a program's row. A program without a row of its own has a larger number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerRow(u64);

// === impl CallerRow ===

impl CallerRow {
    /// Returns a number for the program; programs without a row of their own have different numbers
    /// too.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Returns the index of the program's row, or of the common row of programs without their own.
    pub(crate) fn row(self) -> usize {
        usize::try_from(self.0).map_or(ROWS, |row| row.min(ROWS))
    }
}

// === impl Callers ===

impl Callers {
    /// Counts a call under its program, action and client (empty if unknown), and returns the row.
    pub(crate) fn called(&self, [agent, action, client]: [&str; 3], now: Moment) -> CallerRow {
        let mut rows = lock(&self.rows);
        let is = |row: &CallerTotals| *row.agent == *agent && *row.action == *action && *row.client == *client;
        let known = rows.iter().take(ROWS).position(is);
        let row = known.unwrap_or_else(|| rows.len().min(ROWS));
        if row == rows.len() {
            let words = if row == ROWS { [OTHERS, "", ""] } else { [agent, action, client] };
            let [agent, action, client] = words.map(Into::into);
            rows.push(CallerTotals { agent, action, client, calls: 0, refused: 0, last: now });
        }
        if let Some(caller) = rows.get_mut(row) {
            (caller.calls, caller.last) = (caller.calls + 1, now);
        }
        let is_one_of_many = row == ROWS;
        CallerRow(if is_one_of_many { self.salt.hash_one([agent, action, client]).max(row as u64) } else { row as u64 })
    }

    /// Returns the name of a program.
    pub(crate) fn agent(&self, of: CallerRow) -> String {
        if of.row() == ROWS {
            return ANOTHER.to_owned();
        }
        self.agent_at(of.row())
    }

    pub(super) fn agent_at(&self, row: usize) -> String {
        lock(&self.rows).get(row).map(|row| row.agent.to_string()).unwrap_or_default()
    }

    /// Counts a refused call.
    pub(super) fn refused(&self, row: CallerRow) {
        if let Some(caller) = lock(&self.rows).get_mut(row.row()) {
            caller.refused += 1;
        }
    }

    /// Returns all rows for the status page, those with most calls first.
    pub(super) fn tell(&self, clock: Clock) -> Vec<status::CallerStatus> {
        let row = |caller: &CallerTotals| status::CallerStatus {
            user_agent: caller.agent.to_string(),
            action: caller.action.to_string(),
            client: caller.client.to_string(),
            calls: caller.calls,
            refused: caller.refused,
            last_ms: clock.wall(caller.last),
        };
        let mut rows: Vec<_> = lock(&self.rows).iter().map(row).collect();
        rows.sort_by_key(|caller| std::cmp::Reverse(caller.calls));
        rows
    }
}

/// The most programs counted separately.
const ROWS: usize = 20;
/// The name of the common row of all further programs.
const OTHERS: &str = "all others";
/// The name shown for a program in the common row; its own name is not stored.
const ANOTHER: &str = "another program";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_actions_of_a_program_are_told_apart() {
        let (callers, clock) = (Callers::default(), Clock::start());
        for action in ["RunInstances", "DescribeInstances", "DescribeInstances"] {
            callers.called(["autoscaler/1", action, ""], Moment::ZERO);
        }
        let told = callers.tell(clock);
        let rows: Vec<_> = told.iter().map(|row| (row.action.as_str(), row.calls)).collect();
        assert_eq!(rows, [("DescribeInstances", 2), ("RunInstances", 1)]);
    }

    #[test]
    fn programs_are_counted_and_their_number_is_bounded() {
        let (callers, clock) = (Callers::default(), Clock::start());
        for nth in 0..100 {
            callers.called([&format!("program/{nth}"), "", ""], Moment::ZERO);
        }
        let row = callers.called(["program/3", "", ""], Moment::ZERO);
        callers.refused(row);
        callers.refused(callers.called(["new/1", "", ""], Moment::ZERO));
        let told = callers.tell(clock);
        let counts = |at: usize| (told[at].user_agent.as_str(), told[at].calls, told[at].refused);
        assert_eq!((told.len(), counts(0), counts(1)), (21, ("all others", 81, 1), ("program/3", 2, 1)));
    }
}
