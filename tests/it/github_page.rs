//! Follows docs/recipes/github-clients.md before a stand-in of GitHub, which has lists of many pages.

use std::os::unix::fs::symlink;

use crate::follow::follow;
use crate::operate::responding;
use crate::ports::free_port;

#[test]
fn a_reader_of_the_page_for_github_clients_sees_a_limit_in_force() {
    let (github, calls) = responding(|request| {
        let host = request.lines().find_map(|line| line.to_lowercase().strip_prefix("host: ").map(str::to_owned));
        let host = host.unwrap_or_default();
        let link = format!("Link: <http://{host}/repos/rust-lang/rust/issues?page=2>; rel=\"next\"\r\n");
        format!("HTTP/1.1 200 OK\r\n{link}Content-Length: 2\r\n\r\n[]")
    });
    let folder = tempfile::tempdir().expect("a folder");
    symlink(env!("CARGO_BIN_EXE_tidegate"), folder.path().join("tidegate")).expect("the folder is ours");
    // The ports of the page may be in use here.
    let page = include_str!("../../docs/recipes/github-clients.md").replace("8002", &free_port().to_string());
    let variables = [
        ("TIDEGATE__GATES__GITHUB__UPSTREAM", format!("http://127.0.0.1:{github}")),
        ("TIDEGATE__ADMIN__LISTEN", format!("127.0.0.1:{}", free_port())),
    ];
    let page = page.replace("-> https://…", "-> http://…");
    follow(&page, folder.path(), &variables);
    assert_eq!(calls.load(std::sync::atomic::Ordering::Relaxed), 3, "the fourth never reached GitHub");
}
