//! Tests of a forward proxy that others wrote: curl's own, through the egress listener. Their
//! runner has a mode for the proxies of others (`runtests.pl -P`), in which every transfer goes
//! through the proxy while the tests stay what they are: they hold what the server gets and what
//! the client gets to the byte. They run twice, by `http://` and in tunnels.
//!
//! `curl-suite.differs` lists each test that has another result than without a proxy, with the
//! reason. This test holds that table to what happens, in both directions.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::fetched::{install, run, say};
use crate::gate::Gates;
use crate::live::or_skip;
use crate::pod;
use crate::programs::{CLIENTS, OF_THE_MACHINE};

/// How transfers go through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Tunnel,
}

/// What became of the tests: those that had the result that they have without a proxy, and those
/// that had another.
#[derive(Debug, Default)]
struct Outcome {
    same: BTreeSet<u32>,
    other: BTreeSet<u32>,
}

/// The folder with curl and its tests.
fn suite() -> Result<PathBuf, String> {
    let script = Path::new(CLIENTS).join("curl-suite.sh");
    install("curl-suite", &[&script], |dir| run("curl-suite.sh", Command::new("sh").current_dir(dir).arg(&script)))
}

// === impl Way ===

impl Way {
    const ALL: [Self; 2] = [Self::Plain, Self::Tunnel];

    /// The word of the table.
    const fn word(self) -> &'static str {
        match self {
            Self::Plain => "`http://`",
            Self::Tunnel => "CONNECT",
        }
    }

    /// Runs these tests, or those that keywords pick.
    fn run(self, suite: &Path, dir: &Path, tests: &[String]) -> Outcome {
        // They write beside themselves.
        let place = tempfile::tempdir_in(dir).expect("the folder is ours");
        let place = place.path();
        pod::must("cp", [OsStr::new("-r"), suite.join("source").as_os_str(), place.as_os_str()]);
        // Some of the tests' servers say that they end a connection, and do not.
        let curl = place.join("curl");
        let script = format!("#!/bin/sh\nexec timeout {LONGEST} {} \"$@\"\n", suite.join("source/src/curl").display());
        fs::write(&curl, script).expect("the folder is ours");
        fs::set_permissions(&curl, Permissions::from_mode(0o755)).expect("the file is ours");
        let mut runner = Command::new("perl");
        runner.current_dir(place.join("source/tests")).args(["runtests.pl", "-a", "-am", "-n", "-c", "../../curl"]);
        for variable in OF_THE_MACHINE {
            runner.env_remove(variable);
        }
        runner.env("USER", "root").args(["-o", &format!("HOSTIP={}", pod::API)]);
        runner.arg("-E").arg(Path::new(CLIENTS).join("curl-suite.skip"));
        match self {
            Self::Plain => {
                runner.args(["-P", PROXY, "-L"]).arg(Path::new(CLIENTS).join("curl-suite.pl"));
                // The server waits at a connection that the gate keeps, and the runner for the server.
                runner.args(["-o", "defserverlogslocktimeout=0.3"]);
                // It compares chunks, which begin where the server's writes of 20 bytes happen to arrive.
                runner.arg("!326");
            }
            // A tunnel is as good as none: nothing is left out of the comparison.
            Self::Tunnel => {
                runner.args(["-P", &format!("{PROXY} --proxytunnel --suppress-connect-headers")]);
            }
        }
        let done = runner.args(tests).output().expect("perl runs");
        let said = String::from_utf8_lossy(&done.stdout);
        let after = |line: &str, start: &str| line.strip_prefix(start).map(str::to_owned);
        let numbers = |text: String| text.split(' ').filter_map(|word| word.parse().ok()).collect::<Vec<u32>>();
        let same =
            said.lines().filter_map(|line| after(line, "PASS: ")).flat_map(|rest| numbers(rest).first().copied());
        let other =
            said.lines().filter_map(|line| after(line, "TESTFAIL: These test cases failed: ")).flat_map(numbers);
        let (same, other) = (same.collect(), other.collect());
        assert!(said.contains("TESTDONE: "), "{self:?}: {said}\n{}", String::from_utf8_lossy(&done.stderr));
        Outcome { same, other }
    }
}

