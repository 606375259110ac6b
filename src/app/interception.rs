//! The CA of interception: taken over from the process before or made, kept for the one after, and
//! written to the folder from which clients learn to trust it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::gate::Trouble;
use crate::clock::Clock;
use crate::credentials::folder::{self, FolderError};
use crate::spec::{EgressCa, Settings};
use crate::tls::{self, Interception, Trust};

/// The CA before it is made.
#[derive(Debug)]
pub(crate) struct PreparedCa {
    settings: EgressCa,
    permitted: Vec<String>,
}

// === impl PreparedCa ===

impl PreparedCa {
    /// Checks what the CA needs; `None` if no gate intercepts.
    pub(crate) fn new(settings: &Settings) -> Result<Option<Self>, Trouble> {
        let permitted = settings.intercepted_names();
        let Some(egress) = settings.egress.as_ref().filter(|_| !permitted.is_empty()) else { return Ok(None) };
        let settings = egress.ca.clone();
        if let Some(file) = &settings.extra_roots {
            tls::extra_roots(file).map_err(|error| Trouble::Wrong { key: "ca.extra_roots", what: error.into() })?;
        }
        Ok(Some(Self { settings, permitted }))
    }

    /// Makes the CA, and writes what clients need; keeps that there until `stop`.
    pub(crate) fn open(self, clock: Clock, stop: CancellationToken) -> anyhow::Result<Arc<Interception>> {
        let ca = Arc::new(self.take_over().map_or_else(|| Interception::new(&self.permitted), Ok)?);
        if let Some(keep) = &self.settings.keep {
            folder::keep_egress_ca(keep, &ca.kept()).context("egress.ca.keep")?;
        }
        let trust = self.trust(&ca).context("egress.ca.extra_roots")?;
        self.write(&trust).context("egress.ca.write_to")?;
        tracing::info!(
            names = ca.permitted().join(", "),
            folder = %self.settings.write_to.display(),
            "TLS to hosts of gates with intercept = true is opened: their calls pass here in clear"
        );
        tokio::spawn(self.look_after(Arc::clone(&ca), trust, clock, stop));
        Ok(ca)
    }

    /// Returns the CA that an earlier gate of this pod has left.
    fn take_over(&self) -> Option<Interception> {
        let left = folder::left_egress_ca(self.settings.keep.as_deref()?)?;
        match Interception::again(&left, &self.permitted, tls::wall()) {
            Ok(ca) => Some(ca),
            Err(why) => {
                tracing::warn!(
                    why,
                    "the egress CA that was kept is replaced by a new one: restart the pod's other containers, which do not trust that"
                );
                None
            }
        }
    }

    fn trust(&self, ca: &Interception) -> Result<Trust, tls::TlsError> {
        let extra = self.settings.extra_roots.as_deref().map(tls::extra_roots).transpose()?;
        Ok(Trust::new(ca, &extra.unwrap_or_default()))
    }

    fn write(&self, trust: &Trust) -> Result<(), FolderError> {
        let folder = &self.settings.write_to;
        let files =
            [(CA, trust.ca.as_bytes()), ("bundle.crt", trust.bundle.as_bytes()), ("trust.jks", &trust.keystore)];
        // First, so that it has its mode whatever the umask is.
        folder::write_public(folder, &files)?;
        folder::write_public(&folder.join("certs"), &[(Trust::HASHED, trust.ca.as_bytes())])
    }

    /// Writes the files again when roots have changed, or when someone has removed them.
    async fn look_after(self, ca: Arc<Interception>, mut trust: Trust, clock: Clock, stop: CancellationToken) {
        let this = Arc::new(self);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(LOOK_AGAIN) => {}
            }
            let (looking, of) = (Arc::clone(&this), Arc::clone(&ca));
            // On another thread: some hundred certificates are read.
            let found = tokio::task::spawn_blocking(move || looking.trust(&of)).await;
            let found = match found {
                Ok(Ok(found)) => found,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the roots for the egress listener's clients stay as they were");
                    trust.clone()
                }
                Err(_) => return,
            };
            if found == trust && this.settings.write_to.join(CA).exists() {
                continue;
            }
            match this.write(&found) {
                Ok(()) => trust = found,
                Err(error) => tracing::warn!(%error, "what the egress listener's clients trust is old"),
            }
        }
    }
}

const CA: &str = "ca.crt";
/// Roots change by a renewal of the image or of a mounted file.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::config;

    #[tokio::test(start_paused = true)]
    async fn what_clients_read_is_public_and_written_again_and_the_key_is_neither() {
        let place = tempfile::tempdir().expect("a folder");
        let (keep, shared) = (place.path().join("keys"), place.path().join("shared/egress"));
        let extra = place.path().join("extra.pem");
        let root = tls::self_signed(&[], &[], None).expect("made").ca();
        fs::write(&extra, &*root).expect("written");
        let text = format!(
            "[egress.ca]\nkeep = {keep:?}\nwrite_to = {shared:?}\nextra_roots = {extra:?}\n[gates.a]\nhosts = [\"a.example\"]\nintercept = true\n"
        );
        let settings = config::load_text("f.toml".to_owned(), text, &[]).expect("a configuration").settings;
        let open = |clock, stop| {
            let prepared = PreparedCa::new(&settings).expect("it can be made").expect("a gate intercepts");
            prepared.open(clock, stop).expect("it can be written")
        };
        let (clock, stop) = (Clock::start(), CancellationToken::new());
        let ca = open(clock, stop.clone());
        let read = |name: &str| fs::read_to_string(shared.join(name)).expect("it was written");
        let mode = |path: &std::path::Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o7777;
        assert_eq!(read("ca.crt"), read("certs/0fd89f02.0"));
        assert!(read("bundle.crt").starts_with(&read("ca.crt")));
        let written = |pem: &str| pem.lines().filter(|line| !line.starts_with('-')).collect::<String>();
        assert!(written(&read("bundle.crt")).contains(&written(&root)), "the extra root is in the bundle");
        for name in ["ca.crt", "bundle.crt", "trust.jks", "certs/0fd89f02.0"] {
            assert_eq!(mode(&shared.join(name)), 0o644, "{name}");
        }
        assert_eq!((mode(&shared), mode(&shared.join("certs"))), (0o755, 0o755));
        assert_eq!((mode(&keep), mode(&keep.join("egress-ca.pem"))), (0o700, 0o600));

        fs::remove_dir_all(&shared).expect("removed");
        clock.sleep(LOOK_AGAIN + Duration::from_secs(1)).await;
        while !shared.join("trust.jks").exists() {
            tokio::task::yield_now().await; // another thread reads the roots
        }
        assert_eq!(read("certs/0fd89f02.0"), read("ca.crt"));
        stop.cancel();

        // The process after this one goes on with it, unless others could read the key.
        let again = open(clock, CancellationToken::new());
        assert_eq!(again.root(), ca.root());
        fs::set_permissions(keep.join("egress-ca.pem"), fs::Permissions::from_mode(0o640)).expect("changed");
        assert_ne!(open(clock, CancellationToken::new()).root(), ca.root());
    }
}
