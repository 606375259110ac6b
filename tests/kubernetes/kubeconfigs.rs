//! The gate reads each kubeconfig as kubectl does: both are run with it, and the server says what it
//! saw of either. Where they differ, the row says why.

mod recorder;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, IsCa, date_time_ymd};

use self::recorder::{Authority, Record, Seen, self_signed};
use crate::ports::free_port;
use crate::support::binaries::Binaries;
use crate::support::process::{Process, command, scratch_dir};
use crate::support::{say, turn, wait_for};

/// A kubeconfig with one cluster and one user.
struct Row {
    /// What it is about.
    name: &'static str,
    /// `$NAME` stands for a server or a file of the stage.
    cluster: &'static str,
    user: &'static str,
    /// Why the gate does not do as kubectl does; empty if it does.
    differs: &'static str,
}

const fn row(name: &'static str, cluster: &'static str, user: &'static str) -> Row {
    Row { name, cluster, user, differs: "" }
}

impl Row {
    const fn differs(self, differs: &'static str) -> Self {
        Self { differs, ..self }
    }
}

/// The cluster of rows that are about the user.
const USUAL: &str = "{server: 'https://$MAIN', certificate-authority-data: $CA64}";
/// The user of rows that are about the cluster.
const T: &str = "{token: abc}";
const LENIENT: &str = "what is certainly meant is taken";
const IN_CLEAR: &str = "a gate that lends an identity lends it to a plain server too, where clientcmd sends none";
const NOBODY: &str = "kubectl asks for a name at the terminal; a gate passes the client's own credentials on";

