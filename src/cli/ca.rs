//! `tidegate ca`: prints the CA of the egress listener, or makes one for several listeners.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;

use super::running::{ask, block_on};
use super::{ConfigOption, Failure, show};
use crate::spec::Settings;
use crate::tls::Interception;

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate ca > ca.crt            what clients are to trust, of the process that runs
  tidegate ca --new egress-ca     make one for the hosts of gates with intercept = true
  kubectl create secret generic egress-ca --from-file=egress-ca

It makes a root (ca.crt), whose key is dropped, and a CA below it (tls.crt, tls.key): egress.ca.root,
egress.ca.cert and egress.ca.key. Both sign for these hosts only, and end in 2049.";

/// The arguments: the configuration, and the folder for a new CA.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    configured: ConfigOption,
    /// Make a CA in this folder instead, for the hosts of the configuration
    #[arg(long, value_name = "FOLDER")]
    new: Option<PathBuf>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let settings = options.configured.sources().load()?.settings;
    match &options.new {
        Some(folder) => Ok(make(&settings, folder)?),
        None => {
            let (_, ca) = block_on(ask(&settings, async |at| at.get("/egress/ca.pem", PATIENCE).await))??;
            Ok(show::text(&ca)?)
        }
    }
}

/// Makes a CA in a folder. Fails if there is one already, because clients trust it.
fn make(settings: &Settings, folder: &Path) -> anyhow::Result<()> {
    let names = settings.intercepted_names();
    if names.is_empty() {
        bail!("no CA is needed: no gate of the configuration has intercept = true; set it at a gate with hosts first");
    }
    let ca = Interception::new(&names)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {} for the CA", folder.display()))?;
    let files = ["tls.crt", "tls.key", "ca.crt"].map(|name| folder.join(name));
    if let Some(there) = files.iter().find(|path| path.exists()) {
        bail!("{} exists already, and clients may trust it: it is not replaced; name another folder", there.display());
    }
    for ((path, text), mode) in files.iter().zip(ca.files()).zip([0o644, 0o600, 0o644]) {
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write the file {} of the CA", path.display()))?;
    }
    let says = "tls.crt, tls.key (secret) and ca.crt, which clients trust";
    Ok(show::text(&format!("{}: {says}, for {} and all names below\n", folder.display(), names.join(", ")))?)
}

const PATIENCE: Duration = Duration::from_secs(5);
