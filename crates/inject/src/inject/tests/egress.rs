//! The forward proxy of an injected pod.

use super::*;

fn proxied(plain: &[(&str, &str)]) -> Options {
    let plain = plain.iter().map(|(service, region)| ((*service).to_owned(), (*region).to_owned())).collect();
    let presets = vec!["aws".to_owned(), "github".to_owned()];
    let direct = vec!["10.96.0.0/12".to_owned()];
    let clients = vec![Client::Go, Client::Python, Client::Node, Client::Grpc];
    let cluster_domain = Some("corp.example".to_owned());
    let egress = EgressOptions { presets, port: 8003, plain, direct, cluster_domain, intercept: false, clients };
    Options { egress: Some(egress), ..options() }
}

/// The variables of a container, or of the sidecar.
fn env(text: &str, name: &str) -> Vec<(String, String)> {
    let root = read(text);
    let spec = root.at(&["spec", "template", "spec"]).expect("a pod");
    let container = parts::containers(spec).find(|container| parts::is_named(container, name)).expect("it is there");
    let value =
        |item: &Node| (line(item.get("name").expect("a name")), item.text_at(&["value"]).unwrap_or("-").to_owned());
    container.list_of("env").iter().map(value).collect()
}

fn value(env: &[(String, String)], name: &str) -> Option<String> {
    env.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone())
}

const NO_PROXY: &str = "$(KUBERNETES_SERVICE_HOST),localhost,127.0.0.1,::1,.svc,.cluster.local,kubernetes,kubernetes.default,\
                        169.254.169.254,169.254.170.2,169.254.170.23,fd00:ec2::254,fd00:ec2::23,fd20:ce::254,metadata.google.internal,168.63.129.16,\
                        .corp.example,10.96.0.0/12";

#[test]
fn a_container_is_given_the_proxy_and_the_sidecar_opens_it() {
    let edited = inject(DEPLOYMENT, &proxied(&[("ec2", "eu-central-1"), ("route53", "global")])).unwrap();
    assert_eq!(edited.notes, [""; 0]);
    let manager = env(&edited.text, "manager");
    for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
        assert_eq!(value(&manager, name).as_deref(), Some("http://127.0.0.1:8003"), "{name}");
    }
    for name in ["NO_PROXY", "no_proxy"] {
        assert_eq!(value(&manager, name).as_deref(), Some(NO_PROXY), "{name}");
    }
    assert_eq!(value(&manager, "NODE_USE_ENV_PROXY").as_deref(), Some("1"));
    assert_eq!(value(&manager, "AWS_ENDPOINT_URL_EC2").as_deref(), Some("http://ec2.eu-central-1.amazonaws.com"));
    assert_eq!(value(&manager, "AWS_ENDPOINT_URL_ROUTE_53").as_deref(), Some("http://route53.amazonaws.com"));
    let never = ["SSL_CERT_FILE", "ALL_PROXY", "PIP_CERT", "AWS_CA_BUNDLE", "SSL_CERT_DIR"];
    assert!(never.iter().all(|name| value(&manager, name).is_none()), "{manager:?}");
    let sidecar = env(&edited.text, "tidegate");
    for (name, expected) in [
        ("TIDEGATE__EGRESS__LISTEN", "127.0.0.1:8003"),
        ("TIDEGATE__GATES__AWS__PRESET", "aws"),
        ("TIDEGATE__GATES__GITHUB__PRESET", "github"),
    ] {
        assert_eq!(value(&sidecar, name).as_deref(), Some(expected), "{name}");
    }
    assert!(value(&sidecar, "HTTPS_PROXY").is_none() && value(&sidecar, "TIDEGATE__EGRESS__VIA").is_none());
    assert_eq!(uninject(&edited.text).unwrap().text, DEPLOYMENT);
    assert_eq!(
        inject(&edited.text, &proxied(&[("ec2", "eu-central-1"), ("route53", "global")])).unwrap().text,
        edited.text
    );
}

#[test]
fn each_service_has_the_host_and_the_variables_that_its_sdks_know() {
    for (service, host, names) in [
        ("logs", "logs", &["CLOUDWATCH_LOGS"][..]),
        ("elasticloadbalancing", "elasticloadbalancing", &["ELASTIC_LOAD_BALANCING", "ELASTIC_LOAD_BALANCING_V2"]),
        ("states", "states", &["SFN"]),
        ("ecr", "api.ecr", &["ECR"]),
        ("ses", "email", &["SES", "SESV2"]),
        ("eks", "eks", &["EKS"]),
    ] {
        let edited = inject(DEPLOYMENT, &proxied(&[(service, "eu-central-1")])).unwrap();
        assert_eq!(edited.notes, [""; 0]);
        let manager = env(&edited.text, "manager");
        let mut set = manager.iter().filter(|(name, _)| name.starts_with("AWS_ENDPOINT_URL_")).collect::<Vec<_>>();
        set.sort();
        let url = format!("http://{host}.eu-central-1.amazonaws.com");
        let expected: Vec<_> = names.iter().map(|name| (format!("AWS_ENDPOINT_URL_{name}"), url.clone())).collect();
        assert_eq!(set, expected.iter().collect::<Vec<_>>(), "{service}");
    }
    let edited = inject(DEPLOYMENT, &proxied(&[("brand-new", "eu-central-1")])).unwrap();
    assert!(edited.notes[0].contains("AWS_ENDPOINT_URL_BRAND_NEW"), "{:?}", edited.notes);
}

