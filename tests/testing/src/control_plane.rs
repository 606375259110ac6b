//! etcd, kube-apiserver and, on request, kube-controller-manager on free loopback ports.
//!
//! Most tests share one control plane; those that need other flags, or that stop it, start their
//! own. The audit log is in blocking mode: an answer that a client has had is in the file.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::admin;
use crate::audit::Audit;
use crate::binaries::Binaries;
use crate::fetched::{now, say};
use crate::ports::free_port;
use crate::process::{Process, command, scratch_dir};
use crate::relay::Relay;
use crate::turn;
use crate::wait::wait_for;

/// Enough for every test to have its own identities, so that the audit log tells them apart.
const USERS: usize = 100;

/// A generous limit for a start on two busy cores.
const START: Duration = Duration::from_secs(120);

/// One line per answered request; the control plane's own calls are left out. Two namespaces are for
/// tests that read more of it.
const AUDIT_POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, users: ["system:apiserver", "system:kube-controller-manager", "tidegate:harness", "tidegate:kwok"]}
- {level: RequestResponse, namespaces: [judged, planted]}
- {level: Metadata}
"#;

/// A caller: the audit log names the user, and the token is what a client sends.
#[derive(Clone, Debug)]
pub struct User {
    pub name: String,
    pub token: String,
}

impl User {
    /// What tells it from others in the name of a file: the end of its token.
    pub fn mark(&self) -> &str {
        self.token.get(self.token.len().saturating_sub(40)..).unwrap_or(&self.token)
    }
}

/// The differences between control planes.
#[derive(Debug, Default)]
pub struct Options {
    /// Flags of kube-apiserver beyond the usual ones.
    pub flags: Vec<String>,
    /// True if the test needs cascading deletion, default service accounts or the ends of
    /// namespaces.
    pub controller_manager: bool,
    /// True if clients come through a relay that can be cut.
    pub relay: bool,
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    binaries: &'static Binaries,
    // Dropped before the folder it writes to.
    manager: Option<Process>,
    api: Mutex<Option<Process>>,
    etcd: Process,
    etcd_port: u16,
    port: u16,
    relay: Option<Relay>,
    flags: Vec<String>,
    next_master: AtomicUsize,
    next_tester: AtomicUsize,
    dir: tempfile::TempDir,
}

