//! Signatures through a gate, before a server that verifies them (ministack): over `HTTP_PROXY`
//! with the real name, and with the name led to loopback; held, sent again, and over HTTP/2.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use serde::Deserialize;

use crate::fetched::say;
use crate::fickle::{closing, refusing};
use crate::gate::{Gates, Plan};
use crate::live::or_skip;
use crate::ports::free_port;
use crate::programs::{CLIENTS, Client, Program, judge};

/// A service, its own name, and a call to it.
pub(crate) type Service = (&'static str, &'static str);

/// The ten services whose signatures the judge verifies, and a body in pieces for one of them.
pub(crate) const SERVICES: [Service; 11] = [
    ("sts", "sts.eu-central-1.amazonaws.com"),
    ("ec2", "ec2.eu-central-1.amazonaws.com"),
    ("dynamodb", "dynamodb.eu-central-1.amazonaws.com"),
    ("eks_list", "eks.eu-central-1.amazonaws.com"),
    ("route53", "route53.amazonaws.com"),
    ("s3_buckets", "s3.eu-central-1.amazonaws.com"),
    ("s3_put", "s3.eu-central-1.amazonaws.com"),
    ("elbv2", "elasticloadbalancing.eu-central-1.amazonaws.com"),
    ("autoscaling", "autoscaling.eu-central-1.amazonaws.com"),
    ("iam", "iam.amazonaws.com"),
    ("cloudwatch", "monitoring.eu-central-1.amazonaws.com"),
];

/// An SDK, and the ways by which it can go.
pub(crate) struct Sdk {
    pub(crate) program: Program,
    pub(crate) name: &'static str,
    pub(crate) takes_a_proxy: bool,
    /// The variable that names a CA to trust.
    pub(crate) trusts: &'static str,
}

pub(crate) const SDKS: [Sdk; 6] = [
    Sdk { program: Program::Python, name: "boto3_standard", takes_a_proxy: true, trusts: "AWS_CA_BUNDLE" },
    Sdk { program: Program::Aiobotocore, name: "aiobotocore", takes_a_proxy: true, trusts: "AWS_CA_BUNDLE" },
    Sdk { program: Program::Go, name: "go-v2", takes_a_proxy: true, trusts: "SSL_CERT_DIR" },
    Sdk { program: Program::Go, name: "go-v1", takes_a_proxy: true, trusts: "AWS_CA_BUNDLE" },
    Sdk { program: Program::JavaScript, name: "js-v3", takes_a_proxy: false, trusts: "NODE_EXTRA_CA_CERTS" },
    Sdk { program: Program::Java, name: "java-v2", takes_a_proxy: true, trusts: "TEST_CA" },
];

/// The calls that only read, which the gate sends again when an idle connection over HTTP/1.1 turns
/// out to be closed. Any other might have been processed; a stream that was refused was not.
const SENT_AGAIN: [&str; 3] = ["eks_list", "route53", "s3_buckets"];

/// The judge; ended when dropped.
pub(crate) struct Judge {
    child: Child,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) plain: u16,
    pub(crate) tls: u16,
    pub(crate) key: Key,
}

/// The key of the one user that it knows.
#[derive(Deserialize)]
pub(crate) struct Key {
    pub(crate) key: String,
    pub(crate) secret: String,
}

// === impl Judge ===

