//! The server with which tests of shared buckets start a store of their own.

use std::env;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

/// Returns the program of a Valkey or Redis server.
pub fn program() -> Option<PathBuf> {
    programs().into_iter().next()
}

/// Returns the programs of both engines, Valkey's first, where `TIDEGATE_LIVE=1`; otherwise none.
/// `TIDEGATE_STORE_SERVER` names one to use alone.
pub fn programs() -> Vec<PathBuf> {
    if let Some(named) = env::var_os("TIDEGATE_STORE_SERVER") {
        return vec![named.into()];
    }
    if env::var_os("TIDEGATE_LIVE").is_none_or(|value| value != "1") {
        eprintln!("skipped: TIDEGATE_LIVE=1 runs it with real stores");
        return Vec::new();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let find = |(name, package): (&str, &str)| {
        let program = folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
        program.unwrap_or_else(|| panic!("without {name}, which is not on the path: {package}"))
    };
    [("valkey-server", ".ci/valkey"), ("redis-server", "apt-get install redis-server")].into_iter().map(find).collect()
}

/// A server's process. It ends with this, also where a test panics.
pub struct Process(Child);

// === impl Process ===

impl Process {
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"))
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }

    /// Sends it a signal, such as `-STOP`.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.0.id().to_string()]).status();
        assert!(sent.expect("there is kill").success());
    }

    /// Fails if it has ended.
    pub fn must_run(&mut self) {
        let ended = self.0.try_wait().expect("it was started");
        assert!(ended.is_none(), "the server has ended: {ended:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a server that keeps nothing, on the Unix socket `s` of a folder, and returns when it listens.
pub fn spawn(program: &Path, folder: &Path, more: &[&str]) -> Process {
    let mut command = Command::new(program);
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(folder.join("s"));
    let mut process = Process::start(command.arg("--dir").arg(folder).args(more));
    while UnixStream::connect(folder.join("s")).is_err() {
        process.must_run();
        thread::yield_now();
    }
    process
}

/// Returns the number of gates that share each bucket at a server's Unix socket.
pub fn members(socket: &Path) -> Vec<usize> {
    let client = redis::Client::open(format!("redis+unix://{}", socket.display())).expect("a URL");
    let mut connection = client.get_connection().expect("it takes connections");
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).expect("a list");
    let mut members = |key: &String| {
        let fields: Vec<String> = redis::cmd("HKEYS").arg(key).query(&mut connection).expect("a list");
        fields.iter().filter(|field| field.starts_with("m:")).count()
    };
    keys.iter().map(&mut members).collect()
}