const ROWS: &[Row] = &[
    // tokens
    row("token", USUAL, T),
    row("token that is a number", USUAL, "{token: 12345}"),
    row("token that is an octal number", USUAL, "{token: 007}"),
    row("token that is a hexadecimal number", USUAL, "{token: 0x1f}"),
    row("token that is a fraction", USUAL, "{token: 1.50}"),
    row("token that is a power", USUAL, "{token: 1e3}"),
    row("token that is a large number", USUAL, "{token: 12345678901234567890123}"),
    row("token that is a truth", USUAL, "{token: yes}"),
    row("token that is a date", USUAL, "{token: 2020-01-01}"),
    row("token that is a time", USUAL, "{token: 1:30}"),
    row("token that is a quoted number", USUAL, "{token: '12345'}"),
    row("token in binary", USUAL, "{token: !!binary YWJj}"),
    row("token that is null", USUAL, "{token: null}").differs(NOBODY),
    row("token that is a list", USUAL, "{token: [abc]}"),
    row("token twice", USUAL, "{token: one, token: two}"),
    row("token with a line break", USUAL, "{token: \"abc\\n\"}").differs(LENIENT),
    row("token with a blank", USUAL, "{token: 'a b'}"),
    row("token beside unknown keys", USUAL, "{token: abc, later: {a: 1}}"),
    row("token by an anchor", USUAL, "{later: &a abc, token: *a}"),
    row("token file", USUAL, "{tokenFile: token}"),
    row("token file before a token", USUAL, "{token: abc, tokenFile: token}"),
    row("token file that is not there", USUAL, "{tokenFile: nowhere}"),
    row("token where its file is not there", USUAL, "{token: abc, tokenFile: nowhere}"),
    row("user twice", USUAL, "{token: one}\n- name: u\n  user: {token: two}"),
    row("another user twice", USUAL, "{token: abc}\n- name: v\n  user: {}\n- name: v\n  user: {}"),
    row("user that is null", USUAL, "null").differs(NOBODY),
    // other identities
    row("name and password", USUAL, "{username: admin, password: 'a:b'}"),
    row("name without a password", USUAL, "{username: admin}"),
    row("token and password", USUAL, "{token: abc, username: a, password: b}"),
    row("client certificate", USUAL, "{client-certificate: client.crt, client-key: client.key}"),
    row("client certificate inline", USUAL, "{client-certificate-data: $CERT64, client-key-data: $KEY64}"),
    row("client certificate and token", USUAL, "{token: abc, client-certificate: client.crt, client-key: client.key}"),
    row(
        "client certificate, inline before files",
        USUAL,
        "{client-certificate-data: $CERT64, client-key-data: $KEY64, client-certificate: no, client-key: no}",
    ),
    row("client certificate without a key", USUAL, "{client-certificate: client.crt}"),
    row("client certificate with another key", USUAL, "{client-certificate: client.crt, client-key: other.key}"),
    row(
        "impersonation",
        USUAL,
        "{token: abc, as: robot, as-uid: u1, as-groups: [a, b], as-user-extra: {Example.com/Scopes%: [x, z]}}",
    ),
    row("impersonation of nobody", USUAL, "{token: abc, as-groups: [a]}"),
    row("impersonation by a number", USUAL, "{token: abc, as: 1}"),
    // plugins
    row(
        "exec",
        USUAL,
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, args: [abc], interactiveMode: Never}}",
    ),
    row(
        "exec v1beta1",
        USUAL,
        "{exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: ./plugin-beta, args: [abc]}}",
    ),
    row(
        "exec whose credential has ended",
        USUAL,
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, args: [abc, '2020-01-01T00:00:00Z'], interactiveMode: Never}}",
    ),
    row(
        "exec beside a token",
        USUAL,
        "{token: abc, exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, args: [no], interactiveMode: Never}}",
    ),
    row(
        "exec that fails",
        USUAL,
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: 'false', interactiveMode: Never}}",
    ),
    row(
        "exec that is not there",
        USUAL,
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./nowhere, interactiveMode: Never}}",
    ),
    row(
        "exec with a number as argument",
        USUAL,
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, args: [1], interactiveMode: Never}}",
    ),
    row(
        "exec that needs a terminal",
        USUAL,
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, args: [abc], interactiveMode: Always}}",
    ),
    row(
        "OIDC",
        USUAL,
        "{auth-provider: {name: oidc, config: {client-id: x, idp-issuer-url: 'https://127.0.0.1:1', id-token: $JWT}}}",
    )
    .differs("the gate cannot renew it, and says so"),
    row(
        "OIDC beside a token",
        USUAL,
        "{token: abc, auth-provider: {name: oidc, config: {client-id: x, idp-issuer-url: 'https://127.0.0.1:1', id-token: $JWT}}}",
    ),
    row(
        "OIDC beside a plugin",
        USUAL,
        "{auth-provider: {name: oidc, config: {client-id: x, idp-issuer-url: 'https://127.0.0.1:1'}}, exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, args: [abc], interactiveMode: Never}}",
    ),
    row("provider that is gone", USUAL, "{token: abc, auth-provider: {name: gcp}}"),
    // trust
    row("CA file", "{server: 'https://$MAIN', certificate-authority: ca.crt}", T),
    row(
        "CA inline before a file",
        "{server: 'https://$MAIN', certificate-authority-data: $CA64, certificate-authority: ca.crt}",
        T,
    )
    .differs("client-go takes the one, where clientcmd refuses both"),
    row("CA in a literal block", "\n    server: https://$MAIN\n    certificate-authority-data: |\n$CALINES", T),
    row("CA in a folded block", "\n    server: https://$MAIN\n    certificate-authority-data: >\n$CALINES", T),
    row("CA over lines without a mark", "\n    server: https://$MAIN\n    certificate-authority-data:\n$CALINES", T),
    row("CA in binary", "{server: 'https://$MAIN', certificate-authority-data: !!binary $CA6464}", T),
    row("CA in binary lines", "\n    server: https://$MAIN\n    certificate-authority-data: !!binary |\n$CALINES64", T),
    row("CA that is not base64", "{server: 'https://$MAIN', certificate-authority-data: '-----BEGIN'}", T),
    row("CA that is another", "{server: 'https://$MAIN', certificate-authority: other.crt}", T),
    row("CA file without a certificate", "{server: 'https://$MAIN', certificate-authority: token}", T),
    row("CA behind a block that cannot be read", "{server: 'https://$MAIN', certificate-authority: bundle.crt}", T),
    row("the server's own leaf as its CA", "{server: 'https://$MAIN', certificate-authority: main.crt}", T),
    row("the server's own CA certificate", "{server: 'https://$SELF', certificate-authority: self.crt}", T),
    row(
        "the server's own certificate, for another name",
        "{server: 'https://$NAMED', certificate-authority: named.crt}",
        T,
    ),
    row("the server's own certificate, after its end", "{server: 'https://$OLD', certificate-authority: old.crt}", T),
    row("server of another name", "{server: 'https://$OTHER', certificate-authority-data: $CA64}", T),
    row(
        "server of another name that is given",
        "{server: 'https://$OTHER', certificate-authority-data: $CA64, tls-server-name: other.example}",
        T,
    ),
    row("server that is not verified", "{server: 'https://$OTHER', insecure-skip-tls-verify: true}", T),
    row("server that is not verified, by a word", "{server: 'https://$OTHER', insecure-skip-tls-verify: yes}", T),
    row("server that is not verified, by a text", "{server: 'https://$OTHER', insecure-skip-tls-verify: 'true'}", T),
    row(
        "server that is not verified, with a CA",
        "{server: 'https://$MAIN', insecure-skip-tls-verify: true, certificate-authority-data: $CA64}",
        T,
    ),
    row(
        "server that is not verified, with a CA file",
        "{server: 'https://$MAIN', insecure-skip-tls-verify: true, certificate-authority: ca.crt}",
        T,
    ),
    row("no CA", "{server: 'https://$MAIN'}", T),
    // where
    row("base path", "{server: 'https://$MAIN/k8s/clusters/c/', certificate-authority-data: $CA64}", T),
    row("plain server", "{server: 'http://$PLAIN'}", "{username: a, password: b}").differs(IN_CLEAR),
    row("token to a plain server", "{server: 'http://$PLAIN'}", T).differs(IN_CLEAR),
    row("impersonation at a plain server", "{server: 'http://$PLAIN'}", "{as: robot}")
        .differs("a gate without a credential of its own passes the client's identity on"),
    row("server without a scheme", "{server: '$PLAIN'}", T).differs("expected with one"),
    row("no server", "{certificate-authority-data: $CA64}", T),
    row("proxy", "{server: 'https://$MAIN', certificate-authority-data: $CA64, proxy-url: 'http://$PROXY'}", T),
    row(
        "proxy that knows the name",
        "{server: 'https://nowhere.invalid:6443', certificate-authority-data: $CA64, tls-server-name: localhost, proxy-url: 'http://$PROXY'}",
        T,
    ),
    row(
        "proxy with a password",
        "{server: 'https://$MAIN', certificate-authority-data: $CA64, proxy-url: 'http://me:s%65cret@$PROXY'}",
        T,
    ),
    row(
        "proxy of an unknown kind",
        "{server: 'https://$MAIN', certificate-authority-data: $CA64, proxy-url: 'ftp://$PROXY'}",
        T,
    ),
    row(
        "cluster twice",
        "{server: 'https://$MAIN', certificate-authority-data: $CA64}\n- name: k\n  cluster: {server: 'https://$MAIN'}",
        T,
    ),
];

