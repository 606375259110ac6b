//! The identity that the API server sees, and the effect of rotating tokens and certificates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use http::Method;
use http_body_util::BodyExt;

use crate::ports::free_port;
use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::gate::{Gate, Way};
use crate::support::process::{Process, command, scratch_dir};
use crate::support::programs::Program;
use crate::support::{block_on, now, pause, say, turn, wait_for};

const LIMIT: Duration = Duration::from_secs(60);
const WATCHES: usize = 50;

/// A gate that lends the identity of a kubeconfig's user, beyond loopback, to clients that have the
/// token in its folder.
struct Lending {
    _process: Process,
    dir: tempfile::TempDir,
}

impl Lending {
    /// `user` is the kubeconfig's user, as YAML; its relative paths start at the gate's own folder.
    fn start(plane: &ControlPlane, dir: tempfile::TempDir, user: &str) -> Self {
        let port = free_port();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: '{}', certificate-authority: '{}'}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n",
            plane.url(),
            plane.ca_file().display()
        );
        fs::write(dir.path().join("upstream"), kubeconfig).expect("the folder is ours");
        let config = format!(
            "[admin]\nlisten = \"off\"\n[gates.lending]\nlisten = \"0.0.0.0:{port}\"\nupstream = \"kubeconfig\"\n\
             credentials = \"inject\"\npreset = \"none\"\n[gates.lending.tls]\nwrite_to = \"{}\"\n",
            path("out")
        );
        let file = dir.path().join("tidegate.toml");
        fs::write(&file, config).expect("the folder is ours");
        let mut run = command(env!("CARGO_BIN_EXE_tidegate"), ["run", "--config"]);
        run.arg(&file).env("KUBECONFIG", path("upstream"));
        let process = Process::start("lending", dir.path(), run);
        wait_for("the gate writes its folder", LIMIT, || {
            process.must_run();
            dir.path().join("out/kubeconfig").exists().then_some(())
        });
        Self { _process: process, dir }
    }

    fn out(&self, name: &str) -> PathBuf {
        self.dir.path().join("out").join(name)
    }

    /// Sends a GET with the folder's kubeconfig; true if it succeeds.
    fn get(&self, plane: &ControlPlane) -> bool {
        kubectl(plane, &self.out("kubeconfig"), &["get", "--raw", "/api/v1/namespaces/default"]).status.success()
    }
}

fn kubectl(plane: &ControlPlane, kubeconfig: &Path, args: &[&str]) -> Output {
    let mut run = command(plane.binaries().path("kubectl"), args);
    run.env("KUBECONFIG", kubeconfig).env("HOME", "/nonexistent").output().expect("kubectl runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_api_server_sees_the_client_or_the_gate_as_configured() {
    let Some(plane) = ControlPlane::shared("the_api_server_sees_the_client_or_the_gate_as_configured") else { return };
    let _turn = turn::light();
    plane.namespace("identity");
    let list = ["get", "configmaps", "-n", "identity"];
    let acting = ["get", "configmaps", "-n", "identity", "--as", "tidegate-nobody"];

    let passing = Gate::start(plane, "");
    let client = plane.tester();
    let kubeconfig = passing.kubeconfig(&client);
    assert!(kubectl(plane, &kubeconfig, &list).status.success());
    assert!(!plane.audit().of(&client.name).is_empty(), "the client's own identity goes through");
    let refused = said(&kubectl(plane, &kubeconfig, &acting));
    assert!(refused.contains("User \"tidegate-nobody\" cannot list"), "it acted as somebody else: {refused}");

    let own = plane.master();
    let lending = Lending::start(plane, scratch_dir(), &format!("token: {}", own.token));
    assert!(kubectl(plane, &lending.out("kubeconfig"), &list).status.success());
    assert!(!plane.audit().of(&own.name).is_empty(), "the gate's identity is what is seen");
    let refused = said(&kubectl(plane, &lending.out("kubeconfig"), &acting));
    assert!(refused.contains("impersonation is off at this gate"), "{refused}");
    let stranger = fs::read_to_string(lending.out("kubeconfig")).expect("written").replace("tokenFile:", "username:");
    fs::write(lending.out("stranger"), stranger).expect("the folder is ours");
    let refused = said(&kubectl(plane, &lending.out("stranger"), &list));
    assert!(refused.contains("must be logged in") || refused.contains("Unauthorized"), "{refused}");
}

#[test]
fn a_rotated_token_is_used_within_a_minute_and_at_once_after_a_401() {
    let Some(plane) = ControlPlane::shared("a_rotated_token_is_used_within_a_minute_and_at_once_after_a_401") else {
        return;
    };
    let _turn = turn::light();
    let (first, second) = (plane.master(), plane.master());
    let dir = scratch_dir();
    let file = dir.path().join("token");
    fs::write(&file, "expired").expect("the folder is ours");
    let lending = Lending::start(plane, dir, "tokenFile: token");
    let refused = kubectl(plane, &lending.out("kubeconfig"), &["get", "--raw", "/api/v1/namespaces/default"]);
    assert!(!refused.status.success(), "the API server knows no such token");
    fs::write(&file, &first.token).expect("the folder is ours");
    assert!(lending.get(plane), "read again at once");
    assert!(!plane.audit().of(&first.name).is_empty());
    fs::write(&file, &second.token).expect("the folder is ours");
    let begun = now();
    while plane.audit().of(&second.name).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the old token was still used");
        assert!(lending.get(plane));
        pause(Duration::from_secs(1));
    }
    say(format_args!("credentials: a rotated token was used after {:.1?}", begun.elapsed()));
}

