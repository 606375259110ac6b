//! A release is made by scripts that CI runs too, from actions that cannot change under it, and
//! every file that names the version has the same.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The values of a key in a workflow, one for each line that has it.
fn values(workflow: &str, key: &str) -> Vec<String> {
    let key = format!("{key}: ");
    let lines = workflow.lines().map(|line| line.trim_start().trim_start_matches("- "));
    lines.filter_map(|line| line.strip_prefix(&key)).map(str::to_owned).collect()
}

#[test]
fn every_action_of_the_release_is_pinned_by_a_commit() {
    let workflow = text(".github/workflows/release.yml");
    let actions = values(&workflow, "uses");
    assert!(actions.len() >= 5, "{actions:?}");
    for action in actions {
        let (_, rest) = action.split_once('@').unwrap_or_else(|| panic!("{action} has no commit"));
        let (commit, version) = rest.split_once(" # v").unwrap_or_else(|| panic!("{action} does not say its version"));
        assert!(commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit()), "{action}: {commit} is no commit");
        assert!(version.split('.').count() == 3, "{action}: {version} is no version");
    }
    let rights: Vec<_> = workflow.lines().filter(|line| line.starts_with("permissions:")).collect();
    assert_eq!(rights, ["permissions: {}"], "a job asks for what it needs");
}

#[test]
fn every_step_of_the_release_is_a_script_that_ci_rehearses() {
    let (workflow, rehearsal) = (text(".github/workflows/release.yml"), text(".ci/release/rehearse"));
    let steps = values(&workflow, "run");
    let scripts: BTreeSet<_> = steps.iter().filter_map(|step| step.split_whitespace().next()).collect();
    assert!(scripts.len() >= 5, "{scripts:?}");
    for script in scripts {
        assert!(script.starts_with(".ci/release/") && root().join(script).is_file(), "{script} is not a script");
        assert!(rehearsal.contains(&format!("\n{script} ")) || rehearsal.contains(&format!(" {script} ")), "{script}");
    }
    let run = text(".ci/run");
    for script in [".ci/release/rehearse", ".ci/install", "tool actionlint"] {
        assert!(run.contains(script), ".ci/run does not run {script}");
    }
}

