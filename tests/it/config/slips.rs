//! What people write who come from other tools: it works, or one line says what to write instead.

use crate::config::{SMALLEST, expect, in_gate, load};

/// The one problem of a file that is not in its gate's table.
fn one(text: &str) -> String {
    let problems = load(text, &[]).err().unwrap_or_default();
    assert_eq!(problems.len(), 1, "one mistake is one problem:\n{text}\n{}", problems.join("\n"));
    problems.into_iter().next().unwrap_or_default()
}

#[test]
fn a_rate_is_a_number_per_second_or_so_many_in_a_unit_of_time() {
    for (rate, per_second) in [
        ("20", 20.0),
        ("0.5", 0.5),
        ("\"5000/h\"", 5000.0 / 3600.0),
        ("\"900/min\"", 15.0),
        ("\"2.5/s\"", 2.5),
        ("\"86400/d\"", 1.0),
    ] {
        let loaded = load(&format!("{SMALLEST}bucket.rate = {rate}\n"), &[]).expect(rate);
        let bucket = loaded.settings.gates["kubernetes"].policy.bucket.expect("there is one");
        assert_eq!(bucket.rate, per_second, "{rate}");
        let shown = if rate.contains(['"', '.']) { rate.to_owned() } else { format!("{rate}.0") };
        assert!(loaded.effective.contains(&format!("rate = {shown},")), "as it was written\n{}", loaded.effective);
    }
    let variable = "TIDEGATE__GATES__KUBERNETES__BUCKET__RATE";
    let loaded = load(SMALLEST, &[(variable, "900/min")]).expect("a variable can say it too");
    assert_eq!(loaded.settings.gates["kubernetes"].policy.bucket.map(|bucket| bucket.rate), Some(15.0));
    let floor = load(&format!("{SMALLEST}bucket.adapt = {{ floor = \"60/min\" }}\n"), &[]).expect("a floor is a rate");
    let adapt = floor.settings.gates["kubernetes"].policy.bucket.and_then(|bucket| bucket.adapt);
    assert_eq!(adapt.map(|adapt| adapt.floor), Some(1.0));
}

#[test]
fn what_is_no_rate_is_told_how_rates_are_written() {
    const EXPECTED: &str =
        "expected a number per second, or text such as \"5000/h\" or \"900/min\" (units: s, min, h, d)";
    for rate in ["50", "5000/hour", "5000 / h", "/h", "-1/h", "1e3/h", "5000/h/h", ""] {
        in_gate(
            &format!("bucket.rate = \"{rate}\""),
            &[&format!("f.toml:3:15: gates.kubernetes.bucket.rate: is \"{rate}\", {EXPECTED}")],
        );
    }
    in_gate(
        "bucket.rate = \"0/h\"",
        &[
            "f.toml:3:15: gates.kubernetes.bucket.rate: is \"0/h\", expected calls per second above 0 and at most 1000000000",
        ],
    );
    in_gate(
        "bucket.adapt = { floor = \"60000/min\" }",
        &[
            "f.toml:3:26: gates.kubernetes.bucket.adapt.floor: is \"60000/min\", expected calls per second above 0 and at most the rate, 500.0",
        ],
    );
}

#[test]
fn what_other_tools_call_by_another_name_is_found() {
    for (more, meant) in [
        ("qps = 20", "bucket.rate"),
        ("bucket.qps = 20", "rate"),
        ("bucket = { rps = 20 }", "rate"),
        ("rate = 20", "bucket.rate\" or \"retry_bucket.rate"),
        ("max_wait = \"5s\"", "queue.max_wait"),
        ("bucket.max_wait = \"5s\"", "gates.kubernetes.queue.max_wait"),
        ("concurrency = 5", "in_flight.max"),
        ("url = \"https://x\"", "upstream"),
        ("port = 8001", "listen"),
        ("honour = []", "signals.honour"),
        ("level = \"debug\"", "log.level"),
    ] {
        let said = one(&format!("{SMALLEST}{more}\n"));
        assert!(said.ends_with(&format!(" (did you mean \"{meant}\"?)")), "{more}: {said}");
    }
    let said = one(&format!("{SMALLEST}[bucket]\nrate = 20\n"));
    assert!(said.ends_with("(did you mean \"gates.kubernetes.bucket\"?)"), "{said}");
    let said = one(&format!("{SMALLEST}classes = [{{ name = \"a\", match = {{}}, qps = 5 }}]\n"));
    assert!(said.ends_with("(did you mean \"bucket.rate\"?)"), "{said}");
    let said = one(&format!("{SMALLEST}colour = \"red\"\n"));
    assert!(!said.contains("did you mean"), "{said}");
}

