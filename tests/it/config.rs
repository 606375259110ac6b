//! The configuration's messages about bad input: one line for each problem, with its place and what
//! was expected, and all problems at once.

pub(crate) mod slips;

use std::fs;
use std::path::PathBuf;

use tidegate::api::{Scope, Signal};
use tidegate::config::{self, Configuration, Input, Problem};
use tidegate::spec::{Endpoint, Listen, Source, StoreAddress};

pub(crate) const SMALLEST: &str = "[gates.kubernetes]\nupstream = \"in_cluster\"\n";

pub(crate) fn load(text: &str, env: &[(&str, &str)]) -> Result<Configuration, Vec<String>> {
    let env: Vec<(String, String)> =
        env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let loaded = config::load_text("f.toml".to_owned(), text.to_owned(), &env);
    loaded.map_err(|problems| problems.iter().map(Problem::to_string).collect())
}

/// Expects exactly these problems, in this order.
pub(crate) fn expect(text: &str, env: &[(&str, &str)], expected: &[&str]) {
    let problems = load(text, env).err().unwrap_or_default();
    assert_eq!(problems, expected, "\n{text}\n{env:?}\n{}\n", problems.join("\n"));
}

/// The smallest file with `more` in its gate, from line 3 on.
pub(crate) fn in_gate(more: &str, expected: &[&str]) {
    expect(&format!("{SMALLEST}{more}"), &[], expected);
}

#[test]
fn the_smallest_file_is_complete() {
    let loaded = load(SMALLEST, &[]).unwrap();
    let gate = &loaded.settings.gates["kubernetes"];
    assert_eq!(gate.listen.len(), 1);
    assert_eq!(gate.policy.bucket.map(|bucket| (bucket.rate, bucket.burst.get())), Some((500.0, 1000)));
    assert!(gate.injects(), "a plain loopback listener before the cluster");
    assert!(loaded.warnings.is_empty());
}

#[test]
fn unknown_keys_are_errors_with_a_suggestion() {
    in_gate(
        "bucket.rat = 5\nbucket.burts = 6\nlisten_on = 1\n[logs]\n",
        &[
            "f.toml:3:8: gates.kubernetes.bucket.rat: is not a valid key, expected one of rate, burst, per, start, adapt, counts, shared (did you mean \"rate\"?)",
            "f.toml:4:8: gates.kubernetes.bucket.burts: is not a valid key, expected one of rate, burst, per, start, adapt, counts, shared (did you mean \"burst\"?)",
            "f.toml:5:1: gates.kubernetes.listen_on: is not a valid key",
            "f.toml:6:2: logs: is not a valid key, expected one of admin, log, shutdown, process, otlp, state, stores, egress, gates (did you mean \"log\"?)",
        ],
    );
    in_gate(
        "[[gates.kubernetes.classes]]\nname = \"a\"\nmatch = { verb = [\"get\"] }\n",
        &[
            "f.toml:5:11: gates.kubernetes.classes[0].match.verb: is not a valid key, expected one of verbs, groups, resources, namespaces, names, \
         subresources, methods, paths, user_agents, services, regions, accounts, actions, headers, unfiltered, query (did you mean \"verbs\"?)",
        ],
    );
}

#[test]
fn wrong_types_are_named() {
    in_gate(
        "bucket = { rate = \"fast\", burst = 2.5 }\nqueue = { max_wait = 8, max_waiting_bytes = 5 }\nlisten = 8001\nshadow = \"no\"\nallowed_hosts = \"a\"",
        &[
            "f.toml:3:19: gates.kubernetes.bucket.rate: is \"fast\", expected a number per second, or text such as \"5000/h\" or \"900/min\" (units: s, min, h, d)",
            "f.toml:3:35: gates.kubernetes.bucket.burst: is 2.5, expected a whole number from 0 to 4294967295",
            "f.toml:4:22: gates.kubernetes.queue.max_wait: is 8, expected a duration with a unit, such as \"500ms\", \"8s\" or \"1m30s\"",
            "f.toml:4:45: gates.kubernetes.queue.max_waiting_bytes: is 5, expected a size such as \"16MiB\"",
            "f.toml:5:10: gates.kubernetes.listen: is 8001, expected text in quotes, or a list of such",
            "f.toml:6:10: gates.kubernetes.shadow: is \"no\", expected true or false",
            "f.toml:7:17: gates.kubernetes.allowed_hosts: is \"a\", expected a list of texts, which only the file can set",
        ],
    );
    expect(
        "gates = 5\nadmin = []\n",
        &[],
        &[
            "f.toml:1:9: gates: is 5, expected tables with names, such as [gates.NAME]",
            "f.toml:2:9: admin: is a list, expected a table",
        ],
    );
}

#[test]
fn a_date_is_no_text() {
    expect(
        "[log]\ncalls = 1979-05-27\n[gates.kubernetes]\nupstream = \"in_cluster\"\nbucket = { rate = 1979-05-27 }\n",
        &[],
        &[
            "f.toml:2:9: log.calls: is a date, expected text in quotes",
            "f.toml:5:19: gates.kubernetes.bucket.rate: is a date, expected a number per second, or text such as \"5000/h\" or \"900/min\" (units: s, min, h, d)",
        ],
    );
}

#[test]
fn threads_are_counted_and_only_so_many_are_of_use() {
    for (value, wrong) in [("0", "is 0, expected at least 1"), ("65", "is 65, expected at most 64")] {
        let text = format!("[process]\nthreads = {value}\n{SMALLEST}");
        expect(&text, &[], &[&format!("f.toml:2:11: process.threads: {wrong}")]);
    }
    assert_eq!(load(SMALLEST, &[]).expect("right").settings.threads.get(), 1);
    let two = load(SMALLEST, &[("TIDEGATE__PROCESS__THREADS", "2")]).expect("right");
    assert_eq!(two.settings.threads.get(), 2);
}

#[test]
fn a_host_with_a_star_would_match_nothing() {
    let found = load(
        "[gates.g]\nkind = \"http\"\nupstream = \"https://x\"\nallowed_hosts = [\"*.amazonaws.com\"]\nhost = \"*.x\"\n",
        &[],
    );
    let problems = found.unwrap_err();
    assert!(problems.len() == 2, "{problems:?}");
    assert!(
        problems.iter().any(|problem| problem.contains("allowed_hosts") && problem.contains("expected a host name"))
    );
}

#[test]
fn buckets_must_make_sense() {
    for (more, expected) in [
        ("bucket.burst = 0", "f.toml:3:16: gates.kubernetes.bucket.burst: is 0, expected at least 1"),
        (
            "bucket.rate = 0",
            "f.toml:3:15: gates.kubernetes.bucket.rate: is 0.0, expected calls per second above 0 and at most 1000000000",
        ),
        (
            "bucket.rate = -1",
            "f.toml:3:15: gates.kubernetes.bucket.rate: is -1.0, expected calls per second above 0 and at most 1000000000",
        ),
        (
            "bucket.rate = nan",
            "f.toml:3:15: gates.kubernetes.bucket.rate: is NaN, expected calls per second above 0 and at most 1000000000",
        ),
        (
            "bucket.rate = inf",
            "f.toml:3:15: gates.kubernetes.bucket.rate: is inf, expected calls per second above 0 and at most 1000000000",
        ),
        (
            "bucket = { rate = 1e-9, burst = 100 }",
            "f.toml:3:19: gates.kubernetes.bucket.rate: is 0.000000001, too slow to ever fill a burst of 100; expected a higher rate",
        ),
        (
            "preset = \"none\"\nbucket.burst = 5",
            "f.toml:4:1: gates.kubernetes.bucket.rate: is missing, and the preset gives none: the bucket needs a rate",
        ),
        (
            "preset = \"client_go\"\nretry_bucket.rate = 5",
            "f.toml:4:1: gates.kubernetes.retry_bucket.burst: is missing, and the preset gives none: the bucket needs a burst",
        ),
        ("bucket = \"on\"", "f.toml:3:10: gates.kubernetes.bucket: is \"on\", expected a table, or \"off\""),
        (
            "bucket.per = \"flows\"",
            "f.toml:3:14: gates.kubernetes.bucket.per: is \"flows\", expected \"gate\", \"flow\", \"credential\", \"account\", \"action\" or \"client\" (did you mean \"flow\"?)",
        ),
        ("in_flight.max = 0", "f.toml:3:17: gates.kubernetes.in_flight.max: is 0, expected at least 1"),
        (
            "in_flight.per = \"gate\"",
            "f.toml:3:1: gates.kubernetes.in_flight.max: is missing, and the preset gives none: expected how many calls may be in flight",
        ),
    ] {
        in_gate(more, &[expected]);
    }
    in_gate("bucket = \"off\"\nretry_bucket = \"off\"\nin_flight = \"off\"", &[]);
    in_gate("preset = \"client_go\"\nbucket.rate = 2", &[]);
}

#[test]
fn the_pace_of_an_object_must_make_sense() {
    let range = "expected calls per second above 0 and at most 1000000000";
    let rate = "a number per second, or text such as \"5000/h\" or \"900/min\" (units: s, min, h, d)";
    let at = "gates.kubernetes.per_key";
    for (more, expected) in [
        ("per_key.writes = 0", format!("f.toml:3:18: {at}.writes: is 0.0, {range}")),
        ("per_key.writes = \"0/h\"", format!("f.toml:3:18: {at}.writes: is \"0/h\", {range}")),
        ("per_key.reads = -1", format!("f.toml:3:17: {at}.reads: is -1.0, {range}")),
        (
            "per_key.writes = 1e-300",
            format!("f.toml:3:18: {at}.writes: is 1e-300, too slow to ever fill a burst of 10; expected a higher rate"),
        ),
        (
            "per_key = { reads = 1e-6, burst = 1000000 }",
            format!(
                "f.toml:3:21: {at}.reads: is 1e-6, too slow to ever fill a burst of 1000000; expected a higher rate"
            ),
        ),
        ("per_key.writes = \"often\"", format!("f.toml:3:18: {at}.writes: is \"often\", expected \"off\", {rate}")),
        ("per_key.burst = 0", format!("f.toml:3:17: {at}.burst: is 0, expected at least 1")),
        ("per_key = 0", format!("f.toml:3:11: {at}: is 0, expected a table, or \"off\"")),
        (
            "per_key.writes = \"off\"",
            format!("f.toml:3:1: {at}: has no rate; set one for writes or reads, or per_key = \"off\""),
        ),
        (
            "classes = [{ name = \"default\", per_key = { writes = 0 } }]",
            format!("f.toml:3:53: gates.kubernetes.classes[0].per_key.writes: is 0.0, {range}"),
        ),
        (
            "classes = [{ name = \"default\", per_key = { burst = 0 } }]",
            "f.toml:3:52: gates.kubernetes.classes[0].per_key.burst: is 0, expected at least 1".to_owned(),
        ),
        (
            "classes = [{ name = \"leases\", per_key = { writes = 1 } }]",
            "f.toml:3:31: gates.kubernetes.classes[0].per_key: has no effect: calls of an exempt class are never held"
                .to_owned(),
        ),
    ] {
        in_gate(more, &[&expected]);
    }
    in_gate(
        "per_key = \"off\"\nclasses = [{ name = \"default\", per_key = { writes = \"30/min\", enforce = true } }]",
        &[],
    );
}

