//! The egress listener: clients that know nothing of a gate but the address of a forward proxy.
//!
//! Hosts have their real names, which no client behind a proxy looks up; `connect_to` leads them to
//! an upstream with a certificate for them.

mod authorities;
mod bounded;
mod given;
mod intercept;
mod kept;
mod pages;
mod process;
mod reload;
mod remembered;
mod restart;
mod shared;
mod signed;
mod tunnels;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Scheme;
use tidegate::clock::Clock;
use tidegate::config;
use tidegate::credentials::{Injector, Secret};
use tidegate::proxy::{Directory, EgressListener, EgressOptions, Options, Stores};
use tidegate::tls::{self, Pem, Roots};
use tidegate::{spec, upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::support::{Backend, header, status, within};

pub(crate) const EC2: &str = "ec2.eu-central-1.amazonaws.com";

/// TLS for these names before a backend. Returns the address, and the CA.
pub(super) async fn encrypted(backend: SocketAddr, names: &[&str]) -> (SocketAddr, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = tls::self_signed(&names, &[], None).expect("a certificate");
    let mut config = (*made.config()).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut behind = TcpStream::connect(backend).await.expect("it listens");
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    tokio::io::copy_bidirectional(&mut stream, &mut behind).await.ok();
                }
            });
        }
    });
    (address, made.ca().to_string())
}

/// A listener at work.
pub(super) struct Listener {
    pub(super) egress: Arc<EgressListener>,
    pub(super) address: SocketAddr,
    pub(super) stop: CancellationToken,
}

/// What a listener is started with besides its configuration.
pub(super) struct Around {
    pub(super) listen: &'static str,
    pub(super) drain: Duration,
    pub(super) ca: Option<String>,
    pub(super) judge: Option<upstream::Judge>,
    pub(super) dns: upstream::Dns,
    pub(super) token: Option<Secret>,
    pub(super) tls: Option<Arc<tls::Listener>>,
    pub(super) clients: Option<Arc<tidegate::clients::Clients>>,
    pub(super) via: Option<SocketAddr>,
    /// Addresses of the gate's own besides the listener's.
    pub(super) own: Vec<SocketAddr>,
}

impl Default for Around {
    fn default() -> Self {
        // The upstreams of tests are on loopback.
        let (ca, token, tls, clients, via, own) = Default::default();
        let (listen, drain, judge) = ("127.0.0.1:0", Duration::ZERO, Some((|_| Ok(())) as upstream::Judge));
        Self { listen, drain, ca, judge, dns: upstream::Dns::default(), token, tls, clients, via, own }
    }
}

/// A listener with this configuration below `[egress]`.
pub(super) async fn listener(text: &str, around: Around) -> Listener {
    let text = format!("[egress]\nlisten = {:?}\n{text}", around.listen);
    let settings = config::load_text("f.toml".to_owned(), text, &[]).expect("a good configuration").settings;
    let directory = Directory::new(&settings).expect("there is a listener");
    let names = settings.intercepted_names();
    let authority =
        (!names.is_empty()).then(|| Arc::new(tls::CurrentCa::new(tls::Interception::new(&names).expect("a CA"))));
    let roots = around.ca.as_ref().map(|ca| Roots::Only(Pem::new(ca.clone().into(), "the CA")));
    let client = tls::Client::new(roots.unwrap_or(Roots::System), None).expect("TLS");
    let client = Arc::new(client);
    let proxy = around.via.map(|via| tidegate::credentials::Proxy::parse(&format!("http://{via}")).expect("a proxy"));
    let options = |gate: spec::Gate, tls: Option<Arc<tls::Client>>| Options {
        upstream: upstream::Options {
            target: upstream::Target {
                scheme: if tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP },
                authority: "egress.invalid".parse().expect("an authority"),
                base_path: String::new(),
                server_name: None,
                proxy: proxy.clone(),
            },
            tls,
            host: gate.forwarding.host.clone(),
            rewrite_links: None,
            mount: String::new(),
            injector: Arc::new(Injector::pass_through()),
            own: Vec::new(),
            dns: around.dns.clone(),
            connect_timeout: Duration::from_secs(5),
            response_timeout: None,
        },
        gate,
        tls: None,
        clients: None,
        call_log: None,
        stores: Stores::default(),
        drain: around.drain,
    };
    let clear = "[gates.clear]\nkind = \"http\"\nupstream = \"http://x\"\npreset = \"none\"\nhost = \"preserve\"\nlisten = \"127.0.0.1:0\"\n";
    let clear = config::load_text("f.toml".to_owned(), clear.to_owned(), &[]).expect("a good configuration");
    let mut clear = clear.settings.gates.into_values().next().expect("a gate");
    (clear.name, clear.listen) = ("egress.others".into(), Vec::new());
    let gates = settings.gates.into_values().map(|gate| options(gate, Some(Arc::clone(&client)))).collect();
    let stop = CancellationToken::new();
    let egress = EgressOptions {
        directory,
        gates,
        clear: options(clear, None),
        token: around.token,
        tls: around.tls,
        clients: around.clients,
        ca: authority,
        own: around.own,
        judge: around.judge,
    };
    let egress = EgressListener::start(egress, Clock::start(), stop.clone()).await.expect("a port");
    Listener { address: egress.address().expect("TCP"), egress, stop }
}

