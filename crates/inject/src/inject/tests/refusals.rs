//! Checks that a workload which an injection would break is left as it is, and that it is said why.

use super::*;

/// Checks that a workload is left as it is, for a reason with these words.
fn is_refused(stream: &str, options: &Options, words: &[&str]) {
    let edited = inject(stream, options).unwrap();
    assert_eq!((&*edited.text, edited.changed.len()), (stream, 0), "{words:?}");
    assert_eq!(edited.refused.len(), 1, "{words:?}: {:?}", edited.refused);
    assert!(edited.refused[0].starts_with("Deployment/op: "), "{:?}", edited.refused);
    for word in words {
        assert!(edited.refused[0].contains(word), "{word}: {:?}", edited.refused);
    }
}

/// Returns the deployment with lines of its container, and then of its pod.
fn deployment(container: &str, pod: &str) -> String {
    DEPLOYMENT.replace("image: op:1\n", &format!("image: op:1\n{container}{pod}"))
}

#[test]
fn a_container_with_its_own_kubeconfig_is_not_sent_to_the_local_cluster() {
    let stream = deployment("        env:\n        - {name: KUBECONFIG, value: /etc/other/config}\n", "");
    is_refused(&stream, &options(), &["container manager", "KUBECONFIG", "/etc/other/config", "--replace"]);
    let edited = inject(&stream, &Options { replace: true, ..options() }).unwrap();
    assert!(edited.changed == ["Deployment/op"] && edited.notes[0].contains("/etc/other/config"), "{:?}", edited.notes);
    // An empty one is none, and the gate's own is no other.
    for value in ["\"\"", "/run/tidegate/kubeconfig"] {
        let stream = deployment(&format!("        env:\n        - {{name: KUBECONFIG, value: {value}}}\n"), "");
        assert_eq!(inject(&stream, &options()).unwrap().refused, [""; 0], "{value}");
    }
}

#[test]
fn a_container_with_its_own_api_server_is_not_sent_to_the_local_one() {
    let in_cluster = Options { mode: Mode::InCluster, ..options() };
    let stream = deployment("        env:\n        - {name: KUBERNETES_SERVICE_HOST, value: api.example}\n", "");
    for options in [options(), in_cluster.clone()] {
        is_refused(&stream, &options, &["KUBERNETES_SERVICE_HOST", "api.example", "--replace"]);
        let edited = inject(&stream, &Options { replace: true, ..options }).unwrap();
        assert!(edited.changed == ["Deployment/op"] && edited.notes.len() == 1, "{:?}", edited.notes);
        assert!(edited.notes[0].contains("api.example"), "{:?}", edited.notes);
    }
    // Its client read no such address where a KUBECONFIG led elsewhere: that one is named.
    let both = stream.replace("env:\n", "env:\n        - {name: KUBECONFIG, value: /etc/other/config}\n");
    is_refused(&both, &options(), &["KUBECONFIG", "/etc/other/config"]);
    let stream = deployment("        env:\n        - {name: KUBECONFIG, value: /etc/other/config}\n", "");
    let notes = inject(&stream, &in_cluster).unwrap().notes;
    assert!(notes.len() == 1 && notes[0].contains("KUBECONFIG") && notes[0].contains("take it out"), "{notes:?}");
}

#[test]
fn a_container_that_is_not_there_is_named_with_those_that_are() {
    let wanted = |name: &str| Options { containers: vec![name.to_owned()], ..options() };
    is_refused(DEPLOYMENT, &wanted("manger"), &["--container manger", "its containers: manager"]);
    // Of several workloads, one must have it.
    let two = format!("{DEPLOYMENT}---\n{}", DEPLOYMENT.replace("manager", "server"));
    let edited = inject(&two, &wanted("server")).unwrap();
    assert_eq!((edited.changed.len(), edited.refused.len(), edited.notes.len()), (1, 0, 1), "{:?}", edited.notes);
    let edited = inject(&two, &wanted("other")).unwrap();
    assert_eq!((edited.changed.len(), edited.refused.len()), (0, 2), "{:?}", edited.refused);
}