#[test]
fn events_need_an_identity_of_the_gates_own() {
    in_gate(
        "credentials = \"pass_through\"\nevents = true",
        &[
            "f.toml:4:10: gates.kubernetes.events: is true, but with credentials = \"pass_through\" the gate has no credentials to write \
           Events with; expected \"inject\"",
        ],
    );
    in_gate("events = true", &[]);
}

#[test]
fn clients_must_have_a_way_to_show_who_they_are() {
    let clients = |more: &str, expected: &[&str]| in_gate(&format!("tls = {{}}\nclients = {{ {more} }}"), expected);
    clients("tokens = \"review\"", &[]);
    clients(
        "",
        &[
            "f.toml:4:1: gates.kubernetes.clients: authenticates no client, expected tokens = \"review\", or certificates = true with \
           tls.client_ca",
        ],
    );
    clients(
        "tokens = \"off\"",
        &[
            "f.toml:4:22: gates.kubernetes.clients.tokens: is \"off\", and certificates is false: no client is authenticated; \
           expected tokens = \"review\", or certificates = true",
        ],
    );
    clients(
        "certificates = true",
        &[
            "f.toml:4:28: gates.kubernetes.clients.certificates: is true, but the listener asks for no certificate; expected [tls] with \
           client_ca, the CA that signs the clients' certificates",
        ],
    );
    clients(
        "tokens = \"review\", cache = \"0s\"",
        &[
            "f.toml:4:40: gates.kubernetes.clients.cache: is 0ns, expected a time from 1s to 5m, for which a revoked token is still accepted",
        ],
    );
    clients(
        "tokens = \"review\", api = \"https://api:6443\"",
        &[
            "f.toml:4:38: gates.kubernetes.clients.api: is a URL, but TokenReview needs an API server and an identity of the gate; expected \
           \"in_cluster\", \"kubeconfig\" or \"kubeconfig:CONTEXT\"",
        ],
    );
    clients(
        "tokens = \"review\", allowed = []",
        &[
            "f.toml:4:42: gates.kubernetes.clients.allowed: is an empty list, which lets no client in; expected names such as \
           \"system:serviceaccount:NAMESPACE:*\"",
        ],
    );
}

#[test]
fn tokens_of_clients_do_not_cross_the_network_in_the_clear_and_lend_no_identity_to_all() {
    in_gate(
        "listen = \"0.0.0.0:8443\"\nclients.tokens = \"review\"",
        &[
            "f.toml:4:18: gates.kubernetes.clients.tokens: is \"review\", but without [tls] the clients' tokens would cross the network in \
           the clear; expected [tls]",
        ],
    );
    in_gate(
        "listen = \"0.0.0.0:8443\"\ntls = {}\ncredentials = \"inject\"\nclients.tokens = \"review\"",
        &[
            "f.toml:6:1: gates.kubernetes.clients.allowed: is missing, but with credentials = \"inject\" every authenticated client, perhaps \
           every pod of the cluster, would act with the gate's identity; expected the names of those who may, such as \
           [\"system:serviceaccount:NAMESPACE:*\"]",
        ],
    );
}

#[test]
fn a_ca_is_given_whole_and_is_not_kept() {
    let ca = |more: &str, expected: &[&str]| expect(&format!("[egress.ca]\n{more}\n"), &[], expected);
    ca("cert = \"/c\"\nkey = \"/k\"\nroot = \"/r\"", &[]);
    ca(
        "cert = \"/c\"\nroot = \"/r\"",
        &["f.toml:1:9: egress.ca.key: is missing, expected a PEM file: a CA is given as cert, key and root together"],
    );
    ca(
        "cert = \"/c\"\nkey = \"/k\"\nroot = \"/r\"\nkeep = \"/keys\"",
        &[
            "f.toml:5:1: egress.ca.keep: has no effect: a CA in files (cert, key, root) needs no other place to outlive the process",
        ],
    );
}

#[test]
fn clients_of_the_egress_listener_are_asked_over_tls_and_in_one_way() {
    let egress = |more: &str, expected: &[&str]| expect(&format!("[egress]\n{more}\n"), &[], expected);
    egress("listen = \"0.0.0.0:8003\"\ntls = { cert = \"/c\", key = \"/k\" }\nclients = { tokens = \"review\" }", &[]);
    egress(
        "listen = \"0.0.0.0:8003\"\nclients = { tokens = \"review\" }",
        &[
            "f.toml:3:22: egress.clients.tokens: is \"review\", but without [egress.tls] the clients' tokens would cross the network in \
           the clear; expected [egress.tls]",
        ],
    );
    egress("tls = { cert = \"/c\" }", &["f.toml:2:1: egress.tls.key: is missing, expected a PEM file"]);
    egress(
        "clients = { tokens = \"review\" }\ntoken_file = \"/t\"",
        &["f.toml:3:1: egress.token_file: has no effect: [egress.clients] asks for each client's own token"],
    );
    egress(
        "clients = { tokens = \"review\" }\nnames = [\"127.0.0.1:443\"]",
        &[
            "f.toml:3:9: egress.names: serves clients that cannot authenticate, but [egress.clients] requires it; expected only one of the two",
        ],
    );
}

#[test]
fn limits_for_each_client_need_clients_that_are_known() {
    const MISSING: &str = "gates.kubernetes.clients: is missing, but limits have per = \"client\", and without it the gate does not \
                           authenticate its clients; expected [clients] with tokens = \"review\" or certificates = true, or \"credential\" in place of \"client\"";
    for more in [
        "bucket = { rate = 1, burst = 1, per = \"client\" }",
        "queue.fair_by = \"client\"",
        "in_flight = { max = 1, per = \"client\" }",
    ] {
        in_gate(more, &[&format!("f.toml:1:8: {MISSING}")]);
        in_gate(&format!("{more}\ntls = {{}}\nclients.tokens = \"review\""), &[]);
    }
    let behind =
        |egress: &str| format!("[egress]\n{egress}\n[gates.a]\nhosts = [\"a.example\"]\nqueue.fair_by = \"client\"\n");
    expect(
        &behind(""),
        &[],
        &[
            "f.toml:4:9: gates.a.hosts: have limits with per = \"client\", but the egress listener does not authenticate its clients; expected \
           [egress.clients] with tokens = \"review\" or certificates = true, or \"credential\" in place of \"client\"",
        ],
    );
    expect(&behind("clients = { tokens = \"review\" }"), &[], &[]);
}

#[test]
fn a_backoff_must_make_sense() {
    for (more, expected) in [
        ("backoff = { base = \"2m\" }", "f.toml:3:20: gates.kubernetes.backoff.base: max 60s is less than base 120s"),
        ("backoff.max = \"1ms\"", "f.toml:3:15: gates.kubernetes.backoff.max: max 1ms is less than base 1s"),
        (
            "backoff.base = \"0s\"",
            "f.toml:3:16: gates.kubernetes.backoff.base: is 0, expected a delay; for no delay: strategy = \"off\"",
        ),
        (
            "backoff.jitter = 1.5",
            "f.toml:3:18: gates.kubernetes.backoff.jitter: is 1.5, expected a fraction from 0 to 1",
        ),
        (
            "backoff.fast = \"1s\"",
            "f.toml:3:9: gates.kubernetes.backoff.fast: has no effect: the strategy is \"exponential\"",
        ),
        (
            "backoff.forget_after = \"5s\"",
            "f.toml:3:24: gates.kubernetes.backoff.forget_after: is 5s, expected at least the longest delay, 60s",
        ),
        (
            "backoff.max_keys = 0",
            "f.toml:3:20: gates.kubernetes.backoff.max_keys: is 0, expected at least 1; to remember no failures: strategy = \"off\"",
        ),
        (
            "backoff.failures = [\"5xx\", \"transport\"]",
            "f.toml:3:21: gates.kubernetes.backoff.failures[0]: is \"5xx\", expected a status from \"400\" to \"599\", \"transport\" or \"left\"",
        ),
        (
            "backoff.failures = [503]",
            "f.toml:3:21: gates.kubernetes.backoff.failures[0]: is 503, expected text in quotes",
        ),
        (
            "preset = \"none\"\nbackoff.base = \"1s\"",
            "f.toml:4:9: gates.kubernetes.backoff.base: has no effect: the strategy is \"off\"",
        ),
        (
            "backoff.strategy = \"exponentail\"",
            "f.toml:3:20: gates.kubernetes.backoff.strategy: is \"exponentail\", expected \"exponential\", \"fast_slow\" or \"off\" (did you mean \"exponential\"?)",
        ),
        (
            "backoff = { strategy = \"fast_slow\", fast = \"5s\", slow = \"1s\", fast_attempts = 1 }",
            "f.toml:3:57: gates.kubernetes.backoff.slow: slow 1s is less than fast 5s",
        ),
        (
            "backoff = { strategy = \"fast_slow\", fast = \"5s\", slow = \"10s\" }",
            "f.toml:3:1: gates.kubernetes.backoff.fast_attempts: is missing, and the preset gives none: strategy \"fast_slow\" needs it",
        ),
    ] {
        in_gate(more, &[expected]);
    }
}

