//! Reads the configuration of one gate.

use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use toml::Value;

use super::classes::{self, GateLimits};
use super::cursor::{Cursor, TextValue, TomlValue};
use super::per_key::per_key;
use super::presets::{self, Preset, PresetName};
use super::problems::did_you_mean;
use super::shape::Shape;
use super::unmet::{self, LimitsInUse};
use super::values::{Bytes, OrAuto, OrOff};
use super::words::Impersonation;
use super::{clients, clusters, egress, identities, limits, names, shared, signals, sources};
use crate::api::{Scope, duration};
use crate::classify::{ApiKind, CallerSplits, QuotaRules, Rules};
use crate::dialect::Dialect;
use crate::limit::Policy;
use crate::limit::policy::{BucketPolicy, SharedId};
use crate::spec::{
    AnswerRules, ClientAccess, Credentials, ForwardRules, Gate, GateIdentity, Host, Listen, RefusalRules, RetryAfter,
    Revalidation, Source,
};

/// Reads the gate `name`.
///
/// Without an egress listener `behind` is `None`. Otherwise it has the gate's index in the file,
/// and true if that listener authenticates clients.
pub(super) fn gate(at: &Cursor<'_>, name: Arc<str>, behind: Option<(usize, bool)>) -> Gate {
    let place = behind.map(|(place, _)| place);
    let proxy_knows = behind.is_some_and(|(_, knows)| knows);
    let name_of_preset = PresetName::of(at);
    let mut preset = name_of_preset.load(at, &|at| drop(gate(at, Arc::from("preset"), None)));
    let keys = Value::Table(preset.gate.clone());
    let at = &at.with_preset(&keys);
    // A gate is reached through the egress listener if it has hosts, or the preset of a provider and
    // nothing else that says where its calls go.
    let has_hosts = at.has("hosts") || (place.is_some() && !at.has("upstream") && preset.gate.contains_key("hosts"));
    let kind = at.get("kind", if has_hosts { ApiKind::Http } else { ApiKind::Kubernetes });
    let (listen, upstream) = ends(at, kind, has_hosts);
    let hosts = egress::hosts(at, kind, place, has_hosts);
    at.get("preset", name_of_preset);
    let share = share(at, kind, &mut preset);
    let figures = preset.take_share(share);
    let keys = Value::Table(mem::take(&mut preset.gate));
    let at = &at.with_preset(&keys);
    let own = egress::beside_hosts(at, has_hosts, egress::NO_IDENTITY);
    let credentials = own.get("credentials", if has_hosts { Credentials::PassThrough } else { Credentials::Auto });
    let impersonation = at.get("impersonation", Impersonation::Reject) == Impersonation::Allow;
    let dialect = dialect(at, kind, &preset);
    let refusals = refusals(at, kind, dialect);
    let shadow = at.get("shadow", false);
    let events = events(at, kind, credentials);
    // AWS's clients sign the Host, so that no other name would do.
    let is_signed = dialect == Dialect::Aws && credentials != Credentials::Inject;
    let usual = if is_signed || has_hosts { Host::Preserve } else { Host::Rewrite };
    let (allowed_hosts, host, rewrite_links) =
        own_names(&egress::beside_hosts(at, has_hosts, egress::REAL_NAMES), usual);
    let limits = limits(at, kind, dialect, preset.unchanged(share));
    let (connect_timeout, response_timeout) = timeouts(&at.table("timeouts"));
    let asked = egress::beside_hosts(at, has_hosts, egress::LISTENER);
    let clients = clients::clients(&asked, upstream.as_ref()).filter(|_| !has_hosts);
    let knows_clients = if has_hosts { proxy_knows } else { clients.is_some() };
    let ClassedLimits { mut policy, rules, answers } = with_classes(limits, at, preset, knows_clients);
    policy.classes.iter_mut().for_each(|class| class.shadow |= shadow);
    if is_signed {
        warn_of_signatures(at, &host, policy.queue.max_wait);
    }
    let (tls, upstream_tls, file) = sources::tls_and_credential(at, upstream.as_ref(), credentials, has_hosts);
    let gate = Gate {
        name,
        kind,
        listen,
        access: ClientAccess { allowed_hosts, tls, clients },
        upstream: upstream.unwrap_or(Source::InCluster),
        hosts,
        forwarding: ForwardRules { host, rewrite_links, connect_timeout, response_timeout, tls: upstream_tls },
        identity: GateIdentity { credentials, file, impersonation, events },
        rules: Arc::new(rules),
        policy,
        candidate: None,
        figures,
        answers,
        refusals,
        shadow,
    };
    sources::check_together(&gate, at);
    clients::check(&gate, at);
    check_links(&gate, dialect, at);
    gate
}

