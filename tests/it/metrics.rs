//! Every metric of the table is in the manual, and a Prometheus scrapes exactly that table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::{fs, thread};

use serde_json::Value;
use tidegate::api::{Rejection, Verb};
use tidegate::clock::Clock;
use tidegate::limit::Reason;
use tidegate::telemetry::meters::{Decision, FailureKind};
use tidegate::telemetry::table::{Metric, MetricKind, Since, TABLE};

use crate::command::{PATIENCE, start, with_config};
use crate::egress::EC2;
use crate::fetched::prometheus;
use crate::live::or_skip;
use crate::operate::{Process, api, command, responding};
use crate::ports::free_port;
use crate::support::too_busy;

const fn kind(metric: &Metric) -> &'static str {
    match metric.kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram(_) => "histogram",
    }
}

/// The text between the markers of docs/metrics.md.
fn tables() -> String {
    let mut text = String::new();
    for (title, of_kind) in [("Counters", "counter"), ("Gauges", "gauge"), ("Histograms", "histogram")] {
        let _infallible = write!(text, "\n**{title}**\n\n");
        for metric in TABLE.iter().filter(|metric| kind(metric) == of_kind) {
            let labels = metric.labels.join(",");
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            let star = if matches!(metric.since, Since::Start) { "" } else { "\\*" };
            let _infallible = writeln!(text, "- `{}{labels}`{star}: {}", metric.name, metric.help);
        }
    }
    let words = |words: Vec<&str>| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" ");
    text.push_str("\n| label | values |\n|---|---|\n");
    for (label, values) in [
        ("reason", words(Reason::ALL.map(Reason::word).to_vec())),
        ("verb", words(Verb::ALL.map(Verb::word).to_vec())),
        ("decision", words(Decision::ALL.map(Decision::word).to_vec())),
        ("by", words(Rejection::ALL.map(Rejection::word).to_vec())),
        ("kind", words(FailureKind::ALL.map(FailureKind::word).to_vec())),
        ("signal", "the words of `signals.honour`".to_owned()),
        ("account", "six digits of a salted hash of the credential or account, or nothing".to_owned()),
    ] {
        let _infallible = writeln!(text, "| `{label}` | {values} |");
    }
    text.push('\n');
    text
}

#[test]
fn the_manual_has_every_metric_as_it_is_declared() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let page = fs::read_to_string(&path).expect("docs/metrics.md");
    let (begin, end) = ("<!-- generated: begin -->\n", "<!-- generated: end -->");
    let (before, rest) = page.split_once(begin).expect("the first marker");
    let (_, after) = rest.split_once(end).expect("the second marker");
    let fresh = format!("{before}{begin}{}{end}{after}", tables());
    if std::env::var_os("TIDEGATE_WRITE_DOCS").is_some() {
        fs::write(&path, &fresh).expect("written");
    }
    let page = fs::read_to_string(&path).expect("docs/metrics.md");
    assert!(page == fresh, "docs/metrics.md is not what is declared; run this test with TIDEGATE_WRITE_DOCS=1");
}

/// The names of a page in Prometheus' text format.
fn names(page: &str) -> BTreeSet<String> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned));
    types.collect()
}

#[test]
fn before_anything_has_happened_what_the_manual_says_is_there_at_zero() {
    let (upstream, _) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), "");
    let page = crate::cli::input::get(process.admin, "/metrics");
    let there = names(&page);
    for metric in TABLE {
        let expected = match metric.since {
            Since::Start => true,
            Since::Later => metric.name.starts_with("tidegate_bucket_"), // the gate has one
        };
        assert_eq!(there.contains(metric.name), expected, "{}: {:?}\n{page}", metric.name, metric.since);
    }
    // Otherwise the very first failure would be no increase.
    for line in [
        "tidegate_config_reloads_total{result=\"invalid\"} 0",
        "tidegate_upstream_dial_failures_total{gate=\"k\",group=\"short\"} 0",
        "tidegate_upstream_rejections_total{gate=\"k\",class=\"default\",by=\"priority_and_fairness\"} 0",
        "tidegate_decisions_total{gate=\"k\",class=\"leases\",decision=\"refuse\"} 0",
        "tidegate_queue_length{gate=\"k\",class=\"default\"} 0",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
}

