//! The egress listener as configured, and the hosts of the gates behind it.
//!
//! A host is compared in lower case and without the dot that may end it, as the listener makes it
//! of any spelling.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::{Clients, Listen, ListenerTls, Settings};

/// The egress listener: a forward proxy for the clients of this pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// Its listener; none where clients come by the names of hosts alone.
    pub listen: Option<Listen>,
    /// Its listeners for hosts by name, by way of a hosts file.
    pub names: Vec<Listen>,
    /// The fate of unlisted hosts.
    pub others: HostFate,
    /// Hosts to tunnel, whatever a gate lists and whatever `others` says.
    pub tunnel: Vec<HostPattern>,
    /// The TLS ports of listed hosts.
    pub ports: Vec<u16>,
    /// The fate of the machine's metadata service, with its credentials.
    pub metadata: HostFate,
    /// A proxy on the way out, as a URL; empty for none.
    pub via: String,
    /// The file with the clients' token.
    pub token_file: Option<PathBuf>,
    /// TLS to the proxy itself.
    pub tls: Option<ListenerTls>,
    /// The proof of identity asked of clients; `None` where the listener does not ask.
    pub clients: Option<Clients>,
    /// The most connections of clients, tunnels included.
    pub max_connections: usize,
    /// The most origins with limits of their own at once.
    pub max_origins: usize,
    /// The longest time without a call for an origin, before it is dropped.
    pub idle_origin: Duration,
    /// The CA of interception, made if a gate intercepts.
    pub ca: EgressCa,
}

/// The CA of interception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressCa {
    /// The folder that keeps it for the next process; none keeps it in memory.
    pub keep: Option<PathBuf>,
    /// The folder with what clients need to trust it.
    pub write_to: PathBuf,
    /// Hosts it may sign for besides the intercepted ones.
    pub names: Vec<HostPattern>,
    /// A file with roots for clients, besides the system's.
    pub extra_roots: Option<PathBuf>,
    /// The files of the operator's own CA, if there is one.
    pub given: Option<GivenCa>,
}

/// The files of a CA of interception that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenCa {
    /// The chain of the signing CA, its own certificate first.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The root for clients to trust.
    pub root: PathBuf,
}

words! {
    /// The fate of an unlisted host.
    pub enum HostFate {
        /// Its bytes are passed on, and not read.
        Tunnel = "tunnel",
        /// It is refused.
        Refuse = "refuse",
    }

    /// The fate of plain HTTP to a listed host.
    pub enum PlainHttp {
        /// It leaves over TLS.
        Upgrade = "upgrade",
        /// It is refused.
        Refuse = "refuse",
    }

    /// The hosts of a provider's API, without those where customers name hosts, and without those
    /// that carry data rather than calls.
    pub enum HostSet {
        /// AWS, by service and region.
        Aws = "@aws",
        /// Azure Resource Manager.
        AzureArm = "@azure_arm",
        /// Google Cloud, by service.
        Gcp = "@gcp",
        /// GitHub's API.
        Github = "@github",
    }
}

/// The hosts of a gate behind the egress listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The place of the gate in the file: the first gate to list a host has it.
    pub place: usize,
    /// The hosts.
    pub patterns: Vec<HostPattern>,
    /// Those of them that are not meant.
    pub except: Vec<HostPattern>,
    /// True if TLS to them is opened.
    pub intercept: bool,
    /// The fate of plain HTTP.
    pub plain: PlainHttp,
    /// The host and port to dial instead of a host.
    pub connect_to: BTreeMap<String, String>,
}

/// A pattern of hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// Labels: `*` stands for any one, a leading `**` for one or more.
    Labels(String),
    /// The hosts of a provider.
    Set(HostSet),
}

// === impl Hosts ===

impl Hosts {
    /// Returns the pattern of a host, unless it is excepted.
    pub fn find(&self, host: &str) -> Option<&HostPattern> {
        let found = self.patterns.iter().find(|pattern| pattern.matches(host))?;
        (!self.except.iter().any(|pattern| pattern.matches(host))).then_some(found)
    }
}

// === impl Settings ===

impl Settings {
    /// Returns the names for the CA of interception to sign, with all below them: the literal
    /// ends of all patterns. Empty if no gate intercepts.
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
    /// Returns the names at the ends of its hosts.
    pub fn ends(&self) -> Vec<&str> {
        match self {
            Self::Labels(pattern) => pattern.rsplit("*.").next().into_iter().collect(),
            Self::Set(HostSet::Aws) => AWS_ENDS.to_vec(),
            Self::Set(HostSet::AzureArm) => AZURE_HOSTS.to_vec(),
            Self::Set(HostSet::Gcp) => vec!["googleapis.com"],
            Self::Set(HostSet::Github) => vec!["api.github.com"],
        }
    }

    /// Returns its hosts without a star.
    pub fn full_names(&self) -> Vec<&str> {
        match self {
            Self::Labels(name) if !name.contains('*') => vec![name],
            Self::Set(HostSet::AzureArm | HostSet::Github) => self.ends(),
            Self::Labels(_) | Self::Set(_) => Vec::new(),
        }
    }

    /// True if it stands for the host.
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

    /// True if every host of the other pattern is one of this, as far as their texts show.
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
    /// Describes the hosts in words.
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

    /// True if the host is one of the set.
    fn has(self, host: &str) -> bool {
        match self {
            Self::Aws => is_aws(host),
            Self::AzureArm => AZURE_HOSTS.contains(&host),
            Self::Gcp => is_google(host),
            Self::Github => host == "api.github.com",
        }
    }
}

/// True for an API of AWS. Below a region's own names are those of customers (clusters, load
/// balancers, databases), which have another shape.
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

/// True for a name such as `eu-central-1` or `us-gov-west-1`.
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
/// What stands for the region of such services in a part of AWS, or where IPv6 is spoken.
const AWS_PLACES: [&str; 2] = ["global", "us-gov"];
/// The services of AWS without a region, an empty line, and those with names of several labels.
const AWS_SERVICES: &str = include_str!("aws_hosts.txt");
/// Data, and what gives out tokens.
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
