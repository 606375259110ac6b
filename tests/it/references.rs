//! References lead somewhere: a document, a source or a folder that a comment, a message or a page
//! names is in the repository.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The folders of the repository whose paths are checked wherever they occur.
const FOLDERS: &[&str] = &["src/", "crates/", "tests/", "docs/", "fuzz/", "benches/", ".ci/"];
/// The folders whose names also mean other things (`deploy/NAME` is a Deployment to kubectl): only
/// files in them are checked.
const FOLDERS_OF_FILES: &[&str] = &["config/", "deploy/"];
/// Folders that tools make, and that are not kept.
const GENERATED: &[&str] = &["fuzz/artifacts", "fuzz/corpus"];
/// Folders without prose: seeds and recorded answers.
const DATA: &[&str] = &["fuzz/seeds", "fuzz/artifacts", "fuzz/corpus", "tests/golden/vectors"];
/// Extensions of files that people write. A file without an extension is a script.
const WRITTEN: &[&str] =
    &["", "go", "java", "json", "md", "mjs", "py", "rs", "sh", "toml", "tpl", "txt", "yaml", "yml"];

/// Every file that may refer to another, by its path from the root.
fn files() -> Vec<(PathBuf, String)> {
    let (mut found, mut folders) = (Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("readable").map(|entry| entry.expect("readable")) {
            let path = entry.path().strip_prefix(root()).expect("below it").to_owned();
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().expect("it has one").is_dir() {
                let is_skipped = name == "target" || name == "node_modules" || (name.starts_with('.') && name != ".ci");
                if !is_skipped && !DATA.iter().any(|data| path == Path::new(data)) {
                    folders.push(entry.path());
                }
            } else if WRITTEN.contains(&extension(&path)) && !name.starts_with('.') {
                found.extend(fs::read_to_string(entry.path()).ok().map(|text| (path, text)));
            }
        }
    }
    assert!(found.len() > 400, "only {} files were found", found.len());
    found
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// The references of a line: names of documents anywhere, and paths from the root in prose.
fn references(line: &str, is_prose: bool) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-');
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(start) = rest.find(is_part) {
        let (_, after) = rest.split_at(start);
        let end = after.find(|c| !is_part(c)).unwrap_or(after.len());
        let (word, next) = after.split_at(end);
        let is_pattern = next.starts_with(['{', '*', '$', '<']);
        rest = next;
        let word = if is_pattern { word.rsplit_once('/').map_or("", |(folder, _)| folder) } else { word };
        let word = word.trim_end_matches(['.', '/', '-']);
        // A gate serves pages of the manual under their own paths: what is before is its port.
        let word = word.trim_start_matches(|c: char| c.is_ascii_digit());
        if word.starts_with("//") || word.contains("...") {
            continue; // a URL, or something left out
        }
        let is_file = word.rsplit('/').next().is_some_and(|name| name.contains('.'));
        let is_path = FOLDERS.iter().any(|folder| word.starts_with(folder))
            || is_file && FOLDERS_OF_FILES.iter().any(|folder| word.starts_with(folder));
        let is_document = word.strip_suffix(".md").is_some_and(|name| !name.is_empty() && !name.ends_with('/'));
        if is_document || is_path && is_prose {
            found.push(word.to_owned());
        }
    }
    found
}

/// True if a reference in `file` leads somewhere: from the root, from the file's own folder, or as
/// a module.
fn is_there(file: &Path, reference: &str) -> bool {
    let folder = root().join(file.parent().unwrap_or_else(|| Path::new("")));
    let from_root = root().join(reference.trim_start_matches('/'));
    GENERATED.contains(&reference)
        || from_root.exists()
        || from_root.with_extension("rs").exists()
        || folder.join(reference).exists()
}

/// True if a line of a file is written for people: every line of a document, and comments
/// elsewhere.
fn is_prose(file: &Path, line: &str) -> bool {
    let line = line.trim_start();
    match extension(file) {
        "md" => true,
        "rs" | "go" | "java" | "mjs" => line.starts_with("//"),
        "" | "py" | "sh" | "toml" => line.starts_with('#'),
        _ => false,
    }
}

#[test]
fn every_reference_leads_to_a_file_of_the_repository() {
    let (mut broken, mut seen) = (Vec::new(), 0);
    for (file, text) in files() {
        for (number, line) in text.lines().enumerate() {
            for reference in references(line, is_prose(&file, line)) {
                seen += 1;
                if !is_there(&file, &reference) {
                    broken.push(format!("{}:{}: {reference} is not in the repository", file.display(), number + 1));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(seen > 200, "only {seen} references were found");
}

/// ARCHITECTURE.md names modules by their path below `src`, and those of a crate behind its name.
#[test]
fn every_module_that_the_map_names_is_there() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it is there");
    let (mut missing, mut seen) = (Vec::new(), 0);
    for word in text.split('`').skip(1).step_by(2) {
        let Some((top, inside)) = word.split_once('/').filter(|(top, _)| !top.is_empty()) else { continue };
        let places = folders(top);
        if places.is_empty() {
            continue;
        }
        seen += 1;
        let is_in = |place: &PathBuf| place.join(inside).exists() || place.join(inside).with_extension("rs").exists();
        if !places.iter().any(is_in) {
            missing.push(format!("ARCHITECTURE.md: `{word}`: {top} has no such module"));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(seen > 5, "only {seen} were found");
}

/// Returns the folders of a module of the program or of a crate, and of a crate's sources.
fn folders(top: &str) -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).expect("crates is there");
    let mut places = vec![root().join("src").join(top), root().join("crates").join(top).join("src")];
    places.extend(crates.map(|entry| entry.expect("it is readable").path().join("src").join(top)));
    places.retain(|place| place.is_dir());
    places
}

#[test]
fn references_are_found_in_prose_and_documents_everywhere() {
    let gone = format!("GONE.{}", "md");
    let line =
        format!("see ({gone}, section 3), docs/{gone}#a and https://example.org/{gone}; `src/proxy`, src/*/x, a/b");
    assert_eq!(references(&line, false), [gone.clone(), format!("docs/{gone}")]);
    assert_eq!(references(&line, true), [gone.clone(), format!("docs/{gone}"), "src/proxy".to_owned()]);
    assert_eq!(references("deploy/operator, config/example.toml.", true), ["config/example.toml"]);
    assert!(is_there(Path::new("docs/README.md"), "README.md"));
    assert!(is_there(Path::new("src/lib.rs"), "/docs/README.md"));
    assert!(is_there(Path::new("docs/README.md"), "tests/it/references"));
    assert!(!is_there(Path::new("docs/README.md"), &gone));
}
