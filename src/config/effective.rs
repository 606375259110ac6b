//! The configuration in force, written out: every key with its value, as a file that would say the same.
//!
//! Secrets are only there as names of files. Built-in classes appear by name, without what they match: that cannot be written as patterns.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc, time::Duration};

use toml::Value;

use super::{
    classes::Class,
    file::{self, Format, Impersonation, Mode, Start},
    gate::Extras,
    leaf::Words,
    presets::Preset,
    settings::{Failures, Gate, Host, Listen, Settings, Socket, TlsMode, Upstream},
};
use crate::{
    api::duration,
    classify::{KeyParts, Matcher, Matching},
    limit::policy::{Adapt, Backoff, BucketPolicy, InFlight, Strategy},
};

/// The whole configuration as TOML.
pub(super) fn effective(settings: &Settings, extras: &BTreeMap<Arc<str>, Extras>) -> String {
    let mut out = Out::default();
    out.table("[admin]");
    out.text("listen", &settings.admin.listen.map_or_else(|| "off".to_owned(), |address| address.to_string()));
    out.word("show_names", settings.admin.show_names);
    let socket = match &settings.admin.socket {
        Socket::Auto => "auto".to_owned(),
        Socket::Off => "off".to_owned(),
        Socket::At(path) => path.display().to_string(),
    };
    out.text("socket", &socket);
    out.table("[log]");
    out.word("format", if settings.log.json { Format::Json } else { Format::Text });
    out.text("level", &settings.log.level);
    out.text("calls", &settings.log.calls.as_ref().map(|path| path.display().to_string()).unwrap_or_default());
    out.table("[shutdown]");
    out.duration("drain", settings.drain);
    for (name, gate) in &settings.gates {
        if let Some(extras) = extras.get(name) {
            self::gate(&mut out, name, gate, extras);
        }
    }
    out.0
}

fn gate(out: &mut Out, name: &str, gate: &Gate, extras: &Extras) {
    let section = |key: &str| format!("[gates.{name}.{key}]");
    out.table(&format!("[gates.{name}]"));
    out.word("kind", gate.kind);
    let listen = gate.listen.iter().map(|listen| match listen {
        Listen::Tcp(address) => address.to_string(),
        Listen::Unix(path) => format!("unix:{}", path.display()),
    });
    out.list("listen", listen);
    out.text(
        "upstream",
        &match &gate.upstream {
            Upstream::InCluster => "in_cluster".to_owned(),
            Upstream::Kubeconfig(None) => "kubeconfig".to_owned(),
            Upstream::Kubeconfig(Some(context)) => format!("kubeconfig:{context}"),
            Upstream::Url(url) => url.to_string(),
        },
    );
    out.word("preset", extras.preset);
    if extras.preset == Preset::Crossplane {
        out.line("max_reconcile_rate", extras.max_reconcile_rate);
    }
    out.word("credentials", gate.credentials);
    out.word("impersonation", if gate.impersonation { Impersonation::Allow } else { Impersonation::Reject });
    out.word("retry_after", gate.retry_after);
    out.line("shadow", gate.shadow);
    out.list("allowed_hosts", gate.allowed_hosts.iter().cloned());
    out.text(
        "host",
        match &gate.host {
            Host::Rewrite => "rewrite",
            Host::Preserve => "preserve",
            Host::Literal(name) => name.to_str().unwrap_or_default(),
        },
    );
    out.line("rewrite_links", gate.rewrite_links);
    out.key(extras.key.as_ref());
    out.line("one_at_a_time", gate.policy.one_at_a_time);
    // Words in the place of tables come before the tables.
    for (key, bucket) in [("bucket", &gate.policy.bucket), ("retry_bucket", &gate.policy.retry_bucket)] {
        out.bucket(key, bucket.as_ref());
    }
    out.in_flight("in_flight", gate.policy.in_flight);
    limits(out, gate, extras, &section);
    for class in &extras.classes {
        self::class(out, &section("classes"), class);
    }
    tls(out, gate, &section);
}

