//! The presets of providers: what they read, what they limit, by what they split, and what is said
//! of bad input.

use std::fs;

use http::{HeaderMap, HeaderValue, Method};
use tidegate::classify::{ApiKind, ClassifiedCall, Salt};
use tidegate::config::{Configuration, Input, PRESETS, Problem, load as load_file, load_text};
use tidegate::dialect::Head;
use tidegate::limit::policy::{BucketPolicy, Per};
use tidegate::spec::Gate;

use crate::command::{config, end, tidegate, with_config};
use crate::support::{Backend, Proxy, header, reply, status};

pub(super) fn load(preset: &str, more: &str) -> Result<Configuration, Vec<String>> {
    let text = format!("[gates.g]\nupstream = \"https://api.example.com\"\npreset = \"{preset}\"\n{more}");
    let loaded = load_text("f.toml".to_owned(), text, &[]);
    loaded.map_err(|problems| problems.iter().map(Problem::to_string).collect())
}

pub(super) fn gate(preset: &str, more: &str) -> Gate {
    load(preset, more)
        .unwrap_or_else(|problems| panic!("{problems:?}"))
        .settings
        .gates
        .remove("g")
        .expect("it is there")
}

/// The embedded presets of providers.
pub(super) fn providers() -> impl Iterator<Item = &'static str> {
    let has_figures = |name: &&str| gate(name, "kind = \"http\"\n").figures.is_some();
    PRESETS.iter().map(|preset| preset.name).filter(has_figures)
}

fn problems(preset: &str, more: &str, expected: &[&str]) {
    assert_eq!(load(preset, more).err().unwrap_or_default(), expected, "{preset}, {more}");
}

/// A call to AWS, signed by a key of the account.
pub(super) struct Signed<'a> {
    pub(super) account: u64,
    pub(super) region: &'a str,
    pub(super) service: &'a str,
    pub(super) method: Method,
    pub(super) path: &'a str,
    pub(super) form: &'a str,
}

impl Signed<'_> {
    /// An access key id of the account, as AWS makes them.
    fn key_id(&self) -> String {
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        let bits = (1 << 47 | self.account << 7 | 0x2a) << 2;
        let letter = |place: u64| letters[(bits >> (45 - 5 * place) & 31) as usize] as char;
        format!("ASIA{}AAAAAA", (0..10).map(letter).collect::<String>())
    }

    pub(super) fn classified(&self, gate: &Gate, hasher: &Salt) -> ClassifiedCall {
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/20261123/{}/{}/aws4_request, SignedHeaders=host, Signature=0",
            self.key_id(),
            self.region,
            self.service
        );
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_str(&authorization).expect("a value"));
        headers.insert("content-type", HeaderValue::from_static("application/x-www-form-urlencoded"));
        let uri = self.path.parse().expect("a path");
        let head = Head { method: &self.method, uri: &uri, headers: &headers };
        gate.rules.classify_with(&head, self.form.as_bytes(), hasher)
    }
}

fn action<'a>(service: &'a str, form: &'a str) -> Signed<'a> {
    Signed { account: 111_122_223_333, region: "eu-central-1", service, method: Method::POST, path: "/", form }
}

fn class_of<'a>(gate: &'a Gate, call: &ClassifiedCall) -> &'a str {
    &gate.policy.classes[usize::from(call.class.0)].name
}

fn bucket_of(gate: &Gate, class: &str) -> Option<(f64, u32, Per)> {
    let class = gate.policy.classes.iter().find(|one| &*one.name == class).unwrap_or_else(|| panic!("no {class}"));
    class.bucket.map(numbers)
}

fn numbers(bucket: BucketPolicy) -> (f64, u32, Per) {
    (bucket.rate, bucket.burst.get(), bucket.per)
}