#[test]
fn a_queue_and_a_bucket_that_a_reload_took_away_do_not_go_on_saying_what_was() {
    let (upstream, _) = api();
    let class = "[[gates.k.classes]]\nname = \"maps\"\nmatch = { resources = [\"configmaps\"] }\nbucket = { rate = 5, burst = 5 }\n";
    let mut process = Process::start(&format!("http://127.0.0.1:{upstream}"), class);
    let page = crate::cli::input::get(process.admin, "/metrics");
    assert!(page.contains("tidegate_bucket_tokens{gate=\"k\",bucket=\"class maps\"} 5"), "{page}");
    let text = fs::read_to_string(&process.config).expect("it is there");
    fs::write(&process.config, text.replace(class, "")).expect("written");
    process.running.signal("-HUP");
    process.running.line("the new configuration is in force");
    let page = crate::cli::input::get(process.admin, "/metrics");
    assert!(!page.contains("bucket=\"class maps\""), "{page}");
    assert!(!page.contains("tidegate_queue_length{gate=\"k\",class=\"maps\"}"), "{page}");
    assert!(page.contains("tidegate_bucket_rate{gate=\"k\",bucket=\"gate\"} 50"), "{page}");
}

/// This machine's own address, not loopback. Nothing is sent to find it out.
fn own_address() -> Result<IpAddr, String> {
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(|error| error.to_string())?;
    socket.connect("203.0.113.1:9").map_err(|error| format!("this machine has no address but loopback: {error}"))?;
    socket.local_addr().map(|address| address.ip()).map_err(|error| error.to_string())
}