#[test]
fn classes_must_fit_together() {
    let class = |body: &str| format!("[[gates.kubernetes.classes]]\n{body}\n");
    for (more, expected) in [
        (
            class("lane = \"low\"\nmatch = {}"),
            "f.toml:3:1: gates.kubernetes.classes[0].name: is missing, expected the class's name",
        ),
        (
            class("name = \"a\""),
            "f.toml:3:1: gates.kubernetes.classes[0].match: is missing, so no call belongs to the class; expected a table such as { verbs = [\"list\"] }, or another class `within` this one",
        ),
        (
            class("name = \"My-Class\"\nmatch = {}"),
            "f.toml:4:8: gates.kubernetes.classes[0].name: is \"My-Class\", expected snake_case: lower-case letters, digits and single underscores",
        ),
        (
            class("name = \"a\"\nmatch = {}\nwithin = \"defualt\""),
            "f.toml:6:10: gates.kubernetes.classes[0].within: is \"defualt\", which is not a class of this gate (did you mean \"default\"?)",
        ),
        (
            class("name = \"a\"\nmatch = {}\nwithin = \"default\""),
            "f.toml:6:10: gates.kubernetes.classes[0].within: is \"default\", which has no bucket: give it one",
        ),
        (
            class("name = \"a\"\nmatch = {}\nlane = \"exempt\"\nbucket = { rate = 1, burst = 1 }"),
            "f.toml:7:1: gates.kubernetes.classes[0].bucket: has no effect: calls of an exempt class wait for nothing and take no tokens",
        ),
        (
            class("name = \"a\"\nmatch = {}\nlane = \"exempt\"\nshadow = true"),
            "f.toml:7:1: gates.kubernetes.classes[0].shadow: has no effect: calls of an exempt class never wait; expected another lane",
        ),
        (
            class("name = \"leases\"\nshadow = true"),
            "f.toml:5:1: gates.kubernetes.classes[0].shadow: has no effect: calls of an exempt class never wait; expected another lane",
        ),
        (
            class("name = \"a\"\nmatch = {}\nshadow = \"yes\""),
            "f.toml:6:10: gates.kubernetes.classes[0].shadow: is \"yes\", expected true or false",
        ),
        (
            "retry_bucket.counts = \"calls\"".to_owned(),
            "f.toml:3:14: gates.kubernetes.retry_bucket.counts: has no effect: a retry bucket counts calls, not tokens",
        ),
        (
            class("name = \"a\"\nmatch = {}\ncost = 0"),
            "f.toml:6:8: gates.kubernetes.classes[0].cost: is 0, expected 1 to 65535 tokens; for calls that cost nothing: lane = \"exempt\"",
        ),
        (
            class("name = \"a\"\nmatch = {}\ncost = \"lists\""),
            "f.toml:6:8: gates.kubernetes.classes[0].cost: is \"lists\", expected \"list\", \"graphql\" or \"instances\" (did you mean \"list\"?)",
        ),
        (
            class("name = \"a\"\nmatch = {}\ncost = \"graphql\""),
            "f.toml:6:8: gates.kubernetes.classes[0].cost: is \"graphql\", which only works on a gate with dialect = \"github\"",
        ),
        (
            class("name = \"a\"\nmatch = {}\ncost = 1001"),
            "f.toml:6:8: gates.kubernetes.classes[0].cost: lets a call cost 1001 tokens, more than the burst of the gate's bucket, which is 1000, \
             so the call would never be sent; expected at most 1000, a larger burst, or counts = \"calls\" there",
        ),
        (
            class("name = \"a\"\nmatch = {}\ncost = 5\nmost_cost = 9"),
            "f.toml:7:1: gates.kubernetes.classes[0].most_cost: has no effect: cost is a number, not read from the call",
        ),
        (
            class("name = \"a\"\nmatch = {}\nlane = \"exempt\"\ncost = 5"),
            "f.toml:7:1: gates.kubernetes.classes[0].cost: has no effect: calls of an exempt class take no tokens",
        ),
        (
            class("name = \"a\"\nmatch = {}\nown_bucket_only = true"),
            "f.toml:6:1: gates.kubernetes.classes[0].own_bucket_only: is true, but the class has no bucket, so nothing would limit it; expected a bucket, or lane = \"exempt\" for no limit",
        ),
        (
            class("name = \"a\"\nmatch = {}\nbucket = { rate = 1 }"),
            "f.toml:6:1: gates.kubernetes.classes[0].bucket.burst: is missing, and the preset gives none: the bucket needs a burst",
        ),
        (
            class("name = \"default\"\nmatch = { verbs = [\"get\"] }"),
            "f.toml:5:1: gates.kubernetes.classes[0].match: has no effect: the class \"default\" has all calls that no other class matches",
        ),
        (
            class("name = \"a\"\nmatch = { verbs = [\"gett\"] }"),
            "f.toml:5:20: gates.kubernetes.classes[0].match.verbs[0]: is \"gett\", expected \"create\", \"delete\", \"deletecollection\", \"get\", \"list\", \
             \"patch\", \"proxy\", \"update\" or \"watch\" (did you mean \"get\"?)",
        ),
        (
            class("name = \"a\"\nmatch = { methods = [\"post\"] }"),
            "f.toml:5:22: gates.kubernetes.classes[0].match.methods[0]: is \"post\", expected a method such as \"POST\"",
        ),
        (
            class("name = \"a\"\nmatch = { resources = [\"pods/status\"] }"),
            "f.toml:5:24: gates.kubernetes.classes[0].match.resources[0]: is \"pods/status\", expected a resource without \"/\"; put the part after it into subresources",
        ),
        (
            class("name = \"a\"\nmatch = {}\nbackoff = { max_keys = 5 }"),
            "f.toml:6:13: gates.kubernetes.classes[0].backoff.max_keys: holds for the whole gate, expected it in the gate's own [backoff]",
        ),
        (
            class("name = \"a\"\nmatch = {}") + &class("name = \"a\"\nmatch = {}"),
            "f.toml:7:8: gates.kubernetes.classes[1].name: is \"a\", the name of gates.kubernetes.classes[0] too; expected another",
        ),
    ] {
        in_gate(&more, &[expected]);
    }
    in_gate(
        &(class("name = \"a\"\nmatch = {}\nbucket = { rate = 1, burst = 1 }\nwithin = \"b\"")
            + &class("name = \"b\"\nwithin = \"a\"")),
        &[
            "f.toml:7:10: gates.kubernetes.classes[0].within: leads back to itself: a within b within a",
            "f.toml:10:10: gates.kubernetes.classes[1].within: leads back to itself: b within a within b",
        ],
    );
    in_gate(
        &(class("name = \"leases\"\nlane = \"high\"") + &class("name = \"discovery\"\nbucket = { rate = 100 }")),
        &[],
    );
}

#[test]
fn listeners_need_ports_of_their_own() {
    let two = |a: &str, b: &str| {
        format!(
            "[gates.a]\nupstream = \"in_cluster\"\nlisten = \"{a}\"\n[gates.b]\nupstream = \"in_cluster\"\nlisten = \"{b}\"\n"
        )
    };
    let taken =
        ["f.toml:6:10: gates.b.listen: 127.0.0.1:8001 is already that of gates.a.listen, expected another port"];
    expect(&two("127.0.0.1:8001", "127.0.0.1:8001"), &[], &taken);
    expect(&two("0.0.0.0:8001", "127.0.0.1:8001"), &[], &taken);
    expect(&two("[::]:8001", "127.0.0.1:8001"), &[], &taken);
    expect(&two("[::1]:8001", "127.0.0.1:8001"), &[], &[]);
    expect(&two("127.0.0.1:0", "127.0.0.1:0"), &[], &[]);
    in_gate(
        "listen = \"127.0.0.1:9464\"",
        &[
            "f.toml:3:10: gates.kubernetes.listen: 127.0.0.1:9464 is already that of admin.listen, expected another port",
        ],
    );
    in_gate(
        "listen = [\"localhost:1\", \"127.0.0.1\"]",
        &[
            "f.toml:3:11: gates.kubernetes.listen[0]: is \"localhost:1\", expected an IP address with a port, such as \"127.0.0.1:8001\" or \"[::1]:8001\", or \"unix:/path/of/a.sock\"",
            "f.toml:3:26: gates.kubernetes.listen[1]: is \"127.0.0.1\", expected an IP address with a port, such as \"127.0.0.1:8001\" or \"[::1]:8001\", or \"unix:/path/of/a.sock\"",
        ],
    );
    in_gate("listen = []", &["f.toml:3:10: gates.kubernetes.listen: is an empty list, expected at least one address"]);
    expect(
        &format!("admin.listen = \"9464\"\n{SMALLEST}"),
        &[],
        &[
            "f.toml:1:16: admin.listen: is \"9464\", expected an IP address with a port, such as \"127.0.0.1:8001\" or \"[::1]:8001\", or \"off\"",
        ],
    );
}

#[test]
fn sockets_and_folders_belong_to_one_gate() {
    let loaded = load(&format!("{SMALLEST}listen = [\"unix:/run/x.sock\", \"127.0.0.1:1\"]"), &[]).unwrap();
    assert_eq!(loaded.settings.gates["kubernetes"].listen[0], Listen::Unix(PathBuf::from("/run/x.sock")));
    assert!(loaded.effective.contains("unix:/run/x.sock"), "{}", loaded.effective);
    let long = format!("/{}", "x".repeat(100));
    for path in ["x.sock", "", "/run/", &long] {
        let expected = format!(
            "f.toml:3:10: gates.kubernetes.listen: is \"unix:{path}\", expected \"unix:\" and an absolute path of at most 100 bytes"
        );
        in_gate(&format!("listen = \"unix:{path}\""), &[&expected]);
    }
    let two = |keys: &str| {
        format!("[gates.a]\nupstream = \"in_cluster\"\n{keys}[gates.b]\nupstream = \"in_cluster\"\n{keys}")
    };
    expect(
        &two("listen = \"unix:/x.sock\"\n"),
        &[],
        &["f.toml:6:10: gates.b.listen: is \"/x.sock\", which is already that of gates.a.listen, expected another"],
    );
    expect(
        &two("listen = \"127.0.0.1:0\"\ntls.write_to = \"/x\"\n"),
        &[],
        &[
            "f.toml:8:16: gates.b.tls.write_to: is \"/x\", which is already that of gates.a.tls.write_to, expected another",
        ],
    );
}

/// What is asked for where the process makes a file for itself.
const A_PLACE: &str = "expected \"auto\", \"off\" or the absolute path of a file, such as \"/run/tidegate/NAME\"";

#[test]
fn the_control_socket_is_a_path_or_a_word() {
    let socket = |value: &str| format!("{SMALLEST}[admin]\nsocket = \"{value}\"\n");
    for value in ["auto", "off", "/run/tidegate/tidegate.sock"] {
        let loaded = load(&socket(value), &[]).expect("it is right");
        assert!(loaded.effective.contains(&format!("socket = \"{value}\"")), "{}", loaded.effective);
    }
    let line = SMALLEST.lines().count() + 2;
    for value in ["tidegate.sock", "/run/"] {
        expect(&socket(value), &[], &[&format!("f.toml:{line}:10: admin.socket: is \"{value}\", {A_PLACE}")]);
    }
    let long = format!("/{}", "x".repeat(80));
    let expected = format!("f.toml:{line}:10: admin.socket: is \"{long}\", expected a path of at most 80 bytes");
    expect(&socket(&long), &[], &[&expected]);
}

#[test]
fn the_state_file_is_a_path_or_a_word() {
    let file = |value: &str| format!("{SMALLEST}[state]\nfile = \"{value}\"\n");
    for value in ["auto", "off", "/run/tidegate/state"] {
        let loaded = load(&file(value), &[]).expect("it is right");
        assert!(loaded.effective.contains(&format!("file = \"{value}\"")), "{}", loaded.effective);
    }
    for value in ["state", "/run/", "on"] {
        let line = SMALLEST.lines().count() + 2;
        expect(&file(value), &[], &[&format!("f.toml:{line}:8: state.file: is \"{value}\", {A_PLACE}")]);
    }
}