#[test]
fn without_real_names_http_is_left_alone_and_a_note_says_what_that_means() {
    let edited = inject(DEPLOYMENT, &proxied(&[])).unwrap();
    let manager = env(&edited.text, "manager");
    assert!(value(&manager, "HTTP_PROXY").is_none() && value(&manager, "HTTPS_PROXY").is_some());
    assert!(edited.notes[0].contains("--egress-plain"), "{:?}", edited.notes);
}

#[test]
fn what_a_container_has_of_its_own_is_gone_on_through_extended_or_left() {
    let own = DEPLOYMENT.replace(
        "        image: op:1\n",
        "        image: op:1\n        env:\n        - name: HTTPS_PROXY\n          value: http://proxy.corp:3128 # ours\n\
         \x20       - name: NO_PROXY\n          value: .corp\n        - name: https_proxy\n          valueFrom: {configMapKeyRef: {name: a, key: b}}\n\
         \x20       - name: AWS_ENDPOINT_URL_EC2\n          value: https://vpce.example\n",
    );
    let edited = inject(&own, &proxied(&[("ec2", "eu-central-1")])).unwrap();
    assert_eq!(edited.refused, [""; 0]);
    let manager = env(&edited.text, "manager");
    let sidecar = env(&edited.text, "tidegate");
    assert_eq!(value(&sidecar, "TIDEGATE__EGRESS__VIA").as_deref(), Some("http://proxy.corp:3128"));
    assert_eq!(value(&manager, "HTTPS_PROXY").as_deref(), Some("http://127.0.0.1:8003"));
    assert_eq!(value(&manager, "NO_PROXY"), Some(format!(".corp,{NO_PROXY}")));
    assert_eq!(value(&manager, "https_proxy").as_deref(), Some("-"));
    assert_eq!(value(&manager, "AWS_ENDPOINT_URL_EC2").as_deref(), Some("https://vpce.example"));
    for part in ["takes https_proxy from elsewhere", "has its own AWS_ENDPOINT_URL_EC2"] {
        assert!(edited.notes.iter().any(|note| note.contains(part)), "{:?}", edited.notes);
    }
    assert_eq!(line(&read(&uninject(&edited.text).unwrap().text)), line(&read(&own)));
}

#[test]
fn a_proxy_of_a_container_is_gone_on_through_if_a_gate_can_do_that() {
    let own = |name: &str, value: &str| {
        let variable = format!("        env:\n        - name: {name}\n          value: {value}\n");
        DEPLOYMENT.replace("        image: op:1\n", &format!("        image: op:1\n{variable}"))
    };
    let via = |text: &str, plain: &[(&str, &str)]| {
        let edited = inject(text, &proxied(plain)).unwrap();
        assert_eq!(edited.refused, [""; 0]);
        value(&env(&edited.text, "tidegate"), "TIDEGATE__EGRESS__VIA")
    };
    let ec2 = [("ec2", "eu-central-1")];
    let proxy = Some("http://proxy.corp:3128".to_owned());
    assert_eq!(via(&own("HTTP_PROXY", "http://proxy.corp:3128"), &ec2), proxy, "it is replaced");
    assert_eq!(via(&own("HTTP_PROXY", "http://proxy.corp:3128"), &[]), None, "it is left");
    assert_eq!(via(&own("https_proxy", "http://proxy.corp:3128"), &[]), proxy);
    assert_eq!(via(&own("HTTPS_PROXY", "http://localhost:8003"), &[]), None, "it is the pod's own already");
    for wrong in [
        "socks5h://p:1080",
        "ftp://p",
        "http://p:3128/path",
        "http://p:3128?x",
        "http://",
        "p:3128",
        "http://$(HOST):3128",
    ] {
        let refused = inject(&own("HTTPS_PROXY", wrong), &proxied(&[])).unwrap().refused;
        assert!(refused.iter().any(|why| why.contains("has its own HTTPS_PROXY")), "{wrong}: {refused:?}");
        let refused = inject(&own("HTTP_PROXY", wrong), &proxied(&ec2)).unwrap().refused;
        assert!(refused.iter().any(|why| why.contains("has its own HTTP_PROXY")), "{wrong}: {refused:?}");
    }
    let both = own("HTTP_PROXY", "http://a:1\n        - name: HTTPS_PROXY\n          value: http://b:1");
    assert!(inject(&both, &proxied(&ec2)).unwrap().refused[0].contains("the gate can only use one"));
}

