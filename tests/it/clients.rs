//! A gate that many workloads share: it knows its clients by their tokens, about which it asks an
//! API server, or by their certificates. Who is not known is not let in.

mod egress;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tidegate::clients::Clients;
use tidegate::clock::Clock;
use tidegate::credentials::{self, Api, Environment};
use tidegate::spec::{Listen, Source, UpstreamTls};
use tidegate::{config, tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

use crate::support::{AnyBody, Backend, Proxy, header, reply, status, within};

/// An API server that knows tokens.
pub(crate) struct Judge {
    backend: Backend,
    names: Arc<Mutex<HashMap<String, String>>>,
    /// True while it answers 403, as to a gate without the right to ask.
    forbids: Arc<AtomicBool>,
    /// A permit for each answer, where one is held back.
    answers: Arc<Semaphore>,
}

impl Judge {
    /// Starts one that knows these tokens, by `token name`.
    pub(crate) async fn knowing(tokens: &[&str]) -> Self {
        let of = |line: &&str| line.split_once(' ').map(|(token, name)| (token.to_owned(), name.to_owned()));
        let names = Arc::new(Mutex::new(tokens.iter().filter_map(of).collect::<HashMap<_, _>>()));
        let (forbids, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(Semaphore::new(100_000)));
        let (known, forbidden, held) = (Arc::clone(&names), Arc::clone(&forbids), Arc::clone(&answers));
        let backend = Backend::start(move |seen| {
            let (known, held) = (Arc::clone(&known), Arc::clone(&held));
            let forbidden = forbidden.load(Ordering::Relaxed);
            async move {
                held.acquire().await.expect("open").forget();
                assert_eq!(seen.target, "/apis/authentication.k8s.io/v1/tokenreviews");
                if forbidden {
                    return answer(403, &json!({ "kind": "Status", "message": "tokenreviews is forbidden" }));
                }
                let question: Value = serde_json::from_slice(&seen.body).expect("JSON");
                let token = question["spec"]["token"].as_str().expect("a token");
                let name = known.lock().expect("no panic").get(token).cloned();
                let status = match name {
                    Some(name) => json!({ "authenticated": true, "user": { "username": name } }),
                    None => json!({ "authenticated": false, "error": "invalid bearer token" }),
                };
                answer(201, &json!({ "kind": "TokenReview", "status": status }))
            }
        });
        Self { backend: backend.await, names, forbids, answers }
    }

    /// The way to it.
    pub(crate) fn api(&self) -> Api {
        let url = format!("http://{}", self.backend.address).parse().expect("a URL");
        let around = Environment { variables: Vec::new(), service_account: "/".into() };
        let resolved = credentials::resolve(&Source::Url(url), &UpstreamTls::default(), &around).expect("a target");
        Api::new(&resolved, "tidegate", Clock::start()).expect("no TLS")
    }

    /// From now on it answers 403.
    fn forbid(&self) {
        self.forbids.store(true, Ordering::Relaxed);
    }

    fn reviews(&self) -> usize {
        self.backend.seen().len()
    }
}

fn answer(status: u16, object: &Value) -> http::Response<AnyBody> {
    reply(status, Box::leak(object.to_string().into_boxed_str()))
}

/// Starts the gate of a configuration, whose clients `judge` knows.
async fn gate(backend: &Backend, judge: &Judge, settings: &str) -> Proxy {
    start(backend, judge, settings, None).await
}

async fn start(backend: &Backend, judge: &Judge, settings: &str, listener: Option<tls::Listener>) -> Proxy {
    let text = format!(
        "[gates.g]\nupstream = \"http://{}\"\nlisten = \"127.0.0.1:1\"\ncredentials = \"pass_through\"\npreset = \"none\"\n{settings}",
        backend.address
    );
    let loaded = config::load_text("f.toml".to_owned(), text, &[]).expect("a good configuration");
    let mut loaded = loaded.settings.gates.into_values().next().expect("a gate");
    let api = judge.api();
    let wanted = loaded.access.clients.clone().expect("it knows its clients");
    let builder = Proxy::before(backend.address).with(|options| {
        loaded.name = Arc::clone(&options.gate.name);
        loaded.listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
        options.clients = Clients::new(&loaded, &wanted, Some(api), Clock::start()).map(Arc::new);
        options.tls = listener.map(Arc::new);
        options.gate = loaded;
    });
    builder.start().await
}

const REVIEWED: &str = "[gates.g.clients]\ntokens = \"review\"\n";

/// A GET with these lines of head.
async fn get(proxy: &Proxy, target: &str, lines: &str) -> String {
    within(proxy.exchange(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{lines}Connection: close\r\n\r\n")))
        .await
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// Lets time pass while nothing is under way.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_client_without_a_token_or_with_a_wrong_one_gets_401_and_reaches_nothing() {
    let (backend, judge) = (Backend::replying(200).await, Judge::knowing(&["t-alice alice"]).await);
    let proxy = gate(&backend, &judge, REVIEWED).await;
    for (lines, says) in [
        (String::new(), "expected its service account's token as Authorization: Bearer"),
        ("Authorization: Basic YWxpY2U6dA==\r\n".to_owned(), "expected its service account's token"),
        ("Authorization: Bearer\r\n".to_owned(), "expected its service account's token"),
        (bearer("t-alic"), "TokenReview rejected this call's token"),
        (bearer("t-alicea"), "TokenReview rejected this call's token"),
        (bearer("T-ALICE"), "TokenReview rejected this call's token"),
        (bearer("t-alice").repeat(2), "several tokens"),
        ("Tidegate-Client-Token: t-alice\r\n".to_owned(), "expected its service account's token"),
    ] {
        // A lease is exempt from limits, and not from this.
        for target in ["/api/v1/pods", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"] {
            let answered = get(&proxy, target, &lines).await;
            assert_eq!(status(&answered), 401, "{lines}{answered}");
            assert!(
                answered.contains("\"kind\":\"Status\"") && answered.contains("\"reason\":\"Unauthorized\""),
                "{answered}"
            );
            assert!(answered.contains(says) && header(&answered, "www-authenticate").is_some(), "{lines}{answered}");
            assert!(!answered.contains("t-alic"), "no token is shown: {answered}");
        }
    }
    assert_eq!(backend.seen().len(), 0);
    proxy.reaches("tidegate_denied_clients_total", &["why=\"wrong_token\""], 6.0).await;
    proxy.reaches("tidegate_client_reviews_total", &["result=\"wrong\""], 3.0).await;
    assert_eq!(status(&get(&proxy, "/api/v1/pods", &bearer("t-alice")).await), 200);
    assert_eq!(backend.seen()[0].headers["authorization"], "Bearer t-alice", "it passes on as it came");
}

#[tokio::test]
async fn a_token_is_reviewed_once_for_all_calls_that_come_with_it_together() {
    let (backend, judge) = (Backend::replying(200).await, Judge::knowing(&["t alice", "u bob"]).await);
    let proxy = gate(&backend, &judge, REVIEWED).await;
    let calls = (0..40).map(|call| {
        let lines = bearer(if call % 2 == 0 { "t" } else { "u" });
        let proxy = &proxy;
        async move { status(&get(proxy, "/api/v1/pods", &lines).await) }
    });
    assert_eq!(join_all(calls).await, [200; 40]);
    assert_eq!(judge.reviews(), 2);
    assert_eq!(backend.seen().len(), 40);
}

#[tokio::test]
async fn a_token_for_the_gate_never_goes_on_to_another_api() {
    let (backend, judge) = (Backend::replying(200).await, Judge::knowing(&["t alice"]).await);
    let proxy = gate(&backend, &judge, &format!("kind = \"http\"\nrewrite_links = false\n{REVIEWED}")).await;
    for lines in ["Tidegate-Client-Token: t\r\n", "tidegate-client-token: Bearer t\r\n"] {
        let lines = format!("{lines}Authorization: token ghp\r\n");
        assert_eq!(status(&get(&proxy, "/repos", &lines).await), 200);
    }
    for seen in backend.seen() {
        assert_eq!(seen.headers["authorization"], "token ghp");
        assert!(!seen.headers.contains_key("tidegate-client-token"));
    }
    let refused = get(&proxy, "/repos", "Authorization: Bearer t\r\n").await;
    assert_eq!((status(&refused), backend.seen().len()), (401, 2));
    assert!(refused.contains("application/problem+json") && refused.contains("Tidegate-Client-Token"), "{refused}");
}

#[tokio::test]
async fn a_revoked_token_is_let_in_for_the_cache_s_time_at_most() {
    let (backend, judge) = (Backend::replying(200).await, Judge::knowing(&["t alice"]).await);
    let proxy = gate(&backend, &judge, REVIEWED).await;
    let call = async || status(&get(&proxy, "/api/v1/pods", &bearer("t")).await);
    assert_eq!(call().await, 200);
    judge.names.lock().expect("no panic").clear();
    pass(Duration::from_secs(4)).await;
    assert_eq!((call().await, judge.reviews()), (200, 1), "4 s later");
    pass(Duration::from_secs(6)).await;
    assert_eq!((call().await, judge.reviews()), (401, 2), "10 s after it was asked about");
    // A token that is made a moment later is not unknown for long.
    judge.names.lock().expect("no panic").insert("t".to_owned(), "alice".to_owned());
    assert_eq!((call().await, judge.reviews()), (401, 2));
    pass(Duration::from_secs(2)).await;
    assert_eq!((call().await, judge.reviews()), (200, 3));
}

#[tokio::test]
async fn a_token_in_use_is_reviewed_again_beside_its_calls_which_never_wait_for_it() {
    let (backend, judge) = (Backend::replying(200).await, Judge::knowing(&["t alice"]).await);
    let proxy = gate(&backend, &judge, REVIEWED).await;
    let call = async || status(&get(&proxy, "/apis/coordination.k8s.io/v1/namespaces/n/leases/l", &bearer("t")).await);
    assert_eq!(call().await, 200);
    judge.answers.forget_permits(100_000); // it answers nothing for a while
    for _ in 0..3 {
        pass(Duration::from_secs(2)).await;
        assert_eq!(call().await, 200);
    }
    within(async {
        while judge.reviews() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    judge.answers.add_permits(100);
    proxy.reaches("tidegate_client_reviews_total", &["result=\"right\""], 2.0).await;
    pass(Duration::from_secs(5)).await; // 11 s after the first answer, which is too old by now
    assert_eq!(call().await, 200);
}

#[tokio::test]
async fn without_a_review_nobody_new_is_let_in_and_the_answer_says_why() {
    let (backend, judge) = (Backend::replying(200).await, Judge::knowing(&["t alice", "u bob"]).await);
    let proxy = gate(&backend, &judge, REVIEWED).await;
    assert_eq!(status(&get(&proxy, "/api/v1/pods", &bearer("t")).await), 200);
    judge.forbid();
    let refused = get(&proxy, "/api/v1/pods", &bearer("u")).await;
    assert_eq!((status(&refused), header(&refused, "retry-after")), (503, Some("1")), "{refused}");
    assert!(
        refused.contains("\"reason\":\"ServiceUnavailable\"") && refused.contains("TokenReview fails"),
        "{refused}"
    );
    assert!(refused.contains("403") && refused.contains("tokenreviews is forbidden"), "{refused}");
    assert_eq!(status(&get(&proxy, "/api/v1/pods", &bearer("t")).await), 200, "it is known");
    // Nothing is remembered of a review that failed.
    judge.forbids.store(false, Ordering::Relaxed);
    assert_eq!(status(&get(&proxy, "/api/v1/pods", &bearer("u")).await), 200);
    assert_eq!(backend.seen().len(), 3);
    proxy.reaches("tidegate_denied_clients_total", &["why=\"unreviewed\""], 1.0).await;
}

#[tokio::test]
async fn a_review_that_does_not_come_is_given_up() {
    let (backend, judge) = (Backend::replying(200).await, Judge::knowing(&["t alice"]).await);
    let proxy = gate(&backend, &judge, REVIEWED).await;
    judge.answers.forget_permits(100_000);
    let lines = bearer("t");
    let (refused, ()) = tokio::join!(get(&proxy, "/api/v1/pods", &lines), async {
        within(async {
            while judge.reviews() < 1 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        pass(Duration::from_secs(5)).await;
    });
    assert_eq!((status(&refused), backend.seen().len()), (503, 0));
    assert!(refused.contains("did not answer within 5 s"), "{refused}");
}

#[tokio::test]
async fn only_those_who_are_allowed_are_let_in() {
    let names =
        ["a system:serviceaccount:prod:one", "b system:serviceaccount:dev:one", "c system:serviceaccount:prod:two"];
    let (backend, judge) = (Backend::replying(200).await, Judge::knowing(&names).await);
    let allowed = "allowed = [\"system:serviceaccount:prod:*\", \"jane\"]\n";
    let proxy = gate(&backend, &judge, &format!("{REVIEWED}{allowed}")).await;
    for (token, wanted) in [("a", 200), ("b", 403), ("c", 200), ("d", 401)] {
        let answered = get(&proxy, "/api/v1/pods", &bearer(token)).await;
        assert_eq!(status(&answered), wanted, "{token}: {answered}");
        assert_eq!(answered.contains("client \\\"system:serviceaccount:dev:one\\\""), wanted == 403, "{answered}");
    }
    assert_eq!(backend.seen().len(), 2);
}

/// The promise of a Service gate, counted in turns: whatever one client has waiting, each call of
/// another waits for two of its calls at most.
#[tokio::test]
async fn a_greedy_client_costs_the_calls_of_another_two_turns_at_most() {
    let (backend, answers) = Backend::holding().await;
    let judge = Judge::knowing(&["g greedy", "m modest"]).await;
    let settings = format!("queue.fair_by = \"client\"\nin_flight.max = 1\n{REVIEWED}");
    let proxy = gate(&backend, &judge, &settings).await;
    let of = |who: &str| backend.targets().iter().filter(|target| target.contains(who)).count();
    let send = |token: &'static str, name: String| {
        let proxy = &proxy;
        async move { status(&get(proxy, &format!("/api/v1/namespaces/n/configmaps/{name}"), &bearer(token)).await) }
    };
    let greedy = join_all((0..60).map(|call| send("g", format!("greedy-{call}"))));
    let arrive = async |calls: usize| {
        within(async {
            while backend.seen().len() < calls {
                tokio::task::yield_now().await;
            }
        })
        .await;
    };
    let modest = async {
        proxy.reaches("tidegate_waiting", &[], 59.0).await;
        arrive(1).await;
        for call in 0..10 {
            let (before, arrived) = (of("greedy"), backend.seen().len());
            let waiting = f64::from(u32::try_from(60 - before).expect("few")) + 1.0;
            let (answered, arrived) = tokio::join!(send("m", format!("modest-{call}")), async {
                proxy.reaches("tidegate_waiting", &[], waiting).await;
                // One answer at a time, until it has had its turn.
                for next in 1..=4 {
                    if of("modest") > call {
                        break;
                    }
                    answers.add_permits(1);
                    arrive(arrived + next).await;
                }
                let turns = of("greedy") - before;
                assert!(of("modest") > call && turns <= 2, "call {call} came after {turns} turns of the other");
                let arrived = backend.seen().len();
                answers.add_permits(1);
                arrived
            });
            assert_eq!(answered, 200);
            arrive(arrived + 1).await;
        }
        answers.add_permits(1_000);
    };
    let (greedy, ()) = within(async { tokio::join!(greedy, modest) }).await;
    assert_eq!(greedy, [200; 60]);
}

#[tokio::test]
async fn a_bucket_for_each_client_is_its_own_whatever_token_it_shows() {
    let tokens = ["g1 greedy", "g2 greedy", "m modest"];
    let (backend, judge) = (Backend::replying(200).await, Judge::knowing(&tokens).await);
    let settings =
        format!("bucket = {{ rate = 0.001, burst = 2, per = \"client\" }}\nqueue.max_wait = \"0s\"\n{REVIEWED}");
    let proxy = gate(&backend, &judge, &settings).await;
    let mut answered = Vec::new();
    for token in ["g1", "g2", "g1", "g2", "m", "m", "m"] {
        answered.push(status(&get(&proxy, "/api/v1/pods", &bearer(token)).await));
    }
    assert_eq!(answered, [200, 200, 429, 429, 200, 200, 429]);
}

/// What fails for one client says nothing of another's calls for the same object: it may have no
/// right to it.
#[tokio::test]
async fn a_client_whose_calls_fail_holds_up_no_other_s() {
    let backend =
        Backend::start(async |seen| reply(if seen.headers["authorization"] == "Bearer m" { 200 } else { 500 }, "ok"))
            .await;
    let judge = Judge::knowing(&["g greedy", "m modest"]).await;
    let backoff = "backoff = { strategy = \"exponential\", base = \"100s\", max = \"100s\" }\n";
    let proxy = gate(&backend, &judge, &format!("{backoff}{REVIEWED}")).await;
    let call = async |token| status(&get(&proxy, "/api/v1/namespaces/n/configmaps/c", &bearer(token)).await);
    assert_eq!([call("g").await, call("g").await, call("m").await, call("g").await], [500, 429, 200, 429]);
}

/// A client's certificate with its key.
type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// A CA for clients.
struct ClientCa(CertifiedIssuer<'static, KeyPair>);

impl ClientCa {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA"))
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn certify(&self, name: Option<&str>) -> Shown {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
        name.into_iter().for_each(|name| params.distinguished_name.push(DnType::CommonName, name));
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        (vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).expect("a key"))
    }
}

/// A GET over TLS of a client that shows `shown`.
async fn get_over_tls(proxy: &Proxy, ca: &str, shown: Option<Shown>, lines: &str) -> String {
    let head = format!("GET /api/v1/pods HTTP/1.1\r\nHost: localhost\r\n{lines}Connection: close\r\n\r\n");
    over_tls(proxy.address, ca, shown, &head).await
}

/// What comes back over TLS; empty if the connection is refused.
async fn over_tls(to: SocketAddr, ca: &str, shown: Option<Shown>, head: &str) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).expect("PEM")).expect("a CA");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS");
    let config = config.with_root_certificates(roots);
    let config = match shown {
        Some((chain, key)) => config.with_client_auth_cert(chain, key).expect("they match"),
        None => config.with_no_client_auth(),
    };
    let stream = TcpStream::connect(to).await.expect("connects");
    let name = ServerName::try_from("localhost").expect("a name");
    let Ok(mut stream) = within(TlsConnector::from(Arc::new(config)).connect(name, stream)).await else {
        return String::new();
    };
    stream.write_all(head.as_bytes()).await.ok();
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.ok();
    String::from_utf8(answer).expect("text")
}

#[tokio::test]
async fn a_client_is_known_by_the_common_name_of_its_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("clients.crt");
    let (ours, other) = (ClientCa::new(), ClientCa::new());
    std::fs::write(&file, ours.pem()).expect("written");
    let (backend, judge) = (Backend::replying(200).await, Judge::knowing(&["t alice"]).await);
    let tls_text = format!("[gates.g.tls]\nclient_ca = {:?}\nwrite_to = \"\"\n", file.display().to_string());
    for (clients, without) in [
        ("[gates.g.clients]\ncertificates = true\nallowed = [\"robot\", \"alice\"]\n", ""),
        ("[gates.g.clients]\ncertificates = true\ntokens = \"review\"\nallowed = [\"robot\", \"alice\"]\n", "200"),
    ] {
        let listener = tls::self_signed(&[], &[], Some(&file)).expect("made");
        let listener = if without.is_empty() { listener } else { listener.with_optional_certificates().expect("made") };
        let ca = listener.ca();
        let proxy = start(&backend, &judge, &format!("{tls_text}{clients}"), Some(listener)).await;
        let robot = get_over_tls(&proxy, &ca, Some(ours.certify(Some("robot"))), "").await;
        assert_eq!(status(&robot), 200, "{robot}");
        let unnamed = get_over_tls(&proxy, &ca, Some(ours.certify(None)), &bearer("t")).await;
        assert!(status(&unnamed) == 401 && unnamed.contains("no common name"), "{unnamed}");
        let stranger = get_over_tls(&proxy, &ca, Some(ours.certify(Some("robot2"))), &bearer("t")).await;
        assert!(status(&stranger) == 403 && stranger.contains("robot2"), "{stranger}");
        assert_eq!(get_over_tls(&proxy, &ca, Some(other.certify(Some("robot"))), &bearer("t")).await, "", "another CA");
        let by_token = get_over_tls(&proxy, &ca, None, &bearer("t")).await;
        assert_eq!(by_token.get(9..12).unwrap_or_default(), without, "{by_token}");
        let by_nothing = get_over_tls(&proxy, &ca, None, "").await;
        assert_eq!(by_nothing.get(9..12).unwrap_or_default(), if without.is_empty() { "" } else { "401" });
    }
}
