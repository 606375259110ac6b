//! Tunnels whose TLS is opened, for the hosts of gates that intercept and for no others.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proptest::test_runner::{Config, TestRunner};
use rustls::pki_types::{CertificateDer, ServerName};
use tidegate::tls::{self, Pem, Roots, Trust};
use tidegate::upstream::Dns;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::tunnels::{head, tunnel};
use super::{Around, EC2, Listener, aws, listener};
use crate::frames::{GOAWAY, HEADERS, hello, next, request};
use crate::ports::free_port;
use crate::proxy::names::{NameServer, Says};
use crate::support::{header, status, within};

const STS: &str = "sts.eu-central-1.amazonaws.com";

/// A call as the API saw it.
#[derive(Clone, Debug)]
pub(super) struct Call {
    version: Version,
    host: String,
    sni: String,
    authorization: String,
    body: Bytes,
}

/// An API over TLS with a certificate by a CA of its own.
pub(super) struct Api {
    pub(super) address: SocketAddr,
    pub(super) ca: String,
    certificate: CertificateDer<'static>,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Api {
    /// An API with these names that offers these protocols.
    pub(super) async fn start(names: &[&str], protocols: &[&str]) -> Self {
        Self::at(([127, 0, 0, 1], 0).into(), names, protocols).await
    }

    async fn at(address: SocketAddr, names: &[&str], protocols: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = tls::self_signed(&names, &[], None).expect("a certificate");
        let mut config = (*made.config()).clone();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let calls = Arc::<Mutex<Vec<Call>>>::default();
        let log = Arc::clone(&calls);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, log) = (acceptor.clone(), Arc::clone(&log));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let sni = stream.get_ref().1.server_name().unwrap_or_default().to_owned();
                    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let service = service_fn(move |request: Request<Incoming>| {
                        let (log, sni) = (Arc::clone(&log), sni.clone());
                        async move {
                            let (parts, body) = request.into_parts();
                            let text =
                                |name| parts.headers.get(name).map(|value| value.to_str().expect("text").to_owned());
                            let authority = parts.uri.authority().map(ToString::to_string);
                            let call = Call {
                                version: parts.version,
                                host: text("host").or(authority).unwrap_or_default(),
                                sni,
                                authorization: text("authorization").unwrap_or_default(),
                                body: body.collect().await?.to_bytes(),
                            };
                            log.lock().expect("no panic").push(call);
                            Ok::<_, hyper::Error>(http::Response::new(Full::new(Bytes::from("ok"))))
                        }
                    });
                    let stream = TokioIo::new(stream);
                    if http2 {
                        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                            .serve_connection(stream, service)
                            .await
                            .ok();
                    } else {
                        hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await.ok();
                    }
                });
            }
        });
        let certificate = shown(address, &made.ca(), &names[0]).await;
        Self { address, ca: made.ca().to_string(), certificate, calls }
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.calls.lock().expect("no panic").clone()
    }
}

/// The certificate of a server that is connected to directly.
async fn shown(address: SocketAddr, ca: &str, name: &str) -> CertificateDer<'static> {
    let stream = TcpStream::connect(address).await.expect("connects");
    let stream = speak_tls(stream, ca, name, &[]).await.expect("trusted");
    stream.get_ref().1.peer_certificates().expect("a chain")[0].clone().into_owned()
}