#[test]
fn upstreams_and_credentials_must_make_sense() {
    const UPSTREAMS: &str =
        "\"in_cluster\", \"kubeconfig\", \"kubeconfig:CONTEXT\" or \"http(s)://host[:port][/base]\"";
    let upstream = |kind: &str, upstream: &str| format!("[gates.g]\nkind = \"{kind}\"\nupstream = \"{upstream}\"\n");
    expect("[gates.g]\n", &[], &[&format!("f.toml:1:8: gates.g.upstream: is missing, expected {UPSTREAMS}")]);
    for (kind, url, expected) in [
        ("kubernetes", "incluster", format!("is \"incluster\", which is not a URL with http:// or https://, expected {UPSTREAMS} (did you mean \"in_cluster\"?)")),
        ("http", "ftp://x", format!("is \"ftp://x\", which is not a URL with http:// or https://, expected {UPSTREAMS}")),
        ("http", "https://", format!("is \"https://\", which is not a URL, expected {UPSTREAMS}")),
        ("http", "https://x/?a=b", format!("has a query or fragment, expected {UPSTREAMS}")),
        ("http", "http://x:99999", format!("is \"http://x:99999\", which has no port from 1 to 65535 behind its host, expected {UPSTREAMS}")),
        ("http", "https://me:secret@x/", format!("has a user or password in it, which must be in [credential] instead, expected {UPSTREAMS}")),
        ("http", "kubeconfig:a", "is \"kubeconfig:a\", which is for kind = \"kubernetes\"; expected a URL such as \"https://api.github.com\"".to_owned()),
    ] {
        expect(&upstream(kind, url), &[], &[&format!("f.toml:3:12: gates.g.upstream: {expected}")]);
    }
    let http = upstream("http", "https://x");
    for (more, expected) in [
        (
            "credentials = \"inject\"",
            "f.toml:4:15: gates.g.credentials: is \"inject\", but the gate has no credentials to inject; expected [credential], or upstream = \"in_cluster\" or \"kubeconfig\"",
        ),
        (
            "credential.file = \"\"",
            "f.toml:4:19: gates.g.credential.file: is missing, expected the file with the secret",
        ),
        (
            "credential = { file = \"/t\", header = \"a b\" }",
            "f.toml:4:38: gates.g.credential.header: is text, expected the name of a header",
        ),
        (
            "credentials = \"pass_through\"\ncredential.file = \"/t\"",
            "f.toml:5:1: gates.g.credential: has no effect: credentials = \"pass_through\"",
        ),
        (
            "queue.fair_by = \"namespace\"",
            "f.toml:4:17: gates.g.queue.fair_by: is \"namespace\", which external APIs do not have",
        ),
        (
            "host = \"preserv\"",
            "f.toml:4:8: gates.g.host: is \"preserv\", expected \"rewrite\", \"preserve\" or a host name (did you mean \"preserve\"?)",
        ),
        (
            "upstream_tls.cert = \"/c\"",
            "f.toml:4:1: gates.g.upstream_tls.key: is missing, but cert is set; expected a PEM file",
        ),
        (
            "upstream_tls.server_name = \"a:1\"",
            "f.toml:4:28: gates.g.upstream_tls.server_name: is \"a:1\", expected a host name",
        ),
        (
            "tls.mode = \"files\"",
            "f.toml:4:1: gates.g.tls.cert: is missing, but mode = \"files\" needs it; expected a PEM file",
        ),
        (
            "tls.cert = \"/c\"",
            "f.toml:4:5: gates.g.tls.cert: has no effect: mode = \"self_signed\" makes its own certificate; expected mode = \"files\"",
        ),
        (
            "max_reconcile_rate = 5",
            "f.toml:4:1: gates.g.max_reconcile_rate: has no effect: it is for preset = \"crossplane\" only",
        ),
        (
            "classes = [{ name = \"a\", match = { groups = [\"x\"] } }]",
            "f.toml:4:36: gates.g.classes[0].match.groups: matches nothing on a gate of kind \"http\"; expected paths",
        ),
    ] {
        expect(&format!("{http}{more}"), &[], &[expected]);
    }
    let off_loopback =
        load(&format!("{SMALLEST}listen = \"0.0.0.0:8001\"\ncredentials = \"inject\""), &[]).unwrap_err();
    assert!(
        off_loopback[0]
            .starts_with("f.toml:4:15: gates.kubernetes.credentials: is \"inject\" on a listener beyond loopback"),
        "{off_loopback:?}"
    );
    let guarded = |tls: &str| {
        let text =
            format!("{SMALLEST}listen = \"0.0.0.0:8001\"\ncredentials = \"inject\"\n[gates.kubernetes.tls]\n{tls}");
        load(&text, &[]).map(|loaded| loaded.settings.gates["kubernetes"].asks_for_a_token())
    };
    assert_eq!(guarded(""), Ok(true), "clients show the token in the folder");
    assert_eq!(guarded("client_ca = \"/ca\""), Ok(false), "clients need certificates");
    assert!(guarded("write_to = \"\"").is_err(), "clients could show nothing");
    let local = load(&format!("{SMALLEST}credentials = \"inject\"\n[gates.kubernetes.tls]\n"), &[]).unwrap();
    assert!(!local.settings.gates["kubernetes"].asks_for_a_token(), "loopback is its own guard");
    let open = load(&format!("{SMALLEST}listen = \"0.0.0.0:8001\""), &[]).unwrap();
    assert!(!open.settings.gates["kubernetes"].injects(), "auto never injects off loopback");
    in_gate(
        "preset = \"github\"\nkind = \"kubernetes\"",
        &["f.toml:3:10: gates.kubernetes.preset: is \"github\", which is for kind = \"http\""],
    );
}

#[test]
fn the_parts_of_a_key_must_exist_and_be_named_once() {
    let list = "expected \"auto\" or a list such as [\"verb\", \"path\"]";
    let parts = "expected \"verb\", \"path\", \"query:NAME\", \"header:NAME\" or \"body\"";
    for (key, problem) in [
        ("\"path\"", format!("f.toml:3:7: gates.kubernetes.key: is \"path\", {list}")),
        ("true", format!("f.toml:3:7: gates.kubernetes.key: is true, {list}")),
        ("[]", "f.toml:3:7: gates.kubernetes.key: is an empty list, expected at least one part, or \"auto\"".to_owned()),
        ("[\"path\", 5]", "f.toml:3:16: gates.kubernetes.key[1]: is 5, expected text in quotes".to_owned()),
        (
            "[\"paths\"]",
            format!("f.toml:3:8: gates.kubernetes.key[0]: is \"paths\", {parts} (did you mean \"path\"?)"),
        ),
        (
            "[\"path\", \"query:\"]",
            "f.toml:3:16: gates.kubernetes.key[1]: is \"query:\", which has no name; expected one after the colon".to_owned(),
        ),
        (
            "[\"header:a b\"]",
            "f.toml:3:8: gates.kubernetes.key[0]: is \"header:a b\", expected the name of a header after the colon".to_owned(),
        ),
        (
            "[\"header:Authorization\"]",
            "f.toml:3:8: gates.kubernetes.key[0]: is \"header:Authorization\", which is a credential, and cannot be part of a key; to limit each client: per = \"credential\" on a bucket"
                .to_owned(),
        ),
        ("[\"body\", \"path\", \"body\"]", "f.toml:3:24: gates.kubernetes.key[2]: is in the list twice, expected it once".to_owned()),
    ] {
        in_gate(&format!("key = {key}"), &[&problem]);
    }
    in_gate(
        "[[gates.kubernetes.classes]]\nname = \"a\"\nmatch = { verbs = [\"get\"] }\nkey = [\"paths\"]",
        &[&format!("f.toml:6:8: gates.kubernetes.classes[0].key[0]: is \"paths\", {parts} (did you mean \"path\"?)")],
    );
}

#[test]
fn what_is_off_can_be_said() {
    in_gate("bucket.adapt = \"off\"\nsignals.honour = []\nkey = \"auto\"\nshadow = false", &[]);
}

#[test]
fn signals_must_be_known_and_a_reserve_must_be_one() {
    let list = |is_meant: fn(Signal) -> bool| {
        let words: Vec<String> =
            Signal::ALL.into_iter().filter(|signal| is_meant(*signal)).map(|signal| format!("\"{signal}\"")).collect();
        let (last, others) = words.split_last().expect("there are signals");
        format!("{} or {last}", others.join(", "))
    };
    let (all, telling) = (list(|_| true), list(Signal::tells_quota));
    in_gate(
        "signals.honour = [\"retry-after\"]",
        &[&format!(
            "f.toml:3:19: gates.kubernetes.signals.honour[0]: is \"retry-after\", expected {all} (did you mean \"retry_after\"?)"
        )],
    );
    let no_quota = format!("has no effect: no signal in `honour` says what is left of a quota; expected {telling}");
    let no_quota = format!("23: gates.kubernetes.signals.reserve: {no_quota}");
    for (more, problem) in [
        (
            "signals.reserve = 1.0",
            "19: gates.kubernetes.signals.reserve: is 1.0, expected a fraction from 0 to less than 1",
        ),
        (
            "signals.reserve = -0.1",
            "19: gates.kubernetes.signals.reserve: is -0.1, expected a fraction from 0 to less than 1",
        ),
        (
            "signals.reserve = 0.1",
            "19: gates.kubernetes.signals.reserve: has no effect with scope = \"key\": a quota is for all keys together; expected scope \"class\", \
             \"credential\" or \"gate\"",
        ),
        ("signals = { reserve = 0.1, scope = \"gate\", honour = [\"aws\"] }", &*no_quota),
    ] {
        in_gate(more, &[&format!("f.toml:3:{problem}")]);
    }
    in_gate("signals = { honour = [\"ietf\", \"aws\"], scope = \"gate\", reserve = 0.25, max_pause = \"1m\" }", &[]);
    in_gate("bucket.adapt = \"off\"\nshadow = true\nsignals.honour = []\nkey = \"auto\"", &[]);
}

#[test]
fn a_rate_gives_way_no_further_than_its_floor() {
    let adapt = |more: &str| {
        let loaded = load(&format!("{SMALLEST}{more}"), &[]).unwrap_or_else(|problems| panic!("{more}: {problems:?}"));
        loaded.settings.gates["kubernetes"].policy.bucket.and_then(|bucket| bucket.adapt).map(|adapt| adapt.floor)
    };
    assert_eq!(adapt(""), Some(20.0), "on in the preset");
    assert_eq!(adapt("bucket.rate = 3"), Some(3.0), "a floor that comes from elsewhere is at most the rate");
    assert_eq!(adapt("bucket.adapt = { floor = 0.5 }"), Some(0.5));
    assert_eq!(adapt("bucket.adapt = \"off\""), None);
    assert_eq!(adapt("preset = \"none\"\nbucket = { rate = 9, burst = 9 }"), None);
    in_gate(
        "bucket.adapt = { floor = 501 }",
        &[
            "f.toml:3:26: gates.kubernetes.bucket.adapt.floor: is 501.0, expected calls per second above 0 and at most the rate, 500.0",
        ],
    );
    in_gate(
        "preset = \"none\"\nbucket = { rate = 9, burst = 9, adapt = {} }",
        &[
            "f.toml:4:33: gates.kubernetes.bucket.adapt.floor: is missing, and the preset gives none: a rate that adapts needs a floor",
        ],
    );
    in_gate(
        "retry_bucket.adapt = \"on\"",
        &["f.toml:3:22: gates.kubernetes.retry_bucket.adapt: is \"on\", expected a table, or \"off\""],
    );
    in_gate(
        "retry_bucket.rate = \"fast\"",
        &[
            "f.toml:3:21: gates.kubernetes.retry_bucket.rate: is \"fast\", expected \"auto\", a number per second, or text such as \"5000/h\" or \"900/min\" (units: s, min, h, d)",
        ],
    );
    in_gate(
        "retry_bucket.rate = 0",
        &[
            "f.toml:3:21: gates.kubernetes.retry_bucket.rate: is 0.0, expected calls per second above 0 and at most 1000000000",
        ],
    );
    in_gate(
        "retry_bucket.adapt.floor = 0.25",
        &["f.toml:3:14: gates.kubernetes.retry_bucket.adapt: has no effect: the rate is \"auto\""],
    );
    in_gate(
        "bucket.rate = \"auto\"",
        &[
            "f.toml:3:15: gates.kubernetes.bucket.rate: is \"auto\", expected a number per second, or text such as \"5000/h\" or \"900/min\" (units: s, min, h, d)",
        ],
    );
}

