//! Reads the configuration: one TOML file, with the environment on top, checked into [`Settings`].
//!
//! Reading never stops at the first problem: all of them are listed, each on one line with its
//! location. The result needs no further checking, and a key that this version does not know is an
//! error, never silently ignored.

mod candidate;
mod classes;
mod clients;
mod clusters;
mod cost;
mod cursor;
mod egress;
mod files;
mod fixed_part;
mod foreign;
mod gate;
mod identities;
mod key;
mod layers;
mod limits;
mod matching;
mod meant;
mod names;
mod origins;
mod otlp;
mod path;
mod per_key;
mod presets;
mod problems;
mod process;
mod promote;
mod rate;
mod record;
mod report;
pub mod scenario;
mod shape;
mod shared;
mod signals;
mod sources;
mod stores;
mod unmet;
mod url;
mod values;
mod words;

use std::path::PathBuf;
use std::time::SystemTime;

use self::cursor::Cursor;
use self::files::NamedFile;
pub use self::origins::Origins;
use self::path::Path;
pub use self::presets::{EmbeddedPreset, PRESETS, preset_files};
pub use self::problems::Problem;
use self::problems::Text;
pub use self::problems::did_you_mean;
pub use self::promote::{PromoteError, promoted};
use self::report::{Findings, Report};
use crate::spec::{Figures, HostPattern, Settings};

/// The input that a configuration is read from.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// The path of the configuration file; `None` reads the defaults instead. See [`find`].
    pub file: Option<PathBuf>,
    /// All environment variables of the process.
    pub env: Vec<(String, String)>,
}

/// The JSON Schema of the file, for editors. A test makes it from the keys in the code and
/// their meanings in config/tests/keys.toml.
pub const SCHEMA: &str = include_str!("../tidegate.schema.json");

/// A checked configuration.
#[derive(Debug)]
pub struct Configuration {
    /// The checked settings.
    pub settings: Settings,
    /// The whole configuration as TOML: every key with the value in force. Secrets appear only as
    /// names of files.
    pub effective: String,
    /// Warnings, one line each: the configuration works, but a setting is risky or useless.
    pub warnings: Vec<String>,
    /// Where each key was set: file and line, or variable.
    pub origins: Origins,
    files: Vec<NamedFile>,
}

/// Returns the file to read: the one named by `--config`, or else `$TIDEGATE_CONFIG`, or else
/// /etc/tidegate/tidegate.toml if it is there.
#[must_use]
pub fn find(named: Option<PathBuf>, env: &[(String, String)]) -> Option<PathBuf> {
    let from_env = || env.iter().find(|(name, value)| name == layers::FILE && !value.is_empty());
    named
        .or_else(|| from_env().map(|(_, value)| PathBuf::from(value)))
        .or_else(|| Some(PathBuf::from(USUAL)).filter(|path| path.exists()))
}

/// Reads and checks a configuration. Files named in it, such as certificates, are not opened; see
/// [`Configuration::unreadable_files`].
///
/// # Errors
/// All problems: first those of environment variables, by name, then those of the file from its
/// top.
pub fn load(input: &Input) -> Result<Configuration, Vec<Problem>> {
    let (name, text) = match &input.file {
        Some(path) => read(path)?,
        None => ("defaults".to_owned(), default_file(&input.env)),
    };
    load_text(name, text, &input.env)
}

/// Reads as much of a broken configuration as possible. Also returns its problems, if any.
///
/// Commands use these settings only to find the running process: the file may contain a change that
/// the process has refused. A wrong value counts as absent. The defaults replace a file that cannot
/// be read or is not TOML.
#[must_use]
pub fn load_as_far_as_it_goes(input: &Input) -> (Settings, Vec<Problem>) {
    let problems = match load(input) {
        Ok(loaded) => return (loaded.settings, Vec::new()),
        Err(problems) => problems,
    };
    let file = input.file.as_deref().and_then(|path| read(path).ok()).map(|(name, text)| Text::new(name, text));
    let file = file.filter(|(_, syntax)| syntax.is_empty()).map(|(text, _)| text);
    let text = file.unwrap_or_else(|| Text::new("defaults".to_owned(), default_file(&input.env)).0);
    let (variables, _) = layers::variables(&input.env);
    let root = layers::layered(&text, &variables).unwrap_or_else(|_| toml::Table::new().into());
    let report = Report::new(&text, &variables);
    (process::settings(&Cursor::root(&root, &report)), problems)
}

