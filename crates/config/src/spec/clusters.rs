//! The limits of single clusters behind one gate.

use std::sync::Arc;

use super::Gate;
use crate::classify::Glob;

/// The limits of some of the clusters behind a gate, in place of the gate's own.
#[derive(Clone, Debug)]
pub struct ClusterLimits {
    /// The pattern of the clusters' names.
    pub pattern: Arc<str>,
    /// The settings of the clusters' gate, with these limits and its name.
    pub gate: Gate,
}

// === impl ClusterLimits ===

impl ClusterLimits {
    /// Returns true if these limits are for a cluster of this gate.
    pub fn are_for(&self, gate: &str, cluster: &str) -> bool {
        *self.gate.name == *gate && Glob::new(&self.pattern).matches(cluster)
    }
}

/// The path of a call to a cluster: `/c/NAME/PATH`.
#[derive(Debug, PartialEq, Eq)]
pub struct ClusterPath<'a> {
    /// The name of the cluster, byte for byte as in the path.
    pub name: &'a str,
    /// The path and query of the call, from its slash.
    pub below: &'a str,
}

// === impl ClusterPath ===

impl<'a> ClusterPath<'a> {
    /// Splits a path and query after the name of the cluster; `None` if no slash ends the name.
    pub fn of(target: &'a str) -> Option<Self> {
        let rest = target.strip_prefix(BELOW)?;
        let (name, below) = rest.split_at_checked(rest.find(['/', '?'])?)?;
        below.starts_with('/').then_some(Self { name, below })
    }

    /// Returns the path of a cluster at its gate, without a final slash.
    pub fn mount(name: &str) -> String {
        format!("{BELOW}{name}")
    }
}

/// The path before the name of a cluster.
const BELOW: &str = "/c/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_after_the_name_and_nowhere_else() {
        for (target, expected) in [
            ("/c/a/api", Some(("a", "/api"))),
            ("/c/a/", Some(("a", "/"))),
            ("/c/a//c/b/x", Some(("a", "//c/b/x"))),
            ("/c/a/../b/x?y=/c/b/", Some(("a", "/../b/x?y=/c/b/"))),
            ("/c/../c/b/x", Some(("..", "/c/b/x"))),
            ("/c/%61/x", Some(("%61", "/x"))),
            ("/c/a%2f..%2fb/x", Some(("a%2f..%2fb", "/x"))),
            ("/c//b/x", Some(("", "/b/x"))),
            ("/c/a", None),
            ("/c/a?/x", None),
            ("//c/a/x", None),
            ("/C/a/x", None),
            ("/%63/a/x", None),
            ("/c", None),
            ("/?/c/a/x", None),
            ("*", None),
            ("", None),
        ] {
            let path = ClusterPath::of(target).map(|path| (path.name, path.below));
            assert_eq!(path, expected, "{target}");
        }
    }
}
