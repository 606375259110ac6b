//! Checks the egress listener, and the limits of calls to listed hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::{Finding, connections, upstream};
use crate::app::egress::judge;
use crate::clock::Clock;
use crate::credentials::Environment;
use crate::spec::{Egress, GivenCa, Settings};
use crate::status::text::count;
use crate::status::{self, Status};
use crate::tls;

/// Checks the egress listener and its clients, if there is one.
pub(super) async fn findings(
    settings: &Settings,
    status: Option<&Status>,
    around: &Environment,
    clock: Clock,
) -> Vec<Finding> {
    let Some(egress) = &settings.egress else { return Vec::new() };
    let mut findings = vec![listener(egress).await];
    findings.extend(clients(egress, around, clock).await);
    if !settings.intercepted_names().is_empty() {
        let in_use = status.and_then(|status| status.egress.as_ref()).map_or("", |egress| egress.ca.as_str());
        findings.extend(trust(&egress.ca.write_to, in_use));
        findings.extend(egress.ca.given.as_ref().map(|given| of_given(given, &settings.intercepted_names())));
    }
    findings.extend(status.and_then(|status| status.egress.as_ref()).into_iter().flat_map(seen));
    for gate in settings.gates.values() {
        findings.extend(connections::past_hosts(gate, egress, status).await);
    }
    findings
}

/// Checks that the tokens of the listener's clients can be reviewed.
async fn clients(egress: &Egress, around: &Environment, clock: Clock) -> Vec<Finding> {
    let Some(clients) = &egress.clients else { return Vec::new() };
    let mut warnings = Vec::new();
    let finding = match judge(clients, around, clock, &mut warnings) {
        Ok(judge) => upstream::reviews("egress", &judge).await,
        Err(trouble) => Some(Finding::of_trouble("clients of egress", trouble, "egress")),
    };
    warnings.into_iter().map(|warning| Finding::note("clients of egress", warning, "")).chain(finding).collect()
}

async fn listener(egress: &Egress) -> Finding {
    match &egress.listen {
        Some(listen) => Finding::of_listener("egress", listen, "egress.listen").await,
        None => Finding::fine("egress", "clients come by the names of hosts alone"),
    }
}

/// Checks the files by which clients trust the egress CA. `in_use` is the fingerprint of the CA
/// that the running process uses.
fn trust(folder: &Path, in_use: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let read = |name: &str| {
        let path = folder.join(name);
        let is_public = fs::metadata(&path).is_ok_and(|found| found.permissions().mode() & 0o004 != 0);
        fs::read(&path).ok().map(|content| (content, is_public))
    };
    let ca = read("ca.crt").and_then(|(content, _)| tls::first_certificate(&content));
    if ca.as_ref().is_some_and(|ca| !in_use.is_empty() && tls::fingerprint(ca) != in_use) {
        let says = format!("{} is not the CA of the gate that runs", folder.join("ca.crt").display());
        let remedy = "leave the folder to one gate; start that again, and then the containers that mount it";
        findings.push(Finding::wrong("egress", says, remedy));
    }
    for name in ["ca.crt", "bundle.crt", "certs/0fd89f02.0", "trust.jks"] {
        let path = folder.join(name);
        let (says, advice) = match read(name) {
            None => ("is not there", "start tidegate run, mount its folder, and check egress.ca.write_to"),
            Some((_, false)) => ("cannot be read by other users", "leave its mode to the gate (0644)"),
            Some((content, true)) if ca.as_ref().is_none_or(|ca| !tls::holds(&content, ca)) => {
                ("has another CA than ca.crt", "leave the folder to one gate")
            }
            Some(_) => continue,
        };
        findings.push(Finding::wrong("egress", format!("{} {says}", path.display()), advice));
    }
    if findings.is_empty() {
        let says = format!("the files by which clients trust its CA are in {}", folder.display());
        findings.push(Finding::fine("egress", says));
    }
    findings
}

/// Checks the CA that the operator provides in files.
fn of_given(given: &GivenCa, names: &[String]) -> Finding {
    let read = tls::GivenCa::read(&given.cert, &given.key, &given.root);
    match read.and_then(|files| files.interception(names, tls::wall())) {
        Err(unfit) => Finding::wrong("egress", unfit.to_string(), format!("correct egress.{}", unfit.key)),
        Ok(ca) => match ca.ends_soon(tls::wall()) {
            None => Finding::fine("egress", format!("the CA in {} fits its key and its root", given.cert.display())),
            Some(ends) => {
                let ends = httpdate::fmt_http_date(ends);
                let says = format!("the CA in {} or its root ends at {ends}", given.cert.display());
                Finding::wrong("egress", says, "renew it, and publish a new root before")
            }
        },
    }
}

/// Returns the environment variable in which a kind of client looks for CAs.
fn variable_of(client: &str) -> &'static str {
    let known = [
        ("boto", "AWS_CA_BUNDLE"),
        ("aiohttp", "SSL_CERT_DIR"),
        ("python", "REQUESTS_CA_BUNDLE"),
        ("go-http", "SSL_CERT_DIR"),
        ("aws-sdk-go", "SSL_CERT_DIR"),
        ("node", "NODE_EXTRA_CA_CERTS"),
        ("aws-sdk-js", "NODE_EXTRA_CA_CERTS"),
        ("grpc", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
        ("java", "-Djavax.net.ssl.trustStore in JAVA_TOOL_OPTIONS"),
        ("curl", "CURL_CA_BUNDLE"),
        ("git", "GIT_SSL_CAINFO"),
    ];
    let client = client.to_ascii_lowercase();
    known.iter().find(|(name, _)| client.contains(name)).map_or("the variable of its kind", |(_, variable)| variable)
}

/// Returns a finding about failed TLS handshakes.
fn handshake(failed: &status::EgressHandshakes) -> Finding {
    let client = if failed.client.is_empty() { "a client" } else { failed.client.as_str() };
    let times = count(failed.count, "handshake", "handshakes");
    let (says, advice) = match failed.why.as_str() {
        "untrusted" => (
            "ended when the client saw the certificate: it does not trust the egress CA",
            format!("set {} in its container (docs/egress.md, Interception), and start it again", variable_of(client)),
        ),
        "sni" => ("asked for another host than the tunnel's", "let the client open a tunnel for each host".to_owned()),
        "timeout" => ("took too long", "look at the client".to_owned()),
        _ => (
            "had no protocol in common",
            "list the host in egress.tunnel if the client needs what the gate has not".to_owned(),
        ),
    };
    Finding::note("egress", format!("{times} of {client} for {} {says}", failed.host), advice)
}

/// Reports the tunnels and refusals that the running listener has counted.
fn seen(egress: &status::EgressStatus) -> Vec<Finding> {
    let mut findings: Vec<Finding> = egress.handshakes.iter().map(handshake).collect();
    for tunnels in egress.tunnels.iter().filter(|tunnels| !tunnels.gate.is_empty()) {
        let says = format!(
            "{} to {} passed unread: the limits of gate {} do not hold for the calls in them",
            count(tunnels.total, "tunnel", "tunnels"),
            tunnels.host,
            tunnels.gate
        );
        let advice = "give the client the real name with http:// (AWS_ENDPOINT_URL_EC2 and the like) and HTTP_PROXY, or set intercept = true";
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
        let requests = count(refusals.count, "request", "requests");
        findings.push(Finding::note("egress", format!("{requests} {says}"), advice));
    }
    findings
}
