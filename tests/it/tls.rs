//! The listener's TLS: the certificate that a client must trust, and the names by which it finds
//! the gate.

use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::pki_types::ServerName;
use tidegate::tls::{self, Identity, Listener, Pem, Roots, TlsError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// Makes a handshake over a pipe; returns the protocol agreed on.
async fn shake_hands(
    listener: &Listener,
    ca: &str,
    name: &str,
    identity: Option<&Identity>,
) -> std::io::Result<Option<Vec<u8>>> {
    let (near, far) = tokio::io::duplex(64 << 10);
    let client = tls::client(&Roots::Only(Pem::new(ca.into(), "test CA")), identity).expect("a client");
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let acceptor = TlsAcceptor::from(listener.config());
    let serving = async {
        let mut stream = acceptor.accept(far).await?;
        stream.write_all(b"!").await?;
        stream.flush().await
    };
    let calling = async {
        let mut stream = TlsConnector::from(client).connect(name, near).await?;
        // a client certificate that is refused shows on the first read only
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
        let agreed = shake_hands(&listener, &listener.ca(), name, None).await;
        assert_eq!(agreed.unwrap_or_else(|error| panic!("{name}: {error}")).as_deref(), Some(b"h2".as_slice()));
    }
    assert!(shake_hands(&listener, &listener.ca(), "other.example", None).await.is_err());
    let stranger = tls::self_signed(&[], &[], None).expect("a certificate");
    assert!(shake_hands(&listener, &stranger.ca(), "localhost", None).await.is_err(), "each start has a CA of its own");
}

/// A self-signed certificate in two files.
fn write_certificate(folder: &Path, name: &str) -> Identity {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
    let (cert, key) = (folder.join("tls.crt"), folder.join("tls.key"));
    std::fs::write(&cert, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    Identity { chain: Pem::read(&cert).expect("readable"), key: Pem::read(&key).expect("readable") }
}

/// Puts the files of a volume into place as kubelet does: a new folder, and one symbolic link
/// swapped to it.
fn swap(volume: &Path, version: &str) -> Identity {
    let folder = volume.join(version);
    std::fs::create_dir(&folder).expect("made");
    let identity = write_certificate(&folder, &format!("{version}.example"));
    let (next, data) = (volume.join("..data_tmp"), volume.join("..data"));
    symlink(version, &next).expect("linked");
    std::fs::rename(&next, &data).expect("swapped");
    for name in ["tls.crt", "tls.key"] {
        // the links exist after the first time
        symlink(Path::new("..data").join(name), volume.join(name)).ok();
    }
    identity
}

#[tokio::test]
async fn certificate_files_are_followed_and_the_last_good_ones_kept() {
    let volume = tempfile::tempdir().expect("a folder");
    let (cert, key) = (volume.path().join("tls.crt"), volume.path().join("tls.key"));
    swap(volume.path(), "old");
    let listener = tls::from_files(&cert, &key, None).expect("usable");
    assert!(shake_hands(&listener, &listener.ca(), "old.example", None).await.is_ok());
    swap(volume.path(), "new");
    listener.refresh(tls::wall());
    let ca = std::fs::read_to_string(&cert).expect("readable");
    assert_eq!(&*listener.ca(), ca);
    assert!(shake_hands(&listener, &ca, "new.example", None).await.is_ok());

    let other = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    for bad in ["-----BEGIN", other.as_str()] {
        std::fs::write(&key, bad).expect("written");
        listener.refresh(tls::wall());
        assert!(shake_hands(&listener, &ca, "new.example", None).await.is_ok(), "the last good one is kept");
    }
    std::fs::remove_file(volume.path().join("..data")).expect("removed");
    listener.refresh(tls::wall());
    assert!(shake_hands(&listener, &ca, "new.example", None).await.is_ok(), "the last good one is kept");
    swap(volume.path(), "newest");
    listener.refresh(tls::wall());
    assert!(shake_hands(&listener, &listener.ca(), "newest.example", None).await.is_ok());
}

#[tokio::test]
async fn the_pods_own_certificate_is_renewed_in_time_and_its_ca_stays() {
    let listener = tls::self_signed(&[], &[], None).expect("a certificate");
    let (ca, now) = (listener.ca(), tls::wall());
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    let (mut stream, mut served) = connect(&listener).await;
    let first = peer(&stream);

    let at = async |wall: SystemTime| {
        listener.refresh(wall);
        let shown = peer(&connect(&listener).await.0);
        (shown, shake_hands(&listener, &ca, "localhost", None).await.is_ok())
    };
    assert_eq!(at(now + hours(15)).await, (first.clone(), true), "a day is not over by far");
    assert_ne!(at(now + hours(17)).await.0, first, "renewed well before its end");
    // the clock is set back by two days, and then set right again
    assert!(!at(now - hours(48)).await.1, "clients whose clock is right take that one for expired");
    assert!(at(now).await.1);
    assert_eq!(listener.ca(), ca, "what clients were given to trust stays good");

    served.write_all(b"!").await.expect("writes");
    served.flush().await.expect("writes");
    assert_eq!(stream.read_u8().await.expect("a connection from before all that still stands"), b'!');
}

#[tokio::test]
async fn whom_clients_certificates_must_be_by_can_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = write_certificate(folder.path(), "client.example");
    let listener = tls::self_signed(&[], &[], Some(&folder.path().join("tls.crt"))).expect("a listener");
    assert!(shake_hands(&listener, &listener.ca(), "localhost", Some(&before)).await.is_ok());
    let after = write_certificate(folder.path(), "client.example");
    listener.refresh(tls::wall());
    assert!(shake_hands(&listener, &listener.ca(), "localhost", Some(&before)).await.is_err());
    assert!(shake_hands(&listener, &listener.ca(), "localhost", Some(&after)).await.is_ok());
}

type Pipe = tokio::io::DuplexStream;

/// A connection to the listener, both ends of it.
async fn connect(listener: &Listener) -> (client::TlsStream<Pipe>, server::TlsStream<Pipe>) {
    let (near, far) = tokio::io::duplex(64 << 10);
    let anybody = tls::client(&Roots::Unverified, None).expect("a client");
    let name = ServerName::try_from("localhost").expect("a name");
    let connecting = TlsConnector::from(anybody).connect(name, near);
    let (connected, accepted) = tokio::join!(connecting, TlsAcceptor::from(listener.config()).accept(far));
    (connected.expect("connects"), accepted.expect("accepts"))
}

/// The certificate that the listener showed.
fn peer(stream: &client::TlsStream<Pipe>) -> Vec<u8> {
    stream.get_ref().1.peer_certificates().expect("it showed one")[0].to_vec()
}

#[tokio::test]
async fn clients_show_a_certificate_where_one_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let identity = write_certificate(folder.path(), "client.example");
    let listener = tls::self_signed(&[], &[], Some(&folder.path().join("tls.crt"))).expect("a listener");
    assert!(shake_hands(&listener, &listener.ca(), "localhost", None).await.is_err());
    let shown = shake_hands(&listener, &listener.ca(), "localhost", Some(&identity)).await;
    assert!(shown.is_ok(), "{shown:?}");
    let stranger = write_certificate(tempfile::tempdir().expect("a folder").path(), "client.example");
    assert!(shake_hands(&listener, &listener.ca(), "localhost", Some(&stranger)).await.is_err());
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
    assert!(matches!(&error, TlsError::Name(name) if name == "not a name"), "{error}");
    let error = tls::self_signed(&[], &[], Some(&key)).expect_err("no CA").to_string();
    assert_eq!(error, format!("{} holds no certificate in PEM form", key.display()));
    let mixed = Identity { chain: identity.chain, key: other.key };
    assert!(tls::client(&Roots::Unverified, Some(&mixed)).is_err(), "another certificate's key");
}

#[test]
fn keys_do_not_show() {
    let folder = tempfile::tempdir().expect("a folder");
    let identity = write_certificate(folder.path(), "a.example");
    let shown = format!("{identity:?}");
    assert!(shown.contains("tls.key") && !shown.contains("BEGIN"), "{shown}");
}