impl Judge {
    pub(crate) fn start() -> Result<Self, String> {
        let (python, dir) = (judge()?, tempfile::tempdir().expect("a temporary folder can be made"));
        let (plain, tls) = (free_port(), free_port());
        let names = SERVICES.iter().map(|(_, host)| *host).chain(["localhost"]).map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names.collect::<Vec<_>>()).expect("a certificate can be made");
        let (certificate, key) = (dir.path().join("judge.crt"), dir.path().join("judge.key"));
        fs::write(&certificate, made.cert.pem()).expect("the folder is ours");
        fs::write(&key, made.signing_key.serialize_pem()).expect("the folder is ours");
        let mut command = Command::new(python);
        command.arg(Path::new(CLIENTS).join("judge.py")).args([plain.to_string(), tls.to_string()]);
        command.args([&certificate, &key]).stdout(Stdio::piped());
        command.stderr(fs::File::create(dir.path().join("log")).expect("the folder is ours"));
        command.env("AUTH", "true").env("GATEWAY_PORT", plain.to_string());
        for folder in ["HOME", "TMPDIR", "S3_DATA_DIR", "STATE_DIR"] {
            command.env(folder, dir.path());
        }
        let mut child = command.spawn().map_err(|error| format!("python: {error}"))?;
        let mut said = BufReader::new(child.stdout.take().expect("piped"));
        let key = loop {
            let mut line = String::new();
            said.read_line(&mut line).expect("text");
            let log = || fs::read_to_string(dir.path().join("log")).unwrap_or_default();
            assert!(!line.is_empty(), "the judge ended:\n{}", log());
            if let Ok(key) = serde_json::from_str(&line) {
                break key;
            }
        };
        thread::spawn(move || drop(said.read_to_end(&mut Vec::new()))); // it is not held up by a full pipe
        Ok(Self { child, dir, plain, tls, key })
    }

    /// Gates before the judge, in which every call but the first is held for a moment.
    fn gates(&self) -> Gates {
        let hosts: Vec<&str> = SERVICES.iter().map(|(_, host)| *host).collect();
        let common =
            "dialect = \"aws\"\npreset = \"none\"\nbucket = { rate = 20, burst = 1 }\nqueue.max_wait = \"30s\"\n";
        let plan = |name: &str, upstream: String, more: String| Plan {
            name: name.to_owned(),
            upstream,
            settings: format!("{common}allowed_hosts = {hosts:?}\n{more}\n"),
        };
        let ca = self.dir.path().join("judge.crt");
        let tls = format!(
            "host = \"preserve\"\ntls = {{ names = {hosts:?}, write_to = \"$DIR\" }}\n\
             upstream_tls = {{ ca = {ca:?}, server_name = \"localhost\" }}"
        );
        let again_h2 = refusing(self.plain, &ca, &self.dir.path().join("judge.key"));
        let trusting = format!("host = \"preserve\"\nupstream_tls = {{ ca = {ca:?}, server_name = \"localhost\" }}");
        Gates::start(&[
            plan("again_h2", format!("https://127.0.0.1:{again_h2}"), trusting),
            plan("proxied", format!("http://127.0.0.1:{}", self.plain), "host = \"preserve\"".into()),
            plan("again", format!("http://127.0.0.1:{}", closing(self.plain)), "host = \"preserve\"".into()),
            plan("rewritten", format!("http://127.0.0.1:{}", self.plain), "host = \"rewrite\"".into()),
            plan("aliased", format!("https://127.0.0.1:{}", self.tls), tls),
        ])
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        drop(self.child.kill()); // it may have ended already, which is as good
        drop(self.child.wait());
    }
}

/// Calls every service that an SDK has of these, by way of one gate.
pub(crate) fn calls(
    judge: &Judge,
    sdk: &Sdk,
    secret: &str,
    variables: &[(&str, &str)],
    (scheme, only): (&str, &[&str]),
) -> Option<Vec<String>> {
    let Sdk { program, name, .. } = *sdk;
    let mut all = vec![("TEST_KEY", judge.key.key.as_str()), ("TEST_SECRET", secret)];
    all.extend(variables);
    let mut client = or_skip(name, Client::start(program, name, &all))?;
    let services = SERVICES.iter().filter(|(call, _)| only.is_empty() || only.contains(call));
    let made = services.map(|(call, host)| {
        let report = client.call(call, &format!("{scheme}://{host}"));
        if report.ok { String::new() } else { format!("{call}: {}", report.error) }
    });
    Some(made.collect())
}

/// The codes with which the services refuse a signature.
pub(crate) fn is_about_the_signature(error: &str) -> bool {
    ["SignatureDoesNotMatch", "AuthFailure", "InvalidSignatureException"].iter().any(|code| error.contains(code))
}

