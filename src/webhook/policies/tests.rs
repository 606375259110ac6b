//! Which policy a pod meets, and what is wrong with a file of policies.

use super::*;

const FILE: &str = r#"
[configurations.small]
set = "bucket.rate=20"
mode = "in-cluster"

[[policies]]
name = "system"
namespaces = { team = "sre, infra-*" }
mode = "off"

[[policies]]
name = "argo"
pods = { app = "argocd-*" }
images = ["quay.io/argoproj/*", "registry.example/argocd:*"]
configuration = "small"

[[policies]]
name = "rest"
namespaces = { gated = "*" }
mode = "enforce"
"#;

/// Adds limits without checking them, which is the application's work.
fn unchecked(mut options: Options, sets: &[String]) -> Result<Options, Vec<String>> {
    if sets.iter().any(|set| set == "wrong") {
        return Err(vec!["--set wrong: expected KEY=VALUE".to_owned()]);
    }
    options.variables.extend(sets.iter().map(|set| ("SET".to_owned(), set.clone())));
    Ok(options)
}

fn read(text: &str) -> Result<Policies, String> {
    Policies::read(text, &Options::default(), unchecked).map_err(|problems| problems.join("\n"))
}

fn namespace(name: &str, labels: &Value) -> Value {
    json!({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

fn pod(labels: &Value, image: &str) -> Value {
    json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n", "labels": labels}, "spec": {"containers": [{"image": image}]}})
}

#[test]
fn the_first_policy_that_matches_decides() {
    let policies = read(FILE).expect("good");
    let argo = "quay.io/argoproj/argocd:v3";
    for (labels, pod, expected) in [
        (json!({"team": "sre", "gated": "1"}), pod(&json!({}), argo), Some(("policy \"system\"", RolloutMode::Off))),
        (json!({"team": "infra-eu"}), pod(&json!({}), argo), Some(("policy \"system\"", RolloutMode::Off))),
        (
            json!({"team": "infra"}),
            pod(&json!({"app": "argocd-x"}), argo),
            Some(("policy \"argo\"", RolloutMode::Observe)),
        ),
        (json!({}), pod(&json!({"app": "argocd-x"}), "other:1"), None),
        (json!({}), pod(&json!({}), argo), None),
        (json!({"gated": ""}), pod(&json!({}), "other:1"), Some(("policy \"rest\"", RolloutMode::Enforce))),
        (json!(null), json!({}), None),
    ] {
        let decision = policies.decide(&pod, &namespace("n", &labels)).expect("no annotations");
        let found = decision.as_ref().map(|decision| (&*decision.by, decision.mode));
        assert_eq!(found, expected, "{labels} {pod}");
        let is_small = decision.is_some_and(|decision| decision.options.mode == crate::inject::Mode::InCluster);
        assert_eq!(is_small, expected.is_some_and(|(by, _)| by.contains("argo")));
    }
}

#[test]
fn annotations_of_a_namespace_are_a_policy_before_those_of_the_file() {
    let policies = read(FILE).expect("good");
    let with = |annotations: Value| {
        let mut namespace = namespace("n", &json!({"team": "sre"}));
        namespace["metadata"]["annotations"] = annotations;
        policies.decide(&pod(&json!({}), "i"), &namespace).map(|decision| decision.expect("a policy"))
    };
    let set = "bucket.rate=7";
    let decision = with(json!({"tidegate.io/policy": "observe", "tidegate.io/set": set})).expect("good");
    assert_eq!((&*decision.by, decision.mode), ("namespace annotation tidegate.io/policy", RolloutMode::Observe));
    assert_eq!(decision.options.variables, [("SET".to_owned(), set.to_owned())]);
    for (annotations, says) in [
        (json!({"tidegate.io/policy": "watch"}), "tidegate.io/policy is \"watch\", expected observe, enforce or off"),
        (
            json!({"tidegate.io/policy": "observe", "tidegate.io/port": "x"}),
            "tidegate.io/port is \"x\", expected a port",
        ),
        (
            json!({"tidegate.io/policy": "observe", "tidegate.io/x": "x"}),
            "tidegate.io/x is \"x\", expected one of mode,",
        ),
    ] {
        let problems = with(annotations).err().expect("wrong").join("; ");
        assert!(problems.starts_with("namespace annotation ") && problems.contains(says), "{problems}");
    }
}

#[test]
fn what_no_pod_can_match_and_what_is_not_there_is_named() {
    let policy = |name: &str, keys: &str| format!("[[policies]]\nname = \"{name}\"\n{keys}\n");
    let team = "namespaces = { team = \"a, b\" }";
    for (text, says) in [
        (policy("x", "mode = \"observed\""), "expected one of `observe`, `enforce`, `off`"),
        (policy("x", "mood = \"off\""), "unknown field `mood`"),
        (
            policy("x", "configuration = \"smal\""),
            "policies[0] \"x\": configuration is \"smal\", expected a [configurations.NAME]: there is none",
        ),
        (policy("x", "pods = { app = \"\" }"), "has an empty label, value or image"),
        (policy("x", "namespaces = { team = \"a,\" }"), "has an empty label, value or image"),
        (policy("x", "images = [\"\"]"), "has an empty label, value or image"),
        (policy("", ""), "expected a name that no other policy has"),
        (
            policy("x", team) + &policy("x", "images = [\"i\"]"),
            "policies[1] \"x\": expected a name that no other policy has",
        ),
        (
            policy("x", team) + &policy("y", "namespaces = { team = \"b\", env = \"prod\" }"),
            "policies[1] \"y\": no pod can match it, because \"x\" comes first",
        ),
        (policy("x", "") + &policy("y", team), "because \"x\" comes first and matches all of its pods"),
        (policy("x", "images = [\"a\", \"b\"]") + &policy("y", "images = [\"b\"]"), "because \"x\" comes first"),
        ("[configurations.x]\nport = \"70000\"\n".to_owned(), "configurations.x: port is \"70000\", expected a port"),
        ("[configurations.x]\nset = \"wrong\"\n".to_owned(), "configurations.x: --set wrong: expected KEY=VALUE"),
        ("[configurations.x]\nset = 5\n".to_owned(), "expected a string"),
        ("nonsense".to_owned(), "TOML parse error at line 1"),
    ] {
        let problems = read(&text).expect_err(&text);
        assert!(problems.contains(says), "{text}\n{problems}");
    }
    for fine in [
        policy("x", team) + &policy("y", "namespaces = { team = \"c\" }"),
        policy("x", team) + &policy("y", "pods = { app = \"a\" }"),
        policy("x", "images = [\"b\"]") + &policy("y", "images = [\"a\", \"b\"]"),
        policy("x", "images = [\"b\"]") + &policy("y", ""),
        String::new(),
    ] {
        read(&fine).unwrap_or_else(|problems| panic!("{fine}\n{problems}"));
    }
}

#[test]
fn it_is_explained_which_policy_a_pod_meets_and_why() {
    let policies = read(FILE).expect("good");
    let pod = pod(&json!({"app": "argocd-x"}), "other:1");
    let explained = policies.explain(&[namespace("n", &json!({"gated": "yes"})), pod.clone()]);
    assert_eq!(
        explained,
        "pod n/p: policy \"rest\", mode enforce\n  \
         not \"system\": label team of the namespace is absent, expected \"sre, infra-*\"\n  \
         not \"argo\": its images are other:1, expected one of quay.io/argoproj/*, registry.example/argocd:*"
    );
    let explained = policies.explain(&[pod]);
    assert!(
        explained.starts_with("pod n/p: no policy, so that only a label tidegate.io/inject gives it"),
        "{explained}"
    );
    assert!(explained.ends_with("of the namespace only its name is known; add the YAML of Namespace n for its labels"));
    assert_eq!(policies.explain(&[]), "");
}

#[test]
fn pods_that_stay_as_they_are_are_explained() {
    let policies = read("[[policies]]\nname = \"all\"\n").expect("good");
    let disabled = json!({"tidegate.io/inject": "disabled"});
    let plain = pod(&json!({}), "op:1");
    let mut system = plain.clone();
    system["metadata"]["namespace"] = "kube-system".into();
    for objects in [vec![pod(&disabled, "op:1")], vec![namespace("n", &disabled), plain], vec![system]] {
        let explained = policies.explain(&objects);
        assert!(explained.contains("/p: stays as it is: "), "{explained}");
    }
}
