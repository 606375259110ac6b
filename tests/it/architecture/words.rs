//! The words of src are the field's: none that was given up for one of them comes back as the name of a type, a function or a file.

use std::collections::BTreeSet;
use std::path::Path;

use super::{code, is_test, sources};

/// Private words in snake case, each with the field's word in its place.
const GIVEN_UP: &[(&str, &str)] = &[
    ("anything", "RawValue"),
    ("as_if", "ShadowMeters"),
    ("asker", "Demand, or what asks"),
    ("books", "StreamAccounts"),
    ("brim", "refund"),
    ("bundle", "QueueGroup"),
    ("clerk", "AdminServer"),
    ("desk", "UpgradeSlot"),
    ("door", "arrive, or ShapeGroup"),
    ("drops", "dropped_requests"),
    ("entrance", "Origin"),
    ("errand", "Attempt"),
    ("foresee", "preview"),
    ("ground", "GateDefaults"),
    ("heed", "feedback"),
    ("let_by", "admit_unmetered"),
    ("manners", "RequestSettings"),
    ("other_self", "shadow_task"),
    ("overdue", "expired_holds"),
    ("put_up", "register"),
    ("queue_id", "QueueKey, or QueueIndex"),
    ("raise", "connect"),
    ("readable", "files"),
    ("reception", "Server"),
    ("relief", "operator"),
    ("shade", "ShadowEntry"),
    ("stirred", "dirty_keys"),
    ("strangers", "HandshakeErrors"),
    ("surroundings", "Environment"),
    ("suspect", "invalidate"),
    ("tend", "refresh"),
    ("terms", "GateConfig"),
    ("unspeakable", "InvalidRequest"),
];

/// Words that mean something of their own elsewhere (a line of text, a Kubernetes Lease, the command `run`, YAML's plain scalar, a leaf
/// certificate), and were given up in one folder.
const GIVEN_UP_IN: &[(&str, &[(&str, &str)])] = &[
    (
        "limit",
        &[
            ("ahead", "estimate"),
            ("bill", "inline"),
            ("certain", "MinWait"),
            ("freed", "unblocked"),
            ("line", "HeldCalls"),
            ("moved", "retimed"),
            ("needs", "demand"),
            ("pass", "KeyGrant"),
            ("place", "SlotShare"),
            ("plain", "unsplit"),
            ("run", "dispatch"),
            ("settled", "idle_since"),
            ("stage", "key_stage"),
            ("supply", "resources"),
            ("turns", "lengths (QueueLengths)"),
        ],
    ),
    ("proxy", &[("account", "CallContext")]),
    ("upstream", &[("lease", "StreamLease"), ("line", "Connection")]),
    ("config", &[("leaf", "values"), ("shown", "what it shows"), ("span", "Duration")]),
    ("credentials", &[("shown", "CredentialVersion")]),
];

#[test]
fn no_word_that_was_given_up_names_anything() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut broken = Vec::new();
    for (file, module, text) in sources().into_iter().filter(|(file, ..)| !is_test(file)) {
        let here = GIVEN_UP_IN.iter().filter(|(folder, _)| *folder == module).flat_map(|(_, words)| *words);
        let given_up: Vec<_> = GIVEN_UP.iter().chain(here).collect();
        for name in names(&file, &code(&text)) {
            let bare = |name: &str| name.replace('_', "").to_lowercase();
            if let Some((_, instead)) = given_up.iter().find(|(word, _)| bare(word) == bare(&name)) {
                let path = file.strip_prefix(&root).expect("below src");
                broken.push(format!("{}: `{name}`; the field says {instead}", path.display()));
            }
        }
    }
    broken.sort();
    assert!(broken.is_empty(), "words that were given up (tests/it/architecture/words.rs):\n{}", broken.join("\n"));
}

#[test]
fn names_are_found_where_they_are_declared() {
    let code = "pub(crate) struct Door<T>;\nenum Asker {}\ntype Bill = u8;\nasync fn put_up() {\n    let run = Line::raise();\n}\nmod heed;\nconst fn tend<'a>()";
    let found = names(Path::new("src/limit/brim.rs"), code);
    assert_eq!(found, BTreeSet::from(["Asker", "Bill", "Door", "brim", "heed", "put_up", "tend"].map(str::to_owned)));
}

/// The names of a file and of every type, function, trait and module that it declares.
fn names(file: &Path, code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::from([file.file_stem().expect("a name").to_string_lossy().into_owned()]);
    for line in code.lines() {
        let mut words = line.split_whitespace().skip_while(|word| {
            word.starts_with("pub")
                || matches!(*word, "const" | "async" | "unsafe" | "extern" | "in" | "crate" | "super")
        });
        if matches!(words.next(), Some("struct" | "enum" | "type" | "trait" | "fn" | "mod" | "union")) {
            let name = words.next().unwrap_or_default();
            found.extend(name.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned));
        }
    }
    found
}