fn limits(out: &mut Out, gate: &Gate, extras: &Extras, section: &impl Fn(&str) -> String) {
    let (backoff, failures) = &extras.backoff;
    out.table(&section("backoff"));
    backoff_keys(backoff, failures).into_iter().for_each(|(key, value)| out.line(key, value));
    out.line("max_keys", gate.policy.max_keys);
    out.table(&section("queue"));
    out.duration("max_wait", gate.policy.queue.max_wait);
    out.line("max_waiting", gate.policy.queue.max_waiting);
    out.text("max_waiting_bytes", &size(gate.policy.queue.max_waiting_bytes));
    out.word("fair_by", gate.rules.fair_by());
    out.word("combine", gate.policy.queue.combine);
    out.line("coalesce", gate.coalesce);
    out.table(&section("signals"));
    out.list("honour", gate.throttling.honour.iter().map(|signal| signal.word().to_owned()));
    out.word("scope", gate.policy.pause_scope);
    out.duration("max_pause", gate.throttling.max_pause);
    out.line("reserve", format!("{:?}", gate.throttling.reserve));
    out.table(&section("timeouts"));
    out.duration("connect", gate.connect_timeout);
    out.text("response", &gate.response_timeout.map_or_else(|| "off".to_owned(), duration::write));
}

fn class(out: &mut Out, section: &str, class: &Class) {
    out.table(&format!("[{section}]"));
    out.text("name", &class.name);
    if let Some(Matching::Patterns(matcher)) = &class.matching {
        out.line("match", matching(matcher));
    }
    out.word("lane", class.lane);
    out.bucket("bucket", class.bucket.as_ref());
    if let Some(within) = &class.within {
        out.text("within", within);
    }
    out.line("own_bucket_only", class.own_bucket_only);
    out.line("backoff", inline(backoff_keys(&class.backoff, &class.failures)));
    out.in_flight("in_flight", class.in_flight);
    out.line("meter_long_running", class.meter_long_running);
    out.key(class.key.as_ref());
}

fn tls(out: &mut Out, gate: &Gate, section: &impl Fn(&str) -> String) {
    let path =
        |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    if let Some(tls) = &gate.tls {
        out.table(&section("tls"));
        match &tls.mode {
            TlsMode::SelfSigned => out.word("mode", Mode::SelfSigned),
            TlsMode::Files { cert, key } => {
                out.word("mode", Mode::Files);
                out.text("cert", &cert.display().to_string());
                out.text("key", &key.display().to_string());
            }
        }
        out.list("names", tls.names.iter().cloned());
        out.text("write_to", &path(&tls.write_to));
        out.text("client_ca", &path(&tls.client_ca));
    }
    let is_plain = matches!(&gate.upstream, Upstream::Url(url) if url.scheme_str() == Some("http"));
    if !is_plain {
        let tls = &gate.upstream_tls;
        out.table(&section("upstream_tls"));
        out.text("ca", &path(&tls.ca));
        out.text("cert", &path(&tls.cert));
        out.text("key", &path(&tls.key));
        out.text("server_name", tls.server_name.as_deref().unwrap_or_default());
        out.line("insecure", tls.insecure);
    }
    if let Some(credential) = &gate.credential {
        out.table(&section("credential"));
        out.text("header", credential.header.as_str());
        out.text("prefix", &credential.prefix);
        out.text("file", &credential.file.display().to_string());
    }
}

/// The keys of a backoff, those of its strategy only.
fn backoff_keys(backoff: &Backoff, failures: &Failures) -> Vec<(&'static str, String)> {
    let span = |span: Duration| quoted(&duration::write(span));
    let mut keys = match backoff.strategy {
        Strategy::Off => vec![("strategy", quoted("off"))],
        Strategy::Exponential { base, max, jitter } => vec![
            ("strategy", quoted("exponential")),
            ("base", span(base)),
            ("max", span(max)),
            ("jitter", format!("{jitter:?}")),
        ],
        Strategy::FastSlow { fast, slow, fast_attempts } => vec![
            ("strategy", quoted("fast_slow")),
            ("fast", span(fast)),
            ("slow", span(slow)),
            ("fast_attempts", fast_attempts.to_string()),
        ],
    };
    keys.push(("hold", span(backoff.hold)));
    keys.push(("forget_after", span(backoff.forget_after)));
    let mut words: Vec<String> = failures.statuses.iter().map(|status| quoted(&status.to_string())).collect();
    words.extend(failures.transport.then(|| quoted("transport")));
    words.extend(failures.left.then(|| quoted("left")));
    keys.push(("failures", format!("[{}]", words.join(", "))));
    keys
}

