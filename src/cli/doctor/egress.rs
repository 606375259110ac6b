//! Checks the egress listener: that it listens, that calls to listed hosts are limited, and that
//! the variables of its clients lead to it.

use tokio::net::{TcpStream, UnixStream};

use super::Finding;
use super::controller::{Controller, processes};
use crate::app::reachable::reachable;
use crate::spec::{Egress, Listen, Settings};
use crate::status::text::count;
use crate::status::{self, Status};

/// Reports on the listener, if there is one.
pub(super) async fn findings(settings: &Settings, pid: Option<u32>, status: Option<&Status>) -> Vec<Finding> {
    let Some(egress) = &settings.egress else { return Vec::new() };
    let mut findings = vec![listener(egress).await];
    findings.extend(status.and_then(|status| status.egress.as_ref()).into_iter().flat_map(seen));
    let own = [Some(std::process::id()), status.map(|status| status.pid)];
    let all = match pid {
        Some(pid) => vec![pid],
        // Outside of a pod, these are all processes of the machine.
        None if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() => Vec::new(),
        None => processes(),
    };
    let clients = all.into_iter().filter(|pid| !own.contains(&Some(*pid))).filter_map(Controller::of);
    findings.extend(
        clients.filter(|client| pid.is_some() || client.is_one()).flat_map(|client| of_client(&client, egress)),
    );
    findings
}

async fn listener(egress: &Egress) -> Finding {
    let (at, connected) = match &egress.listen {
        Listen::Tcp(address) => {
            let address = reachable(*address);
            (address.to_string(), TcpStream::connect(address).await.map(drop))
        }
        Listen::Unix(path) => (format!("unix:{}", path.display()), UnixStream::connect(path).await.map(drop)),
    };
    match connected {
        Ok(()) => Finding::fine("egress", format!("listens on {at}")),
        Err(error) => {
            let says = format!("nothing listens on {at}: {error}");
            Finding::wrong("egress", says, "start tidegate run, or correct egress.listen")
        }
    }
}

/// Reports what came to the listener.
fn seen(egress: &status::Egress) -> Vec<Finding> {
    let mut findings = Vec::new();
    for tunnels in egress.tunnels.iter().filter(|tunnels| !tunnels.gate.is_empty()) {
        let says = format!(
            "{} to {} passed unread: the limits of gate {} do not hold for the calls in them",
            count(tunnels.total, "tunnel", "tunnels"),
            tunnels.host,
            tunnels.gate
        );
        let advice = "give the client the real name with http:// (AWS_ENDPOINT_URL_EC2 and the like) and HTTP_PROXY";
        findings.push(Finding::note("egress", says, advice));
    }
    for refusals in &egress.refusals {
        let (says, advice) = match refusals.why.as_str() {
            "metadata" => {
                ("asked for a metadata service", "put 169.254.169.254 and 169.254.170.23 into the client's NO_PROXY")
            }
            "not_listed" => {
                ("were for hosts that no gate lists", "list them in egress.tunnel, or set egress.others = \"tunnel\"")
            }
            "crowded" => ("found no room", "raise egress.max_connections or egress.max_origins"),
            "authorization" => ("did not show the token", "put it into the client's HTTPS_PROXY as the password"),
            _ => continue,
        };
        findings.push(Finding::note(
            "egress",
            format!("{} {says}", count(refusals.count, "request", "requests")),
            advice,
        ));
    }
    findings
}

/// Reports on the variables of one process.
fn of_client(client: &Controller, egress: &Egress) -> Vec<Finding> {
    let about = client.title();
    let Listen::Tcp(address) = egress.listen else { return Vec::new() };
    let port = format!(":{}", address.port());
    let leads = |name: &&str| client.variable(name).is_some_and(|value| value.trim_end_matches('/').ends_with(&port));
    let proxies = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];
    let (set, missing): (Vec<_>, Vec<_>) = proxies.iter().copied().partition(leads);
    if set.is_empty() {
        let remedy = format!(
            "set HTTP_PROXY and HTTPS_PROXY in its container to http://{address}; tidegate inject --egress does"
        );
        return vec![Finding::wrong(&about, "no variable leads it to the egress listener", remedy)];
    }
    let mut findings = vec![Finding::fine(&about, format!("is led to the egress listener by {}", set.join(" and ")))];
    if missing.contains(&"HTTP_PROXY") && missing.contains(&"http_proxy") {
        let says = "has no HTTP_PROXY: only tunnels come from it, whose calls are not limited";
        findings.push(Finding::note(&about, says, "set it, and give its SDKs real names with http://"));
    }
    let direct = client.variable("NO_PROXY").or_else(|| client.variable("no_proxy")).unwrap_or_default();
    let items: Vec<&str> = direct.split(',').map(str::trim).collect();
    if items.iter().any(|item| item.contains(':') && item.contains('/')) {
        let says = "has an IPv6 network in NO_PROXY, with which no httpx client can be made";
        findings.push(Finding::wrong(&about, says, "take it out; other clients do not read it either"));
    }
    let api = client.variable("KUBERNETES_SERVICE_HOST").unwrap_or_default();
    for needed in [api, "169.254.169.254"].into_iter().filter(|needed| !needed.is_empty() && !items.contains(needed)) {
        let says = format!("{needed} is not in its NO_PROXY");
        findings.push(Finding::note(&about, says, "add it: what is reached without the proxy should not come to it"));
    }
    findings
}