/// What is around every row.
struct Stage {
    folder: tempfile::TempDir,
    record: Record,
    /// What the names in a row stand for, the longest first.
    names: Vec<(&'static str, String)>,
}

impl Stage {
    fn new() -> Self {
        let (record, ca) = (Record::default(), Authority::new("ca"));
        let (main, other) = (
            ca.sign("127.0.0.1", |params| {
                let name = "localhost".try_into().expect("a name");
                params.subject_alt_names.push(rcgen::SanType::DnsName(name));
            }),
            ca.sign("other.example", |_| ()),
        );
        // as `openssl req -x509` makes them
        let is_ca = |params: &mut rcgen::CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let (own, named) = (self_signed("127.0.0.1", is_ca), self_signed("other.example", is_ca));
        let old = self_signed("127.0.0.1", |params| {
            is_ca(params);
            params.not_after = date_time_ymd(2020, 1, 1);
        });
        let client = ca.sign("admin", |_| ());
        let serve = |pair| record.serve(pair, &ca);
        let at_main = serve(Some(&main));
        let lines = |text: &str| {
            text.as_bytes()
                .chunks(64)
                .map(|line| format!("      {}\n", String::from_utf8_lossy(line)))
                .collect::<String>()
        };
        let ca64 = STANDARD.encode(ca.pem());
        let ca6464 = STANDARD.encode(&ca64);
        // {"alg":"none"}, and {"exp":4102444800,"sub":"x"}
        let jwt = "eyJhbGciOiJub25lIn0.eyJleHAiOjQxMDI0NDQ4MDAsInN1YiI6IngifQ.c2ln";
        let names = vec![
            ("$CALINES64", lines(&ca6464)),
            ("$CALINES", lines(&ca64)),
            ("$CA6464", ca6464),
            ("$CA64", ca64),
            ("$CERT64", STANDARD.encode(&client.certificate)),
            ("$KEY64", STANDARD.encode(&client.key)),
            ("$JWT", jwt.to_owned()),
            ("$MAIN", at_main.to_string()),
            ("$OTHER", serve(Some(&other)).to_string()),
            ("$SELF", serve(Some(&own)).to_string()),
            ("$NAMED", serve(Some(&named)).to_string()),
            ("$OLD", serve(Some(&old)).to_string()),
            ("$PLAIN", serve(None).to_string()),
            ("$PROXY", record.proxy(at_main).to_string()),
        ];
        let folder = scratch_dir();
        let unreadable = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
        for (name, text) in [
            ("ca.crt", ca.pem()),
            ("bundle.crt", format!("{unreadable}{}", ca.pem())),
            ("other.crt", Authority::new("ca").pem()),
            ("main.crt", main.certificate),
            ("self.crt", own.certificate),
            ("named.crt", named.certificate),
            ("old.crt", old.certificate),
            ("client.crt", client.certificate),
            ("client.key", client.key),
            ("other.key", other.key),
            ("token", "of-a-file\n".to_owned()),
            ("plugin", plugin("v1")),
            ("plugin-beta", plugin("v1beta1")),
        ] {
            fs::write(folder.path().join(name), text).expect("the folder is ours");
        }
        for name in ["plugin", "plugin-beta"] {
            let status =
                Command::new("chmod").arg("+x").arg(folder.path().join(name)).status().expect("there is chmod");
            assert!(status.success());
        }
        Self { folder, record, names }
    }

