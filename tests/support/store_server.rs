//! The server with which tests of shared buckets start a store of their own.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Returns the program of a Valkey or Redis server, unless none is installed. Where
/// `TIDEGATE_REQUIRE_STORE` is set, both must be.
pub(crate) fn program() -> Option<PathBuf> {
    programs().into_iter().next()
}

/// Returns the programs of both engines, Valkey's first; `TIDEGATE_STORE_SERVER` names one to use
/// alone. It says which one is not installed, and fails where `TIDEGATE_REQUIRE_STORE` is set.
pub(crate) fn programs() -> Vec<PathBuf> {
    if let Some(named) = env::var_os("TIDEGATE_STORE_SERVER") {
        return vec![named.into()];
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let find = |(name, package): (&str, &str)| {
        let program = folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
        if program.is_none() {
            let why = format!("without {name}, which is not on the path: {package}");
            assert!(env::var_os("TIDEGATE_REQUIRE_STORE").is_none(), "{why}");
            eprintln!("skipped: {why}");
        }
        program
    };
    [("valkey-server", ".ci/valkey"), ("redis-server", "apt-get install redis-server")]
        .into_iter()
        .filter_map(find)
        .collect()
}

/// Starts a server that keeps nothing, on the Unix socket `s` of a folder.
pub(crate) fn spawn(program: &Path, folder: &Path, more: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(folder.join("s"));
    command.arg("--dir").arg(folder).args(more).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it starts")
}
