//! Operators of other projects, before a server that verifies signatures: by themselves they exceed
//! what the provider publishes, and behind a gate, with nothing but the variables that `inject`
//! writes, they do not. external-dns is as its project builds it; of cert-manager it is the solver
//! for Route 53, driven as its controller drives it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use tidegate::inject::Client as Kind;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::fetched::{self, install, run, say};
use crate::gate::Gates;
use crate::intercepted::variables;
use crate::live::or_skip;
use crate::pod;
use crate::programs::{self, OF_THE_MACHINE};
use crate::relay::{Exchange, Relay};
use crate::signed::Judge;

const ROUTE_53: &str = "route53.amazonaws.com";
/// The calls in any second that Route 53 takes from an account.
const PUBLISHED: usize = 5;

/// cert-manager's solver, in a program that does nothing else.
fn cert_manager() -> Result<PathBuf, String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdks/cert-manager");
    let dir = install("cert-manager", &[&module.join("go.sum"), &module.join("main.go")], |dir| {
        let mut go = Command::new("go");
        go.current_dir(&module).env("CGO_ENABLED", "0");
        go.args(["build", "-p", "2", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o"]);
        run("go", go.arg(dir.join("certmanager")).arg("."))
    })?;
    Ok(dir.join("certmanager"))
}

/// TLS at the API's address before what listens in clear at a port.
pub(crate) fn encrypted(mut tls: ServerConfig, to: u16) {
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = std::net::TcpListener::bind((pod::API, 443)).expect("the address is ours");
    listener.set_nonblocking(true).expect("a socket");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).expect("a socket");
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut behind = TcpStream::connect(("127.0.0.1", to)).await.expect("it listens");
                    if let Ok(mut stream) = acceptor.accept(stream).await {
                        tokio::io::copy_bidirectional(&mut stream, &mut behind).await.ok(); // either side may end
                    }
                });
            }
        });
    });
}

/// Gives an operator its identity and these variables, and nothing of the machine's own.
pub(crate) fn set_up(command: &mut Command, judge: &Judge, variables: &[(String, String)]) {
    for variable in OF_THE_MACHINE {
        command.env_remove(variable);
    }
    command.env("AWS_ACCESS_KEY_ID", &judge.key.key).env("AWS_SECRET_ACCESS_KEY", &judge.key.secret);
    command.env("AWS_REGION", "eu-central-1").env("AWS_EC2_METADATA_DISABLED", "true").env("HOME", "/nonexistent");
    command.envs(variables.iter().map(|(name, value)| (name, value)));
}

/// Runs an operator once, to its end.
fn reconcile(mut command: Command, judge: &Judge, variables: &[(String, String)]) {
    set_up(&mut command, judge, variables);
    let done = command.output().expect("it was built");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && !said.contains("level=error"), "{said}");
}

/// The most calls in any second.
fn most(exchanges: &[Exchange]) -> usize {
    let arrived: Vec<Instant> = exchanges.iter().map(|exchange| exchange.arrived).collect();
    let within = |start: &Instant| {
        arrived.iter().filter(|at| *at >= start && at.duration_since(*start) < Duration::from_secs(1)).count()
    };
    arrived.iter().map(within).max().unwrap_or(0)
}

/// Starts the gate with the sidecar's own variables.
pub(crate) fn sidecar(dir: &Path) -> Gates {
    let variables = [
        ("TIDEGATE__EGRESS__LISTEN", "127.0.0.1:8003"),
        ("TIDEGATE__EGRESS__CA__KEEP", "/run/tidegate-keys"),
        ("TIDEGATE__GATES__AWS__PRESET", "aws"),
        ("TIDEGATE__GATES__AWS__INTERCEPT", "true"),
    ];
    let file = dir.join("tidegate.toml");
    fs::write(&file, "").expect("the folder is ours");
    Gates::of(&file, &variables.map(|(name, value)| (name, value.to_owned())), ("aws", 8003))
}

