//! Holds the documents to the code: links and anchors lead somewhere, configurations are valid, and
//! figures from the simulator are those that it prints.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tidegate::config::{self, scenario};

use crate::command::{config as config_file, end, tidegate};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every Markdown file of the project, by its path from the root.
fn documents() -> Vec<(PathBuf, String)> {
    let (mut found, mut folders) = (Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("readable").map(|entry| entry.expect("readable")) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().expect("it has one").is_dir() {
                if !name.starts_with('.') && name != "target" && name != "node_modules" {
                    folders.push(entry.path());
                }
            } else if name.ends_with(".md") {
                let text = fs::read_to_string(entry.path()).expect("text");
                found.push((entry.path().strip_prefix(root()).expect("below it").to_owned(), text));
            }
        }
    }
    found.sort();
    assert!(found.len() > 10, "the documents were not found");
    found
}

/// The text of a document without its code.
fn prose(text: &str) -> String {
    let mut prose = String::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            let outside = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
            prose.push_str(&outside);
            prose.push('\n');
        }
    }
    prose
}

/// The targets of links and pictures.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let markdown = prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let html = ["src=\"", "href=\"", "srcset=\""]
        .into_iter()
        .flat_map(|mark| prose.split(mark).skip(1).filter_map(|rest| rest.split('"').next()));
    markdown.chain(html).map(str::to_owned).collect()
}