impl ControlPlane {
    /// The control plane that most tests share, started on first use; `None` if the tests are
    /// skipped. Call it before you take a turn.
    pub fn shared(test: &str) -> Option<&'static Self> {
        static SHARED: OnceLock<ControlPlane> = OnceLock::new();
        let binaries = Binaries::or_skip(test)?;
        Some(SHARED.get_or_init(|| {
            let _turn = turn::light();
            Self::start(binaries, Options { controller_manager: true, ..Options::default() })
        }))
    }

    /// A control plane for this test alone. Take a turn first, since a start needs both processors.
    pub fn own(test: &str, options: Options) -> Option<Self> {
        Some(Self::start(Binaries::or_skip(test)?, options))
    }

    fn start(binaries: &'static Binaries, options: Options) -> Self {
        let begun = now();
        let dir = scratch_dir();
        write_certificates(dir.path());
        write_tokens(dir.path());
        fs::write(dir.path().join("audit-policy.yaml"), AUDIT_POLICY).expect("the folder is ours");
        let (etcd, etcd_port) = start_etcd(binaries, dir.path());
        let port = free_port();
        let mut plane = Self {
            binaries,
            manager: None,
            api: Mutex::new(None),
            etcd,
            etcd_port,
            port,
            relay: options.relay.then(|| Relay::start(port)),
            flags: options.flags,
            next_master: AtomicUsize::new(0),
            next_tester: AtomicUsize::new(0),
            dir,
        };
        plane.start_api();
        plane.bind_testers();
        if options.controller_manager {
            plane.start_manager();
        }
        say(format_args!("control plane up in {:.1} s", begun.elapsed().as_secs_f64()));
        plane
    }

    /// The API server's base URL.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port())
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.relay.as_ref().map_or(self.port, Relay::port)
    }

    /// The relay, which a test that asked for one may cut.
    pub fn relay(&self) -> &Relay {
        self.relay.as_ref().expect("this test asked for a relay")
    }

    /// A file of its folder: certificates, keys, logs.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The CA that signed the API server's certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    /// The Go programs.
    pub const fn binaries(&self) -> &'static Binaries {
        self.binaries
    }

    /// A member of `system:masters`, exempt from priority and fairness, that no other test uses.
    pub fn master(&self) -> User {
        user("master", self.next_master.fetch_add(1, Ordering::Relaxed))
    }

    /// A cluster administrator by RBAC, subject to priority and fairness.
    pub fn tester(&self) -> User {
        user("tester", self.next_tester.fetch_add(1, Ordering::Relaxed))
    }

    /// The harness itself, which is not in the audit log.
    pub fn harness() -> User {
        User { name: "tidegate:harness".to_owned(), token: "harness".to_owned() }
    }

    /// A kubeconfig that leads straight to the API server.
    pub fn kubeconfig(&self, user: &User) -> PathBuf {
        let path = self.dir.path().join(format!("direct-{}.kubeconfig", user.mark()));
        write_kubeconfig(&path, &self.url(), &self.ca_file(), user);
        path
    }

    /// Makes another CA, and another serving certificate by it; the API server loads them by
    /// itself.
    pub fn rotate_serving(&self) {
        write_serving(self.dir.path());
    }

    /// Everything in the audit log so far.
    pub fn audit(&self) -> Audit {
        Audit::read(&self.audit_log())
    }

    /// How often etcd has stored each object of a kind in a namespace, by name.
    pub fn stored(&self, kind: &str, namespace: &str) -> HashMap<String, u64> {
        let key = format!("/registry/{kind}/{namespace}/");
        let end = format!("/registry/{kind}/{namespace}0"); // the character after the slash
        let [key, end] = [key, end].map(|text| STANDARD.encode(text));
        let range = json!({"key": key, "range_end": end, "keys_only": true}).to_string();
        let answer = admin::post(self.etcd_port, "/v3/kv/range", &range).expect("etcd answers");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let answer: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
        let stored = |one: &Value| {
            let key = STANDARD.decode(one["key"].as_str()?).ok()?;
            let name = String::from_utf8_lossy(&key).rsplit('/').next()?.to_owned();
            Some((name, one["version"].as_str()?.parse().ok()?))
        };
        answer["kvs"].as_array().into_iter().flatten().filter_map(stored).collect()
    }

    /// The file with the audit log.
    pub fn audit_log(&self) -> PathBuf {
        self.dir.path().join("audit.log")
    }

    /// Runs kubectl as the harness, straight to the API server. Returns its standard output, or
    /// panics with its messages.
    pub fn kubectl(&self, args: &[&str]) -> String {
        let config = self.kubeconfig(&Self::harness());
        let mut run = command(self.binaries.path("kubectl"), args);
        let out = run.env("KUBECONFIG", &config).env("HOME", self.dir.path()).output().expect("kubectl runs");
        assert!(out.status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Runs kubectl apply for a manifest, as the harness.
    pub fn apply(&self, manifest: &str) {
        let mut file = tempfile::NamedTempFile::new_in(self.dir.path()).expect("the folder is ours");
        file.write_all(manifest.as_bytes()).expect("the folder is ours");
        let path = file.path().display().to_string();
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &path]);
    }

    /// Makes a namespace for the test.
    pub fn namespace(&self, name: &str) {
        self.apply(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {{test: {name}}}}}}}"
        ));
    }

    /// Ends the API server at once, as a crash would.
    pub fn kill_api(&self) {
        let api = self.api.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(api.expect("the API server was running"));
    }

    /// Suspends etcd: requests to it wait.
    pub fn stall_etcd(&self) {
        self.etcd.signal("STOP");
    }

    /// Lets etcd go on.
    pub fn resume_etcd(&self) {
        self.etcd.signal("CONT");
    }

    /// Starts the API server on the same port with the same data, and waits until it is ready.
    pub fn start_api(&self) {
        let api = Process::start("kube-apiserver", self.dir.path(), self.api_command());
        wait_for("the API server is ready", START, || {
            api.must_run();
            self.ready().then_some(())
        });
        *self.api.lock().unwrap_or_else(PoisonError::into_inner) = Some(api);
    }

    fn ready(&self) -> bool {
        let config = self.kubeconfig(&Self::harness());
        let mut run = command(self.binaries.path("kubectl"), ["get", "--raw", "/readyz", "--request-timeout=2s"]);
        let out = run.env("KUBECONFIG", &config).env("HOME", self.dir.path()).output().expect("kubectl runs");
        out.status.success()
    }

    fn api_command(&self) -> Command {
        let dir = self.dir.path();
        let file = |name: &str| dir.join(name).display().to_string();
        let mut flags = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            format!("--secure-port={}", self.port),
            format!("--service-account-issuer={}/", self.url()),
            format!("--tls-cert-file={}", file("api.crt")),
            format!("--tls-private-key-file={}", file("api.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            format!("--service-account-key-file={}", file("sa.pub")),
            format!("--token-auth-file={}", file("tokens.csv")),
            format!("--audit-policy-file={}", file("audit-policy.yaml")),
            format!("--audit-log-path={}", file("audit.log")),
            format!("--cert-dir={}", file("certs")),
            format!("--kubelet-client-certificate={}", file("to-kubelet.crt")),
            format!("--kubelet-client-key={}", file("to-kubelet.key")),
        ];
        let fixed = "--bind-address=127.0.0.1 --advertise-address=10.99.0.1 --endpoint-reconciler-type=none \
            --service-cluster-ip-range=10.0.0.0/24 --authorization-mode=RBAC --allow-privileged=true \
            --shutdown-send-retry-after=true --kubelet-preferred-address-types=InternalIP --audit-log-mode=blocking --audit-log-maxsize=4096";
        flags.extend(fixed.split_whitespace().map(str::to_owned));
        flags.extend(self.flags.iter().cloned());
        command(self.binaries.path("kube-apiserver"), flags)
    }

    /// Binds the testers' group to a role, as a token alone gives no rights.
    fn bind_testers(&self) {
        self.apply(
            "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: tidegate-testers}, \
             roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, \
             subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'tidegate:testers'}]}",
        );
    }

    fn start_manager(&mut self) {
        let user = User { name: "system:kube-controller-manager".to_owned(), token: "manager".to_owned() };
        self.manager = Some(self.controller_manager(&self.kubeconfig(&user)));
        wait_for("the default service account is made", START, || {
            self.kubectl(&["get", "serviceaccounts", "-n", "default", "-o", "name"]).contains("default").then_some(())
        });
    }

    /// Starts kube-controller-manager with this kubeconfig.
    pub fn controller_manager(&self, kubeconfig: &Path) -> Process {
        let dir = self.dir.path();
        let flags = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--service-account-private-key-file={}", dir.join("sa.key").display()),
            format!("--root-ca-file={}", self.ca_file().display()),
            "--use-service-account-credentials=false".to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
        ];
        let run = command(self.binaries.path("kube-controller-manager"), flags);
        Process::start("kube-controller-manager", dir, run)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // A test that fails needs the server's log.
        if std::thread::panicking()
            && let Some(api) = self.api.lock().unwrap_or_else(PoisonError::into_inner).as_ref()
        {
            say(format_args!("the API server's last words:\n{}", api.log_tail()));
        }
        self.etcd.kill();
    }
}