#[test]
fn a_preset_of_a_provider_implies_kind_and_dialect() {
    for preset in providers() {
        let dialect = match preset {
            "azure_arm" => "azure",
            "gcp" => "google",
            "github" => preset,
            _ if preset.starts_with("aws") => "aws",
            _ => "plain",
        };
        let loaded = load(preset, "").unwrap();
        let share = if preset == "github" { "share = 1.0" } else { "share = 0.5" };
        for line in ["kind = \"http\"", &format!("dialect = \"{dialect}\""), share] {
            assert!(loaded.effective.lines().any(|one| one == line), "{preset}: {line}\n{}", loaded.effective);
        }
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        let gate = &loaded.settings.gates["g"];
        assert_eq!(
            (gate.kind, gate.policy.queue.max_wait.as_secs()),
            (ApiKind::Http, if dialect == "aws" { 30 } else { 8 })
        );
        let again = load_text("f.toml".to_owned(), loaded.effective.clone(), &[]).expect("what is in force is right");
        assert_eq!(format!("{:#?}", again.settings), format!("{:#?}", loaded.settings), "{}", loaded.effective);
    }
}

#[test]
fn ec2s_actions_have_the_buckets_that_aws_gives_them() {
    let (gate, hasher) = (gate("aws_ec2", "share = 1\n"), Salt::random());
    for (form, expected) in [
        ("Action=RunInstances", "ec2_launches"),
        ("Action=DescribeVpcs", "ec2_reads"),
        ("Action=DescribeInstances", "ec2_unfiltered"),
        ("Action=DescribeInstances&InstanceId.1=i-1", "ec2_reads"),
        ("Action=CreateKeyPair", "ec2_intensive"),
        ("Action=CreateVpc", "ec2_writes"),
        ("Action=CreateTags", "ec2_tags"),
        ("", "ec2_writes"),
    ] {
        assert_eq!(class_of(&gate, &action("ec2", form).classified(&gate, &hasher)), expected, "{form}");
    }
    assert_eq!(class_of(&gate, &action("iam", "Action=GetUser").classified(&gate, &hasher)), "default");
    assert_eq!(bucket_of(&gate, "ec2_launches"), Some((2.0, 2, Per::Action)));
    assert_eq!(bucket_of(&gate, "ec2_reads"), Some((20.0, 79, Per::Action)));
    let others = gate.policy.bucket.expect("a bucket");
    assert_eq!((numbers(others), others.adapt.map(|adapt| adapt.floor)), ((20.0, 40, Per::Account), Some(1.0)));
}

#[test]
fn a_share_scales_the_buckets_of_the_gate_and_of_its_classes() {
    let half = gate("aws_elb", "");
    assert_eq!(half.policy.bucket.map(numbers), Some((10.0, 20, Per::Account)));
    assert_eq!(bucket_of(&half, "elb"), Some((5.0, 20, Per::Account)));
    assert_eq!(bucket_of(&half, "elb_creates"), Some((0.1, 5, Per::Account)));
    let little = gate("aws_elb", "share = 0.001\n");
    assert_eq!(bucket_of(&little, "elb_creates"), Some((0.0002, 1, Per::Account)), "at least one call");
    assert_eq!(little.policy.bucket.and_then(|bucket| bucket.adapt).map(|adapt| adapt.floor), Some(0.02));
    let github = gate("github", "share = 0.5\n");
    assert_eq!(github.policy.bucket.map(numbers), Some((0.625, 10, Per::Gate)));
    assert_eq!(bucket_of(&github, "creates"), Some((0.0665, 10, Per::Gate)));
    let own = gate("aws_elb", "classes = [{ name = \"elb\", bucket = { rate = 7 } }]\n");
    assert_eq!(bucket_of(&own, "elb"), Some((7.0, 20, Per::Account)), "what is said is not scaled");
}

