//! Keeps the folder that the controller mounts up to date: kubelet renews a pod's token, and the controller reads the copy.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::health::reachable;
use crate::{
    clock::Clock,
    credentials::{
        Secret,
        folder::{self, Contents},
    },
};

/// The folder, and what goes into it.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) ca: String,
    /// The token that the controller sends; `None` where the gate has credentials of its own.
    pub(super) token: Option<Secret>,
    pub(super) namespace: Option<String>,
}

/// Kubelet renews tokens hours before they end.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Writes the folder, and again whenever the token has changed, until `stop`.
pub(super) fn keep(folder: Folder, listen: &[SocketAddr], clock: Clock, stop: CancellationToken) -> anyhow::Result<()> {
    let address = listen.first().copied().context("tls.write_to needs a gate that listens on TCP")?;
    let server = format!("https://{}", reachable(address));
    let mut written = folder.token.as_ref().map(|token| token.reveal(clock.now()));
    folder.write(&server, written.as_deref())?;
    let Some(token) = folder.token.clone() else { return Ok(()) };
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(LOOK_AGAIN) => {}
            }
            let now = Some(token.reveal(clock.now()));
            if now == written {
                continue;
            }
            match folder.write(&server, now.as_deref()) {
                Ok(()) => written = now,
                Err(error) => tracing::warn!(%error, "the controller's copy of the token is old"),
            }
        }
    });
    Ok(())
}

// === impl Folder ===

impl Folder {
    fn write(&self, server: &str, token: Option<&str>) -> Result<(), folder::FolderError> {
        let contents = Contents { ca: &self.ca, token, namespace: self.namespace.as_deref(), server };
        folder::write(&self.path, &contents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_renewed_token_reaches_the_controller() {
        let place = tempfile::tempdir().expect("a folder");
        let (source, path) = (place.path().join("source"), place.path().join("shared"));
        std::fs::write(&source, "old").expect("it can be written");
        let token = Secret::file(&source).expect("a token");
        let folder = Folder { path: path.clone(), ca: "ca".to_owned(), token: Some(token), namespace: None };
        let (clock, stop) = (Clock::start(), CancellationToken::new());
        keep(folder, &["[::]:8443".parse().expect("an address")], clock, stop).expect("it can be written");
        let read = |name: &str| std::fs::read_to_string(path.join(name)).expect("it was written");
        assert_eq!(read("token"), "old");
        assert!(read("kubeconfig").contains("https://[::1]:8443"));
        std::fs::write(&source, "new").expect("it can be written");
        clock.sleep(Duration::from_secs(300)).await;
        assert_eq!(read("token"), "new");
    }
}
