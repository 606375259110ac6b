//! One entry of the flag.

use super::globs::{NoGlob, globs};
use crate::config::did_you_mean;
use crate::dialect::SERVICES;

/// An entry: calls of a service, and how many of them.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) text: &'a str,
    /// Its place among the entries, from 1.
    place: usize,
    /// The service as signatures name it.
    pub(super) service: &'static str,
    /// The patterns of its operations, if its expression can be said in such.
    pub(super) globs: Result<Vec<String>, NoGlob>,
    pub(super) rate: f64,
    pub(super) burst: u32,
}

/// An entry that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {place}, {text:?}: {problem}")]
pub(crate) struct EntryError {
    place: usize,
    text: String,
    problem: String,
}

// === impl Entry ===

impl Entry<'_> {
    /// Returns its place and its text, for a message.
    pub(super) fn place(&self) -> String {
        format!("entry {}, {:?},", self.place, self.text)
    }
}

/// Reads the entries of a value, or of several lines of values. The flag's own name may stand
/// before a value, as in a manifest.
pub(super) fn entries(value: &str) -> impl Iterator<Item = Result<Entry<'_>, EntryError>> {
    let lines = value.lines().map(bare).filter(|line| !line.is_empty());
    let texts: Vec<&str> = lines.flat_map(|line| line.split(',')).map(str::trim).collect();
    let texts = if texts.is_empty() { vec![""] } else { texts };
    texts.into_iter().zip(1..).map(|(text, place)| {
        let wrong = |problem| EntryError { place, text: text.to_owned(), problem };
        entry(text, place).map_err(wrong)
    })
}

/// Returns a line without what a manifest or a shell puts around the value.
fn bare(line: &str) -> &str {
    let line = line.trim();
    let line = line.strip_prefix("- ").unwrap_or(line).trim_matches(['"', '\'']);
    let value = line.strip_prefix("--aws-api-throttle").map(|rest| rest.trim_start_matches(['=', ' ']));
    value.unwrap_or(line).trim_matches(['"', '\'']).trim()
}

fn entry(text: &str, place: usize) -> Result<Entry<'_>, String> {
    let form = "expected Service:expression=rate:burst, as in EC2:Describe.*=10:20";
    let (named, limit) = text.split_once('=').filter(|(_, limit)| !limit.contains('=')).ok_or(form)?;
    let (service, expression) =
        named.split_once(':').filter(|(_, expression)| !expression.contains(':')).ok_or(form)?;
    let (rate, burst) = limit.split_once(':').filter(|(_, burst)| !burst.contains(':')).ok_or(form)?;
    Ok(Entry {
        text,
        place,
        service: signed(service)?,
        globs: globs(expression),
        rate: self::rate(rate)?,
        burst: self::burst(burst)?,
    })
}

/// Returns the name under which calls of a service are signed.
fn signed(service: &str) -> Result<&'static str, String> {
    let is_it =
        |(id, signed): &&(&str, &'static str)| id.eq_ignore_ascii_case(service) || signed.eq_ignore_ascii_case(service);
    SERVICES.iter().find(is_it).map(|(_, signed)| *signed).ok_or_else(|| {
        let ids: Vec<&str> = SERVICES.iter().map(|(id, _)| *id).collect();
        let near = did_you_mean(service, &ids);
        format!(
            "{service:?} is not a service that is known here{near}; expected its id in the AWS SDKs, such as \"EC2\" or \
             \"Elastic Load Balancing v2\""
        )
    })
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: Option<f64> = text.trim().parse().ok();
    rate.filter(|rate| *rate > 0.0 && *rate <= 1e9)
        .ok_or_else(|| format!("rate is {text:?}, expected calls per second above 0 and at most 1000000000"))
}

fn burst(text: &str) -> Result<u32, String> {
    let burst: Option<u32> = text.trim().parse().ok();
    burst.filter(|burst| *burst > 0).ok_or_else(|| format!("burst is {text:?}, expected a whole number of at least 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(value: &str) -> String {
        entries(value).filter_map(Result::err).map(|error| error.to_string()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn bad_entries_say_which_and_what_was_expected() {
        let form = "expected Service:expression=rate:burst, as in EC2:Describe.*=10:20";
        for (value, expected) in [
            ("", format!("entry 1, \"\": {form}")),
            ("EC2:Describe.*=10:20,EC2", format!("entry 2, \"EC2\": {form}")),
            ("EC2=10:20", format!("entry 1, \"EC2=10:20\": {form}")),
            ("EC2:a=b=10:20", format!("entry 1, \"EC2:a=b=10:20\": {form}")),
            ("EC2:.*=10", format!("entry 1, \"EC2:.*=10\": {form}")),
            (
                "EC2:.*=fast:20",
                "entry 1, \"EC2:.*=fast:20\": rate is \"fast\", expected calls per second above 0 and at most 1000000000".to_owned(),
            ),
            (
                "EC2:.*=inf:20",
                "entry 1, \"EC2:.*=inf:20\": rate is \"inf\", expected calls per second above 0 and at most 1000000000".to_owned(),
            ),
            ("EC2:.*=1:0", "entry 1, \"EC2:.*=1:0\": burst is \"0\", expected a whole number of at least 1".to_owned()),
            (
                "Elastic Load Balancing 2:.*=1:1",
                "entry 1, \"Elastic Load Balancing 2:.*=1:1\": \"Elastic Load Balancing 2\" is not a service that is known here \
                 (did you mean \"Elastic Load Balancing v2\"?); expected its id in the AWS SDKs, such as \"EC2\" or \
                 \"Elastic Load Balancing v2\""
                    .to_owned(),
            ),
        ] {
            assert_eq!(problem(value), expected, "{value}");
        }
    }

    #[test]
    fn a_value_is_read_as_it_stands_in_a_manifest() {
        for value in [
            "EC2:.*=1:2",
            "--aws-api-throttle=EC2:.*=1:2",
            "- --aws-api-throttle=EC2:.*=1:2",
            "  - \"--aws-api-throttle=EC2:.*=1:2\"\n",
            "--aws-api-throttle 'EC2:.*=1:2'",
            "\nec2:.*=1:2\n\n",
        ] {
            let read: Vec<_> =
                entries(value).map(|entry| entry.map(|entry| (entry.service, entry.rate, entry.burst))).collect();
            assert_eq!(read, [Ok(("ec2", 1.0, 2))], "{value}");
        }
    }
}
