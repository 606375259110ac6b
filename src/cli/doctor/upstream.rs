//! Checks the upstream and the credentials with a real call. It goes through a gate started for the
//! check, so that the check tests the same code.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::{Finding, Verdict};
use crate::admin::client;
use crate::app::gate::{PreparedGate, prepare_gate};
use crate::app::hub;
use crate::classify::ApiKind;
use crate::clients::Clients;
use crate::clock::Clock;
use crate::credentials::Environment;
use crate::proxy::{self, Hub, Past};
use crate::spec::{ClusterPath, Credentials, Gate, Listen};
use crate::status::text::{count, duration};
use crate::status::{self, Status};

/// Checks the upstream of a gate with one call.
pub(super) async fn findings(gate: &Gate, around: &Environment, status: Option<&Status>, clock: Clock) -> Vec<Finding> {
    let about = format!("upstream of {}", gate.name);
    let mut prepared = match prepare_gate(probe(gate), around, Duration::ZERO, clock) {
        Ok(prepared) => prepared,
        Err(trouble) => return vec![Finding::of_trouble(&about, trouble, &format!("gates.{}", gate.name))],
    };
    let here = prepared.options.upstream.target.to_string();
    if let Some(running) = running(gate, status).filter(|running| running.upstream != here) {
        return elsewhere(&about, running, &here);
    }
    let mut found = Vec::new();
    if let Some(clients) = prepared.options.clients.take() {
        found.extend(reviews(&gate.name, &clients).await);
    }
    let injects = prepared.credentials == "inject";
    if let Err(error) = prepared.options.upstream.injector.ready(false).await {
        let advice = format!("fix that plugin, or the user in the kubeconfig, for gates.{}.upstream", gate.name);
        found.push(Finding::wrong(&about, format!("the gate cannot get its own credentials: {error}"), advice));
        return found;
    }
    let path = if gate.kind == ApiKind::Kubernetes { VERSION } else { "/" };
    found.extend(judged(gate, &about, injects, clock, ask(prepared, path, clock)).await);
    found
}

/// Checks the clusters of a gate with one call to each.
pub(super) async fn of_clusters(gate: &Gate, around: &Environment, clock: Clock) -> Vec<Finding> {
    let about = format!("clusters of {}", gate.name);
    let prepared = prepare_gate(probe(gate), around, Duration::ZERO, clock);
    let added = prepared.and_then(|mut prepared| hub::add(&mut prepared, &[], clock).map(|()| prepared));
    let mut prepared = match added {
        Ok(prepared) => prepared,
        Err(trouble) => return vec![Finding::of_trouble(&about, trouble, &format!("gates.{}", gate.name))],
    };
    let reviewed = prepared.options.clients.take();
    let mut clusters = prepared.hub.take().unwrap_or_default();
    let mut found = Vec::new();
    let about_one = |name: &str| format!("cluster {} of {}", name, gate.name);
    clusters.clusters.retain(|name, cluster| {
        let broken = cluster.open().err();
        let advice = "correct its description in the file or folder of clusters";
        found.extend(broken.iter().map(|why| Finding::wrong(&about_one(name), why, advice)));
        broken.is_none()
    });
    let names: Vec<_> = clusters.clusters.keys().cloned().collect();
    let stop = CancellationToken::new();
    let _ends = stop.clone().drop_guard();
    let (hub, _gates) = match Hub::start(prepared.options, clusters, Past::default(), clock, stop).await {
        Ok(started) => started,
        Err(error) => return vec![Finding::wrong(&about, error.to_string(), "look at the gate's log")],
    };
    let asked = names.iter().map(async |name| {
        let path = ClusterPath::mount(name) + VERSION;
        judged(gate, &about_one(name), gate.injects(), clock, ask_at(&hub, &path)).await
    });
    let asked: Vec<_> = join_all(asked).await;
    let is_fine = |findings: &&Vec<Finding>| findings.iter().all(|finding| finding.verdict == Verdict::Fine);
    let reached = asked.iter().filter(is_fine).count();
    found.extend(asked.into_iter().flatten().filter(|finding| finding.verdict != Verdict::Fine));
    found.push(Finding::fine(&about, count(reached, "cluster is reached", "clusters are reached")));
    if let Some(clients) = reviewed {
        found.extend(reviews(&gate.name, &clients).await);
    }
    found
}

/// Judges an upstream by its answer to a call.
async fn judged(
    gate: &Gate,
    about: &str,
    injects: bool,
    clock: Clock,
    asked: impl Future<Output = anyhow::Result<String>>,
) -> Vec<Finding> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(answer)) => judge(gate, about, &answer, injects, clock),
        Ok(Err(error)) => {
            let says = format!("the upstream cannot be reached for a check: {error:#}");
            vec![Finding::wrong(about, says, "look at the gate's log")]
        }
        Err(_) => vec![Finding::wrong(about, "does not answer", "check its address and network policies")],
    }
}

/// Returns the upstream's URL: that of the running gate, or that of the configuration if no gate
/// runs.
pub(super) fn url(gate: &Gate, around: &Environment, status: Option<&Status>) -> Option<String> {
    let by_configuration = || {
        let prepared = prepare_gate(gate.clone(), around, Duration::ZERO, Clock::start()).ok()?;
        Some(prepared.options.upstream.target.to_string())
    };
    running(gate, status).map(|running| running.upstream.clone()).or_else(by_configuration)
}

