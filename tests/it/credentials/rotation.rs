//! CAs, serving certificates and client certificates of the upstream change while calls are
//! running.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tidegate::api::Group;
use tidegate::tls::{self, Client, Identity, Listener, Pem, Roots};
use tidegate::upstream::{DialFailure, ResponseBody};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::pool::support::{Answer, Caller, Server, answer, options, soon};

type Ca = CertifiedIssuer<'static, KeyPair>;

/// An upstream whose certificates are in files, and a pool that trusts a CA in a file.
struct Stage {
    server: Server,
    listener: Arc<Listener>,
    caller: Caller,
    /// Makes all open watches send an event with this number.
    events: watch::Sender<u64>,
    folder: TempDir,
}

impl Stage {
    async fn new(ca: &Ca, shows: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("ca.crt"), ca.pem()).expect("written");
        write_identity(folder.path(), "server", ca);
        write_identity(folder.path(), "client", ca);
        let listener = tls::from_files(&path("server.crt"), &path("server.key"), None).expect("usable");
        let listener = Arc::new(listener);
        let events = watch::Sender::new(0);
        let (served, told) = (Arc::clone(&listener), events.clone());
        let server = Server::plain(move |socket| {
            let (acceptor, told) = (TlsAcceptor::from(served.config()), told.clone());
            async move {
                let Ok(stream) = acceptor.accept(socket).await else { return };
                let service = service_fn(move |request| {
                    let answer = respond(&request, &told);
                    async { Ok::<_, Infallible>(answer) }
                });
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                drop(builder.serve_connection(TokioIo::new(stream), service).await);
            }
        })
        .await;
        let identity =
            shows.then(|| Identity::read(&path("client.crt"), &path("client.key")).expect("they were written"));
        let roots = Roots::Only(Pem::read(&path("ca.crt")).expect("it was written"));
        let mut options = options(server.address, Some(&ca.pem()));
        options.tls = Some(Arc::new(Client::new(roots, identity).expect("TLS")));
        Self { server, listener, caller: Caller::start(options), events, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// From now on the server shows a certificate of this CA.
    fn serve_by(&self, ca: &Ca) {
        write_identity(self.folder.path(), "server", ca);
        self.listener.refresh(tls::wall());
    }

    async fn watch(&self) -> Response<ResponseBody> {
        self.caller.get(Group::LongRunning, "/watch").await.expect("it begins")
    }

    async fn get(&self) -> StatusCode {
        self.caller.get(Group::Short, "/").await.expect("an answer").status()
    }
}

fn respond(request: &Request<Incoming>, events: &watch::Sender<u64>) -> Answer {
    match request.uri().path() {
        "/watch" => {
            let told = events.subscribe();
            let stream = futures_util::stream::unfold(told, async |mut told| {
                told.changed().await.ok()?;
                let event = format!("{}\n", *told.borrow_and_update());
                Some((Ok::<_, std::io::Error>(Frame::data(Bytes::from(event))), told))
            });
            Response::new(UnsyncBoxBody::new(StreamBody::new(stream)))
        }
        "/deny" => {
            let mut answer = answer("no");
            *answer.status_mut() = StatusCode::UNAUTHORIZED;
            answer
        }
        _ => answer("ok"),
    }
}

fn ca(name: &str) -> Ca {
    let mut params = CertificateParams::new(Vec::new()).expect("no names to be wrong");
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA")
}

fn write_identity(folder: &Path, name: &str, ca: &Ca) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, ca).expect("signed");
    fs::write(folder.join(format!("{name}.crt")), certificate.pem()).expect("written");
    fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("written");
}

/// Lets time pass at once, and then runs everything that is due.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

async fn event(watch: &mut Response<ResponseBody>) -> Bytes {
    let frame = soon(watch.body_mut().frame()).await.expect("it goes on").expect("it is not broken");
    frame.into_data().expect("data")
}

#[tokio::test]
async fn a_rotated_ca_is_trusted_within_a_minute_and_no_watch_is_lost() {
    let (old, new) = (ca("old"), ca("new"));
    let stage = Stage::new(&old, false).await;
    let mut watches = join_all((0..50).map(|_| stage.watch())).await;
    assert_eq!(stage.get().await, 200);
    let before = stage.server.connections();

    stage.serve_by(&new);
    fs::write(stage.path("ca.crt"), new.pem()).expect("written");
    assert_eq!((stage.get().await, stage.server.connections()), (StatusCode::OK, before), "what stands serves on");
    pass(Duration::from_secs(36)).await;
    assert_eq!(stage.get().await, 200);
    watches.push(stage.watch().await);
    assert_eq!(stage.server.connections(), before + 2, "both groups have a connection by the new CA");

    stage.events.send_replace(7);
    for watch in &mut watches {
        assert_eq!(event(watch).await, "7\n");
    }
}

#[tokio::test]
async fn an_upstream_by_another_ca_is_believed_once_that_ca_is_here() {
    let (old, new) = (ca("old"), ca("new"));
    let stage = Stage::new(&old, false).await;
    stage.serve_by(&new);
    pass(Duration::from_secs(2)).await;
    let error = soon(stage.caller.lease(Group::Short)).await.expect_err("nobody trusted signed it");
    assert!(matches!(error.what, DialFailure::UnknownIssuer(_)), "{error}");
    let (said, cause) = (error.to_string(), error.cause().expect("the log has more"));
    assert!(said.contains("set upstream_tls.ca") && !said.contains(&cause), "{said}; {cause}");
    fs::write(stage.path("ca.crt"), new.pem()).expect("written");
    // the next check is not due for half a minute: the failure itself makes the gate read the files
    pass(Duration::from_secs(2)).await;
    assert_eq!(stage.get().await, 200);
}

#[tokio::test]
async fn the_last_good_ca_is_kept() {
    let old = ca("old");
    let stage = Stage::new(&old, false).await;
    fs::write(stage.path("ca.crt"), "-----BEGIN").expect("written");
    pass(Duration::from_secs(36)).await;
    assert_eq!(stage.get().await, 200);
}

#[tokio::test]
async fn a_401_has_the_client_certificate_read_again_at_once() {
    let ca = ca("one");
    let stage = Stage::new(&ca, true).await;
    assert_eq!(stage.get().await, 200);
    pass(Duration::from_secs(2)).await;
    write_identity(stage.folder.path(), "client", &ca);
    assert_eq!((stage.get().await, stage.server.connections()), (StatusCode::OK, 1));
    let denied = stage.caller.get(Group::Short, "/deny").await.expect("an answer");
    assert_eq!(denied.status(), 401);
    drop(denied);
    assert_eq!((stage.get().await, stage.server.connections()), (StatusCode::OK, 2), "by the new certificate");
}
