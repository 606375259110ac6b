//! Follows docs/choosing-limits.md before a stand-in of kube-apiserver, with hours of a simulated
//! operator's calls.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::Ordering;

use crate::follow::follow;
use crate::operate::responding;
use crate::ports::free_port;
use crate::simulate::days;

#[test]
fn a_reader_of_the_page_on_limits_enforces_a_recommended_bucket() {
    let (api, calls) = responding(|_| "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}".to_owned());
    let folder = tempfile::tempdir().expect("a folder");
    symlink(env!("CARGO_BIN_EXE_tidegate"), folder.path().join("tidegate")).expect("the folder is ours");
    fs::write(folder.path().join("day.jsonl"), days::log(1, 4)).expect("the folder is ours");
    let page = fs::read_to_string("docs/choosing-limits.md").expect("it is there");
    // The ports of the page may be in use here.
    let page = page.replace("8001", &free_port().to_string());
    let variables = [
        ("TIDEGATE__GATES__KUBERNETES__UPSTREAM", format!("http://127.0.0.1:{api}")),
        ("TIDEGATE__ADMIN__LISTEN", format!("127.0.0.1:{}", free_port())),
    ];
    follow(&page, folder.path(), &variables);
    assert_eq!(calls.load(Ordering::Relaxed), 3, "every call of the page reached the API");
    let curve = fs::read_to_string(folder.path().join("curve.svg")).expect("it was drawn");
    let enforced = fs::read_to_string(folder.path().join("enforced.toml")).expect("it was written");
    let bucket = enforced.lines().find(|line| line.starts_with("bucket = ")).expect("a bucket");
    assert!(curve.contains("bucket = { rate = 100, burst = ") && bucket.contains("rate = 100"), "{bucket}");
}