/// Returns the status of a gate in the running process.
fn running<'a>(gate: &Gate, status: Option<&'a Status>) -> Option<&'a status::GateStatus> {
    status?.gates.iter().find(|running| *running.name == *gate.name && running.host.is_empty())
}

/// Reports that the upstream was not checked, because the running gate uses another one than this
/// configuration and environment. For example, the KUBECONFIG of this shell may point at the gate
/// itself.
fn elsewhere(about: &str, running: &status::GateStatus, here: &str) -> Vec<Finding> {
    let says = format!(
        "was not tried: the gate that runs sends its calls to {}, and doctor here would to {here}",
        running.upstream
    );
    let advice = "run doctor with the configuration and the environment (KUBECONFIG) that the gate was started with";
    let down: BTreeSet<&String> = running.connections.iter().filter_map(|group| group.down.as_ref()).collect();
    let prefix = "the gate that runs has no connection to it: ";
    let wrong = down.into_iter().map(|why| Finding::of_error(about, prefix, why, NOT_REACHED));
    std::iter::once(Finding::note(about, says, advice)).chain(wrong).collect()
}

/// Checks that the gate can have clients' tokens reviewed.
pub(super) async fn reviews(of: &str, clients: &Clients) -> Option<Finding> {
    let about = format!("clients of {of}");
    Some(match clients.probe().await? {
        Ok(()) => Finding::fine(&about, "the API server judges their tokens"),
        Err(denied) => Finding::wrong(
            &about,
            denied.to_string(),
            "let the gate's service account create tokenreviews, as deploy/kustomize-service/rbac.yaml does (system:auth-delegator permits that and \
             more), and let it reach the API server",
        ),
    })
}

/// Returns the settings of a gate for the check: it listens on loopback without TLS, and adds its
/// own credentials if it has any.
fn probe(gate: &Gate) -> Gate {
    let listen = vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))];
    let mut gate = Gate { listen, ..gate.clone() };
    gate.access.tls = None;
    gate.identity.credentials = Credentials::Auto;
    gate
}

/// Sends one call through the gate and returns the raw answer.
async fn ask(prepared: PreparedGate, path: &str, clock: Clock) -> anyhow::Result<String> {
    let stop = CancellationToken::new();
    let _ends = stop.clone().drop_guard();
    ask_at(&proxy::Gate::start(prepared.options, clock, stop).await?, path).await
}

async fn ask_at(gate: &proxy::Gate, path: &str) -> anyhow::Result<String> {
    let address = gate.addresses().first().copied().ok_or_else(|| anyhow::anyhow!("the gate has no address"))?;
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: tidegate-doctor\r\nConnection: close\r\n\r\n");
    let answer = client::ask(TcpStream::connect(address).await?, &request, LONGEST).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn judge(gate: &Gate, about: &str, answer: &str, injects: bool, clock: Clock) -> Vec<Finding> {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let status: u16 = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    if let Some((_, why)) = body.split_once("nothing was sent: ") {
        let why = why.split(['"', '\n']).next().unwrap_or(why).trim_end_matches('\\');
        return vec![Finding::of_error(about, "", why, NOT_REACHED)];
    }
    let finding = match status {
        401 if injects => {
            let says = "answers 401: it does not take the gate's credentials (expired, revoked, or of another cluster)";
            let remedy = "renew the token or client certificate that the gate reads; a pod's token is renewed by kubelet, so look at its mount";
            Finding::wrong(about, says, remedy)
        }
        401 => Finding::note(about, "is reached, and wants credentials; the gate passes on the client's own", ""),
        500.. => Finding::wrong(about, format!("is reached, and answers {status}"), "look at the upstream itself"),
        _ if injects => Finding::fine(about, format!("is reached, and takes the gate's credentials ({status})")),
        _ => Finding::fine(about, format!("is reached ({status}); the gate passes on the client's credentials")),
    };
    std::iter::once(finding).chain(skew(gate, head, clock)).collect()
}

/// Returns a finding if this machine's clock and the upstream's differ by 30 seconds or more.
fn skew(gate: &Gate, head: &str, clock: Clock) -> Option<Finding> {
    let about = "clock";
    let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with("date:"))?;
    let theirs = httpdate::parse_http_date(line.split_once(':')?.1.trim()).ok()?;
    let theirs = theirs.duration_since(std::time::SystemTime::UNIX_EPOCH).ok()?;
    let ours = Duration::from_millis(clock.wall(clock.now()));
    let apart = theirs.abs_diff(ours).as_secs_f64();
    let says = format!("differs by {} from that of the upstream of {}", duration(apart), gate.name);
    Some(if apart > APART {
        Finding::wrong(about, says, "set the clock (NTP): tokens and certificates are valid by it")
    } else {
        Finding::fine(about, says)
    })
}

const VERSION: &str = "/version";
const NOT_REACHED: &str = "check the upstream's address, and that it runs";
/// The longest wait for the answer. Connecting has a shorter limit of its own.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes read of an answer.
const LONGEST: u64 = 64 * 1024;
/// The difference of the clocks to report, in seconds: kube-apiserver tolerates little before it
/// rejects tokens, and the Date header has only whole seconds.
const APART: f64 = 30.0;