#[test]
fn one_gate_splits_each_class_by_what_its_service_counts() {
    let (gate, hasher) = (gate("aws", ""), Salt::random());
    let identity = |call: &Signed<'_>| call.classified(&gate, &hasher).credential;
    let ec2 = |form| identity(&action("ec2", form));
    assert_ne!(ec2("Action=DescribeVpcs"), ec2("Action=DescribeSubnets"), "EC2 counts by action");
    assert_eq!(ec2("Action=DescribeVpcs"), ec2("Action=DescribeVpcs&MaxResults=5"));
    let elb = |form| identity(&action("elasticloadbalancing", form));
    assert_eq!(elb("Action=DescribeTags"), elb("Action=RegisterTargets"), "ELB counts all of an account");
    let iam = identity(&action("iam", "Action=GetUser"));
    assert_ne!(iam, identity(&action("autoscaling", "Action=DescribePolicies")), "each service by itself");
    assert_eq!(iam, identity(&action("iam", "Action=CreateUser")));
    for service in ["ec2", "elasticloadbalancing", "iam"] {
        let one = action(service, "Action=DescribeTags");
        let (region, account) = ("us-east-1", 1);
        let elsewhere = Signed { region, ..action(service, "Action=DescribeTags") };
        let another = Signed { account, ..action(service, "Action=DescribeTags") };
        assert_ne!(identity(&one), identity(&elsewhere), "{service}: another region");
        assert_ne!(identity(&one), identity(&another), "{service}: another account");
    }
}

#[test]
fn only_changes_of_one_zone_go_one_at_a_time() {
    let path = "/2013-04-01/hostedzone/Z1/rrset/";
    for preset in ["aws", "aws_route53"] {
        let (gate, hasher) = (gate(preset, ""), Salt::random());
        assert!(gate.policy.one_at_a_time);
        let change = Signed { path, ..action("route53", "") }.classified(&gate, &hasher);
        assert_eq!((class_of(&gate, &change), change.goes_alone), ("route53_changes", true));
        let write = action("ec2", "Action=RunInstances").classified(&gate, &hasher);
        assert!(!write.goes_alone, "two launches may be the same");
    }
    let (all, hasher) = (gate("aws", "one_at_a_time = true\n"), Salt::random());
    assert!(action("ec2", "Action=RunInstances").classified(&all, &hasher).goes_alone, "as it was asked for");
    assert!(!gate("aws_ec2", "").policy.one_at_a_time);
}

#[test]
fn check_prints_figures_share_and_source() {
    let text = load("aws_elb", "share = 0.25\n").unwrap().effective;
    for line in [
        "# Published limits, of which preset = \"aws_elb\" of gates.g takes share = 0.25:",
        "# Elastic Load Balancing User Guide, \"Request throttling for the ELB API\", read on 2026-11-23: \
         https://docs.aws.amazon.com/elasticloadbalancing/latest/userguide/elb-api-throttling.html",
        "#   elb_targets: 4/s, burst 20 for each account and region",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}\n{text}");
    }
    assert!(!load("sidecar", "").unwrap().effective.contains('#'));
}

#[test]
fn explain_prints_figure_share_and_source() {
    let (_folder, path) =
        config("[gates.g]\nupstream = \"https://ec2.eu-central-1.amazonaws.com\"\npreset = \"aws_ec2\"\n");
    let scope = "Credential=AKID/20261123/eu-central-1/ec2/aws4_request";
    let mut command = with_config("explain", &path);
    command.args(["GET", "/?Action=RunInstances", "--header", &format!("Authorization: AWS4-HMAC-SHA256 {scope}")]);
    let said = end(command).out;
    for line in [
        "  means         service ec2, region eu-central-1, action RunInstances, a write",
        "  published     2/s, burst 5 for each account, region and action; share 0.5 is taken",
        "                Amazon EC2 Developer Guide, \"Request throttling for the Amazon EC2 API\", read on 2026-11-23: \
         https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html",
    ] {
        assert!(said.lines().any(|one| one == line), "{line}\n{said}");
    }
    let bucket = said.lines().find(|line| line.starts_with("  class bucket")).unwrap_or_else(|| panic!("{said}"));
    assert!(bucket.contains("1/s, burst 2 for each account and action of class ec2_launches"), "{bucket}");
    assert!(bucket.ends_with(&format!("preset, {}:3:1", path.display())), "{bucket}");
}