fn user(kind: &str, number: usize) -> User {
    assert!(number < USERS, "more tests than users");
    User { name: format!("{kind}{number}"), token: format!("{kind}{number}-token") }
}

/// A kubeconfig with one cluster, one user and one context, `test`.
pub fn write_kubeconfig(path: &Path, server: &str, ca: &Path, user: &User) {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters: [{{name: test, cluster: {{server: '{server}', certificate-authority: '{}'}}}}]\n\
         users: [{{name: test, user: {{token: '{}'}}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n",
        ca.display(),
        user.token
    );
    // Several threads may write the same file, so it must never be half written.
    let dir = path.parent().expect("it is in a folder");
    let mut file = tempfile::NamedTempFile::new_in(dir).expect("the folder is ours");
    file.write_all(text.as_bytes()).expect("the folder is ours");
    file.persist(path).expect("the folder is ours");
}

fn start_etcd(binaries: &Binaries, dir: &Path) -> (Process, u16) {
    let (client, peer) = (free_port(), free_port());
    let flags = [
        format!("--data-dir={}", dir.join("etcd").display()),
        format!("--listen-client-urls=http://127.0.0.1:{client}"),
        format!("--advertise-client-urls=http://127.0.0.1:{client}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
        format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
        format!("--initial-cluster=default=http://127.0.0.1:{peer}"),
        // Nothing here must survive a power cut.
        "--unsafe-no-fsync=true".to_owned(),
        "--log-level=warn".to_owned(),
        "--quota-backend-bytes=4294967296".to_owned(),
    ];
    let etcd = Process::start("etcd", dir, command(binaries.path("etcd"), flags));
    (etcd, client)
}

/// Writes a CA, a serving certificate by it, and the key that signs service accounts' tokens.
fn write_certificates(dir: &Path) {
    write_serving(dir);
    let accounts = rcgen::KeyPair::generate().expect("a key can be made");
    let write = |name: &str, text: String| fs::write(dir.join(name), text).expect("the folder is ours");
    write("sa.key", accounts.serialize_pem());
    write("sa.pub", accounts.public_key_pem());
}

fn write_serving(dir: &Path) {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let key = || KeyPair::generate().expect("a key can be made");
    let mut ca = CertificateParams::new(Vec::new()).expect("no names to be wrong");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(rcgen::DnType::CommonName, "tidegate test CA");
    let ca = CertifiedIssuer::self_signed(ca, key()).expect("a CA can be made");
    // The last is the address of the `kubernetes` service, where pods find it.
    let names = ["localhost", "127.0.0.1", "kubernetes.default.svc", "10.0.0.1"].map(str::to_owned);
    let server_key = key();
    let server =
        CertificateParams::new(names).expect("valid names").signed_by(&server_key, &ca).expect("it can be signed");
    let write = |name: &str, text: String| fs::write(dir.join(name), text).expect("the folder is ours");
    let kubelet_key = key();
    let mut to_kubelet = CertificateParams::new(Vec::new()).expect("no names to be wrong");
    to_kubelet.distinguished_name.push(rcgen::DnType::CommonName, "kube-apiserver-kubelet-client");
    let to_kubelet = to_kubelet.signed_by(&kubelet_key, &ca).expect("it can be signed");
    write("to-kubelet.crt", to_kubelet.pem());
    write("to-kubelet.key", kubelet_key.serialize_pem());
    write("ca.crt", ca.pem());
    write("api.crt", server.pem());
    write("api.key", server_key.serialize_pem());
}

fn write_tokens(dir: &Path) {
    let mut lines = vec![
        r#"harness,tidegate:harness,harness,"system:masters""#.to_owned(),
        "manager,system:kube-controller-manager,manager,\"system:masters\"".to_owned(),
        "kwok,tidegate:kwok,kwok,\"system:masters\"".to_owned(),
    ];
    for number in 0..USERS {
        lines.push(format!(r#"master{number}-token,master{number},master{number},"system:masters""#));
        lines.push(format!(r#"tester{number}-token,tester{number},tester{number},"tidegate:testers""#));
    }
    fs::write(dir.join("tokens.csv"), lines.join("\n")).expect("the folder is ours");
}
