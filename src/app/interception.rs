//! The egress CA: it signs the certificates with which clients' TLS is decrypted. The operator
//! gives it in files; otherwise the CA of an earlier process is used, or a new one is made and
//! stored for the next process. Its certificate is written to a folder for the clients that trust
//! it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::gate::Trouble;
use crate::clock::Clock;
use crate::credentials::folder::{self, FolderError};
use crate::spec::{EgressCa, Settings};
use crate::tls::{self, CurrentCa, GivenCa, GivenCaError, Interception, Trust};

/// The settings of the egress CA, checked before it is read or made.
#[derive(Debug)]
pub(crate) struct PreparedCa {
    settings: EgressCa,
    permitted: Vec<String>,
    /// The operator's files, and the CA read from them.
    given: Option<(GivenCa, Interception)>,
}

// === impl PreparedCa ===

impl PreparedCa {
    /// Checks the files of the CA; `None` if no gate decrypts TLS.
    pub(crate) fn new(settings: &Settings) -> Result<Option<Self>, Trouble> {
        let permitted = settings.intercepted_names();
        let Some(egress) = settings.egress.as_ref().filter(|_| !permitted.is_empty()) else { return Ok(None) };
        let settings = egress.ca.clone();
        if let Some(file) = &settings.extra_roots {
            tls::extra_roots(file).map_err(|error| Trouble::Wrong { key: "ca.extra_roots", what: error.into() })?;
        }
        let given = settings.given.as_ref().map(|_| read_given(&settings, &permitted)).transpose();
        let given = given.map_err(|unfit| Trouble::Wrong { key: unfit.key, what: unfit.into() })?;
        Ok(Some(Self { settings, permitted, given: given.flatten() }))
    }

    /// Returns a warning if the operator's CA expires soon.
    pub(crate) fn warning(&self) -> Option<String> {
        ending(&self.given.as_ref()?.1)
    }

    /// Returns the CA, and writes the files for clients. A background task keeps them up to date
    /// until `stop`.
    pub(crate) fn open(mut self, clock: Clock, stop: CancellationToken) -> anyhow::Result<Arc<CurrentCa>> {
        let (files, ca) = match self.given.take() {
            Some((files, ca)) => (Some(files), ca),
            None => (None, self.make()?),
        };
        let trust = self.trust(&ca).context("egress.ca.extra_roots")?;
        self.write(&trust).context("egress.ca.write_to")?;
        tracing::info!(
            names = ca.permitted().join(", "),
            folder = %self.settings.write_to.display(),
            "the egress listener decrypts TLS to the hosts of gates with intercept = true, and limits the calls in it"
        );
        let ca = Arc::new(CurrentCa::new(ca));
        tokio::spawn(self.keep_fresh(Arc::clone(&ca), TrustState { files, trust, logged: None }, clock, stop));
        Ok(ca)
    }

    /// Returns the CA that an earlier process stored, or a new one.
    fn make(&self) -> anyhow::Result<Interception> {
        let ca = self.take_over().map_or_else(|| Interception::new(&self.permitted), Ok)?;
        if let Some(keep) = &self.settings.keep {
            folder::keep_egress_ca(keep, &ca.kept()).context("egress.ca.keep")?;
        }
        Ok(ca)
    }

    /// Returns the CA that an earlier process stored; `None` if there is none, or if it does not
    /// fit this configuration.
    fn take_over(&self) -> Option<Interception> {
        let left = folder::left_egress_ca(self.settings.keep.as_deref()?)?;
        match Interception::again(&left, &self.permitted, tls::wall()) {
            Ok(ca) => Some(ca),
            Err(why) => {
                tracing::warn!(
                    why,
                    "the egress CA in egress.ca.keep cannot be used: a new one replaces it; restart the pod's other containers, which do not trust the new one"
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

    /// Checks the files every minute. Loads the operator's files when they have changed. Writes the
    /// files for clients when the CA or the system's CAs have changed, or when someone has removed
    /// them.
    async fn keep_fresh(self, ca: Arc<CurrentCa>, mut known: TrustState, clock: Clock, stop: CancellationToken) {
        let this = Arc::new(self);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(REFRESH) => {}
            }
            let own = Arc::clone(&this);
            let of = Arc::clone(&ca);
            // On another thread: some hundred certificates are read.
            let checked = tokio::task::spawn_blocking(move || {
                own.refresh(&of, &mut known);
                known
            });
            match checked.await {
                Ok(checked) => known = checked,
                Err(_) => return,
            }
        }
    }

    fn refresh(&self, ca: &CurrentCa, known: &mut TrustState) {
        let mut problem = None;
        if known.files.is_some() {
            match read_given(&self.settings, &self.permitted) {
                Ok(Some((files, found))) if known.files.as_ref() != Some(&files) => {
                    ca.set(found);
                    known.files = Some(files);
                    tracing::info!("the egress CA has changed: the new one signs from now on");
                }
                Ok(_) => {}
                Err(GivenCaError { key, why }) => {
                    problem = Some(format!("egress.{key}: {why}; the last good egress CA stays in use"))
                }
            }
        }
        let ca = ca.get();
        known.log(problem.or_else(|| ending(&ca)));
        let found = match self.trust(&ca) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "cannot read egress.ca.extra_roots: clients of the egress listener keep trusting the old roots");
                known.trust.clone()
            }
        };
        if found == known.trust && self.settings.write_to.join(CA).exists() {
            return;
        }
        match self.write(&found) {
            Ok(()) => known.trust = found,
            Err(error) => {
                tracing::warn!(%error, "cannot write the egress CA's files for clients (egress.ca.write_to): they keep reading the old ones")
            }
        }
    }
}