impl Listener {
    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connects")
    }

    /// Sends these bytes on a connection of their own, and returns everything that is answered.
    pub(super) async fn exchange(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        within(stream.read_to_end(&mut answer)).await.ok();
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// The status of the answer to a call for a URL, and the whole answer.
    async fn get(&self, url: &str, more: &str) -> (u16, String) {
        let authority = url.strip_prefix("http://").unwrap_or(url).split('/').next().unwrap_or_default();
        let answer =
            self.exchange(&format!("GET {url} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n{more}\r\n")).await;
        (status(&answer), answer)
    }
}

/// A gate before EC2 that lets so many calls through.
fn aws(burst: u32, to: SocketAddr) -> String {
    format!(
        "[gates.aws]\nhosts = [\"@aws\"]\ndialect = \"aws\"\nqueue.max_wait = \"0s\"\n\
         bucket = {{ rate = 0.001, burst = {burst} }}\nconnect_to = {{ {EC2:?} = \"{to}\" }}\n"
    )
}

#[tokio::test]
async fn a_call_for_a_listed_host_is_limited_and_leaves_over_tls_with_the_host_that_was_signed() {
    let backend = Backend::replying(200).await;
    let (address, ca) = encrypted(backend.address, &[EC2]).await;
    let listener = listener(&aws(1, address), Around { ca: Some(ca), ..Around::default() }).await;
    let url = format!("http://{EC2}/?Action=DescribeInstances&Version=2016-11-15");
    let (status, answer) = listener.get(&url, "Authorization: AWS4-HMAC-SHA256 Credential=AKID/20260101/eu-central-1/ec2/aws4_request, SignedHeaders=host, Signature=x\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\n").await;
    assert_eq!(status, 200, "{answer}");
    let seen = backend.seen();
    assert_eq!(seen[0].target, "/?Action=DescribeInstances&Version=2016-11-15");
    assert_eq!(seen[0].headers["host"], EC2);
    assert!(seen[0].headers.contains_key("authorization"));
    assert!(!seen[0].headers.contains_key("proxy-authorization") && !seen[0].headers.contains_key("proxy-connection"));

    // The next one has no token, and is told so as EC2 would.
    let (status, answer) = listener.get(&url, "").await;
    assert_eq!(status, 429, "{answer}");
    assert_eq!(header(&answer, "tidegate-refusal"), Some("bucket"));
    assert!(answer.contains("RequestLimitExceeded"), "{answer}");
    assert_eq!(backend.seen().len(), 1);
}

