//! P28: clients as they are, in a pod, with the variables that `inject --egress-intercept` writes and
//! nothing else, before a gate that opens TLS: each is limited where a gate lists the host, and
//! reaches everything else as before.
//!
//! The test writes the table of docs/egress.md (`TIDEGATE_WRITE_DOCS=1`), or else holds the
//! document to it.

mod api;
mod callers;
mod rows;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

pub(crate) use self::api::Api;
use self::callers::Caller;
use self::rows::{ROWS, Row, Way};
use crate::fetched::say;
use crate::gate::Gates;
use crate::live::{is_required, or_skip};
use crate::pod;

/// A client that has called the hosts that gates list, and the cells of the table's row for it.
struct Reached {
    row: &'static Row,
    caller: Caller,
    cells: String,
}

/// What of a client's error is its own: the status, or the error's name.
fn shown(error: &str) -> String {
    let status = error.split(|c: char| !c.is_ascii_alphanumeric()).find(|word| ["429", "502"].contains(word));
    let error = error.split("code = ").last().unwrap_or_default(); // grpc-go's
    let name = error.split([' ', ':']).next().unwrap_or_default();
    format!("`{}`", status.unwrap_or(name))
}

/// The configuration: for each client hosts that are open to it, limited, and broken.
fn configuration(dir: &Path) -> String {
    let mut text = format!(
        "[log]\nlevel = \"info\"\n[egress]\nlisten = \"127.0.0.1:8003\"\nnames = [\"127.0.0.1:443\"]\nca.keep = {:?}\n",
        dir.join("keys")
    );
    for row in ROWS {
        let common = |kind: &str, to: &str| {
            let connect_to = if to.is_empty() { String::new() } else { format!("{:?} = {to:?}", row.host(kind)) };
            format!(
                "[gates.{kind}_{}]\nhosts = [{:?}]\nintercept = true\npreset = \"none\"\ndialect = {:?}\nconnect_to = {{ {connect_to} }}\n",
                row.id().replace('-', "_"),
                row.host(kind),
                row.dialect
            )
        };
        let api = format!("{}:443", pod::API);
        // A name that leads to the gate cannot lead the gate to the API.
        let to = if row.way == Way::Name { api.as_str() } else { "" };
        let limits = "bucket = { rate = 0.001, burst = 2 }\nqueue.max_wait = \"0s\"\nretry_after = \"never\"\n";
        let broken = common("broken", &format!("{}:1", pod::API));
        writeln!(text, "{}{}{limits}{broken}retry_after = \"never\"", common("api", to), common("limited", to))
            .expect("memory");
    }
    text
}

/// Calls the hosts that gates list.
fn reach(row: &'static Row, api: &Api, gates: &Gates, dir: &Path) -> Option<Reached> {
    let mut caller = or_skip(row.name, Caller::start(row, dir))?;
    let mut call = |name: &str, kind: &str| caller.call(name, &format!("https://{}", row.host(kind)));
    for name in row.calls {
        let report = call(name, "api");
        assert!(report.ok, "{} {name}: {report:?}\n{}", row.name, gates.log());
    }
    let came = api.came(&row.host("api"));
    assert!(came.iter().any(|call| call.length >= 5 << 20), "{}: {came:?}", row.name);
    let counted = gates.metric("tidegate_calls_total", &format!("api_{}", row.id().replace('-', "_")));
    assert_eq!(counted, came.len() as f64, "{}: a call was not counted", row.name);

    let refused = (0..4).map(|_| call(row.calls[0], "limited")).find(|report| !report.ok);
    let refused = refused.unwrap_or_else(|| panic!("{}: nothing was refused", row.name));
    let passed = api.came(&row.host("limited")).len();
    assert_eq!(passed, 2, "{}: two calls have tokens; {refused:?}", row.name);
    let failed = call(row.calls[0], "broken");
    assert!(!failed.ok, "{}: an API that cannot be reached answered", row.name);

    let cells = format!("{} | {} | {}", row.way.says(), shown(&refused.error), shown(&failed.error));
    say(format_args!("{} | {cells}: {came} calls, {counted:.0} counted", row.says, came = came.len()));
    Some(Reached { row, caller, cells })
}

