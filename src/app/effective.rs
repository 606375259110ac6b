//! The current configuration as text for the status page, without possible secrets.

use toml::{Table, Value};

/// Returns the configuration with possible secrets replaced: values of headers and query parameters
/// in a class's rules. Secrets in files are not in it anyway, and no URL may have a password.
pub(super) fn shown(effective: &str) -> String {
    let Ok(mut settings) = effective.parse::<Table>() else {
        return "the configuration cannot be shown\n".to_owned(); // it was written as TOML
    };
    settings.iter_mut().for_each(|(name, value)| hide(name, value));
    toml::to_string_pretty(&settings).unwrap_or_default()
}

fn hide(name: &str, value: &mut Value) {
    match value {
        Value::Table(table) => {
            let is_of_client = matches!(name, "headers" | "query");
            for (name, value) in table.iter_mut() {
                if is_of_client {
                    *value = Value::String(HIDDEN.to_owned());
                }
                hide(name, value);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|value| hide(name, value)),
        _ => {}
    }
}

const HIDDEN: &str = "***";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_secret_is_not_shown_and_everything_else_is() {
        let effective = "[gates.k]\nupstream = \"https://api.example:1/base\"\n\
                         [[gates.k.classes]]\nname = \"a\"\n[gates.k.classes.match]\nverbs = [\"get\"]\n\
                         [gates.k.classes.match.headers]\nAuthorization = \"Bearer hunter2\"\n\
                         [gates.k.classes.match.query]\ntoken = \"hunter2\"\n[gates.k.bucket]\nrate = 5.0\n";
        let text = shown(effective);
        assert!(!text.contains("hunter2"), "{text}");
        for wanted in ["Authorization = \"***\"", "verbs = [\"get\"]", "rate = 5.0"] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
        assert!(!shown("not = toml = at all").contains("toml"));
    }
}
