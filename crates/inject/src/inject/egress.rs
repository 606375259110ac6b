//! The environment variables for the forward proxy of a pod, in its containers and in the sidecar.
//!
//! Every client reads `NO_PROXY` differently. So only forms that all clients know are used:
//! suffixes with a leading dot, exact names and exact addresses. An IPv6 network makes httpx fail.

use super::parts::{KEYS_FOLDER, is_named};
use super::services::service;
use crate::yaml::Node;

words! {
    /// A kind of HTTP client. Each has its own variables for the proxy and the egress CA.
    pub enum Client {
        /// Go's own HTTP client, and programs running git and curl.
        Go = "go",
        /// requests, boto3, httplib2, and programs reading OpenSSL's variables.
        Python = "python",
        /// Node.js.
        Node = "node",
        /// Java, by options of its virtual machine and by `HTTP_PROXY`.
        Java = "java",
        /// gRPC in C++, and in languages based on it.
        Grpc = "grpc",
        /// .NET. Older versions do not accept a list of folders in `SSL_CERT_DIR`.
        DotNet = "dotnet",
    }
}

/// The options of a pod's forward proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressOptions {
    /// The presets of the providers to limit. A gate is made for each, with the preset's name.
    pub presets: Vec<String>,
    /// The port of the proxy on the pod's loopback.
    pub port: u16,
    /// AWS services to call over plain HTTP, each with its region or `global`. Their SDKs get the
    /// service's real host name with `http://`.
    pub plain: Vec<(String, String)>,
    /// IPv4 networks to reach without the proxy.
    pub direct: Vec<String>,
    /// The cluster's domain, if it is not `cluster.local`.
    pub cluster_domain: Option<String>,
    /// True if the gates decrypt TLS; then clients must trust the pod's CA.
    pub intercept: bool,
    /// The kinds of clients to set variables for.
    pub clients: Vec<Client>,
}

/// A container's own setting of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own<'a> {
    None,
    Text(&'a str),
    /// A value from another object (`valueFrom`), unknown here.
    Elsewhere,
}

/// The environment variables to set in a container, with notes about them.
#[derive(Debug, Default)]
pub(super) struct Variables {
    pub(super) set: Vec<(String, String)>,
    pub(super) notes: Vec<String>,
}

// === impl EgressOptions ===

impl EgressOptions {
    /// Returns the environment variables of the sidecar.
    pub(super) fn of_sidecar(&self) -> Vec<(String, String)> {
        let mut variables = vec![("TIDEGATE__EGRESS__LISTEN".to_owned(), format!("127.0.0.1:{}", self.port))];
        let of_gate = |preset: &String, key| format!("TIDEGATE__GATES__{}__{key}", preset.to_ascii_uppercase());
        variables.extend(self.presets.iter().map(|preset| (of_gate(preset, "PRESET"), preset.clone())));
        if self.intercept {
            variables.extend(self.presets.iter().map(|preset| (of_gate(preset, "INTERCEPT"), "true".to_owned())));
            variables.push(("TIDEGATE__EGRESS__CA__KEEP".to_owned(), KEYS_FOLDER.to_owned()));
        }
        variables
    }

    /// Returns true if variables must be set for at least one of these kinds of clients.
    fn is_for(&self, clients: &[Client]) -> bool {
        clients.iter().any(|client| self.clients.contains(client))
    }

