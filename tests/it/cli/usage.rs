//! The command's help and version, and its exit codes.

use crate::command::{config, end, start, tidegate, with_config};
use crate::ports::free_port;

#[test]
fn help_fits_a_screen_and_is_no_failure() {
    for arguments in [
        &["--help"][..],
        &["run", "--help"],
        &["check", "-h"],
        &["demo", "--help"],
        &["simulate", "--help"],
        &["audit", "--help"],
        &["recommend", "--help"],
        &["health", "-h"],
        &["kubeconfig", "-h"],
    ] {
        let ended = end(tidegate(arguments));
        assert_eq!(ended.code, Some(0), "{arguments:?}");
        assert!(ended.err.is_empty(), "{}", ended.err);
        assert!(ended.out.lines().count() <= 24, "{arguments:?} is longer than a screen\n{}", ended.out);
        assert!(ended.out.contains("Example"), "{arguments:?} shows no example\n{}", ended.out);
    }
}

#[test]
fn the_version_is_the_package_s_and_says_that_the_build_is_not_a_release() {
    let ended = end(tidegate(["--version"]));
    let version = concat!("tidegate ", env!("CARGO_PKG_VERSION"), " (development build)");
    assert_eq!((ended.code, ended.out.trim()), (Some(0), version));
}

/// The image of a development build is in no registry. Without a word its sidecar would be
/// injected, and the pod would never start.
#[test]
fn a_development_build_says_that_no_registry_has_the_image_it_injects() {
    let operator = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/examples/plain/operator.yaml");
    let ended = end(tidegate(["inject", "-f", operator]));
    let image = concat!("registry.example/tidegate:", env!("CARGO_PKG_VERSION"));
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains(&format!("image: \"{image}\"")), "{}", ended.out);
    assert!(ended.err.contains("development build") && ended.err.contains("--image"), "{}", ended.err);
    assert!(ended.err.contains(image), "{}", ended.err);
    let named = end(tidegate(["inject", "-f", operator, "--image", "mirror.example/tidegate:1"]));
    assert_eq!((named.code, named.err.as_str()), (Some(0), ""));
}

#[test]
fn wrong_usage_is_64_and_says_what_is_right() {
    for (arguments, said) in [
        (&["rum"][..], "run"),
        (&[], "Usage"),
        (&["run", "--confg", "x"], "--config"),
        (&["demo", "--seconds", "soon"], "soon"),
        (&["demo", "--seconds", "0"], "3..=120"),
        (&["run", "extra"], "extra"),
        (&["check", "one", "another"], "another"),
    ] {
        let ended = end(tidegate(arguments));
        assert_eq!(ended.code, Some(64), "{arguments:?}\n{}", ended.err);
        assert!(ended.err.contains(said), "{arguments:?}\n{}", ended.err);
        assert!(ended.out.is_empty(), "{}", ended.out);
    }
}

#[test]
fn check_prints_what_the_configuration_comes_to_and_takes_it_back() {
    let (folder, path) = config("[gates.api]\nupstream = \"http://127.0.0.1:9\"\nlisten = \"127.0.0.1:18471\"\n");
    let ended = end(with_config("check", &path));
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("[gates.api"), "{}", ended.out);
    let again = folder.path().join("effective.toml");
    std::fs::write(&again, &ended.out).expect("it can be written");
    let second = end(with_config("check", &again));
    assert_eq!((second.code, second.out), (Some(0), ended.out), "{}", second.err);
}

#[test]
fn the_config_variable_is_read_where_the_option_is_missing() {
    let (_folder, path) = config("[gates.from_variable]\nupstream = \"http://127.0.0.1:9\"\n");
    let mut command = tidegate(["check"]);
    command.env("TIDEGATE_CONFIG", &path);
    let ended = end(command);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("from_variable"), "{}", ended.out);
}

#[test]
fn the_environment_is_on_top_of_the_file() {
    let (_folder, path) = config("[gates.api]\nupstream = \"http://127.0.0.1:9\"\nbucket = { rate = 5, burst = 7 }\n");
    let mut command = with_config("check", &path);
    command.env("TIDEGATE__GATES__API__BUCKET__RATE", "12.5");
    let ended = end(command);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("12.5"), "{}", ended.out);
}

#[test]
fn health_says_yes_only_to_a_running_gate() {
    let port = free_port();
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:{port}\"\n[gates.api]\nupstream = \"http://127.0.0.1:9\"\nlisten = \"127.0.0.1:{}\"\n",
        free_port()
    );
    let (_folder, path) = config(&text);
    let before = end(with_config("health", &path));
    assert_eq!(before.code, Some(1), "{}", before.err);
    assert!(before.err.contains(&port.to_string()), "the port is named\n{}", before.err);
    let mut gate = start(with_config("run", &path));
    gate.ready();
    let after = end(with_config("health", &path));
    assert_eq!(after.code, Some(0), "{}", after.err);
    assert_eq!(gate.terminate(), Some(0));
}

#[test]
fn health_without_an_admin_port_says_what_to_set() {
    let (_folder, path) = config("[admin]\nlisten = \"off\"\n[gates.api]\nupstream = \"http://127.0.0.1:9\"\n");
    let ended = end(with_config("health", &path));
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("admin.listen"), "{}", ended.err);
}

#[test]
fn what_an_option_cannot_mean_is_refused() {
    let ended = end(tidegate(["simulate", "failing-together", "--gate", "k"]));
    assert!(ended.code == Some(64) && ended.err.contains("--config"), "{}", ended.err);
    for name in ["", "A B", "-a", "a/b"] {
        let ended = end(tidegate(["inject", "--image", "i:1", &format!("--config-map={name}")]));
        let said = format!("--config-map is {name:?}, expected the name of a ConfigMap");
        assert!(ended.code == Some(1) && ended.err.contains(&said), "{}", ended.err);
    }
}