#[test]
fn explain_prints_the_pace_of_an_object_where_it_is_enforced() {
    let explain = |more: &str, call: &[&str]| {
        let (_folder, path) = config(&format!("[gates.g]\nupstream = \"http://localhost:1\"\n{more}"));
        let mut command = with_config("explain", &path);
        command.args(call);
        end(command).out
    };
    let row = |said: &str| said.lines().find(|line| line.starts_with("  per key")).map(str::to_owned);
    let put = ["PUT", "/api/v1/namespaces/a/configmaps/b"];
    let enforced = "per_key = { writes = \"30/min\", burst = 7, enforce = true }";
    let said = explain(enforced, &put);
    let one = row(&said).unwrap_or_else(|| panic!("{said}"));
    assert!(one.starts_with("  per key       writes of one object: 0.5/s, burst 7"), "{one}");
    assert!(one.ends_with(":3:1"), "{one}");
    for (more, call) in [
        ("", put),
        (enforced, ["GET", "/api/v1/namespaces/a/configmaps/b"]),
        (enforced, ["POST", "/api/v1/namespaces/a/configmaps"]),
    ] {
        assert_eq!(row(&explain(more, &call)), None, "{more} {call:?}");
    }
}

#[test]
fn a_service_that_nobody_knows_is_warned_of_and_the_near_one_named() {
    let class = |service: &str| format!("classes = [{{ name = \"a\", match = {{ services = [\"{service}\"] }} }}]\n");
    let warnings = |service: &str| load("aws", &class(service)).unwrap().warnings;
    let place = "f.toml:4:48: gates.g.classes[0].match.services[0]";
    assert_eq!(
        warnings("elasticloadbalancingv2"),
        [format!(
            "{place}: is \"elasticloadbalancingv2\", which is not the name of a known AWS service in signatures (did \
             you mean \"elasticloadbalancing\"?)"
        )]
    );
    assert!(warnings("ecs").is_empty() && warnings("e*").is_empty() && warnings("brand-new-service").is_empty());
    let wrong = format!(
        "{place}: is \"Elastic Load Balancing v2\", expected the name that AWS signatures have for it: \"elasticloadbalancing\""
    );
    problems("aws", &class("Elastic Load Balancing v2"), &[&wrong]);
}

#[test]
fn a_wait_that_outlives_a_signature_is_warned_of() {
    let warnings = |wait: &str| load("aws", &format!("queue.max_wait = \"{wait}\"\n")).unwrap().warnings;
    assert!(warnings("240s").is_empty());
    assert_eq!(
        warnings("241s"),
        [
            "f.toml:4:7: gates.g.queue.max_wait: is 4m1s, but AWS takes a signature for five minutes after it was made; expected at most \"240s\""
        ]
    );
}

#[test]
fn bad_presets_and_shares_are_named() {
    let fraction = "expected a fraction above 0 and at most 1; 0.5 takes half of what the provider publishes";
    problems("aws", "share = 0\n", &[&format!("f.toml:4:9: gates.g.share: is 0.0, {fraction}")]);
    problems("aws", "share = 2\n", &[&format!("f.toml:4:9: gates.g.share: is 2.0, {fraction}")]);
    problems("github", "share = nan\n", &[&format!("f.toml:4:9: gates.g.share: is NaN, {fraction}")]);
    let why = "f.toml:4:1: gates.g.share: has no effect: preset = \"client_go\" has no figures of a provider, of which it would \
               take a share";
    problems("client_go", "share = 0.5\n", &[why]);
    let names: Vec<String> = PRESETS.iter().map(|preset| format!("\"{}\"", preset.name)).collect();
    let (last, others) = names.split_last().expect("there are some");
    let all = format!("expected {} or {last}", others.join(", "));
    problems(
        "aws_ecs",
        "kind = \"http\"\n",
        &[&format!("f.toml:3:10: gates.g.preset: is \"aws_ecs\", {all} (did you mean \"aws_ec2\"?)")],
    );
    problems(
        "gcp",
        "dialect = \"aws\"\n",
        &[
            "f.toml:4:11: gates.g.dialect: is \"aws\", but preset = \"gcp\" needs what dialect = \"google\" reads from calls",
        ],
    );
    problems(
        "github",
        "dialect = \"plain\"\n",
        &[
            "f.toml:4:11: gates.g.dialect: is \"plain\", but preset = \"github\" needs what dialect = \"github\" reads from calls",
        ],
    );
    problems(
        "github",
        "dialect = \"githob\"\n",
        &[
            "f.toml:4:11: gates.g.dialect: is \"githob\", expected \"plain\", \"aws\", \"azure\", \"google\" or \"github\" (did you mean \"github\"?)",
        ],
    );
}

