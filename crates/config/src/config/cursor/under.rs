//! Reads a table a second time, with some of its keys replaced.

use toml::{Table, Value};

use super::Cursor;
use crate::config::path::Path;
use crate::config::problems::Variable;
use crate::config::record::Grafted;
use crate::config::report::Findings;
use crate::config::shape::Shape;

impl<'a> Cursor<'a> {
    /// Returns the table `name`, if it exists. Its keys are read by [`read_as`](Self::read_as).
    pub(in crate::config) fn table_alone(&self, name: &str) -> Option<Self> {
        self.report.record().key(&self.path, name, Shape::Table);
        let at = self.at(name);
        at.must_be_table("a table");
        Some(at).filter(Self::is_table)
    }

    /// Returns the table here.
    pub(in crate::config) fn as_table(&self) -> Option<&'a Table> {
        self.value.and_then(Value::as_table)
    }

    /// Reads this table a second time, with the content of `table` in its place.
    ///
    /// The content comes from this table and from `own`, keys of the table at `grafted.place`. Only
    /// problems that this table alone does not have are reported, at that place.
    pub(in crate::config) fn read_as<T>(
        &self,
        table: Table,
        own: &Table,
        grafted: &Grafted<'_>,
        read: impl FnOnce(&Cursor<'_>) -> T,
    ) -> T {
        let table = Value::Table(table);
        let below = grafted.place;
        let moved = |variable: &Variable| {
            let path = variable.path.below(below).map_or_else(|| variable.path.clone(), |rest| self.path.join(&rest));
            Variable { path, ..variable.clone() }
        };
        let variables: Vec<Variable> = self.report.variables().iter().map(moved).collect();
        let report = self.report.beside(&variables);
        let result = read(&Cursor { path: self.path.clone(), ..Cursor::root(&table, &report) });
        let wrap = |value, step: &String| Table::from_iter([(step.clone(), value)]).into();
        let root = self.path.0.iter().rev().fold(Value::Table(own.clone()), wrap);
        match report.finish(&root, Vec::new(), &[]) {
            Ok(Findings { record, .. }) => self.report.record().graft(&record, &self.path, grafted),
            Err(problems) => {
                for problem in problems.iter().filter(|problem| !self.report.has(problem)) {
                    let place = problem.path().below(&self.path).map_or_else(Path::default, |rest| below.join(&rest));
                    self.report.problem(&place, problem.message(), true, &[]);
                }
            }
        }
        result
    }
}
