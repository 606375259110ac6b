//! Checks that a pod is changed as `inject` changes it, and that nothing else is.

use std::sync::Arc;

use futures_util::FutureExt as _;
use proptest::prelude::*;

use super::*;
use crate::inject::{EgressOptions, LABEL, Mode, Options};

/// Adds limits without checking them, which is the application's work.
fn unchecked(mut options: Options, sets: &[String]) -> Result<Options, Vec<String>> {
    if sets.iter().any(|set| set == "wrong") {
        return Err(vec!["--set wrong: expected KEY=VALUE".to_owned()]);
    }
    options.variables.extend(sets.iter().map(|set| ("SET".to_owned(), set.clone())));
    Ok(options)
}

fn settings(policy: Policy) -> Settings {
    let listen = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    Settings {
        listen,
        options: Options::default(),
        check: unchecked,
        policies: None,
        namespaces: None,
        policy,
        namespace: Some(Arc::from("own")),
    }
}

fn request(namespace: &str, pod: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE",
        "namespace": namespace, "object": pod,
    }})
}

/// Reviews a labelled pod; without policies nothing is waited for.
fn reviewed(body: &[u8], settings: &Settings) -> Result<Value, NotReview> {
    review(body, settings, true).now_or_never().expect("no namespace is read")
}

fn answer(request: &Value, settings: &Settings) -> Value {
    let answer = reviewed(request.to_string().as_bytes(), settings).expect("a review");
    assert_eq!((&answer["kind"], &answer["response"]["uid"]), (&"AdmissionReview".into(), &"1".into()));
    answer["response"].clone()
}

/// Returns the pod as the answer changes it.
fn patched(pod: &Value, response: &Value) -> Value {
    let patch = STANDARD.decode(response["patch"].as_str().unwrap_or_else(|| panic!("{response}"))).unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &patch).unwrap();
    pod
}

fn pod(more: &Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "op-"},
                         "spec": {"containers": [{"name": "manager", "image": "op:1"}]}});
    json_patch::merge(&mut pod, more);
    pod
}

#[test]
fn a_patch_makes_of_a_pod_what_inject_makes_of_it() {
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    for more in [
        json!({}),
        json!({"metadata": {"annotations": {"a": "b\n \"c\": ü"}, "labels": {"x": "y"}}}),
        json!({"metadata": {"annotations": {"tidegate.io/mode": "in-cluster"}}}),
        json!({"metadata": {"annotations": {"tidegate.io/port": "7443", "tidegate.io/admin-port": "9465"}}}),
        json!({"spec": {"containers": [
            {"name": "a", "env": [{"name": "KUBECONFIG", "value": ""}], "volumeMounts": [{"name": "kube-api-access-x", "mountPath": account, "readOnly": true}]},
            {"name": "b", "args": ["--x=1", "- y", "{z}"], "env": []}]}}),
        json!({"spec": {"initContainers": [{"name": "first"}], "volumes": [{"name": "v", "emptyDir": {}}], "securityContext": {"runAsUser": 0}}}),
    ] {
        let pod = pod(&more);
        let settings = settings(Policy::Fail);
        let options = options::of(&pod, &settings.options, unchecked).unwrap();
        let expected = inject::inject(&pod.to_string(), &options).unwrap();
        let expected: Value = serde_json::from_str(&expected.text).unwrap();
        let response = answer(&request("app", &pod), &settings);
        assert_eq!(response["allowed"], true, "{response}");
        assert_eq!(patched(&pod, &response), expected, "{more}");
        // The pod as it is now is left as it is.
        assert!(answer(&request("app", &expected), &settings)["patch"].is_null());
    }
}

#[test]
fn an_annotation_is_an_option_of_inject() {
    let annotations = json!({"tidegate.io/container": "manager", "tidegate.io/config-map": "limits",
                             "tidegate.io/set": "bucket.rate=3  bucket.burst=4", "tidegate.io/replace": "true",
                             "tidegate.io/mode": "in-cluster", "tidegate.io/port": "1", "tidegate.io/admin-port": "2"});
    let pod = pod(&json!({"metadata": {"annotations": annotations}}));
    let options = options::of(&pod, &Options::default(), unchecked).unwrap();
    let set = |value: &str| ("SET".to_owned(), value.to_owned());
    let expected = Options {
        containers: vec!["manager".to_owned()],
        config_map: Some("limits".to_owned()),
        variables: vec![set("bucket.rate=3"), set("bucket.burst=4")],
        mode: Mode::InCluster,
        port: 1,
        admin_port: 2,
        replace: true,
        ..Options::default()
    };
    assert_eq!(options, expected);
}