#[test]
fn what_a_container_reaches_directly_by_either_spelling_it_reaches_so_by_both() {
    let own =
        |more: &str| DEPLOYMENT.replace("        image: op:1\n", &format!("        image: op:1\n        env:\n{more}"));
    let upper = "        - name: NO_PROXY\n          value: .corp,10.1.2.3\n";
    let lower = "        - name: no_proxy\n          value: .corp,.lab\n";
    let elsewhere = "        - name: NO_PROXY\n          valueFrom: {configMapKeyRef: {name: a, key: b}}\n";
    let both = format!("{upper}{lower}");
    for (text, expected) in [
        (upper, [Some(format!(".corp,10.1.2.3,{NO_PROXY}")), Some(format!(".corp,10.1.2.3,{NO_PROXY}"))]),
        (lower, [Some(format!(".corp,.lab,{NO_PROXY}")), Some(format!(".corp,.lab,{NO_PROXY}"))]),
        (&both, [Some(format!(".corp,10.1.2.3,.lab,{NO_PROXY}")), Some(format!(".corp,.lab,10.1.2.3,{NO_PROXY}"))]),
        // A client that reads the lower case first would miss what is there and not known here.
        (elsewhere, [Some("-".to_owned()), None]),
    ] {
        let edited = inject(&own(text), &proxied(&[])).unwrap();
        let manager = env(&edited.text, "manager");
        assert_eq!([value(&manager, "NO_PROXY"), value(&manager, "no_proxy")], expected, "{text}");
        assert_eq!(inject(&edited.text, &proxied(&[])).unwrap().text, edited.text, "twice as once");
        assert_eq!(line(&read(&uninject(&edited.text).unwrap().text)), line(&read(&own(text))));
    }
}

#[test]
fn a_proxy_with_a_password_and_a_port_that_is_taken_are_refused() {
    let own = |more: &str| DEPLOYMENT.replace("        image: op:1\n", &format!("        image: op:1\n{more}"));
    for (text, expected) in [
        (
            own("        env:\n        - name: HTTPS_PROXY\n          value: http://me:secret@proxy:3128\n"),
            "has its own HTTPS_PROXY, which is not a URL of http",
        ),
        (own("        ports:\n        - containerPort: 8003\n"), "has port 8003, where the forward proxy listens"),
    ] {
        let refused = inject(&text, &proxied(&[])).unwrap().refused;
        assert!(refused[0].contains(expected) && !refused[0].contains("secret"), "{refused:?}");
    }
    for (plain, direct, expected) in [
        (("ec2", ""), "10.0.0.0/8", "expected a service and its region"),
        (("ec2", "eu-central-1"), "fd00::/8", "expected an IPv4 network"),
        (("ec2", "eu-central-1"), "10.0.0.0/33", "expected an IPv4 network"),
    ] {
        let mut egress = proxied(&[plain]).egress.expect("there is one");
        egress.direct = vec![direct.to_owned()];
        assert!(egress.fault().is_some_and(|fault| fault.contains(expected)), "{direct}");
    }
}

fn intercepting(clients: &[Client]) -> Options {
    let mut options = proxied(&[]);
    let egress = options.egress.as_mut().expect("there is one");
    (egress.intercept, egress.clients) = (true, clients.to_vec());
    options
}

