//! Promotes candidates: writes a configuration file with them in place of the limits in force.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::candidate::{CANDIDATE, put_in_force};

/// Why no candidate can be promoted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromoteError {
    /// There is no such candidate.
    #[error("gates.{0}.candidate is missing in the file, expected a table with the limits to put in force")]
    Missing(String),
    /// No gate of the file has a candidate.
    #[error("no gate of the file has a candidate, expected [gates.NAME.candidate] with the limits to put in force")]
    Nothing,
    /// The file is not TOML.
    #[error("the file is not TOML: {0}")]
    Syntax(#[from] toml::de::Error),
}

/// Returns a file's text with the candidate of `gate`, or of all gates if `None`, as limits in
/// force.
///
/// All other lines stay as they are. If this fails because of an unusual layout, the file is
/// written anew, with the same values but without comments.
///
/// # Errors
/// There is no candidate, or the file is not TOML.
pub fn promoted(text: &str, gate: Option<&str>) -> Result<String, PromoteError> {
    let mut file: Table = toml::from_str(text)?;
    let mut lines = text.to_owned();
    let gates = file.get_mut("gates").and_then(Value::as_table_mut);
    let mut found = false;
    for (name, table) in gates.into_iter().flatten() {
        let Some(table) = table.as_table_mut().filter(|_| gate.is_none_or(|gate| gate == name)) else { continue };
        let Some(candidate) = table.get(CANDIDATE).and_then(Value::as_table).cloned() else { continue };
        let keys: Vec<String> = candidate.keys().cloned().collect();
        put_in_force(table, candidate);
        let limits = keys.into_iter().filter_map(|key| Some((key.clone(), table.get(&key)?.clone()))).collect();
        lines = replaced(&lines, name, &limits);
        found = true;
    }
    if !found {
        return Err(gate.map_or(PromoteError::Nothing, |gate| PromoteError::Missing(gate.to_owned())));
    }
    let is_same = toml::from_str::<Table>(&lines).is_ok_and(|read| read == file);
    Ok(if is_same { lines } else { file.to_string() })
}

/// Returns the text with these limits in the table of a gate, one per line, and without its
/// candidate.
fn replaced(text: &str, gate: &str, limits: &Table) -> String {
    let mut rest: BTreeSet<&String> = limits.keys().collect();
    let mut line_of =
        |key: &String| limits.get(key).filter(|_| rest.remove(key)).map(|value| format!("{key} = {value}\n"));
    let mut at = Vec::new();
    let mut out = String::new();
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        let header = line.trim_start().starts_with('[').then(|| steps(line)).flatten();
        let is_header = header.is_some();
        at = header.unwrap_or(at);
        let key = match at.strip_prefix(&["gates".to_owned(), gate.to_owned()]) {
            None => None,
            Some([]) if is_header => None,
            Some([]) => steps(line).and_then(|steps| steps.into_iter().next()),
            Some([key, ..]) => Some(key.clone()),
        };
        match key {
            Some(key) if at.len() == 2 && limits.contains_key(&key) => out.extend(line_of(&key)),
            Some(key) if key == CANDIDATE || limits.contains_key(&key) => {}
            Some(_) | None => out.push_str(line),
        }
        if at.len() == 2 && at[1] == gate && !line.trim().is_empty() {
            end = out.len();
        }
    }
    let new: String = limits.keys().filter_map(line_of).collect();
    match out.split_at_checked(end) {
        Some((before, after)) if end > 0 => format!("{before}{new}{after}"),
        _ => format!("{out}\n[gates.{gate}]\n{new}"),
    }
}

/// Returns the path of keys in a line, such as `a`, `b` for `a.b = 1` or `[a.b]`.
fn steps(line: &str) -> Option<Vec<String>> {
    let mut table: Table = toml::from_str(line).ok()?;
    let mut steps = Vec::new();
    while let Some((key, value)) = table.into_iter().next() {
        steps.push(key);
        table = match value {
            Value::Table(below) => below,
            _ => break,
        };
    }
    Some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# ours\n[gates.api]\nupstream = \"https://x\" # there\n# why 50\nbucket = { rate = 50, burst = 100 }\n\
                        key = \"auto\"\n\n[gates.api.queue] # waits\nmax_wait = \"4s\"\nfair_by = \"none\"\n\n[[gates.api.classes]]\n\
                        name = \"a\"\nmatch = {}\n# try more\n[gates.api.candidate]\nbucket.rate = 80\nin_flight = { max = 9 }\n\
                        [gates.api.candidate.queue]\nmax_wait = \"2s\"\n[gates.other]\nupstream = \"https://y\"\n";

    #[test]
    fn the_limits_are_replaced_and_all_other_lines_stay() {
        assert_eq!(
            promoted(FILE, None).expect("it has a candidate"),
            "# ours\n[gates.api]\nupstream = \"https://x\" # there\n# why 50\nbucket = { burst = 100, rate = 80 }\nkey = \"auto\"\n\
             in_flight = { max = 9 }\nqueue = { fair_by = \"none\", max_wait = \"2s\" }\n\n[[gates.api.classes]]\nname = \"a\"\nmatch = {}\n\
             # try more\n[gates.other]\nupstream = \"https://y\"\n"
        );
    }

    #[test]
    fn a_file_that_is_written_otherwise_keeps_its_values() {
        let inline = "gates = { api = { upstream = \"https://x\", candidate = { bucket = { rate = 5, burst = 6 } } } }";
        let table: Table = toml::from_str(&promoted(inline, Some("api")).expect("it has one")).expect("it is TOML");
        let api = &table["gates"]["api"];
        assert_eq!((api["bucket"]["burst"].as_integer(), api.get(CANDIDATE)), (Some(6), None));
        let spread =
            "[gates.api]\nupstream = \"https://x\"\nbucket = {\n rate = 5,\n burst = 6\n}\ncandidate.bucket.rate = 7\n";
        let table: Table = toml::from_str(&promoted(spread, None).expect("it has one")).expect("it is TOML");
        assert_eq!(table["gates"]["api"]["bucket"].to_string(), "{ burst = 6, rate = 7 }");
    }

    #[test]
    fn another_strategy_takes_no_delay_of_the_last() {
        let text = "[gates.api]\nbackoff = { base = \"2s\", hold = \"1ms\" }\ncandidate = { backoff = { strategy = \"off\" } }\n";
        let promoted = promoted(text, None).expect("it has one");
        assert_eq!(promoted, "[gates.api]\nbackoff = { hold = \"1ms\", strategy = \"off\" }\n");
    }

    #[test]
    fn a_candidate_that_is_not_there_is_named() {
        assert_eq!(promoted(FILE, Some("other")), Err(PromoteError::Missing("other".to_owned())));
        assert_eq!(promoted("[gates.a]\n", None), Err(PromoteError::Nothing));
    }
}
