//! Reads one gate.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use toml::Value;

use super::classes::{self, GateDefaults};
use super::cursor::{Cursor, TomlValue};
use super::per_key::{PerKey, per_key};
use super::presets::{self, Numbers, Preset};
use super::problems::{alternatives, did_you_mean};
use super::shape::Shape;
use super::unmet::{self, Whole};
use super::values::{Bytes, OrOff};
use super::words::Impersonation;
use super::{clients, egress, identities, limits, names, shared, signals, sources};
use crate::api::{Failures, PausePolicy, duration};
use crate::classify::{ApiKind, CallerSplits, FairBy, KeyParts, Rules};
use crate::dialect::Dialect;
use crate::limit::Policy;
use crate::limit::policy::{Backoff, SharedId};
use crate::spec::{Credentials, Gate, Host, Listen, RetryAfter, Revalidation, Source};

/// Reads the gate `name`. With an egress listener, `behind` is the gate's place in the file, and if
/// that listener knows its clients.
pub(super) fn gate(at: &Cursor<'_>, name: Arc<str>, behind: Option<(usize, bool)>) -> Gate {
    let place = behind.map(|(place, _)| place);
    let proxy_knows = behind.is_some_and(|(_, knows)| knows);
    let of_provider =
        Preset::ALL.into_iter().find(|preset| at.at("preset").is_word(preset.word())).and_then(Preset::dialect);
    let has_hosts = egress::is_meant(at, place);
    let kind = at.get("kind", if of_provider.is_some() || has_hosts { ApiKind::Http } else { ApiKind::Kubernetes });
    let (listen, upstream) = ends(at, kind, has_hosts);
    let hosts = egress::hosts(at, kind, place);
    let (preset, share, numbers) = preset(at, kind);
    let own = egress::beside_hosts(at, has_hosts, egress::NO_IDENTITY);
    let credentials = own.get("credentials", if has_hosts { Credentials::PassThrough } else { Credentials::Auto });
    let impersonation = at.get("impersonation", Impersonation::Reject) == Impersonation::Allow;
    let retry_after = at.get("retry_after", RetryAfter::Auto);
    let dialect = dialect(at, kind, preset);
    let refusal_status = refusal_status(at, dialect);
    let shadow = at.get("shadow", false);
    let events = events(at, kind, credentials);
    // AWS's clients sign the Host, so that no other name would do.
    let is_signed = dialect == Dialect::Aws && credentials != Credentials::Inject;
    let usual =
        (if is_signed || has_hosts { Host::Preserve } else { Host::Rewrite }, numbers.rewrite_links && !has_hosts);
    let (allowed_hosts, host, rewrite_links) =
        own_names(&egress::beside_hosts(at, has_hosts, egress::REAL_NAMES), usual);
    let limits = Limits::read(at, kind, preset, &numbers);
    let (connect_timeout, response_timeout) = timeouts(&at.table("timeouts"));
    let throttling = limits.throttling;
    let asked = egress::beside_hosts(at, has_hosts, egress::LISTENER);
    let clients = clients::clients(&asked, upstream.as_ref()).filter(|_| !has_hosts);
    let knows_clients = if has_hosts { proxy_knows } else { clients.is_some() };
    let (policy, rules, failures, classes) = limits.with_classes(at, kind, (preset, share), (dialect, knows_clients));
    let revalidation = revalidation(at, kind, classes);
    if dialect == Dialect::Aws && credentials != Credentials::Inject {
        warn_of_signatures(at, &host, policy.queue.max_wait);
    }
    let (tls, upstream_tls, credential) = sources::tls_and_credential(at, upstream.as_ref(), credentials, has_hosts);
    let gate = Gate {
        name,
        kind,
        listen,
        upstream: upstream.unwrap_or(Source::InCluster),
        hosts,
        credentials,
        impersonation,
        retry_after,
        refusal_status,
        allowed_hosts,
        host,
        rewrite_links,
        rules: Arc::new(rules),
        failures,
        throttling,
        policy,
        figures: preset.figures(share),
        revalidation,
        shadow,
        events,
        connect_timeout,
        response_timeout,
        tls,
        clients,
        upstream_tls,
        credential,
    };
    sources::check_together(&gate, at);
    clients::check(&gate, at);
    check_links(&gate, dialect, at);
    gate
}