/// Reads the form of the gate's refusals.
fn refusals(at: &Cursor<'_>, kind: ApiKind, dialect: Dialect) -> RefusalRules {
    let of_http = at.unused_if(kind != ApiKind::Http, "it is for kind = \"http\" only", &at.at("kind"));
    RefusalRules {
        retry_after: at.get("retry_after", RetryAfter::Auto),
        status: refusal_status(at, dialect),
        ratelimit_on_answers: of_http.get("ratelimit_on_answers", false),
    }
}

/// Reads `events`, whether the gate writes Events. For this, it needs an identity of its own.
fn events(at: &Cursor<'_>, kind: ApiKind, credentials: Credentials) -> bool {
    let is_other = kind != ApiKind::Kubernetes;
    let own = at.unused_if(is_other, "it is for kind = \"kubernetes\" only", &at.at("kind"));
    let events = own.get("events", false);
    if events && credentials == Credentials::PassThrough {
        let message = "is true, but with credentials = \"pass_through\" the gate has no credentials to write Events with; expected \"inject\"";
        at.at("events").given(&[&at.at("credentials")]).problem(message);
    }
    events
}

/// Reads the two ends of a gate: the addresses it listens on, and its upstream.
fn ends(at: &Cursor<'_>, kind: ApiKind, has_hosts: bool) -> (Vec<Listen>, Option<Source>) {
    let own = egress::beside_hosts(at, has_hosts, egress::LISTENER);
    let listen = own.get("listen", vec![Listen::Tcp(LISTEN)]);
    if has_hosts {
        let own = egress::beside_hosts(at, true, "a gate has hosts or an upstream, not both");
        own.option::<Source>("upstream", None);
        own.option::<Option<std::path::PathBuf>>("clusters", None);
        return (Vec::new(), Some(Source::Url(http::Uri::from_static(egress::NO_UPSTREAM))));
    }
    if let Some(clusters) = clusters::clusters(at, kind) {
        let own = at.unused_if(true, "a gate has clusters or an upstream, not both", &at.at("clusters"));
        own.option::<Source>("upstream", None);
        return (listen, Some(clusters));
    }
    (listen, sources::upstream(at, kind))
}

/// Reads the gate's host names for clients, the Host header for the upstream, and `rewrite_links`.
fn own_names(at: &Cursor<'_>, host: Host) -> (Vec<String>, Host, bool) {
    let allowed_hosts: Vec<String> = at.get("allowed_hosts", Vec::new());
    at.check_each("allowed_hosts", &allowed_hosts, |host| (!is_host(host)).then(|| "expected a host name".to_owned()));
    (allowed_hosts, at.get("host", host), at.get("rewrite_links", false))
}

