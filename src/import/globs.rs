//! Regular expressions over the names of operations, as patterns in which `*` stands for any run of
//! letters.
//!
//! Letters, `.*`, `|`, groups, `?` and the anchors have such a form; what else there is has none.
//! As in Go, an expression without anchors is found anywhere in a name.

use crate::classify::Glob;

/// The part of an expression that no pattern says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoGlob {
    #[error("{part} at place {place} of its expression has no form as a pattern with *")]
    Part { part: String, place: usize },
    #[error("its expression has a parenthesis too many or too few")]
    Parentheses,
    #[error("its expression comes to more than {MOST} patterns")]
    TooMany,
}

/// Reads an expression from where it is.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

/// Returns the patterns of which one matches where the expression is found.
pub(super) fn globs(expression: &str) -> Result<Vec<String>, NoGlob> {
    let mut reader = Reader { text: expression, at: 0 };
    let found = reader.alternatives()?;
    if reader.peek().is_some() {
        return Err(NoGlob::Parentheses);
    }
    let mut globs: Vec<String> = Vec::new();
    for found in found {
        let (open_start, rest) = found.strip_prefix(START).map_or((true, &*found), |rest| (false, rest));
        let (open_end, middle) = rest.strip_suffix(END).map_or((true, rest), |rest| (false, rest));
        if let Some(anchor) = middle.find([START, END]) {
            let part = if middle.find(START) == Some(anchor) { "^" } else { "$" };
            let place = expression.rfind(part).map_or(0, |place| place + 1);
            return Err(NoGlob::Part { part: format!("{part} inside"), place });
        }
        let star = |open: bool| if open { "*" } else { "" };
        let mut glob = format!("{}{middle}{}", star(open_start), star(open_end));
        while glob.contains("**") {
            glob = glob.replace("**", "*");
        }
        if !globs.contains(&glob) {
            globs.push(glob);
        }
    }
    // What another pattern has already says nothing more.
    let all = globs.clone();
    globs.retain(|glob| !all.iter().any(|other| other != glob && is_within(glob, other)));
    Ok(globs)
}

/// True if every name that one of `inner` matches is matched by one of `outer`.
pub(super) fn are_within(inner: &[String], outer: &[String]) -> bool {
    inner.iter().all(|glob| outer.iter().any(|other| is_within(glob, other)))
}

/// True if the name of some operation is matched by both. Names begin with a verb, so a pattern
/// whose letters begin with one is found only at the beginning.
pub(super) fn overlap(one: &[String], other: &[String]) -> bool {
    let from_verb = |glob: &str| {
        let rest = glob.strip_prefix('*').filter(|rest| VERBS.iter().any(|verb| rest.starts_with(verb)));
        rest.unwrap_or(glob).as_bytes().to_vec()
    };
    one.iter().any(|glob| other.iter().any(|other| meet(&from_verb(glob), &from_verb(other))))
}

/// No name has a star, so that a star of the inner pattern is matched by one of the outer's alone.
fn is_within(inner: &str, outer: &str) -> bool {
    Glob::new(outer).matches(inner)
}

fn meet(one: &[u8], other: &[u8]) -> bool {
    match (one, other) {
        ([], []) => true,
        ([b'*', rest @ ..], other) => meet(rest, other) || !other.is_empty() && meet(one, &other[1..]),
        (one, [b'*', rest @ ..]) => meet(one, rest) || !one.is_empty() && meet(&one[1..], other),
        ([a, one @ ..], [b, other @ ..]) => a == b && meet(one, other),
        _ => false,
    }
}

// === impl Reader ===

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at..)?.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn skip(&mut self, wanted: &str) -> bool {
        let is_there = self.text.get(self.at..).is_some_and(|rest| rest.starts_with(wanted));
        self.at += if is_there { wanted.len() } else { 0 };
        is_there
    }

    /// `a|b`, to the end or to a closing parenthesis.
    fn alternatives(&mut self) -> Result<Vec<String>, NoGlob> {
        let mut all = self.sequence()?;
        while self.skip("|") {
            all.extend(self.sequence()?);
        }
        bounded(all)
    }

    /// One part after the other.
    fn sequence(&mut self) -> Result<Vec<String>, NoGlob> {
        let mut all = vec![String::new()];
        while self.peek().is_some_and(|next| !matches!(next, '|' | ')')) {
            let mut part = self.part()?;
            if self.skip("?") {
                part.push(String::new());
            }
            if let Some(again) = self.peek().filter(|next| matches!(next, '*' | '+' | '{' | '?')) {
                return Err(self.no_form(self.at, again.to_string()));
            }
            let joined = all.iter().flat_map(|before| part.iter().map(move |after| format!("{before}{after}")));
            all = bounded(joined.collect())?;
        }
        Ok(all)
    }

    fn part(&mut self) -> Result<Vec<String>, NoGlob> {
        let start = self.at;
        match self.next() {
            Some('(') => {
                self.skip("?:");
                let inner = self.alternatives()?;
                if self.skip(")") { Ok(inner) } else { Err(NoGlob::Parentheses) }
            }
            Some('^') => Ok(vec![START.to_string()]),
            Some('$') => Ok(vec![END.to_string()]),
            Some('.') if self.skip("*") => {
                self.skip("?"); // as short as can be is the same here
                Ok(vec!["*".to_owned()])
            }
            Some(letter) if letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-') => {
                Ok(vec![letter.to_string()])
            }
            Some('[') => {
                let rest = self.text.get(start..).unwrap_or_default();
                let class = rest.split_once(']').map_or_else(|| rest.to_owned(), |(class, _)| format!("{class}]"));
                Err(self.no_form(start, class))
            }
            Some('\\') => {
                let escaped = self.next().map(String::from).unwrap_or_default();
                Err(self.no_form(start, format!("\\{escaped}")))
            }
            other => Err(self.no_form(start, other.map(String::from).unwrap_or_default())),
        }
    }

    fn no_form(&self, at: usize, part: String) -> NoGlob {
        NoGlob::Part { part, place: self.text.get(..at).unwrap_or_default().chars().count() + 1 }
    }
}