/// Reads if the gate writes Events, for which it needs an identity of its own.
fn events(at: &Cursor<'_>, kind: ApiKind, credentials: Credentials) -> bool {
    let is_other = kind != ApiKind::Kubernetes;
    let own = at.unused_if(is_other, "it is for kind = \"kubernetes\" only", &at.at("kind"));
    let events = own.get("events", false);
    if events && credentials == Credentials::PassThrough {
        let message = "is true, but with credentials = \"pass_through\" the gate has none of its own to write with; expected \"inject\"";
        at.at("events").given(&[&at.at("credentials")]).problem(message);
    }
    events
}

/// Reads where clients connect, and where their calls go.
fn ends(at: &Cursor<'_>, kind: ApiKind, has_hosts: bool) -> (Vec<Listen>, Option<Source>) {
    let own = egress::beside_hosts(at, has_hosts, egress::LISTENER);
    let Listeners(listen) = own.get("listen", Listeners(vec![Listen::Tcp(LISTEN)]));
    if has_hosts {
        let own = egress::beside_hosts(at, true, "a gate has hosts or an upstream, not both");
        own.option::<Source>("upstream", None);
        return (Vec::new(), Some(Source::Url(http::Uri::from_static(egress::NO_UPSTREAM))));
    }
    (listen, sources::upstream(at, kind))
}

/// Reads the names by which the gate and its upstream go.
fn own_names(at: &Cursor<'_>, (host, rewrite_links): (Host, bool)) -> (Vec<String>, Host, bool) {
    let allowed_hosts: Vec<String> = at.get("allowed_hosts", Vec::new());
    at.check_each("allowed_hosts", &allowed_hosts, |host| (!is_host(host)).then(|| "expected a host name".to_owned()));
    (allowed_hosts, at.get("host", host), at.get("rewrite_links", rewrite_links))
}

/// Reads the preset, and the share that it takes of its provider's figures.
fn preset(at: &Cursor<'_>, kind: ApiKind) -> (Preset, f64, Numbers) {
    let preset = at.get("preset", Preset::Sidecar);
    let is_other = preset != Preset::Crossplane;
    let crossplane = at.unused_if(is_other, "it is for preset = \"crossplane\" only", &at.at("preset"));
    let rate = crossplane.get("max_reconcile_rate", presets::MAX_RECONCILE_RATE);
    if preset.dialect().is_some() && kind != ApiKind::Http {
        let message = format!("is \"{}\", which is for kind = \"http\"", preset.word());
        at.at("preset").given(&[&at.at("kind")]).problem(message);
    }
    let usual = preset.usual_share();
    let shares: Vec<&str> =
        Preset::ALL.into_iter().filter(|preset| preset.usual_share().is_some()).map(Preset::word).collect();
    let why = format!(
        "no provider publishes the numbers of preset = \"{}\", of which it would take a share; it is for preset {}",
        preset.word(),
        alternatives(&shares)
    );
    let share = at.unused_if(usual.is_none(), why, &at.at("preset")).option("share", usual).unwrap_or(1.0);
    let fits = share > 0.0 && share <= 1.0;
    if !fits {
        let message = "expected a fraction above 0 and at most 1; 0.5 takes half of what the provider publishes";
        at.at("share").problem(format!("is {share:?}, {message}"));
    }
    let share = if fits { share } else { 1.0 };
    (preset, share, preset.numbers(kind, rate, share))
}

/// Reads the provider in whose words calls are read and refused.
fn dialect(at: &Cursor<'_>, kind: ApiKind, preset: Preset) -> Dialect {
    let usual = preset.dialect().unwrap_or(Dialect::Plain);
    let dialect =
        at.unused_if(kind != ApiKind::Http, "it is for kind = \"http\" only", &at.at("kind")).get("dialect", usual);
    if usual != Dialect::Plain && dialect != usual {
        let preset = preset.word();
        let read = usual.word();
        let message = format!("preset = \"{preset}\" limits calls by what dialect = \"{read}\" reads of them");
        at.at("dialect").problem(format!("is \"{}\", but {message}", dialect.word()));
        return usual;
    }
    dialect
}

/// Reads the status of refusals, of which only GitHub's clients know two.
fn refusal_status(at: &Cursor<'_>, dialect: Dialect) -> u16 {
    let at = at.unused_if(dialect != Dialect::Github, "it is for dialect = \"github\" only", &at.at("dialect"));
    let status: u32 = at.get("refusal_status", 429);
    match status {
        429 => 429,
        403 => 403,
        _ => {
            at.at("refusal_status").problem(format!("is {status}, expected 429 or 403"));
            429
        }
    }
}