    /// Returns the names of the variables for the proxy's URL, to be set in containers.
    fn proxies(&self) -> &'static [&'static str] {
        let is_plain = !self.plain.is_empty() || self.is_for(&[Client::Java]);
        if is_plain { &PROXIES } else { &PROXIES[..2] }
    }

    /// Returns each service in `plain`, with its region and its host name.
    pub fn plain_hosts(&self) -> impl Iterator<Item = (&str, &str, String)> {
        self.plain.iter().map(|(service, region)| (service.as_str(), region.as_str(), host(service, region)))
    }

    /// Returns the variables for a container. `folder` is the path of the gate's files in it.
    pub(super) fn of_container(&self, container: &Node, folder: &str) -> Variables {
        let mut variables = Variables::default();
        let proxy = format!("http://127.0.0.1:{}", self.port);
        for name in self.proxies() {
            variables.add(container, name, |_| proxy.clone());
        }
        self.add_no_proxy(container, &mut variables);
        // Node.js reads the variables above only if it is told to.
        variables.add(container, "NODE_USE_ENV_PROXY", |_| "1".to_owned());
        for (name, region) in &self.plain {
            let service = service(name);
            if !service.is_known {
                let of = container.text_at(&["name"]).unwrap_or_default();
                variables.notes.push(format!(
                    "container {of} is given AWS_ENDPOINT_URL_{}, which is a guess, as {name} is not a known AWS service; expected the name that AWS signatures have for it",
                    service.variables.concat()
                ));
            }
            let endpoint = format!("http://{}", host(name, region));
            for variable in service.variables {
                variables.keep(container, &format!("AWS_ENDPOINT_URL_{variable}"), &endpoint, LEFT);
            }
        }
        if self.is_for(&[Client::Java]) {
            let options = self.java_options(folder);
            variables.add(container, "JAVA_TOOL_OPTIONS", |own| match own {
                Some(own) => format!("{own} {options}"),
                None => options.clone(),
            });
        }
        if self.intercept {
            self.add_trust(container, folder, &mut variables);
        }
        variables
    }

    /// Adds `NO_PROXY`, the destinations to reach without the proxy.
    ///
    /// Clients prefer different spellings of the variable. So each spelling gets the container's
    /// own items from both.
    fn add_no_proxy(&self, container: &Node, variables: &mut Variables) {
        let added = self.no_proxy();
        for [name, other] in [["NO_PROXY", "no_proxy"], ["no_proxy", "NO_PROXY"]] {
            let said = match (own(container, name), own(container, other)) {
                // A second spelling would hide the first, whose value is unknown.
                (Own::None, Own::Elsewhere) => continue,
                (_, Own::Text(text)) => text,
                (_, Own::None | Own::Elsewhere) => "",
            };
            variables.add(container, name, |own| {
                let own = items(own.unwrap_or_default());
                let said = items(said).filter(|item| !own.clone().any(|own| own == *item));
                own.clone().chain(said).chain([added.as_str()]).collect::<Vec<_>>().join(",")
            });
        }
    }

    /// Adds the variables for trust in the egress CA.
    fn add_trust(&self, container: &Node, folder: &str, variables: &mut Variables) {
        if self.is_for(&[Client::Go, Client::Python]) {
            variables.add(container, "SSL_CERT_DIR", |own| {
                format!("{}:{folder}/egress/certs", own.unwrap_or(SYSTEM_CERTS).trim_end_matches(':'))
            });
        }
        if self.is_for(&[Client::Node]) {
            variables.keep(container, "NODE_EXTRA_CA_CERTS", &format!("{folder}/egress/ca.crt"), OWN_ROOTS);
        }
        for (name, clients) in BUNDLES {
            if self.is_for(clients) {
                variables.keep(container, name, &format!("{folder}/egress/bundle.crt"), OWN_ROOTS);
            }
        }
    }

    /// Returns Java's options for the proxy and, if TLS is decrypted, for the CA.
    fn java_options(&self, folder: &str) -> String {
        let domain = self.cluster_domain.iter().map(|domain| format!("*.{}", domain.trim_matches('.')));
        let direct: Vec<String> = items(NO_PROXY)
            .filter(|item| !item.contains("::"))
            .map(|item| item.strip_prefix('.').map_or_else(|| item.to_owned(), |rest| format!("*.{rest}")))
            .chain(domain)
            .collect();
        let port = self.port;
        let mut options = format!(
            "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={port} -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={port} -Dhttp.nonProxyHosts={}",
            direct.join("|")
        );
        if self.intercept {
            options += &format!(" -Djavax.net.ssl.trustStore={folder}/egress/trust.jks");
        }
        options
    }

    fn no_proxy(&self) -> String {
        let domain = self.cluster_domain.iter().map(|domain| format!(".{}", domain.trim_matches('.')));
        let own = domain.chain(self.direct.iter().cloned());
        own.fold(NO_PROXY.to_owned(), |all, item| all + "," + &item)
    }

    /// Returns the containers' own proxy, if they have one: the new proxy must connect through it.
    ///
    /// # Errors
    /// They have several proxies, or one that cannot be used.
    pub(super) fn via<'a>(&self, containers: impl Iterator<Item = &'a Node>) -> Result<Option<String>, String> {
        let mut found: Option<&str> = None;
        for container in containers {
            let name = container.text_at(&["name"]).unwrap_or_default();
            for variable in self.proxies() {
                let Own::Text(own) = own(container, variable) else { continue };
                if own.is_empty() || self.is_this(own) {
                    continue;
                }
                if found.is_some_and(|found| found != own) {
                    return Err(format!(
                        "container {name} has {variable} {own:?} but another container has another proxy; the gate can only use one"
                    ));
                }
                if !is_proxy(own) {
                    return Err(format!(
                        "container {name} has its own {variable}, which is not a URL of http, https or socks5 without password and path; set egress.via in a ConfigMap, and remove the variable"
                    ));
                }
                found = Some(own);
            }
        }
        Ok(found.map(str::to_owned))
    }

    /// Returns true for the URL of the new proxy itself.
    fn is_this(&self, url: &str) -> bool {
        let itself = |host: &str| url.trim_end_matches('/') == format!("http://{host}:{}", self.port);
        itself("127.0.0.1") || itself("localhost")
    }

    /// Describes the first error in the options.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let is_word =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let fault = |(service, region): &(String, String)| !is_word(service) || !is_word(region);
        if let Some((service, region)) = self.plain.iter().find(|plain| fault(plain)) {
            return Some(format!(
                "--egress-plain {service}={region}: expected a service and its region, as in ec2=eu-central-1"
            ));
        }
        let is_network = |text: &&String| {
            let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
            address.parse::<std::net::Ipv4Addr>().is_ok() && bits.parse::<u8>().is_ok_and(|bits| bits <= 32)
        };
        if let Some(text) = self.direct.iter().find(|text| !is_network(text)) {
            return Some(format!(
                "--no-proxy {text}: expected an IPv4 network such as 10.96.0.0/12 (an IPv6 one makes httpx fail)"
            ));
        }
        None
    }
}