#[test]
fn one_mistake_is_one_problem() {
    let gate = "[gates.k]\nupstream = \"http://x\"\n";
    for (more, about) in [
        // A key that does not exist, and what it was meant to say.
        ("preset = \"none\"\nbucket = { rte = 3, burst = 3 }", "bucket.rte"),
        ("preset = \"none\"\nbucket = { qps = 3, burst = 3 }", "bucket.qps"),
        ("backoff = { strtegy = \"fast_slow\", fast = \"1s\", slow = \"3s\", fast_attempts = 3 }", "strtegy"),
        ("credentials = \"inject\"\n[gates.k.credental]\nfile = \"/x\"", "credental"),
        ("signals = { reserve = 0.1, scop = \"class\" }", "scop"),
        ("classes = [{ nme = \"a\", match = {} }, { name = \"b\", match = {}, within = \"a\" }]", "nme"),
        ("classes = [{ name = \"a\", mtch = {} }]", "mtch"),
        ("classes = [{ name = \"a\" }, { name = \"b\", match = {}, withn = \"a\" }]", "withn"),
        (
            "classes = [{ name = \"aa\", match = {}, bukket = { rate = 3, burst = 3 } }, { name = \"b\", match = {}, within = \"aa\" }]",
            "bukket",
        ),
        (
            "classes = [{ name = \"aa\", match = {}, own_bucket_only = true, bukket = { rate = 3, burst = 3 } }]",
            "bukket",
        ),
        // A wrong word, and what would hold if the default were meant.
        ("backoff = { strategy = \"fast_slo\", fast = \"1s\", slow = \"3s\", fast_attempts = 3 }", "backoff.strategy"),
        ("tls = { mode = \"file\", cert = \"/a\", key = \"/b\" }", "tls.mode"),
        ("preset = \"crosplane\"\nmax_reconcile_rate = 3", "preset"),
        ("kind = \"htpp\"\npreset = \"github\"", "kind"),
        ("signals = { reserve = 0.1, scope = \"clas\" }", "scope"),
        ("backoff = { base = \"90\", max = \"10ms\" }", "backoff.base"),
        ("bucket.rate = \"a\"\nbucket.adapt = { floor = 300 }", "bucket.rate"),
        (
            "classes = [{ name = \"aa\", match = {}, bucket = { rate = \"x\", burst = 3 } }, { name = \"b\", match = {}, within = \"aa\" }]",
            "bucket.rate",
        ),
        (
            "classes = [{ name = \"aa\", match = {}, own_bucket_only = true, bucket = { rate = \"x\", burst = 3 } }]",
            "bucket.rate",
        ),
        ("listen = \"localhost:8001\"\n[gates.other]\nupstream = \"http://x\"", "k.listen"),
        // A table without an effect, and what is missing in it.
        ("upstream_tls = { cert = \"/x\" }", "upstream_tls"),
        ("credentials = \"pass_through\"\ncredential = { header = \"x\" }", "credential"),
    ] {
        let said = one(&format!("{gate}{more}\n"));
        assert!(said.split(": ").nth(1).is_some_and(|path| path.ends_with(about)), "{more}: {said}");
    }
    for (text, about) in [
        ("[gates.k]\nupstrm = \"http://x\"\n", "gates.k.upstrm"),
        ("[gates.k]\nupstrm = \"http://x\"\ncredentials = \"inject\"\n", "gates.k.upstrm"),
        ("[gates.k]\nknd = \"http\"\nupstream = \"http://x\"\npreset = \"github\"\n", "gates.k.knd"),
        ("[gates]\nupstream = \"kubeconfig\"\n", "gates.upstream"),
        ("[gates.k]\nkind = \"http\"\nupstream = \"kubeconfig\"\ncredential = { file = \"/x\" }\n", "gates.k.upstream"),
    ] {
        assert_eq!(one(text).split(": ").nth(1), Some(about), "{}", one(text));
    }
}

#[test]
fn two_mistakes_are_two_problems() {
    let gate = "[gates.k]\nupstream = \"http://x\"\n";
    for more in [
        "bucket = { rate = 0, burst = 0 }",
        "colour = 1\nlisten = \"x\"",
        "preset = \"none\"\nbucket = { colour = 1 , burst = 5 }",
        "shadow = yes\nlog = maybe",
    ] {
        let problems = load(&format!("{gate}{more}\n"), &[]).expect_err(more);
        assert_eq!(problems.len(), 2, "{more}\n{}", problems.join("\n"));
    }
}

