//! Adds the sidecar to workloads in manifests, and removes it again.
//!
//! Documents without a workload stay unchanged byte for byte. A workload is written anew from its
//! parsed form: order, quoting and every value stay, comments are lost, and anchors are expanded. A
//! workload in JSON is written as JSON. An annotation of the pod records the replaced values, so
//! that removing the sidecar restores the original.

mod checks;
mod documents;
mod egress;
mod emit;
mod json;
mod monitor;
mod options;
mod parts;
mod record;
mod services;
mod shape;
mod sidecar;
mod workload;

pub use self::checks::LABEL;
pub use self::egress::{Client, EgressOptions, client};
pub use self::options::{Mode, Options, variables};
pub use crate::yaml::YamlError;

use self::documents::Document;
use self::sidecar::InjectError;
use self::workload::Workload;
use crate::yaml::{self, Node};

/// The result of editing a stream of manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// The whole stream, with the edits.
    pub text: String,
    /// The edited workloads, as `Kind/name`.
    pub changed: Vec<String>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// The reasons for not editing workloads, each with a remedy.
    pub refused: Vec<String>,
}

/// Adds the sidecar to every workload of a stream. An existing sidecar is replaced, so that a
/// second run changes nothing.
///
/// # Errors
/// The stream is not YAML; the error has the line.
pub fn inject(stream: &str, options: &Options) -> Result<Edit, YamlError> {
    let mut refused = Vec::new();
    let mut without = Vec::new();
    let mut pointed = Vec::new();
    let mut edited = edit(stream, |found, notes, beside| {
        let title = found.title.clone();
        if checks::is_left_out(found.pod) {
            notes.push(format!("its pods have the label {LABEL}: disabled, so it is not changed"));
            return false;
        }
        let before = found.pod.clone();
        sidecar::take_out(found);
        match sidecar::add(found, options, notes) {
            Ok(containers) => pointed.extend(containers),
            Err(not_added) => {
                *found.pod = before;
                match not_added {
                    InjectError::NoneNamed(reason) => without.push(format!("{title}: {reason}")),
                    InjectError::Refused(reasons) => {
                        refused.extend(reasons.into_iter().map(|reason| format!("{title}: {reason}")));
                    }
                }
                return false;
            }
        }
        if options.pod_monitor {
            match monitor::of(found) {
                Some(monitor) => beside.push(monitor),
                None => notes.push("its pods have no labels that a PodMonitor could select them by".to_owned()),
            }
        }
        true
    })?;
    // A stream may have workloads without the named container, if another one has it.
    if pointed.is_empty() {
        refused.extend(without);
    } else {
        edited.notes.extend(without.into_iter().map(|note| format!("{note}; not changed")));
        let unknown = options.containers.iter().filter(|name| !pointed.contains(name));
        refused.extend(unknown.map(|name| format!("--container {name}: no workload has a container of that name")));
    }
    edited.refused = refused;
    Ok(edited)
}

/// Removes everything added by [`inject`].
///
/// # Errors
/// The stream is not YAML; the error has the line.
pub fn uninject(stream: &str) -> Result<Edit, YamlError> {
    edit(stream, |found, _, _| sidecar::take_out(found))
}

/// Returns the objects of a stream.
///
/// # Errors
/// The stream is not YAML; the error has the line.
pub fn objects(stream: &str) -> Result<Vec<serde_json::Value>, YamlError> {
    let mut objects = Vec::new();
    for Document { text, line, .. } in documents::split(stream) {
        let read = yaml::read_only(&json::for_yaml(text), line)?;
        objects.extend(read.and_then(|root| serde_json::from_str(&json::document(&root)).ok()));
    }
    Ok(objects)
}

/// Calls `change` for every workload of a stream, and returns the edited stream.
///
/// `change` returns true if it has changed the workload. It can add notes, and further documents to
/// be written after the workload's.
fn edit(
    stream: &str,
    mut change: impl FnMut(&mut Workload<'_>, &mut Vec<String>, &mut Vec<Node>) -> bool,
) -> Result<Edit, YamlError> {
    let mut edited = Edit::default();
    for Document { marker, text, line, is_json_among_others } in documents::split(stream) {
        let read = if documents::has_content(text) { yaml::read_only(&json::for_yaml(text), line)? } else { None };
        if read.as_ref().is_some_and(monitor::is_ours) {
            continue; // made again beside its workload, if still wanted
        }
        edited.text.push_str(marker);
        let Some(read) = read else {
            edited.text.push_str(text);
            continue;
        };
        let mut root = read.clone();
        let mut beside = Vec::new();
        let mut touched = false;
        workload::each(&mut root, &mut |found| {
            let mut notes = Vec::new();
            if change(found, &mut notes, &mut beside) {
                edited.changed.push(found.title.clone());
                touched = true;
            }
            edited.notes.extend(notes.into_iter().map(|note| format!("{}: {note}", found.title)));
        });
        if !touched {
            edited.text.push_str(text);
            continue;
        }
        let written = if json::is_json(text) { json::document } else { emit::document };
        if read == root {
            edited.text.push_str(text);
        } else {
            start_line(&mut edited.text);
            edited.text.push_str(&written(&root));
        }
        for document in beside {
            start_line(&mut edited.text);
            if !is_json_among_others {
                edited.text.push_str("---\n");
            }
            edited.text.push_str(&written(&document));
        }
    }
    Ok(edited)
}

/// Ends the last line of the text with a line break, if it has none.
fn start_line(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

/// Parses a template of the folder `templates`.
fn template(text: &str) -> Node {
    yaml::read(text, 0).ok().flatten().expect("the templates are YAML, and every test of this folder reads them")
}

#[cfg(test)]
mod tests;
