//! `key = [...]`: what the keys of a gate or a class are made of.

use super::{
    field::Field,
    leaf::Anything,
    path::Path,
    problems::{Report, did_you_mean},
};
use crate::classify::{KeyPart, KeyPartError, KeyParts, KeyPartsError};

/// `key`: parts of one's own, or `None` for `"auto"`; nothing at all where it is absent or wrong.
pub(super) fn key(field: &Field<Anything>, at: &Path, report: &mut Report<'_>) -> Option<Option<KeyParts>> {
    let items = match field.get(at, report)?.0 {
        toml::Value::String(word) if word == "auto" => return Some(None),
        toml::Value::Array(items) => items,
        other => {
            let shown = super::field::shown(&other);
            report.problem(at, format!("is {shown}, expected \"auto\" or a list such as [\"verb\", \"path\"]"));
            return None;
        }
    };
    let before = report.problems.len();
    let parts: Vec<KeyPart> =
        items.iter().enumerate().filter_map(|(index, item)| key_part(item, &at.index(index), report)).collect();
    if report.problems.len() > before {
        return None;
    }
    match KeyParts::new(parts) {
        Ok(parts) => return Some(Some(parts)),
        Err(error @ KeyPartsError::Twice { index }) => report.problem(&at.index(index), error.to_string()),
        Err(error @ KeyPartsError::Empty) => report.problem(at, error.to_string()),
    }
    None
}

fn key_part(item: &toml::Value, at: &Path, report: &mut Report<'_>) -> Option<KeyPart> {
    let shown = super::field::shown(item);
    let Some(text) = item.as_str() else {
        report.problem(at, format!("is {shown}, expected text in quotes"));
        return None;
    };
    let part = text.parse();
    if let Err(error) = &part {
        let near = if *error == KeyPartError::Unknown { did_you_mean(text, &KEY_PARTS) } else { String::new() };
        report.problem(at, format!("is {shown}, {error}{near}"));
    }
    part.ok()
}

const KEY_PARTS: [&str; 5] = ["verb", "path", "query:NAME", "header:NAME", "body"];
