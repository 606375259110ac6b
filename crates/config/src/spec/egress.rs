//! The egress listener as configured, and the hosts served by gates behind it.
//!
//! Host names are in lower case and without a final dot; the listener converts every spelling to
//! this form.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::{Clients, Listen, ListenerTls, Settings};

/// The egress listener: a forward proxy for the clients of this pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// The address of the forward proxy; `None` if clients come only through a hosts file.
    pub listen: Option<Listen>,
    /// The listeners for host names redirected to this pod by a hosts file.
    pub names: Vec<Listen>,
    /// What happens to hosts not listed by any gate.
    pub others: HostFate,
    /// Hosts to pass on unread, even if a gate lists them.
    pub tunnel: Vec<HostPattern>,
    /// The TLS ports of listed hosts.
    pub ports: Vec<u16>,
    /// What happens to calls to the machine's metadata service, a source of credentials.
    pub metadata: HostFate,
    /// The next proxy on the way out, as a URL; empty for none.
    pub via: String,
    /// The file with the token clients must send.
    pub token_file: Option<PathBuf>,
    /// TLS between clients and the proxy itself.
    pub tls: Option<ListenerTls>,
    /// How clients must authenticate; `None` if they need not.
    pub clients: Option<Clients>,
    /// The most client connections at a time, tunnels included.
    pub max_connections: usize,
    /// The most hosts (with port) with limits of their own at a time.
    pub max_origins: usize,
    /// How long the limits of a host are kept after its last call.
    pub idle_origin: Duration,
    /// The CA for decrypted hosts, used if a gate decrypts TLS.
    pub ca: EgressCa,
}

/// The settings of the CA for the certificates of decrypted hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressCa {
    /// The folder to keep the CA and its key in across a restart; `None` keeps them in memory only.
    pub keep: Option<PathBuf>,
    /// The folder for the files clients need to trust the CA.
    pub write_to: PathBuf,
    /// Hosts the CA may sign for besides the decrypted ones.
    pub names: Vec<HostPattern>,
    /// A file with further CAs for clients to trust, besides the system's.
    pub extra_roots: Option<PathBuf>,
    /// The files of a CA the operator provides, if any.
    pub given: Option<GivenCa>,
}

/// The files of a CA the operator provides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenCa {
    /// The certificate chain of the signing CA, its own certificate first.
    pub cert: PathBuf,
    /// The private key of the signing CA.
    pub key: PathBuf,
    /// The root certificate for clients to trust.
    pub root: PathBuf,
}

words! {
    /// What happens to a host not listed by any gate.
    pub enum HostFate {
        /// Its bytes are passed on unread.
        Tunnel = "tunnel",
        /// Its calls are refused.
        Refuse = "refuse",
    }

    /// What happens to a call to a listed host over plain HTTP.
    pub enum PlainHttp {
        /// It is sent to the host over TLS.
        Upgrade = "upgrade",
        /// It is refused.
        Refuse = "refuse",
    }

    /// A named set of hosts: those of a provider's API.
    ///
    /// Hosts that customers name, and hosts that carry data rather than calls, are left out.
    pub enum HostSet {
        /// The hosts of AWS's APIs, by service and region.
        Aws = "@aws",
        /// The host of Azure Resource Manager.
        AzureArm = "@azure_arm",
        /// The hosts of Google Cloud's APIs, by service.
        Gcp = "@gcp",
        /// The host of GitHub's API.
        Github = "@github",
    }
}

/// The hosts served by a gate behind the egress listener, instead of a single upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The position of the gate in the file. A host listed by several gates belongs to the first.
    pub place: usize,
    /// The patterns of the hosts.
    pub patterns: Vec<HostPattern>,
    /// Patterns of hosts to exclude.
    pub except: Vec<HostPattern>,
    /// True if TLS connections to the hosts are decrypted.
    pub intercept: bool,
    /// What happens to calls over plain HTTP.
    pub plain: PlainHttp,
    /// The host and port to connect to instead, by the name of the host.
    pub connect_to: BTreeMap<String, String>,
}

/// A pattern to compare host names with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// A name with stars in place of labels: `*` is any one label, a leading `**` is one label or
    /// more.
    Labels(String),
    /// The hosts of a provider's API.
    Set(HostSet),
}

