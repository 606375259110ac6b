//! A Go client that goes on over a restart of its gate: the CA of interception is taken over from
//! where it is kept. Without that it would have to be restarted too.

use std::fs;

use crate::gate::Gates;
use crate::intercepted::variables;
use crate::live::or_skip;
use crate::pod;
use crate::programs::{Client, Program};
use crate::reached::Api;

const HOST: &str = "api.example.com";

#[test]
fn a_go_client_goes_on_over_a_restart_of_the_gate() {
    // What has to be fetched is out of reach in a pod.
    if or_skip("Go", Program::Go.command()).is_none()
        || !pod::is_in_pod("kept::a_go_client_goes_on_over_a_restart_of_the_gate")
    {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let tls = pod::make(dir.path(), &[(pod::API, HOST.to_owned())]);
    let api = Api::start(tls, &pod::addresses(), dir.path());
    let (file, keys) = (dir.path().join("tidegate.toml"), dir.path().join("keys"));
    let config = format!(
        "[egress]\nlisten = \"127.0.0.1:8003\"\nca.keep = {keys:?}\n\
         [gates.api]\nhosts = [{HOST:?}]\nintercept = true\npreset = \"none\"\n"
    );
    fs::write(&file, config).expect("the folder is ours");
    let run = || Gates::of(&file, &[], ("api", 8003));

    let gates = run();
    let kind = [tidegate::inject::Client::Go];
    let given = variables(8003, "/run/tidegate", &kind);
    let given: Vec<_> = given.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut client = Client::start(Program::Go, "net/http", &given).expect("it was fetched");
    let mut call = |gates: &Gates| {
        let report = client.call("read", &format!("https://{HOST}"));
        (report.ok, format!("{}\n{}", report.error, gates.log()))
    };
    let (ok, said) = call(&gates);
    assert!(ok, "{said}");

    drop(gates);
    let gates = run();
    let (ok, said) = call(&gates);
    assert!(ok, "the CA was kept: {said}");
    assert_eq!((gates.metric("tidegate_calls_total", "api"), api.came(HOST).len()), (1.0, 2));

    // What is not kept is another CA, which the client has never read.
    drop(gates);
    fs::remove_dir_all(&keys).expect("it is there");
    let gates = run();
    let (ok, said) = call(&gates);
    assert!(!ok && said.contains("certificate signed by unknown authority"), "{said}");
    assert_eq!(api.came(HOST).len(), 2);
}
