//! The `tidegate` command.

use std::process::ExitCode;

/// glibc's allocator takes more than twice the instructions for the allocations of a call, and
/// keeps the memory of a crowd of connections after they have closed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::main()
}
