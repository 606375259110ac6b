//! Finds the rules that a call may match, where there are many.
//!
//! A rule that names resources, namespaces and the like without a star matches no call of another.
//! So the index finds rules by one such name, and only these are tried, with the rules that have
//! none, in the order of all. A call beside a thousand classes of other resources is read as fast
//! as beside one.

use std::collections::HashMap;
use std::iter;

use super::matcher::{Compiled, Part, Subject};

/// The places of rules, in order, by the text that they name.
type Places = HashMap<Box<str>, Vec<usize>>;

/// Rules by what they name. The same rules always have the same index, which a log need not show.
#[derive(Clone, derive_more::Debug)]
#[debug("Index")]
pub(super) struct Index {
    /// The places of those that name a part.
    named: Vec<(Part, Places)>,
    /// The places of the rules that are tried for every call.
    others: Vec<usize>,
}

// === impl Index ===

impl Index {
    /// Creates an index over rules in their order; `None` if trying all of them takes less.
    pub(super) fn new<'a>(rules: impl ExactSizeIterator<Item = &'a Compiled>) -> Option<Self> {
        if rules.len() <= FEW {
            return None;
        }
        let mut named: Vec<_> = Part::ALL.into_iter().map(|part| (part, Places::new())).collect();
        let mut others = Vec::new();
        for (place, rule) in rules.enumerate() {
            let found = rule.named();
            let of_part = named.iter_mut().find(|(part, _)| found.as_ref().is_some_and(|(known, _)| known == part));
            match (of_part, found) {
                (Some((_, places)), Some((_, names))) => {
                    names.for_each(|name| places.entry(name.into()).or_default().push(place));
                }
                _ => others.push(place),
            }
        }
        named.retain(|(_, places)| !places.is_empty());
        Some(Self { named, others })
    }

    /// Returns the places of the rules that a call may match, in order.
    pub(super) fn places(&self, subject: &Subject<'_>) -> impl Iterator<Item = usize> {
        let named = self.named.iter().map(|(part, places)| {
            let found = subject.part(*part).and_then(|text| places.get(text));
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

/// The most rules that are tried one after the other. A gate without classes of its own has six.
const FEW: usize = 16;
/// One for each part, and one of the others.
const LISTS: usize = Part::ALL.len() + 1;
