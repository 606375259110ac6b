//! A store behind TLS, with a certificate of a CA that only the configuration knows.

use super::*;

#[tokio::test]
async fn a_server_is_reached_over_tls_and_only_with_its_own_ca() {
    let Some(program) = program() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("it can be written");
        path
    };
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).expect("names").self_signed(&key).expect("signed");
    let (cert, key) = (write("cert", certificate.pem()), write("key", key.serialize_pem()));
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let (port_text, cert_text, key_text) = (port.to_string(), cert.display().to_string(), key.display().to_string());
    let more = [
        "--tls-port",
        &port_text,
        "--tls-cert-file",
        &cert_text,
        "--tls-key-file",
        &key_text,
        "--tls-auth-clients",
        "no",
        "--tls-ca-cert-file",
        &cert_text,
    ];
    let child = spawn(&program, folder.path(), &more);
    let server = Server { child, folder, port: Some(port) };
    server.up().await;
    let address = StoreAddress::Tcp(Endpoint { host: "localhost".to_owned(), port: server.port.expect("set") });
    let over = |tls: UpstreamTls| Store { address: address.clone(), has_tls: true, tls, ..server.store() };
    let trusting = over(UpstreamTls { ca: Some(cert), ..UpstreamTls::default() });
    asked(&stores(trusting), &ask(1, 1)).await.expect("it answers");
    let fault = dialer(over(UpstreamTls::default())).dial().await.expect_err("the system does not know its CA");
    assert!(fault.to_string().contains("certificate"), "{fault}");
    assert_eq!(fault.away(), Away::Unreachable);
}
