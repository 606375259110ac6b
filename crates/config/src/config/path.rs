//! The path of a value in the configuration: `gates.kubernetes.classes[0].bucket.rate`.

use std::fmt;

use toml::Value;

/// The steps from the root of the configuration, such as `gates` and `kubernetes`. The index of a
/// list is a step written as `[0]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Path(pub(super) Vec<String>);

impl Path {
    /// Returns the path of the key `name` below this.
    pub(super) fn key(&self, name: &str) -> Self {
        let mut steps = self.0.clone();
        steps.push(name.to_owned());
        Self(steps)
    }

    /// Returns the path of the element `index` of this list.
    pub(super) fn index(&self, index: usize) -> Self {
        self.key(&format!("[{index}]"))
    }

    /// Returns the path of the surrounding table or list, and the last step of this path.
    pub(super) fn split_last(&self) -> Option<(Self, &str)> {
        let (last, above) = self.0.split_last()?;
        Some((Self(above.to_vec()), last))
    }

    /// Returns the path of the surrounding table or list.
    pub(super) fn parent(&self) -> Option<Self> {
        self.split_last().map(|(above, _)| above)
    }

    /// Returns the value at this path in `root`.
    pub(super) fn find<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        self.0.iter().try_fold(root, |value, step| match value {
            Value::Array(items) => items.get(step.trim_matches(['[', ']']).parse::<usize>().ok()?),
            _ => value.get(step),
        })
    }

    /// Returns true for keys naming a secret's file: by mistake, the value may be the secret
    /// itself.
    pub(super) fn may_hold_a_secret(&self) -> bool {
        self.0
            .iter()
            .any(|step| matches!(step.as_str(), "credential" | "password_file" | "password_command" | "token_file"))
    }

    /// Returns the steps from `above` to this path; `None` if this path is not below `above`.
    pub(super) fn below(&self, above: &Self) -> Option<Self> {
        self.0.strip_prefix(&above.0[..]).map(|rest| Self(rest.to_vec()))
    }

    /// Returns this path followed by the steps of `rest`.
    pub(super) fn join(&self, rest: &Self) -> Self {
        Self([self.0.as_slice(), &rest.0].concat())
    }

    pub(super) fn starts_with(&self, above: &Self) -> bool {
        self.0.starts_with(&above.0)
    }
}

impl FromIterator<String> for Path {
    fn from_iter<I: IntoIterator<Item = String>>(steps: I) -> Self {
        Self(steps.into_iter().collect())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, step) in self.0.iter().enumerate() {
            let is_index = step.starts_with('[');
            if place > 0 && !is_index {
                f.write_str(".")?;
            }
            let is_bare = step.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') && !step.is_empty();
            if is_bare || is_index { f.write_str(step)? } else { write!(f, "{step:?}")? }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_as_toml_writes_them() {
        let path = Path::default().key("gates").key("a").key("classes").index(2).key("headers").key("x.y");
        assert_eq!(path.to_string(), r#"gates.a.classes[2].headers."x.y""#);
        assert_eq!(path.parent().unwrap().to_string(), "gates.a.classes[2].headers");
        assert!(path.starts_with(&Path::default().key("gates")));
    }
}