#[test]
fn a_class_is_split_by_one_identity() {
    let class = "classes = [{ name = \"a\", match = { services = [\"iam\"] }, bucket = { rate = 1, burst = 1, per = \"action\" } }]\n";
    problems(
        "aws",
        class,
        &[
            "f.toml:1:1: gates.g: the limits of class \"a\" have different `per` (client, credential, account, action), expected the \
          same in its bucket, in those that it is within and in the gate's; to leave out the gate's, set own_bucket_only = true",
        ],
    );
    let alone = class.replace(" } }]", " }, own_bucket_only = true }]");
    assert_eq!(bucket_of(&gate("aws", &alone), "a"), Some((1.0, 1, Per::Action)));
}

/// A provider of a user's own, in a file beside the configuration: one write, and checks that are
/// free.
const MINE: &str = r#"
kind = "http"
bucket = { rate = 0.001, burst = 9 }
uncounted = [{ methods = ["HEAD"] }]
[source]
name = "Rate limits"
read = "2026-11-27"
url = "https://example.com/limits"
each = "user"
[queue]
max_wait = "0s"
[[classes]]
name = "writes"
match = { methods = ["POST"] }
bucket = { rate = 0.001, burst = 1, published = { burst = 1, rate = 0.001 } }
"#;

#[tokio::test]
async fn a_users_file_is_the_preset_of_a_gate() {
    let (folder, path) =
        config("[gates.g]\nupstream = \"https://x\"\npreset = \"./mine.toml\"\nrewrite_links = true\n");
    fs::write(folder.path().join("mine.toml"), MINE).expect("written");
    let loaded = load_file(&Input { file: Some(path), env: Vec::new() }).expect("it is right");
    assert!(loaded.effective.contains("# Rate limits, read on 2026-11-27: https://example.com/limits\n"));
    let backend = Backend::start(|_| async { reply(200, "ok") }).await;
    let proxy = Proxy::before(backend.address).with(|options| {
        let (name, listen) = (options.gate.name.clone(), options.gate.listen.clone());
        options.gate = Gate { name, listen, ..loaded.settings.gates["g"].clone() };
    });
    let proxy = proxy.start().await;
    let call = async |method: &str, path: &str| {
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        let answer = proxy.exchange(&head).await;
        (status(&answer), header(&answer, "tidegate-refusal").map(str::to_owned))
    };
    for path in ["/a", "/b"] {
        let expected = if path == "/a" { (200, None) } else { (429, Some("class_bucket".to_owned())) };
        assert_eq!(call("POST", path).await, expected);
    }
    for path in 0..20 {
        assert_eq!(call("HEAD", &format!("/{path}")).await, (200, None), "it costs no token");
    }
    for path in 0..8 {
        assert_eq!(call("GET", &format!("/{path}")).await, (200, None), "one of nine tokens is gone");
    }
    assert_eq!(call("GET", "/9").await, (429, Some("bucket".to_owned())));
}

