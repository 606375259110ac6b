//! Numbers in place of the names in the findings of an audit.

use std::collections::HashMap;

use super::Audit;

/// The number of each name so far.
#[derive(Default)]
struct Numbers(HashMap<String, usize>);

// === impl Audit ===

impl Audit {
    /// Replaces callers, namespaces, objects and gates by numbers, the same name by the same number.
    /// Kinds of objects stay.
    pub fn redact(&mut self) {
        let mut callers = Numbers::default();
        let mut names = Numbers::default();
        let of_worst = self.worst.callers.iter_mut().map(|(name, _)| name);
        let of_what_if = self.what_if.iter_mut().map(|what_if| &mut what_if.caller);
        let all = self.callers.iter_mut().map(|caller| &mut caller.name);
        all.chain(of_worst).chain(of_what_if).for_each(|name| *name = callers.of("caller", name));
        let mut object = |name: &str| {
            let parts = name.split('/').filter(|part| !part.is_empty()).map(|part| names.of("name", part));
            parts.collect::<Vec<_>>().join("/")
        };
        for found in &mut self.loops {
            found.callers.iter_mut().for_each(|caller| caller.name = callers.of("caller", &caller.name).into());
            found.names.object = object(&found.names.object).into();
            found.names.caller = Box::default();
        }
        self.late.iter_mut().for_each(|late| late.lease = object(&late.lease));
        let gates = std::mem::take(&mut self.read.other_gates);
        self.read.other_gates = gates.into_iter().map(|(gate, calls)| (names.of("gate", &gate), calls)).collect();
        // They may quote a line.
        self.read.examples.clear();
    }
}

// === impl Numbers ===

impl Numbers {
    fn of(&mut self, kind: &str, name: &str) -> String {
        let next = self.0.len() + 1;
        format!("{kind}-{}", self.0.entry(name.to_owned()).or_insert(next))
    }
}
