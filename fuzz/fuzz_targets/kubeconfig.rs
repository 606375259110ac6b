//! kubeconfig files: nothing panics, and no problem shows a secret of the file.
#![no_main]

use std::{fs, path::PathBuf, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use tidegate::credentials::{Source, Surroundings, UpstreamTls, resolve};

static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = PathBuf::from("/dev/shm");
    let folder = if shared.is_dir() { shared } else { std::env::temp_dir() };
    folder.join(format!("tidegate-fuzz-{}", std::process::id()))
});

/// What stands before a value that nobody may see.
const SECRET: [&str; 4] = ["token: ", "password: ", "client-key-data: ", "value: "];

fuzz_target!(|text: &str| {
    // Devices would be read as files, and some never end.
    if text.contains("dev") || text.contains("proc") || fs::write(&*FILE, text).is_err() {
        return;
    }
    let around = Surroundings {
        variables: vec![("KUBECONFIG".to_owned(), FILE.display().to_string())],
        service_account: PathBuf::from("/nonexistent"),
    };
    // A cluster's name may be said, whatever it is.
    let is_secret = |(at, _)| SECRET.iter().any(|key| text.get(..at).is_some_and(|before| before.ends_with(key)));
    if let Err(error) = resolve(&Source::Kubeconfig(None), &UpstreamTls::default(), &around) {
        let said = error.to_string();
        assert!(!said.contains("hunter2") || !text.match_indices("hunter2").all(is_secret), "{said}");
    }
});
