//! Upstreams from a pod, a kubeconfig or a URL, and what a controller is given to find the gate.

pub(crate) mod canary;
pub(crate) mod plugin;
pub(crate) mod proxy;
pub(crate) mod rotation;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::uri::Scheme;
use tidegate::clock::Clock;
use tidegate::credentials::folder::{self, Contents};
use tidegate::credentials::{
    CredentialsError, Environment, Inject, Injector, ResolvedUpstream, Source, UpstreamTls, resolve,
};
use tidegate::tls;

/// A secret that no error and no `Debug` may show.
const CANARY: &str = "canary-hunter2";

fn around(variables: &[(&str, &str)], service_account: &Path) -> Environment {
    let variables = variables.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Environment { variables, service_account: service_account.to_owned() }
}

/// Writes a file and returns its path as text.
fn file(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, content).expect("written");
    path.display().to_string()
}

fn ca() -> String {
    tls::self_signed(&[], &[], None).expect("a CA").ca().to_string()
}

/// The Authorization header that requests get.
fn authorization(resolved: &ResolvedUpstream) -> Option<String> {
    let mut headers = HeaderMap::new();
    let (credential, clock) = (resolved.credential.clone(), Clock::start());
    let inject = Inject { credential, impersonation: false, acting_as: Vec::new(), required_token: None, clock };
    Injector::inject(inject).authorize(&mut headers);
    headers.get("authorization").map(|value| value.to_str().expect("ASCII").to_owned())
}

fn kubeconfig(list: &str, context: Option<&str>) -> Result<ResolvedUpstream, CredentialsError> {
    let around = around(&[("KUBECONFIG", list)], Path::new("/nowhere"));
    let resolved = resolve(&Source::Kubeconfig(context.map(str::to_owned)), &UpstreamTls::default(), &around);
    assert!(!format!("{resolved:?}").contains(CANARY));
    if let Err(error) = &resolved {
        assert!(!error.to_string().contains(CANARY), "{error}");
    }
    resolved
}

#[test]
fn in_a_cluster_everything_comes_from_the_pod() {
    let folder = tempfile::tempdir().expect("a folder");
    file(folder.path(), "ca.crt", &ca());
    file(folder.path(), "token", CANARY);
    file(folder.path(), "namespace", "apps\n");
    let pod = around(&[("KUBERNETES_SERVICE_HOST", "fd00::1"), ("KUBERNETES_SERVICE_PORT", "443")], folder.path());
    let resolved = resolve(&Source::InCluster, &UpstreamTls::default(), &pod).expect("resolved");
    assert_eq!((resolved.target.authority.as_str(), &resolved.target.scheme), ("[fd00::1]:443", &Scheme::HTTPS));
    assert_eq!(resolved.namespace.as_deref(), Some("apps"));
    assert_eq!(authorization(&resolved), Some(format!("Bearer {CANARY}")));
    assert!(resolved.has_credentials() && resolved.tls(true).expect("TLS").is_some());
    assert!(!format!("{resolved:?}").contains(CANARY));

    let nowhere = around(&[], folder.path());
    let error = resolve(&Source::InCluster, &UpstreamTls::default(), &nowhere).expect_err("no pod").to_string();
    assert!(error.contains("KUBERNETES_SERVICE_HOST") && error.contains("kubeconfig"), "{error}");
    fs::remove_file(folder.path().join("token")).expect("removed");
    let error = resolve(&Source::InCluster, &UpstreamTls::default(), &pod).expect_err("no token").to_string();
    assert!(error.contains("token"), "{error}");
}

