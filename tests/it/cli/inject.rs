//! `tidegate inject` as a user types it: what it prints, where, and its exit code.

use std::fs;
use std::path::PathBuf;

use crate::command::{Ended, end, tidegate};

const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: op}
spec:
  template:
    spec:
      containers:
      - {name: manager, image: \"op:1\"}
";

/// Runs the command over a file with this text.
fn inject(text: &str, arguments: &[&str]) -> Ended {
    let folder = tempfile::tempdir().expect("a folder");
    let file: PathBuf = folder.path().join("op.yaml");
    fs::write(&file, text).expect("written");
    let file = file.display().to_string();
    end(tidegate(["inject", "-f", &file].iter().chain(arguments)))
}

#[test]
fn a_workload_that_is_refused_leaves_nothing_to_apply() {
    let two = format!("{DEPLOYMENT}---\n{}", DEPLOYMENT.replace("{name: manager", "{name: tidegate"));
    let ended = inject(&two, &[]);
    assert_eq!((ended.code, &*ended.out), (Some(1), ""), "{}", ended.err);
    assert!(ended.err.contains("a container called tidegate"), "{}", ended.err);
}

#[test]
fn a_container_that_there_is_not_is_an_error() {
    let ended = inject(DEPLOYMENT, &["--container", "manger"]);
    assert_eq!((ended.code, &*ended.out), (Some(1), ""), "{}", ended.err);
    assert!(ended.err.contains("--container manger") && ended.err.contains("its containers: manager"), "{}", ended.err);
}

#[test]
fn a_stream_without_a_workload_is_an_error() {
    for (arguments, reason) in [(&[][..], "no workload"), (&["--uninject"], "no injected sidecar")] {
        let ended = inject("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", arguments);
        assert_eq!((ended.code, &*ended.out), (Some(1), ""), "{}", ended.err);
        assert!(ended.err.contains(reason), "{}", ended.err);
    }
}

#[test]
fn a_template_is_told_from_what_is_no_yaml() {
    for (text, is_template) in [("{{- if .Values.on }}\nkind: Pod\n{{- end }}\n", true), ("kind: [\n", false)] {
        let ended = inject(text, &[]);
        assert_eq!((ended.code, &*ended.out), (Some(1), ""), "{}", ended.err);
        assert!(ended.err.contains("expected Kubernetes objects as YAML or JSON"), "{}", ended.err);
        assert_eq!(ended.err.contains("render a template first, as by helm template"), is_template, "{}", ended.err);
    }
}

#[test]
fn a_wrong_limit_is_said_of_the_set_that_was_typed() {
    for (set, says) in [
        ("bucket.rate=many", "--set bucket.rate=many"),
        ("bukket.rate=3", "--set bukket.rate=3"),
        ("bucket.rate=-1", "--set bucket.rate=-1"),
    ] {
        let ended = inject(DEPLOYMENT, &["--set", "queue.max_wait=3s", "--set", set]);
        assert_eq!((ended.code, &*ended.out), (Some(78), ""), "{}", ended.err);
        assert!(ended.err.contains(says) && !ended.err.contains("TIDEGATE__"), "{}", ended.err);
    }
}

#[test]
fn a_service_whose_calls_no_gate_would_take_is_not_called_in_clear() {
    for (plain, host) in [
        ("s3=eu-central-1", "s3.eu-central-1.amazonaws.com"),
        ("ec2=global", "ec2.amazonaws.com"),
        ("ec2=mars", "ec2.mars"),
    ] {
        let ended = inject(DEPLOYMENT, &["--egress", "aws", "--egress-plain", plain]);
        assert_eq!((ended.code, &*ended.out), (Some(1), ""), "{}", ended.err);
        assert!(ended.err.contains(&format!("--egress-plain {plain}: {host}")), "{}", ended.err);
        assert!(ended.err.contains("unencrypted"), "{}", ended.err);
    }
    for plain in ["ecr=eu-central-1", "route53=global", "iam=global", "ec2=cn-north-1"] {
        let ended = inject(DEPLOYMENT, &["--egress", "aws", "--egress-plain", plain]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
    }
}

#[test]
fn two_ports_must_be_two() {
    let ended = inject(DEPLOYMENT, &["--port", "9464"]);
    assert_eq!((ended.code, &*ended.out), (Some(1), ""), "{}", ended.err);
    assert!(ended.err.contains("--port") && ended.err.contains("--admin-port"), "{}", ended.err);
}