#[test]
fn a_rotated_ca_and_serving_certificate_lose_no_watch() {
    let test = "a_rotated_ca_and_serving_certificate_lose_no_watch";
    let _turn = turn::light();
    let Some(plane) = ControlPlane::own(test, Options::default()) else { return };
    plane.namespace("rotated");
    let gate = Gate::start(&plane, "preset = \"none\"");
    let user = plane.master();
    let args = ["watches", "-namespace", "rotated", "-count", &WATCHES.to_string()];
    let watches = Program::start(&plane, Way::Gate(&gate), &user, &args);
    watches.wait_events("open", 1, LIMIT);
    let before = gate.sockets_to(plane.port());

    let old = fs::read(plane.ca_file()).expect("it is there");
    plane.rotate_serving();
    let begun = now();
    // The harness trusts only the new CA, as the gate does once it has read it: kubectl succeeds
    // when the server shows the new certificate.
    let config = plane.kubeconfig(&ControlPlane::harness());
    wait_for("the API server shows its new certificate", Duration::from_secs(120), || {
        kubectl(&plane, &config, &["get", "--raw", "/readyz"]).status.success().then_some(())
    });
    assert_ne!(old, fs::read(plane.ca_file()).expect("it is there"));
    say(format_args!("credentials: the API server's new certificate showed after {:.1?}", begun.elapsed()));
    let begun = now();
    block_on(async {
        let mut connection = Connection::open(Way::Gate(&gate), &user, Protocol::Http2).await;
        // Opens a watch every second, so that the last ones need connections under the new CA; none
        // may fail.
        let mut opened = Vec::new();
        while begun.elapsed() < Duration::from_secs(45) {
            connection.get("/api/v1/namespaces/rotated").await;
            let watch = connection.send(Method::GET, "/api/v1/namespaces/rotated/secrets?watch=true", "").await;
            let watch = watch.expect("an answer");
            assert_eq!(watch.status(), 200);
            opened.push(watch);
            pause(Duration::from_secs(1));
        }
        plane.kubectl(&["create", "secret", "generic", "seen", "-n", "rotated"]);
        for mut watch in opened {
            let event = watch.frame().await.expect("it goes on").expect("it is not broken");
            assert!(event.into_data().expect("an event").starts_with(b"{\"type\":\"ADDED\""));
        }
    });
    let after = gate.sockets_to(plane.port());
    say(format_args!("credentials: {} connections before the rotation, {} after it", before.len(), after.len()));
    // Other connections may have been idle, and closed.
    assert!(
        !after.is_subset(&before) && !after.is_disjoint(&before),
        "new watches go over connections by the new CA, old ones live on"
    );
    plane.kubectl(&["create", "configmap", "watched-7", "-n", "rotated"]);
    watches.wait_events("seen", 1, LIMIT);
    assert!(watches.events("interrupted").is_empty(), "{:?}", watches.events("interrupted").first());
}