/// A kubeconfig with one context `c`, whose cluster and user have these fields.
fn config(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: c\n\
         clusters:\n- name: k\n  cluster: {{{cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n\
         contexts:\n- name: c\n  context: {{cluster: k, user: u, namespace: apps}}\n"
    )
}

#[test]
fn a_kubeconfig_is_read_with_paths_relative_to_it() {
    let folder = tempfile::tempdir().expect("a folder");
    file(folder.path(), "ca.crt", &ca());
    file(folder.path(), "token", CANARY);
    let cluster =
        "server: 'https://api.example:6443/k8s/', certificate-authority: ca.crt, tls-server-name: real.example";
    let path = file(folder.path(), "config", &config(cluster, "tokenFile: token"));
    let resolved = kubeconfig(&path, None).expect("resolved");
    assert_eq!(resolved.target.authority, "api.example:6443");
    assert_eq!(resolved.target.base_path, "/k8s");
    assert_eq!(resolved.target.server_name.as_deref(), Some("real.example"));
    assert_eq!(resolved.namespace.as_deref(), Some("apps"));
    assert_eq!(authorization(&resolved), Some(format!("Bearer {CANARY}")));
}

#[test]
fn inline_data_wins_over_files_and_a_token_file_that_can_be_read_over_a_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = STANDARD.encode(ca());
    let cluster = format!("server: 'https://x', certificate-authority-data: {data}, certificate-authority: /nowhere");
    let path = file(folder.path(), "config", &config(&cluster, &format!("token: {CANARY}, tokenFile: /nowhere")));
    let resolved = kubeconfig(&path, Some("c")).expect("resolved");
    assert_eq!(authorization(&resolved), Some(format!("Bearer {CANARY}")), "the file cannot be read");
    assert!(resolved.tls(true).expect("TLS").is_some());

    file(folder.path(), "token", CANARY);
    let path = file(folder.path(), "both", &config(&cluster, "token: old, tokenFile: token"));
    let resolved = kubeconfig(&path, Some("c")).expect("resolved");
    assert_eq!(authorization(&resolved), Some(format!("Bearer {CANARY}")));
}

#[test]
fn a_client_certificate_is_not_lent_to_clients_who_pass_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(vec!["admin".to_owned()]).expect("a certificate");
    let (cert, key) = (STANDARD.encode(made.cert.pem()), STANDARD.encode(made.signing_key.serialize_pem()));
    let user = format!("client-certificate-data: {cert}, client-key-data: {key}");
    let server = format!("server: 'https://x', certificate-authority-data: {}", STANDARD.encode(ca()));
    let path = file(folder.path(), "config", &config(&server, &user));
    let resolved = kubeconfig(&path, None).expect("resolved");
    assert!(resolved.has_credentials());
    assert_eq!(authorization(&resolved), None);
    let shows = |injecting| {
        resolved.tls(injecting).expect("TLS").expect("https").config().client_auth_cert_resolver.has_certs()
    };
    assert!(shows(true));
    assert!(!shows(false));

    let half = file(folder.path(), "half", &config(&server, &format!("client-certificate-data: {cert}")));
    let error = kubeconfig(&half, None).expect_err("no key").to_string();
    assert!(error.contains("client-key") && error.contains("user `u`"), "{error}");
}

#[test]
fn of_several_files_the_first_that_names_a_thing_wins() {
    let folder = tempfile::tempdir().expect("a folder");
    let sub = folder.path().join("sub");
    fs::create_dir(&sub).expect("made");
    let first =
        file(folder.path(), "first", "current-context: c\ncontexts:\n- name: c\n  context: {cluster: k, user: u}\n");
    file(&sub, "token", "second");
    let second = file(&sub, "second", &config("server: 'http://second'", "tokenFile: token"));
    let third = file(folder.path(), "third", &config("server: 'http://third'", "token: third").replace("c\n", "d\n"));
    let resolved = kubeconfig(&format!("{first}:/nowhere/config::{second}:{third}"), None).expect("resolved");
    assert_eq!(resolved.target.authority, "second");
    assert_eq!(authorization(&resolved).as_deref(), Some("Bearer second"));
    assert_eq!(resolved.namespace, None);
}