/// The tests that `curl-suite.differs` lists for a way.
fn listed(differs: &str, way: Way) -> BTreeSet<u32> {
    let (_, section) = differs.split_once(TABLE).expect("the table is there");
    let rows = section.trim_start().lines().take_while(|line| line.starts_with('|'));
    let rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let of_way = rows.filter(|row| row[1] == way.word() || row[1] == "both");
    of_way.flat_map(|row| row[2].split(", ").map(|number| number.parse().expect(number)).collect::<Vec<_>>()).collect()
}

#[test]
fn curls_own_tests_have_the_results_that_are_explained() {
    // What has to be fetched is out of reach in a pod.
    let Some(suite) = or_skip("curl's tests", suite()) else { return };
    if !pod::is_in_pod("suite::curls_own_tests_have_the_results_that_are_explained") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    pod::make(dir.path(), &[]);
    let file = dir.path().join("tidegate.toml");
    fs::write(&file, "[log]\nlevel = \"info\"\n[egress]\nlisten = \"127.0.0.1:8003\"\n").expect("the folder is ours");
    let gates = Gates::of(&file, &[], ("egress", 8003));
    let differs = fs::read_to_string(Path::new(CLIENTS).join("curl-suite.differs")).expect("it is there");

    let outcomes = thread::scope(|scope| {
        let (suite, dir) = (&suite, dir.path());
        // In halves, because most of their time they wait.
        let run = |way: Way, half: &str| {
            let tests: Vec<String> = half.split(' ').map(str::to_owned).collect();
            scope.spawn(move || way.run(suite, dir, &tests))
        };
        Way::ALL.map(|way| HALVES.map(|half| run(way, half))).map(|halves| halves.map(|half| half.join()))
    });
    for (way, halves) in Way::ALL.into_iter().zip(outcomes) {
        let halves = halves.map(|half| half.expect("no panic"));
        let all = |of: fn(&Outcome) -> &BTreeSet<u32>| halves.iter().flat_map(of).copied().collect::<BTreeSet<_>>();
        let (same, other) = (all(|half| &half.same), all(|half| &half.other));
        let listed = listed(&differs, way);
        let again: Vec<String> = other.difference(&listed).map(u32::to_string).collect();
        // A busy machine may be too slow for a test, but hardly twice.
        let again = if again.is_empty() { Outcome::default() } else { way.run(&suite, dir.path(), &again) };
        assert!(
            again.other.is_empty(),
            "not listed in curl-suite.differs, {}: {:?}\n{}",
            way.word(),
            again.other,
            gates.log()
        );
        let never: Vec<_> = listed.difference(&other).collect();
        assert!(never.is_empty(), "listed in curl-suite.differs, but as without a proxy, {}: {never:?}", way.word());
        let how = if way == Way::Plain { "plain" } else { "tunnelled" };
        let connections = gates.counted(&format!("tidegate_egress_connections_total{{how=\"{how}\"}}"));
        assert!(connections >= same.len() as f64, "{connections} connections for {} tests", same.len());
        assert!(same.len() > 200, "{}: {}", way.word(), same.len());
        say(format_args!("curl's tests, {}: {} as without a proxy, {} explained", way.word(), same.len(), other.len()));
    }
    assert!(!gates.log().contains("panic"), "{}", gates.log());
}

const HALVES: [&str; 2] = ["1 to 999 HTTP", "1000 to 9999 HTTP"];
/// The head of the table.
const TABLE: &str = "| by | tests of curl | another result than without a proxy, because |\n|---|---|---|";
/// The seconds of a transfer; a server of the tests takes half of them for an answer in pieces.
const LONGEST: u8 = 40;
const PROXY: &str = "http://127.0.0.1:8003";