#[test]
fn a_signature_for_the_real_name_is_good_held_sent_again_and_over_http2() {
    let Some(judge) = or_skip("the judge of signatures", Judge::start()) else { return };
    let gates = judge.gates();
    let url = |name: &str| format!("http://127.0.0.1:{}", gates.port(name));
    let (aliases, ca) = (gates.port("aliased").to_string(), gates.dir.path().join("ca.crt"));
    let (ca, folder) = (ca.display().to_string(), gates.dir.path().display().to_string());
    for sdk in &SDKS {
        let Sdk { name, takes_a_proxy, trusts, .. } = *sdk;
        let proxies = ["proxied", "again", "again_h2"].into_iter().filter(|_| takes_a_proxy).map(|gate| (gate, "http"));
        for (gate, scheme) in proxies.chain([("aliased", "https")]) {
            let url = url(gate);
            let variables: Vec<(&str, &str)> = if gate == "aliased" {
                let trusted = if trusts == "SSL_CERT_DIR" { &folder } else { &ca };
                vec![("TEST_ALIASES", &aliases), (trusts, trusted)]
            } else {
                vec![("HTTP_PROXY", &url), ("http_proxy", &url)]
            };
            let how = (scheme, if gate == "again" { &SENT_AGAIN[..] } else { &[] });
            let Some(made) = calls(&judge, sdk, &judge.key.secret, &variables, how) else { continue };
            assert!(made.iter().all(String::is_empty), "{name} {gate}: {made:?}\n{}", gates.log());
            say(format_args!("{name}: {} signatures were good by way of {gate:?}", made.len()));
            if gate != "again" {
                let wrong = calls(&judge, sdk, "wrong", &variables, how).expect("it was there before");
                // Not every SDK finds the code in each of the judge's errors.
                let judged = wrong.iter().all(|error| !error.is_empty());
                assert!(judged && is_about_the_signature(&wrong[0]), "{name} {gate}: {wrong:?}");
            }
        }
    }
    for (metric, gate) in [
        ("tidegate_wait_seconds_count", "proxied"),
        ("tidegate_wait_seconds_count", "aliased"),
        ("tidegate_upstream_replays_total", "again"),
        ("tidegate_upstream_replays_total", "again_h2"),
    ] {
        assert!(gates.metric(metric, gate) > 0.0, "{metric} of {gate:?}: no call was held, or sent again");
    }
}

#[test]
fn a_rewritten_host_spoils_every_signature_and_check_says_so_before() {
    let Some(judge) = or_skip("the judge of signatures", Judge::start()) else { return };
    let gates = judge.gates();
    let url = format!("http://127.0.0.1:{}", gates.port("rewritten"));
    let variables = [("HTTP_PROXY", url.as_str()), ("http_proxy", url.as_str())];
    let Some(made) = calls(&judge, &SDKS[0], &judge.key.secret, &variables, ("http", &[])) else { return };
    assert!(made.iter().all(|error| is_about_the_signature(error)), "{made:?}");
    let mut check = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let checked =
        check.args(["check", "--config"]).arg(gates.dir.path().join("tidegate.toml")).output().expect("it runs");
    let said = String::from_utf8_lossy(&checked.stdout) + String::from_utf8_lossy(&checked.stderr);
    let warned = said.lines().filter(|line| line.contains("AWS clients sign the Host")).collect::<Vec<_>>();
    assert!(warned.len() == 1 && warned[0].contains("gates.rewritten.host"), "{said}");
}

#[test]
fn the_configuration_for_crossplane_keeps_signatures_good() {
    let Some(judge) = or_skip("the judge of signatures", Judge::start()) else { return };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/crossplane.toml");
    let (port, kubernetes) = (free_port(), free_port());
    let variables = [
        ("TIDEGATE__GATES__KUBERNETES__UPSTREAM", "http://127.0.0.1:1".to_owned()),
        ("TIDEGATE__GATES__KUBERNETES__LISTEN", format!("127.0.0.1:{kubernetes}")),
        ("TIDEGATE__GATES__KUBERNETES__TLS__WRITE_TO", judge.dir.path().display().to_string()),
        ("TIDEGATE__GATES__EC2__UPSTREAM", format!("http://127.0.0.1:{}", judge.plain)),
        ("TIDEGATE__GATES__EC2__LISTEN", format!("127.0.0.1:{port}")),
    ];
    let gates = Gates::of(&file, &variables, ("ec2", port));
    let url = format!("http://127.0.0.1:{}", gates.port("ec2"));
    let variables = [("HTTP_PROXY", url.as_str()), ("http_proxy", url.as_str())];
    // As the provider does, with the SDK for Go.
    let Some(made) = calls(&judge, &SDKS[2], &judge.key.secret, &variables, ("http", &["ec2"])) else { return };
    assert_eq!(made, [""], "{}", gates.log());
    let wrong = calls(&judge, &SDKS[2], "wrong", &variables, ("http", &["ec2"])).expect("it was there before");
    assert!(is_about_the_signature(&wrong[0]), "{wrong:?}");
}
