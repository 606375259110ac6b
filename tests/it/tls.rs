//! The listener's TLS: what a client must trust, and by which names it finds the gate.

use std::{net::IpAddr, path::Path, sync::Arc};

use rustls::pki_types::ServerName;
use tidegate::tls::{self, Identity, Listener, Pem, Roots, TlsError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Shakes hands over a pipe; returns the protocol agreed on.
async fn shake_hands(
    listener: &Listener,
    ca: &str,
    name: &str,
    identity: Option<&Identity>,
) -> std::io::Result<Option<Vec<u8>>> {
    let (near, far) = tokio::io::duplex(64 << 10);
    let client = tls::client(&Roots::Only(Pem::new(ca.into(), "test CA")), identity).expect("a client");
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let acceptor = TlsAcceptor::from(Arc::clone(&listener.config));
    let serving = async {
        let mut stream = acceptor.accept(far).await?;
        stream.write_all(b"!").await?;
        stream.flush().await
    };
    let calling = async {
        let mut stream = TlsConnector::from(client).connect(name, near).await?;
        // a refused client certificate shows on the first read only
        stream.read_u8().await?;
        Ok::<_, std::io::Error>(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
    };
    let (served, called) = tokio::join!(serving, calling);
    served.and(called)
}

#[tokio::test]
async fn the_pods_own_certificate_is_for_every_name_that_clients_use() {
    let address: IpAddr = "10.1.2.3".parse().expect("an address");
    let any: IpAddr = "0.0.0.0".parse().expect("an address");
    let listener = tls::self_signed(&["gate.example".into()], &[address, any], None).expect("a certificate");
    for name in [
        "127.0.0.1",
        "::1",
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "gate.example",
        "10.1.2.3",
    ] {
        let agreed = shake_hands(&listener, &listener.ca, name, None).await;
        assert_eq!(agreed.unwrap_or_else(|error| panic!("{name}: {error}")).as_deref(), Some(b"h2".as_slice()));
    }
    assert!(shake_hands(&listener, &listener.ca, "other.example", None).await.is_err());
    let stranger = tls::self_signed(&[], &[], None).expect("a certificate");
    assert!(shake_hands(&listener, &stranger.ca, "localhost", None).await.is_err(), "each start has a CA of its own");
}

/// A self-signed certificate in two files.
fn write_certificate(folder: &Path, name: &str) -> Identity {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
    let (cert, key) = (folder.join("tls.crt"), folder.join("tls.key"));
    std::fs::write(&cert, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    Identity { chain: Pem::read(&cert).expect("readable"), key: Pem::read(&key).expect("readable") }
}

#[tokio::test]
async fn a_certificate_from_files_can_be_replaced_while_serving() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cert, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    write_certificate(folder.path(), "old.example");
    let listener = tls::from_files(&cert, &key, None).expect("usable");
    assert!(shake_hands(&listener, &listener.ca, "old.example", None).await.is_ok());
    let new = write_certificate(folder.path(), "new.example");
    listener.serving.replace(&new).expect("usable");
    let ca = std::fs::read_to_string(&cert).expect("readable");
    assert!(shake_hands(&listener, &ca, "new.example", None).await.is_ok());

    let torn = Identity { chain: Pem::new(b"-----BEGIN".to_vec(), "tls.crt"), key: new.key };
    assert!(listener.serving.replace(&torn).is_err());
    assert!(shake_hands(&listener, &ca, "new.example", None).await.is_ok(), "the old one is kept");
}

#[tokio::test]
async fn clients_show_a_certificate_where_one_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let identity = write_certificate(folder.path(), "client.example");
    let listener = tls::self_signed(&[], &[], Some(&folder.path().join("tls.crt"))).expect("a listener");
    assert!(shake_hands(&listener, &listener.ca, "localhost", None).await.is_err());
    let shown = shake_hands(&listener, &listener.ca, "localhost", Some(&identity)).await;
    assert!(shown.is_ok(), "{shown:?}");
    let stranger = write_certificate(tempfile::tempdir().expect("a folder").path(), "client.example");
    assert!(shake_hands(&listener, &listener.ca, "localhost", Some(&stranger)).await.is_err());
}

#[test]
fn what_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("nowhere.crt");
    let identity = write_certificate(folder.path(), "a.example");
    let other = write_certificate(tempfile::tempdir().expect("a folder").path(), "b.example");
    let (cert, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    write_certificate(folder.path(), "a.example");

    let error = tls::from_files(&missing, &key, None).expect_err("missing").to_string();
    assert!(error.starts_with(&format!("cannot read {}: ", missing.display())), "{error}");
    let error = tls::from_files(&cert, &cert, None).expect_err("no key").to_string();
    assert_eq!(error, format!("{} holds no private key in PEM form", cert.display()));
    let error = tls::self_signed(&["not a name".into()], &[], None).expect_err("no name");
    assert!(matches!(&error, TlsError::Name { name } if name == "not a name"), "{error}");
    let error = tls::self_signed(&[], &[], Some(&key)).expect_err("no CA").to_string();
    assert_eq!(error, format!("{} holds no certificate in PEM form", key.display()));
    let mixed = Identity { chain: identity.chain, key: other.key };
    assert!(tls::client(&Roots::Anybody, Some(&mixed)).is_err(), "another certificate's key");
}

#[test]
fn keys_do_not_show() {
    let folder = tempfile::tempdir().expect("a folder");
    let identity = write_certificate(folder.path(), "a.example");
    let shown = format!("{identity:?}");
    assert!(shown.contains("tls.key") && !shown.contains("BEGIN"), "{shown}");
}