#[test]
fn who_pauses_and_whether_writes_go_one_by_one_is_the_gates() {
    let gate = |more: &str| load(&format!("{SMALLEST}{more}"), &[]).unwrap().settings.gates["kubernetes"].clone();
    let scope = |more: &str| gate(more).answers.throttling.scope;
    assert_eq!((scope(""), gate("").policy.one_at_a_time), (Scope::Key, false));
    assert_eq!(scope("signals.scope = \"credential\""), Scope::Credential);
    assert!(gate("one_at_a_time = true").policy.one_at_a_time);
}

#[test]
fn malformed_toml_has_a_place_too() {
    for (text, place) in [
        ("[gates.a\nx = 1\n", "f.toml:1:"),
        ("[gates.a]\nlisten = \n", "f.toml:2:"),
        ("[gates.a]\nupstream = \"in_cluster\"\nupstream = \"kubeconfig\"\n", "f.toml:3:1:"),
        ("[gates.a]\n[gates.a]\n", "f.toml:2:"),
        ("a = 99999999999999999999\n", "f.toml"),
    ] {
        let problems = load(text, &[]).unwrap_err();
        assert!(problems[0].starts_with(place), "{text}\n{problems:?}");
        assert!(problems.iter().all(|problem| !problem.contains('\n')), "{problems:?}");
    }
    expect(
        "",
        &[],
        &[
            "f.toml: gates: is missing, expected at least one gate, such as [gates.kubernetes] with upstream = \"in_cluster\"",
        ],
    );
    expect(
        "[gates.Kube]\nupstream = \"in_cluster\"\n",
        &[],
        &[
            "f.toml:1:8: gates.Kube: is not a valid name for a gate, expected snake_case: lower-case letters, digits and single underscores",
        ],
    );
    expect(
        &format!("log.level = \"inof\"\n{SMALLEST}"),
        &[],
        &[
            "f.toml:1:13: log.level: is \"inof\", expected \"off\", \"error\", \"warn\", \"info\", \"debug\" or \"trace\", or a filter such as \
         \"info,tidegate=debug\" (did you mean \"info\"?)",
        ],
    );
}

#[test]
fn the_environment_wins_and_is_held_to_the_same() {
    let loaded = load(
        SMALLEST,
        &[
            ("TIDEGATE__GATES__KUBERNETES__BUCKET__RATE", "2.5"),
            ("TIDEGATE__GATES__KUBERNETES__BUCKET__BURST", "7"),
            ("TIDEGATE__GATES__KUBERNETES__UPSTREAM_TLS__SERVER_NAME", "123"),
            ("TIDEGATE__GATES__KUBERNETES__UPSTREAM", "kubeconfig:dev"),
            ("TIDEGATE__GATES__KUBERNETES__QUEUE__MAX_WAIT", "5s"),
            ("TIDEGATE__GATES__KUBERNETES__RETRY_BUCKET", "off"),
            ("TIDEGATE__ADMIN__LISTEN", "off"),
            ("TIDEGATE_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ],
    );
    let loaded = loaded.unwrap();
    let gate = &loaded.settings.gates["kubernetes"];
    assert_eq!(gate.policy.bucket.map(|bucket| (bucket.rate, bucket.burst.get())), Some((2.5, 7)));
    assert_eq!(gate.forwarding.tls.server_name.as_deref(), Some("123"), "text stays text");
    assert_eq!(gate.upstream, Source::Kubeconfig(Some("dev".to_owned())));
    assert_eq!(gate.policy.queue.max_wait.as_secs(), 5);
    assert!(gate.policy.retry_bucket.is_none() && loaded.settings.admin.listen.is_none());

    for (name, value, expected) in [
        (
            "GATES__KUBERNETES__BUCKET__BURST",
            "2.5",
            "gates.kubernetes.bucket.burst: is 2.5, expected a whole number from 0 to 4294967295",
        ),
        (
            "GATES__KUBERNETES__BUCKET__BURST",
            "many",
            "gates.kubernetes.bucket.burst: is \"many\", expected a whole number from 0 to 4294967295",
        ),
        (
            "GATES__KUBERNETES__BUCKET__BURST",
            "true",
            "gates.kubernetes.bucket.burst: is true, expected a whole number from 0 to 4294967295",
        ),
        (
            "GATES__KUBERNETES__BUCKET__RATE",
            "0",
            "gates.kubernetes.bucket.rate: is 0.0, expected calls per second above 0 and at most 1000000000",
        ),
        (
            "GATES__KUBERNETES__BUCKET__RATE",
            "",
            "gates.kubernetes.bucket.rate: is \"\", expected a number per second, or text such as \"5000/h\" or \"900/min\" (units: s, min, h, d)",
        ),
        ("GATES__KUBERNETES__SHADOW", "1", "gates.kubernetes.shadow: is 1, expected true or false"),
        (
            "GATES__KUBERNETES__QUEUE__MAX_WAIT",
            "8",
            "gates.kubernetes.queue.max_wait: is \"8\", expected a duration with a unit, such as \"500ms\", \"8s\" or \"1m30s\"",
        ),
        (
            "GATES__KUBERNETES__ALLOWED_HOSTS",
            "a,b",
            "gates.kubernetes.allowed_hosts: is \"a,b\", expected a list of texts, which only the file can set",
        ),
        (
            "GATES__KUBERNETES__CLASSES__0__NAME",
            "a",
            "gates.kubernetes.classes.0.name: cannot be set by a variable, because a list of tables can only be in the file",
        ),
        (
            "LGO__LEVEL",
            "debug",
            "lgo: is not a valid key, expected one of admin, log, shutdown, process, otlp, state, stores, egress, gates (did you mean \"log\"?)",
        ),
        (
            "GATES__KUBERNETES__BUKET__RATE",
            "5",
            "gates.kubernetes.buket: is not a valid key (did you mean \"bucket\"?)",
        ),
        (
            "GATES__OTHER__KIND",
            "http",
            "gates.other.upstream: is missing, expected \"in_cluster\", \"kubeconfig\", \"kubeconfig:CONTEXT\" or \"http(s)://host[:port][/base]\"",
        ),
    ] {
        let name = format!("TIDEGATE__{name}");
        let problems = load(SMALLEST, &[(&name, value)]).unwrap_err();
        let first = problems.first().cloned().unwrap_or_default();
        assert_eq!(first, format!("{name}: {expected}"), "{problems:?}");
    }
}

#[test]
fn without_a_file_there_is_one_gate() {
    let load = |env: &[(&str, &str)]| {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        config::load(&Input { file: None, env }).unwrap().settings
    };
    let upstreams = |env: &[(&str, &str)]| {
        let gates = load(env).gates;
        gates.iter().map(|(name, gate)| (name.to_string(), gate.upstream.clone())).collect::<Vec<_>>()
    };
    assert_eq!(upstreams(&[]), [("kubernetes".to_owned(), Source::Kubeconfig(None))]);
    assert_eq!(upstreams(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]), [("kubernetes".to_owned(), Source::InCluster)]);
    assert_eq!(upstreams(&[("TIDEGATE__LOG__LEVEL", "debug")])[0].0, "kubernetes");
    assert_eq!(upstreams(&[("TIDEGATE__GATES__KUBERNETES__BUCKET__RATE", "5")])[0].1, Source::Kubeconfig(None));
    let url = Source::Url("http://127.0.0.1:1".parse().unwrap());
    assert_eq!(upstreams(&[("TIDEGATE__GATES__G__UPSTREAM", "http://127.0.0.1:1")]), [("g".to_owned(), url)]);
    assert_eq!(load(&[]).gates["kubernetes"].listen.len(), 1);
}

#[test]
fn the_file_is_found_where_it_is_named() {
    let env = [("TIDEGATE_CONFIG".to_owned(), "/from/env".to_owned())];
    assert_eq!(config::find(Some("/named".into()), &env), Some(PathBuf::from("/named")));
    assert_eq!(config::find(None, &env), Some(PathBuf::from("/from/env")));
    let missing = config::load(&Input { file: Some("/does/not/exist.toml".into()), env: Vec::new() }).unwrap_err();
    assert!(missing[0].to_string().starts_with("/does/not/exist.toml: cannot be read: "), "{}", missing[0]);
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("binary.toml");
    fs::write(&binary, b"a = 1\n\xff").unwrap();
    let problems = config::load(&Input { file: Some(binary), env: Vec::new() }).unwrap_err();
    assert!(problems[0].to_string().ends_with("is not UTF-8 text in line 2, expected a TOML file"), "{}", problems[0]);
}

#[test]
fn files_that_cannot_be_used_are_named_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("ca"), "-----BEGIN CERTIFICATE-----\n").unwrap();
    fs::write(path("empty"), "\n").unwrap();
    let text = format!(
        "[gates.g]\nkind = \"http\"\nupstream = \"https://x\"\ncredential.file = \"{}\"\n[gates.g.upstream_tls]\nca = \"{}\"\ncert = \"{}\"\nkey = \"{}\"\n",
        path("empty"),
        path("missing"),
        path("ca"),
        path("ca"),
    );
    let problems: Vec<String> = load(&text, &[]).unwrap().unreadable_files().iter().map(Problem::to_string).collect();
    assert_eq!(problems.len(), 3, "{problems:?}");
    let start = |line: &str, key: &str, name: &str| format!("f.toml:{line}: gates.g.{key}: {} ", path(name));
    assert!(
        problems[0].starts_with(&start("6:6", "upstream_tls.ca", "missing")) && problems[0].contains("cannot be read"),
        "{problems:?}"
    );
    assert!(problems[1].starts_with(&start("8:7", "upstream_tls.key", "ca")), "{problems:?}");
    assert!(problems[2].starts_with(&start("4:19", "credential.file", "empty")), "{problems:?}");
    fs::write(path("missing"), "-----BEGIN CERTIFICATE-----\n").unwrap();
    assert_eq!(load(&text, &[]).unwrap().unreadable_files().len(), 2, "looked at anew each time");
}

#[test]
fn a_retry_bucket_that_leaves_healthy_calls_less_than_half_is_warned_of() {
    let warnings = |text: &str| load(&format!("[gates.g]\nupstream = \"https://x\"\n{text}\n"), &[]).unwrap().warnings;
    for good in [
        "",
        "retry_bucket.rate = 250",
        "bucket.rate = 100\nretry_bucket.rate = 50",
        "bucket = \"off\"\nretry_bucket.rate = 500",
        // It opens up to the whole bucket's, and closes.
        "bucket.rate = 1",
        "retry_bucket = \"off\"",
        // Numbers that come from a preset keep the values they had elsewhere.
        "preset = \"controller_runtime\"",
    ] {
        assert_eq!(warnings(good), Vec::<String>::new(), "{good}");
    }
    // Nothing fails, as far as this gate remembers.
    let idle = warnings("backoff = \"off\"\nretry_bucket.rate = 50");
    assert!(idle.len() == 1 && idle[0].contains("gates.g.retry_bucket: has no effect"), "{idle:?}");
    let why = "more than half of bucket.rate";
    for (bad, at) in [
        ("retry_bucket.rate = 500", "f.toml:3:14: gates.g.retry_bucket.rate: is 500, "),
        ("retry_bucket.rate = 250.5", "f.toml:3:14: gates.g.retry_bucket.rate: is 250.5, "),
        ("bucket.rate = 19\nretry_bucket.rate = 10", "f.toml:4:14: gates.g.retry_bucket.rate: is 10, "),
        ("preset = \"controller_runtime\"\nretry_bucket.rate = 11", "f.toml:4:14: gates.g.retry_bucket.rate: is 11, "),
    ] {
        let warnings = warnings(bad);
        assert!(warnings.len() == 1 && warnings[0].contains(at) && warnings[0].contains(why), "{bad}: {warnings:?}");
    }
}