/// Calls what no gate lists: another host, the cluster by name and by address, and loopback.
fn reach_the_rest(Reached { row, caller, .. }: &mut Reached, api: &Api, gates: &Gates) {
    let connections = |how: &str| gates.counted(&format!("tidegate_egress_connections_total{{how=\"{how}\"}}"));
    let all = || ["intercepted", "tunnelled", "plain", "refused"].map(connections);
    let loopback = format!("https://{}", pod::LOOPBACK);
    for (host, url, tunnelled) in [
        (rows::UNLISTED, format!("https://{}", rows::UNLISTED), row.way == Way::Proxy),
        (rows::SERVICE, format!("https://{}", rows::SERVICE), false),
        (pod::IN_CLUSTER, format!("https://{}", pod::IN_CLUSTER), false),
        ("127.0.0.1", loopback, false),
    ] {
        let (before, came) = (all(), api.came(host).len());
        let report = caller.call(row.calls[0], &url);
        assert!(report.ok && api.came(host).len() > came, "{} {url}: {report:?}\n{}", row.name, gates.log());
        let after = all();
        let expected =
            if tunnelled { [before[0], after[1].max(before[1] + 1.0), before[2], before[3]] } else { before };
        assert_eq!(after, expected, "{} {url}: intercepted, tunnelled, plain, refused", row.name);
    }
}

/// Holds the document's table to these clients, or writes it.
fn check_table(clients: &[Reached]) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/egress.md");
    let document = fs::read_to_string(file).expect("it is there");
    if std::env::var_os("TIDEGATE_WRITE_DOCS").is_some() {
        assert_eq!(clients.len(), ROWS.len(), "not all clients could be had, so the table is not written");
        let (before, rest) = document.split_once(TABLE).expect("the table is there");
        let after = rest.trim_start_matches('\n').split_once("\n\n").map_or("", |(_, after)| after);
        fs::write(file, format!("{before}{TABLE}\n{}\n{after}", rows_of(clients))).expect("it can be written");
        return;
    }
    let is_told = |client: &&Reached| {
        let rows = document.lines().filter_map(|line| line.strip_suffix(&format!(" | {} |", client.cells)));
        rows.flat_map(|row| row.trim_start_matches("| ").split("; ")).any(|name| name == client.row.says)
    };
    let missing: Vec<_> = clients.iter().filter(|client| !is_told(client)).map(|client| client.row.says).collect();
    assert!(missing.is_empty(), "docs/egress.md is stale, run this test with TIDEGATE_WRITE_DOCS=1: {missing:#?}");
}

/// The rows of the table: clients whose cells are equal share one.
fn rows_of(clients: &[Reached]) -> String {
    let mut rows: Vec<(&str, Vec<&str>)> = Vec::new();
    for client in clients {
        match rows.iter_mut().find(|(cells, _)| *cells == client.cells) {
            Some((_, names)) => names.push(client.row.says),
            None => rows.push((&client.cells, vec![client.row.says])),
        }
    }
    rows.iter().map(|(cells, names)| format!("| {} | {cells} |\n", names.join("; "))).collect()
}

#[test]
fn clients_are_limited_where_a_gate_lists_the_host_and_reach_all_else_as_before() {
    // What has to be fetched is out of reach in a pod.
    for row in ROWS {
        or_skip(row.name, row.fetch());
    }
    if !pod::is_in_pod("reached::clients_are_limited_where_a_gate_lists_the_host_and_reach_all_else_as_before") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let tls = pod::make(dir.path(), &rows::names());
    callers::prepare(dir.path());
    let api = Api::start(tls, &pod::addresses(), dir.path());
    let file = dir.path().join("tidegate.toml");
    fs::write(&file, configuration(dir.path())).expect("the folder is ours");
    let gates = Gates::of(&file, &[], ("api", 8003));

    let (rows, reached) = (Mutex::new(ROWS.iter().enumerate()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = rows.lock().expect("no panic").next();
                    let Some((index, row)) = next else { break };
                    let found = reach(row, &api, &gates, dir.path()).map(|found| (index, found));
                    reached.lock().expect("no panic").extend(found);
                }
            });
        }
    });
    let mut reached = reached.into_inner().expect("no panic");
    reached.sort_by_key(|(index, _)| *index);
    assert!(reached.len() == ROWS.len() || !is_required(), "a client is missing");
    assert_eq!(gates.metric("tidegate_egress_handshake_failures_total", ""), 0.0, "{}", gates.log());
    for (_, found) in &mut reached {
        reach_the_rest(found, &api, &gates);
    }
    check_table(&reached.into_iter().map(|(_, found)| found).collect::<Vec<_>>());
}

/// The head of the table.
const TABLE: &str = "| clients | come by | see a refusal as | see a failure as |\n|---|---|---|---|";
/// The clients that call at once: most of their time they wait to try again.
const AT_ONCE: usize = 4;
