//! Finds the origin of a key, so that `explain` can name the line of a limit.

use std::fmt::Display;

use super::path::Path;
use super::problems::{Text, Variable};

/// The text and variables of a configuration, for finding the origin of a key.
#[derive(Debug)]
pub struct Origins {
    text: Text,
    variables: Vec<Variable>,
}

// === impl Origins ===

impl Origins {
    pub(super) fn new(text: Text, variables: Vec<Variable>) -> Self {
        Self { text, variables }
    }

    /// Returns the origin of a key: `FILE:LINE:COL`, or an environment variable. `None` for a
    /// default.
    pub fn of(&self, keys: &[&str]) -> Option<String> {
        self.at(&keys.iter().map(|key| (*key).to_owned()).collect())
    }

    /// Formats a message about the key at `path`, in the form of a configuration problem.
    ///
    /// Its location is that of the key, or else of the nearest surrounding table that is set, or
    /// else `from`.
    pub fn located(&self, from: &str, path: &str, says: impl Display) -> String {
        let keys: Vec<&str> = path.split('.').collect();
        let place = (1..=keys.len()).rev().find_map(|length| self.of(keys.get(..length)?));
        format!("{}: {path}: {says}", place.as_deref().unwrap_or(from))
    }

    /// Returns the origin of a class, or of one of its keys; `None` for a default.
    pub fn of_class(&self, gate: &str, class: &str, key: Option<&str>) -> Option<String> {
        let classes = Path::default().key("gates").key(gate).key("classes");
        let found = (0..).map(|index| classes.index(index)).take_while(|at| self.text.location(at).is_some());
        let mut named = found.filter(|at| self.text.value(&at.key("name")).is_some_and(|name| name == class));
        let at = named.next()?;
        self.at(&key.map_or_else(|| at.clone(), |key| at.key(key)))
    }

    fn at(&self, path: &Path) -> Option<String> {
        let set = |variable: &&Variable| path.starts_with(&variable.path) || variable.path.starts_with(path);
        let variable = self.variables.iter().find(set).map(|variable| variable.name.clone());
        variable.or_else(|| self.text.location(path))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::load_text;

    #[test]
    fn a_limit_is_traced_to_its_line_or_variable() {
        let text = "[gates.k]\nupstream = \"http://127.0.0.1:9\"\n[gates.k.bucket]\nrate = 5\n\n[[gates.k.classes]]\nname = \"ec2\"\n\
                    match = { groups = [\"x\"] }\nbucket = { rate = 1, burst = 1 }\n";
        let env = [("TIDEGATE__GATES__K__QUEUE__MAX_WAIT".to_owned(), "3s".to_owned())];
        let loaded = load_text("f.toml".to_owned(), text.to_owned(), &env).expect("it is right");
        let of = |keys: &[&str]| loaded.origins.of(keys);
        assert_eq!(of(&["gates", "k", "bucket", "rate"]).as_deref(), Some("f.toml:4:1"));
        assert_eq!(of(&["gates", "k", "bucket"]).as_deref(), Some("f.toml:3:10"));
        assert_eq!(of(&["gates", "k", "queue"]).as_deref(), Some("TIDEGATE__GATES__K__QUEUE__MAX_WAIT"));
        assert_eq!(of(&["gates", "k", "backoff"]), None);
        let class = |class, key| loaded.origins.of_class("k", class, key);
        assert!(class("ec2", None).is_some_and(|at| at.starts_with("f.toml:6:")));
        assert_eq!(class("ec2", Some("bucket")).as_deref(), Some("f.toml:9:1"));
        assert_eq!((class("ec2", Some("in_flight")), class("default", None)), (None, None));
    }
}