#[test]
fn containers_trust_the_ca_and_its_key_is_the_sidecar_s_alone() {
    let usual = [Client::Go, Client::Python, Client::Node, Client::Grpc];
    for (mode, folder) in [(Mode::Kubeconfig, parts::FOLDER), (Mode::InCluster, parts::ACCOUNT)] {
        let options = Options { mode, ..intercepting(&usual) };
        let edited = inject(DEPLOYMENT, &options).unwrap();
        assert_eq!((edited.notes.len(), edited.refused.len()), (0, 0), "{:?}", edited.notes);
        let manager = env(&edited.text, "manager");
        let certs = format!("/etc/ssl/certs:/etc/pki/tls/certs:{folder}/egress/certs");
        assert_eq!(value(&manager, "SSL_CERT_DIR"), Some(certs));
        assert_eq!(value(&manager, "NODE_EXTRA_CA_CERTS"), Some(format!("{folder}/egress/ca.crt")));
        for name in [
            "AWS_CA_BUNDLE",
            "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
            "CURL_CA_BUNDLE",
            "GIT_SSL_CAINFO",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
            "HTTPLIB2_CA_CERTS",
            "REQUESTS_CA_BUNDLE",
        ] {
            assert_eq!(value(&manager, name), Some(format!("{folder}/egress/bundle.crt")), "{name}");
        }
        let never = ["SSL_CERT_FILE", "ALL_PROXY", "PIP_CERT", "JAVA_TOOL_OPTIONS", "HTTP_PROXY"];
        assert!(never.iter().all(|name| value(&manager, name).is_none()), "{manager:?}");
        let sidecar = env(&edited.text, "tidegate");
        for (name, expected) in [
            ("TIDEGATE__GATES__AWS__INTERCEPT", "true"),
            ("TIDEGATE__GATES__GITHUB__INTERCEPT", "true"),
            ("TIDEGATE__EGRESS__CA__KEEP", "/run/tidegate-keys"),
        ] {
            assert_eq!(value(&sidecar, name).as_deref(), Some(expected), "{name}");
        }
        let root = read(&edited.text);
        let spec = root.at(&["spec", "template", "spec"]).expect("a pod");
        for container in parts::containers(spec) {
            let mounts = container.list_of("volumeMounts").iter();
            let keys = mounts.filter(|mount| parts::is_named(mount, "tidegate-keys")).count();
            assert_eq!(keys, usize::from(parts::is_named(container, "tidegate")));
        }
        let keys = spec.list_of("volumes").iter().find(|volume| parts::is_named(volume, "tidegate-keys"));
        assert_eq!(keys.expect("it is there").text_at(&["emptyDir", "medium"]), Some("Memory"));
        assert_eq!(uninject(&edited.text).unwrap().text, DEPLOYMENT);
        assert_eq!(inject(&edited.text, &options).unwrap().text, edited.text);
        // Without interception no variable of trust is left behind.
        let without = inject(&edited.text, &Options { mode, ..proxied(&[]) }).unwrap().text;
        assert!(!without.contains("egress/") && !without.contains("tidegate-keys"), "{without}");
    }
}

#[test]
fn only_the_clients_that_were_named_are_given_variables() {
    for (client, expected) in [
        (Client::Go, &["CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "SSL_CERT_DIR"][..]),
        (Client::Node, &["NODE_EXTRA_CA_CERTS"]),
        (Client::Grpc, &["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"]),
        (Client::Java, &["JAVA_TOOL_OPTIONS"]),
        (Client::DotNet, &["SSL_CERT_FILE"]),
    ] {
        let manager = env(&inject(DEPLOYMENT, &intercepting(&[client])).unwrap().text, "manager");
        let mut trust: Vec<&str> =
            manager.iter().filter(|(_, value)| value.contains("/egress/")).map(|(name, _)| name.as_str()).collect();
        trust.sort_unstable();
        assert_eq!(trust, expected);
        assert_eq!(value(&manager, "HTTP_PROXY").is_some(), client == Client::Java);
    }
    assert!(
        client("rust")
            .is_err_and(|why| why == "\"rust\" is unknown, expected some of go, python, node, java, grpc, dotnet")
    );
}

#[test]
fn what_a_container_says_of_roots_itself_is_extended_or_left_with_a_note() {
    let own = DEPLOYMENT.replace(
        "        image: op:1\n",
        "        image: op:1\n        env:\n        - name: SSL_CERT_DIR\n          value: /certs\n        - name: JAVA_TOOL_OPTIONS\n          value: -Xmx1g\n\
         \x20       - name: AWS_CA_BUNDLE\n          value: /corp.pem\n",
    );
    let edited = inject(&own, &intercepting(&[Client::Go, Client::Python, Client::Java])).unwrap();
    let manager = env(&edited.text, "manager");
    assert_eq!(value(&manager, "SSL_CERT_DIR").as_deref(), Some("/certs:/run/tidegate/egress/certs"));
    assert_eq!(value(&manager, "AWS_CA_BUNDLE").as_deref(), Some("/corp.pem"));
    assert!(edited.notes[0].contains("has its own AWS_CA_BUNDLE (\"/corp.pem\")"), "{:?}", edited.notes);
    assert!(edited.notes[0].contains("egress.ca.extra_roots"), "{:?}", edited.notes);
    assert_eq!(
        value(&manager, "JAVA_TOOL_OPTIONS").as_deref(),
        Some(
            "-Xmx1g -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=8003 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=8003 \
             -Dhttp.nonProxyHosts=$(KUBERNETES_SERVICE_HOST)|localhost|127.0.0.1|*.svc|*.cluster.local|kubernetes|kubernetes.default|\
             169.254.169.254|169.254.170.2|169.254.170.23|metadata.google.internal|168.63.129.16|*.corp.example \
             -Djavax.net.ssl.trustStore=/run/tidegate/egress/trust.jks"
        )
    );
    assert_eq!(line(&read(&uninject(&edited.text).unwrap().text)), line(&read(&own)));
}
