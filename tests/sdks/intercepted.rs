//! The SDKs of AWS as `inject --egress` points them at a gate that opens TLS, before a server that
//! verifies their signatures: by exactly the variables that it writes, and nothing else.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rcgen::{CertificateParams, DnType, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tidegate::inject::{Client, EgressOptions, Mode, Options, inject};
use tidegate::tls::{Interception, Trust};

use crate::fetched::say;
use crate::gate::Gates;
use crate::live::or_skip;
use crate::ports::free_port;
use crate::programs::{self, Program};
use crate::signed::{Judge, SDKS, SERVICES, Sdk, calls, is_about_the_signature};

/// The variables that a container with these clients is given, with the gate's files in this folder.
pub(crate) fn variables(port: u16, folder: &str, clients: &[Client]) -> Vec<(String, String)> {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n    image: i\n";
    let egress = EgressOptions {
        presets: vec!["aws".to_owned()],
        port,
        plain: Vec::new(),
        direct: Vec::new(),
        cluster_domain: None,
        intercept: true,
        clients: clients.to_vec(),
    };
    let options = Options { mode: Mode::Kubeconfig, egress: Some(egress), ..Options::default() };
    let edited = inject(pod, &options).expect("it is YAML");
    let pod: serde_json::Value = serde_saphyr::from_str(&edited.text).expect("it is YAML");
    let variables = pod["spec"]["containers"][0]["env"].as_array().expect("a list").iter().map(|variable| {
        let text = |key: &str| variable[key].as_str().expect("text").to_owned();
        // Kubelet fills in the address of the API server.
        let value = text("value").replace("/run/tidegate", folder).replace("$(KUBERNETES_SERVICE_HOST)", "10.96.0.1");
        (text("name"), value)
    });
    variables.filter(|(name, _)| name != "KUBECONFIG").collect()
}

/// A gate before the judge that opens TLS to all services; every call but the first is held for a
/// moment. The JavaScript SDK takes no proxy: its names lead to `named`.
fn gates(judge: &Judge, port: u16, named: u16) -> Gates {
    let hosts: Vec<&str> = SERVICES.iter().map(|(_, host)| *host).collect();
    let connect_to: Vec<String> = hosts
        .iter()
        .map(|host| format!("{host:?} = \"127.0.0.1:{}\"", judge.tls))
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    let (ca, folder) = (judge.dir.path().join("judge.crt"), judge.dir.path().join("egress"));
    let config = format!(
        "[egress]\nlisten = \"127.0.0.1:{port}\"\nnames = [\"127.0.0.1:{named}\"]\nothers = \"refuse\"\nca.write_to = {folder:?}\n\
         [gates.aws]\nhosts = {hosts:?}\nintercept = true\ndialect = \"aws\"\npreset = \"none\"\n\
         bucket = {{ rate = 20, burst = 1 }}\nqueue.max_wait = \"30s\"\nupstream_tls = {{ ca = {ca:?} }}\nconnect_to = {{ {} }}\n",
        connect_to.join(", ")
    );
    let file = judge.dir.path().join("egress.toml");
    fs::write(&file, config).expect("the folder is ours");
    Gates::of(&file, &[], ("aws", port))
}

#[test]
fn a_signature_is_good_through_tls_that_is_opened_with_what_inject_writes() {
    let Some(judge) = or_skip("the judge of signatures", Judge::start()) else { return };
    let (port, named) = (free_port(), free_port());
    let gates = gates(&judge, port, named);
    let clients = [Client::Go, Client::Python, Client::Node, Client::Java, Client::Grpc];
    let all = variables(port, &judge.dir.path().display().to_string(), &clients);
    let named = named.to_string();
    for sdk in &SDKS {
        let Sdk { name, takes_a_proxy, .. } = *sdk;
        let mut variables: Vec<(&str, &str)> =
            all.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        if !takes_a_proxy {
            variables.push(("TEST_ALIASES", &named)); // as its pod's hosts file would
        }
        let Some(made) = calls(&judge, sdk, &judge.key.secret, &variables, ("https", &[])) else { continue };
        assert!(made.iter().all(String::is_empty), "{name}: {made:?}\n{}", gates.log());
        say(format_args!("{name}: {} signatures were good through TLS that the gate has opened", made.len()));
        let wrong = calls(&judge, sdk, "wrong", &variables, ("https", &[])).expect("it was there before");
        assert!(wrong.iter().all(|error| !error.is_empty()) && is_about_the_signature(&wrong[0]), "{name}: {wrong:?}");
    }
    assert!(gates.metric("tidegate_wait_seconds_count", "aws") > 0.0, "no call was held");
    assert_eq!(gates.metric("tidegate_egress_handshake_failures_total", "aws"), 0.0, "{}", gates.log());
    for (how, expected) in [("intercepted", true), ("tunnelled", false)] {
        let counted = gates.counted(&format!("tidegate_egress_connections_total{{how=\"{how}\"}}"));
        assert_eq!(counted > 0.0, expected, "{how}");
    }
}

