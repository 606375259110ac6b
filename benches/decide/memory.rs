//! Bytes of what is kept: as they were asked of the heap, spare room in tables included, and as the
//! system sees them. Each in a process of its own, so that nothing lies in room that something else
//! has left.

use std::process::Command;
use std::{env, fs};

use crate::gate::{Gate, usual};
use crate::scenes::Hoard;

/// The bytes of one item of many.
pub(crate) struct Kept {
    pub(crate) allocated: u64,
    pub(crate) resident: u64,
}

/// The bytes that each of a hoard takes.
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

/// Makes a hoard, in the child process.
pub(crate) fn keep(hoard: &Hoard) {
    // Everything that a process has once, however many gates it makes, is not counted.
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
