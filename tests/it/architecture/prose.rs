//! Comments in src are sentences that fit beside each other: they wrap at 100 columns, and few are clauses that begin with a question word.

use super::sources;

/// The most columns of a line of a comment. A line of one word, such as a link, may be longer.
const COLUMNS: usize = 100;
/// The percentage of doc comments that may begin with one of `QUESTIONS`.
const CLAUSES: usize = 8;
const QUESTIONS: [&str; 8] = ["What", "Who", "Whose", "Whether", "When", "Where", "How", "Why"];

#[test]
fn comments_wrap_at_a_hundred_columns() {
    let mut broken = Vec::new();
    for (file, _, text) in sources() {
        for (number, line) in (1..).zip(text.lines()) {
            let words = comment(line).unwrap_or_default().split_whitespace().count();
            if words > 1 && line.chars().count() > COLUMNS {
                broken.push(format!("{}:{number}: {line}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{} lines of comments are too long:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn doc_comments_are_sentences_and_not_clauses() {
    let (mut all, mut clauses) = (0, Vec::new());
    for (file, _, text) in sources() {
        let mut before = None;
        for (number, line) in (1..).zip(text.lines()) {
            let doc = doc(line);
            if let Some(first) = doc.filter(|_| before.is_none()) {
                all += 1;
                let word = first.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
                if QUESTIONS.contains(&word) {
                    clauses.push(format!("{}:{number}: {line}", file.display()));
                }
            }
            before = doc;
        }
    }
    assert!(all > 1000, "only {all} doc comments were found");
    let (most, found) = (all * CLAUSES / 100, clauses.len());
    assert!(found < most, "{found} of {all} doc comments are clauses, at most {most} may be:\n{}", clauses.join("\n"));
}

/// The text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']))
}

/// The text of a line that is documentation.
fn doc(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim_start)
}
