//! Answers that are kept for the hosts of one gate.

use http_body_util::{BodyExt as _, Full};

use super::{Around, encrypted, listener};
use crate::support::{AnyBody, Backend, Seen, header};

/// An API whose one answer never changes.
fn unchanged(seen: &Seen) -> http::Response<AnyBody> {
    let is_same = seen.headers.contains_key("if-none-match");
    let body = if is_same { String::new() } else { "x".repeat(6_000) };
    let body = Full::from(body).map_err(|never| match never {}).boxed_unsync();
    let answer = http::Response::builder().status(if is_same { 304 } else { 200 });
    answer.header("ETag", "\"1\"").body(body).expect("valid")
}

#[tokio::test]
async fn the_hosts_of_a_gate_share_the_room_for_kept_answers() {
    let backend = Backend::start(|seen| async move { unchanged(&seen) }).await;
    let [one, other] = ["one.example.com", "other.example.com"];
    let (address, ca) = encrypted(backend.address, &[one, other]).await;
    let text = format!(
        "[gates.api]\nkind = \"http\"\npreset = \"none\"\nhosts = [\"*.example.com\"]\nrevalidation.max_bytes = \"40KiB\"\n\
         connect_to = {{ {one:?} = \"{address}\", {other:?} = \"{address}\" }}\n\
         [[gates.api.classes]]\nname = \"default\"\nrevalidate = true\n"
    );
    let listener = listener(&text, Around { ca: Some(ca), ..Around::default() }).await;
    let get = async |host: &str| {
        let (status, answer) = listener.get(&format!("http://{host}/"), "Authorization: Bearer one\r\n").await;
        assert_eq!(status, 200, "{answer}");
        header(&answer, "tidegate-cache").map(str::to_owned)
    };
    let revalidated = Some("revalidated".to_owned());
    // One answer may take a quarter of the room.
    assert_eq!((get(one).await, get(one).await), (None, revalidated), "alone, a host has all the room");
    assert_eq!((get(other).await, get(other).await), (None, None), "a quarter of half of it is too little");
}
