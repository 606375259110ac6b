//! Facts that only a body tells: the object that a create makes, and the operation of a POST, for
//! bodies of any length and speed.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http_body_util::{BodyExt, Full};
use miniz_oxide::deflate::compress_to_vec;
use tidegate::classify::ApiKind;
use tidegate::limit::policy::Strategy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Backend, Proxy, ProxyBuilder, reply, rules, status, within};

const CREATE: &str = "POST /api/v1/namespaces/n/secrets HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
const OPERATE: &str = "POST /graphql HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";

/// A gate whose keys keep failing for the rest of the test once they fail.
fn before(backend: &Backend, kind: ApiKind) -> ProxyBuilder {
    Proxy::before(backend.address).with(|options| {
        options.gate.rules = Arc::new(rules(kind));
        let minute = Duration::from_secs(60);
        options.gate.policy.classes[1].backoff.strategy =
            Strategy::Exponential { base: minute, max: minute, jitter: 0.0 };
    })
}

/// An upstream that fails every call that names `bad`.
async fn backend() -> Backend {
    Backend::start(|seen| async move {
        let bad = seen.body.windows(3).any(|word| word == b"bad");
        if bad { reply(500, "no") } else { reply(201, "ok") }
    })
    .await
}

/// A Secret as Go's encoder writes it, with this much data after its name.
fn json(name: &str, data: usize) -> Vec<u8> {
    let head =
        format!(r#"{{"kind":"Secret","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"n"}},"data":{{"#);
    format!(r#"{head}"release":"{}"}}}}"#, "x".repeat(data)).into_bytes()
}

/// The same as Kubernetes protobuf.
fn protobuf(name: &str, data: usize) -> Vec<u8> {
    let field = |number: u8, content: &[u8]| {
        let mut bytes = vec![number << 3 | 2];
        let mut len = content.len();
        while len > 0x7f {
            bytes.push(u8::try_from(len & 0x7f).expect("seven bits") | 0x80);
            len >>= 7;
        }
        bytes.push(u8::try_from(len).expect("seven bits"));
        [&bytes, content].concat()
    };
    let type_meta = [field(1, b"v1"), field(2, b"Secret")].concat();
    let entry = [field(1, b"release"), field(2, &vec![b'x'; data])].concat();
    let secret = [field(1, &field(1, name.as_bytes())), field(2, &entry)].concat();
    [b"k8s\0".to_vec(), field(1, &type_meta), field(2, &secret)].concat()
}

fn with_length(head: &str, body: &[u8]) -> Vec<u8> {
    [format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

fn in_chunks(head: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    for piece in body.chunks(10_000) {
        request.extend(format!("{:x}\r\n", piece.len()).bytes());
        request.extend(piece);
        request.extend(b"\r\n");
    }
    request.extend(b"0\r\n\r\n");
    request
}

async fn send(proxy: &Proxy, request: &[u8]) -> u16 {
    let mut stream = proxy.connect().await;
    stream.write_all(request).await.expect("writes");
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.expect("reads");
    status(&String::from_utf8_lossy(&answer))
}

#[tokio::test]
async fn a_body_that_breaks_off_while_it_is_searched_for_a_name_is_never_sent_as_whole() {
    let backend = backend().await;
    let proxy = before(&backend, ApiKind::Kubernetes).start().await;
    assert_eq!(send(&proxy, &with_length(CREATE, &json("bad", 10))).await, 500);
    // The next chunk has no size: the rest of the body cannot be read, but the client stays.
    let head = format!("{CREATE}Transfer-Encoding: chunked\r\n\r\n");
    let mut client = proxy.connect().await;
    client.write_all(format!("{head}6\r\n{{\"kind\r\nno size\r\n").as_bytes()).await.expect("writes");
    let mut answer = Vec::new();
    drop(within(client.read_to_end(&mut answer)).await);
    assert_eq!(backend.seen().len(), 1, "{}", String::from_utf8_lossy(&answer));
    assert!(!answer.starts_with(b"HTTP/1.1 201"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_create_backs_off_however_long_its_body_is_and_however_it_is_framed() {
    type Body = fn(&str, usize) -> Vec<u8>;
    type Framing = fn(&str, &[u8]) -> Vec<u8>;
    let bodies: [(&str, Body); 2] = [("JSON", json), ("protobuf", protobuf)];
    let framings: [(&str, Framing); 2] = [("with a length", with_length), ("in chunks", in_chunks)];
    for (body, of) in bodies {
        for (framing, framed) in framings {
            for data in [10, 64 * 1024, 300 * 1024, 2_500_000] {
                let (backend, case) = (backend().await, format!("{body} of {data} bytes {framing}"));
                let proxy = before(&backend, ApiKind::Kubernetes).start().await;
                assert_eq!(send(&proxy, &framed(CREATE, &of("bad", data))).await, 500, "{case}");
                for _ in 0..3 {
                    assert_eq!(send(&proxy, &framed(CREATE, &of("bad", data))).await, 429, "{case}");
                }
                assert_eq!(send(&proxy, &framed(CREATE, &of("good", data))).await, 201, "{case}: another object");
                assert_eq!(backend.seen().last().map(|seen| seen.body.to_vec()), Some(of("good", data)), "{case}");
                assert_eq!(backend.targets().len(), 2, "{case}");
            }
        }
    }
}

#[tokio::test]
async fn a_name_at_the_beginning_of_a_body_that_does_not_end_is_enough() {
    let backend = backend().await;
    let proxy = before(&backend, ApiKind::Kubernetes).start().await;
    let request = with_length(CREATE, &json("bad", 100_000));
    assert_eq!(send(&proxy, &request).await, 500);
    for sent in [&request[..400], &in_chunks(CREATE, &json("bad", 100_000))[..15_000]] {
        let mut stream = proxy.connect().await;
        stream.write_all(sent).await.expect("writes");
        let mut answer = [0; 12];
        within(stream.read_exact(&mut answer)).await.expect("an answer, though the body goes on");
        assert_eq!(&answer, b"HTTP/1.1 429");
    }
    assert_eq!(backend.targets().len(), 1);
}

#[tokio::test]
async fn an_operation_in_chunks_backs_off_and_one_past_the_peek_does_not() {
    let backend = backend().await;
    let proxy = before(&backend, ApiKind::Http).start().await;
    let long = [b"bad".to_vec(), vec![b'x'; 64 * 1024]].concat();
    for (request, retry) in [
        (in_chunks(OPERATE, b"bad operation"), 429),
        (with_length(OPERATE, b"bad and short"), 429),
        (in_chunks(OPERATE, &long), 500),
        (with_length(OPERATE, &long), 500),
    ] {
        assert_eq!(send(&proxy, &request).await, 500);
        assert_eq!(send(&proxy, &request).await, retry);
    }
    assert_eq!(send(&proxy, &in_chunks(OPERATE, b"bad, but another")).await, 500);
}

const APPLY: &str = "PATCH /apis/apps/v1/namespaces/n/deployments/d?fieldManager=x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
const WRONG: &str =
    "failed to create typed patch object (n/d; apps/v1, ApiKind=Deployment): .spec.foo: field not declared in schema";

/// A `metav1.Status` in the encodings of kube-apiserver.
fn statuses(message: &str) -> [(&'static str, Vec<u8>); 4] {
    let json = format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"{message}","code":500}}"#
    );
    let text = |header: &[u8]| [header, &[u8::try_from(message.len()).expect("short")], message.as_bytes()].concat();
    let protobuf =
        [b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status\x12\x7f\x0a\x00\x12\x07Failure".to_vec(), text(b"\x1a")].concat();
    let cbor = [b"\xd9\xd9\xf7\xa2\x46status\x47Failure\x47message".to_vec(), text(b"\x58")].concat();
    let gzip = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..], &compress_to_vec(json.as_bytes(), 6)].concat();
    [("identity", json.into_bytes()), ("identity", protobuf), ("identity", cbor), ("gzip", gzip)]
}

/// An upstream that answers `bad` calls with a 500 and this body.
async fn failing_with(coding: &'static str, body: Vec<u8>) -> Backend {
    Backend::start(move |seen| {
        let bad = seen.body.windows(3).any(|word| word == b"bad");
        let body = Full::from(body.clone()).map_err(|never| match never {}).boxed_unsync();
        let failure = Response::builder().status(500).header("content-encoding", coding).body(body).expect("valid");
        async move { if bad { failure } else { reply(200, "ok") } }
    })
    .await
}

#[tokio::test]
async fn an_apply_that_is_wrong_holds_up_neither_the_right_one_nor_a_delete() {
    let delete =
        b"DELETE /apis/apps/v1/namespaces/n/deployments/d HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    for kind in
        ["application/apply-patch+yaml", "application/apply-patch+cbor", "Application/Apply-Patch+YAML; charset=utf-8"]
    {
        for (coding, status) in statuses(WRONG) {
            let backend = failing_with(coding, status.clone()).await;
            let proxy = before(&backend, ApiKind::Kubernetes).start().await;
            let apply = |body: &[u8]| with_length(&format!("{APPLY}Content-Type: {kind}\r\n"), body);
            for _ in 0..3 {
                assert_eq!(send(&proxy, &apply(b"bad")).await, 500, "{kind} {coding} {status:?}");
            }
            assert_eq!(send(&proxy, &apply(b"right")).await, 200);
            assert_eq!(send(&proxy, delete).await, 200);
        }
    }
}

#[tokio::test]
async fn an_apply_that_fails_for_another_reason_and_another_patch_back_off() {
    let apply = "Content-Type: application/apply-patch+yaml\r\n";
    let merge = "Content-Type: application/merge-patch+json\r\n";
    let webhook = format!("Internal error occurred: failed calling webhook x: {WRONG}");
    for (kind, message) in [(apply, "etcdserver: request timed out"), (apply, &*webhook), (merge, WRONG), ("", WRONG)] {
        let [(coding, status), ..] = statuses(message);
        let backend = failing_with(coding, status).await;
        let proxy = before(&backend, ApiKind::Kubernetes).start().await;
        let request = with_length(&format!("{APPLY}{kind}"), b"bad");
        assert_eq!(send(&proxy, &request).await, 500);
        assert_eq!(send(&proxy, &request).await, 429, "{kind}{message}");
    }
}

#[tokio::test]
async fn a_dry_run_that_fails_holds_up_nothing() {
    let backend = backend().await;
    let proxy = before(&backend, ApiKind::Kubernetes).start().await;
    let put = |query: &str, body: &[u8]| {
        let head = format!(
            "PUT /api/v1/namespaces/n/configmaps/c{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        );
        with_length(&head, body)
    };
    for _ in 0..3 {
        assert_eq!(send(&proxy, &put("?dryRun=All", b"bad")).await, 500);
    }
    assert_eq!(send(&proxy, &put("", b"good")).await, 201);
    assert_eq!(send(&proxy, &put("", b"bad")).await, 500);
    assert_eq!(send(&proxy, &put("", b"bad")).await, 429);
    assert_eq!(send(&proxy, &put("?dryRun=All", b"good")).await, 429, "it is a write of the object that fails");
}
