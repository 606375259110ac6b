//! The record of replaced values, stored in an annotation of the pod to restore the original later.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::emit;
use crate::yaml::{self, Node};

/// The annotation for the record.
pub(super) const ANNOTATION: &str = "tidegate-injected";

/// The changes made by an injection. Parts added under tidegate's name are not recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The containers using the gate.
    pub(super) containers: Vec<String>,
    /// The original YAML at each changed place; `None` if there was nothing.
    was: BTreeMap<String, Option<String>>,
    /// The injected value of each variable. If it differs later, the user has changed it.
    set: BTreeMap<String, String>,
}

// === impl Record ===

impl Record {
    /// Reads the record of an injected pod.
    pub(super) fn read(pod: &Node) -> Option<Self> {
        let text = pod.text_at(&["metadata", "annotations", ANNOTATION])?;
        Some(serde_json::from_str(text).unwrap_or_default())
    }

    /// Returns the value of the annotation for this record.
    pub(super) fn written(&self) -> Node {
        // Maps of strings are always JSON.
        Node::quoted(serde_json::to_string(self).unwrap_or_default())
    }

    /// Records the original value at a place. An earlier record of the place stays.
    pub(super) fn note(&mut self, place: String, was: Option<&Node>) {
        self.was.entry(place).or_insert_with(|| was.map(emit::document));
    }

    /// Records the injected value of a variable.
    pub(super) fn note_set(&mut self, place: String, text: &str) {
        self.set.insert(place, text.to_owned());
    }

    /// Returns the injected value of a variable.
    pub(super) fn set_at(&self, place: &str) -> Option<&str> {
        self.set.get(place).map(String::as_str)
    }

    /// Returns the changed places with this prefix, without the prefix.
    pub(super) fn places<'a>(&'a self, begin: &'a str) -> impl Iterator<Item = &'a str> {
        self.was.keys().filter_map(move |place| place.strip_prefix(begin))
    }

    /// Returns the original value at a place: `None` if it was not changed, `Some(None)` if there
    /// was nothing.
    pub(super) fn was(&self, place: &str) -> Option<Option<Node>> {
        let text = self.was.get(place)?;
        // An annotation edited by hand must not cause a failure: then nothing was there.
        Some(text.as_deref().and_then(|text| yaml::read(text, 0).ok().flatten()))
    }

    /// Returns the list under `key`. Creates (and records) it if it is missing.
    pub(super) fn open_list<'a>(&mut self, parent: &'a mut Node, key: &str, place: &str) -> Option<&'a mut Vec<Node>> {
        self.open(parent, key, place, Node::list([]))?.items_mut()
    }

    /// Returns the map under `key`. Creates (and records) it if it is missing.
    pub(super) fn open_map<'a>(&mut self, parent: &'a mut Node, key: &str) -> Option<&'a mut Node> {
        self.open(parent, key, key, Node::map([]))
    }

    fn open<'a>(&mut self, parent: &'a mut Node, key: &str, place: &str, empty: Node) -> Option<&'a mut Node> {
        let old = parent.get(key);
        if old.is_none_or(Node::is_null) {
            self.note(place.to_owned(), old);
            parent.set(key, empty);
        } else if old.is_some_and(Node::is_empty) {
            // It takes lines of its own, and becomes `[]` again once it is empty again.
            parent.set(key, empty);
        }
        parent.get_mut(key)
    }

    /// Removes a list or map created by the injection, if it is empty again.
    pub(super) fn close(&self, parent: &mut Node, key: &str, place: &str) {
        match self.was(place).filter(|_| parent.get(key).is_some_and(Node::is_empty)) {
            None => {}
            Some(None) => drop(parent.remove(key)),
            Some(Some(old)) => parent.set(key, old),
        }
    }
}
