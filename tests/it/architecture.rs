//! Holds the sources to the import rule of ARCHITECTURE.md: which module may use which.

mod circles;
mod listeners;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the crate that each top-level module may import. A module that is missing here
/// fails the test: it must be placed first.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("bind", &[]),
    ("body", &[]),
    ("hosts", &[]),
    ("places", &["clock"]),
    ("words", &[]),
    ("controls", &[]),
    ("clock", &[]),
    ("agenda", &[]),
    ("chart", &[]),
    ("controller", &["agenda"]),
    ("dialect", &["api"]),
    ("random", &[]),
    ("release", &[]),
    ("status", &["controls"]),
    ("telemetry", &["clock", "controls", "api", "limit"]),
    ("tls", &["clock"]),
    ("own_client", &["clock", "tls"]),
    ("yaml", &[]),
    ("credentials", &["clock", "own_client", "spec", "tls", "yaml"]),
    ("api", &["limit"]),
    ("hot", &["api", "limit"]),
    ("limit", &[]),
    ("clients", &["classify", "clock", "credentials", "spec", "telemetry"]),
    ("classify", &["api", "dialect", "limit"]),
    ("spec", &["api", "classify", "limit"]),
    ("config", &["api", "classify", "dialect", "hot", "limit", "spec", "words", "yaml"]),
    ("upstream", &["api", "clock", "credentials", "limit", "spec", "telemetry", "tls"]),
    (
        "proxy",
        &[
            "api",
            "bind",
            "classify",
            "clients",
            "clock",
            "credentials",
            "dialect",
            "hosts",
            "hot",
            "limit",
            "places",
            "spec",
            "status",
            "telemetry",
            "tls",
            "upstream",
        ],
    ),
    ("admin", &["bind", "body", "clock", "controls", "hosts", "places", "spec", "status", "telemetry"]),
    ("demo", &["chart", "clock", "controller", "own_client", "places", "random", "simulate"]),
    (
        "simulate",
        &["agenda", "api", "chart", "classify", "config", "controller", "hot", "limit", "random", "spec", "status"],
    ),
    ("state", &["api", "limit"]),
    ("store", &["clock", "credentials", "limit", "spec", "telemetry", "tls"]),
    ("inject", &["yaml"]),
    ("otlp", &["clock", "own_client", "spec", "telemetry", "tls"]),
    ("webhook", &["bind", "body", "classify", "clock", "credentials", "inject", "places", "tls"]),
    (
        "app",
        &[
            "admin",
            "classify",
            "clients",
            "clock",
            "config",
            "credentials",
            "inject",
            "otlp",
            "places",
            "proxy",
            "spec",
            "state",
            "status",
            "store",
            "telemetry",
            "tls",
            "upstream",
            "webhook",
        ],
    ),
    (
        "cli",
        &[
            "admin",
            "app",
            "api",
            "chart",
            "classify",
            "clients",
            "clock",
            "config",
            "credentials",
            "demo",
            "inject",
            "limit",
            "proxy",
            "release",
            "simulate",
            "spec",
            "status",
            "store",
            "telemetry",
            "tls",
            "upstream",
            "webhook",
            "yaml",
        ],
    ),
    ("lib", &[]),
    ("main", &["cli"]),
];