fn bucket_keys(bucket: &BucketPolicy) -> Vec<(&'static str, String)> {
    vec![
        ("rate", format!("{:?}", bucket.rate)),
        ("burst", bucket.burst.to_string()),
        ("per", quoted(file::word(bucket.per))),
        ("start", quoted(file::word(if bucket.starts_empty { Start::Empty } else { Start::Full }))),
        ("adapt", bucket.adapt.map_or_else(|| quoted("off"), |Adapt { floor }| format!("{{ floor = {floor:?} }}"))),
    ]
}

fn matching(matcher: &Matcher) -> String {
    let lists = [
        ("verbs", &matcher.verbs),
        ("groups", &matcher.groups),
        ("resources", &matcher.resources),
        ("namespaces", &matcher.namespaces),
        ("names", &matcher.names),
        ("subresources", &matcher.subresources),
        ("methods", &matcher.methods),
        ("paths", &matcher.paths),
        ("user_agents", &matcher.user_agents),
    ];
    let mut keys: Vec<(&str, String)> = Vec::new();
    for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        let items: Vec<String> = list.iter().map(|item| quoted(item)).collect();
        keys.push((key, format!("[{}]", items.join(", "))));
    }
    let headers: Vec<(String, String)> =
        matcher.headers.iter().map(|(name, pattern)| (quoted(name.as_str()), quoted(pattern))).collect();
    let query: Vec<(String, String)> =
        matcher.query.iter().map(|(name, pattern)| (quoted(name), quoted(pattern))).collect();
    if !headers.is_empty() {
        keys.push(("headers", inline(headers)));
    }
    if !query.is_empty() {
        keys.push(("query", inline(query)));
    }
    inline(keys)
}

/// `{ key = value, ... }`.
fn inline<K: AsRef<str>>(keys: Vec<(K, String)>) -> String {
    let keys: Vec<String> = keys.into_iter().map(|(key, value)| format!("{} = {value}", key.as_ref())).collect();
    if keys.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", keys.join(", ")) }
}

/// A TOML string.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// TOML text in the making. Writing to a `String` cannot fail.
#[derive(Default)]
struct Out(String);

impl Out {
    fn table(&mut self, header: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        self.push(format_args!("{gap}{header}\n"));
    }

    fn line(&mut self, key: &str, value: impl std::fmt::Display) {
        self.push(format_args!("{key} = {value}\n"));
    }

    fn text(&mut self, key: &str, text: &str) {
        self.line(key, quoted(text));
    }

    fn word<T: Words + PartialEq>(&mut self, key: &str, meaning: T) {
        self.text(key, file::word(meaning));
    }

    fn duration(&mut self, key: &str, span: Duration) {
        self.text(key, &duration::write(span));
    }

    fn list(&mut self, key: &str, items: impl Iterator<Item = String>) {
        let items: Vec<String> = items.map(|item| quoted(&item)).collect();
        self.line(key, format_args!("[{}]", items.join(", ")));
    }

    fn bucket(&mut self, key: &str, bucket: Option<&BucketPolicy>) {
        match bucket {
            Some(bucket) => self.line(key, inline(bucket_keys(bucket))),
            None => self.text(key, "off"),
        }
    }

    fn in_flight(&mut self, key: &str, slots: Option<InFlight>) {
        match slots {
            Some(slots) => {
                self.line(key, inline(vec![("max", slots.max.to_string()), ("per", quoted(file::word(slots.per)))]));
            }
            None => self.text(key, "off"),
        }
    }

    fn key(&mut self, parts: Option<&KeyParts>) {
        match parts {
            Some(parts) => self.list("key", parts.parts().iter().map(ToString::to_string)),
            None => self.text("key", "auto"),
        }
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        let _infallible = self.0.write_fmt(text);
    }
}

/// A size in the largest unit that says it exactly.
fn size(bytes: usize) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let exact = units.iter().find(|(bits, _)| bytes != 0 && bytes.trailing_zeros() >= *bits);
    exact.map_or_else(|| format!("{bytes}B"), |(bits, unit)| format!("{}{unit}", bytes >> bits))
}