/// Reads and checks a configuration from a text. Its problems contain `name` as the name of the
/// file.
///
/// # Errors
/// All problems.
pub fn load_text(name: String, text: String, env: &[(String, String)]) -> Result<Configuration, Vec<Problem>> {
    let (variables, mut problems) = layers::variables(env);
    let (text, syntax) = Text::new(name, text);
    if !syntax.is_empty() {
        if let Some(foreign) = foreign::other_language(&text) {
            return Err(vec![foreign]);
        }
        // Whatever else is wrong cannot be told from what the parser did not understand.
        problems.extend(syntax);
        return Err(problems);
    }
    let root = layers::layered(&text, &variables)?;
    let report = Report::new(&text, &variables);
    let settings = process::settings(&Cursor::root(&root, &report));
    let Findings { warnings, files, record } = report.finish(&root, problems, &layers::strays(env))?;
    let origins = Origins::new(text, variables);
    let effective = record.effective() + &published(&settings) + &listed(&settings);
    Ok(Configuration { settings, effective, warnings, origins, files })
}

impl Configuration {
    /// Checks the files the configuration names, and returns a problem for each that is
    /// missing, cannot be read, or has the wrong content.
    pub fn unreadable_files(&self) -> Vec<Problem> {
        self.files.iter().filter_map(NamedFile::problem).collect()
    }

    /// Returns a problem for each file with certificates not valid at `now`, the time of day.
    ///
    /// Unlike other problems, this does not prevent a start: files can be replaced while a gate
    /// runs. `lives` returns the validity of each certificate in a PEM text.
    pub fn expired_files(&self, now: SystemTime, lives: impl Fn(&[u8]) -> Vec<files::Life>) -> Vec<Problem> {
        self.files.iter().filter_map(|file| file.expired(now, &lives)).collect()
    }
}

/// Lists, as TOML comments, the providers' published limits behind the presets of gates.
fn published(settings: &Settings) -> String {
    let mut text = String::new();
    for gate in settings.gates.values() {
        let Some(Figures { preset, share, figures }) = &gate.figures else { continue };
        let name = &gate.name;
        text +=
            &format!("\n# Published limits, of which preset = \"{preset}\" of gates.{name} takes share = {share}:\n");
        let mut source = "";
        for figure in figures {
            if source != figure.source {
                source = &figure.source;
                text += &format!("# {source}\n");
            }
            text += &format!("#   {}: {}\n", figure.class.as_deref().unwrap_or("all others"), figure.says);
        }
    }
    text
}

/// Lists, as TOML comments, the hosts matched by each gate's patterns.
fn listed(settings: &Settings) -> String {
    let mut text = String::new();
    for gate in settings.gates.values() {
        let Some(hosts) = &gate.hosts else { continue };
        text += &format!("\n# Hosts of gates.{}:\n", gate.name);
        for (before, patterns) in [("", &hosts.patterns), ("not ", &hosts.except)] {
            for pattern in patterns {
                let meant =
                    if let HostPattern::Set(set) = pattern { format!(": {}", set.says()) } else { String::new() };
                text += &format!("#   {before}{pattern}{meant}\n");
            }
        }
        if hosts.intercept {
            text += "#   TLS to them is opened\n";
        }
    }
    let names = settings.intercepted_names();
    if !names.is_empty() {
        text += "\n# Name constraints of the egress CA, which clients hold it to:\n";
        names.iter().for_each(|name| text += &format!("#   {name}, and all names below it\n"));
        text += "#   no address\n";
    }
    text
}

fn read(path: &std::path::Path) -> Result<(String, String), Vec<Problem>> {
    let name = path.display().to_string();
    let fault = |message: String| vec![Problem::of_file(&name, Path::default(), message)];
    let bytes = std::fs::read(path).map_err(|error| fault(format!("cannot be read: {error}; expected a TOML file")))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        fault(format!("is not UTF-8 text in line {line}, expected a TOML file"))
    })?;
    Ok((name, text))
}

/// Returns the configuration used if there is no file: a single gate for Kubernetes.
///
/// Its upstream is this pod's cluster or, outside of a cluster, that of the current kubeconfig. The
/// text is empty if environment variables configure other gates.
fn default_file(env: &[(String, String)]) -> String {
    let is_gate = |name: &str| name.to_lowercase().starts_with("tidegate__gates__");
    let is_ours = |name: &str| name.to_lowercase().starts_with("tidegate__gates__kubernetes__");
    if env.iter().any(|(name, _)| is_gate(name)) && !env.iter().any(|(name, _)| is_ours(name)) {
        return String::new();
    }
    let is_in_cluster = env.iter().any(|(name, value)| name == "KUBERNETES_SERVICE_HOST" && !value.is_empty());
    let upstream = if is_in_cluster { "in_cluster" } else { "kubeconfig" };
    format!("[gates.kubernetes]\nupstream = \"{upstream}\"\n")
}

/// The usual path of the configuration file in images and manifests.
const USUAL: &str = "/etc/tidegate/tidegate.toml";

#[cfg(test)]
mod tests;