/// Crates that only one module (and its children) may name: none of their types leaks out.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("governor", &["limit"]),
    ("dashmap", &["limit"]),
    ("hickory_resolver", &["upstream"]),
    ("metrics_exporter_prometheus", &["telemetry"]),
    ("redis", &["store"]),
    ("opentelemetry", &["otlp"]),
    ("opentelemetry_http", &["otlp"]),
    ("opentelemetry_otlp", &["otlp"]),
    ("opentelemetry_sdk", &["otlp"]),
    ("anyhow", &["app", "cli", "main"]),
    ("clap", &["cli"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
];

/// Crates that the limiter must not know: it does no I/O, reads no clock and reports by returning.
const NEVER_IN_LIMIT: &[&str] =
    &["tokio", "hyper", "hyper_util", "http", "tower", "serde", "metrics", "tracing", "config", "rustls"];

#[test]
fn modules_import_only_what_the_architecture_lets_them() {
    let rules: BTreeMap<&str, BTreeSet<&str>> =
        MAY_IMPORT.iter().map(|(module, may)| (*module, may.iter().copied().collect())).collect();
    let mut broken = Vec::new();
    for (file, module, text) in sources() {
        let Some(may) = rules.get(module.as_str()) else {
            broken.push(format!("{}: module `{module}` has no place in the import rule", file.display()));
            continue;
        };
        for used in crate_paths(&text) {
            if used != module && rules.contains_key(used.as_str()) && !may.contains(used.as_str()) {
                broken.push(format!("{}: `{module}` may not import `{used}`", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "the import rule of ARCHITECTURE.md is broken:\n{}", broken.join("\n"));
}

#[test]
fn libraries_stay_inside_the_module_that_uses_them() {
    let mut broken = Vec::new();
    for (file, module, text) in sources() {
        for (library, homes) in ONLY_IN {
            if names(&text, library) && !homes.contains(&module.as_str()) {
                broken.push(format!("{}: `{library}` belongs to {homes:?}", file.display()));
            }
        }
        if module == "limit" {
            for library in NEVER_IN_LIMIT.iter().filter(|library| names(&text, library)) {
                broken.push(format!("{}: the limiter must not know `{library}`", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Files whose code runs before the log has begun. What they have to say goes into what they return:
/// `check` and `doctor` show it, and `run` logs it.
const BEFORE_THE_LOG: [&str; 7] = [
    "src/app/gate.rs",
    "src/app/prepare.rs",
    "src/app/source.rs",
    "crates/config/src/config",
    "src/credentials.rs",
    "src/credentials/kubeconfig",
    "src/credentials/proxy.rs",
];

#[test]
fn what_runs_before_the_log_does_not_log() {
    let files = sources().into_iter().filter(|(file, ..)| {
        let file = file.display().to_string();
        BEFORE_THE_LOG.iter().any(|part| file.contains(part))
    });
    let (logging, quiet): (Vec<_>, Vec<_>) = files.partition(|(_, _, text)| names(text, "tracing"));
    assert!(logging.is_empty(), "{:?}", logging.iter().map(|(file, ..)| file).collect::<Vec<_>>());
    assert!(quiet.len() > 20, "they were not found");
}

#[test]
fn every_file_opens_with_what_it_is_and_stays_readable() {
    let mut broken = Vec::new();
    for (file, _, text) in sources() {
        if !text.starts_with("//!") {
            broken.push(format!("{}: does not open with `//!`", file.display()));
        }
        let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count();
        if lines > 400 {
            broken.push(format!(
                "{}: {lines} lines before its tests; past 400 a file usually has two ideas",
                file.display()
            ));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// A panic's text goes to the log of the pod. The panics that are left (an index, an `expect` with
/// its reason) have fixed texts, and errors whose `Debug` shows no secret. A panic that formats
/// values could show any.
#[test]
fn no_panic_of_the_product_formats_a_value() {
    let mut broken = Vec::new();
    for (file, _, text) in sources().into_iter().filter(|(file, ..)| !is_test(file)) {
        let code = code(&text);
        for word in
            ["panic!(", "unreachable!(", "unimplemented!(", "todo!(", " assert!(", " assert_eq!(", " assert_ne!("]
        {
            if code.contains(word) {
                broken.push(format!("{}: `{word}` outside of tests", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// True if a file is a module of tests.
fn is_test(file: &Path) -> bool {
    let text = |part: &std::ffi::OsStr| part.to_string_lossy().trim_end_matches(".rs").to_owned();
    file.iter().map(text).any(|part| part == "tests")
}

/// Returns every source file with its top-level module and its text. The modules of a crate are
/// modules of the program by the same names, but for those of `limit` and `status`, which are below its
/// name.
fn sources() -> Vec<(PathBuf, String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let crates = fs::read_dir(root.join("crates")).expect("crates is there");
    let mut folders: Vec<_> = crates.map(|entry| entry.expect("it is readable").path().join("src")).collect();
    folders.push(root.join("src"));
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("src is there") {
            let path = entry.expect("src is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("sources are readable");
                let module = module(&path);
                let top = module.split("::").next().expect("a name").to_owned();
                let below_its_name =
                    ["limit", "status"].iter().any(|name| path.starts_with(root.join("crates").join(name)));
                let text = if below_its_name { text.replace("crate::", &format!("crate::{top}::")) } else { text };
                found.push((path, top, text));
            }
        }
    }
    assert!(found.len() > 10, "the sources were not found");
    found
}

/// The path of a file's module from the root of the program.
fn module(file: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let inside = file.strip_prefix(root).expect("it is of the project").with_extension("");
    let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let parts: Vec<_> = match parts.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["crates", name @ ("limit" | "status"), "src", "lib"] => vec![name],
        ["crates", name @ ("limit" | "status"), "src", ref inside @ ..] => [&[name], inside].concat(),
        ["crates", _, "src", ref inside @ ..] | ["src", ref inside @ ..] => inside.to_vec(),
        _ => panic!("{} is not below src", file.display()),
    };
    parts.join("::")
}

/// The top-level modules in a text's `crate::...` paths, without tests and comments.
fn crate_paths(text: &str) -> BTreeSet<String> {
    let code = code(text);
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(group) => found.extend(group_heads(group)),
            None => found.extend(rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned)),
        }
    }
    found
}

/// The first path segments inside `crate::{a::b, c::{d, e}}`.
fn group_heads(group: &str) -> Vec<String> {
    let (mut depth, mut heads, mut item) = (0, Vec::new(), String::new());
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(std::mem::take(&mut item)),
            _ if depth == 0 => item.push(c),
            _ => {}
        }
    }
    heads.push(item);
    heads.iter().filter_map(|item| item.trim().split("::").next()).map(|head| head.trim().to_owned()).collect()
}

/// True if the code of a text names a library's path.
fn names(text: &str, library: &str) -> bool {
    let code = code(text);
    let path = format!("{library}::");
    // A segment of a longer path (`crate::config::`, `my_config::`) is not the library.
    code.match_indices(&path).any(|(at, _)| {
        let before = code.get(..at).and_then(|before| before.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

/// A text without comments and without its inline tests.
fn code(text: &str) -> String {
    text.lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]"))
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n")
}
