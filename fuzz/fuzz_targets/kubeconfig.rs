//! kubeconfig files: nothing panics, and no problem shows a secret of the file.
#![no_main]

use std::{fs, path::PathBuf, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use tidegate::credentials::{Environment, Source, UpstreamTls, resolve};

static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = PathBuf::from("/dev/shm");
    let folder = if shared.is_dir() { shared } else { std::env::temp_dir() };
    folder.join(format!("tidegate-fuzz-{}", std::process::id()))
});

/// The words that stand before a secret value.
const SECRET: [&str; 4] = ["token: ", "password: ", "client-key-data: ", "value: "];

/// True if the word is certainly a user's secret and nothing else: a message may show the name of a
/// cluster, or a value that is not a URL where one belongs. So no message may contain a secret that
/// spans lines, nor one within its line.
fn is_secret(text: &str) -> bool {
    let is_one = |line: &str| {
        line.match_indices("hunter2").all(|(at, _)| {
            let (before, _) = line.split_at(at);
            before.starts_with("users: [{name: u, user: {") && SECRET.iter().any(|key| before.ends_with(key))
        })
    };
    !text.contains(['\'', '|', '>', '\\', '\r', '&', '*'])
        && text.lines().all(|line| {
            let quotes = line.matches('"').count();
            if line.contains("hunter2") { quotes == 0 && is_one(line) } else { quotes % 2 == 0 }
        })
}

fuzz_target!(|text: &str| {
    // Devices would be read as files, and some of them never end.
    if text.contains("dev") || text.contains("proc") || fs::write(&*FILE, text).is_err() {
        return;
    }
    let around = Environment {
        variables: vec![("KUBECONFIG".to_owned(), FILE.display().to_string())],
        service_account: PathBuf::from("/nonexistent"),
    };
    if let Err(error) = resolve(&Source::Kubeconfig(None), &UpstreamTls::default(), &around) {
        let said = error.to_string();
        assert!(!said.contains("hunter2") || !is_secret(text), "{said}");
    }
});
