//! An index that finds the rules to try among many.
//!
//! A rule that names resources, namespaces and the like without a star matches no call of another.
//! So the index finds rules by one such name. Only these are tried, with the rules without one, in
//! the order of all. Beside a thousand classes of other resources a call is classified as fast as
//! beside one.

use std::collections::{BTreeMap, HashMap};
use std::iter;

use super::matcher::{CompiledRule, PatternList, Subject};

/// For each name, the indexes of its rules, in order.
type Places = HashMap<Box<str>, Vec<usize>>;

/// Finds rules by the names in them.
#[derive(Clone, derive_more::Debug)]
#[debug("Index")]
pub(super) struct Index {
    named: BTreeMap<PatternList, Places>,
    /// The indexes of the rules to try for every call.
    others: Vec<usize>,
}

// === impl Index ===

impl Index {
    /// Creates an index over rules in their order; `None` if there are few.
    pub(super) fn new<'a>(rules: impl ExactSizeIterator<Item = &'a CompiledRule>) -> Option<Self> {
        if rules.len() <= FEW {
            return None;
        }
        let mut named: BTreeMap<_, Places> = BTreeMap::new();
        let mut others = Vec::new();
        for (place, rule) in rules.enumerate() {
            let Some((list, names)) = rule.named() else {
                others.push(place);
                continue;
            };
            let places = named.entry(list).or_default();
            names.for_each(|name| places.entry(name.into()).or_default().push(place));
        }
        Some(Self { named, others })
    }

    /// Returns the indexes of the rules to try for a call, in order.
    pub(super) fn places(&self, subject: &Subject<'_>) -> impl Iterator<Item = usize> {
        let named = self.named.iter().map(|(list, places)| {
            let found = subject.text(*list).and_then(|text| places.get(text));
            found.map_or(&[][..], Vec::as_slice)
        });
        let mut lists: [&[usize]; LISTS] = [&[]; LISTS];
        lists.iter_mut().zip(named.chain([&*self.others])).for_each(|(list, found)| *list = found);
        iter::from_fn(move || {
            let next = lists.iter_mut().min_by_key(|list| list.first().copied().unwrap_or(usize::MAX))?;
            let (first, rest) = next.split_first()?;
            *next = rest;
            Some(*first)
        })
    }
}

/// Up to this many rules all are tried. A gate without classes of its own has six.
const FEW: usize = 16;
/// The number of groups of rules: one for each indexed list, and one of the others.
const LISTS: usize = PatternList::INDEXED.len() + 1;
