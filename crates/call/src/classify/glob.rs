//! Patterns with `*` for any run of characters. A match takes time linear in the text.

/// A pattern, split at its stars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    /// The text before the first star; the whole text without one.
    head: Box<str>,
    /// The texts between stars, and the one after the last; `None` without a star.
    rest: Option<(Vec<Box<str>>, Box<str>)>,
}

impl Glob {
    /// Splits a pattern at its stars.
    pub fn new(pattern: &str) -> Self {
        let mut pieces = pattern.split('*').map(Box::from);
        let head = pieces.next().unwrap_or_default();
        let mut middle: Vec<Box<str>> = pieces.collect();
        let rest = middle.pop().map(|tail| {
            middle.retain(|piece| !piece.is_empty());
            (middle, tail)
        });
        Self { head, rest }
    }

    /// Returns true if the pattern matches the whole text.
    pub fn matches(&self, text: &str) -> bool {
        let Some((middle, tail)) = &self.rest else { return text == &*self.head };
        let Some(mut text) = text.strip_prefix(&*self.head).and_then(|rest| rest.strip_suffix(&**tail)) else {
            return false;
        };
        // The leftmost place for each piece leaves the most for the next.
        middle.iter().all(|piece| text.split_once(&**piece).map(|(_, after)| text = after).is_some())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stars_match_any_run() {
        for (pattern, yes, no) in [
            ("", vec![""], vec!["a"]),
            ("*", vec!["", "a", "a/b"], vec![]),
            ("a", vec!["a"], vec!["", "ab", "ba"]),
            ("prod-*", vec!["prod-", "prod-eu"], vec!["prod", "xprod-eu"]),
            ("*.io", vec![".io", "x.io"], vec!["io", "x.iox"]),
            ("a*a", vec!["aa", "aba"], vec!["a", "ab"]),
            (
                "/repos/*/issues",
                vec!["/repos/a/b/issues", "/repos//issues"],
                vec!["/repos/issues", "/repos/a/issues/1"],
            ),
            ("*a*b*", vec!["ab", "xaybz"], vec!["ba"]),
            ("a**b", vec!["ab", "axb"], vec!["a"]),
            ("a.c", vec!["a.c"], vec!["abc"]),
            ("*é*", vec!["é", "café!"], vec!["e"]),
        ] {
            let glob = Glob::new(pattern);
            yes.iter().for_each(|text| assert!(glob.matches(text), "{pattern} {text}"));
            no.iter().for_each(|text| assert!(!glob.matches(text), "{pattern} {text}"));
        }
    }

    /// The obvious matcher, exponential.
    fn model(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skip| model(rest, &text[skip..])),
            Some((byte, rest)) => text.first() == Some(byte) && model(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_obvious_matcher(pattern in "[ab*]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(Glob::new(&pattern).matches(&text), model(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