/// Reads the gate's fraction of the provider's published limits.
fn share(at: &Cursor<'_>, kind: ApiKind, preset: &mut Preset) -> f64 {
    let is_other = !preset.gate.contains_key("max_reconcile_rate");
    let crossplane = at.unused_if(is_other, "it is for preset = \"crossplane\" only", &at.at("preset"));
    preset.fit(kind, crossplane.get("max_reconcile_rate", NonZeroU32::MIN));
    if preset.dialect.is_some() && kind != ApiKind::Http {
        let message = format!("is \"{}\", which is for kind = \"http\"", preset.word);
        at.at("preset").given(&[&at.at("kind")]).problem(message);
    }
    let usual = preset.share();
    let why = format!("preset = \"{}\" has no figures of a provider, of which it would take a share", preset.word);
    let share = at.unused_if(usual.is_none(), why, &at.at("preset")).option("share", usual).unwrap_or(1.0);
    let fits = share > 0.0 && share <= 1.0;
    if !fits {
        let message = "expected a fraction above 0 and at most 1; 0.5 takes half of what the provider publishes";
        at.at("share").problem(format!("is {share:?}, {message}"));
    }
    if fits { share } else { 1.0 }
}

/// Reads the dialect: the cloud provider's conventions for calls and refusals.
fn dialect(at: &Cursor<'_>, kind: ApiKind, preset: &Preset) -> Dialect {
    let usual = preset.dialect.unwrap_or(Dialect::Plain);
    let dialect =
        at.unused_if(kind != ApiKind::Http, "it is for kind = \"http\" only", &at.at("kind")).get("dialect", usual);
    if usual != Dialect::Plain && dialect != usual {
        let message = format!("preset = \"{}\" needs what dialect = \"{usual}\" reads from calls", preset.word);
        at.at("dialect").problem(format!("is \"{}\", but {message}", dialect.word()));
        return usual;
    }
    dialect
}

/// Reads the HTTP status of refusals. Only clients of GitHub understand a second one, 403.
fn refusal_status(at: &Cursor<'_>, dialect: Dialect) -> u16 {
    let at = at.unused_if(dialect != Dialect::Github, "it is for dialect = \"github\" only", &at.at("dialect"));
    let status: u32 = at.get_if("refusal_status", 429, |status| [403, 429].contains(status), "429 or 403");
    if status == 403 { 403 } else { 429 }
}

/// Reads the limits of a gate, without its classes.
fn limits(at: &Cursor<'_>, kind: ApiKind, dialect: Dialect, unchanged: Option<BucketPolicy>) -> GateLimits {
    // With "auto" the kind of API decides.
    let OrAuto(key) = at.get("key", OrAuto(None));
    let one_at_a_time = at.get("one_at_a_time", false);
    let per_key = per_key(at, None);
    let bucket_at = at.limit("bucket");
    let mut bucket = limits::bucket(&bucket_at);
    if let Some(bucket) = bucket.as_mut().filter(|_| kind == ApiKind::Kubernetes) {
        bucket.burst = limits::fit_burst(&bucket_at, *bucket);
    }
    let sharing = shared::sharing(at);
    let shared = shared::shared(&bucket_at, &mut bucket, sharing.as_ref());
    if let (Some(bucket), Some(_)) = (&mut bucket, &shared) {
        bucket.shared = Some(SharedId(0));
    }
    let retry_at = at.limit("retry_bucket");
    let retry_bucket = limits::retry_bucket(&retry_at, bucket);
    shared::not_shared(&retry_at, retry_bucket.as_ref());
    let backoff_at = at.table_or_off("backoff");
    let backoff = limits::backoff(&backoff_at, &limits::no_backoff(kind));
    let expected = "at least 1; to remember no failures: strategy = \"off\"";
    let max_keys = backoff_at.get_if("max_keys", 100_000, |max| *max > 0, expected);
    unmet::warn_of_retries(bucket, retry_bucket, backoff.0.strategy, &at.at("retry_bucket").at("rate"));
    let (queue, fair_by) = limits::queue(&at.table("queue"), kind);
    let retry_bucket = limits::combined(retry_bucket, queue.combine);
    let in_flight = limits::in_flight(&at.limit("in_flight"));
    let throttling = signals::throttling(&at.table("signals"), kind);
    let policy = Policy {
        bucket,
        retry_bucket,
        queue,
        in_flight,
        max_keys,
        one_at_a_time,
        slow_refusals: kind == ApiKind::Kubernetes,
        classes: Vec::new(),
        shared: shared.map(Arc::new).into_iter().collect(),
        uncounted: unchanged,
    };
    GateLimits { kind, dialect, policy, fair_by, throttling, backoff, key, per_key, sharing }
}