/// The state of the files at the last check.
struct TrustState {
    /// The operator's CA files, as last loaded.
    files: Option<GivenCa>,
    trust: Trust,
    /// The last logged problem of the CA. A problem is logged only when it differs from this one.
    logged: Option<String>,
}

// === impl TrustState ===

impl TrustState {
    fn log(&mut self, problem: Option<String>) {
        if problem != self.logged {
            match &problem {
                Some(problem) => tracing::warn!("{problem}"),
                None => tracing::info!("the egress CA and its files are valid again"),
            }
            self.logged = problem;
        }
    }
}

// === helpers ===

/// Reads the operator's CA, if one is configured. A certificate and key that do not match are read
/// a second time, because they may be in the middle of being replaced.
fn read_given(settings: &EgressCa, permitted: &[String]) -> Result<Option<(GivenCa, Interception)>, GivenCaError> {
    let Some(given) = &settings.given else { return Ok(None) };
    let once = || {
        let files = GivenCa::read(&given.cert, &given.key, &given.root)?;
        let ca = files.interception(permitted, tls::wall())?;
        Ok(Some((files, ca)))
    };
    once().or_else(|_: GivenCaError| once())
}

/// Returns a warning if a CA expires soon.
fn ending(ca: &Interception) -> Option<String> {
    let ends = httpdate::fmt_http_date(ca.ends_soon(tls::wall())?);
    Some(format!(
        "egress.ca.cert: the CA or its root expires at {ends}, and clients reject it from then on: renew it, and give clients a new root before"
    ))
}

const CA: &str = "ca.crt";
/// The interval of checks. The system's CAs are files too, and change with the image or a mounted
/// file.
const REFRESH: Duration = Duration::from_secs(60);

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
        clock.sleep(REFRESH + Duration::from_secs(1)).await;
        while !shared.join("trust.jks").exists() {
            tokio::task::yield_now().await; // another thread reads the roots
        }
        assert_eq!(read("certs/0fd89f02.0"), read("ca.crt"));
        stop.cancel();

        // The process after this one goes on with it, unless others could read the key.
        let again = open(clock, CancellationToken::new());
        assert_eq!(again.get().root(), ca.get().root());
        fs::set_permissions(keep.join("egress-ca.pem"), fs::Permissions::from_mode(0o640)).expect("changed");
        assert_ne!(open(clock, CancellationToken::new()).get().root(), ca.get().root());
    }

    #[tokio::test(start_paused = true)]
    async fn a_ca_that_is_given_is_followed_and_the_last_good_one_kept() {
        let place = tempfile::tempdir().expect("a folder");
        let at = |name: &str| place.path().join(name);
        let write = |ca: &Interception| {
            for (name, text) in ["tls.crt", "tls.key", "ca.crt"].iter().zip(ca.files()) {
                fs::write(at(name), text).expect("written");
            }
        };
        let make = |name: &str| Interception::new(&[name.to_owned()]).expect("a CA");
        let (first, second) = (make("a.example"), make("a.example"));
        write(&first);
        let text = format!(
            "[egress.ca]\nwrite_to = {:?}\ncert = {:?}\nkey = {:?}\nroot = {:?}\n[gates.a]\nhosts = [\"a.example\"]\nintercept = true\n",
            at("shared"),
            at("tls.crt"),
            at("tls.key"),
            at("ca.crt")
        );
        let settings = config::load_text("f.toml".to_owned(), text, &[]).expect("a configuration").settings;
        let prepare = || PreparedCa::new(&settings);
        let (clock, stop) = (Clock::start(), CancellationToken::new());
        let prepared = prepare().expect("it fits").expect("a gate intercepts");
        assert_eq!(prepared.warning(), None);
        let ca = prepared.open(clock, stop.clone()).expect("it can be written");
        assert_eq!(ca.get().root(), first.root());
        assert_eq!(fs::read_to_string(at("shared/ca.crt")).expect("written"), first.published());

        // One for other hosts does not take its place, nor a key alone.
        write(&make("b.example"));
        clock.sleep(REFRESH * 3).await;
        assert_eq!(ca.get().root(), first.root());
        assert!(matches!(prepare(), Err(Trouble::Wrong { key: "ca.cert", .. })));
        write(&first);
        fs::write(at("tls.key"), &second.files()[1]).expect("written");
        assert!(matches!(prepare(), Err(Trouble::Wrong { key: "ca.key", .. })));

        write(&second);
        clock.sleep(REFRESH * 3).await;
        while ca.get().root() != second.root()
            || fs::read_to_string(at("shared/ca.crt")).ok() != Some(second.published())
        {
            tokio::task::yield_now().await; // another thread reads and writes them
        }
        stop.cancel();
    }
}