#[test]
fn a_slip_of_syntax_is_one_problem() {
    let gate = "[gates.k]\nupstream = \"http://x\"\n";
    for (more, expected) in [
        (
            "allowed_hosts = [\"a\", \"b\"\nshadow = true\n[gates.k.bucket]\nrate = 3\n",
            "f.toml:4:1: unclosed array, expected `]` before this",
        ),
        (
            "bucket = { rate = 3, burst = 4\nshadow = true\n[admin]\nlisten = \"off\"\n",
            "f.toml:4:1: unclosed inline table, expected `}` before this",
        ),
        ("shadow: true\n", "f.toml:3:9: key with no value, expected `=`"),
        ("queue.max_wait = 8s\n", "f.toml:3:18: string values must be quoted, expected literal string"),
        (
            "bucket = { rate = 5000/h, burst = 9 } # x\n",
            "f.toml:3:19: string values must be quoted, expected literal string",
        ),
        ("preset = none\n", "f.toml:3:10: string values must be quoted"),
        ("credential.file = hunter2\n", "f.toml:3:19: string values must be quoted, expected literal string"),
    ] {
        expect(&format!("{gate}{more}"), &[], &[expected]);
    }
}

#[test]
fn numbers_that_toml_does_not_carry_are_named_as_such() {
    for number in ["99999999999999999999", "-99999999999999999999", &"9".repeat(50), "1e999"] {
        expect(
            &format!("[gates.k]\nupstream = \"kubeconfig\"\nbucket = {{ rate = 1, burst = {number} }}\n"),
            &[],
            &["f.toml:3:30: is too large a number, expected at most 18 digits"],
        );
    }
}

#[test]
fn a_file_of_another_kind_is_recognised() {
    const GATES: &str =
        "TOML: [gates.kubernetes] on a line of its own, and keys such as upstream = \"in_cluster\" below it";
    for (text, expected) in [
        (
            "# limits\ngates:\n  kubernetes:\n    upstream: kubeconfig\n    bucket:\n      rate: 20\n",
            format!("f.toml: is YAML, expected {GATES}"),
        ),
        (
            "{\n  \"gates\": {\"kubernetes\": {\"upstream\": \"kubeconfig\"}}\n}\n",
            format!("f.toml: is JSON, expected {GATES}"),
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\ndata:\n  tidegate.toml: |\n    [gates.kubernetes]\n    upstream = \"in_cluster\"\n",
            format!("f.toml: is a Kubernetes manifest (ConfigMap), expected the configuration file itself, in {GATES}"),
        ),
        (
            "apiVersion: v1\nkind: Config\nclusters: []\n",
            format!("f.toml: is a kubeconfig, which upstream = \"kubeconfig\" finds by itself; expected {GATES}"),
        ),
    ] {
        expect(text, &[], &[&expected]);
    }
}

#[test]
fn a_variable_that_nothing_reads_is_named_with_the_nearest_that_exists() {
    for (name, near) in [
        ("TIDEGATE_GATES_KUBERNETES_BUCKET_RATE", "TIDEGATE__GATES__KUBERNETES__BUCKET__RATE"),
        ("TIDEGATE_BUCKET_RATE", "TIDEGATE__GATES__KUBERNETES__BUCKET__RATE"),
        ("TIDEGATE_LOG_LEVEL", "TIDEGATE__LOG__LEVEL"),
        ("TIDEGATE_LOG__LEVEL", "TIDEGATE__LOG__LEVEL"),
        ("TIDE_GATE__LOG__LEVEL", "TIDEGATE__LOG__LEVEL"),
        ("TIDEGATE_ADMIN_LISTEN", "TIDEGATE__ADMIN__LISTEN"),
    ] {
        let loaded = load(SMALLEST, &[(name, "5")]).expect("it is no error by itself");
        assert_eq!(loaded.warnings, [format!("{name}: nothing reads this variable (did you mean {near}?)")]);
    }
    let loaded = load(SMALLEST, &[("TIDEGATE_COLOUR_OF_THE_SKY", "blue")]).expect("it is no error by itself");
    assert_eq!(
        loaded.warnings,
        [
            "TIDEGATE_COLOUR_OF_THE_SKY: nothing reads this variable; a variable that sets a key looks like TIDEGATE__LOG__LEVEL"
        ]
    );
}