#[tokio::test]
async fn an_offered_upgrade_passes_no_limit_of_the_egress_listener() {
    let backend = Backend::replying(200).await;
    let (address, ca) = encrypted(backend.address, &[EC2]).await;
    let listener = listener(&aws(1, address), Around { ca: Some(ca), ..Around::default() }).await;
    let ask = format!(
        "GET http://{EC2}/a HTTP/1.1\r\nHost: {EC2}\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    );
    assert_eq!(status(&listener.exchange(&ask).await), 200);
    let answer = listener.exchange(&ask).await;
    assert_eq!((status(&answer), header(&answer, "tidegate-refusal")), (429, Some("bucket")), "{answer}");
    assert_eq!(backend.seen().len(), 1);
    assert!(backend.seen()[0].headers.contains_key("upgrade"), "the offer itself is forwarded");
}

#[tokio::test]
async fn a_receive_that_waits_takes_a_token_like_any_other() {
    let backend = Backend::replying(200).await;
    let (address, ca) = encrypted(backend.address, &[EC2]).await;
    let listener = listener(&aws(1, address), Around { ca: Some(ca), ..Around::default() }).await;
    let url = format!("http://{EC2}/?Action=ReceiveMessage&WaitTimeSeconds=20");
    assert_eq!(listener.get(&url, "").await.0, 200);
    let (status, answer) = listener.get(&url, "").await;
    assert_eq!((status, header(&answer, "tidegate-refusal")), (429, Some("bucket")), "{answer}");
}

#[tokio::test]
async fn the_spellings_of_a_host_are_one_origin_and_share_its_limits() {
    let backend = Backend::replying(200).await;
    let (address, ca) = encrypted(backend.address, &[EC2]).await;
    let listener = listener(&aws(6, address), Around { ca: Some(ca), ..Around::default() }).await;
    // The port of https in a URL of http is no way around the limits either.
    let spellings = ["", ":80", ".", ":443", ".:443"].map(|end| format!("{EC2}{end}"));
    let spellings: Vec<_> = spellings.into_iter().chain([EC2.to_uppercase()]).collect();
    for host in &spellings {
        assert_eq!(listener.get(&format!("http://{host}/a"), "").await.0, 200, "{host}");
    }
    for host in &spellings {
        assert_eq!(listener.get(&format!("http://{host}/a"), "").await.0, 429, "{host}");
    }
    let sent: Vec<_> =
        backend.seen().iter().map(|seen| seen.headers["host"].to_str().expect("text").to_owned()).collect();
    assert_eq!(sent, spellings, "what is sent as Host is what the client sent");
    assert_eq!(listener.egress.status().origins, 1);
}

#[tokio::test]
async fn each_host_of_a_gate_has_limits_of_its_own() {
    let backend = Backend::replying(200).await;
    let sts = "sts.eu-central-1.amazonaws.com";
    let (address, ca) = encrypted(backend.address, &[EC2, sts]).await;
    let text = aws(1, address).replace("connect_to = {", &format!("connect_to = {{ {sts:?} = \"{address}\","));
    let listener = listener(&text, Around { ca: Some(ca), ..Around::default() }).await;
    for (host, expected) in [(EC2, 200), (sts, 200), (EC2, 429), (sts, 429)] {
        assert_eq!(listener.get(&format!("http://{host}/"), "").await.0, expected, "{host}");
    }
    let mut hosts: Vec<_> = listener.egress.origins("aws").iter().map(|(origin, _)| origin.to_string()).collect();
    hosts.sort();
    assert_eq!(hosts, [format!("{EC2}:443"), format!("{sts}:443")]);
    let metrics = tidegate::telemetry::metrics().render();
    assert!(
        metrics.contains(&format!("tidegate_egress_calls_total{{gate=\"aws\",host=\"{sts}\",decision=\"go\"}}")),
        "{metrics}"
    );
}

#[tokio::test]
async fn plain_http_in_a_tunnel_to_port_80_is_a_call_like_any_other() {
    let backend = Backend::replying(200).await;
    let (address, ca) = encrypted(backend.address, &[EC2]).await;
    let listener = listener(&aws(1, address), Around { ca: Some(ca), ..Around::default() }).await;
    // As the AWS SDK for Java sends it with Netty: its request comes at once, behind the head.
    let mut stream = listener.connect().await;
    let connect = format!("CONNECT {EC2}:80 HTTP/1.1\r\nHost: {EC2}:80\r\n\r\n");
    let inside = format!("POST / HTTP/1.1\r\nHost: {EC2}\r\nContent-Length: 2\r\n\r\nhi");
    stream.write_all(format!("{connect}{inside}").as_bytes()).await.expect("sent");
    let mut answer = String::new();
    while !answer.ends_with("\r\n\r\nok") {
        let mut piece = [0; 1024];
        let read = within(stream.read(&mut piece)).await.expect("reads");
        assert!(read > 0, "{answer}");
        answer.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    assert!(answer.starts_with("HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK\r\n"), "{answer}");
    assert_eq!(
        (&*backend.seen()[0].body, &backend.seen()[0].headers["host"]),
        (&b"hi"[..], &EC2.parse().expect("a value"))
    );
    // For another host than that of the tunnel nothing is sent.
    stream.write_all(b"GET / HTTP/1.1\r\nHost: sts.eu-central-1.amazonaws.com\r\n\r\n").await.expect("sent");
    let mut rest = String::new();
    within(stream.read_to_string(&mut rest)).await.expect("reads");
    assert!(
        rest.starts_with("HTTP/1.1 400 tidegate: the Host header and the request's target name different hosts\r\n"),
        "{rest}"
    );
    assert_eq!(backend.seen().len(), 1);
}

#[tokio::test]
async fn a_call_for_a_host_that_no_gate_lists_leaves_in_clear_as_it_came() {
    let backend = Backend::replying(200).await;
    let listener = listener("", Around::default()).await;
    let url = format!("http://{}/a//b/..%2F?c=d", backend.address);
    let (status, answer) = listener.get(&url, "X-Odd:  value\r\n").await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(backend.seen()[0].target, "/a//b/..%2F?c=d");
    assert_eq!(backend.seen()[0].headers["host"], backend.address.to_string());
    // Several calls of a connection may be for several hosts.
    let other = Backend::replying(200).await;
    let two = format!(
        "GET http://{0}/1 HTTP/1.1\r\nHost: {0}\r\n\r\nGET http://{1}/2 HTTP/1.1\r\nHost: {1}\r\nConnection: close\r\n\r\n",
        backend.address, other.address
    );
    let answers = listener.exchange(&two).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
    assert_eq!(other.targets(), ["/2"]);
}

#[tokio::test]
async fn heads_that_are_not_for_a_forward_proxy_are_refused_with_their_reason() {
    let listener =
        listener("others = \"refuse\"\n[gates.g]\nhosts = [\"a.example\"]\nplain = \"refuse\"\n", Around::default())
            .await;
    for (head, expected) in [
        ("CONNECT b.example:443 HTTP/1.1\r\n", "403 tidegate: b.example is not listed by a gate"),
        ("CONNECT 10.0.0.1:443 HTTP/1.1\r\n", "403 tidegate: 10.0.0.1 is not listed by a gate"),
        ("CONNECT a.example:8443 HTTP/1.1\r\n", "403 tidegate: a.example is not listed by a gate"),
        ("CONNECT a.example:25 HTTP/1.1\r\n", "403 tidegate: port 25 is a mail server's port"),
        ("CONNECT a.example:80 HTTP/1.1\r\n", "403 tidegate: plain HTTP to a.example is refused here; use https://"),
        ("CONNECT a.example HTTP/1.1\r\n", "400 tidegate: the request's target has no valid port"),
        (
            "CONNECT u:p@a.example:443 HTTP/1.1\r\n",
            "400 tidegate: the request's target has a user or password in it; expected only a host and a port",
        ),
        (
            "CONNECT 0x7f.1:443 HTTP/1.1\r\n",
            "400 tidegate: the request's target is an address in an unusual form, which programs read differently",
        ),
        (
            "CONNECT a.example:443 HTTP/1.1\r\nHost: b.example\r\n",
            "400 tidegate: the Host header and the request's target name different hosts",
        ),
        ("GET http://b.example/ HTTP/1.1\r\nHost: b.example\r\n", "403 tidegate: b.example is not listed by a gate"),
        (
            "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n",
            "403 tidegate: plain HTTP to a.example is refused here; use https://",
        ),
        (
            "GET http://a.example:8080/ HTTP/1.1\r\nHost: a.example:8080\r\n",
            "403 tidegate: a call to a.example:8080 would be sent unencrypted; use https://, or list it in egress.tunnel",
        ),
        (
            "GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\n",
            "400 tidegate: the Host header and the request's target name different hosts",
        ),
        (
            "GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n",
            "400 tidegate: the target is not an http:// URL; for https use CONNECT",
        ),
        (
            "GET http://u@a.example/ HTTP/1.1\r\nHost: a.example\r\n",
            "400 tidegate: the request's target has a user or password in it; expected only a host and a port",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a.example\r\n",
            "421 tidegate: this is a forward proxy, not a server; set it in HTTPS_PROXY or HTTP_PROXY",
        ),
        (
            "TRACE http://a.example/ HTTP/1.1\r\nHost: a.example\r\n",
            "405 tidegate: CONNECT must be the first request of its connection, and TRACE is not allowed",
        ),
        (
            "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nSec-Fetch-Site: same-origin\r\n",
            "403 tidegate: a page in a browser may not call through this proxy",
        ),
    ] {
        let answer = listener.exchange(&format!("{head}\r\n")).await;
        assert_eq!(answer.split("\r\n").next(), Some(format!("HTTP/1.1 {expected}").as_str()), "{head}");
        assert_eq!(header(&answer, "tidegate-refusal"), Some("egress"), "{head}");
        assert!(answer.ends_with(&format!("\r\n\r\n{}\n", expected.split_at(4).1)), "{answer}");
    }
    // What cannot be told apart is refused by the guard, as at every listener.
    let smuggled = "POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(status(&listener.exchange(smuggled).await), 400);
    let refused = listener.egress.status().refusals;
    assert!(refused.iter().any(|refused| refused.why == "not_listed" && refused.count == 4), "{refused:?}");
}

#[tokio::test]
async fn clients_show_the_token_and_it_goes_no_further() {
    let backend = Backend::replying(200).await;
    let token = Some(Secret::fixed("opensesame", "the test").expect("a secret"));
    let listener = listener("", Around { token, ..Around::default() }).await;
    let url = format!("http://{}/", backend.address);
    let (status, answer) = listener.get(&url, "").await;
    assert_eq!(status, 407, "{answer}");
    assert_eq!(header(&answer, "proxy-authenticate"), Some("Basic realm=\"tidegate\""));
    assert_eq!(listener.get(&url, "Proxy-Authorization: Bearer nothing\r\n").await.0, 407);
    assert_eq!(listener.get(&url, "Proxy-Authorization: Bearer opensesame\r\n").await.0, 200);
    assert_eq!(listener.get(&url, "Proxy-Authorization: Basic bWU6b3BlbnNlc2FtZQ==\r\n").await.0, 200);
    let connect = format!("CONNECT {} HTTP/1.1\r\n", backend.address);
    assert!(listener.exchange(&format!("{connect}\r\n")).await.starts_with("HTTP/1.1 407 "));
    assert!(backend.seen().iter().all(|seen| !seen.headers.contains_key("proxy-authorization")));
    assert_eq!(backend.seen().len(), 2);
}

#[tokio::test]
async fn a_host_past_the_most_is_refused_until_one_is_idle() {
    let (holding, answers) = Backend::holding().await;
    let other = Backend::replying(200).await;
    let listener = listener("max_origins = 1\n", Around::default()).await;
    let mut first = listener.connect().await;
    let call = format!("GET http://{0}/ HTTP/1.1\r\nHost: {0}\r\n\r\n", holding.address);
    first.write_all(call.as_bytes()).await.expect("sent");
    while holding.seen().is_empty() {
        tokio::task::yield_now().await;
    }
    let url = format!("http://{}/", other.address);
    let (status, answer) = listener.get(&url, "").await;
    assert_eq!(status, 503, "{answer}");
    assert_eq!(header(&answer, "retry-after"), Some("1"));
    assert!(
        answer.starts_with("HTTP/1.1 503 tidegate: too many hosts are in use at once; raise egress.max_origins\r\n"),
        "{answer}"
    );
    answers.add_permits(1);
    let mut head = [0; 15];
    within(first.read_exact(&mut head)).await.expect("answered");
    // Its connection is given back a moment after the answer.
    while listener.get(&url, "").await.0 != 200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(listener.egress.status().origins, 1);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_not_used_is_forgotten() {
    let backend = Backend::replying(200).await;
    let listener = listener("idle_origin = \"1m\"\n", Around::default()).await;
    assert_eq!(listener.get(&format!("http://{}/", backend.address), "").await.0, 200);
    assert_eq!(listener.egress.status().origins, 1);
    let clock = Clock::start();
    clock.sleep(Duration::from_secs(30)).await;
    assert_eq!(listener.egress.status().origins, 1);
    clock.sleep(Duration::from_secs(60)).await;
    assert_eq!(listener.egress.status().origins, 0);
}

/// A client with a tunnel to a host that says nothing, and the host's end.
pub(super) async fn in_a_tunnel(listener: &Listener) -> (TcpStream, TcpStream) {
    let host = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut client = listener.connect().await;
    let connect = format!("CONNECT {} HTTP/1.1\r\n\r\n", host.local_addr().expect("bound"));
    client.write_all(connect.as_bytes()).await.expect("sent");
    let mut told = [0; 39];
    client.read_exact(&mut told).await.expect("an answer");
    assert_eq!(&told, b"HTTP/1.1 200 Connection established\r\n\r\n");
    (client, host.accept().await.expect("it came").0)
}

/// A listener of which all connections are busy closes the next.
pub(super) async fn takes_no_more(listener: &Listener) {
    let mut crowded = listener.connect().await;
    assert_eq!(within(crowded.read(&mut [0])).await.unwrap_or_default(), 0, "it was closed");
}

#[tokio::test]
async fn connections_past_the_most_are_closed_and_counted() {
    let listener = listener("max_connections = 1\n", Around::default()).await;
    let _tunnel = in_a_tunnel(&listener).await;
    takes_no_more(&listener).await;
    let refused = listener.egress.status().refusals;
    assert!(refused.iter().any(|refused| refused.why == "crowded" && refused.count == 1), "{refused:?}");
}

#[tokio::test]
async fn a_client_that_says_nothing_makes_room_for_the_next() {
    let backend = Backend::replying(200).await;
    let listener = listener("max_connections = 1\n", Around::default()).await;
    let mut silent = listener.connect().await;
    silent.write_all(b"GET").await.expect("sent");
    assert_eq!(listener.get(&format!("http://{}/", backend.address), "").await.0, 200);
    assert_eq!(within(silent.read(&mut [0])).await.unwrap_or_default(), 0, "it was closed");
}

#[tokio::test]
async fn a_flood_of_half_open_handshakes_makes_room_for_whoever_speaks() {
    let proxy = Arc::new(tls::self_signed(&[], &[], None).expect("a certificate"));
    let ca = proxy.ca().to_string();
    let listener = listener("max_connections = 1\n", Around { tls: Some(proxy), ..Around::default() }).await;
    let mut half_open = Vec::new();
    for _ in 0..300 {
        half_open.push(listener.connect().await);
    }
    let stream = intercept::speak_tls(listener.connect().await, &ca, "localhost", &["http/1.1"]).await;
    let mut stream = stream.expect("there is a place for the newest");
    assert_eq!(listener.egress.status().connections, 1);
    stream.write_all(b"CONNECT a.example:1 HTTP/1.1\r\n\r\n").await.expect("sent");
    let mut answer = String::new();
    let ended = within(stream.read_to_string(&mut answer)).await;
    assert!(ended.is_ok() && answer.starts_with("HTTP/1.1 502 "), "{ended:?} {answer}");
}

#[tokio::test]
async fn a_host_in_another_gate_s_terms_after_a_reload_is_that_gate_s() {
    let backend = Backend::replying(200).await;
    let (address, ca) = encrypted(backend.address, &["a.example"]).await;
    let text = |first: &str, second: &str| {
        format!(
            "[egress]\nlisten = \"127.0.0.1:0\"\n[gates.one]\nhosts = [{first:?}]\nconnect_to = {{ {first:?} = \"{address}\" }}\n\
             [gates.two]\nhosts = [{second:?}]\nconnect_to = {{ {second:?} = \"{address}\" }}\n"
        )
    };
    let before = text("a.example", "b.example");
    let before = before.split_once("0\"\n").expect("the listener's line").1;
    let listener = listener(before, Around { ca: Some(ca), ..Around::default() }).await;
    assert_eq!(listener.get("http://a.example/", "").await.0, 200);
    let after = config::load_text("f.toml".to_owned(), text("b.example", "a.example"), &[]).expect("good").settings;
    listener.egress.reconfigure(Directory::new(&after).expect("a listener"));
    assert_eq!(listener.get("http://a.example/", "").await.0, 200);
    assert_eq!((listener.egress.origins("one").len(), listener.egress.origins("two").len()), (1, 1));
    listener.stop.cancel();
    within(listener.egress.finished()).await;
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_others_reach_does_not_stop_at_once() {
    for (listen, seconds) in [("127.0.0.1:0", 0), ("0.0.0.0:0", 5)] {
        let token = Some(Secret::fixed("opensesame", "the test").expect("a secret"));
        let around = Around { listen, drain: Duration::from_secs(25), token, ..Around::default() };
        let listener = listener("token_file = \"/run/token\"\n", around).await;
        let clock = Clock::start();
        listener.stop.cancel();
        listener.egress.finished().await;
        assert_eq!(clock.now().since_start().as_secs(), seconds, "{listen}");
    }
}
