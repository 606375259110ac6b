//! Memory of what the limiter keeps: bytes requested from the heap, spare room in tables included,
//! and bytes as the system counts them. Each is measured in a process of its own, so that no value
//! lies in memory that another has freed.

use std::{env, fs, process::Command};

use crate::{
    gate::{Gate, usual},
    scenes::Hoard,
};

/// The bytes of one item of many.
pub(crate) struct Kept {
    pub(crate) allocated: u64,
    pub(crate) resident: u64,
}

/// Measures the bytes of each item of a hoard.
pub(crate) fn of(hoard: &Hoard) -> Kept {
    let this = env::current_exe().expect("the system knows");
    let done = Command::new(this).args(["keep", hoard.name]).output().expect("it has run before");
    let said = String::from_utf8_lossy(&done.stdout);
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let [allocated, resident] = numbers[..] else {
        panic!("{}: {}", hoard.name, String::from_utf8_lossy(&done.stderr))
    };
    Kept { allocated, resident }
}

/// Does the work of the child process.
pub(crate) fn keep(hoard: &Hoard) {
    // Memory that every process with a gate has once is counted for no item.
    let _first = Gate::new(usual());
    let before = resident();
    let mut kept = None;
    let heap = allocation_counter::measure(|| kept = Some((hoard.make)()));
    let resident = resident().saturating_sub(before);
    let allocated = u64::try_from(heap.bytes_current).expect("it is kept");
    println!("{} {}", allocated / hoard.count, resident / hoard.count);
    drop(kept);
}

/// The resident memory of the process in bytes; zero where the system does not say.
fn resident() -> u64 {
    let pages =
        fs::read_to_string("/proc/self/statm").ok().and_then(|statm| statm.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