#[test]
fn a_wrong_annotation_is_named_and_the_policy_says_what_becomes_of_the_pod() {
    for (name, value, says) in [
        ("mode", "cluster", "expected kubeconfig or in-cluster"),
        ("port", "0", "expected a port"),
        ("port", "9464", "both 9464"),
        ("replace", "yes", "expected true or false"),
        ("modes", "x", "expected one of mode, container, config-map, set, port, admin-port"),
        ("set", "wrong", "--set wrong"),
        ("container", "other", "its containers: manager"),
    ] {
        let pod = pod(&json!({"metadata": {"annotations": {format!("tidegate.io/{name}"): value}}}));
        let response = answer(&request("app", &pod), &settings(Policy::Fail));
        let message = response["status"]["message"].as_str().unwrap_or_default();
        assert!(response["allowed"] == false && message.contains(says), "{name}: {response}");
        let response = answer(&request("app", &pod), &settings(Policy::Ignore));
        assert!(response["allowed"] == true && response["patch"].is_null(), "{name}: {response}");
        assert!(response["warnings"][0].as_str().is_some_and(|warning| warning.contains(says)), "{name}: {response}");
    }
}

#[test]
fn the_pods_of_the_system_and_of_the_webhook_are_never_touched() {
    for namespace in ["kube-system", "kube-public", "kube-node-lease", "own"] {
        let wrong = pod(&json!({"metadata": {"annotations": {"tidegate.io/mode": "x"}}}));
        for pod in [pod(&json!({})), wrong] {
            let response = answer(&request(namespace, &pod), &settings(Policy::Fail));
            assert_eq!(response, json!({"uid": "1", "allowed": true}), "{namespace}");
        }
    }
}

#[test]
fn only_new_pods_that_want_it_and_have_none_get_the_sidecar() {
    let sidecar = |list: &str| pod(&json!({"spec": {list: [{"name": "tidegate"}]}}));
    let mut requests = vec![
        request("app", &pod(&json!({"metadata": {"labels": {LABEL: "disabled"}}}))),
        request("app", &pod(&json!({"metadata": {"labels": {LABEL: "false"}}}))),
        request("app", &sidecar("initContainers")),
        request("app", &sidecar("containers")),
        request("app", &Value::Null),
    ];
    for (field, value) in [("operation", json!("UPDATE")), ("kind", json!({"kind": "Job", "group": "batch"}))] {
        let mut request = request("app", &pod(&json!({})));
        request["request"][field] = value;
        requests.push(request);
    }
    for request in requests {
        let response = answer(&request, &settings(Policy::Fail));
        assert_eq!(response, json!({"uid": "1", "allowed": true}), "{request}");
    }
}

#[test]
fn a_mirror_of_a_static_pod_is_left_as_its_node_made_it() {
    let mirror = pod(&json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "0123"}}}));
    let response = answer(&request("app", &mirror), &settings(Policy::Fail));
    assert_eq!(response, json!({"uid": "1", "allowed": true}));
}

