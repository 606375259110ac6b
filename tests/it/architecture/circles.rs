//! Inside a folder of src no file depends on itself through others: you can read each room after
//! those that it uses.
//!
//! A room is a file, or a file with the folder of its name. The graph is read from the `use`
//! declarations and the inline paths of the code. A name that a file re-exports (`pub use`) counts
//! for the file that defines it.

use std::collections::{BTreeMap, BTreeSet};

use super::{code, is_test, module, sources};

type Graph = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_folder_of_src_has_a_circle_of_imports() {
    let found = circles(&modules());
    assert!(found.is_empty(), "circles of imports, by folder: {found:#?}");
}

#[test]
fn a_circle_is_found_whichever_way_its_files_name_each_other() {
    let of = |files: &[(&str, &str)]| {
        let modules = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        circles(&modules)
    };
    let circle = |folder: &str, rooms: &[&str]| {
        vec![(folder.to_owned(), rooms.iter().map(|room| (*room).to_owned()).collect::<BTreeSet<_>>())]
    };
    assert_eq!(of(&[("a::x", "use super::y::Y;"), ("a::y", "")]), vec![]);
    assert_eq!(of(&[("a::x", "use super::y::Y;"), ("a::y", "use crate::a::{x::{X, Z}};")]), circle("a", &["x", "y"]));
    assert_eq!(of(&[("a", "use crate::b::B;"), ("b", "fn b() { crate::a::call(); }")]), circle("", &["a", "b"]));
    let handed_on =
        [("a", "pub use self::x::X;"), ("a::x", "use crate::b::B;"), ("b", ""), ("b::y", "use crate::a::X;")];
    assert_eq!(of(&handed_on), circle("", &["a", "b"]));
    let below = [("a::x", "use super::y::deep::Z;"), ("a::y", ""), ("a::y::deep", "use super::super::x::X;")];
    assert_eq!(of(&below), circle("a", &["x", "y"]));
}

/// Every file of the product by its module path, with its code.
fn modules() -> BTreeMap<String, String> {
    let product = sources().into_iter().filter(|(file, ..)| !is_test(file));
    product.map(|(file, _, text)| (module(&file), code(&text))).collect()
}

/// The circles of each folder, as sets of its rooms.
fn circles(modules: &BTreeMap<String, String>) -> Vec<(String, BTreeSet<String>)> {
    let paths: BTreeMap<&String, Vec<Vec<String>>> =
        modules.iter().map(|(module, code)| (module, imports(module, code))).collect();
    let handed_on = handed_on(modules);
    let mut folders: BTreeMap<String, Graph> = BTreeMap::new();
    for (from, paths) in paths {
        for to in paths.into_iter().filter_map(|path| home(path, modules, &handed_on)) {
            // The part that their paths share is the folder in which they are different rooms.
            let (from, to): (Vec<&str>, Vec<&str>) = (from.split("::").collect(), to.split("::").collect());
            let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if let (Some(room), Some(needed)) = (from.get(shared), to.get(shared)) {
                let folder = folders.entry(from.get(..shared).unwrap_or_default().join("::")).or_default();
                folder.entry((*room).to_owned()).or_default().insert((*needed).to_owned());
            }
        }
    }
    let of_folder = |(folder, graph): (String, Graph)| {
        let circles = knots(&graph).into_iter();
        circles.map(move |rooms| (folder.clone(), rooms)).collect::<Vec<_>>()
    };
    folders.into_iter().flat_map(of_folder).collect()
}

/// Sets of rooms each of which reaches all others of its set.
fn knots(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reach = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(room) = next.pop() {
            for needed in graph.get(room).into_iter().flatten().filter(|needed| seen.insert((*needed).clone())) {
                next.push(needed);
            }
        }
        seen
    };
    let reaches: Graph = graph.keys().map(|room| (room.clone(), reach(room))).collect();
    let back = |room: &String, other: &String| reaches.get(other).is_some_and(|reached| reached.contains(room));
    let knot = |room: &String| {
        let mut knot: BTreeSet<String> = reaches[room].iter().filter(|other| back(room, other)).cloned().collect();
        knot.insert(room.clone());
        knot
    };
    graph.keys().map(knot).filter(|knot| knot.len() > 1).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the file that a path leads to.
fn home(
    mut path: Vec<String>,
    modules: &BTreeMap<String, String>,
    handed_on: &BTreeMap<String, Vec<String>>,
) -> Option<String> {
    for _ in 0..8 {
        let Some(further) = handed_on.get(&path.join("::")) else { break };
        path.clone_from(further);
    }
    while !path.is_empty() && !modules.contains_key(&path.join("::")) {
        path.pop();
    }
    (!path.is_empty()).then(|| path.join("::"))
}

/// Names that a file re-exports, and the paths they come from.
fn handed_on(modules: &BTreeMap<String, String>) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for (module, code) in modules {
        for (declaration, public) in declarations(code) {
            for path in flat(&declaration).into_iter().filter(|_| public).filter_map(|path| absolute(module, &path)) {
                let here = if module == "lib" { Vec::new() } else { module.split("::").map(str::to_owned).collect() };
                let name: Vec<String> = here.into_iter().chain(path.last().cloned()).collect();
                if name != path {
                    found.insert(name.join("::"), path);
                }
            }
        }
    }
    found
}

/// Every path into the crate in a file.
fn imports(module: &str, code: &str) -> Vec<Vec<String>> {
    let declared = declarations(code).into_iter().flat_map(|(declaration, _)| flat(&declaration));
    let inline = ["crate::", "super::"].into_iter().flat_map(|start| {
        code.match_indices(start).filter_map(move |(at, _)| {
            let before = code.get(..at)?.chars().next_back();
            let is_start = !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':');
            let path: String =
                code.get(at..)?.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | ':')).collect();
            is_start.then(|| path.trim_end_matches(':').to_owned())
        })
    });
    declared.chain(inline).filter_map(|path| absolute(module, &path)).collect()
}

/// The trees of `use` declarations; true for those that re-export.
fn declarations(code: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let line = code.get(..at).unwrap_or_default().rsplit('\n').next().unwrap_or_default().trim();
        if line.is_empty() || (line.starts_with("pub") && !line.contains(' ')) {
            let tree = code.get(at + 4..).and_then(|rest| rest.split(';').next()).unwrap_or_default();
            found.push((tree.to_owned(), !line.is_empty()));
        }
    }
    found
}

/// Turns `a::{b, c::{d}}` into `a::b` and `a::c::d`.
fn flat(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((start, rest)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or_default().trim().to_owned()];
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut items, mut item) = (0, Vec::new(), String::new());
    for c in inner.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(std::mem::take(&mut item));
                continue;
            }
            _ => {}
        }
        item.push(c);
    }
    items.push(item);
    let all = items.iter().filter(|item| !item.trim().is_empty()).flat_map(|item| flat(item));
    all.map(|path| format!("{}{path}", start.trim())).collect()
}

/// Returns the path from the crate's root; `None` if it leads out of the crate.
fn absolute(module: &str, path: &str) -> Option<Vec<String>> {
    let mut here: Vec<String> =
        if module == "lib" { Vec::new() } else { module.split("::").map(str::to_owned).collect() };
    let mut segments = path.split("::").map(str::trim).peekable();
    match segments.next()? {
        "crate" => here.clear(),
        "self" => {}
        "super" => {
            here.pop();
            while segments.next_if(|segment| *segment == "super").is_some() {
                here.pop();
            }
        }
        _ => return None,
    }
    Some(here.into_iter().chain(segments.map(str::to_owned)).collect())
}
