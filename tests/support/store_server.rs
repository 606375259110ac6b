//! The server with which tests of shared buckets start a store of their own.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Returns the program of a Valkey or Redis server, unless none is installed: then it says so, and
/// fails where `TIDEGATE_REQUIRE_STORE` is set.
pub(crate) fn program() -> Option<PathBuf> {
    let named = env::var_os("TIDEGATE_STORE_SERVER").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let programs =
        env::split_paths(&path).flat_map(|folder| ["valkey-server", "redis-server"].map(|name| folder.join(name)));
    let program = named.or_else(|| programs.into_iter().find(|file| file.is_file()));
    if program.is_none() {
        let why = "no valkey-server or redis-server is on the path: apt-get install redis-server";
        assert!(env::var_os("TIDEGATE_REQUIRE_STORE").is_none(), "{why}");
        eprintln!("skipped: {why}");
    }
    program
}

/// Starts a server that keeps nothing, on the Unix socket `s` of a folder.
pub(crate) fn spawn(program: &Path, folder: &Path, more: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(folder.join("s"));
    command.arg("--dir").arg(folder).args(more).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it starts")
}