fn bounded(globs: Vec<String>) -> Result<Vec<String>, NoGlob> {
    if globs.len() > MOST { Err(NoGlob::TooMany) } else { Ok(globs) }
}

/// The verbs that names of operations begin with.
const VERBS: [&str; 24] = [
    "Add",
    "Associate",
    "Attach",
    "Authorize",
    "Cancel",
    "Create",
    "Delete",
    "Deregister",
    "Describe",
    "Detach",
    "Disassociate",
    "Get",
    "List",
    "Modify",
    "Put",
    "Register",
    "Remove",
    "Revoke",
    "Run",
    "Set",
    "Start",
    "Stop",
    "Tag",
    "Update",
];
/// The most patterns of an expression.
const MOST: usize = 100;
/// The anchors, in characters that no part has.
const START: char = '^';
const END: char = '$';

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn expressions_become_patterns() {
        for (expression, expected) in [
            (".*", &["*"][..]),
            ("", &["*"]),
            ("Describe", &["*Describe*"]),
            ("^Describe", &["Describe*"]),
            ("^Describe.*$", &["Describe*"]),
            ("^(Create|Delete)Volumes?$", &["CreateVolume", "DeleteVolume", "CreateVolumes", "DeleteVolumes"]),
            ("RegisterTargets|DeregisterTargets", &["*RegisterTargets*", "*DeregisterTargets*"]),
            ("Describe|DescribeVpcs", &["*Describe*"]),
            ("(?:Get|List).*Policy$", &["*Get*Policy", "*List*Policy"]),
            ("^A.*?B", &["A*B*"]),
        ] {
            let mut found = globs(expression).unwrap_or_else(|why| panic!("{expression}: {why}"));
            let mut expected: Vec<String> = expected.iter().map(|glob| (*glob).to_owned()).collect();
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "{expression}");
        }
    }

    #[test]
    fn what_has_no_form_is_named_with_its_place() {
        for (expression, part, place) in [
            ("Get[A-M]x", "[A-M]", 4),
            ("Get.+", ".", 4),
            ("a+", "+", 2),
            ("(ab)*", "*", 5),
            ("\\w", "\\w", 1),
            ("a$b", "$ inside", 2),
            ("é", "é", 1),
        ] {
            let expected = NoGlob::Part { part: part.to_owned(), place };
            assert_eq!(globs(expression), Err(expected), "{expression}");
        }
        assert_eq!(globs("(a"), Err(NoGlob::Parentheses));
        assert_eq!(globs("a)"), Err(NoGlob::Parentheses));
        assert_eq!(globs(&"(a|b)".repeat(10)), Err(NoGlob::TooMany));
    }

    #[test]
    fn patterns_are_compared() {
        let globs = |all: &[&str]| all.iter().map(|glob| (*glob).to_owned()).collect::<Vec<_>>();
        assert!(are_within(&globs(&["Describe*", "Get*"]), &globs(&["*"])));
        assert!(!are_within(&globs(&["*"]), &globs(&["Describe*"])));
        assert!(overlap(&globs(&["Describe*"]), &globs(&["*Vpcs"])));
        assert!(!overlap(&globs(&["Describe*"]), &globs(&["Get*"])));
        assert!(!overlap(&globs(&["*RegisterTargets*"]), &globs(&["*DeregisterTargets*"])));
    }

    proptest! {
        #[test]
        fn no_expression_panics(expression in "[a-zé.*+?|()^$\\[\\]{}\\\\0-9]{0,16}") {
            if let Ok(globs) = globs(&expression) {
                prop_assert!(globs.len() <= MOST);
            }
        }

        #[test]
        fn patterns_match_where_the_expression_is_found(
            expression in "(\\^)?([ab]|\\.\\*|\\((a|b)\\|(b|ab)\\)|[ab]\\?){0,5}(\\|[ab]{1,2})?(\\$)?", name in "[abc]{0,6}",
        ) {
            let judge = regex_lite(&expression, &name);
            if let Ok(globs) = globs(&expression) {
                let matches = globs.iter().any(|glob| Glob::new(glob).matches(&name));
                prop_assert_eq!(matches, judge, "{} in {}: {:?}", expression, name, globs);
            }
        }
    }

    fn regex_lite(expression: &str, name: &str) -> bool {
        regex::Regex::new(expression).expect("one of Go's too").is_match(name)
    }
}
