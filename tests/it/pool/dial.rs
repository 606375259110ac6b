//! Upstreams that cannot be reached: the error is clear, the retries are calm, and the gate finds
//! the upstream again.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tidegate::api::Group;
use tidegate::tls::{self, Pem, Roots};
use tidegate::upstream::DialFailure;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::pool::support::{Caller, Server, admitted, answer, get, options, soon, text};
use crate::ports::free_port;

/// An address where no server listens.
fn nowhere() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}

#[tokio::test]
async fn an_outage_fails_those_who_wait_and_ends_by_itself() {
    let address = nowhere();
    let caller = Caller::start(options(address, None));
    let mut waiting = JoinSet::new();
    for _ in 0..30 {
        let caller = caller.clone();
        waiting.spawn(async move { soon(caller.lease(Group::Short)).await.map(drop) });
    }
    for outcome in waiting.join_all().await {
        let error = outcome.expect_err("nobody listens");
        assert!(matches!(error.what, DialFailure::Refused), "{error}");
        assert!(error.to_string().starts_with(&format!("cannot connect to {address}: connection refused")), "{error}");
    }
    assert!(caller.upstream.down(Group::LongRunning).is_none(), "each group finds out for itself");
    assert_eq!(caller.ledger.room(Group::Short), 0);

    let listener = TcpListener::bind(address).await.expect("the port is still free");
    let _server = Server::on(listener, |mut socket| async move {
        let mut bytes = [0; 1 << 10];
        while socket.read(&mut bytes).await.is_ok_and(|read| read > 0) {
            let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            drop(tokio::io::AsyncWriteExt::write_all(&mut socket, ok).await);
        }
    });
    // callers come back as controllers do: at once after each failure
    let response = soon(async {
        loop {
            match caller.lease(Group::Short).await {
                Ok(lease) => break caller.upstream.send(lease, admitted(get("/"))).await.expect("an answer"),
                Err(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    assert_eq!(text(response).await, "ok");
    assert!(caller.upstream.down(Group::Short).is_none());
}

#[tokio::test]
async fn an_exempt_call_dials_for_itself_whatever_failed_before() {
    let address = nowhere();
    let caller = Caller::start(options(address, None));
    for _ in 0..3 {
        assert!(soon(caller.upstream.checkout_exempt(Group::Exempt)).await.is_err());
    }
    assert!(soon(caller.lease(Group::Exempt)).await.is_err());
    assert!(caller.upstream.down(Group::Exempt).is_some());
    let listener = TcpListener::bind(address).await.expect("the port is still free");
    let _server = Server::on(listener, |socket| async move {
        std::future::pending::<()>().await;
        drop(socket);
    });
    assert!(
        soon(caller.upstream.checkout_exempt(Group::Exempt)).await.is_ok(),
        "at once, not when the next dial is due"
    );
    assert!(caller.upstream.down(Group::Exempt).is_none());
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_times_out() {
    let server = Server::plain(|socket| async move {
        std::future::pending::<()>().await;
        drop(socket);
    })
    .await;
    let ca = tls::self_signed(&[], &[], None).expect("a CA").ca();
    let mut options = options(server.address, Some(&ca));
    options.connect_timeout = Duration::from_millis(50);
    let error = soon(Caller::start(options).lease(Group::Short)).await.expect_err("no handshake");
    assert!(matches!(error.what, DialFailure::Timeout(_)), "{error}");
    assert!(error.to_string().contains("timeouts.connect"), "{error}");
}

#[tokio::test]
async fn a_wrong_certificate_is_named_for_what_it_is() {
    let server = Server::http2(10, |_, _| async { answer("ok") }.boxed()).await;
    let ca = server.ca.clone().expect("it speaks TLS");

    let mut wrong_name = options(server.address, Some(&ca));
    wrong_name.target.server_name = Some("api.example".into());
    let error = soon(Caller::start(wrong_name).lease(Group::Short)).await.expect_err("not its name");
    assert!(matches!(error.what, DialFailure::WrongHost(_)), "{error}");
    assert!(error.to_string().contains("upstream_tls.server_name"), "{error}");

    let stranger = tls::self_signed(&[], &[], None).expect("a CA").ca();
    let error = soon(Caller::start(options(server.address, Some(&stranger))).lease(Group::Short))
        .await
        .expect_err("a stranger");
    assert!(matches!(error.what, DialFailure::Signature(_)), "its name is that of the right one: {error}");
    assert!(error.to_string().contains("upstream_tls.ca") && error.to_string().contains("P-384"), "{error}");

    let mut plain = options(server.address, None);
    plain.response_timeout = Some(Duration::from_secs(20));
    let caller = Caller::start(plain);
    assert!(caller.get(Group::Short, "/").await.is_err(), "HTTP to a TLS port");
}

/// An upstream with a certificate of its own signature, and that certificate.
async fn self_signed(params: rcgen::CertificateParams) -> (Server, String) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    let folder = tempfile::tempdir().expect("a folder");
    let (cert, file) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    std::fs::write(&cert, certificate.pem()).expect("written");
    std::fs::write(&file, key.serialize_pem()).expect("written");
    let listener = tls::from_files(&cert, &file, None).expect("usable");
    let acceptor = tokio_rustls::TlsAcceptor::from(listener.config());
    let server = Server::plain(move |socket| {
        let acceptor = acceptor.clone();
        async move { drop(acceptor.accept(socket).await) }
    })
    .await;
    (server, certificate.pem())
}

#[tokio::test]
async fn an_expired_certificate_is_named_for_what_it_is() {
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".into()]).expect("a name");
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let (server, own) = self_signed(params).await;
    let error =
        soon(Caller::start(options(server.address, Some(&own))).lease(Group::Short)).await.expect_err("expired");
    assert!(matches!(error.what, DialFailure::Expired(_)), "{error}");
}

#[tokio::test]
async fn a_ca_s_own_certificate_is_named_for_what_it_is() {
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".into()]).expect("a name");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let (server, _) = self_signed(params).await;
    let other = tls::self_signed(&[], &[], None).expect("a CA").ca();
    let error =
        soon(Caller::start(options(server.address, Some(&other))).lease(Group::Short)).await.expect_err("a CA's");
    assert!(error.to_string().contains("CA:FALSE, or set upstream_tls.ca to that very certificate"), "{error}");
}

#[tokio::test]
async fn insecure_takes_any_certificate() {
    let server = Server::http2(10, |_, _| async { answer("ok") }.boxed()).await;
    let mut options = options(server.address, server.ca.as_deref());
    options.tls = Some(Arc::new(tls::Client::new(Roots::Unverified, None).expect("TLS")));
    options.target.server_name = Some("api.example".into());
    let caller = Caller::start(options);
    assert_eq!(text(caller.get(Group::Short, "/").await.expect("an answer")).await, "ok");
}

#[tokio::test]
async fn roots_from_nothing_are_an_error() {
    let error = tls::client(&Roots::Only(Pem::new(b"no PEM".to_vec(), "/etc/ca.crt")), None).expect_err("no roots");
    assert_eq!(error.to_string(), "/etc/ca.crt holds no certificate in PEM form");
}