#[test]
fn the_rate_of_the_retry_bucket_is_a_number_or_auto() {
    let retries = |text: &str| {
        let loaded = load(&format!("[gates.g]\nupstream = \"https://x\"\n{text}\n"), &[]).unwrap();
        loaded.settings.gates["g"].policy.retry_bucket.map(|bucket| (bucket.rate, bucket.burst.get(), bucket.opens))
    };
    for (text, expected) in [
        ("", (0.5, 100, true)),
        ("bucket.rate = 4", (0.2, 100, true)),
        ("bucket = \"off\"", (0.5, 100, true)),
        ("retry_bucket.burst = 7", (0.5, 7, true)),
        ("retry_bucket.rate = 10", (10.0, 100, false)),
        ("preset = \"none\"\nretry_bucket = { rate = \"auto\", burst = 3 }", (0.5, 3, true)),
        ("preset = \"controller_runtime\"", (10.0, 100, false)),
        ("preset = \"controller_runtime\"\nretry_bucket.rate = \"auto\"", (0.5, 100, true)),
        // A token that is reserved on arrival is spent before anything is known.
        ("queue.combine = \"max_of\"", (10.0, 100, false)),
        ("queue.combine = \"max_of\"\nretry_bucket.rate = 7", (7.0, 100, false)),
    ] {
        assert_eq!(retries(text), Some(expected), "{text}");
    }
    let environment =
        [("TIDEGATE__GATES__G__RETRY_BUCKET__RATE", "auto"), ("TIDEGATE__GATES__G__RETRY_BUCKET__RATE", "7.5")];
    for (name, value) in environment {
        let text = "[gates.g]\nupstream = \"https://x\"\nretry_bucket.rate = 1\n";
        let loaded = load(text, &[(name, value)]).unwrap();
        let retries = loaded.settings.gates["g"].policy.retry_bucket.expect("there is one");
        assert_eq!(retries.opens, value == "auto");
    }
}

#[test]
fn a_bucket_is_shared_by_name_under_one_limit() {
    let gates = |one: &str, other: &str| {
        format!(
            "[gates.a]\nupstream = \"https://x\"\nlisten = \"127.0.0.1:1\"\nretry_bucket = \"off\"\nbucket = {{ {one} }}\n\
             [gates.b]\nupstream = \"https://x\"\nlisten = \"127.0.0.1:2\"\nretry_bucket = \"off\"\nbucket = {{ {other} }}\n"
        )
    };
    let both = gates(
        "rate = 2, burst = 20, shared = \"acc\"",
        "rate = 2, burst = 20, shared = { name = \"acc\", weight = 3 }",
    );
    let loaded = load(&both, &[]).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let of = |gate: &str| loaded.settings.gates[gate].policy.shared.clone();
    assert_eq!((&*of("a")[0].name, of("a")[0].weight.get(), of("b")[0].weight.get()), ("acc", 1, 3));
    assert!(
        loaded.effective.contains("shared = { name = \"acc\", weight = 3, lease = \"auto\", pauses = true }"),
        "{}",
        loaded.effective
    );

    let other = gates("rate = 2, burst = 20, shared = \"acc\"", "rate = 3, burst = 20, shared = \"acc\"");
    expect(
        &other,
        &[],
        &[
            "f.toml:10:43: gates.b.bucket.shared: is \"acc\", but gates.a.bucket shares this name with other limits (2/s burst 20); expected the same rate and burst, or another name",
        ],
    );
    let of_bucket = |keys: &str, expected: &str| {
        let problems = load(&gates(keys, "rate = 1"), &[]).unwrap_err();
        assert!(problems.len() == 1 && problems[0].contains(expected), "{keys}: {problems:?}");
    };
    of_bucket("shared = \"A b\"", "gates.a.bucket.shared: is \"A b\", expected a name of 1 to 64 lower-case letters");
    of_bucket("shared = { weight = 2 }", "gates.a.bucket.shared.name: is missing");
    of_bucket("shared = 5", "gates.a.bucket.shared: is 5, expected text in quotes, or a table");
    of_bucket("shared = { name = \"a\", weight = 101 }", "weight: is 101, expected a whole number from 1 to 100");
    of_bucket(
        "shared = { name = \"a\", lease = \"50ms\" }",
        "lease: is 50ms, expected \"auto\" or a duration from 100ms to 1m",
    );
    of_bucket("shared = \"a\", per = \"flow\"", "per: is \"flow\", but flows are those of one gate");
    of_bucket("shared = \"a\", start = \"full\"", "start: has no effect");
    of_bucket("shared = \"a\", rate = 20000, burst = 20000", "rate: is 20000.0, expected at most 10000.0");
    let retries = "[gates.a]\nupstream = \"https://x\"\nretry_bucket.shared = \"a\"\n";
    let problems = load(retries, &[]).unwrap_err();
    assert!(
        problems[0].contains("retry_bucket.shared: can only be set for the bucket of the gate or of a class"),
        "{problems:?}"
    );
    let twice = "[gates.a]\nupstream = \"https://x\"\nbucket = { rate = 1, burst = 5, shared = \"a\" }\n\
                 classes = [{ name = \"default\", bucket = { rate = 1, burst = 5, shared = \"a\" } }]\n";
    let problems = load(twice, &[]).unwrap_err();
    assert!(problems[0].contains("the name of another bucket of this gate too"), "{problems:?}");
    let warnings = load(&gates("rate = 50, burst = 2, shared = \"a\"", "rate = 1"), &[]).unwrap().warnings;
    assert!(
        warnings[0].contains("less than 1 + rate * lease: all gates together may send 6.0 at once; expected 6 or more"),
        "{warnings:?}"
    );
    // As many as it says are enough.
    for (rate, lease, least) in [(50.0, "auto", 6), (1.0, "auto", 2), (400.0, "auto", 41), (50.0, "10s", 501)] {
        let told = |burst: u32| {
            let bucket = format!("rate = {rate}, burst = {burst}, shared = {{ name = \"a\", lease = \"{lease}\" }}");
            load(&gates(&bucket, "rate = 1"), &[]).unwrap().warnings.concat()
        };
        let (less, enough) = (told(least - 1), told(least));
        assert!(less.contains(&format!("expected {least} or more")), "{rate} {lease}: {less}");
        assert_eq!(less.contains(", or a shorter lease"), lease != "auto", "{less}");
        assert!(!enough.contains("less than 1 + rate * lease"), "{rate} {lease}: {enough}");
    }
    let warnings = load(&gates("rate = 50, burst = 15, shared = \"a\"", "rate = 1"), &[]).unwrap().warnings;
    assert!(warnings[0].contains("so many calls at once have to wait"), "{warnings:?}");
    assert!(warnings.len() == 2 && warnings[1].contains("is shared with no other gate"), "{warnings:?}");
}

#[test]
fn members_without_a_name_divide_every_bucket_into_fixed_parts() {
    let gate = |keys: &str| format!("[gates.a]\nupstream = \"https://x\"\n{keys}\n");
    let policy = |text: &str| {
        let loaded = load(text, &[]).unwrap_or_else(|problems| panic!("{text}: {problems:?}"));
        (loaded.settings.gates["a"].policy.clone(), loaded.warnings)
    };
    let own = "bucket = { rate = 40, burst = 81, adapt = { floor = 8 }, shared = { members = 4, margin = 0.05 } }";
    let (part, warnings) = policy(&gate(own));
    let bucket = part.bucket.expect("it is there");
    assert_eq!((bucket.rate, bucket.burst.get(), bucket.adapt.map(|adapt| adapt.floor)), (9.5, 19, Some(1.9)));
    let again = load(&load(&gate(own), &[]).unwrap().effective, &[]).expect("it means the same");
    assert_eq!(again.settings.gates["a"].policy.bucket, Some(bucket));
    assert!(bucket.shared.is_none() && part.shared.is_empty() && warnings.is_empty(), "{part:?} {warnings:?}");
    assert!(part.retry_bucket.is_some_and(|retries| (retries.rate - 0.475).abs() < 1e-9), "it goes by the part");

    // A gate's divides all its buckets, split ones too, but not one that is shared by name.
    let all = "preset = \"aws_ec2\"\nshared = { members = 2 }\nclasses = [{ name = \"ec2_reads\", bucket = { rate = 9, \
               burst = 50, per = \"flow\" } }, { name = \"ec2_writes\", bucket = { rate = 8, burst = 50, shared = \"x\" } }]";
    let (all, _) = policy(&gate(all));
    let class = |name: &str| all.classes.iter().find(|class| &*class.name == name).and_then(|class| class.bucket);
    let size = |name| class(name).map(|bucket| (bucket.rate, bucket.burst.get(), bucket.shared.is_some()));
    assert_eq!((size("ec2_reads"), size("ec2_writes")), (Some((4.5, 25, false)), Some((8.0, 50, true))));
    let mixed = "shared = \"x\"\nbucket = { rate = 40, burst = 81, shared = { members = 4 } }\nclasses = [{ name = \"default\", bucket = { \
                 rate = 4, burst = 9 } }]";
    let (mixed, _) = policy(&gate(mixed));
    assert_eq!(mixed.bucket.map(|bucket| (bucket.rate, bucket.shared)), Some((10.0, None)));
    assert!(mixed.shared.iter().all(|shared| shared.name.starts_with("x.")), "{mixed:?}");
    let candidate = gate(&format!("{own}\ncandidate = {{ bucket.rate = 80 }}"));
    let candidate = load(&candidate, &[]).unwrap().settings.gates["a"].candidate.clone().expect("there is one");
    assert_eq!(candidate.bucket.map(|bucket| bucket.rate), Some(19.0));

    let (one, warnings) = policy(&gate("bucket = { rate = 40, burst = 3, shared = { members = 4 } }"));
    assert_eq!(one.bucket.map(|bucket| bucket.burst.get()), Some(1));
    assert!(
        warnings.len() == 1
            && warnings[0].contains("gates.a.bucket.burst: is 3, which leaves each of 4 gates a burst of 1")
            && warnings[0].contains("expected a burst of 4 or more, or fewer members"),
        "{warnings:?}"
    );
    let wrong = |keys: &str, expected: &str| {
        let text = gate(&format!("bucket = {{ rate = 2, burst = 20, shared = {{ {keys} }} }}"));
        let problems = load(&text, &[]).unwrap_err();
        assert!(problems.len() == 1 && problems[0].contains(expected), "{keys}: {problems:?}");
    };
    wrong("members = 0", "gates.a.bucket.shared.members: is 0, expected at least 1");
    for margin in ["1.0", "-0.1", "7"] {
        wrong(&format!("members = 4, margin = {margin}"), "shared.margin: is ");
    }
    wrong(
        "members = 4000000000, margin = 0.999999",
        "gates.a.bucket.rate: is 2, which leaves each of 4000000000 gates",
    );
    wrong(
        "members = 4, store = \"main\"",
        "shared.store: has no effect: members without a name gives each gate a fixed part",
    );
    wrong("margin = 0.05", "shared.name: is missing, expected the name that gates share it by, or members alone");
    wrong("name = \"a\", margin = 0.05", "shared.margin: has no effect: gates that share a name ask for each token");
    wrong("name = \"a\", members = 4", "shared.members: has no effect: there is no [stores.NAME]");
    let nothing = gate("bucket = \"off\"\nretry_bucket = \"off\"\nshared = { members = 4 }");
    let problems = load(&nothing, &[]).unwrap_err();
    assert!(problems.len() == 1 && problems[0].contains("gates.a.shared: has no effect: the gate has no bucket"));
}