/// TLS for a name, by a certificate that whoever has stolen the CA's key could make. Returns the
/// port, and the number of handshakes that clients have gone through with.
fn impostor(ca: &Interception, name: &str) -> (u16, Arc<AtomicUsize>) {
    let kept = ca.kept();
    let mut issuer = CertificateParams::new(Vec::new()).expect("no names");
    issuer.distinguished_name.push(DnType::CommonName, "tidegate egress");
    let issuer = Issuer::new(issuer, KeyPair::from_pem(&kept).expect("a key"));
    let (key, mut leaf) =
        (KeyPair::generate().expect("a key"), CertificateParams::new(vec![name.to_owned()]).expect("a name"));
    (leaf.not_before, leaf.not_after) = (date_time_ymd(2025, 1, 1), date_time_ymd(2049, 1, 1));
    leaf.use_authority_key_identifier_extension = true;
    let leaf = leaf.signed_by(&key, &issuer).expect("signed").der().clone();
    let between = CertificateDer::pem_slice_iter(kept.as_bytes()).next().expect("a chain").expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![leaf, between], key)
        .expect("a key that fits");
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").expect("a port"));
    let port = listener.local_addr().expect("bound").port();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), Ok(connection)) = (stream, ServerConnection::new(Arc::clone(&config))) else { continue };
            let mut stream = StreamOwned::new(connection, stream);
            // The first word inside comes after the client has accepted the certificate.
            if matches!(stream.read(&mut [0; 4096]), Ok(1..)) {
                count.fetch_add(1, Ordering::SeqCst);
                drop(stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
            }
        }
    });
    (port, accepted)
}

/// Name constraints are only worth what clients make of them: with the stolen key of the CA one can
/// pose as a host that it is for, and as no other.
#[test]
fn every_client_holds_the_ca_to_its_names() {
    let (listed, other) = ("sts.eu-central-1.amazonaws.com", "sts.us-east-1.amazonaws.com");
    let ca = Interception::new(&[listed.to_owned()]).expect("a CA");
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (file, certs) = (folder.path().join("ca.crt"), folder.path().join("certs"));
    fs::create_dir(&certs).expect("the folder is ours");
    for path in [&file, &certs.join(Trust::HASHED)] {
        fs::write(path, Trust::new(&ca, &[]).ca).expect("the folder is ours");
    }
    let (file, certs) = (file.display().to_string(), certs.display().to_string());
    for sdk in &SDKS {
        let Sdk { program, name, trusts, .. } = *sdk;
        if program == Program::Aiobotocore {
            continue; // the same Python
        }
        for (host, expected) in [(listed, true), (other, false)] {
            let (port, accepted) = impostor(&ca, host);
            let port = port.to_string();
            let trusted = if trusts == "SSL_CERT_DIR" { &certs } else { &file };
            let variables = [("TEST_ALIASES", port.as_str()), (trusts, trusted)];
            let Some(mut client) = or_skip(name, programs::Client::start(program, name, &variables)) else { continue };
            let report = client.call("sts", &format!("https://{host}"));
            assert!(!report.ok, "{name} {host}");
            assert_eq!(accepted.load(Ordering::SeqCst) > 0, expected, "{name} {host}: {}", report.error);
        }
        say(format_args!("{name}: the CA is held to its names"));
    }
}