/// The anchors of a document, which GitHub makes from its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let heading = line.trim_start_matches('#');
        if in_code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().to_lowercase().replace(' ', "-");
        let anchor: String = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        let again = (1..).map(|number| format!("{anchor}-{number}")).find(|name| !found.contains(name));
        let is_new = found.insert(anchor);
        found.extend(again.filter(|_| !is_new));
    }
    found
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    let mut seen = 0;
    for (file, text) in documents() {
        for link in links(&text) {
            if link.starts_with("http://") || link.starts_with("https://") || link.starts_with("mailto:") {
                continue;
            }
            seen += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => root().join(&file),
                path => root().join(&file).parent().expect("it is in a folder").join(path),
            };
            if !target.exists() {
                broken.push(format!("{}: {link} is not there", file.display()));
            } else if !anchor.is_empty() {
                let text = fs::read_to_string(&target).unwrap_or_default();
                if !anchors(&text).contains(anchor) {
                    broken.push(format!("{}: {link}: {path} has no such heading", file.display()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(seen > 50, "only {seen} links were found");
}

#[test]
fn links_and_anchors_are_found_where_readers_click() {
    let text = "# A `b` c-d (e)\n\nsee [x](README.md#z) and ![p](q.svg), not `[a](b)`\n```sh\n[a](b)\n# no heading\n```\n# Twice\n# Twice\n<img src=\"r.png\">";
    assert_eq!(links(text), ["README.md#z", "q.svg", "r.png"]);
    assert_eq!(anchors(text), ["a-b-c-d-e", "twice", "twice-1"].map(str::to_owned).into());
}

/// The code blocks of a language, each with the number of its first line.
pub(crate) fn blocks<'a>(text: &'a str, language: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut open: Option<&'a str> = None;
    for (number, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), open) {
            (Some(what), None) => {
                open = Some(what);
                if what == language {
                    found.push((number + 2, String::new()));
                }
            }
            (Some(_), Some(_)) => open = None,
            (None, Some(what)) if what == language => {
                let block = &mut found.last_mut().expect("it was opened").1;
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    found
}

/// The texts that the commands of a block write: here-documents, and the first line of each `echo`.
fn written(block: &str) -> Vec<String> {
    let (mut found, mut lines, mut before) = (Vec::new(), block.lines(), "");
    while let Some(line) = lines.next() {
        if let Some((_, end)) = line.split_once("<<") {
            let end = end.trim_start_matches(['-', '\'', '"']).split(['\'', '"', ' ']).next().unwrap_or_default();
            found.push(lines.by_ref().take_while(|line| line.trim() != end).collect::<Vec<_>>().join("\n"));
        }
        let echo =
            |line: &str| line.trim().strip_prefix("echo ").map(|text| text.trim_start_matches(['\'', '"']).to_owned());
        found.extend(echo(line).filter(|_| echo(before).is_none()));
        before = line;
    }
    found
}

/// True if kubectl before 1.33 reads a text as JSON, and it is none.
fn is_taken_for_json(text: &str) -> bool {
    text.trim_start().starts_with('{') && !text.trim_start().starts_with("{{") && {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
        values.next().is_some_and(|value| value.is_err())
    }
}

#[test]
fn no_yaml_begins_as_json_does() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (file, text) in documents() {
        let yaml = blocks(&text, "yaml").into_iter().map(|(_, block)| block);
        let texts: Vec<String> = blocks(&text, "sh").iter().flat_map(|(_, block)| written(block)).chain(yaml).collect();
        seen += texts.len();
        wrong.extend(
            texts.into_iter().filter(|text| is_taken_for_json(text)).map(|text| format!("{}: {text}", file.display())),
        );
    }
    let mut folders = vec![root().join("deploy"), root().join("docs")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable").path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                seen += 1;
                let text = fs::read_to_string(&path).expect("text");
                wrong.extend(is_taken_for_json(&text).then(|| path.display().to_string()));
            }
        }
    }
    assert!(wrong.is_empty(), "kubectl 1.32 reads as JSON (begin with ---):\n{}", wrong.join("\n"));
    assert!(seen > 60, "only {seen} texts were found");
    let page = "for i in 1 2; do\n  echo \"{kind: A}\"\n  echo ---\ndone > a.yaml\ncat <<'END'\n{kind: B}\nEND";
    assert!(
        written(page).iter().all(|text| is_taken_for_json(text)) && written(page).len() == 2,
        "{:?}",
        written(page)
    );
}

/// Returns the problems of a TOML block, which may be a whole configuration, keys of a gate,
/// sections beside one, or a scenario.
fn fault(block: &str) -> Option<String> {
    let smallest = "[gates.kubernetes]\nupstream = \"in_cluster\"\n";
    let tries = [block.to_owned(), format!("{smallest}{block}"), format!("{block}{smallest}")];
    let mut problems = Vec::new();
    for text in tries {
        match config::load_text("block".to_owned(), text, &[]) {
            Ok(_) => return None,
            Err(found) => problems.push(found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("scenario.toml");
    fs::write(&file, block).expect("it can be written");
    scenario::load(&file).err().map(|_| problems.swap_remove(0))
}

#[test]
fn every_configuration_in_the_documents_can_be_run() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (file, text) in documents() {
        for (line, block) in blocks(&text, "toml") {
            seen += 1;
            wrong.extend(fault(&block).map(|problems| format!("{}:{line}:\n{problems}", file.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen >= 8, "only {seen} were found");
    assert!(fault("[gates.k]\nupstream = \"in_cluster\"\nbukcet = 1\n").is_some());
}

/// Wherever a `sh` block of docs/tuning.md is one `tidegate simulate`, the `text` block after it shows
/// lines of its output, in their order.
#[test]
fn the_tuning_guide_shows_what_the_simulator_prints() {
    let text = fs::read_to_string(root().join("docs/tuning.md")).expect("it is there");
    let commands = blocks(&text, "sh");
    let figures = blocks(&text, "text");
    let commands: Vec<_> = commands.iter().filter(|(_, block)| block.starts_with("tidegate simulate ")).collect();
    let commands: Vec<_> = commands.into_iter().filter(|(_, block)| !block.contains("--replay")).collect();
    assert!(commands.len() >= 5, "only {} were found", commands.len());
    for (line, command) in commands {
        let end_of_command = line + command.lines().count() - 1;
        let shown = figures.iter().find(|(at, _)| *at > end_of_command && *at <= end_of_command + 4);
        let (_, shown) = shown.unwrap_or_else(|| panic!("docs/tuning.md:{line}: no figures after {command}"));
        let mut process = tidegate(command.split_whitespace().skip(1));
        process.current_dir(root());
        let ended = end(process);
        assert_eq!(ended.code, Some(0), "{command}\n{}", ended.err);
        let mut printed = ended.out.lines().map(str::trim_end);
        for row in shown.lines() {
            let is_printed = printed.any(|line| line == row);
            assert!(is_printed, "docs/tuning.md:{line}: {row:?} is not in what {command} prints\n{}", ended.out);
        }
    }
}

#[test]
fn the_index_names_every_document() {
    let index = fs::read_to_string(root().join("docs/README.md")).expect("it is there");
    let named: BTreeSet<String> = links(&index).into_iter().collect();
    for (file, _) in documents() {
        if let Some(name) = file.strip_prefix("docs").ok().filter(|name| *name != Path::new("README.md")) {
            let name = name.to_string_lossy().into_owned();
            assert!(named.contains(&name), "docs/README.md does not link to {name}");
        }
    }
}

/// The pages for readers by what they run, and the page that they share.
const READERS: [&str; 5] = [
    "recipes/kubebuilder-operators",
    "recipes/crossplane-providers",
    "recipes/github-clients",
    "recipes/cluster-administrators",
    "pointing-your-controller",
];

#[test]
fn what_a_proxy_cannot_do_comes_first() {
    for name in READERS {
        let text = fs::read_to_string(root().join(format!("docs/{name}.md"))).expect("it is there");
        let first = text.split("\n\n").nth(1).expect("a paragraph").replace('\n', " ");
        assert!(first.starts_with("**A proxy cannot lift a limit inside the process.**"), "docs/{name}.md: {first}");
        assert!(first.contains("`QPS`") && first.contains("eases wait"), "docs/{name}.md: {first}");
    }
    let shared = fs::read_to_string(root().join("docs/pointing-your-controller.md")).expect("it is there");
    let before = shared.split("\n## ").next().expect("the beginning");
    for wanted in [
        "`config.QPS = -1`",
        "--kube-api-qps",
        "ARGOCD_K8S_CLIENT_QPS",
        "--k8s-client-rate-limiter-qps",
        "--max-reconcile-rate",
    ] {
        assert!(before.contains(wanted), "{wanted} is not where readers begin");
    }
}

#[test]
fn pages_for_readers_are_short_and_the_readme_leads_to_each() {
    let readme = fs::read_to_string(root().join("README.md")).expect("it is there");
    let named = links(&readme);
    let recipes: Vec<_> = documents().into_iter().filter(|(page, _)| page.starts_with("docs/recipes")).collect();
    for (page, text) in &recipes {
        let page = page.display().to_string();
        assert!(text.lines().count() <= 80, "{page} has {} lines", text.lines().count());
        assert!(named.contains(&page), "README.md does not lead to {page}");
    }
    for name in READERS[..4].iter().chain(&["recipes/external-dns"]) {
        let page = format!("docs/{name}.md");
        let (_, text) = recipes.iter().find(|(path, _)| *path == Path::new(&page)).expect("it is a recipe");
        assert!(text.contains(" top --once") && text.contains(" explain "), "{page} shows no limit in force");
    }
}

/// What a reader of README.md meets, in this order.
#[test]
fn the_readme_begins_with_what_it_is_a_picture_and_two_commands() {
    let readme = fs::read_to_string(root().join("README.md")).expect("it is there");
    let place = |wanted: &str| readme.find(wanted).unwrap_or_else(|| panic!("README.md has no {wanted}"));
    let order =
        ["![", "cargo run --release -- demo", "cargo test", "## Install", "## Five lines", "## Where to go next"];
    assert!(order.map(place).is_sorted(), "{order:?}");
    let paragraphs: Vec<&str> = readme.split("\n\n").collect();
    let sentences = |text: &str| text.matches(". ").count() + text.matches(".\n").count() + 1;
    assert_eq!((paragraphs[0], sentences(paragraphs[1]), sentences(paragraphs[2])), ("# tidegate", 1, 2));
    let install = readme.split("\n## Install\n").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("ways");
    for way in ["cargo install", ".deb", "image", "chart"] {
        assert!(install.contains(way), "{way} is no way to install");
    }
    let (_, lines) = blocks(&readme, "toml").swap_remove(0);
    assert_eq!(lines.lines().count(), 5);
}

/// Every reason has a row in the document for readers who see it in an error.
#[test]
fn every_refusal_has_a_remedy() {
    let text = fs::read_to_string(root().join("docs/troubleshooting.md")).expect("it is there");
    for reason in tidegate::limit::Reason::ALL {
        let row = format!("\n| `{}` |", reason.word());
        assert!(text.contains(&row), "docs/troubleshooting.md has no row for {}", reason.word());
    }
}

#[test]
fn the_contract_has_every_promise_and_every_reason() {
    let text = fs::read_to_string(root().join("docs/internals/design.md")).expect("it is there");
    for number in 1..=12 {
        assert!(text.contains(&format!("\n- **P{number} ")), "docs/internals/design.md has no promise P{number}");
    }
    for reason in tidegate::limit::Reason::ALL {
        let row = format!("\n| `{}` |", reason.word());
        assert!(text.contains(&row), "docs/internals/design.md has no row for {}", reason.word());
    }
}

/// The subjects of doctor's findings, read from the sources.
fn examined() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(root().join("src/cli/doctor"))
        .expect("it is there")
        .chain(fs::read_dir(root().join("src/cli")).expect("it is there"))
    {
        let path = entry.expect("readable").path();
        if path.is_dir() || !path.display().to_string().contains("doctor") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        let marks =
            ["Finding::fine(", "Finding::note(", "Finding::wrong(", "folder_finding(", "about = format!(", "about = "];
        for rest in marks.into_iter().flat_map(|mark| text.split(mark).skip(1)) {
            let literal = rest.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
            found.extend(literal.map(|about| about.split(" {").next().unwrap_or(about).to_owned()));
        }
    }
    found
}

#[test]
fn everything_that_doctor_looks_at_is_told() {
    let text = fs::read_to_string(root().join("docs/troubleshooting.md")).expect("it is there");
    let examined = examined();
    assert!(examined.len() >= 9, "{examined:?}");
    for about in examined {
        let told = [format!("\n| `{about}` |"), format!("\n| `{about} NAME` |")];
        assert!(told.iter().any(|row| text.contains(row)), "docs/troubleshooting.md has no row for {about}");
    }
}

#[test]
fn the_shape_of_the_status_has_every_field() {
    let page = fs::read_to_string(root().join("docs/operations.md")).expect("it is there");
    let code = fs::read_to_string(root().join("crates/status/src/lib.rs")).expect("it is there");
    let (_, shape) = page.split_once("<summary>The shape</summary>").expect("it is on the page");
    let (shape, _) = shape.split_once("</details>").expect("it ends");
    let words: BTreeSet<&str> = shape.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let names = [
        "Status",
        "GateStatus",
        "UpstreamQuota",
        "Bucket",
        "SharedBucket",
        "Queue",
        "FailingKey",
        "CallerStatus",
        "History",
    ];
    for name in names {
        let (_, from) = code.split_once(&format!("pub struct {name} {{")).expect(name);
        let fields =
            from.lines().skip(1).take_while(|line| *line != "}").filter_map(|line| line.trim().strip_prefix("pub "));
        for field in fields.filter_map(|field| field.split(':').next()) {
            assert!(words.contains(field), "{name}.{field} is not in the shape of docs/operations.md");
        }
    }
}

#[test]
fn the_call_that_the_page_for_operators_explains_is_explained_so() {
    let page = fs::read_to_string(root().join("docs/operations.md")).expect("it is there");
    let (_, shown) = page.split_once("$ tidegate explain ").expect("it is on the page");
    let mut shown = shown.split("```").next().unwrap_or_default().lines();
    let call = shown.next().expect("a method and a path").split(' ');
    let (_folder, path) = config_file(
        "[gates.kubernetes]\nupstream = \"http://127.0.0.1:9\"\n[gates.kubernetes.bucket]\nrate = 20\nburst = 30\n",
    );
    let mut command = tidegate(["explain"]);
    command.args(call).arg("--config").arg(&path);
    let ended = end(command);
    let said = ended.out.replace(&path.display().to_string(), "/etc/tidegate/tidegate.toml");
    // The last row is what the running gate says; the space between columns depends on the path.
    let rows = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let said: Vec<String> = said.lines().map(rows).collect();
    for row in shown.map(rows).filter(|row| !row.starts_with("now ")) {
        assert!(said.contains(&row), "{row:?} is not in\n{}", ended.out);
    }
}
