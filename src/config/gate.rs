//! Checks one gate.

use std::{num::NonZeroU32, path::PathBuf, sync::Arc, time::Duration};

use super::{
    classes::{self, Class, Ground},
    field::Field,
    file::{self, Impersonation},
    key,
    leaf::{Or, Word},
    limits, names,
    path::Path,
    presets::{self, Numbers, Preset},
    problems::{Report, did_you_mean},
    readable::FileUse,
    settings::{Credentials, Failures, Gate, Host, Listen, RetryAfter},
    signals, sources,
};
use crate::{
    api::Scope,
    classify::{FairBy, KeyParts, Kind, Rules},
    limit::{
        Policy,
        policy::{Backoff, BucketPolicy, InFlight, Per, Strategy},
    },
};

/// What is shown of a gate and not needed to run it.
#[derive(Debug)]
pub(super) struct Extras {
    pub(super) preset: Preset,
    pub(super) max_reconcile_rate: u32,
    pub(super) backoff: (Backoff, Failures),
    pub(super) key: Option<KeyParts>,
    pub(super) classes: Vec<Class>,
}

/// A gate, with what is shown of it; `files` gets the files that it will read.
pub(super) fn gate(
    keys: &file::Gate,
    at: &Path,
    name: Arc<str>,
    files: &mut Vec<FileUse>,
    report: &mut Report<'_>,
) -> (Gate, Extras) {
    let kind = keys.kind.get(&at.key("kind"), report).map_or(Kind::Kubernetes, |Word(kind)| kind);
    let (preset, max_reconcile_rate, numbers) = preset(keys, at, kind, report);
    let limits = Limits::read(keys, at, kind, preset, &numbers, report);
    let numbered = classes::numbered(&limits.classes, limits.policy.bucket);
    let scope = limits.policy.pause_scope;
    let throttling = signals::throttling(&keys.signals, &at.key("signals"), kind, scope, &numbers, report);
    let by_credential = limits.is_split_by_credential();
    let rules =
        Rules::new(kind, limits.fair_by, by_credential, numbered.traits, numbered.rules).with_keys(numbered.keys);
    let listen = listen(&keys.listen, &at.key("listen"), report);
    let sources = sources::sources(keys, at, kind, &listen, files, report);
    let timeouts = keys.timeouts.open(&at.key("timeouts"), report);
    let connect = timeouts.connect.get(&at.key("timeouts").key("connect"), report).map_or(CONNECT, |span| span.0);
    if connect.is_zero() {
        report.problem(&at.key("timeouts").key("connect"), "is 0, expected a time in which a connection can be made");
    }
    let response = timeouts.response.get(&at.key("timeouts").key("response"), report);
    let gate = Gate {
        name,
        kind,
        upstream: sources.upstream,
        credentials: sources.credentials,
        impersonation: keys.impersonation.get(&at.key("impersonation"), report) == Some(Word(Impersonation::Allow)),
        retry_after: keys.retry_after.get(&at.key("retry_after"), report).map_or(RetryAfter::Auto, |Word(when)| when),
        allowed_hosts: allowed_hosts(keys, &at.key("allowed_hosts"), report),
        host: host(&keys.host, &at.key("host"), report),
        rewrite_links: keys.rewrite_links.get(&at.key("rewrite_links"), report).unwrap_or(false),
        rules: Arc::new(rules),
        failures: numbered.failures,
        throttling,
        policy: Policy { classes: numbered.policies, ..limits.policy },
        coalesce: limits.coalesce,
        shadow: keys.shadow.get(&at.key("shadow"), report) == Some(true),
        connect_timeout: connect,
        response_timeout: response_timeout(response.map(|or| or.0), &at.key("timeouts").key("response"), report),
        tls: sources.tls,
        upstream_tls: sources.upstream_tls,
        credential: sources.credential,
        listen,
    };
    let extras = Extras {
        preset,
        max_reconcile_rate: max_reconcile_rate.get(),
        backoff: limits.backoff,
        key: limits.key,
        classes: limits.classes,
    };
    (gate, extras)
}

/// The preset and its numbers.
fn preset(keys: &file::Gate, at: &Path, kind: Kind, report: &mut Report<'_>) -> (Preset, NonZeroU32, Numbers) {
    let preset = keys.preset.get(&at.key("preset"), report).map_or(Preset::Sidecar, |Word(preset)| preset);
    let rate = keys.max_reconcile_rate.get(&at.key("max_reconcile_rate"), report);
    if keys.max_reconcile_rate.is_present() && preset != Preset::Crossplane {
        report.key_problem(&at.key("max_reconcile_rate"), "has no effect: it is for preset = \"crossplane\" only");
    }
    let rate = rate.and_then(|rate| limits::at_least_one(rate, &at.key("max_reconcile_rate"), report));
    let rate = rate.unwrap_or(presets::MAX_RECONCILE_RATE);
    if preset == Preset::Github && kind != Kind::Http {
        report.problem(&at.key("preset"), "is \"github\", which is for kind = \"http\"");
    }
    (preset, rate, preset.numbers(kind, rate))
}