/// A gate's limits and classes, once for the limiter, the classifier and the reader of responses.
struct ClassedLimits {
    policy: Policy,
    rules: Rules,
    answers: AnswerRules,
}

/// Reads the classes of a gate, and adds them to its limits.
fn with_classes(gate: GateLimits, at: &Cursor<'_>, preset: Preset, knows_clients: bool) -> ClassedLimits {
    let only_serial = preset.has_serial_writes() && !gate.policy.one_at_a_time;
    let uncounted = presets::uncounted(&preset, gate.dialect, gate.throttling.honour);
    let mut classes = classes::classes(at, preset.classes, &gate);
    let GateLimits { kind, dialect, mut policy, fair_by, throttling, sharing, .. } = gate;
    classes::fit_costs(&mut classes, &mut policy.bucket);
    let traits = classes::traits(&classes, &policy);
    // What a provider says of a quota concerns its holder. Of an object that is written by one at a
    // time there is one key.
    let has_holders = throttling.honour.are_of_providers();
    let asked_for_one = policy.one_at_a_time;
    let callers_apart = classes.iter().map(|class| !asked_for_one && (has_holders || class.counts_denials())).collect();
    policy.one_at_a_time |= only_serial;
    classes::join(&classes, &mut policy);
    shared::share_all(sharing, at, &mut policy);
    let reach = unmet::reach(classes.iter().map(|class| class.matching.as_ref()));
    LimitsInUse::new(&policy, &reach, at).warn();
    let (identity, of_classes) = identities::of(at, &policy, fair_by, throttling.scope, (dialect, knows_clients));
    let rules = Rules::new(kind, fair_by, traits, classes::rules(&classes))
        .with_keys(classes.iter().map(|class| class.key.clone()).collect())
        .with_dialect(dialect)
        .with_uncounted(uncounted)
        .with_only_serial_writes(only_serial)
        .with_splits(CallerSplits {
            of_gate: identity,
            of_classes,
            agrees: shared::has_parts(&policy) || throttling.scope == Scope::Credential && !policy.shared.is_empty(),
            callers_apart,
            clients_apart: knows_clients && !policy.one_at_a_time,
            quotas: QuotaRules { scope: throttling.scope, honour: throttling.honour },
        });
    let failures = classes.iter().map(|class| class.failures.clone()).collect();
    let revalidation = revalidation(at, kind, classes.iter().map(|class| class.revalidate).collect());
    ClassedLimits { policy, rules, answers: AnswerRules { failures, throttling, revalidation } }
}

/// Reads the settings of the cache of responses.
fn revalidation(at: &Cursor<'_>, kind: ApiKind, classes: Vec<bool>) -> Revalidation {
    let at =
        at.unused_if(kind != ApiKind::Http, "it is for kind = \"http\" only", &at.at("kind")).table("revalidation");
    let Bytes(max_bytes) = at.get("max_bytes", Bytes(KEPT));
    if max_bytes == 0 {
        at.at("max_bytes").problem("is 0, expected a size; to keep no responses, set revalidate = false in each class");
    }
    Revalidation { classes, max_bytes }
}