#[test]
fn what_cannot_be_done_is_said_and_never_passed_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let exec = |more: &str| format!("exec: {{apiVersion: client.authentication.k8s.io/v1, {more}}}");
    for (cluster, user, expected) in [
        (
            "",
            "auth-provider: {name: gcp}".to_owned(),
            "`auth-provider: gcp`, which Kubernetes removed in 1.26; use an exec plugin",
        ),
        ("", "auth-provider: {name: oidc}".to_owned(), "`auth-provider: oidc`, whose id-token the gate does not renew"),
        (
            ", insecure-skip-tls-verify: true, certificate-authority: /nowhere",
            "token: t".to_owned(),
            "would not be used",
        ),
        ("", "exec: {command: aws, apiVersion: client.authentication.k8s.io/v1alpha1}".to_owned(), "v1 or v1beta1"),
        ("", exec("interactiveMode: Never"), "`exec.command` of user `u`"),
        ("", exec("command: aws, interactiveMode: Always"), "the gate has no terminal"),
        ("", format!("token: t, username: a, password: {CANARY}"), "not both"),
        ("", "token: t, as-groups: [a]".to_owned(), "`as` of user `u`"),
        ("", format!("token: t, as: \"a\\n{CANARY}\""), "text that can go into a header"),
        (", proxy-url: 'ftp://proxy'", "token: t".to_owned(), "`proxy-url` of cluster `k`"),
    ] {
        let path = file(folder.path(), "config", &config(&format!("server: 'https://x'{cluster}"), &user));
        let error = kubeconfig(&path, None).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_user_and_a_password_are_basic_authentication() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = config("server: 'https://x'", &format!("username: admin, password: '{CANARY}'"));
    let resolved = kubeconfig(&file(folder.path(), "config", &text), None).expect("resolved");
    let expected = format!("Basic {}", STANDARD.encode(format!("admin:{CANARY}")));
    assert_eq!(authorization(&resolved), Some(expected));
}

#[test]
fn a_kubeconfig_can_act_as_somebody_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let user = "token: t, as: robot, as-uid: u1, as-groups: [a, b], as-user-extra: {Example.com/Scopes%: [x, z]}";
    let path = file(folder.path(), "config", &config("server: 'https://x'", user));
    let resolved = kubeconfig(&path, None).expect("resolved");
    let said: Vec<_> =
        resolved.acting_as.iter().map(|(name, value)| (name.as_str(), value.to_str().expect("text"))).collect();
    assert_eq!(
        said,
        [
            ("impersonate-user", "robot"),
            ("impersonate-uid", "u1"),
            ("impersonate-group", "a"),
            ("impersonate-group", "b"),
            ("impersonate-extra-example.com%2fscopes%25", "x"),
            ("impersonate-extra-example.com%2fscopes%25", "z"),
        ]
    );
}

#[test]
fn a_wrong_kubeconfig_says_what_and_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let fine = config("server: 'https://x'", &format!("token: {CANARY}"));
    for (text, context, expected) in [
        (fine.clone(), Some("other"), "no context `other`; it has: c"),
        (fine.replace("cluster: k,", "cluster: z,"), None, "no cluster `z`; it has: k"),
        (fine.replace("user: u,", "user: z,"), None, "no user `z`; it has: u"),
        (fine.replace("current-context: c\n", ""), None, "no current context"),
        (fine.replace("https://x", "x:6443"), None, "expected http(s)://host[:port][/base]"),
        (format!("{fine}users: [{{name: {CANARY}"), None, "cannot be read as a kubeconfig"),
        (
            format!("clusters: {CANARY}"),
            None,
            "config cannot be read as a kubeconfig: the value at `clusters` has the wrong type",
        ),
        (fine.replace("token:", "client-key-data:"), None, "expected base64"),
        (format!("{fine}users: [{{name: v}}, {{name: v}}]\n"), None, "has the user `v` twice"),
        (fine.replace(CANARY, "12345"), None, "at `users[0].user.token` is not text; put a number"),
        (fine.replace(CANARY, &format!("\"{CANARY}\\nX: y\"")), None, "is not a valid token"),
    ] {
        let path = file(folder.path(), "config", &text);
        let error = kubeconfig(&path, context).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = kubeconfig("/nowhere/config", None).expect_err("missing").to_string();
    assert!(error.contains("no file at /nowhere/config"), "{error}");
}