/// A copy of the files that have the version or the image's name, as a repository.
fn copied() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |program: &str, arguments: &[&str], at: &Path| {
        let out = Command::new(program).args(arguments).current_dir(at).output().expect("it runs");
        assert!(out.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    for part in [
        "src/release.rs",
        "Cargo.toml",
        "Cargo.lock",
        "crates",
        "Dockerfile",
        "CHANGELOG.md",
        "README.md",
        "deploy",
        "docs",
        ".ci",
    ] {
        let to = folder.path().join(part);
        fs::create_dir_all(to.parent().expect("it is below")).expect("the folder is ours");
        let from = root().join(part).display().to_string();
        run("cp", &["-r", &from, &to.display().to_string()], root());
    }
    run("git", &["init", "--quiet"], folder.path());
    run("git", &["add", "."], folder.path());
    folder
}

fn script(folder: &Path, arguments: &[&str]) -> Output {
    let program: PathBuf = folder.join(".ci/release").join(arguments[0]);
    Command::new(program).args(&arguments[1..]).current_dir(folder).output().expect("python3 runs it")
}

/// Runs a script, and returns what it said and whether it succeeded.
fn said(folder: &Path, arguments: &[&str]) -> (bool, String) {
    let out = script(folder, arguments);
    let said = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (out.status.success(), said)
}

#[test]
fn every_file_that_names_the_version_has_that_of_the_package() {
    let (right, said) = said(root(), &["version", "check"]);
    assert!(right && said.trim() == env!("CARGO_PKG_VERSION"), "{said}");
}

#[test]
fn a_new_version_is_written_everywhere_by_one_command() {
    let folder = copied();
    let said = |arguments: &[&str]| said(folder.path(), arguments);
    assert_eq!(said(&["version", "set", "7.8.9-rc.1"]), (true, "7.8.9-rc.1\n".to_owned()));
    let read = |path: &str| fs::read_to_string(folder.path().join(path)).expect("it is there");
    for (path, line) in [
        ("deploy/kustomize/sidecar.yaml", concat!("registry.example/", "tidegate:7.8.9-rc.1")),
        ("deploy/helm/tidegate/Chart.yaml", "appVersion: \"7.8.9-rc.1\""),
        ("Dockerfile", "ARG VERSION=7.8.9-rc.1"),
        ("docs/getting-started.md", concat!("registry.example/", "tidegate:7.8.9-rc.1")),
    ] {
        assert!(read(path).contains(line), "{path} has no {line}");
    }
    let (is_taken, why) = said(&["version", "set", "7.8"]);
    assert!(!is_taken && why.contains("7.8 is not a version, expected"), "{why}");

    // A tag is held to the sources and to the changelog.
    let (is_taken, why) = said(&["version", "check", "v7.8.9-rc.1"]);
    assert!(!is_taken && why.contains("CHANGELOG.md has nothing under"), "{why}");
    assert!(said(&["version", "cut", "2027-01-02"]).0);
    assert!(said(&["version", "check", "v7.8.9-rc.1"]).0);
    let (is_taken, why) = said(&["version", "check", "v7.8.9"]);
    assert!(!is_taken && why.contains("the tag is v7.8.9, expected v7.8.9-rc.1"), "{why}");
    let (is_found, notes) = said(&["version", "notes"]);
    assert!(is_found && notes.contains("- **") && !notes.contains("## ["), "{notes}");

    // One file that was forgotten is named.
    let chart = folder.path().join("deploy/helm/tidegate/Chart.yaml");
    fs::write(&chart, read("deploy/helm/tidegate/Chart.yaml").replace("\nversion: 7.8.9-rc.1", "\nversion: 1.0.0"))
        .unwrap();
    let (is_taken, why) = said(&["version", "check"]);
    assert!(!is_taken && why.contains("Chart.yaml: has 1.0.0, expected 7.8.9-rc.1"), "{why}");
}

#[test]
fn the_released_name_is_put_into_everything_that_users_apply() {
    let folder = copied();
    let (done, why) = said(folder.path(), &["stamp", "Some-Body/tidegate"]);
    assert!(done && why.contains("ghcr.io/some-body/tidegate in "), "{why}");
    let read = |path: &str| fs::read_to_string(folder.path().join(path)).expect("it is there");
    for path in ["src/release.rs", "deploy/helm/tidegate/values.yaml", "deploy/kustomize/sidecar.yaml", "README.md"] {
        let text = read(path);
        assert!(!text.contains("registry.example/tidegate"), "{path}");
        assert!(path == "README.md" || text.contains("ghcr.io/some-body/tidegate"), "{path}");
    }
    assert!(read("Cargo.toml").contains("\nrepository = \"https://github.com/Some-Body/tidegate\"\n"));
    let (again, why) = said(folder.path(), &["stamp", "Some-Body/tidegate"]);
    assert!(again && why.contains("in 0 files"), "{why}");
    let (other, why) = said(folder.path(), &["stamp", "another/tidegate"]);
    assert!(!other && why.contains("have another name already"), "{why}");
}

/// Every compiler from the oldest that the package names can build it: none of what is linked in
/// needs a newer one.
#[test]
fn no_dependency_needs_a_newer_compiler_than_the_package_says() {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root()).args(["metadata", "--format-version=1", "--locked"]);
    let metadata = command.output().expect("cargo runs this test");
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).expect("JSON");
    let numbers = |version: &str| {
        let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0_u32));
        [(); 3].map(|()| parts.next().unwrap_or(0))
    };
    let packages = metadata["packages"].as_array().expect("packages");
    let of = |package: &serde_json::Value| package["rust_version"].as_str().map(str::to_owned);
    let ours = packages.iter().find(|package| package["name"] == "tidegate").and_then(of).expect("it says one");
    let newer = packages.iter().filter(|package| of(package).is_some_and(|needed| numbers(&needed) > numbers(&ours)));
    let newer: Vec<_> = newer.map(|package| format!("{} {}", package["name"], package["rust_version"])).collect();
    assert!(newer.is_empty(), "these need more than {ours}: {newer:?}");
}