/// The body at a path, without the answer's head. The request is HTTP/1.0, so that the answer is
/// not chunked.
pub(crate) fn fetch(at: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

fn read(at: SocketAddr, path: &str) -> std::io::Result<String> {
    fetch(at, &format!("GET {path} HTTP/1.0\r\nHost: {at}\r\n\r\n"))
}

/// Prometheus' answer to a query of its API; nothing while it starts.
pub(crate) fn asked(prometheus: SocketAddr, path: &str) -> Value {
    let answer = read(prometheus, path).unwrap_or_default();
    serde_json::from_str::<Value>(&answer).map(|mut answer| answer["data"].take()).unwrap_or_default()
}

/// An API with every kind of failure: the path names the one that it answers with.
pub(crate) fn bad_days() -> u16 {
    let left = AtomicI64::new(9);
    let (port, _) = responding(move |request| {
        let line = request.lines().next().unwrap_or_default();
        let (status, headers) = match line {
            _ if line.contains("fair") => return too_busy(1),
            _ if line.contains("limited") => (429, ""),
            _ if line.contains("unauthorized") => (401, ""),
            _ if line.contains("broken") => (500, ""),
            _ => (200, "RateLimit-Limit: 100\r\nRateLimit-Reset: 60\r\n"),
        };
        // A quota that falls, so that it runs out.
        let left = if line.contains("/planted-path") { left.fetch_sub(1, Ordering::Relaxed) } else { 9 };
        let headers = headers.replace("100\r\n", &format!("100\r\nRateLimit-Remaining: {}\r\n", left.max(3) * 10));
        format!("HTTP/1.1 {status} Said\r\n{headers}Content-Length: 2\r\n\r\nok")
    });
    port
}

/// Everything that a gate can meet, one after the other.
pub(crate) fn load(gates: [u16; 3]) {
    let call = |port: u16, path: &str| {
        let at = SocketAddr::from(([127, 0, 0, 1], port));
        drop(fetch(at, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")));
    };
    let [main, shadow, file] = gates;
    for name in ["planted-fair", "planted-limited", "planted-unauthorized", "planted-broken", "planted-broken"] {
        call(main, &format!("/api/v1/namespaces/planted-namespace/pods/{name}"));
    }
    call(main, "/apis/coordination.k8s.io/v1/namespaces/n/leases/planted-lease");
    call(file, "/planted-path");
    drop(fetch(SocketAddr::from(([127, 0, 0, 1], main)), "GET /bad HTTP/1.1\nHost: localhost\n\n"));
    let clients: Vec<_> = (0..8)
        .flat_map(|client| [(client, main), (client, shadow)])
        .map(|(client, port)| {
            thread::spawn(move || {
                for number in 0..10 {
                    let path = format!("/api/v1/namespaces/planted-namespace/secrets/planted-{client}-{number}");
                    let at = SocketAddr::from(([127, 0, 0, 1], port));
                    let head = "HTTP/1.1\r\nHost: localhost\r\nUser-Agent: planted-agent\r\nConnection: close\r\n\r\n";
                    drop(fetch(at, &format!("GET {path} {head}")));
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("it calls");
    }
}

/// Names that Prometheus makes for every target.
const OF_PROMETHEUS: [&str; 5] = [
    "up",
    "scrape_duration_seconds",
    "scrape_samples_post_metric_relabeling",
    "scrape_samples_scraped",
    "scrape_series_added",
];

const LEADS_NOWHERE: &str = "CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: 169.254.169.254:80\r\n\r\n";

#[test]
fn a_prometheus_scrapes_what_the_manual_says_and_nothing_else() {
    let test = "a_prometheus_scrapes_what_the_manual_says_and_nothing_else";
    let Some(programs) = or_skip(test, prometheus()) else { return };
    let Some(address) = or_skip(test, own_address()) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path
    };
    let free = || TcpListener::bind((address, 0)).and_then(|it| it.local_addr()).expect("a port");
    let (admin, upstream) = (free(), bad_days());
    let gates = [free_port(), free_port(), free_port()];
    let [egress, known, hub] = [free_port(), free_port(), free_port()];
    let (token, socket) = (file("token", "s3cret\n"), folder.path().join("control.sock"));
    let calls = folder.path().join("calls.jsonl");
    let tight = "bucket = { rate = 40, burst = 2 }\nqueue = { max_wait = \"100ms\" }\n";
    let config = format!(
        "[admin]\nlisten = \"{admin}\"\nsocket = {socket:?}\n[log]\ncalls = {calls:?}\n\
         [gates.main]\nupstream = \"http://127.0.0.1:{upstream}\"\nlisten = \"127.0.0.1:{}\"\n{tight}\
         [gates.main.candidate]\nbucket = {{ rate = 20, burst = 1 }}\n\
         [gates.shadow]\nupstream = \"http://127.0.0.1:{upstream}\"\nlisten = \"127.0.0.1:{}\"\nshadow = true\n{tight}\
         [gates.file]\nkind = \"http\"\nupstream = \"http://127.0.0.1:{upstream}\"\nlisten = \"127.0.0.1:{}\"\ncredential = {{ file = {token:?} }}\nsignals.honour = [\"ietf\"]\n\
         bucket = {{ rate = 1000, burst = 1000, adapt = \"off\", shared = {{ name = \"account\", members = 1 }} }}\n\
         [stores.nowhere]\nurl = \"unix:/nowhere\"\n[otlp]\nendpoint = \"http://127.0.0.1:9\"\n\
         [egress]\nlisten = \"127.0.0.1:{egress}\"\nca.write_to = {:?}\n[gates.aws]\npreset = \"aws\"\nintercept = true\nconnect_to = {{ {EC2:?} = \"127.0.0.1:9\" }}\n\
         [gates.known]\nkind = \"http\"\nupstream = \"http://127.0.0.1:{upstream}\"\nlisten = \"127.0.0.1:{known}\"\n\
         clients = {{ tokens = \"review\", api = \"kubeconfig\" }}\n\
         [gates.hub]\nclusters = {:?}\nlisten = \"127.0.0.1:{hub}\"\n",
        gates[0],
        gates[1],
        gates[2],
        folder.path().join("trust"),
        folder.path().join("kubeconfig")
    );
    let path = file("tidegate.toml", &config);
    // An API server that cannot be asked who calls.
    let judge = "{kind: Config, current-context: a, clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}], \
                 users: [{name: a, user: {token: t}}], contexts: [{name: a, context: {cluster: a, user: a}}]}";
    let mut gate = with_config("run", &path);
    gate.env("KUBECONFIG", file("kubeconfig", judge));
    let mut gate = start(gate);
    gate.ready();
    let web = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let scrape = format!(
        "global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}\nscrape_configs:\n- job_name: tidegate\n  static_configs: [{{targets: ['{admin}']}}]\n"
    );
    let scrape = file("prometheus.yml", &scrape);
    let mut server = Command::new(programs.join("prometheus"));
    server
        .arg(format!("--config.file={}", scrape.display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg(format!("--web.listen-address={web}"))
        .args(["--web.console.libraries=/nonexistent", "--web.console.templates=/nonexistent"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let mut server = start(server);
    server.line("Server is ready to receive web requests");

    load(gates);
    let stranger = "GET / HTTP/1.1\r\nHost: localhost\r\nTidegate-Client-Token: t\r\nConnection: close\r\n\r\n";
    drop(fetch(SocketAddr::from(([127, 0, 0, 1], known)), stranger));
    drop(fetch(SocketAddr::from(([127, 0, 0, 1], hub)), &stranger.replace("GET /", "GET /c/a/api")));
    for request in
        [format!("GET http://{EC2}/ HTTP/1.1\r\nHost: {EC2}\r\nConnection: close\r\n\r\n"), LEADS_NOWHERE.to_owned()]
    {
        drop(fetch(SocketAddr::from(([127, 0, 0, 1], egress)), &request)); // that it was counted matters
    }
    fs::write(&path, config.replace("rate = 40", "rate = 39")).expect("written");
    gate.signal("-HUP");
    gate.line("the new configuration is in force");
    fs::write(&path, config.replace("rate = 40", "rate = \"fast\"")).expect("written");
    gate.signal("-HUP");
    gate.line("stays in force");
    fs::write(&path, &config).expect("written");
    assert_eq!(command(&path, &["bypass", "on", "--for", "1h"]).code, Some(0));
    load(gates);
    assert_eq!(command(&path, &["forget", "--all"]).code, Some(0));

    let page = read(admin, "/metrics").expect("it is there");
    let declared: BTreeMap<&str, &Metric> = TABLE.iter().map(|metric| (metric.name, *metric)).collect();
    let missing: Vec<_> = declared.keys().filter(|name| !names(&page).contains(**name)).collect();
    assert!(missing.is_empty(), "the load does not bring these about: {missing:?}\n{page}");
    let expected: BTreeSet<String> = TABLE.iter().flat_map(|metric| series(metric)).collect();
    let scraped = until(|| {
        let all = asked(web, "/api/v1/label/__name__/values?match[]=%7Bjob%3D%22tidegate%22%7D");
        let all = all.as_array()?.iter().filter_map(|name| Some(name.as_str()?.to_owned()));
        let all: BTreeSet<String> = all.filter(|name| !OF_PROMETHEUS.contains(&name.as_str())).collect();
        expected.is_subset(&all).then_some(all)
    });
    assert_eq!(scraped, expected, "no other is there");
    told_as_declared(&asked(web, "/api/v1/targets/metadata"), &declared);
    let all = asked(web, "/api/v1/series?match[]=%7Bjob%3D%22tidegate%22%7D");
    let all = all.as_array().expect("series");
    for one in all {
        labels_are_bounded(one, &declared);
    }
    println!("{} metrics, {} series of three gates under load", TABLE.len(), all.len());
    drop(server);

    let clean = |out: std::process::Output| {
        let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{said}");
        said
    };
    let scraped = file("page", &page);
    let mut check = Command::new(programs.join("promtool"));
    check.args(["check", "metrics"]).stdin(fs::File::open(scraped).expect("it is there"));
    let said = clean(check.output().expect("promtool runs"));
    assert!(said.trim().is_empty(), "promtool check metrics has something to say:\n{said}");
}

#[test]
fn every_alert_is_rehearsed_and_is_silent_where_all_is_well() {
    let Some(programs) = or_skip("every_alert_is_rehearsed_and_is_silent_where_all_is_well", prometheus()) else {
        return;
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus");
    for arguments in [["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]] {
        let out = Command::new(programs.join("promtool")).current_dir(&folder).args(arguments).output();
        let out = out.expect("promtool runs");
        let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success() && said.contains("SUCCESS"), "{arguments:?}\n{said}");
    }
    let text = |name: &str| fs::read_to_string(folder.join(name)).expect("it is there");
    let (rules, rehearsals) = (text("rules.yaml"), text("rules_test.yaml"));
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 8, "{alerts:?}");
    for alert in alerts {
        assert!(rehearsals.contains(&format!("alertname: {alert}}}")), "{alert} is not shown to be silent");
        assert!(rehearsals.contains(&format!("alertname: {alert}\n")), "{alert} is not rehearsed");
    }
}

/// The series that Prometheus scrapes for a metric.
fn series(metric: &Metric) -> Vec<String> {
    match metric.kind {
        MetricKind::Counter | MetricKind::Gauge => vec![metric.name.to_owned()],
        MetricKind::Histogram(_) => ["bucket", "sum", "count"].map(|part| format!("{}_{part}", metric.name)).to_vec(),
    }
}

fn told_as_declared(metadata: &Value, declared: &BTreeMap<&str, &Metric>) {
    let told = metadata.as_array().expect("metadata");
    assert_eq!(told.len(), declared.len(), "{metadata}");
    for one in told {
        let metric = declared[one["metric"].as_str().expect("a name")];
        assert_eq!((one["type"].as_str(), one["help"].as_str()), (Some(kind(metric)), Some(metric.help)));
    }
}

/// Only declared labels, and never the name of an object or path that was called.
fn labels_are_bounded(series: &Value, declared: &BTreeMap<&str, &Metric>) {
    let labels = series.as_object().expect("labels");
    let name = labels["__name__"].as_str().expect("a name");
    let base = |end| name.strip_suffix(end).and_then(|base| declared.get(base));
    let metric = declared.get(name).or_else(|| ["_bucket", "_sum", "_count"].into_iter().find_map(base));
    let Some(metric) = metric else { return };
    for (label, value) in
        labels.iter().filter(|(label, _)| !["__name__", "job", "instance", "le"].contains(&label.as_str()))
    {
        assert!(metric.labels.contains(&label.as_str()), "{series}");
        assert!(!value.as_str().is_some_and(|value| value.contains("planted")), "a name is in {series}");
    }
}

/// Tries until `look` finds something.
pub(crate) fn until<T>(look: impl Fn() -> Option<T>) -> T {
    let clock = Clock::start();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(clock.now().since_start() < PATIENCE, "it did not come to that");
        thread::yield_now();
    }
}