/// TLS as a client that trusts this CA and offers these protocols.
pub(super) async fn speak_tls(
    stream: TcpStream,
    ca: &str,
    name: &str,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let config = tls::client(&Roots::Only(Pem::new(ca.into(), "the CA")), None).expect("TLS");
    let mut config = (*config).clone();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    within(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

/// The CA that the clients of a listener trust.
pub(super) fn ca(listener: &Listener) -> String {
    Trust::new(&listener.egress.ca().expect("it intercepts"), &[]).ca
}

/// A listener whose gate intercepts, before an API.
async fn intercepting(burst: u32, api: &Api) -> Listener {
    let both = format!("connect_to = {{ {STS:?} = \"{}\",", api.address);
    let text = aws(burst, api.address).replace("connect_to = {", &both);
    let text = text.replace("hosts =", "intercept = true\nhosts =");
    listener(&text, Around { ca: Some(api.ca.clone()), ..Around::default() }).await
}

/// A call over HTTP/1.1, and everything that is answered.
async fn exchange(stream: &mut TlsStream<TcpStream>, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.ok();
    String::from_utf8_lossy(&answer).into_owned()
}

pub(super) fn get(host: &str) -> String {
    format!(
        "GET /?Action=DescribeInstances&Version=2016-11-15 HTTP/1.1\r\nHost: {host}\r\nAuthorization: signed\r\nConnection: close\r\n\r\n"
    )
}

#[tokio::test]
async fn calls_over_tls_to_a_listed_host_are_limited() {
    let api = Api::start(&[EC2, STS], &["http/1.1"]).await;
    let listener = intercepting(1, &api).await;
    for (expected, code) in [(200, ""), (429, "RequestLimitExceeded")] {
        let stream = tunnel(&listener, &format!("{EC2}:443")).await;
        let mut stream = speak_tls(stream, &ca(&listener), EC2, &[]).await.expect("it trusts the CA");
        let answer = exchange(&mut stream, &get(EC2)).await;
        assert!(status(&answer) == expected && answer.contains(code), "{answer}");
    }
    let calls = api.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!((calls[0].host.as_str(), calls[0].sni.as_str()), (EC2, EC2));
    assert_eq!(calls[0].authorization, "signed");
    assert_eq!(listener.egress.status().origins, 1);
    assert!(listener.egress.status().handshakes.is_empty() && listener.egress.status().tunnels.is_empty());
}

/// P23: what no intercepting gate lists is not opened, beside a gate that intercepts.
#[tokio::test]
async fn a_host_that_is_not_listed_shows_its_own_certificate() {
    let api = Api::start(&[EC2, "api.example"], &["http/1.1"]).await;
    let listener = intercepting(1, &api).await;
    let stream = tunnel(&listener, &api.address.to_string()).await;
    let stream = speak_tls(stream, &api.ca, "api.example", &[]).await.expect("it is the API itself");
    assert_eq!(stream.get_ref().1.peer_certificates().expect("a chain")[0], api.certificate);
    let stream = tunnel(&listener, &format!("{EC2}:443")).await;
    let stream = speak_tls(stream, &ca(&listener), EC2, &[]).await.expect("it is the gate");
    assert_ne!(stream.get_ref().1.peer_certificates().expect("a chain")[0], api.certificate);
}

#[tokio::test]
async fn client_and_api_speak_what_they_would_speak_without_the_gate() {
    let both: &[&str] = &["h2", "http/1.1"];
    for (offered, client, agreed, sent) in [
        (both, both, Some("h2"), Version::HTTP_2),
        (both, &["h2"][..], Some("h2"), Version::HTTP_2),
        (both, &["http/1.1"], Some("http/1.1"), Version::HTTP_2),
        (both, &[], None, Version::HTTP_2),
        (&["http/1.1"], both, Some("http/1.1"), Version::HTTP_11),
        (&["http/1.1"], &[], None, Version::HTTP_11),
        (&[], both, Some("http/1.1"), Version::HTTP_11),
    ] {
        let api = Api::start(&[EC2], offered).await;
        let listener = intercepting(100, &api).await;
        let stream = tunnel(&listener, &format!("{EC2}:443")).await;
        let mut stream = speak_tls(stream, &ca(&listener), EC2, client).await.expect("they have one in common");
        let spoken = stream.get_ref().1.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned());
        assert_eq!(spoken.as_deref(), agreed, "{offered:?} {client:?}");
        if agreed == Some("h2") {
            let (mut send, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("h2");
            tokio::spawn(connection);
            for uri in [format!("https://{EC2}/a"), format!("https://{EC2}:443/b")] {
                let request = Request::post(uri).body(Full::new(Bytes::from("hi"))).expect("a request");
                let answer = within(send.send_request(request)).await.expect("answered");
                assert_eq!(answer.status(), 200);
            }
            let other = Request::get(format!("https://{STS}/")).body(Full::default()).expect("a request");
            assert_eq!(within(send.send_request(other)).await.expect("answered").status(), 421);
        } else {
            let request = format!("POST / HTTP/1.1\r\nHost: {EC2}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
            let answer = exchange(&mut stream, &request).await;
            assert_eq!(status(&answer), 200, "{answer}");
        }
        let calls = api.calls();
        assert!(
            !calls.is_empty() && calls.iter().all(|call| call.version == sent && &*call.body == b"hi"),
            "{calls:?}"
        );
        // Nothing was dialled twice: the connection that told the protocol carries the calls.
        assert!(calls.iter().all(|call| call.sni == EC2), "{calls:?}");
    }
}

#[tokio::test]
async fn a_client_of_http2_alone_is_told_that_the_api_has_none() {
    let api = Api::start(&[EC2], &["http/1.1"]).await;
    let listener = intercepting(100, &api).await;
    let stream = tunnel(&listener, &format!("{EC2}:443")).await;
    let error = speak_tls(stream, &ca(&listener), EC2, &["h2"]).await.expect_err("as without the gate");
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
    let handshakes = listener.egress.status().handshakes;
    assert_eq!((handshakes[0].why.as_str(), handshakes[0].count), ("protocol", 1));
}

/// hyper's client takes a call for lost if a goodbye comes between its request and the answer.
#[tokio::test]
async fn a_call_for_another_host_is_answered_before_the_goodbye() {
    let api = Api::start(&[EC2, STS], &["h2"]).await;
    let listener = intercepting(1_000_000, &api).await;
    let stream = tunnel(&listener, &format!("{EC2}:443")).await;
    let mut stream = speak_tls(stream, &ca(&listener), EC2, &["h2"]).await.expect("it trusts the CA");
    let fields = [(":method", "GET"), (":scheme", "https"), (":path", "/"), (":authority", STS)];
    stream.write_all(&[hello(&[]), request(1, &fields)].concat()).await.expect("sent");
    let mut kinds = Vec::new();
    while !kinds.contains(&GOAWAY) {
        kinds.push(within(next(&mut stream)).await.expect("a frame").kind);
    }
    assert!(kinds.contains(&HEADERS), "{kinds:?}");
}

/// P24: CONNECT, the client's TLS, Host and the upstream are one host in any spelling, or nothing is
/// sent.
#[test]
fn one_name_holds_throughout() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (api, listener) = runtime.block_on(async {
        let api = Api::start(&[EC2, STS], &["h2", "http/1.1"]).await;
        let listener = intercepting(1_000_000, &api).await;
        (api, listener)
    });
    let ca = ca(&listener);
    let spelled = |name: &str, form: usize| match form {
        0 => name.to_owned(),
        1 => name.to_uppercase(),
        2 => format!("{name}."),
        3 => format!("{name}:443"),
        _ => format!("{}.:443", name.to_uppercase()),
    };
    let name = || proptest::sample::select(vec![EC2, STS]);
    let strategy = ((name(), 0..5_usize), (name(), 0..2_usize), (name(), 0..5_usize), proptest::bool::ANY);
    let mut runner = TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
    let passed = runner.run(&strategy, |((asked, asked_form), (sni, sni_form), (host, host_form), http2)| {
        runtime.block_on(async {
            api.calls.lock().expect("no panic").clear();
            let authority = spelled(asked, asked_form);
            let authority = if authority.ends_with(":443") { authority } else { format!("{authority}:443") };
            let stream = tunnel(&listener, &authority).await;
            let protocols: &[&str] = if http2 { &["h2"] } else { &["http/1.1"] };
            let stream = speak_tls(stream, &ca, &spelled(sni, sni_form), protocols).await;
            assert_eq!(stream.is_ok(), asked == sni, "{asked} {sni}");
            let sent = spelled(host, host_form);
            if let Ok(mut stream) = stream {
                let status = if http2 {
                    // Not hyper's client, which loses an answer that comes with a goodbye.
                    let (send, connection) = h2::client::handshake(stream).await.expect("h2");
                    tokio::spawn(connection);
                    let request = Request::get(format!("https://{sent}/")).body(()).expect("a request");
                    let (answer, _) = send.ready().await.expect("open").send_request(request, true).expect("sent");
                    within(answer).await.expect("answered").status().as_u16()
                } else {
                    status(&exchange(&mut stream, &get(&sent)).await)
                };
                assert_eq!(status, if host == asked { 200 } else { 421 }, "{asked} {host}");
            }
            let calls = api.calls();
            assert_eq!(calls.len(), usize::from(asked == sni && host == asked), "{calls:?}");
            for call in calls {
                assert_eq!((call.host, call.sni.as_str()), (sent.clone(), asked));
            }
        });
        Ok(())
    });
    passed.unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test]
async fn tls_for_another_host_is_refused_by_name_and_counted() {
    let api = Api::start(&[EC2, STS], &["http/1.1"]).await;
    let listener = intercepting(1, &api).await;
    let stream = tunnel(&listener, &format!("{EC2}:443")).await;
    let error = speak_tls(stream, &ca(&listener), STS, &[]).await.expect_err("it is another host");
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
    let handshakes = listener.egress.status().handshakes;
    assert_eq!((handshakes[0].host.as_str(), handshakes[0].why.as_str()), (EC2, "sni"));
    assert!(api.calls().is_empty());
}

#[tokio::test]
async fn clients_that_do_not_trust_the_ca_are_counted_with_their_name() {
    let api = Api::start(&[EC2], &["h2", "http/1.1"]).await;
    let listener = intercepting(1, &api).await;
    let mut stream = listener.connect().await;
    let connect = format!("CONNECT {EC2}:443 HTTP/1.1\r\nHost: {EC2}:443\r\nUser-Agent: Boto3/1.43\x01 md\r\n\r\n");
    let connect = connect.replace('\u{1}', "");
    stream.write_all(connect.as_bytes()).await.expect("sent");
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 200 "));
    let error = speak_tls(stream, &api.ca, EC2, &[]).await.expect_err("it trusts another CA");
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    let count = || listener.egress.status().handshakes.first().cloned();
    let failed = within(async {
        loop {
            match count() {
                Some(failed) => return failed,
                None => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    assert_eq!((failed.why.as_str(), failed.client.as_str(), failed.count), ("untrusted", "Boto3/1.43 md", 1));
    let metrics = tidegate::telemetry::metrics().render();
    assert!(metrics.contains("tidegate_egress_handshake_failures_total{gate=\"aws\",why=\"untrusted\"}"), "{metrics}");
}

#[tokio::test]
async fn plain_http_in_a_tunnel_that_is_read_leaves_over_tls() {
    let api = Api::start(&[EC2], &["http/1.1"]).await;
    let listener = intercepting(1, &api).await;
    for expected in [200, 429] {
        let mut stream = tunnel(&listener, &format!("{EC2}:443")).await;
        stream.write_all(get(EC2).as_bytes()).await.expect("sent");
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.expect("reads");
        assert_eq!(status(&answer), expected, "{answer}");
    }
    assert_eq!(api.calls()[0].sni, EC2);
}

#[tokio::test]
async fn an_api_that_cannot_be_reached_or_shows_another_name_is_said_in_the_answer_to_the_call() {
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let other = Api::start(&["other.example"], &["h2", "http/1.1"]).await;
    let unreachable =
        Api { address: closed, ca: other.ca.clone(), certificate: other.certificate.clone(), calls: Arc::default() };
    for api in [&unreachable, &other] {
        let listener = intercepting(1, api).await;
        let stream = tunnel(&listener, &format!("{EC2}:443")).await;
        let mut stream = speak_tls(stream, &ca(&listener), EC2, &["http/1.1"]).await.expect("the gate is there");
        let answer = exchange(&mut stream, &get(EC2)).await;
        assert!([502, 503].contains(&status(&answer)), "{answer}");
        assert!(answer.contains("<Code>ServiceUnavailable</Code>"), "as EC2 would say it: {answer}");
    }
    assert!(other.calls().is_empty());
}

#[tokio::test]
async fn what_a_server_would_refuse_is_refused_in_a_tunnel_that_is_read() {
    let api = Api::start(&[EC2], &["http/1.1"]).await;
    let listener = intercepting(100, &api).await;
    for (request, expected) in [
        (format!("CONNECT {EC2}:443 HTTP/1.1\r\nHost: {EC2}\r\n\r\n"), 405),
        (format!("TRACE / HTTP/1.1\r\nHost: {EC2}\r\n\r\n"), 405),
        (format!("GET / HTTP/1.1\r\nHost: {EC2}\r\nHost: {EC2}\r\n\r\n"), 400),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        (format!("GET http://{EC2}/ HTTP/1.1\r\nHost: {EC2}\r\n\r\n"), 400),
        (format!("GET https://{STS}/ HTTP/1.1\r\nHost: {EC2}\r\n\r\n"), 421),
        (format!("GET https://{EC2}/ HTTP/1.1\r\nHost: {EC2}\r\nConnection: close\r\n\r\n"), 200),
        (format!("GET / HTTP/1.1\r\nHost: {EC2}\r\nConnection: close, authorization\r\nAuthorization: x\r\n\r\n"), 400),
    ] {
        let stream = tunnel(&listener, &format!("{EC2}:443")).await;
        let mut stream = speak_tls(stream, &ca(&listener), EC2, &[]).await.expect("it trusts the CA");
        let answer = exchange(&mut stream, &request).await;
        assert_eq!(status(&answer), expected, "{request}: {answer}");
        assert!(expected == 200 || header(&answer, "tidegate-refusal") == Some("egress"), "{answer}");
    }
    assert_eq!(api.calls().len(), 1);
}

/// Way 2: the pod's hosts file leads the names of several hosts to one listener, which tells them
/// apart, and the gate itself past the hosts file to the hosts.
#[tokio::test]
async fn hosts_that_a_hosts_file_leads_here_are_told_apart_by_their_names() {
    let port = free_port();
    let api = Api::at(([127, 0, 0, 3], port).into(), &[EC2, STS], &["h2", "http/1.1"]).await;
    let (folder, servers) = (tempfile::tempdir().expect("a folder"), NameServer::start().await);
    let file = |name: &str, text: String| {
        std::fs::write(folder.path().join(name), text).expect("it can be written");
        folder.path().join(name)
    };
    let dns = Dns {
        hosts: file("hosts", format!("127.0.0.1 {EC2} {STS} other.example\n")),
        resolv_conf: file("resolv.conf", "nameserver 127.0.0.1\n".to_owned()),
        port: servers.address.port(),
        judge: None,
    };
    for host in [EC2, STS] {
        servers.now_says(host, Says::Here(vec![Ipv4Addr::new(127, 0, 0, 3)], 0));
    }
    let text = format!(
        "names = \"127.0.0.1:{port}\"\nports = [{port}]\n[gates.aws]\nhosts = [\"@aws\"]\nintercept = true\n\
         dialect = \"aws\"\nqueue.max_wait = \"0s\"\nbucket = {{ rate = 0.001, burst = 2 }}\n"
    );
    let listener = listener(&text, Around { ca: Some(api.ca.clone()), dns, ..Around::default() }).await;
    let connect = || async { TcpStream::connect(("127.0.0.1", port)).await.expect("it listens") };
    for (name, expected) in [(EC2, 200), (STS, 200), (EC2, 200), (EC2, 429), (STS, 200), (STS, 429)] {
        let mut stream = speak_tls(connect().await, &ca(&listener), name, &["http/1.1"]).await.expect("trusted");
        let answer = exchange(&mut stream, &get(name)).await;
        assert_eq!(status(&answer), expected, "{name}: {answer}");
    }
    let mut stream = speak_tls(connect().await, &ca(&listener), EC2, &["http/1.1"]).await.expect("trusted");
    assert_eq!(status(&exchange(&mut stream, &get(STS)).await), 421, "a connection is for one host");
    assert_eq!(listener.egress.origins("aws").len(), 2);
    assert!(api.calls().iter().all(|call| call.sni == call.host), "{:?}", api.calls());

    // Names that no gate lists, and none at all.
    for name in ["other.example", "127.0.0.1"] {
        let error = speak_tls(connect().await, &ca(&listener), name, &[]).await.expect_err("it is not served");
        assert!(error.to_string().contains("UnrecognisedName"), "{name}: {error}");
    }
    let refusals = listener.egress.status().refusals;
    assert!(refusals.iter().any(|refusals| refusals.why == "sni" && refusals.count == 2), "{refusals:?}");

    // Plain HTTP by its Host leaves over TLS as well, with the same limits.
    for (request, expected) in [
        (get("sts.us-east-1.amazonaws.com"), 502), // the name server does not know it
        (get(EC2), 429),
        (get("other.example"), 403),
        (format!("GET http://{EC2}/ HTTP/1.1\r\nHost: {EC2}\r\n\r\n"), 400),
        (format!("CONNECT {EC2}:443 HTTP/1.1\r\nHost: {EC2}:443\r\n\r\n"), 405),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\nHost: {EC2}\r\nSec-Fetch-Site: none\r\n\r\n"), 403),
    ] {
        let mut stream = connect().await;
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.ok();
        assert_eq!(status(&answer), expected, "{request}: {answer}");
    }
}
