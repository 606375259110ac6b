//! Follows docs/recipes/many-clusters.md: its Secrets in its volume, and a call as each client makes it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::Value;

use super::echo;
use super::process::{kubeconfig, running};
use crate::command::config;
use crate::docs::blocks;
use crate::ports::free_port;

const PAGE: &str = include_str!("../../../docs/recipes/many-clusters.md");

/// Writes the files that kubelet makes of a projected volume.
fn mount(volume: &Value, secret: impl Fn(&str) -> Value, folder: &Path) {
    for source in volume["projected"]["sources"].as_array().expect("a list") {
        let source = &source["secret"];
        let fields = secret(source["name"].as_str().expect("a name"));
        for item in source["items"].as_array().expect("a list") {
            let field = fields[item["key"].as_str().expect("a key")].as_str().expect("the Secret has it");
            let path = folder.join(item["path"].as_str().expect("a path"));
            fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
            fs::write(path, field).expect("it can be written");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_the_page_reaches_each_cluster_through_the_gate() {
    let (prod, test, port, folder) =
        (echo("prod").await, echo("test").await, free_port(), tempfile::tempdir().expect("a folder"));
    let yaml: Vec<Value> = blocks(PAGE, "yaml")
        .into_iter()
        .map(|(line, text)| serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    let [theirs, ours, volume] = yaml.as_slice() else { panic!("three documents") };
    let secret = |name: &str| match name {
        "prod" => {
            let mut fields = ours["stringData"].clone();
            fields["server"] = format!("http://{}", prod.address).into();
            fields["config"] = fields["config"].as_str().expect("text").replace("PROD-CA", "").into();
            fields
        }
        "test-kubeconfig" => serde_json::json!({ "value": kubeconfig(test.address, "x") }),
        name => panic!("the page has no Secret {name}"),
    };
    assert_eq!((&ours["metadata"]["name"], &ours["metadata"]["labels"]), (&"prod".into(), &Value::Null));
    mount(volume, secret, folder.path());
    // The page's port may be in use here, and its certificate is elsewhere.
    let text = blocks(PAGE, "toml").swap_remove(0).1;
    let tls = text.lines().find(|line| line.starts_with("tls = ")).expect("it has TLS");
    let text = text.replace(tls, "").replace("\"/clusters\"", &format!("{:?}", folder.path()));
    let text = text.replace("0.0.0.0:8443", &format!("127.0.0.1:{port}"));
    let (_config, path) = config(&format!("[admin]\nlisten = \"off\"\n{text}"));
    let theirs = theirs["stringData"].clone();
    let token: Value = serde_json::from_str(theirs["config"].as_str().expect("text")).expect("JSON");
    assert_eq!(token["tlsClientConfig"]["caData"], "GATE-CA");
    let token = token["bearerToken"].as_str().expect("a token").to_owned();
    let server = theirs["server"].as_str().expect("text").strip_prefix("https://").expect("TLS").to_owned();
    let (host, base) = server.split_at(server.find('/').expect("a path"));
    let (host, base) = (host.to_owned(), base.to_owned());
    assert_eq!((base.as_str(), host.ends_with(":8443")), ("/c/prod", true));
    tokio::task::spawn_blocking(move || {
        let _gate = running(&path);
        for (base, name) in [(base.as_str(), "prod"), ("/c/test", "test")] {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the gate listens");
            let request = format!(
                "GET {base}/version HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).expect("it is read");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("it is answered");
            assert!(answer.ends_with(&format!("{name} /version Bearer {token}")), "{answer}");
        }
    })
    .await
    .expect("no panic");
}