// === impl Hosts ===

impl Hosts {
    /// Returns the pattern matching a host; `None` also if the host is excluded.
    pub fn find(&self, host: &str) -> Option<&HostPattern> {
        let found = self.patterns.iter().find(|pattern| pattern.matches(host))?;
        (!self.except.iter().any(|pattern| pattern.matches(host))).then_some(found)
    }
}

// === impl Settings ===

impl Settings {
    /// Returns the names to be permitted to the egress CA, each including all names below it.
    ///
    /// They are the ends without stars of all patterns. Empty if no gate decrypts TLS.
    pub fn intercepted_names(&self) -> Vec<String> {
        let gates = || self.gates.values().filter_map(|gate| gate.hosts.as_ref()).filter(|hosts| hosts.intercept);
        let Some(egress) = self.egress.as_ref().filter(|_| gates().next().is_some()) else { return Vec::new() };
        let patterns = gates().flat_map(|hosts| &hosts.patterns).chain(&egress.ca.names);
        let all: BTreeSet<&str> = patterns.flat_map(HostPattern::ends).collect();
        let is_below = |name: &str, other: &str| name.strip_suffix(other).is_some_and(|rest| rest.ends_with('.'));
        let widest = all.iter().filter(|name| !all.iter().any(|other| is_below(name, other)));
        widest.map(|name| (*name).to_owned()).collect()
    }
}

// === impl HostPattern ===

impl HostPattern {
    /// Returns the ends without stars, such as `example.com` for `*.example.com`.
    pub fn ends(&self) -> Vec<&str> {
        match self {
            Self::Labels(pattern) => pattern.rsplit("*.").next().into_iter().collect(),
            Self::Set(HostSet::Aws) => AWS_ENDS.to_vec(),
            Self::Set(HostSet::AzureArm) => AZURE_HOSTS.to_vec(),
            Self::Set(HostSet::Gcp) => vec!["googleapis.com"],
            Self::Set(HostSet::Github) => vec!["api.github.com"],
        }
    }

    /// Returns the pattern's whole host names; empty for a pattern with stars.
    pub fn full_names(&self) -> Vec<&str> {
        match self {
            Self::Labels(name) if !name.contains('*') => vec![name],
            Self::Set(HostSet::AzureArm | HostSet::Github) => self.ends(),
            Self::Labels(_) | Self::Set(_) => Vec::new(),
        }
    }

    /// Returns true if the pattern matches the host.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Set(set) => set.has(host),
            Self::Labels(pattern) => match pattern.strip_prefix("**") {
                Some(end) => host.strip_suffix(end).is_some_and(|rest| !rest.is_empty() && !rest.starts_with('.')),
                None => {
                    let mut labels = host.split('.');
                    let fits = |of: &str| labels.next().is_some_and(|label| of == "*" || of == label);
                    pattern.split('.').all(fits) && labels.next().is_none()
                }
            },
        }
    }

    /// Returns true if this pattern matches at least all hosts of the other. Patterns are compared
    /// only as texts.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (one, other) if one == other => true,
            (_, Self::Labels(name)) if !name.contains('*') => self.matches(name),
            (Self::Labels(wide), Self::Labels(narrow)) => {
                wide.strip_prefix("**").is_some_and(|end| narrow.trim_start_matches("**").ends_with(end))
            }
            _ => false,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Labels(text) => text.fmt(f),
            Self::Set(set) => set.fmt(f),
        }
    }
}

// === impl HostSet ===

impl HostSet {
    /// Returns a description of the hosts in words.
    pub const fn says(self) -> &'static str {
        match self {
            Self::Aws => {
                "SERVICE.REGION.amazonaws.com, .amazonaws.com.cn and .api.aws (not s3, s3-* and dkr), \
                 PART.SERVICE.REGION of those with such names (api.ecr, api.sagemaker, streams.dynamodb, ...); \
                 and the services without a region (iam, sts, route53, cloudfront, organizations, budgets, ...)"
            }
            Self::AzureArm => "management.azure.com, management.chinacloudapi.cn and management.usgovcloudapi.net",
            Self::Gcp => {
                "SERVICE.googleapis.com and SERVICE.REGION.rep.googleapis.com \
                 (not accounts, iamcredentials, oauth2, storage, sts and www)"
            }
            Self::Github => "api.github.com",
        }
    }

    /// Returns true if the host is in the set.
    fn has(self, host: &str) -> bool {
        match self {
            Self::Aws => is_aws(host),
            Self::AzureArm => AZURE_HOSTS.contains(&host),
            Self::Gcp => is_google(host),
            Self::Github => host == "api.github.com",
        }
    }
}