#[test]
fn it_is_said_what_a_shared_bucket_costs_and_how_slowly_a_gate_goes_on_alone() {
    let warnings = |store: &str, text: &str| {
        let text = format!("{store}[gates.a]\nupstream = \"https://x\"\nretry_bucket = \"off\"\n{text}\n");
        load(&text, &[]).unwrap_or_else(|problems| panic!("{text}: {problems:?}")).warnings
    };
    let store = "[stores.main]\nurl = \"redis://valkey\"\n";
    let slow = "bucket = { rate = 0.5, burst = 20, shared = \"a\" }";
    let told = warnings(store, slow);
    let expected = "gates.a.bucket.shared: lets a gate that has not reached its store yet send only 0.050/s for a, a call in 20 s; \
                    expected fewer members, or outage = \"full\"";
    assert!(told.len() == 1 && told[0].contains(expected), "{told:?}");
    let told = warnings("", slow);
    assert!(
        told.len() == 1 && told[0].contains("is shared with no other gate"),
        "the gates of one process have no store that could be away: {told:?}"
    );
    for fine in ["members = 5", "outage = \"full\"", "outage = \"stop\""] {
        let bucket = format!("bucket = {{ rate = 0.5, burst = 20, shared = {{ name = \"a\", {fine} }} }}");
        assert_eq!(warnings(store, &bucket), Vec::<String>::new(), "{fine}");
    }
    // Of all that a preset has, the slowest is named, once.
    let told = warnings(store, "preset = \"aws\"\nkind = \"http\"\nshared = \"aws\"");
    let slow: Vec<_> =
        told.iter().filter(|warning| warning.contains("lets a gate that has not reached its store")).collect();
    assert!(slow.len() == 1 && slow[0].contains("gates.a.shared: ") && slow[0].contains(" for aws."), "{told:?}");

    let many = "bucket = { rate = 50, burst = 100, shared = { name = \"a\", members = 101 } }";
    let told = warnings(store, many);
    assert!(told.len() == 1 && told[0].contains("members: is 101: with more than 100 gates each request"), "{told:?}");
    let told = warnings(store, "bucket = { rate = 50, burst = 100 }");
    assert!(
        told.len() == 1 && told[0].contains("stores.main: is not used, because no bucket is shared through it"),
        "{told:?}"
    );
    let late = "bucket = { rate = 50, burst = 100, shared = { name = \"a\", lease = \"200ms\" } }";
    let told = warnings(store, late);
    assert!(told.len() == 1 && told[0].contains("less than the store's timeout of 250ms"), "{told:?}");
}

#[test]
fn a_bucket_that_is_split_is_shared_part_by_part_and_a_gate_shares_all_that_it_has() {
    let aws = |keys: &str| format!("[gates.a]\nupstream = \"https://x\"\npreset = \"aws_ec2\"\n{keys}");
    let loaded = load(&aws("shared = \"aws\"\n"), &[]).unwrap();
    assert!(loaded.effective.contains("\nshared = { name = \"aws\", weight = 1"), "{}", loaded.effective);
    let policy = &loaded.settings.gates["a"].policy;
    let shared_as = |class: &str| {
        let class = policy.classes.iter().find(|one| &*one.name == class).expect("it is there");
        let bucket = class.bucket.expect("it has one");
        (policy.shared[usize::from(bucket.shared.expect("it is shared").0)].name.to_string(), bucket.per.word())
    };
    assert_eq!(shared_as("ec2_reads"), ("aws.ec2_reads".to_owned(), "action"));
    assert!(policy.classes.iter().filter_map(|class| class.bucket).all(|bucket| bucket.shared.is_some()));

    let own = "shared = { name = \"aws\", weight = 3 }\nclasses = [{ name = \"ec2_reads\", \
               bucket = { rate = 9, burst = 50, per = \"action\", shared = \"reads\" } }]\n";
    let policy = load(&aws(own), &[]).unwrap().settings.gates["a"].policy.clone();
    assert!(policy.shared.iter().any(|shared| &*shared.name == "reads" && shared.weight.get() == 1));
    assert!(policy.shared.iter().any(|shared| &*shared.name == "aws.ec2_writes" && shared.weight.get() == 3));

    let flows = "[gates.a]\nupstream = \"https://x\"\nshared = \"a\"\nclasses = [\
                 { name = \"default\", bucket = { rate = 1, burst = 5, per = \"flow\" } }]\n";
    let warnings = load(flows, &[]).unwrap().warnings.join("\n");
    assert!(
        warnings.contains("gates.a.shared: does not share a.default, because its bucket has per = \"flow\""),
        "{warnings}"
    );
    let none = "[gates.a]\nupstream = \"https://x\"\nbucket = \"off\"\nretry_bucket = \"off\"\nshared = \"a\"\n";
    let problems = load(none, &[]).unwrap_err().join("\n");
    assert!(
        problems.contains("gates.a.shared: has no effect: the gate has no bucket that can be shared"),
        "{problems}"
    );
    let several =
        format!("{}[stores.x]\nurl = \"redis://a\"\n[stores.y]\nurl = \"redis://b\"\n", aws("shared = \"aws\"\n"));
    let problems = load(&several, &[]).unwrap_err();
    assert!(problems.len() == 1 && problems[0].contains("needs a store, expected store = one of x, y"), "{problems:?}");

    let two = |per: &str| {
        format!(
            "[gates.a]\nupstream = \"https://x\"\nlisten = \"127.0.0.1:1\"\nretry_bucket = \"off\"\n\
             bucket = {{ rate = 2, burst = 20, per = \"credential\", shared = \"acc\" }}\n\
             [gates.b]\nupstream = \"https://x\"\nlisten = \"127.0.0.1:2\"\nretry_bucket = \"off\"\n\
             bucket = {{ rate = 2, burst = 20, per = \"{per}\", shared = \"acc\" }}\n"
        )
    };
    assert!(load(&two("credential"), &[]).is_ok());
    let problems = load(&two("gate"), &[]).unwrap_err().join("\n");
    assert!(problems.contains("which gates.a.bucket shares per credential; expected the same per"), "{problems}");
}

#[test]
fn stores_must_exist_and_be_reachable_without_showing_a_password() {
    let text = |store: &str, shared: &str| {
        format!(
            "[gates.a]\nupstream = \"https://x\"\nretry_bucket = \"off\"\nbucket = {{ rate = 2, burst = 20, shared = {shared} }}\n{store}"
        )
    };
    let main = "[stores.main]\nurl = \"redis://valkey:6380\"\n";
    let named = |shared: &str, stores: &str| {
        let loaded = load(&text(stores, shared), &[]).unwrap_or_else(|problems| panic!("{shared}: {problems:?}"));
        loaded.settings.gates["a"].policy.shared[0].clone()
    };
    assert_eq!(&*named("\"acc\"", "").store, "");
    assert_eq!(&*named("\"acc\"", main).store, "main", "the only one");
    let two = format!("{main}[stores.other]\nurl = \"unix:/run/valkey.sock\"\n");
    let full = named("{ name = \"acc\", store = \"other\", outage = \"stop\", members = 3 }", &two);
    assert_eq!((&*full.store, full.outage.word(), full.members.get()), ("other", "stop", 3));

    let wrong = |store: &str, shared: &str, expected: &str| {
        let problems = load(&text(store, shared), &[]).unwrap_err().join("\n");
        assert!(problems.contains(expected) && !problems.contains("hunter2"), "{store}{shared}: {problems}");
    };
    wrong(
        main,
        "{ name = \"a\", store = \"mian\" }",
        "shared.store: is \"mian\", expected a [stores.NAME]: main (did you mean \"main\"?)",
    );
    wrong("", "{ name = \"a\", store = \"main\" }", "expected a [stores.NAME]: there is none");
    wrong(&two, "\"acc\"", "needs a store, expected store = one of main, other");
    let login = |keys: &str, expected: &str| {
        wrong(&format!("[stores.main]\nurl = \"rediss://valkey\"\n{keys}\n"), "\"acc\"", expected);
    };
    let command = "password_command = [\"az\", \"token\"]\n";
    login("password_command = []", "stores.main.password_command: names no program, expected one with its arguments");
    login("password_command = [\"\"]", "stores.main.password_command: names no program");
    login("password_command = \"az hunter2\"", "stores.main.password_command: is text, expected a list");
    login(
        &format!("{command}password_file = \"/x\""),
        "password_command: is set beside password_file, expected one of the two",
    );
    login(&format!("{command}password_refresh = \"0s\""), "password_refresh: is 0ns, expected a time from 1s to 1h");
    login("password_refresh = \"1m\"", "password_refresh: has no effect: there is no password_command");
    login("user = \"x\"", "user: is set without a password; expected password_file or password_command too");
    let plain = format!("[stores.main]\nurl = \"redis://valkey\"\n{command}");
    wrong(&plain, "\"acc\"", "leads to another machine without TLS, so the password would be sent unencrypted");
    wrong("", "{ name = \"a\", outage = \"stop\" }", "outage: has no effect: there is no [stores.NAME]");
    let url = |url: &str, expected: &str| wrong(&format!("[stores.main]\nurl = \"{url}\"\n"), "\"acc\"", expected);
    url(
        "redis://gate:hunter2@valkey:6379",
        "has a user or password in it, which must be in user and password_file instead",
    );
    url("redis+sentinel://a:1,b:2", "which does not end with the primary's name");
    url("redis+sentinel://a:1,b:2/", "which does not end with the primary's name");
    url("redis+sentinel://a:1,b:2/x y", "whose name sentinels do not accept");
    url("redis+sentinel://a:1,,b:2/main", "which names no host");
    url("redis+cluster://a:1,b:x", "has no port in \"b:x\"");
    url("redis+cluster://a:1/3", "has a path: shared buckets are in database 0");
    url("redis+cluster://gate:hunter2@a:1", "has a user or password in it");
    url("redis+cluser://a:1", "begins neither like that of sentinels nor like that of a cluster");
    url("redis://a:1,b:2", "names several hosts, which only sentinels and a cluster have");
    url("redis://", "names no host");
    url("http://valkey", "which is not a URL with redis:// or rediss://");
    url("redis://valkey/3", "has a path: shared buckets are in database 0");
    for query in
        ["redis://valkey:6379?password=hunter2", "redis://valkey/?password=hunter2", "unix:/x?password=hunter2"]
    {
        url(query, "has a query or fragment, which the URL of a store cannot have; put a password into password_file");
    }
    url("redis+sentinel://a:1/main#hunter2", "has a query or fragment");
    url("unix:run/x.sock", "which is not an absolute path");
    url("unix:///run/x.sock", "which is not an absolute path");
    url("unix://gate:hunter2@/run/x.sock", "has a user or password in it");
    wrong("[stores.main]\n", "\"acc\"", "stores.main.url: is missing, expected \"redis://HOST:PORT\"");
    let more = |keys: &str, expected: &str| wrong(&format!("{main}{keys}\n"), "\"acc\"", expected);
    more("password = \"hunter2\"", "password: is not a valid key");
    more("user = \"gate\"", "user: is set without a password; expected password_file or password_command too");
    more(
        "password_file = \"/x\"",
        "url: leads to another machine without TLS, so the password would be sent unencrypted; expected rediss://",
    );
    more("sentinel = { user = \"x\" }", "sentinel: has no effect: the url does not name sentinels");
    let watched = |keys: &str, expected: &str| {
        wrong(&format!("[stores.main]\nurl = \"redis+sentinel://a,b:2/main\"\n{keys}\n"), "\"acc\"", expected);
    };
    watched(
        "sentinel = { user = \"x\" }",
        "sentinel.user: is set without a password; expected password_file or password_command too",
    );
    watched("sentinel = { password_file = \"/x\" }", "url: leads to another machine without TLS");
    watched("sentinel = { password = \"hunter2\" }", "password: is not a valid key");
    let places = |url: &str| {
        let store = format!("[stores.main]\nurl = \"{url}\"\n");
        let loaded = load(&text(&store, "\"acc\""), &[]).unwrap_or_else(|problems| panic!("{url}: {problems:?}"));
        assert!(loaded.effective.contains(url), "{}", loaded.effective);
        loaded.settings.stores[0].address.clone()
    };
    let at = |host: &str, port| Endpoint { host: host.to_owned(), port };
    let sentinels = vec![at("a", 26379), at("::1", 2)];
    let address = StoreAddress::Sentinel { sentinels, primary: "main".to_owned() };
    assert_eq!(places("rediss+sentinel://a:26379,[::1]:2/main"), address);
    assert_eq!(places("redis+cluster://a:6379,b:1"), StoreAddress::Cluster { seeds: vec![at("a", 6379), at("b", 1)] });
    more("timeout = \"1ms\"", "timeout: is 1ms, expected a time from 10ms to 10s");
    more("prefix = \"a b\"", "prefix: is \"a b\"");
    more("tls = { ca = \"/x\" }", "tls: has no effect: the url is not rediss://");
}

