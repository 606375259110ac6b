//! The memory limit of this process, and settings that exceed it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::spec::Gate;

/// Returns the memory limit of this process's control group, if it has one.
pub(super) fn limit() -> Option<usize> {
    limit_in(Path::new("/sys/fs/cgroup"))
}

/// Reads the limit of control groups v2, or else of v1, where a huge number means no limit.
fn limit_in(folder: &Path) -> Option<usize> {
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok();
    read("memory.max").or_else(|| read("memory/memory.limit_in_bytes")).filter(|limit| *limit < MOST)
}

/// Returns a problem if the kept answers of all gates may take more than half of the memory.
pub(super) fn problem<'a>(gates: impl Iterator<Item = &'a Gate>, limit: usize) -> Option<String> {
    let gates: Vec<(&Arc<str>, usize)> = gates
        .map(|gate| (&gate.name, gate.answers.revalidation.bytes_in_use()))
        .filter(|(_, bytes)| *bytes > 0)
        .collect();
    let all: usize = gates.iter().fold(0, |all, (_, bytes)| all.saturating_add(*bytes));
    let (name, bytes) = gates.into_iter().max_by_key(|(_, bytes)| *bytes).filter(|_| all > limit / 2)?;
    let together = if bytes < all { format!(" (with other gates {all})") } else { String::new() };
    Some(format!(
        "gates.{name}.revalidation.max_bytes: is {bytes} bytes{together}, but this process may use {limit} bytes of memory in all; \
         expected at most half of that, or a larger memory limit of the container"
    ))
}

/// A limit of this number or more means no limit.
const MOST: usize = 1 << 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn found(text: &str, limit: usize) -> Option<String> {
        let loaded = config::load_text("test".to_owned(), text.to_owned(), &[]).expect("it is right");
        problem(loaded.settings.gates.values(), limit)
    }

    #[test]
    fn answers_that_would_take_more_than_half_of_the_memory_are_a_problem() {
        let hub = "[gates.hub]\nupstream = \"https://api.github.com\"\npreset = \"github\"\n";
        assert_eq!(found(hub, 32 << 20), None, "16 MiB are half of it");
        let message = found(hub, (32 << 20) - 2).expect("too much");
        assert!(
            message.starts_with("gates.hub.revalidation.max_bytes: is 16777216 bytes, but this process"),
            "{message}"
        );
        let large = format!("{hub}revalidation.max_bytes = \"1GiB\"\n");
        assert!(
            found(&large, 128 << 20)
                .expect("too much")
                .contains("is 1073741824 bytes, but this process may use 134217728")
        );
        let other =
            "[gates.other]\nupstream = \"https://api.github.com\"\npreset = \"github\"\nlisten = \"127.0.0.1:8002\"\n";
        let both = found(&format!("{hub}{other}"), 40 << 20).expect("too much");
        assert!(both.contains("(with other gates 33554432)"), "{both}");
    }

    #[test]
    fn a_gate_that_keeps_nothing_needs_nothing() {
        let plain =
            "[gates.plain]\nkind = \"http\"\nupstream = \"https://api.test\"\nrevalidation.max_bytes = \"1GiB\"\n";
        assert_eq!(found(plain, 1 << 20), None);
    }

    #[test]
    fn the_limit_is_that_of_either_version_of_control_groups() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(limit_in(folder.path()), None);
        fs::create_dir(folder.path().join("memory")).expect("writable");
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).expect("writable");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit_in(folder.path()), None);
        write("memory/memory.limit_in_bytes", "67108864\n");
        assert_eq!(limit_in(folder.path()), Some(64 << 20));
        write("memory.max", "134217728\n");
        assert_eq!(limit_in(folder.path()), Some(128 << 20));
        write("memory.max", "max\n");
        write("memory/memory.limit_in_bytes", "no number\n");
        assert_eq!(limit_in(folder.path()), None);
    }
}