/// The limits of a gate.
#[derive(Debug)]
struct Limits {
    /// Without its classes.
    policy: Policy,
    fair_by: FairBy,
    throttling: PausePolicy,
    backoff: (Backoff, Failures),
    key: Option<KeyParts>,
    per_key: Option<PerKey>,
}

impl Limits {
    fn read(at: &Cursor<'_>, kind: ApiKind, preset: Preset, numbers: &Numbers) -> Self {
        let key = at.get("key", None::<KeyParts>);
        let one_at_a_time = at.get("one_at_a_time", false);
        let per_key = per_key(&at.limit("per_key"), PerKey::of_preset(kind, preset));
        let bucket_at = at.limit("bucket");
        let mut bucket = limits::bucket(&bucket_at, numbers.bucket);
        let shared = shared::shared(&bucket_at, bucket.as_ref());
        if let (Some(bucket), Some(_)) = (&mut bucket, &shared) {
            bucket.shared = Some(SharedId(0));
        }
        let retry_at = at.limit("retry_bucket");
        let retry_bucket = limits::retry_bucket(&retry_at, numbers.retry_bucket, bucket);
        shared::not_shared(&retry_at, retry_bucket.as_ref());
        let backoff_at = at.table_or_off("backoff");
        let base = limits::preset_backoff(numbers.strategy, presets::failures(kind, preset));
        let backoff = limits::backoff(&backoff_at, &base);
        let max_keys = backoff_at.get("max_keys", 100_000);
        if max_keys == 0 {
            let message = "is 0, expected at least 1; to remember no failures: strategy = \"off\"";
            backoff_at.at("max_keys").problem(message);
        }
        unmet::warn_of_retries(bucket, retry_bucket, backoff.0.strategy, &at.at("retry_bucket").at("rate"));
        let (queue, fair_by) = limits::queue(&at.table("queue"), kind, numbers.max_wait);
        let retry_bucket = limits::combined(retry_bucket, queue.combine);
        let in_flight = limits::in_flight(&at.limit("in_flight"), numbers.in_flight);
        let throttling = signals::throttling(&at.table("signals"), kind, numbers);
        let policy = Policy {
            bucket,
            retry_bucket,
            queue,
            in_flight,
            max_keys,
            pause_scope: throttling.scope,
            one_at_a_time,
            classes: Vec::new(),
            shared: shared.map(Arc::new).into_iter().collect(),
            uncounted: numbers.uncounted,
        };
        Self { policy, fair_by, throttling, backoff, key, per_key }
    }

    /// Reads the classes, and returns the limits as the limiter, the classifier and the judge of
    /// answers want them.
    fn with_classes(
        self,
        at: &Cursor<'_>,
        kind: ApiKind,
        (preset, share): (Preset, f64),
        (dialect, knows_clients): (Dialect, bool),
    ) -> (Policy, Rules, Vec<Failures>, Vec<bool>) {
        let Self { policy, fair_by, backoff, key, per_key, .. } = self;
        let defaults = GateDefaults { kind, preset, share, dialect, bucket: policy.bucket, backoff, key, per_key };
        let mut classes = classes::classes(at, &defaults);
        let mut bucket = policy.bucket;
        classes::fit_costs(&mut classes, &mut bucket);
        let classes = classes::numbered(&classes, bucket, policy.one_at_a_time);
        let only_serial = preset.has_serial_writes() && !policy.one_at_a_time;
        let one_at_a_time = policy.one_at_a_time || only_serial;
        let mut policy = classes.join(Policy { bucket, one_at_a_time, ..policy });
        shared::share_all(at, &mut policy);
        Whole::new(&policy, &classes.reach, at).warn();
        let (identity, of_classes) = identities::of(at, &policy, fair_by, (dialect, knows_clients));
        let rules = Rules::new(kind, fair_by, classes.traits, classes.rules);
        let rules = rules.with_keys(classes.keys).with_dialect(dialect).with_only_serial_writes(only_serial);
        let rules = rules.with_splits(CallerSplits {
            of_gate: identity,
            of_classes,
            agrees: shared::has_parts(&policy),
            callers_apart: classes.callers_apart,
            clients_apart: knows_clients && !policy.one_at_a_time,
        });
        (policy, rules, classes.failures, classes.revalidate)
    }
}