    /// Writes the kubeconfig of a row, and returns its path.
    fn write(&self, row: &Row) -> std::path::PathBuf {
        let mut text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: k\n  cluster: {}\nusers:\n- name: u\n  user: {}\n\
             contexts:\n- name: c\n  context: {{cluster: k, user: u}}\n",
            row.cluster, row.user
        );
        for (name, meaning) in &self.names {
            text = text.replace(name, meaning);
        }
        let path = self.folder.path().join("config");
        fs::write(&path, text).expect("the folder is ours");
        path
    }

    fn by_kubectl(&self, kubectl: &Path, kubeconfig: &Path) -> Sight {
        let mut run = command(kubectl, ["get", "--raw", "/version"]);
        alone(&mut run, kubeconfig);
        let output = run.stdin(Stdio::null()).output().expect("kubectl runs");
        Sight { seen: self.record.take(), said: String::from_utf8_lossy(&output.stderr).into_owned() }
    }

    fn by_gate(&self, kubeconfig: &Path) -> Sight {
        let (port, folder) = (free_port(), scratch_dir());
        let config = format!(
            "[admin]\nlisten = \"off\"\n[gates.kubernetes]\nlisten = \"127.0.0.1:{port}\"\nupstream = \"kubeconfig\"\n"
        );
        let path = folder.path().join("tidegate.toml");
        fs::write(&path, config).expect("the folder is ours");
        let mut run = command(env!("CARGO_BIN_EXE_tidegate"), ["run", "--config"]);
        alone(run.arg(&path), kubeconfig);
        let gate = Process::start("gate", folder.path(), run);
        let connection = wait_for("the gate listens, or ends", Duration::from_secs(60), || {
            TcpStream::connect(("127.0.0.1", port)).ok().map(Some).or_else(|| gate.has_ended().then_some(None))
        });
        let mut said = String::new();
        if let Some(mut connection) = connection {
            connection.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
            let request = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            connection.write_all(request).expect("the gate reads");
            connection.read_to_string(&mut said).expect("an answer");
        }
        said.push_str(&gate.log_tail());
        Sight { seen: self.record.take(), said }
    }
}

/// What the server saw of a program, and what that said.
struct Sight {
    seen: Option<Seen>,
    said: String,
}

/// Has a program find nothing but this kubeconfig, and the certificates of nobody.
fn alone(run: &mut Command, kubeconfig: &Path) {
    for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"] {
        run.env_remove(name);
    }
    run.env("KUBECONFIG", kubeconfig).env("HOME", "/nonexistent");
}

/// A plugin that gives its first argument as a token, to end at its second.
fn plugin(version: &str) -> String {
    format!(
        "#!/bin/sh\nprintf '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/{version}\",\
         \"status\":{{\"token\":\"%s\",\"expirationTimestamp\":\"%s\"}}}}' \"$1\" \"${{2:-2100-01-01T00:00:00Z}}\"\n"
    )
}

#[test]
fn the_gate_reads_a_kubeconfig_as_kubectl_does() {
    let Some(binaries) = Binaries::or_skip("the_gate_reads_a_kubeconfig_as_kubectl_does") else { return };
    let _turn = turn::light();
    let (kubectl, stage) = (binaries.path("kubectl"), Stage::new());
    let (mut wrong, mut accepted) = (Vec::new(), 0);
    for row in ROWS {
        let path = stage.write(row);
        let (kubectl, gate) = (stage.by_kubectl(&kubectl, &path), stage.by_gate(&path));
        accepted += usize::from(kubectl.seen.is_some());
        if (kubectl.seen == gate.seen) != row.differs.is_empty() {
            wrong.push(format!(
                "{}: {}\n  kubectl: {:?}\n    {}\n  gate:    {:?}\n    {}",
                row.name,
                if row.differs.is_empty() { "they differ" } else { "they are alike" },
                kubectl.seen,
                kubectl.said.trim(),
                gate.seen,
                gate.said.trim().replace('\n', "\n    "),
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), ROWS.len(), wrong.join("\n"));
    say(format_args!("kubeconfigs: {} are read alike; kubectl takes {accepted} of them", ROWS.len()));
    assert!(ROWS.len() >= 60 && accepted >= 30, "{} rows, {accepted} taken", ROWS.len());
}
