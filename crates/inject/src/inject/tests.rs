//! Checks typical workloads, injected and taken back.

mod egress;
mod refusals;

use super::*;

/// Writes a node on one line, whatever its style.
fn line(node: &Node) -> String {
    match node {
        Node::Scalar(scalar) if scalar.style == granit_parser::ScalarStyle::Plain => scalar.text.clone(),
        Node::Scalar(scalar) => format!("{:?}", scalar.text),
        Node::List(items, _) => format!("[{}]", items.iter().map(line).collect::<Vec<_>>().join(", ")),
        Node::Map(entries, _) => {
            let entries: Vec<_> =
                entries.iter().map(|(key, value)| format!("{}: {}", line(key), line(value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

fn read(text: &str) -> Node {
    yaml::read(text, 0).unwrap().unwrap()
}

fn options() -> Options {
    Options { image: "registry.example/tidegate:0.1.0".to_owned(), mode: Mode::Kubeconfig, ..Options::default() }
}

const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: op
spec:
  template:
    spec:
      containers:
      - name: manager
        image: op:1
";

#[test]
fn a_pod_gets_the_sidecar_and_its_controller_the_kubeconfig() {
    let edited = inject(DEPLOYMENT, &options()).unwrap();
    assert_eq!(edited.changed, ["Deployment/op"]);
    assert_eq!(edited.notes, [""; 0]);
    for line in [
        "      initContainers:\n      - name: tidegate\n        image: \"registry.example/tidegate:0.1.0\"\n        restartPolicy: Always\n",
        "        env:\n        - name: KUBECONFIG\n          value: /run/tidegate/kubeconfig\n",
        "        volumeMounts:\n        - name: tidegate\n          mountPath: /run/tidegate\n          readOnly: true\n",
        "      volumes:\n      - name: tidegate\n        emptyDir:\n          medium: Memory\n",
    ] {
        assert!(edited.text.contains(line), "{line}\nis not in\n{}", edited.text);
    }
}

#[test]
fn taking_out_gives_back_the_original_and_twice_is_once() {
    let once = inject(DEPLOYMENT, &options()).unwrap().text;
    assert_eq!(inject(&once, &options()).unwrap().text, once);
    assert_eq!(uninject(&once).unwrap().text, DEPLOYMENT);
    assert_eq!(uninject(DEPLOYMENT).unwrap().changed, [""; 0]);
}

#[test]
fn what_is_no_workload_stays_byte_for_byte() {
    let stream = "# a note\n---\nkind:   ConfigMap # odd\ndata: {a:   'b'}\n---\n# nothing\n---\n";
    assert_eq!(inject(stream, &options()).unwrap().text, stream);
}

#[test]
fn a_variable_that_was_there_comes_back() {
    let replace = Options { replace: true, ..options() };
    let stream = DEPLOYMENT.replace(
        "image: op:1\n",
        "image: op:1\n        env:\n        - name: A\n          value: 'x'\n        - name: KUBECONFIG\n          valueFrom:\n            secretKeyRef: {name: s, key: \"k, 1\"}\n        - name: B\n          value: y\n",
    );
    let edited = inject(&stream, &replace).unwrap();
    assert!(edited.notes[0].contains("its own KUBECONFIG") && edited.notes.len() == 1, "{:?}", edited.notes);
    let once = edited.text;
    assert!(!once.contains("valueFrom:\n"), "{once}");
    let back = uninject(&once).unwrap().text;
    assert_eq!(
        yaml::read(&back, 0).unwrap().map(|node| line(&node)),
        yaml::read(&stream, 0).unwrap().map(|node| line(&node))
    );
}

#[test]
fn a_container_that_mounts_its_service_account_gives_the_mount_to_the_sidecar() {
    let stream = DEPLOYMENT.replace(
        "image: op:1\n",
        "image: op:1\n        volumeMounts:\n        - name: token\n          mountPath: /var/run/secrets/kubernetes.io/serviceaccount\n",
    );
    let once = inject(&stream, &Options { mode: Mode::InCluster, ..options() }).unwrap().text;
    let node = read(&once);
    let spec = node.at(&["spec", "template", "spec"]).unwrap();
    let mounts = |list: &str| line(spec.get(list).unwrap().items()[0].get("volumeMounts").unwrap());
    assert!(mounts("initContainers").contains("{name: token, mountPath: /var/run"), "{once}");
    assert!(mounts("containers").contains("{name: tidegate, mountPath: /var/run"), "{once}");
    assert_eq!(uninject(&once).unwrap().text, stream);
}

#[test]
fn what_stood_in_the_kubeconfigs_place_is_no_mount_of_the_sidecar() {
    let stream = DEPLOYMENT.replace(
        "image: op:1\n",
        "image: op:1\n        volumeMounts:\n        - name: run\n          mountPath: /run/tidegate\n",
    );
    let edited = inject(&stream, &Options { replace: true, ..options() }).unwrap();
    assert!(edited.notes[0].contains("volume run"), "{:?}", edited.notes);
    let once = edited.text;
    let node = read(&once);
    let sidecar =
        node.at(&["spec", "template", "spec", "initContainers"]).unwrap().items()[0].get("volumeMounts").unwrap();
    assert_eq!(sidecar.items().len(), 1, "{once}");
    assert_eq!(uninject(&once).unwrap().text, stream);
}

#[test]
fn crossplanes_overlay_is_made_where_it_is_missing_and_goes_again() {
    for stream in [
        "apiVersion: pkg.crossplane.io/v1beta1\nkind: DeploymentRuntimeConfig\nmetadata:\n  name: x\n",
        "apiVersion: pkg.crossplane.io/v1beta1\nkind: DeploymentRuntimeConfig\nmetadata:\n  name: x\nspec:\n  deploymentTemplate:\n    spec:\n      replicas: 2\n      selector: {}\n",
        "apiVersion: pkg.crossplane.io/v1beta1\nkind: DeploymentRuntimeConfig\nmetadata:\n  name: x\nspec:\n  deploymentTemplate:\n    spec:\n      selector: {}\n      template:\n        spec:\n          containers:\n          - name: package-runtime\n            args: [--debug]\n",
    ] {
        let once = inject(stream, &options()).unwrap().text;
        assert!(once.contains("selector: {}") && once.contains("- name: package-runtime"), "{once}");
        assert_eq!(inject(&once, &options()).unwrap().text, once);
        assert_eq!(uninject(&once).unwrap().text, stream);
        assert_eq!(uninject(stream).unwrap().text, stream);
    }
}

#[test]
fn a_pod_monitor_stands_beside_its_workload_once() {
    let stream = DEPLOYMENT.replace("  template:\n", "  template:\n    metadata:\n      labels: {app: op}\n");
    let options = Options { pod_monitor: true, ..options() };
    let once = inject(&stream, &options).unwrap().text;
    assert_eq!(once.matches("kind: PodMonitor").count(), 1);
    assert!(once.contains("matchLabels: {app: op}") && once.contains("- port: tidegate-admin"), "{once}");
    assert_eq!(inject(&once, &options).unwrap().text, once);
    assert_eq!(uninject(&once).unwrap().text, stream);
    for labels in ["", "    metadata:\n      labels:\n", "    metadata: {labels: {}}\n"] {
        let stream = DEPLOYMENT.replace("  template:\n", &format!("  template:\n{labels}"));
        let edited = inject(&stream, &options).unwrap();
        assert!(edited.notes[0].contains("no labels") && !edited.text.contains("PodMonitor"), "{}", edited.text);
    }
}

#[test]
fn a_pod_monitor_beside_json_that_ends_no_line_is_the_same_twice() {
    let pod = r#"{"metadata": {"labels": {"app": "op"}}, "spec": {"containers": [{"name": "op", "image": "op:1"}]}}"#;
    let deployment = format!(
        r#"{{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {{"name": "a"}}, "spec": {{"template": {pod}}}}}"#
    );
    let options = Options { pod_monitor: true, ..options() };
    for end in ["", "\n", "\n  ", " "] {
        let once = inject(&format!("{deployment}{end}"), &options).unwrap().text;
        assert_eq!(once.matches("PodMonitor").count(), 1, "{once}");
        assert_eq!(inject(&once, &options).unwrap().text, once, "{end:?}");
    }
}

#[test]
fn anchors_become_what_they_stand_for_so_that_an_edit_reaches_one_place() {
    let stream = "\
kind: List
apiVersion: v1
items:
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: a}
  spec:
    template:
      spec: &pod
        containers: [{name: c, env: &env [{name: X, value: \"0644\"}]}]
        defaultMode: 0644
- apiVersion: v1
  kind: ConfigMap
  data: {keep: yes}
  env: *env
- apiVersion: v1
  kind: Pod
  metadata: {name: b}
  spec:
    <<: *pod
    hostNetwork: false
";
    let edited = inject(stream, &options()).unwrap();
    assert_eq!(edited.changed, ["Deployment/a", "Pod/b"]);
    let node = read(&edited.text);
    let items = node.get("items").unwrap().items();
    assert_eq!(
        line(&items[1]),
        "{apiVersion: v1, kind: ConfigMap, data: {keep: yes}, env: [{name: X, value: \"0644\"}]}"
    );
    assert_eq!(items[2].at(&["spec", "defaultMode"]).and_then(Node::text), Some("0644"));
    assert_eq!(edited.text.matches("name: KUBECONFIG").count(), 2);
    let back = uninject(&edited.text).unwrap().text;
    let expanded = read(stream);
    assert_eq!(line(&read(&back)), line(&expanded));
}

#[test]
fn what_might_not_work_is_said() {
    let stream = DEPLOYMENT.replace(
        "image: op:1\n",
        "image: op:1\n        args: [--leader-elect, --kubeconfig=/etc/kube]\n      hostNetwork: true\n",
    );
    let notes = inject(&stream, &options()).unwrap().notes;
    for (note, word) in notes.iter().zip(["host's network", "--kubeconfig=/etc/kube"]) {
        assert!(note.starts_with("Deployment/op: ") && note.contains(word), "{note}");
    }
    assert_eq!(notes.len(), 2);
}

#[test]
fn what_could_not_be_taken_out_again_is_left_alone_and_said() {
    let overlay = "apiVersion: pkg.crossplane.io/v1beta1\nkind: DeploymentRuntimeConfig\nmetadata: {name: irsa}\n\
                   spec:\n  deploymentTemplate:\n    spec:\n      template:\n        metadata:\n          annota%YAML\n";
    let pod = |rest: &str| format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p{rest}\n");
    for (stream, fault) in [
        (overlay.to_owned(), "`metadata` of the pod is not a mapping"),
        (pod(", annotations: [a]}\nspec: {containers: [{name: c}]}"), "`annotations` of"),
        (pod("}\nspec: {containers: [{name: c}], initContainers: {}}"), "`initContainers` of"),
        (pod("}\nspec: {containers: [{name: c}], volumes: x}"), "`volumes` of"),
        (pod("}\nspec: {containers: [{name: c, env: {A: b}}]}"), "`env` of"),
        (pod("}\nspec: {containers: [{name: c, volumeMounts: 3}]}"), "`volumeMounts` of"),
    ] {
        let edited = inject(&stream, &options()).unwrap();
        assert_eq!((edited.text, edited.changed.len()), (stream, 0), "{fault}");
        let said = &edited.refused[0];
        let is_said = edited.refused.len() == 1 && said.contains(fault) && said.contains(" is not a ");
        assert!(is_said, "{:?}, not {fault}", edited.refused);
    }
}

#[test]
fn what_is_no_yaml_is_named_by_its_line() {
    let error = inject("a: 1\n---\nb: [\n", &options()).unwrap_err();
    assert!(error.line >= 3, "{error}");
    let bomb: String = std::iter::once("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned())
        .chain((1..12).map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(","))))
        .collect();
    let error = inject(&bomb, &options()).unwrap_err();
    assert!(error.what.contains("the document has more than"), "{error}");
    assert!(inject("a: &a [*a]\n", &options()).is_err());
}

#[test]
fn json_in_gives_json_out() {
    let pretty = "{\n  \"apiVersion\": \"v1\",\n  \"kind\": \"Pod\",\n  \"metadata\": {\n    \"name\": \"p\"\n  },\n  \
                  \"spec\": {\n    \"containers\": [\n      {\n        \"name\": \"yes\",\n        \"tty\": true\n      \
                  }\n    ]\n  }\n}\n";
    let compact: String = pretty.split_whitespace().collect();
    for stream in [pretty, &compact] {
        let edited = inject(stream, &options()).unwrap();
        let value: serde_json::Value =
            serde_json::from_str(&edited.text).unwrap_or_else(|error| panic!("{error}: {}", edited.text));
        assert_eq!(value["spec"]["initContainers"][0]["ports"][0]["containerPort"], 9464);
        assert_eq!(value["spec"]["initContainers"][0]["securityContext"]["runAsNonRoot"], true);
        assert_eq!(value["spec"]["containers"][0]["env"][0]["name"], "KUBECONFIG");
        assert_eq!(uninject(&edited.text).unwrap().text, pretty);
    }
}

#[test]
fn json_objects_that_follow_each_other_are_each_edited() {
    let pod = |name: &str| {
        format!(
            "{{\n  \"apiVersion\": \"v1\",\n  \"kind\": \"Pod\",\n  \"metadata\": {{\n    \"name\": \"{name}\",\n    \"labels\": {{\n      \
             \"app\": \"{name}\"\n    }}\n  }},\n  \"spec\": {{\n    \"containers\": [\n      {{\n        \"name\": \"{name}\"\n      }}\n    \
             ]\n  }}\n}}\n"
        )
    };
    let other = "{\"apiVersion\":\"v1\",\"kind\":\"Secret\"}\n";
    let stream = format!("{}{other}{}", pod("a"), pod("b"));
    for options in [options(), Options { pod_monitor: true, ..options() }] {
        let edited = inject(&stream, &options).unwrap();
        assert_eq!(edited.changed, ["Pod/a", "Pod/b"]);
        let values = serde_json::Deserializer::from_str(&edited.text).into_iter::<serde_json::Value>();
        let values: Vec<_> = values.map(|value| value.expect("JSON and nothing else")).collect();
        let kinds: Vec<_> = values.iter().map(|value| value["kind"].as_str().unwrap()).collect();
        let expected: &[&str] = if options.pod_monitor {
            &["Pod", "PodMonitor", "Secret", "Pod", "PodMonitor"]
        } else {
            &["Pod", "Secret", "Pod"]
        };
        assert_eq!(kinds, expected);
        assert_eq!(inject(&edited.text, &options).unwrap().text, edited.text);
        assert_eq!(uninject(&edited.text).unwrap().text, stream);
    }
}

#[test]
fn what_stands_behind_the_first_value_of_a_document_is_an_error() {
    for rest in ["garbage: [\n", "b: 1\n", "{c: 2}\n", "...\nb: 1\n"] {
        let error = inject(&format!("{{\"a\": 1}}\n{rest}"), &options()).unwrap_err().to_string();
        assert!(error.starts_with("line 2") || error.starts_with("line 3"), "{rest}: {error}");
    }
    for rest in ["", "# nothing\n", "...\n", "...\n# nothing\n", "---\nb: 1\n", "...\n---\nb: 1\n"] {
        let stream = format!("{{\"a\": 1}}\n{rest}");
        assert_eq!(inject(&stream, &options()).unwrap().text, stream);
    }
}

#[test]
fn a_key_without_a_value_gets_one_in_its_place() {
    let stream = DEPLOYMENT
        .replace("  template:\n", "  template:\n    metadata:\n")
        .replace("image: op:1\n", "image: op:1\n        env:\n        volumeMounts: []\n      volumes: null\n");
    let once = inject(&stream, &options()).unwrap().text;
    let back = uninject(&once).unwrap().text;
    assert_eq!(line(&read(&back)), line(&read(&stream)));
}

#[test]
fn a_json_document_may_have_characters_that_yaml_has_not() {
    let json = serde_json::json!({"kind": "Pod", "metadata": {"name": "p\u{7f}\u{85}\u{9b}\u{fffe}\u{ffff}"},
                                  "spec": {"containers": [{"name": "manager"}]}});
    let edited = inject(&json.to_string(), &options()).unwrap();
    let after: serde_json::Value = serde_json::from_str(&edited.text).unwrap();
    assert_eq!((edited.changed.len(), &after["metadata"]["name"]), (1, &json["metadata"]["name"]));
    assert_eq!(inject(&edited.text, &options()).unwrap().text, edited.text);
    let back = uninject(&edited.text).unwrap().text;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&back).unwrap(), json);
    // What is not changed stays byte for byte, and YAML is held to its own rules.
    let other = json.to_string().replace("\"Pod\"", "\"ConfigMap\"");
    assert_eq!(inject(&other, &options()).unwrap().text, other);
    assert!(inject("kind: Pod\nmetadata: {name: \"p\u{7f}\"}\n", &options()).is_err());
}
