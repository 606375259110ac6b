//! The dependencies of the product: held to the lists of deny.toml, with nothing to install, and
//! written down as a bill of materials.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every package of the lock file, on the platforms that the product is built for.
fn packages() -> Vec<Value> {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root()).args(["metadata", "--format-version=1", "--locked"]);
    for platform in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        command.args(["--filter-platform", platform]);
    }
    let out = command.output().expect("cargo runs this test");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut metadata: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let used: BTreeSet<String> = metadata["resolve"]["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| node["id"].as_str().expect("an id").to_owned())
        .collect();
    let all = metadata["packages"].take();
    let all = all.as_array().expect("packages").iter();
    all.filter(|package| used.contains(package["id"].as_str().expect("an id"))).cloned().collect()
}

fn lists() -> toml::Table {
    fs::read_to_string(root().join("deny.toml")).expect("it is there").parse().expect("TOML")
}

/// The texts of a list, or of one field of its tables.
fn texts<'a>(lists: &'a toml::Table, table: &str, key: &str, field: &str) -> BTreeSet<&'a str> {
    let list = lists[table][key].as_array().expect("a list");
    list.iter().map(|entry| entry.get(field).unwrap_or(entry).as_str().expect("a text")).collect()
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let lists = lists();
    let allowed = texts(&lists, "licenses", "allow", "");
    for package in packages() {
        let name = package["name"].as_str().expect("a name");
        let licence = package["license"].as_str().unwrap_or_else(|| panic!("{name} says no licence"));
        assert!(is_allowed(licence, &allowed), "{name}: {licence} is not allowed by deny.toml");
    }
}

#[test]
fn every_dependency_is_from_the_registry_and_none_is_banned() {
    let lists = lists();
    let (registries, banned) = (texts(&lists, "sources", "allow-registry", ""), texts(&lists, "bans", "deny", "name"));
    for package in packages() {
        let name = package["name"].as_str().expect("a name");
        assert!(!banned.contains(name), "{name} is banned by deny.toml");
        let Some(source) = package["source"].as_str() else {
            // The product, its crates, its benchmark and the helpers of its tests.
            assert!(name.starts_with("tidegate") || ["decide", "testing"].contains(&name), "{name} is from a folder");
            continue;
        };
        let registry = source.strip_prefix("registry+").unwrap_or_else(|| panic!("{name} is from {source}"));
        assert!(registries.contains(registry), "{name} is from {source}");
    }
}

/// The name and version of every package in a lock file.
fn locked(file: &str) -> BTreeSet<(String, String)> {
    let lock: toml::Table = fs::read_to_string(root().join(file)).expect("it is there").parse().expect("TOML");
    let text = |package: &toml::Value, key: &str| package[key].as_str().expect("a text").to_owned();
    let packages = lock["package"].as_array().expect("a list").iter();
    packages.map(|package| (text(package, "name"), text(package, "version"))).collect()
}

/// A comparison with the floor means something only while both are built from the same versions.
#[test]
fn the_floor_of_the_benchmark_is_made_of_the_products_versions() {
    let mut floor = locked("benches/peers/floor/Cargo.lock");
    assert!(floor.remove(&("floor".to_owned(), "0.0.0".to_owned())));
    assert!(floor.iter().any(|(name, _)| name == "hyper"));
    let other: Vec<_> = floor.difference(&locked("Cargo.lock")).cloned().collect();
    assert!(other.is_empty(), "benches/peers/floor/Cargo.lock differs from Cargo.lock: {other:?}");
}

/// Evaluates an SPDX expression: one of the alternatives is enough, and every part of a conjunction
/// is needed.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let text = expression.replace('/', " OR ");
    let text = text.trim();
    if allowed.contains(text) {
        return true;
    }
    for (word, all) in [(" OR ", false), (" AND ", true)] {
        let parts = split(text, word);
        if parts.len() > 1 {
            let mut parts = parts.iter();
            return if all {
                parts.all(|part| is_allowed(part, allowed))
            } else {
                parts.any(|part| is_allowed(part, allowed))
            };
        }
    }
    text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).is_some_and(|inner| is_allowed(inner, allowed))
}

/// Splits at a word that is outside parentheses.
fn split(text: &str, word: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        depth += i32::from(next == '(') - i32::from(next == ')');
        if depth == 0
            && let Some(after) = rest.strip_prefix(word)
        {
            parts.push(String::new());
            rest = after;
            continue;
        }
        parts.last_mut().expect("one at least").push(next);
        rest = rest.strip_prefix(next).expect("it begins with it");
    }
    parts
}

#[test]
fn licences_are_read_as_spdx_means_them() {
    let allowed = BTreeSet::from(["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-3-Clause"]);
    for good in [
        "MIT",
        "MIT/GPL-3.0",
        "GPL-3.0 OR Apache-2.0 WITH LLVM-exception",
        "(GPL-3.0 OR MIT) AND BSD-3-Clause",
        "MIT AND Apache-2.0",
    ] {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR LGPL-2.1) AND MIT", "", "Apache-2.0 WITH Other-exception"] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}

#[test]
fn the_bill_of_materials_names_what_is_linked_with_hash_and_licence() {
    let out = Command::new(root().join("deploy/sbom")).output();
    let Ok(out) = out else {
        println!("skipped: deploy/sbom needs python3");
        return;
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let bill: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert_eq!(bill["metadata"]["component"]["name"], "tidegate");
    let components = bill["components"].as_array().expect("a list");
    let names: BTreeSet<&str> = components.iter().filter_map(|component| component["name"].as_str()).collect();
    for linked in ["rustls", "hyper", "h2", "ring", "tokio"] {
        assert!(names.contains(linked), "{linked} is linked");
    }
    for other in ["proptest", "kube", "tempfile", "tidegate"] {
        assert!(!names.contains(other), "{other} is not");
    }
    for component in components {
        // The crates are of the same sources as the product.
        let is_own = component["name"].as_str().is_some_and(|name| name.starts_with("tidegate-"));
        assert!(
            is_own || component["hashes"][0]["content"].as_str().is_some_and(|hash| hash.len() == 64),
            "{component}"
        );
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
        let purl = component["purl"].as_str().unwrap_or_default();
        assert!(purl.starts_with("pkg:cargo/"), "{component}");
    }
    let known: BTreeSet<&str> = components.iter().filter_map(|component| component["bom-ref"].as_str()).collect();
    for entry in bill["dependencies"].as_array().expect("a list") {
        for needed in entry["dependsOn"].as_array().expect("a list") {
            assert!(known.contains(needed.as_str().expect("a text")), "{needed} is named and not there");
        }
    }
}
