//! A CA that is made by one command and given to two processes, as to two replicas of a Service.

use super::EC2;
use super::intercept::Api;
use super::restart::Place;
use crate::cli::input::get;
use crate::command::{end, tidegate};
use crate::ports::free_port;

fn place(api: &Api) -> Place {
    let place = Place { folder: tempfile::tempdir().expect("a folder"), egress: free_port(), admin: free_port() };
    std::fs::write(place.folder.path().join("api.crt"), &api.ca).expect("written");
    place
}

#[test]
fn replicas_that_are_given_one_ca_are_one_to_their_clients() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let api = runtime.block_on(Api::start(&[EC2], &["h2", "http/1.1"]));
    let places = [place(&api), place(&api)];
    let connect_to = format!("connect_to = {{ {EC2:?} = \"{}\" }}", api.address);
    for place in &places {
        place.write("\"@aws\"", &connect_to);
    }
    let folder = places[0].folder.path().join("given");
    let make = || {
        let mut make = tidegate(["ca"]);
        make.arg("--new").arg(&folder).arg("--config").arg(places[0].config());
        end(make)
    };
    let made = make();
    assert!(made.code == Some(0) && made.out.contains("amazonaws.com"), "{}{}", made.out, made.err);
    let again = make();
    assert!(again.code == Some(1) && again.err.contains("exists already"), "{}", again.err);
    let root = std::fs::read_to_string(folder.join("ca.crt")).expect("it was made");
    let given = ["cert", "key", "root"].into_iter().zip(["tls.crt", "tls.key", "ca.crt"]);
    let given: String = given.map(|(key, name)| format!("{key} = {:?}\n", folder.join(name))).collect();
    let running = places.each_ref().map(|place| {
        let text = std::fs::read_to_string(place.config()).expect("written");
        let keep = format!("keep = {:?}\n", place.folder.path().join("keys"));
        assert!(text.contains(&keep));
        std::fs::write(place.config(), text.replace(&keep, &given)).expect("written");
        place.run()
    });
    for place in &places {
        assert!(place.call(&root).expect("the client trusts the one root").starts_with("HTTP/1.1 200 "));
        assert!(get(place.admin, "/egress/ca.pem").ends_with(&root), "what is published is the root");
        let mut print = tidegate(["ca", "--config"]);
        print.arg(place.config());
        assert_eq!(end(print).out, root);
    }
    // What does not fit is not started.
    std::fs::write(
        folder.join("tls.key"),
        tidegate::tls::self_signed(&[], &[], None).expect("a CA").ca_key().expect("its own"),
    )
    .expect("written");
    let check = end(crate::command::with_config("check", &places[0].config()));
    let says = "egress.ca.key: ";
    assert!(check.code == Some(78) && check.err.contains(says), "{}{}", check.out, check.err);
    assert!(check.err.contains("is not the key of the first certificate in"), "{}", check.err);
    for running in running {
        running.signal("-TERM");
        running.end();
    }
}