// === impl Variables ===

impl Variables {
    /// Sets a variable. If the container has its own value, only adds a note instead, ending with
    /// `what`.
    fn keep(&mut self, container: &Node, name: &str, value: &str, what: &str) {
        match own(container, name) {
            Own::Text(text) if !text.is_empty() && text != value => {
                let of = container.text_at(&["name"]).unwrap_or_default();
                self.notes.push(format!("container {of} has its own {name} ({text:?}); {what}"));
            }
            _ => self.add(container, name, |_| value.to_owned()),
        }
    }

    /// Sets a variable to a value computed from the container's own. A value from another object is
    /// left unchanged.
    fn add(&mut self, container: &Node, name: &str, value: impl Fn(Option<&str>) -> String) {
        let of = container.text_at(&["name"]).unwrap_or_default();
        match own(container, name) {
            Own::None => self.set.push((name.to_owned(), value(None))),
            Own::Text(text) => {
                self.set.push((name.to_owned(), value(Some(text).filter(|text| !text.is_empty()))));
            }
            Own::Elsewhere => {
                self.notes.push(format!("container {of} takes {name} from elsewhere (valueFrom); it is not changed"));
            }
        }
    }
}

/// Reads the name of a kind of client, such as `go`.
///
/// # Errors
/// Lists the valid names.
pub fn client(name: &str) -> Result<Client, String> {
    Client::named(name)
        .ok_or_else(|| format!("{name:?} is unknown, expected some of {}", Client::ALL.map(Client::word).join(", ")))
}

/// Returns a container's own setting of a variable.
pub(super) fn own<'a>(container: &'a Node, name: &str) -> Own<'a> {
    let Some(variable) = container.list_of("env").iter().find(|item| is_named(item, name)) else { return Own::None };
    match (variable.text_at(&["value"]), variable.get("valueFrom")) {
        (_, Some(_)) => Own::Elsewhere,
        (Some(text), None) => Own::Text(text),
        (None, None) => Own::None,
    }
}

/// Returns the items of a comma-separated list.
fn items(list: &str) -> impl Iterator<Item = &str> + Clone {
    list.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Returns true for a URL accepted as `egress.via`.
fn is_proxy(url: &str) -> bool {
    let Ok(url) = url.parse::<http::Uri>() else { return false };
    matches!(url.scheme_str(), Some("http" | "https" | "socks5"))
        && url
            .authority()
            .is_some_and(|authority| !authority.host().is_empty() && !authority.as_str().contains(['@', '$']))
        && matches!(url.path(), "" | "/")
        && url.query().is_none()
}

/// Returns the real host name of an AWS service in a region.
fn host(name: &str, region: &str) -> String {
    let first = service(name).host;
    match region {
        "global" => format!("{first}.amazonaws.com"),
        _ if region.starts_with("cn-") => format!("{first}.{region}.amazonaws.com.cn"),
        _ => format!("{first}.{region}.amazonaws.com"),
    }
}

/// The variables for the proxy's URL. The last two are for plain HTTP.
const PROXIES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];
const LEFT: &str = "it is not changed";
const OWN_ROOTS: &str = "it is not changed, so its file must also have the CA in the gate's ca.crt; or remove it, and put its roots into egress.ca.extra_roots";
/// The folders with CAs in images; clients skip missing ones.
const SYSTEM_CERTS: &str = "/etc/ssl/certs:/etc/pki/tls/certs";
/// The variables for a file of CAs, each with the kinds of clients reading it.
const BUNDLES: [(&str, &[Client]); 8] = [
    ("AWS_CA_BUNDLE", &[Client::Python]),
    ("CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", &[Client::Python]),
    ("CURL_CA_BUNDLE", &[Client::Go, Client::Python]),
    ("GIT_SSL_CAINFO", &[Client::Go, Client::Python]),
    ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", &[Client::Grpc]),
    ("HTTPLIB2_CA_CERTS", &[Client::Python]),
    ("REQUESTS_CA_BUNDLE", &[Client::Python]),
    ("SSL_CERT_FILE", &[Client::DotNet]),
];
/// The destinations to reach without the proxy: this pod, the cluster, and the sources of cloud
/// credentials.
const NO_PROXY: &str = "$(KUBERNETES_SERVICE_HOST),localhost,127.0.0.1,::1,.svc,.cluster.local,kubernetes,\
                        kubernetes.default,169.254.169.254,169.254.170.2,169.254.170.23,fd00:ec2::254,fd00:ec2::23,\
                        fd20:ce::254,metadata.google.internal,168.63.129.16";
