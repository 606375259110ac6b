//! The `tidegate` command.

use std::process::ExitCode;

/// glibc's takes more than twice the instructions for what a call allocates, and keeps what a crowd of connections held after they have closed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::main()
}
