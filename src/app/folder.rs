//! Keeps up to date what the clients of a TLS gate rely on: the listener's certificate, and the
//! folder that the controller mounts. Kubelet renews a pod's token, and the controller reads the
//! copy.

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

/// The folder, and what goes into it.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) listener: Arc<Listener>,
    pub(crate) token: Option<Token>,
    pub(crate) namespace: Option<String>,
}

/// The token that the controller sends.
#[derive(Debug)]
pub(crate) enum Token {
    /// The pod's own identity, which the gate passes through.
    Passed(Secret),
    /// The token that the gate requires while it lends its own identity.
    Pods(PodToken),
}

/// The content of the folder that changes: the CA, its key, and the token.
type Written = (Arc<str>, Option<String>, Option<String>);

/// The time between two looks. Certificates and tokens are renewed hours before they end; files
/// that others write must be taken over well within a minute.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Writes the folder, if there is one, and then keeps it and the listener's certificate fresh until
/// `stop`.
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
                () = clock.sleep(LOOK_AGAIN) => {}
            }
            listener.refresh(tls::wall());
            let Some(folder) = &folder else { continue };
            if written.as_ref() == Some(&folder.contents(clock.now())) && folder.path.join("ca.crt").exists() {
                continue;
            }
            match folder.write(server.as_deref(), clock.now()) {
                Ok(contents) => written = Some(contents),
                Err(error) => tracing::warn!(%error, "what the controller reads is old"),
            }
        }
    });
    Ok(())
}

// === impl Folder ===

impl Folder {
    fn contents(&self, now: Moment) -> Written {
        let token = match &self.token {
            None => None,
            Some(Token::Passed(secret)) => secret.reveal(now),
            Some(Token::Pods(token)) => Some(token.reveal().to_owned()),
        };
        (self.listener.ca(), self.listener.ca_key(), token)
    }

    fn write(&self, server: Option<&str>, now: Moment) -> Result<Written, FolderError> {
        let written = self.contents(now);
        let (ca, ca_key, token) = &written;
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
        let token = Token::Passed(Secret::file(&source).expect("a token"));
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
        clock.sleep(Duration::from_secs(60) + LOOK_AGAIN).await;
        assert_eq!(read("token"), "new");
        std::fs::remove_dir_all(&path).expect("removed");
        clock.sleep(LOOK_AGAIN * 2).await;
        assert_eq!(read("token"), "new");
    }
}