/// Returns true for the host of an AWS API. Names of customers' clusters, load balancers and
/// databases are below a region too, but have another form.
fn is_aws(host: &str) -> bool {
    let below = |end: &&str| host.strip_suffix(end)?.strip_suffix('.');
    let Some(rest) = AWS_ENDS.iter().find_map(below) else { return false };
    let (service, region) = rest.rsplit_once('.').unwrap_or((rest, ""));
    let (global, several) = AWS_SERVICES.split_once("\n\n").unwrap_or_default();
    // A service has the same names again where its cryptography is that of FIPS 140.
    let usual = |name: &str| name.replace("-fips", "");
    if is_region(region) {
        let is_one = !service.contains('.') && !service.starts_with("s3-") && !["", "s3", "dkr"].contains(&service);
        let service = usual(service);
        return is_one || several.lines().any(|name| name == service);
    }
    let name = usual(if AWS_PLACES.contains(&region) { service } else { rest });
    global.lines().any(|known| known == name)
}

/// Returns true for a name such as `eu-central-1` or `us-gov-west-1`.
fn is_region(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [country, words @ .., number] = parts.as_slice() else { return false };
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
    country.len() == 2
        && is_word(country)
        && (1..=2).contains(&words.len())
        && words.iter().all(|word| is_word(word))
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_google(host: &str) -> bool {
    let Some(rest) = host.strip_suffix(".googleapis.com") else { return false };
    let service = match rest.split('.').collect::<Vec<_>>()[..] {
        [service] => service,
        [service, _region, "rep"] => service,
        _ => return false,
    };
    !service.is_empty() && !GOOGLE_OTHERS.contains(&service)
}

const AWS_ENDS: [&str; 3] = ["amazonaws.com", "amazonaws.com.cn", "api.aws"];
const AZURE_HOSTS: [&str; 3] = ["management.azure.com", "management.chinacloudapi.cn", "management.usgovcloudapi.net"];
/// The labels of some AWS names in place of a region: for services of a whole partition of AWS, or
/// with IPv6.
const AWS_PLACES: [&str; 2] = ["global", "us-gov"];
/// A list of AWS host names: services without a region, an empty line, services of several labels.
const AWS_SERVICES: &str = include_str!("aws_hosts.txt");
/// Excluded Google hosts: they carry data or issue tokens.
const GOOGLE_OTHERS: [&str; 6] = ["accounts", "iamcredentials", "oauth2", "storage", "sts", "www"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_one_label_and_two_stars_are_any_number() {
        for (pattern, host, expected) in [
            ("api.github.com", "api.github.com", true),
            ("api.github.com", "api.github.com.evil.test", false),
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "a.b.example.com", false),
            ("*.example.com", "example.com", false),
            ("ec2.*.amazonaws.com", "ec2.eu-central-1.amazonaws.com", true),
            ("ec2.*.amazonaws.com", "sts.eu-central-1.amazonaws.com", false),
            ("**.example.com", "a.b.example.com", true),
            ("**.example.com", "example.com", false),
            ("**.example.com", "evilexample.com", false),
        ] {
            assert_eq!(HostPattern::Labels(pattern.to_owned()).matches(host), expected, "{pattern} {host}");
        }
    }

    #[test]
    fn the_ca_signs_for_the_ends_of_all_patterns() {
        for (pattern, expected) in [
            ("api.github.com", "api.github.com"),
            ("*.example.com", "example.com"),
            ("**.example.com", "example.com"),
            ("ec2.*.amazonaws.com", "amazonaws.com"),
        ] {
            assert_eq!(HostPattern::Labels(pattern.to_owned()).ends(), [expected]);
        }
        for set in HostSet::ALL {
            let pattern = HostPattern::Set(set);
            for host in ["ec2.eu-central-1.api.aws", "management.azure.com", "compute.googleapis.com", "api.github.com"]
            {
                let is_below = pattern.ends().iter().any(|end| host.ends_with(end));
                assert_eq!(pattern.matches(host), is_below, "{set} {host}");
            }
        }
    }

    #[test]
    fn sets_have_the_apis_and_neither_data_nor_the_names_of_customers() {
        for (set, host, expected) in [
            (HostSet::Aws, "ec2.eu-central-1.amazonaws.com", true),
            (HostSet::Aws, "ec2.us-gov-west-1.amazonaws.com", true),
            (HostSet::Aws, "ec2.cn-north-1.amazonaws.com.cn", true),
            (HostSet::Aws, "ec2.eu-central-1.api.aws", true),
            (HostSet::Aws, "sts.amazonaws.com", true),
            (HostSet::Aws, "route53.amazonaws.com", true),
            (HostSet::Aws, "eks.eu-central-1.amazonaws.com", true),
            (HostSet::Aws, "api.ecr.eu-central-1.amazonaws.com", true),
            (HostSet::Aws, "api.ecr-fips.us-east-1.amazonaws.com", true),
            (HostSet::Aws, "api.sagemaker.cn-north-1.amazonaws.com.cn", true),
            (HostSet::Aws, "runtime-fips.sagemaker.us-gov-west-1.amazonaws.com", true),
            (HostSet::Aws, "streams.dynamodb.eu-central-1.amazonaws.com", true),
            (HostSet::Aws, "api.pricing.us-east-1.amazonaws.com", true),
            (HostSet::Aws, "fips.eks.us-gov-west-1.amazonaws.com", true),
            (HostSet::Aws, "data.jobs.iot.eu-central-1.amazonaws.com", true),
            (HostSet::Aws, "route53.amazonaws.com.cn", true),
            (HostSet::Aws, "route53.us-gov.amazonaws.com", true),
            (HostSet::Aws, "iam.us-gov.amazonaws.com", true),
            (HostSet::Aws, "iam-fips.amazonaws.com", true),
            (HostSet::Aws, "iam.global.api.aws", true),
            (HostSet::Aws, "budgets.amazonaws.com", true),
            (HostSet::Aws, "savingsplans.amazonaws.com", true),
            (HostSet::Aws, "waf.amazonaws.com", true),
            (HostSet::Aws, "global.health.amazonaws.com", true),
            (HostSet::Aws, "mine.sagemaker.eu-central-1.amazonaws.com", false),
            (HostSet::Aws, "abc.execute-api.eu-central-1.amazonaws.com", false),
            (HostSet::Aws, "api.ecr.evil.amazonaws.com", false),
            (HostSet::Aws, "s3.us-gov.amazonaws.com", false),
            (HostSet::Aws, "x.global.api.aws", false),
            (HostSet::Aws, "abc.gr7.eu-central-1.eks.amazonaws.com", false),
            (HostSet::Aws, "s3.eu-central-1.amazonaws.com", false),
            (HostSet::Aws, "s3-control.eu-central-1.amazonaws.com", false),
            (HostSet::Aws, "bucket.s3.eu-central-1.amazonaws.com", false),
            (HostSet::Aws, "1.dkr.ecr.eu-central-1.amazonaws.com", false),
            (HostSet::Aws, "lb-1.eu-central-1.elb.amazonaws.com", false),
            (HostSet::Aws, "x.amazonaws.com", false),
            (HostSet::Aws, "ec2.evil.amazonaws.com", false),
            (HostSet::Aws, "ec2.eu-central-1.amazonaws.com.evil.test", false),
            (HostSet::Gcp, "compute.googleapis.com", true),
            (HostSet::Gcp, "spanner.europe-west1.rep.googleapis.com", true),
            (HostSet::Gcp, "storage.googleapis.com", false),
            (HostSet::Gcp, "oauth2.googleapis.com", false),
            (HostSet::AzureArm, "management.azure.com", true),
            (HostSet::AzureArm, "login.microsoftonline.com", false),
            (HostSet::Github, "api.github.com", true),
            (HostSet::Github, "uploads.github.com", false),
        ] {
            assert_eq!(HostPattern::Set(set).matches(host), expected, "{set} {host}");
        }
    }
}