/// The limits of a gate.
#[derive(Debug)]
struct Limits {
    policy: Policy,
    fair_by: FairBy,
    coalesce: bool,
    backoff: (Backoff, Failures),
    key: Option<KeyParts>,
    classes: Vec<Class>,
}

impl Limits {
    fn read(
        keys: &file::Gate,
        at: &Path,
        kind: Kind,
        preset: Preset,
        numbers: &Numbers,
        report: &mut Report<'_>,
    ) -> Self {
        let bucket = limits::bucket(&keys.bucket, &at.key("bucket"), numbers.bucket, report);
        let retry_bucket = limits::bucket(&keys.retry_bucket, &at.key("retry_bucket"), numbers.retry_bucket, report);
        let base = limits::preset_backoff(numbers.strategy, presets::failures(kind));
        let backoff = limits::backoff(&keys.backoff, &at.key("backoff"), &base, report);
        warn_of_retries(bucket, retry_bucket, &backoff.0, &at.key("retry_bucket").key("rate"), report);
        let max_keys = max_keys(&keys.backoff.keys().max_keys, &at.key("backoff").key("max_keys"), report);
        let queue_keys = keys.queue.open(&at.key("queue"), report);
        let fair_by = queue_keys.fair_by.get(&at.key("queue").key("fair_by"), report);
        let fair_by = fair_by.map_or(FairBy::Resource, |Word(fair_by)| fair_by);
        if kind == Kind::Http && fair_by == FairBy::Namespace {
            report.problem(&at.key("queue").key("fair_by"), "is \"namespace\", which an external API has none of");
        }
        let coalesce = queue_keys.coalesce.get(&at.key("queue").key("coalesce"), report) == Some(true);
        let key = key::key(&keys.key, &at.key("key"), report).flatten();
        let ground = Ground { kind, preset, bucket, backoff, key };
        let sections = keys.classes.open(&at.key("classes"), report);
        let policy = Policy {
            bucket,
            retry_bucket,
            queue: limits::queue(queue_keys, &at.key("queue"), report),
            in_flight: limits::in_flight(&keys.in_flight, &at.key("in_flight"), numbers.in_flight, report),
            max_keys,
            pause_scope: keys
                .signals
                .keys()
                .scope
                .get(&at.key("signals").key("scope"), report)
                .map_or(numbers.scope, |Word(scope)| scope),
            one_at_a_time: keys.one_at_a_time.get(&at.key("one_at_a_time"), report) == Some(true),
            classes: Vec::new(),
        };
        let classes = classes::classes(sections, &at.key("classes"), &ground, report);
        Self { policy, fair_by, coalesce, backoff: ground.backoff, key: ground.key, classes }
    }

    fn is_split_by_credential(&self) -> bool {
        let bucket = |bucket: &Option<BucketPolicy>| bucket.is_some_and(|bucket| bucket.per == Per::Credential);
        let slots = |slots: &Option<InFlight>| slots.is_some_and(|slots| slots.per == Per::Credential);
        self.policy.pause_scope == Scope::Credential
            || bucket(&self.policy.bucket)
            || bucket(&self.policy.retry_bucket)
            || slots(&self.policy.in_flight)
            || self.classes.iter().any(|class| bucket(&class.bucket) || slots(&class.in_flight))
    }
}

/// Retries take their tokens of both buckets: with much failing, healthy calls have what is left of the gate's.
fn warn_of_retries(
    bucket: Option<BucketPolicy>,
    retry_bucket: Option<BucketPolicy>,
    backoff: &Backoff,
    at: &Path,
    report: &mut Report<'_>,
) {
    let (Some(bucket), Some(retries)) = (bucket, retry_bucket) else { return };
    if backoff.strategy != Strategy::Off && retries.rate > bucket.rate / 2.0 {
        let (rate, least) = (retries.rate, 2.0 * retries.rate);
        report.warn(
            at,
            format!(
                "is {rate}, more than half of bucket.rate, which is {}: while many objects fail, retries leave healthy calls less than half of it; \
                 expected bucket.rate to be {least} or more, or this to be lower",
                bucket.rate
            ),
        );
    }
}

