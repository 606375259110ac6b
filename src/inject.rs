//! Adds the sidecar to workloads read as YAML, and takes it out again.
//!
//! What is not a workload passes through byte for byte. A workload is written anew from its parsed form: order, quoting and every value
//! stay; comments go, and anchors become what they stood for, because an edit of one of two places that share a node must not reach the
//! other. What was in the way of an edit is written down in an annotation of the pod, so that taking the sidecar out gives back the
//! original.

mod documents;
mod emit;
mod monitor;
mod record;
mod shape;
mod sidecar;
mod workload;

pub use self::sidecar::{Mode, Options, variables};
pub use crate::yaml::Unreadable;

use self::{documents::Document, workload::Found};
use crate::yaml;

/// A stream of YAML after the edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    /// The whole stream.
    pub text: String,
    /// The workloads that were edited, as `Kind/name`.
    pub changed: Vec<String>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Adds the sidecar to every workload of a stream; those that have it already get it anew, so that doing it twice is doing it once.
///
/// # Errors
/// When the stream is no YAML; says where.
pub fn inject(stream: &str, options: &Options) -> Result<Edited, Unreadable> {
    edit(stream, |found, edits| {
        if sidecar::is_foreign(found.pod()) {
            let title = found.title();
            edits.notes.push(format!("{title}: has something called tidegate that was not injected; left as it is"));
            return false;
        }
        sidecar::take_out(found);
        let added = sidecar::add(found, options, &mut edits.notes);
        if added && options.pod_monitor {
            match found.monitor() {
                Some(monitor) => edits.beside.push(monitor),
                None => {
                    edits.notes.push(format!("{}: has no labels that a PodMonitor could find it by", found.title()))
                }
            }
        }
        added
    })
}

/// Takes out what [`inject`] added.
///
/// # Errors
/// When the stream is no YAML; says where.
pub fn uninject(stream: &str) -> Result<Edited, Unreadable> {
    edit(stream, |found, _| sidecar::take_out(found))
}

/// What an edit of one document brings besides.
#[derive(Default)]
struct Edits {
    notes: Vec<String>,
    /// Documents to put after it.
    beside: Vec<yaml::Node>,
}

/// Edits the workloads of a stream; `change` says whether it changed one.
fn edit(stream: &str, mut change: impl FnMut(&mut Found<'_>, &mut Edits) -> bool) -> Result<Edited, Unreadable> {
    let mut edited = Edited { text: String::with_capacity(stream.len()), changed: Vec::new(), notes: Vec::new() };
    for Document { marker, text, line } in documents::split(stream) {
        let root = if documents::has_content(text) { yaml::read(text, line)? } else { None };
        let Some(mut root) = root else {
            edited.text.push_str(marker);
            edited.text.push_str(text);
            continue;
        };
        if monitor::is_ours(&root) {
            continue; // made anew beside its workload, or not wanted any more
        }
        let (mut edits, mut touched) = (Edits::default(), false);
        workload::each(&mut root, &mut |found| {
            if change(found, &mut edits) {
                edited.changed.push(found.title().to_owned());
                touched = true;
            }
        });
        edited.notes.append(&mut edits.notes);
        edited.text.push_str(marker);
        if !touched {
            edited.text.push_str(text);
            continue;
        }
        end_line(&mut edited.text);
        emit::document(&root, &mut edited.text);
        for beside in edits.beside {
            edited.text.push_str("---\n");
            emit::document(&beside, &mut edited.text);
        }
    }
    Ok(edited)
}

/// A document that is written anew starts on a line of its own.
fn end_line(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

#[cfg(test)]
mod tests;
