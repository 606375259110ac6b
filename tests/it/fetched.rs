//! Programs that come from Debian and PyPI: fetched once per machine into the cache where the control plane's programs are too, without root.
//! What cannot be had is a reason to skip, said plainly; with `TIDEGATE_REQUIRE_KUBERNETES=1` it is a failure.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

/// Downloads packages named as arguments, and with `DEPENDS=1` whatever they need that this machine has not; unpacks all of them here. Where
/// nobody has asked Debian what it has, that is asked here too.
const UNPACK: &str = r#"
mkdir -p cache/archives/partial
fetch() {
  if [ "$DEPENDS" = 1 ]; then
    apt-get --quiet --yes --download-only --no-install-recommends -o Debug::NoLocking=1 -o Dir::Cache="$PWD/cache" $lists install "$@"
  else
    (cd cache/archives && apt-get --quiet $lists download "$@")
  fi
}
lists=
if ! fetch "$@"; then
  mkdir -p state/lists/partial
  lists="-o Dir::State=$PWD/state -o Dir::State::status=/var/lib/dpkg/status"
  apt-get --quiet -o Dir::Cache="$PWD/cache" $lists update
  fetch "$@"
fi
for package in cache/archives/*.deb; do dpkg -x "$package" .; done
rm -rf cache state
"#;

/// What was found; or `None` with the reason said, or a panic where everything has to be there.
pub(crate) fn or_skip<T>(test: &str, found: Result<T, String>) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(why) if std::env::var_os("TIDEGATE_REQUIRE_KUBERNETES").is_some_and(|value| value == "1") => {
            panic!("TIDEGATE_REQUIRE_KUBERNETES=1, but {test} misses a program: {why}")
        }
        Err(why) => {
            // Past libtest's capture, so that it shows in a run that passes.
            drop(writeln!(std::io::stdout().lock(), "SKIPPED {test}: {why}"));
            None
        }
    }
}

/// A folder with `prometheus` and `promtool`: static programs, which need nothing else of their package.
pub(crate) fn prometheus() -> Result<PathBuf, String> {
    let folder = made("prometheus", |folder| unpack(folder, &["prometheus"], false))?;
    Ok(folder.join("usr/bin"))
}

fn unpack(folder: &Path, packages: &[&str], with_what_they_need: bool) -> Result<(), String> {
    let mut script = Command::new("sh");
    script.current_dir(folder).args(["-ec", UNPACK, "sh"]).args(packages);
    run(script.env("DEPENDS", if with_what_they_need { "1" } else { "0" }))
}

/// A folder of the cache that `make` fills once.
fn made(name: &str, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let named = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let root = named.or_else(home).ok_or("neither XDG_CACHE_HOME nor HOME says where a cache may be")?;
    let (root, failed) = (root.join("tidegate/debian"), |error: std::io::Error| format!("{name}: {error}"));
    fs::create_dir_all(&root).map_err(failed)?;
    let lock = File::create(root.join(format!("{name}.lock"))).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let folder = root.join(name);
    if folder.join(".finished").exists() {
        return Ok(folder);
    }
    // What an interrupted run has left.
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).map_err(failed)?;
    make(&folder)?;
    fs::write(folder.join(".finished"), "").map_err(failed)?;
    Ok(folder)
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.output().map_err(|error| format!("{name} is needed, and does not run: {error}"))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(format!("{name} ended with {}: {last}", out.status))
}
