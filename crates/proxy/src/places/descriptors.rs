//! The process's file descriptors, as a bound on the number of client connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::of_process;
use crate::lock;

/// Raises the process's limit of file descriptors as far as permitted, and limits the number of
/// client connections accordingly.
pub fn bound_by_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = maximum.map_or(MOST_DESCRIPTORS, |maximum| maximum.min(MOST_DESCRIPTORS));
    if current.is_some_and(|current| current < raised) {
        let wanted = Rlimit { current: Some(raised), maximum };
        if let Err(error) = setrlimit(Resource::Nofile, wanted) {
            tracing::debug!(%error, "cannot raise the limit of open files: it stays as it is");
        }
    }
    lock(&of_process().state).most = Some(for_clients(descriptors()));
}

/// Returns the number of connections for a small listener: at most an eighth of the descriptors.
pub fn few(most: usize) -> usize {
    most.min(descriptors() / 8).max(1)
}

/// Returns how many file descriptors this process may have.
fn descriptors() -> usize {
    let current = getrlimit(Resource::Nofile).current.unwrap_or(MOST_DESCRIPTORS);
    usize::try_from(current.min(MOST_DESCRIPTORS)).unwrap_or(usize::MAX)
}

/// Returns how many clients a process with this many descriptors can serve. Each client may need
/// two: its own, and one for a connection to the upstream. Of 256 descriptors, 64 are for the
/// process itself and 64 for the small listeners; the other 128 serve 64 clients.
fn for_clients(descriptors: usize) -> usize {
    let small = |most: usize| most.min(descriptors / 8);
    let own = (descriptors / 3).min(64);
    (descriptors.saturating_sub(own + small(48) + 2 * small(16)) / 2).max(1)
}

/// The most file descriptors to ask for: more than any sidecar's memory can use.
const MOST_DESCRIPTORS: u64 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_enough_for_clients_and_their_upstreams() {
        for (descriptors, clients) in [(60, 9), (256, 64), (1024, 440), (65_536, 32_696)] {
            assert_eq!(for_clients(descriptors), clients);
        }
    }
}
