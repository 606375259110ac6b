//! The `tidegate` command.

use std::process::ExitCode;

/// The allocator. glibc's takes more than twice the instructions for the allocations of a call, and
/// keeps the memory of many connections after they have closed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::main()
}