/// Warns of links in an external API's responses: they can lead clients past the gate.
///
/// There is no warning if `rewrite_links` is set, if the client's Host is kept, or for AWS.
/// Responses of a cluster have no such links.
fn check_links(gate: &Gate, dialect: Dialect, at: &Cursor<'_>) {
    let links = at.at("rewrite_links");
    let kind = at.at("kind");
    if gate.kind == ApiKind::Kubernetes && gate.forwarding.rewrite_links && links.is_present() {
        links.given(&[&kind]).problem("is true, but responses of a cluster have no links; it is for kind = \"http\"");
    }
    let is_said = links.is_present() || gate.forwarding.host == Host::Preserve || dialect == Dialect::Aws;
    if gate.kind == ApiKind::Http && !gate.forwarding.rewrite_links && !is_said {
        links.warn(
            "is false: a client that follows links in responses (Link, Location: the next page of a list) bypasses the gate; expected \
             true, or false set in the file if this API has no links",
        );
    }
}

/// Warns of settings that invalidate an AWS client's signature: another Host, or a wait past the
/// five minutes for which it is valid.
fn warn_of_signatures(at: &Cursor<'_>, host: &Host, max_wait: Duration) {
    if *host != Host::Preserve {
        let is = if *host == Host::Rewrite { "\"rewrite\"" } else { "a name" };
        at.at("host").warn(format!(
            "is {is}, but AWS clients sign the Host: the upstream answers SignatureDoesNotMatch to calls for any other name; \
             expected \"preserve\", and clients that call the API by its own name"
        ));
    }
    if max_wait > LONGEST_SIGNED_WAIT {
        at.at("queue").at("max_wait").warn(format!(
            "is {}, but AWS takes a signature for five minutes after it was made; expected at most \"240s\"",
            duration::write(max_wait)
        ));
    }
}

/// Reads two timeouts: for connecting, and until the response head.
fn timeouts(at: &Cursor<'_>) -> (Duration, Option<Duration>) {
    let connect = at.get("connect", CONNECT);
    if connect.is_zero() {
        at.at("connect").problem("is 0, so no connection could be made; expected a time such as \"5s\"");
    }
    let OrOff(response) = at.get("response", OrOff::<Duration>(None));
    if response.is_some_and(|response| response.is_zero()) {
        at.at("response").problem("is 0, expected a time; for no timeout: \"off\"");
    }
    (connect, response)
}

/// Returns true for a valid host name. A `*` is not allowed: it would be taken literally here.
fn is_host(text: &str) -> bool {
    text.parse::<http::uri::Authority>().is_ok() && !text.contains(['@', '*'])
}

/// Read from one address, or a list of addresses.
impl TomlValue for Vec<Listen> {
    const SHAPE: Shape = Shape::Addresses;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        names::listeners(value, at, "", names::listen)
    }

    fn write(&self) -> Value {
        self.iter().map(ToString::to_string).collect::<Vec<_>>().write()
    }
}

impl TextValue for Host {
    fn parse(text: &str) -> Result<Self, String> {
        let near = did_you_mean(text, &["rewrite", "preserve"]);
        match (text, http::HeaderValue::from_str(text)) {
            ("rewrite", _) => Ok(Self::Rewrite),
            ("preserve", _) => Ok(Self::Preserve),
            (_, Ok(value)) if is_host(text) && near.is_empty() => Ok(Self::Literal(value)),
            _ => Err(format!("is {text:?}, expected \"rewrite\", \"preserve\" or a host name{near}")),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Rewrite => "rewrite".to_owned(),
            Self::Preserve => "preserve".to_owned(),
            Self::Literal(name) => name.to_str().unwrap_or_default().to_owned(),
        }
    }
}

const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);
/// The default size of the response cache: enough for those of a thousand repositories, and an
/// eighth of a sidecar's memory.
const KEPT: usize = 16 << 20;
const CONNECT: Duration = Duration::from_secs(5);
/// The longest sensible wait of a signed call. AWS accepts a signature for five minutes; the last
/// of them is for clock differences and the SDK's own retries.
const LONGEST_SIGNED_WAIT: Duration = Duration::from_secs(240);