/// Reads how many bytes of answers are kept by the classes that keep any.
fn revalidation(at: &Cursor<'_>, kind: ApiKind, classes: Vec<bool>) -> Revalidation {
    let at =
        at.unused_if(kind != ApiKind::Http, "it is for kind = \"http\" only", &at.at("kind")).table("revalidation");
    let Bytes(max_bytes) = at.get("max_bytes", Bytes(KEPT));
    if max_bytes == 0 {
        at.at("max_bytes").problem("is 0, expected a size; to keep no answers: revalidate = false in each class");
    }
    Revalidation { classes, max_bytes }
}

/// Warns of an external API whose links would lead past the gate, where nothing is said of them. A
/// cluster's answers have none.
fn check_links(gate: &Gate, dialect: Dialect, at: &Cursor<'_>) {
    let links = at.at("rewrite_links");
    let kind = at.at("kind");
    if gate.kind == ApiKind::Kubernetes && gate.rewrite_links && links.is_present() {
        links.given(&[&kind]).problem("is true, but a cluster's answers have no links; it is for kind = \"http\"");
    }
    let is_said = links.is_present() || gate.host == Host::Preserve || dialect == Dialect::Aws;
    if gate.kind == ApiKind::Http && !gate.rewrite_links && !is_said {
        links.warn(
            "is false: a client that follows the links of an answer (Link, Location: the next page of a list) goes past the gate; expected \
             true, or false in so many words if this API has none",
        );
    }
}

/// Warns of what spoils the signature that an AWS client has put on its call: another Host, or a
/// wait past the five minutes for which it is good.
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

/// Reads the time to connect and the time to the response head.
fn timeouts(at: &Cursor<'_>) -> (Duration, Option<Duration>) {
    let connect = at.get("connect", CONNECT);
    if connect.is_zero() {
        at.at("connect").problem("is 0, expected a time in which a connection can be made");
    }
    let OrOff(response) = at.get("response", OrOff(None));
    if response.is_some_and(|response| response.is_zero()) {
        at.at("response").problem("is 0, expected a time; for none: \"off\"");
    }
    (connect, response)
}

/// True for a host's name. A star would be taken as a letter, and no client sends it.
fn is_host(text: &str) -> bool {
    text.parse::<http::uri::Authority>().is_ok() && !text.contains(['@', '*'])
}

/// The listeners of a gate: an address, or a list of them.
struct Listeners(Vec<Listen>);

impl TomlValue for Listeners {
    const SHAPE: Shape = Shape::Addresses;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        let texts = match value {
            Value::Array(_) => Vec::<String>::read(value, at)?,
            _ => vec![at.expect(value.as_str(), value, "text in quotes, or a list of such")?.to_owned()],
        };
        if texts.is_empty() {
            at.problem("is an empty list, expected at least one address");
        }
        let is_list = texts.len() > 1;
        let place = |index| if is_list { at.item(index) } else { at.clone() };
        let read = texts.iter().enumerate().filter_map(|(index, text)| names::listen(text, &place(index)));
        Some(Self(read.collect()))
    }

    fn write(&self) -> Value {
        self.0.iter().map(ToString::to_string).collect::<Vec<_>>().write()
    }
}

impl TomlValue for Host {
    const SHAPE: Shape = Shape::Text;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        let text = at.expect(value.as_str(), value, "text in quotes")?;
        let near = did_you_mean(text, &["rewrite", "preserve"]);
        match (text, http::HeaderValue::from_str(text)) {
            ("rewrite", _) => Some(Self::Rewrite),
            ("preserve", _) => Some(Self::Preserve),
            (_, Ok(value)) if is_host(text) && near.is_empty() => Some(Self::Literal(value)),
            _ => {
                at.problem(format!("is {text:?}, expected \"rewrite\", \"preserve\" or a host name{near}"));
                None
            }
        }
    }

    fn write(&self) -> Value {
        match self {
            Self::Rewrite => "rewrite".into(),
            Self::Preserve => "preserve".into(),
            Self::Literal(name) => name.to_str().unwrap_or_default().into(),
        }
    }
}

const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);
/// The bytes of answers that are kept: those of a thousand repositories, and an eighth of the
/// memory that a sidecar is given.
const KEPT: usize = 16 << 20;
const CONNECT: Duration = Duration::from_secs(5);
/// The part of a signature's five minutes kept for differing clocks and for the SDK's own retries.
const LONGEST_SIGNED_WAIT: Duration = Duration::from_secs(240);
