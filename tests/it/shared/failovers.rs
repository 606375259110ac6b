//! Three gates as processes that share one bucket under load, while their store fails over: the
//! primary that sentinels watch, to a replica that was held back; a node of a cluster to its
//! replica; and while a slot moves from one node to another.

use crate::command::{end, with_config};
use crate::shared::fleet::{BURST, Fleet, RATE, RIGHTS, is_long, length, wait};
use crate::store_servers::{Node, Nodes, Watched};

/// The options with which a server has a user of a gate, and no more rights than it needs.
fn user() -> Vec<&'static str> {
    let mut more = vec!["--user", "tidegate", "on", ">one", "~tidegate:*"];
    more.extend(RIGHTS.split(' '));
    more.push("+asking");
    more
}

/// Starts gates with the store at this URL.
fn fleet(folder: &std::path::Path, url: &str) -> Fleet {
    let password = folder.join("password");
    std::fs::write(&password, "one").expect("ours");
    let file = password.display();
    Fleet::start(&format!("url = \"{url}\"\nuser = \"tidegate\"\npassword_file = \"{file}\""))
}

/// Expects `doctor` to say which servers are asked.
fn doctor_says(fleet: &Fleet, expected: &str) {
    let ended = end(with_config("doctor", &fleet.configs[0].1));
    assert!(ended.out.contains(expected), "{expected}: {}", ended.out);
}

/// Expects a running gate to say that this server answers it.
fn asks_at(fleet: &Fleet, server: &Node) {
    let mut top = with_config("top", &fleet.configs[0].1);
    top.arg("--once");
    let told = end(top).out;
    assert!(told.contains("  answers in ") && told.contains(&format!("({server})")), "{server}: {told}");
}

/// The questions that servers have answered.
fn asks(nodes: &[&Node]) -> u64 {
    let told = nodes.iter().filter_map(|node| node.run::<String>(&["INFO", "commandstats"]).ok()).collect::<String>();
    let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
    told.lines().filter(|line| line.starts_with("cmdstat_eval")).filter_map(calls).sum()
}

/// What a store that has lost writes may grant once (SHARED-QUOTA, "What faults add").
const LOST: f64 = BURST + RATE * 0.2 + 3.0;

#[test]
fn p16_p17_no_call_fails_when_sentinels_fail_over_to_a_replica_that_lacks_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut watched) = Watched::start(folder.path(), &user(), "") else { return };
    watched.are_ready();
    let fleet = fleet(folder.path(), &watched.url());
    fleet.until_all_ask(|words| watched.primary.must(words));
    println!("| fault | calls | of the rate | fair (Jain) | over | asks | light, p99 |");
    let seen = fleet.watch(length(), || asks(&[&watched.primary]));
    fleet.judge("none", &seen, 0.0, 0.97);

    asks_at(&fleet, &watched.primary);
    doctor_says(&fleet, &format!("; its primary is {}, as its sentinels say", watched.primary));
    // The replica is held back for two seconds, and then becomes the primary. For the sentinels the
    // two seconds are no failure of the primary.
    watched.replica.signal("-STOP");
    watched.primary.must::<u64>(&["CLIENT", "KILL", "TYPE", "replica"]);
    wait(std::time::Duration::from_secs(2));
    watched.primary.kill();
    watched.replica.signal("-CONT");
    let seen = fleet.watch(length(), || asks(&[&watched.replica]));
    fleet.judge("primary killed", &seen, LOST, 0.6);
    watched.failed_over();
    let answers = |words: &[&str]| watched.replica.must(words);
    fleet.until_all_ask(answers);
    asks_at(&fleet, &watched.replica);
    let seen = fleet.watch(length(), || asks(&[&watched.replica]));
    fleet.judge("failed over", &seen, LOST, 0.95);
    assert!(!is_long() || seen.fair >= 0.99, "{seen:?}");
}

#[test]
fn p16_p17_no_call_fails_while_a_slot_moves_and_when_a_node_of_the_cluster_fails_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut nodes) = Nodes::start(folder.path(), &user()) else { return };
    let key = "tidegate:1:{account}";
    let fleet = fleet(folder.path(), &nodes.url());
    let at = nodes.home(key);
    fleet.until_all_ask(|words| nodes.nodes[at].must(words));
    println!("| fault | calls | of the rate | fair (Jain) | over | asks | light, p99 |");
    let all = |nodes: &Nodes| asks(&nodes.nodes.iter().chain([&nodes.replica]).collect::<Vec<_>>());
    let seen = fleet.watch(length(), || all(&nodes));
    fleet.judge("none", &seen, 0.0, 0.97);

    asks_at(&fleet, &nodes.nodes[at]);
    doctor_says(&fleet, "; the nodes in use are 127.0.0.1:");
    // To the node that has a replica, or from it and back.
    for to in if at == 0 { vec![1, 0] } else { vec![0] } {
        let from = nodes.nodes.iter().position(|node| node.run::<bool>(&["EXISTS", key]).is_ok_and(|is| is));
        let slot = nodes.begin_to_move(key, from.expect("one has it"), to);
        let seen = fleet.watch(length(), || all(&nodes));
        fleet.judge("slot moves (ASK)", &seen, 0.0, 0.95);
        nodes.has_moved(&slot, to);
        let seen = fleet.watch(length(), || all(&nodes));
        fleet.judge("slot has moved (MOVED)", &seen, 0.0, 0.95);
    }

    nodes.nodes[0].kill();
    let seen = fleet.watch(length(), || asks(&[&nodes.replica]));
    fleet.judge("node killed", &seen, LOST, 0.6);
    fleet.until_all_ask(|words| {
        let unknown = if words[0] == "TIME" { vec!["0".to_owned(), "0".to_owned()] } else { Vec::new() };
        nodes.replica.run(words).unwrap_or(unknown)
    });
    let seen = fleet.watch(length(), || asks(&[&nodes.replica]));
    fleet.judge("failed over", &seen, LOST, 0.95);
}
