//! The `tidegate` command.

use std::process::ExitCode;

/// The allocator. glibc's takes more than twice the instructions for a call's allocations, and does
/// not return the memory of connections that have closed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::main()
}