#[test]
fn what_a_kubeconfig_makes_unsafe_is_a_warning() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = "server: 'https://x', insecure-skip-tls-verify: true";
    let path = file(folder.path(), "config", &config(cluster, &format!("token: {CANARY}, tokenFile: /nowhere")));
    let warnings = kubeconfig(&path, None).expect("resolved").warnings;
    let [token, insecure] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(token.contains("`tokenFile` of user `u`") && !token.contains(CANARY), "{token}");
    assert!(insecure.contains("TLS verification of x OFF"), "{insecure}");
}

#[test]
fn the_configuration_wins_over_the_source() {
    let folder = tempfile::tempdir().expect("a folder");
    let ca = PathBuf::from(file(folder.path(), "ca.crt", &ca()));
    let around = around(&[], folder.path());
    let source = Source::Url("https://api.example/base/".parse().expect("a URI"));
    let tls = UpstreamTls { ca: Some(ca), server_name: Some("real.example".into()), ..UpstreamTls::default() };
    let resolved = resolve(&source, &tls, &around).expect("resolved");
    assert_eq!(
        (resolved.target.base_path.as_str(), resolved.target.server_name.as_deref()),
        ("/base", Some("real.example"))
    );
    assert!(!resolved.has_credentials());
    let half = UpstreamTls { cert: Some("a".into()), ..UpstreamTls::default() };
    let error = resolve(&source, &half, &around).expect_err("half").to_string();
    assert!(error.contains("upstream_tls.key"), "{error}");
    let lost = UpstreamTls { ca: Some("/nowhere/ca.crt".into()), ..UpstreamTls::default() };
    let error = resolve(&source, &lost, &around).expect_err("no CA").to_string();
    assert!(error.contains("cannot read /nowhere/ca.crt"), "{error}");
    let plain = resolve(&Source::Url("http://api.example".parse().expect("a URI")), &UpstreamTls::default(), &around);
    assert!(plain.expect("resolved").tls(true).expect("nothing to set up").is_none());
}

#[test]
fn the_controllers_folder_is_written_whole_and_readable() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("run").join("tidegate");
    let ca = ca();
    let server = "https://127.0.0.1:8001";
    let contents = Contents { ca: &ca, ca_key: None, token: Some("t1"), namespace: Some("apps"), server: Some(server) };
    folder::write(&folder, &contents).expect("written");
    folder::write(&folder, &Contents { token: Some("t2"), ..contents }).expect("written again");
    let mut names: Vec<_> = fs::read_dir(&folder)
        .expect("there")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert_eq!(names, ["ca.crt", "kubeconfig", "namespace", "token"]);
    for name in &names {
        let mode = fs::metadata(folder.join(name)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "{name}: another user in the pod reads it");
    }
    assert_eq!(fs::read_to_string(folder.join("token")).expect("readable"), "t2");

    // and tidegate itself can read the file
    let resolved = kubeconfig(&folder.join("kubeconfig").display().to_string(), None).expect("resolved");
    assert_eq!((resolved.target.authority.as_str(), resolved.namespace.as_deref()), ("127.0.0.1:8001", Some("apps")));
    assert_eq!(authorization(&resolved).as_deref(), Some("Bearer t2"));
    assert!(resolved.tls(true).expect("TLS").is_some());
}

#[test]
fn a_kubeconfig_for_a_plain_gate_names_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder::kubeconfig("http://127.0.0.1:8001", None, None, None);
    let path = file(folder.path(), "config", &text);
    let resolved = kubeconfig(&path, Some("tidegate")).expect("resolved");
    assert_eq!((&resolved.target.scheme, resolved.has_credentials()), (&Scheme::HTTP, false));

    let blocked = folder.path().join("config").join("below-a-file");
    let error = folder::write(&blocked, &Contents { ca: "", ca_key: None, token: None, namespace: None, server: None })
        .expect_err("no folder");
    assert!(error.to_string().contains("is the volume mounted"), "{error}");
}
