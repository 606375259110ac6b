//! The Go programs, each built at most once per machine and version.
//!
//! They live in `${XDG_CACHE_HOME:-~/.cache}/tidegate/kubernetes-HASH/bin`, HASH over go.sum and
//! the linker flags, so a fresh clone finds those that an older one has built. A file lock keeps
//! parallel test processes from building the same thing. A rename at the end means that a path that
//! exists is a finished program.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::fetched::{Fnv, cache_root, now, say};
use crate::live::is_required;

/// The version that the programs report: without it kubectl's skew checks see `v0.0.0-master`.
const VERSION: &str = "v1.36.3";

/// The folder of go.mod.
const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kubernetes");

/// Name and Go package of each program; ours are in folders here.
const PACKAGES: [(&str, &str); 9] = [
    ("etcd", "go.etcd.io/etcd/server/v3"),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    ("controller", "./controller"),
    ("node", "./node"),
    ("kubelet", "./kubelet"),
];

/// The programs, all of them built.
#[derive(Debug)]
pub struct Binaries {
    paths: HashMap<&'static str, PathBuf>,
}

impl Binaries {
    /// The programs, built on first use. Prints the reason and returns `None` if there is no Go to
    /// build them with.
    pub fn or_skip(test: &str) -> Option<&'static Self> {
        static FOUND: OnceLock<Result<Binaries, String>> = OnceLock::new();
        match FOUND.get_or_init(Self::find) {
            Ok(found) => Some(found),
            Err(why) if is_required() => {
                panic!("TIDEGATE_LIVE=1, but there is no control plane: {why}")
            }
            Err(why) => {
                say(format_args!("SKIPPED {test}: {why}"));
                None
            }
        }
    }

    /// The path of a program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.paths[name].clone()
    }

    fn find() -> Result<Self, String> {
        let sums = fs::read(Path::new(MODULE).join("go.sum")).map_err(|e| format!("go.sum: {e}"))?;
        let mut hash = Fnv::default();
        hash.add(&sums).add(linker_flags().as_bytes());
        let root = cache_root()?.join(format!("kubernetes-{:016x}", hash.0));
        let bin = root.join("bin");
        fs::create_dir_all(&bin).map_err(|e| format!("{}: {e}", bin.display()))?;
        let mut paths = HashMap::new();
        for (name, package) in PACKAGES {
            // An edit of our own sources builds them again.
            let file = match package.strip_prefix("./") {
                Some(folder) => format!("{name}-{:016x}", own_sources(folder)?),
                None => name.to_owned(),
            };
            paths.insert(name, bin.join(file));
        }
        let found = Self { paths };
        if PACKAGES.iter().all(|(name, _)| found.path(name).exists()) {
            return Ok(found);
        }
        let lock = File::create(root.join("lock")).map_err(|e| format!("lock file: {e}"))?;
        lock.lock().map_err(|e| format!("lock file: {e}"))?;
        for (name, package) in PACKAGES {
            build(package, &found.path(name))?;
        }
        Ok(found)
    }
}

fn build(package: &str, to: &Path) -> Result<(), String> {
    if to.exists() {
        return Ok(());
    }
    say(format_args!("building {package}, once for this machine; the whole control plane takes some minutes"));
    let start = now();
    let unfinished = to.with_extension("unfinished");
    let run = Command::new("go")
        .current_dir(MODULE)
        .env("CGO_ENABLED", "0")
        .args(["build", "-p", "2", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", &linker_flags(), "-o"])
        .arg(&unfinished)
        .arg(package)
        .output()
        .map_err(|e| format!("Go is needed to build {package}, and `go` does not run: {e}"))?;
    if !run.status.success() {
        let said = String::from_utf8_lossy(&run.stderr);
        // Wrong source is our fault; everything else (no network, an old Go) is the machine's.
        assert!(!package.starts_with('.'), "{package} does not build:\n{said}");
        return Err(format!("go build {package}: {}", said.lines().last().unwrap_or("no reason given")));
    }
    fs::rename(&unfinished, to).map_err(|e| format!("{}: {e}", to.display()))?;
    say(format_args!("built {package} in {:.0} s", start.elapsed().as_secs_f64()));
    Ok(())
}

fn linker_flags() -> String {
    let mut parts = VERSION.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let set = "-X k8s.io/component-base/version.git";
    format!("-s -w {set}Version={VERSION} {set}Major={major} {set}Minor={minor}")
}

/// The hash of one of our own programs.
fn own_sources(folder: &str) -> Result<u64, String> {
    let folder = Path::new(MODULE).join(folder);
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let mut hash = Fnv::default();
    for file in files {
        hash.add(&fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?);
    }
    Ok(hash.0)
}