/// Runs an operator by itself and behind the gate; `operator` gives its program, and its arguments
/// for a zone.
fn is_held_to_what_is_published(
    test: &str,
    name: &str,
    program: Result<PathBuf, String>,
    operator: impl Fn(&Path, &str) -> Command,
) {
    // What has to be fetched is out of reach in a pod.
    let Some(program) = or_skip(name, program) else { return };
    let Some(python) = or_skip("the judge of signatures", programs::judge()) else { return };
    if !pod::is_in_pod(&format!("operators::{test}")) {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let tls = pod::make(dir.path(), &[(pod::API, ROUTE_53.to_owned())]);
    let judge = Judge::start().expect("it was fetched");
    let relay = Relay::start(judge.plain);
    encrypted(tls, relay.port);
    let mut zone = Command::new(python);
    zone.arg("-c").arg(ZONE).arg(format!("http://127.0.0.1:{}", judge.plain));
    let zone = zone.args([&judge.key.key, &judge.key.secret]).output().expect("it was fetched");
    assert!(zone.status.success(), "{}", String::from_utf8_lossy(&zone.stderr));
    let zone = String::from_utf8_lossy(&zone.stdout).into_owned();

    reconcile(operator(&program, &zone), &judge, &[]);
    let alone = relay.watch(Box::new(|_| {}));
    assert!(alone.len() > 10, "ten changes, and more: {}", alone.len());
    assert!(most(&alone) > PUBLISHED, "it exceeds what is published: {}", most(&alone));

    let gates = sidecar(dir.path());
    reconcile(operator(&program, &zone), &judge, &variables(8003, "/run/tidegate", &[Kind::Go]));
    let behind = relay.watch(Box::new(|_| {}));
    assert!(behind.len() > 10, "as many changes:\n{}", gates.log());
    assert!(behind.iter().all(|exchange| exchange.status() == 200), "every signature is good:\n{}", gates.log());
    assert!(most(&behind) <= PUBLISHED, "{} in a second:\n{}", most(&behind), gates.log());
    assert_eq!(gates.metric("tidegate_calls_total", "aws"), behind.len() as f64, "every call went through the gate");
    say(format_args!(
        "{name}: {} calls, at most {} in a second; behind the gate {} and {}",
        alone.len(),
        most(&alone),
        behind.len(),
        most(&behind)
    ));
}

#[test]
fn external_dns_exceeds_route_53_by_itself_and_not_behind_the_gate() {
    let test = "external_dns_exceeds_route_53_by_itself_and_not_behind_the_gate";
    // Ten changes, each by a call of its own, once.
    is_held_to_what_is_published(test, "external-dns", fetched::external_dns(), |program, _| {
        let mut command = Command::new(program);
        command.args(["--source=fake", "--provider=aws", "--registry=noop", "--policy=sync", "--once"]);
        command.args(["--domain-filter=example.com", "--aws-batch-change-size=1", "--aws-batch-change-interval=0s"]);
        command.args(["--metrics-address=127.0.0.1:7979"]);
        command
    });
}

#[test]
fn cert_manager_exceeds_route_53_by_itself_and_not_behind_the_gate() {
    let test = "cert_manager_exceeds_route_53_by_itself_and_not_behind_the_gate";
    // Ten challenges at once; the controller takes sixty.
    is_held_to_what_is_published(test, "cert-manager", cert_manager(), |program, zone| {
        let mut command = Command::new(program);
        command.args([zone, "10"]);
        command
    });
}

/// Makes the zone, and says its identifier.
const ZONE: &str = "
import sys, botocore.session
url, key, secret = sys.argv[1:]
client = botocore.session.get_session().create_client(
    'route53', 'eu-central-1', endpoint_url=url, aws_access_key_id=key, aws_secret_access_key=secret)
zone = client.create_hosted_zone(Name='example.com', CallerReference='1')
print(zone['HostedZone']['Id'].split('/')[-1], end='')
";