fn max_keys(field: &Field<u64>, at: &Path, report: &mut Report<'_>) -> usize {
    let max_keys = field.get(at, report).unwrap_or(100_000);
    if max_keys == 0 {
        report.problem(at, "is 0, expected at least 1; to remember no failures: strategy = \"off\"");
    }
    usize::try_from(max_keys).unwrap_or(usize::MAX)
}

fn listen(field: &Field<super::leaf::OneOrMore>, at: &Path, report: &mut Report<'_>) -> Vec<Listen> {
    let Some(texts) = field.get(at, report) else {
        return LISTEN.parse().map(Listen::Tcp).into_iter().collect();
    };
    if texts.0.is_empty() {
        report.problem(at, "is an empty list, expected at least one address");
    }
    let is_list = texts.0.len() > 1;
    let mut listen = Vec::new();
    for (index, text) in texts.0.iter().enumerate() {
        let at = if is_list { at.index(index) } else { at.clone() };
        match text.strip_prefix("unix:") {
            Some(path) => listen.extend(socket(path, &at, report).map(Listen::Unix)),
            None => listen.extend(names::address(text, &at, ", or \"unix:/path/of/a.sock\"", report).map(Listen::Tcp)),
        }
    }
    listen
}

/// A path that a Unix socket can have.
fn socket(path: &str, at: &Path, report: &mut Report<'_>) -> Option<PathBuf> {
    if !path.starts_with('/') || path.ends_with('/') || path.len() > SOCKET_PATH {
        report.problem(
            at,
            format!("is \"unix:{path}\", expected \"unix:\" and an absolute path of at most {SOCKET_PATH} bytes"),
        );
        return None;
    }
    Some(PathBuf::from(path))
}

fn allowed_hosts(keys: &file::Gate, at: &Path, report: &mut Report<'_>) -> Vec<String> {
    let hosts = keys.allowed_hosts.get(at, report).unwrap_or_default().0;
    for (index, host) in hosts.iter().enumerate() {
        if host.parse::<http::uri::Authority>().is_err() || host.contains('@') {
            report.problem(&at.index(index), format!("is {host:?}, expected a host name"));
        }
    }
    hosts
}

fn host(field: &Field<String>, at: &Path, report: &mut Report<'_>) -> Host {
    match field.get(at, report).as_deref() {
        None | Some("rewrite") => Host::Rewrite,
        Some("preserve") => Host::Preserve,
        Some(literal) => {
            let near = did_you_mean(literal, &["rewrite", "preserve"]);
            let is_host = literal.parse::<http::uri::Authority>().is_ok() && !literal.contains('@');
            match http::HeaderValue::from_str(literal) {
                Ok(value) if is_host && near.is_empty() => Host::Literal(value),
                _ => {
                    report.problem(
                        at,
                        format!("is {literal:?}, expected \"rewrite\", \"preserve\" or a host name{near}"),
                    );
                    Host::Rewrite
                }
            }
        }
    }
}

fn response_timeout(or: Option<Or<Duration>>, at: &Path, report: &mut Report<'_>) -> Option<Duration> {
    match or {
        None | Some(Or::Word) => None,
        Some(Or::Value(timeout)) => {
            if timeout.is_zero() {
                report.problem(at, "is 0, expected a time; for none: \"off\"");
            }
            Some(timeout)
        }
    }
}

impl Gate {
    /// Whether clients must show the token that is in the folder, where the gate injects: off loopback, unless they show certificates.
    #[must_use]
    pub fn asks_for_a_token(&self) -> bool {
        let is_guarded = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_none() && tls.write_to.is_some());
        is_guarded && !self.is_local()
    }

    fn is_local(&self) -> bool {
        self.listen.iter().all(|listen| match listen {
            Listen::Tcp(address) => address.ip().is_loopback(),
            Listen::Unix(PathBuf { .. }) => true,
        })
    }

    /// Whether the upstream sees the gate's own credentials: `auto` decided by where the gate listens and what it has.
    #[must_use]
    pub fn injects(&self) -> bool {
        match self.credentials {
            Credentials::Inject => true,
            Credentials::PassThrough => false,
            Credentials::Auto => {
                self.tls.is_none()
                    && self.is_local()
                    && sources::has_credential(&self.upstream, self.credential.is_some())
            }
        }
    }
}

/// What `sockaddr_un` holds, less the end and what the socket is called while it is made.
const SOCKET_PATH: usize = 100;
const LISTEN: &str = "127.0.0.1:8001";
const CONNECT: Duration = Duration::from_secs(5);
