//! Follows docs/sharing-a-quota.md before a stand-in of GitHub, with a real store.

use std::os::unix::fs::symlink;

use crate::follow::follow;
use crate::operate::responding;
use crate::ports::free_port;
use crate::store_server::program;

#[test]
fn a_reader_of_the_page_on_sharing_has_three_gates_that_share_a_quota() {
    let Some(server) = program() else { return };
    let (github, calls) = responding(|_| "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned());
    let folder = tempfile::tempdir().expect("a folder");
    symlink(env!("CARGO_BIN_EXE_tidegate"), folder.path().join("tidegate")).expect("the folder is ours");
    symlink(server, folder.path().join("valkey-server")).expect("the folder is ours");
    // The ports of the page may be in use here.
    let mut page = include_str!("../../docs/sharing-a-quota.md").replace("6390", &free_port().to_string());
    for of_page in ["801", "811"] {
        let choose = [1, 2, 3].map(|number| format!("{number}) echo {};; ", free_port())).concat();
        page = page.replace(&format!("{of_page}$number"), &format!("$(case $number in {choose}esac)"));
    }
    let variables = [("TIDEGATE__GATES__GITHUB__UPSTREAM", format!("http://127.0.0.1:{github}"))];
    follow(&page, folder.path(), &variables);
    assert!(calls.load(std::sync::atomic::Ordering::Relaxed) > 15);
}
