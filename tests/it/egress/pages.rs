//! Follows the pages for clients behind a gate that intercepts, before a stand-in of their API.

use std::os::unix::fs::symlink;

use super::intercept::Api;
use crate::follow::follow;
use crate::ports::free_port;

/// Follows a page before a stand-in of a host. Returns the calls that reached it.
fn calls_of_a_reader(page: &str, host: &str) -> usize {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let api = runtime.block_on(Api::start(&[host], &["http/1.1"]));
    let folder = tempfile::tempdir().expect("a folder");
    symlink(env!("CARGO_BIN_EXE_tidegate"), folder.path().join("tidegate")).expect("the folder is ours");
    let ca = folder.path().join("api.crt");
    std::fs::write(&ca, &api.ca).expect("the folder is ours");
    // The page's port may be in use here, and its host is far away.
    let here =
        format!("intercept = true\nconnect_to = {{ {host:?} = \"{}\" }}\nupstream_tls.ca = {ca:?}\n", api.address);
    let page = page.replace("8003", &free_port().to_string());
    let page = page.replace("intercept = true\n", &here);
    let variables = [("TIDEGATE__ADMIN__LISTEN", format!("127.0.0.1:{}", free_port()))];
    follow(&page, folder.path(), &variables);
    api.calls().len()
}

#[test]
fn a_reader_of_the_page_for_external_dns_sees_a_limit_in_force() {
    let calls = calls_of_a_reader(include_str!("../../../docs/recipes/external-dns.md"), "route53.amazonaws.com");
    assert_eq!(calls, 1, "the second call never reached Route 53");
}

#[test]
fn a_reader_of_the_page_for_crossplane_on_aws_sees_a_limit_in_force() {
    let calls =
        calls_of_a_reader(include_str!("../../../docs/recipes/crossplane-aws.md"), "ec2.eu-central-1.amazonaws.com");
    assert_eq!(calls, 1, "the second call never reached EC2");
}

#[test]
fn a_reader_of_the_page_for_arc_sees_a_limit_in_force() {
    let calls = calls_of_a_reader(include_str!("../../../docs/recipes/arc.md"), "api.github.com");
    assert_eq!(calls, 1, "the second call never reached GitHub, nor one without the password");
}