#[test]
fn variables_of_kubernetes_services_are_not_named() {
    for (name, value) in [
        ("TIDEGATE_SERVICE_HOST", "10.0.0.1"),
        ("TIDEGATE_SERVICE_PORT", "9464"),
        ("TIDEGATE_SERVICE_PORT_METRICS", "9464"),
        ("TIDEGATE_PORT", "tcp://10.0.0.1:9464"),
        ("TIDEGATE_PORT_9464_TCP", "tcp://10.0.0.1:9464"),
        ("TIDEGATE_PORT_9464_TCP_PROTO", "tcp"),
        ("TIDEGATE_PORT_9464_TCP_PORT", "9464"),
        ("TIDEGATE_PORT_9464_TCP_ADDR", "10.0.0.1"),
        ("TIDEGATE_ADMIN_SERVICE_HOST", "10.0.0.1"),
        ("TIDEGATE_ADMIN_PORT_53_UDP_ADDR", "10.0.0.1"),
        ("TIDEGATE_CONFIG", "/x"),
        ("TIDEGATE__LOG__LEVEL", "debug"),
        ("PATH", "/usr/bin"),
    ] {
        let loaded = load(SMALLEST, &[(name, value)]).expect("right");
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    }
}

#[test]
fn a_variable_that_was_meant_for_a_missing_key_is_the_problem() {
    expect(
        "[gates.k]\n",
        &[("TIDEGATE_GATES_K_UPSTREAM", "http://x")],
        &["TIDEGATE_GATES_K_UPSTREAM: nothing reads this variable (did you mean TIDEGATE__GATES__K__UPSTREAM?)"],
    );
}

#[test]
fn a_secret_that_is_not_sent_is_told() {
    let gate = |more: &str| {
        format!(
            "[gates.g]\nkind = \"http\"\nupstream = \"https://x\"\nrewrite_links = true\ncredential.file = \"/t\"\n{more}\n"
        )
    };
    let warned = |more: &str| load(&gate(more), &[]).expect("it can be run").warnings;
    assert!(warned("").is_empty() && warned("listen = \"unix:/x.sock\"").is_empty());
    let rest = "credentials = \"auto\" passes on the client's own; expected credentials = \"inject\" (beyond loopback with tls.client_ca or \
                tls.write_to), or a plain loopback listener";
    for listen in ["0.0.0.0:8002", "[::]:8002", "10.0.0.1:8002"] {
        assert_eq!(
            warned(&format!("listen = \"{listen}\"")),
            [format!("f.toml:5:1: gates.g.credential: is not sent: beyond loopback {rest}")]
        );
    }
    assert_eq!(warned("tls = {}"), [format!("f.toml:5:1: gates.g.credential: is not sent: with [tls] {rest}")]);
    assert!(warned("tls = {}\ncredentials = \"inject\"").is_empty());
}

#[test]
fn what_stands_behind_a_host_is_a_port_wherever_urls_are_read() {
    for host in ["127.0.0.1:99999", "x:64443O", "x:0", "x:", "x:+80", "[::1]:70000"] {
        for text in [
            format!("[gates.k]\nupstream = \"https://{host}\"\n"),
            format!("[egress]\nvia = \"http://{host}\"\n"),
            format!("{SMALLEST}[otlp]\nendpoint = \"http://{host}\"\n"),
        ] {
            let said = one(&text);
            assert!(said.contains(" which has no port from 1 to 65535 behind its host, expected "), "{said}");
        }
    }
    for host in ["127.0.0.1", "127.0.0.1:1", "x:65535", "[::1]", "[::1]:8080"] {
        load(&format!("[gates.k]\nupstream = \"https://{host}/base\"\n"), &[]).expect(host);
        load(&format!("[egress]\nvia = \"http://{host}\"\n"), &[]).expect(host);
    }
}