#[test]
fn check_prints_an_embedded_preset_or_names_all() {
    let check = |preset: &str| end(tidegate(["check", "--preset", preset]));
    for preset in PRESETS {
        assert_eq!(check(preset.name).out, preset.text);
    }
    let unknown = check("githob");
    assert_eq!(unknown.code, Some(64));
    for name in PRESETS.iter().map(|preset| preset.name) {
        assert!(unknown.err.contains(name), "{name}: {}", unknown.err);
    }
}

#[test]
fn the_chart_takes_every_preset_with_hosts() {
    let schema = include_str!("../../deploy/helm/tidegate/values.schema.json");
    let with_hosts = PRESETS.iter().filter(|preset| preset.text.contains("\nhosts = "));
    let names: Vec<String> = with_hosts.map(|preset| format!("\"{}\"", preset.name)).collect();
    assert!(schema.contains(&format!("\"enum\": [{}]", names.join(", "))), "{names:?}");
}

#[test]
fn the_calls_of_new_presets_have_the_classes_of_their_documents() {
    let signed = |service, method, path| Signed { method, path, ..action(service, "") };
    let (aws, salt) = (gate("aws", ""), Salt::random());
    for (call, class) in [
        (action("ses", "Action=SendEmail"), "ses_sends"),
        (action("ses", "Action=GetSendQuota"), "ses"),
        (signed("ses", Method::POST, "/v2/email/outbound-emails"), "default"),
        (signed("lambda", Method::POST, "/2015-03-31/functions/f/invocations"), "lambda_calls"),
        (signed("lambda", Method::GET, "/2015-03-31/functions/f/policy"), "lambda_policies"),
        (signed("lambda", Method::GET, "/2015-03-31/functions/f"), "lambda_functions"),
        (signed("lambda", Method::GET, "/2015-03-31/functions/f/aliases"), "lambda_parts"),
        (signed("lambda", Method::PUT, "/2015-03-31/functions/f/code"), "lambda"),
        (signed("lambda", Method::GET, "/2015-03-31/functions/"), "lambda_parts"),
    ] {
        assert_eq!(class_of(&aws, &call.classified(&aws, &salt)), class, "{}", call.path);
    }
    for (preset, method, path, class) in [
        ("letsencrypt", Method::POST, "/acme/new-order", "orders"),
        ("letsencrypt", Method::HEAD, "/acme/new-nonce", "nonces"),
        ("letsencrypt", Method::POST, "/acme/authz/1/2", "default"),
        ("gitlab", Method::GET, "/api/v4/projects/1/search", "searches"),
        ("gitlab", Method::POST, "/api/v4/projects/1/merge_requests/2/notes", "notes"),
        ("gitlab", Method::GET, "/api/v4/projects/1", "default"),
        ("docker", Method::GET, "/v2/library/nginx/manifests/latest", "pulls"),
        ("docker", Method::GET, "/v2/library/nginx/blobs/sha256:1", "default"),
        ("cloudflare", Method::POST, "/client/v4/graphql", "graphql"),
        ("digitalocean", Method::GET, "/v2/droplets", "minute"),
        ("hetzner", Method::GET, "/v1/servers", "default"),
        ("okta", Method::GET, "/api/v1/apps/0oa1/users", "apps"),
        ("okta", Method::GET, "/api/v1/apps/0oa1", "app"),
        ("okta", Method::PUT, "/api/v1/groups/00g1/users/00u1", "groups"),
        ("okta", Method::DELETE, "/api/v1/groups/00g1", "group"),
        ("okta", Method::GET, "/api/v1/users", "users"),
        ("okta", Method::GET, "/api/v1/users/00u1/groups", "user_parts"),
        ("okta", Method::GET, "/api/v1/users/00u1", "user_reads"),
        ("okta", Method::PUT, "/api/v1/users/00u1", "user_writes"),
        ("okta", Method::GET, "/api/v1/policies", "default"),
    ] {
        let gate = gate(preset, "");
        let call = gate.rules.classify(&method, &path.parse().expect("a path"), &HeaderMap::new(), &salt);
        assert_eq!(class_of(&gate, &call), class, "{preset}: {path}");
    }
}
