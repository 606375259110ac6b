//! The folder of files that a gate with TLS writes for the controller. The files and the listener's
//! certificate are kept up to date: a pod's token is renewed, and the controller reads the copy in
//! this folder.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::reachable::reachable;
use crate::clock::Clock;
use crate::credentials::folder::{self, Contents, FolderError};
use crate::credentials::{PodToken, Secret};
use crate::moment::Moment;
use crate::tls::{self, Listener};

/// The folder to write for the controller, and what goes into it.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) listener: Arc<Listener>,
    pub(crate) token: Option<ControllerToken>,
    pub(crate) namespace: Option<String>,
}

/// The token in the folder, for the controller to send.
#[derive(Debug)]
pub(crate) enum ControllerToken {
    /// The pod's own token, which the gate passes on to the upstream.
    Passed(Secret),
    /// A token that only this pod knows. A gate that adds its own credentials demands it from
    /// clients.
    Pods(PodToken),
}

/// Those files in the folder that change with time.
#[derive(PartialEq)]
struct FolderContents {
    ca: Arc<str>,
    ca_key: Option<String>,
    token: Option<String>,
}

/// The interval of updates. Certificates and tokens are renewed hours before they expire; a file
/// changed by someone else must be loaded within a minute.
const REFRESH: Duration = Duration::from_secs(10);

/// Writes the folder, if there is one. A background task keeps the folder and the listener's
/// certificate up to date until `stop`.
pub(crate) fn keep(
    listener: Arc<Listener>,
    folder: Option<Folder>,
    listen: &[SocketAddr],
    clock: Clock,
    stop: CancellationToken,
) -> Result<(), FolderError> {
    // A kubeconfig cannot name a Unix socket.
    let server = listen.first().map(|address| format!("https://{}", reachable(*address)));
    let mut written = folder.as_ref().map(|folder| folder.write(server.as_deref(), clock.now())).transpose()?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(REFRESH) => {}
            }
            listener.refresh(tls::wall());
            let Some(folder) = &folder else { continue };
            if written.as_ref() == Some(&folder.contents(clock.now())) && folder.path.join("ca.crt").exists() {
                continue;
            }
            match folder.write(server.as_deref(), clock.now()) {
                Ok(contents) => written = Some(contents),
                Err(error) => {
                    tracing::warn!(%error, "cannot write tls.write_to: clients keep the old CA and token")
                }
            }
        }
    });
    Ok(())
}

// === impl Folder ===

impl Folder {
    fn contents(&self, now: Moment) -> FolderContents {
        let token = match &self.token {
            None => None,
            Some(ControllerToken::Passed(secret)) => secret.reveal(now),
            Some(ControllerToken::Pods(token)) => Some(token.reveal().to_owned()),
        };
        FolderContents { ca: self.listener.ca(), ca_key: self.listener.ca_key(), token }
    }

    fn write(&self, server: Option<&str>, now: Moment) -> Result<FolderContents, FolderError> {
        let written = self.contents(now);
        let FolderContents { ca, ca_key, token } = &written;
        let ca_key = ca_key.as_deref();
        let token = token.as_deref();
        let namespace = self.namespace.as_deref();
        folder::write(&self.path, &Contents { ca, ca_key, token, namespace, server })?;
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_renewed_token_reaches_the_controller_and_a_lost_folder_is_written_again() {
        let place = tempfile::tempdir().expect("a folder");
        let (source, path) = (place.path().join("source"), place.path().join("shared"));
        std::fs::write(&source, "old").expect("it can be written");
        let token = ControllerToken::Passed(Secret::file(&source).expect("a token"));
        let listener = Arc::new(tls::self_signed(&[], &[], None).expect("made"));
        let folder =
            Folder { path: path.clone(), listener: Arc::clone(&listener), token: Some(token), namespace: None };
        let (clock, stop) = (Clock::start(), CancellationToken::new());
        let listen = ["[::]:8443".parse().expect("an address")];
        keep(Arc::clone(&listener), Some(folder), &listen, clock, stop).expect("it can be written");
        let read = |name: &str| std::fs::read_to_string(path.join(name)).expect("it was written");
        assert_eq!((read("token").as_str(), read("ca.crt").as_str()), ("old", &*listener.ca()));
        assert!(read("kubeconfig").contains("https://[::1]:8443"));
        std::fs::write(&source, "new").expect("it can be written");
        clock.sleep(Duration::from_secs(60) + REFRESH).await;
        assert_eq!(read("token"), "new");
        std::fs::remove_dir_all(&path).expect("removed");
        clock.sleep(REFRESH * 2).await;
        assert_eq!(read("token"), "new");
    }
}