#[test]
fn no_message_shows_what_is_a_secret_in_the_wrong_place() {
    let gate = "[gates.k]\nkind = \"http\"\n";
    let with = |more: &str| format!("{gate}upstream = \"https://x\"\ncredentials = \"inject\"\n{more}\n");
    for (text, expected) in [
        (with("credential = \"hunter2\""), "credential: is text, expected a table"),
        (with("credential = [\"hunter2\"]"), "credential: is a list, expected a table"),
        (with("credential = { file = [\"hunter2\"] }"), "credential.file: is a list, expected text in quotes"),
        (
            with("credential = { header = \"Bearer hunter2\", file = \"/x\" }"),
            "header: is text, expected the name of a header",
        ),
        (with("credential = { token = \"hunter2\", file = \"/x\" }"), "token: is not a valid key"),
        (format!("{gate}upstream = \"https://x/?api_key=hunter2\"\n"), "upstream: has a query or fragment, expected"),
        (format!("{gate}upstream = \"https://x/#hunter2\"\n"), "upstream: has a query or fragment, expected"),
        (format!("{gate}upstream = \"x/?api_key=hunter2\"\n"), "upstream: has a query or fragment, expected"),
        (format!("{gate}upstream = \"https://x y/?api_key=hunter2\"\n"), "upstream: has a query or fragment, expected"),
        (format!("{gate}upstream = \"https:/me:hunter2@x\"\n"), "upstream: has a user or password in it"),
        ("[egress]\nvia = \"http://x/?token=hunter2\"\n".to_owned(), "egress.via: has a query or fragment, expected"),
        ("[egress]\nvia = \"http:/me:hunter2@x\"\n".to_owned(), "egress.via: has a user or password in it"),
    ] {
        let said = one(&text);
        assert!(said.contains(expected) && !said.contains("hunter2"), "{text}: {said}");
    }
    let variable = [("TIDEGATE__GATES__K__CREDENTIAL", "hunter2")];
    let said = load(&format!("{gate}upstream = \"https://x\"\n"), &variable).expect_err("it is no table").join("\n");
    assert!(said.contains("expected a table") && !said.contains("hunter2"), "{said}");
}

#[test]
fn a_pattern_that_nothing_can_match_says_what_it_should_be() {
    let of = |kind: &str, pattern: &str| {
        format!(
            "[gates.k]\nkind = \"{kind}\"\nupstream = \"https://x\"\nclasses = [{{ name = \"a\", match = {{ {pattern} }} }}]\n"
        )
    };
    for (pattern, expected) in [
        ("resources = [\"deployments.apps\"]", "expected a resource such as \"pods\"; put its group into groups"),
        ("resources = [\"*.apps\"]", "put its group into groups"),
        ("resources = [\"Pods\"]", "expected a resource as in API paths, in lower case and plural"),
        ("groups = [\"apps\"], resources = [\"Deployment\"]", "in lower case and plural"),
        ("groups = [\"apps/v1\"]", "expected a group without its version, such as \"apps\""),
        ("groups = [\"v1\"]", "which is a version, not a group; the core group is \"\""),
        ("groups = [\"Apps\"]", "expected a group in lower case"),
        ("namespaces = [\"Prod\"]", "expected a namespace: lower case letters, digits and \"-\""),
        ("namespaces = [\"prod/*\"]", "expected a namespace"),
        ("names = [\"a/b\"]", "expected the name of an object, which has no \"/\" and no \"%\""),
        ("subresources = [\"Status\"]", "(did you mean \"status\"?)"),
        ("subresources = [\"pods/log\"]", "expected a subresource such as \"status\"; put its resource into resources"),
        ("paths = [\"/a%20b\"]", "expected a path without %-escapes"),
        ("paths = [\"/a%2Fb\"]", "expected a path without %-escapes"),
    ] {
        let said = one(&of("kubernetes", pattern));
        assert!(said.contains(expected), "{pattern}: {said}");
    }
    let said = one(&of("http", "paths = [\"/a%20b\"]"));
    assert!(said.contains("expected a path without %-escapes, except %2F"), "{said}");
    for pattern in [
        "resources = [\"*\", \"p*s\", \"x-1\"]",
        "groups = [\"\", \"*\", \"v1.example.com\", \"*.k8s.io\", \"v*\"]",
        "namespaces = [\"\", \"prod-*\"], names = [\"system:Controller.x\"]",
        "subresources = [\"\", \"status\", \"instantiateBinary\"]",
        // The resource of a metric is its name, or an object's with its group.
        "groups = [\"external.metrics.k8s.io\"], resources = [\"Queue.length\"]",
        "groups = [\"*.metrics.k8s.io\"], resources = [\"deployments.apps\"], subresources = [\"Status\"]",
        "paths = [\"/100%\", \"/a b\", \"/%*\"]",
    ] {
        load(&of("kubernetes", pattern), &[]).expect(pattern);
    }
    load(&of("http", "paths = [\"/repos/*/branches/feature%2f*\"]"), &[]).expect("data there");
}

#[test]
fn links_are_rewritten_of_external_apis_only() {
    in_gate(
        "rewrite_links = true",
        &[
            "f.toml:3:17: gates.kubernetes.rewrite_links: is true, but responses of a cluster have no links; it is for kind = \"http\"",
        ],
    );
    in_gate("rewrite_links = false", &[]);
}
