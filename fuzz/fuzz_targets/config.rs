//! Configurations: nothing panics, every problem has one line, and the settings in force, written
//! out, read as the same settings.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::config::load_text;

fuzz_target!(|text: &str| {
    // A first line that begins with # may hold a variable: `#NAME=VALUE`.
    let variable = text.lines().next().and_then(|line| line.strip_prefix('#')?.split_once('='));
    let env: Vec<_> =
        variable.map(|(name, value)| (format!("TIDEGATE__{name}"), value.to_owned())).into_iter().collect();
    match load_text("f.toml".to_owned(), text.to_owned(), &env) {
        Ok(loaded) => {
            let again = load_text("f.toml".to_owned(), loaded.effective.clone(), &[]);
            let again = again.unwrap_or_else(|problems| panic!("{}\n{}", problems[0], loaded.effective));
            assert_eq!(again.effective, loaded.effective);
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            problems.iter().for_each(|problem| assert!(!problem.to_string().contains('\n'), "{problem}"));
        }
    }
});