#[test]
fn a_thing_of_the_same_name_is_named() {
    is_refused(&DEPLOYMENT.replace("name: manager", "name: tidegate"), &options(), &["a container called tidegate"]);
    let volume = |name: &str| deployment("", &format!("      volumes:\n      - {{name: {name}, emptyDir: {{}}}}\n"));
    is_refused(&volume("tidegate"), &options(), &["a volume called tidegate", "rename"]);
    let with_map = Options { config_map: Some("limits".to_owned()), ..options() };
    is_refused(&volume("tidegate-config"), &with_map, &["a volume called tidegate-config"]);
    assert_eq!(inject(&volume("tidegate-config"), &options()).unwrap().refused, [""; 0]);
}

#[test]
fn a_port_in_use_is_named_with_the_option_that_chooses_another() {
    let port = |number: u16, more: &str| {
        deployment(&format!("        ports:\n        - {{containerPort: {number}{more}}}\n"), "")
    };
    is_refused(&port(6443, ""), &options(), &["container manager", "6443", "--port"]);
    is_refused(&port(9464, ", protocol: TCP"), &options(), &["9464", "--admin-port"]);
    let other = Options { port: 7443, admin_port: 9465, ..options() };
    for stream in [port(6443, ""), port(9464, "")] {
        let edited = inject(&stream, &other).unwrap();
        assert_eq!((edited.changed.len(), edited.refused.len()), (1, 0), "{:?}", edited.refused);
        assert!(
            edited.text.contains("containerPort: 9465") && edited.text.contains("\"[::]:9465\""),
            "{}",
            edited.text
        );
    }
    assert_eq!(inject(&port(6443, ", protocol: UDP"), &options()).unwrap().refused, [""; 0]);
}

#[test]
fn a_mount_in_the_gates_place_is_named() {
    let mount =
        |path: &str| deployment(&format!("        volumeMounts:\n        - {{name: run, mountPath: {path}}}\n"), "");
    is_refused(&mount("/run/tidegate"), &options(), &["volume run", "/run/tidegate", "--replace"]);
    is_refused(&mount("/run/tidegate/"), &options(), &["volume run", "--replace"]);
    for path in ["/run/tidegate/more", "/var/run/tidegate"] {
        is_refused(&mount(path), &Options { replace: true, ..options() }, &["volume run", path, "mount it elsewhere"]);
    }
    assert_eq!(inject(&mount("/run/tidegate2"), &options()).unwrap().refused, [""; 0]);
}

#[test]
fn a_pod_without_a_token_is_refused_and_one_that_brings_its_own_shares_it() {
    const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    let off = "      automountServiceAccountToken: false\n";
    is_refused(&deployment("", off), &options(), &["automountServiceAccountToken is false", "set it to true"]);
    let mount = format!("        volumeMounts:\n        - {{name: token, mountPath: {ACCOUNT}, readOnly: true}}\n");
    let stream = deployment(&mount, off);
    for mode in [Mode::Kubeconfig, Mode::InCluster] {
        let once = inject(&stream, &Options { mode, ..options() }).unwrap().text;
        let node = read(&once);
        let sidecar = &node.at(&["spec", "template", "spec", "initContainers"]).unwrap().items()[0];
        assert!(line(sidecar).contains("{name: token, mountPath: /var/run/secrets"), "{mode:?}: {once}");
        assert_eq!(line(&read(&uninject(&once).unwrap().text)), line(&read(&stream)));
    }
}

#[test]
fn a_pod_for_windows_is_refused() {
    for pod in ["      os: {name: windows}\n", "      nodeSelector: {kubernetes.io/os: windows}\n"] {
        is_refused(&deployment("", pod), &options(), &["Windows"]);
    }
}

#[test]
fn a_pod_that_is_labelled_so_is_left_out() {
    for value in ["disabled", "\"false\""] {
        let labels = format!("  template:\n    metadata:\n      labels: {{tidegate.io/inject: {value}}}\n");
        let stream = DEPLOYMENT.replace("  template:\n", &labels);
        let edited = inject(&stream, &options()).unwrap();
        assert_eq!((&*edited.text, edited.changed.len(), edited.refused.len()), (&*stream, 0, 0));
        assert!(edited.notes[0].contains("tidegate.io/inject"), "{:?}", edited.notes);
    }
}
