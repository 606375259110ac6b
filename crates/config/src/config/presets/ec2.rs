//! EC2's buckets: a table of actions that have their own, and the categories of all others.

use super::figures::{self, Figure};
use super::{PresetBucket, PresetClass, actions, list};
use crate::classify::{Matcher, PatternList};
use crate::limit::policy::Per;

/// The lines of the table: class, most tokens, tokens a second, actions.
const OWN: &str = include_str!("ec2.tsv");

/// Returns the classes in their order: what has buckets of its own, then the categories.
pub(super) fn classes() -> Vec<PresetClass> {
    let mut classes: Vec<PresetClass> = own().map(|(name, figure, named)| class(name, &named, figure)).collect();
    let mut unfiltered = Matcher::default().with(PatternList::Services, list(&["ec2"]));
    unfiltered.unfiltered = Some(true);
    classes.push(PresetClass::new("ec2_unfiltered", unfiltered).alone(bucket(Figure::bucket(50, 10.0))));
    classes.push(class("ec2_reads", &["Describe*", "Get*", "List*", "Search*"], Figure::bucket(100, 20.0)));
    classes.push(class("ec2_writes", &[], Figure::bucket(50, 5.0)));
    classes
}

/// Reads the table. A line that is none is skipped; a test reads them all.
fn own() -> impl Iterator<Item = (&'static str, Figure, Vec<&'static str>)> {
    OWN.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut cells = line.split('\t');
        let name = cells.next()?;
        let burst = cells.next()?;
        let rate = cells.next()?;
        let actions = cells.next()?;
        let figure = Figure::bucket(burst.parse().ok()?, rate.parse().ok()?);
        Some((name, figure, actions.split(' ').collect()))
    })
}

fn class(name: &'static str, named: &[&str], figure: Figure) -> PresetClass {
    PresetClass::new(name, actions("ec2", named)).alone(bucket(figure))
}

fn bucket(figure: Figure) -> PresetBucket {
    PresetBucket::of(figure, &figures::EC2, Per::Action)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_line_of_the_table_is_read_and_no_action_stands_twice() {
        let lines = OWN.lines().filter(|line| !line.starts_with('#')).count();
        let all: Vec<&str> = own().flat_map(|(.., actions)| actions).collect();
        assert_eq!((own().count(), lines, all.len()), (22, 22, 130));
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert_eq!(own().map(|(name, ..)| name).collect::<BTreeSet<_>>().len(), lines);
        assert!(all.iter().all(|action| action.bytes().all(|letter| letter.is_ascii_alphanumeric())));
    }
}