#[test]
fn warnings_say_what_works_but_should_be_known() {
    let loaded = load("[gates.g]\nupstream = \"https://x\"\nupstream_tls.insecure = true\n", &[]).unwrap();
    assert_eq!(
        loaded.warnings,
        [
            "f.toml:3:14: gates.g.upstream_tls.insecure: the upstream's certificate is not verified: anyone on the way can read and change every call"
        ]
    );
}

#[test]
fn what_spoils_a_signature_is_warned_of() {
    let warnings = |text: &str| {
        let text = format!("[gates.g]\nkind = \"http\"\nupstream = \"https://x\"\n{text}\n");
        load(&text, &[]).unwrap_or_else(|problems| panic!("{text}: {problems:?}")).warnings
    };
    for good in [
        "dialect = \"aws\"\nhost = \"preserve\"\nqueue.max_wait = \"240s\"",
        "dialect = \"aws\"",
        "dialect = \"azure\"\nrewrite_links = false\nqueue.max_wait = \"10m\"",
        "rewrite_links = false\nqueue.max_wait = \"10m\"",
        // The gate's own header in place of a signature.
        "dialect = \"aws\"\ncredentials = \"inject\"\ncredential.file = \"/t\"",
    ] {
        assert_eq!(warnings(good), Vec::<String>::new(), "{good}");
    }
    let host = "f.toml:5:1: gates.g.host: is";
    for (bad, expected) in [
        ("dialect = \"aws\"\nhost = \"rewrite\"", format!("{host} \"rewrite\", but AWS clients sign the Host")),
        ("dialect = \"aws\"\nhost = \"x.example\"", format!("{host} a name, but AWS clients sign the Host")),
        (
            "dialect = \"aws\"\nhost = \"preserve\"\nqueue.max_wait = \"241s\"",
            "f.toml:6:7: gates.g.queue.max_wait: is 4m1s, but AWS takes a signature for five minutes".to_owned(),
        ),
    ] {
        let warnings = warnings(bad);
        assert!(warnings.len() == 1 && warnings[0].contains(&expected), "{bad}: {warnings:?}");
    }
}

#[test]
fn health_checks_over_grpc_are_exempt_on_every_gate_with_a_dialect() {
    for (more, first) in [("", "default"), ("dialect = \"google\"\n", "health"), ("dialect = \"aws\"\n", "health")] {
        let text = format!("[gates.g]\nkind = \"http\"\nupstream = \"https://x\"\n{more}");
        let loaded = load(&text, &[]).unwrap();
        let gate = &loaded.settings.gates["g"];
        assert_eq!(&*gate.policy.classes[0].name, first, "{more}");
        let class = |path: &'static str| {
            let kind = http::HeaderValue::from_static("application/grpc");
            let headers = http::HeaderMap::from_iter([(http::header::CONTENT_TYPE, kind)]);
            let uri = http::Uri::from_static(path);
            gate.rules.classify(&http::Method::POST, &uri, &headers, &tidegate::classify::Salt::random())
        };
        assert_eq!(class("/grpc.health.v1.Health/Check").exempt, first == "health", "{more}");
        assert_eq!(class("/grpc.health.v1.Health/Watch").exempt, first == "health", "{more}");
        assert!(!class("/google.pubsub.v1.Publisher/Publish").exempt, "{more}");
    }
}

#[test]
fn writes_go_one_at_a_time_where_no_failure_is_remembered_too() {
    let known = |more: &str| {
        let text = format!("[gates.g]\nkind = \"http\"\nupstream = \"https://x\"\npreset = \"none\"\n{more}");
        let loaded = load(&text, &[]).unwrap();
        let (headers, hasher) = (http::HeaderMap::new(), tidegate::classify::Salt::random());
        let path = http::Uri::from_static("/a/b");
        loaded.settings.gates["g"].rules.classify(&http::Method::PUT, &path, &headers, &hasher).key.known().is_some()
    };
    assert!(!known(""), "nothing needs the key");
    assert!(known("one_at_a_time = true\n"));
}

#[test]
fn answers_are_kept_where_the_provider_does_not_count_a_304_or_by_choice() {
    let hub = "[gates.hub]\nupstream = \"https://api.github.com\"\npreset = \"github\"\n";
    let gate = |text: &str| {
        load(text, &[]).unwrap_or_else(|problems| panic!("{problems:?}")).settings.gates.into_values().next().unwrap()
    };
    let kept = gate(hub);
    assert!(kept.answers.revalidation.classes.iter().all(|keeps| *keeps) && kept.policy.uncounted.is_some());
    assert_eq!(kept.answers.revalidation.bytes_in_use(), 16 << 20);
    let off = gate(&format!("{hub}[[gates.hub.classes]]\nname = \"default\"\nrevalidate = false\n"));
    assert_eq!(off.answers.revalidation.classes.iter().filter(|keeps| !**keeps).count(), 1);
    let plain = "[gates.api]\nkind = \"http\"\nupstream = \"https://api.test\"\nrewrite_links = false\n";
    let other = gate(plain);
    assert!(other.answers.revalidation.bytes_in_use() == 0 && other.policy.uncounted.is_none());
    let chosen = gate(&format!(
        "{plain}revalidation.max_bytes = \"1MiB\"\n[[gates.api.classes]]\nname = \"default\"\nrevalidate = true\n"
    ));
    assert_eq!((chosen.answers.revalidation.bytes_in_use(), chosen.policy.uncounted), (1 << 20, None));
}

#[test]
fn revalidation_is_for_external_apis_and_needs_room() {
    in_gate(
        "revalidation.max_bytes = \"1MiB\"\n[[gates.kubernetes.classes]]\nname = \"default\"\nrevalidate = true\n",
        &[
            "f.toml:3:1: gates.kubernetes.revalidation: has no effect: it is for kind = \"http\" only",
            "f.toml:6:1: gates.kubernetes.classes[0].revalidate: has no effect: it is for kind = \"http\" only",
        ],
    );
    expect(
        "[gates.hub]\nupstream = \"https://api.github.com\"\npreset = \"github\"\nrevalidation = { max_bytes = \"0B\" }\n",
        &[],
        &[
            "f.toml:4:30: gates.hub.revalidation.max_bytes: is 0, expected a size; to keep no responses, set revalidate = false in each class",
        ],
    );
}

#[test]
fn a_collector_is_reachable_by_http_and_is_sent_something() {
    let with = |otlp: &str| load(&format!("{SMALLEST}[otlp]\n{otlp}"), &[]);
    let loaded = with("endpoint = \"https://otel.infra.svc:4318/base\"\nsample = 0.05\n").unwrap();
    let otlp = loaded.settings.otlp.expect("it was asked for");
    assert_eq!(otlp.endpoint.path(), "/base");
    assert!((otlp.sample - 0.05).abs() < f64::EPSILON);
    assert_eq!(load(SMALLEST, &[]).unwrap().settings.otlp, None, "off if it is not asked for");
    let by_variable = load(SMALLEST, &[("TIDEGATE__OTLP__ENDPOINT", "http://127.0.0.1:4318")]).unwrap();
    assert!(by_variable.settings.otlp.is_some());
    for (otlp, expected) in [
        ("", "otlp.endpoint: is missing, expected the URL of a collector, such as \"http://127.0.0.1:4318\""),
        ("endpoint = \"\"\n", "otlp.endpoint: is \"\", which is not a URL, expected a URL such as"),
        ("endpoint = \"localhost:4318\"\n", "is not a URL with http:// or https://, expected a URL such as"),
        ("endpoint = \"http://x:4317\"\n", "whose port is for gRPC; expected that for HTTP, 4318"),
        ("endpoint = \"http://x/v1/traces\"\n", "expected it without /v1/traces, which the gate adds"),
        ("endpoint = \"https://me:secret@x\"\n", "has a user or password in it, which cannot be set"),
        ("endpoint = \"http://x\"\nca = \"/ca.crt\"\n", "otlp.ca: has no effect: the endpoint is http://"),
        ("endpoint = \"http://x\"\nsample = 5\n", "otlp.sample: is 5, expected a share of the calls, from 0 to 1"),
        ("endpiont = \"http://x\"\n", "did you mean \"endpoint\"?"),
    ] {
        let problems = with(otlp).expect_err(otlp);
        assert!(problems.iter().any(|problem| problem.contains(expected)), "{otlp}: {problems:?}");
        assert!(!problems.concat().contains("secret"), "{problems:?}");
    }
}
