//! The same clients at the egress listener: by `Proxy-Authorization`, and by certificates over TLS
//! to the proxy itself.

use std::sync::Arc;

use tidegate::clients::Clients;
use tidegate::clock::Clock;
use tidegate::{config, tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{ClientCa, Judge, over_tls};
use crate::egress::{Around, EC2, Listener, encrypted, listener};
use crate::support::{Backend, header, status, within};

/// A listener before EC2, where each client may make two calls.
async fn listening(backend: &Backend, judge: &Judge, clients: &str, own_tls: Option<tls::Listener>) -> Listener {
    let (address, ca) = encrypted(backend.address, &[EC2]).await;
    let gate = format!(
        "{clients}[gates.aws]\nhosts = [\"@aws\"]\nqueue.max_wait = \"0s\"\n\
         bucket = {{ rate = 0.001, burst = 2, per = \"client\" }}\nconnect_to = {{ {EC2:?} = \"{address}\" }}\n"
    );
    let whole = format!("[egress]\nlisten = \"127.0.0.1:0\"\n{gate}");
    let settings = config::load_text("f.toml".to_owned(), whole, &[]).expect("a good configuration").settings;
    let clients = settings.egress.and_then(|egress| egress.clients).expect("it knows its clients");
    let clients = Clients::of_proxy("egress", &clients, Some(judge.api()), Clock::start()).map(Arc::new);
    let tls = own_tls.map(Arc::new);
    listener(&gate, Around { ca: Some(ca), clients, tls, ..Around::default() }).await
}

fn call(line: &str) -> String {
    format!("GET http://{EC2}/ HTTP/1.1\r\nHost: {EC2}\r\n{line}Connection: close\r\n\r\n")
}

#[tokio::test]
async fn a_proxy_s_client_is_known_by_its_token_which_goes_no_further() {
    let backend = Backend::replying(200).await;
    let judge = Judge::knowing(&["t.a alice", "t.b bob"]).await;
    let listener = listening(&backend, &judge, "clients = { tokens = \"review\" }\n", None).await;
    // "op:t.a", "op:t.b" and "op:t"
    let [alice, bob, nobody] =
        ["b3A6dC5h", "b3A6dC5i", "b3A6dA=="].map(|login| format!("Proxy-Authorization: Basic {login}\r\n"));
    for (line, expected) in [
        ("", 407),
        (&*nobody, 407),
        ("Authorization: Bearer t.a\r\n", 407),
        (&alice, 200),
        ("Proxy-Authorization: Bearer t.a\r\n", 200),
        (&alice, 429),
        (&bob, 200),
        (&bob, 200),
        (&bob, 429),
    ] {
        let answer = listener.exchange(&call(line)).await;
        assert_eq!(status(&answer), expected, "{line}: {answer}");
        assert_eq!(header(&answer, "proxy-authenticate").is_some(), expected == 407, "{answer}");
    }
    assert_eq!(backend.seen().len(), 4);
    assert!(backend.seen().iter().all(|seen| !seen.headers.contains_key("proxy-authorization")));
    assert_eq!(judge.reviews(), 3);
}

#[tokio::test]
async fn the_calls_in_a_tunnel_are_those_of_the_client_that_asked_for_it() {
    let backend = Backend::replying(200).await;
    let judge = Judge::knowing(&["t alice"]).await;
    let listener = listening(&backend, &judge, "clients = { tokens = \"review\" }\n", None).await;
    let connect = |line: &str| format!("CONNECT {EC2}:80 HTTP/1.1\r\nHost: {EC2}:80\r\n{line}\r\n");
    let refused = listener.exchange(&connect("")).await;
    assert!(refused.starts_with("HTTP/1.1 407 tidegate: send the token of a service account"), "{refused}");
    let refused = listener.exchange(&connect("Proxy-Authorization: Bearer x\r\n")).await;
    assert!(refused.starts_with("HTTP/1.1 407 tidegate: TokenReview rejected this token"), "{refused}");
    for expected in [[200, 200], [429, 429]] {
        let mut stream = listener.connect().await;
        let head = connect("Proxy-Authorization: Bearer t\r\n");
        let calls =
            format!("GET / HTTP/1.1\r\nHost: {EC2}\r\n\r\nGET / HTTP/1.1\r\nHost: {EC2}\r\nConnection: close\r\n\r\n");
        stream.write_all(format!("{head}{calls}").as_bytes()).await.expect("sent");
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.expect("text");
        let statuses: Vec<_> =
            answer.split("HTTP/1.1 ").skip(2).map(|answer| answer.get(..3).expect("a status")).collect();
        assert_eq!(statuses, expected.map(|status| status.to_string()), "{answer}");
    }
}

#[tokio::test]
async fn without_a_review_the_proxy_lets_nobody_in_and_says_so() {
    let (backend, judge) = (Backend::replying(200).await, Judge::knowing(&["t alice"]).await);
    judge.forbid();
    let listener = listening(&backend, &judge, "clients = { tokens = \"review\" }\n", None).await;
    let answer = listener.exchange(&call("Proxy-Authorization: Bearer t\r\n")).await;
    assert!(
        answer.starts_with("HTTP/1.1 503 tidegate: the client cannot be authenticated: TokenReview fails"),
        "{answer}"
    );
    assert_eq!((header(&answer, "retry-after"), backend.seen().len()), (Some("1"), 0));
}

#[tokio::test]
async fn a_proxy_s_client_is_known_by_its_certificate_over_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("clients.crt");
    let ours = ClientCa::new();
    std::fs::write(&file, ours.pem()).expect("written");
    let (backend, judge) = (Backend::replying(200).await, Judge::knowing(&["t alice"]).await);
    let own = tls::self_signed(&[], &[], Some(&file)).expect("made").with_optional_certificates().expect("made");
    let ca = own.ca();
    let clients = format!(
        "clients = {{ tokens = \"review\", certificates = true }}\ntls = {{ cert = \"/c\", key = \"/k\", client_ca = {:?} }}\n",
        file.display().to_string()
    );
    let listener = listening(&backend, &judge, &clients, Some(own)).await;
    let get = async |name: Option<&str>, line: &str| {
        let shown = name.map(|name| ours.certify(Some(name)));
        status(&over_tls(listener.address, &ca, shown, &call(line)).await)
    };
    assert_eq!(get(Some("robot"), "").await, 200);
    assert_eq!(get(None, "Proxy-Authorization: Bearer t\r\n").await, 200);
    assert_eq!(get(None, "").await, 407);
    assert_eq!([get(Some("robot"), "").await, get(Some("robot"), "").await], [200, 429]);
    let plain = listener.exchange(&call("Proxy-Authorization: Bearer t\r\n")).await;
    assert!(!plain.starts_with("HTTP/1.1 200"), "in the clear nobody is served: {plain}");
}