#[test]
fn a_pod_without_a_token_would_never_start_and_is_refused() {
    let mounts = json!([{"name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]);
    for (mounts, is_refused) in [(json!([]), true), (mounts, false)] {
        let container = json!({"name": "manager", "image": "op:1", "volumeMounts": mounts});
        let pod = pod(&json!({"spec": {"serviceAccountName": "default", "containers": [container]}}));
        let response = answer(&request("app", &pod), &settings(Policy::Fail));
        let message = response["status"]["message"].as_str().unwrap_or_default();
        assert_eq!(message.contains("for its ServiceAccount"), is_refused, "{response}");
        assert_eq!(response["patch"].is_null(), is_refused, "{response}");
    }
}

#[test]
fn a_pod_on_the_hosts_network_must_say_which_port_is_free_there() {
    let on_host = |more: Value| {
        let mut pod = pod(&json!({"spec": {"hostNetwork": true}}));
        json_patch::merge(&mut pod, &more);
        answer(&request("app", &pod), &settings(Policy::Fail))
    };
    let response = on_host(json!({}));
    let message = response["status"]["message"].as_str().unwrap_or_default();
    assert!(response["allowed"] == false && message.contains("annotation tidegate.io/port"), "{response}");
    let chosen = json!({"tidegate.io/port": "7443", "tidegate.io/admin-port": "9465"});
    let response = on_host(json!({"metadata": {"annotations": chosen}}));
    assert!(response["allowed"] == true && !response["patch"].is_null(), "{response}");
}

/// The settings of a webhook that adds a forward proxy on port 8003.
fn with_proxy() -> Settings {
    let egress = EgressOptions {
        presets: vec!["aws".to_owned()],
        port: 8003,
        plain: Vec::new(),
        direct: Vec::new(),
        cluster_domain: None,
        intercept: false,
        clients: Vec::new(),
    };
    let mut settings = settings(Policy::Fail);
    settings.options.egress = Some(egress);
    settings
}

#[test]
fn the_port_of_the_forward_proxy_is_one_of_the_ports() {
    let of = |annotations: Value, host: bool, settings: &Settings| {
        let more = json!({"metadata": {"annotations": annotations}, "spec": {"hostNetwork": host}});
        let pod = pod(&more);
        let response = answer(&request("app", &pod), settings);
        if response["patch"].is_null() {
            return response["status"]["message"].as_str().unwrap_or_default().to_owned();
        }
        patched(&pod, &response).to_string()
    };
    for (name, value, both) in
        [("port", "8003", "both 8003"), ("admin-port", "8003", "both 8003"), ("egress-port", "9464", "both 9464")]
    {
        let says = of(json!({format!("tidegate.io/{name}"): value}), false, &with_proxy());
        assert!(says.contains(both) && says.contains("tidegate.io/egress-port"), "{name}: {says}");
    }
    let moved = of(json!({"tidegate.io/egress-port": "8013"}), false, &with_proxy());
    assert!(moved.contains("127.0.0.1:8013") && !moved.contains("8003"), "{moved}");
    let without = of(json!({"tidegate.io/egress-port": "8013"}), false, &settings(Policy::Fail));
    assert!(without.contains("tidegate.io/egress-port") && without.contains("--egress"), "{without}");

    let two = json!({"tidegate.io/port": "7443", "tidegate.io/admin-port": "9465"});
    let says = of(two.clone(), true, &with_proxy());
    assert!(says.starts_with("tidegate: ") && says.contains("tidegate.io/egress-port"), "{says}");
    let mut three = two;
    three["tidegate.io/egress-port"] = "8013".into();
    assert!(of(three, true, &with_proxy()).contains("127.0.0.1:8013"));
}

#[test]
fn a_pod_may_have_every_character_that_json_has() {
    let all: String = ('\u{1}'..='\u{ffff}').chain(['\u{1f30a}', '\u{1fffe}', '\u{10ffff}']).collect();
    let pod = pod(&json!({"metadata": {"annotations": {"all": all}}}));
    let response = answer(&request("app", &pod), &settings(Policy::Fail));
    let after = patched(&pod, &response);
    assert!(after["metadata"]["annotations"]["all"] == all, "another text");
}

#[test]
fn what_is_no_review_is_an_error() {
    for body in [
        "",
        "{",
        "{}",
        "[]",
        r#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}"#,
        r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}"#,
    ] {
        let error = reviewed(body.as_bytes(), &settings(Policy::Ignore)).expect_err(body).to_string();
        assert!(error.contains("AdmissionReview"), "{error}");
    }
}

prop_compose! {
    fn container(number: usize)(
        text in "\\PC{0,12}",
        env in prop::collection::vec(("[A-Z]{1,3}", any::<String>()), 0..3),
        has_env in any::<bool>(),
        mounts in prop::collection::vec("/[a-z]{1,5}", 0..3),
    ) -> Value {
        let mut container = json!({"name": format!("c{number}"), "image": text, "args": [text, "- a", "true", "0644", "~"]});
        if has_env {
            container["env"] = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        }
        container["volumeMounts"] = mounts.iter().map(|path| json!({"name": "v", "mountPath": path})).collect();
        container
    }
}

proptest! {
    #[test]
    fn whatever_a_pod_has_stays_and_what_is_added_is_what_inject_adds(
        containers in (container(0), container(1)),
        both in any::<bool>(),
        init in prop::option::of(container(2)),
        annotations in prop::option::of(prop::collection::btree_map("[a-z./]{1,8}", any::<String>(), 0..3)),
        number in any::<i64>(),
    ) {
        let mut pod = pod(&json!({"spec": {"containers": [containers.0], "priority": number}}));
        if both {
            pod["spec"]["containers"].as_array_mut().unwrap().push(containers.1);
        }
        if let Some(init) = init {
            pod["spec"]["initContainers"] = json!([init]);
        }
        if let Some(annotations) = annotations {
            pod["metadata"]["annotations"] = json!(annotations);
        }
        let response = answer(&request("app", &pod), &settings(Policy::Fail));
        prop_assert_eq!(&response["allowed"], true, "{}: {}", pod, response);
        let after = patched(&pod, &response);
        let injected = inject::inject(&pod.to_string(), &Options::default()).unwrap();
        prop_assert_eq!(&after, &serde_json::from_str::<Value>(&injected.text).unwrap());
        let back = inject::uninject(&after.to_string()).unwrap();
        prop_assert_eq!(serde_json::from_str::<Value>(&back.text).unwrap(), pod);
    }
}
