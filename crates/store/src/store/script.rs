//! The script running in a store, its arguments and its answer.
//!
//! Its arithmetic is that of `limit::Ledger`; a test compares the two on real servers. It is called
//! by its hash, and by its text if the server does not know the hash.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

#[cfg(test)]
use redis::aio::MultiplexedConnection;
use redis::{Script, Value};
use ring::hmac;

use super::cluster::BucketCommand;
use super::fault::Fault;
use super::servers::Servers;
use crate::limit::quota::{QuotaId, ResourceId};
use crate::limit::{Ask, BucketPart, MOST_PAUSES, PauseNotice, StoreAnswer};

/// The text of the script. It uses the server's clock and one key.
const SCRIPT: &str = include_str!("ask.lua");

/// The hash of the script, as servers know it.
static HASH: LazyLock<String> = LazyLock::new(|| Script::new(SCRIPT).get_hash().to_owned());

/// Returns the key of a shared bucket. The braces make a cluster place it by its name; `1` is the
/// version of the layout.
pub(super) fn key(prefix: &str, name: &str, part: Option<&BucketPart>) -> String {
    let whole = format!("{prefix}:1:{{{name}}}");
    match part {
        None => whole,
        Some(part) => format!("{whole}:{:032x}", digest(name, part)),
    }
}

/// Returns the digest of a part's identity. It is the same in every gate and differs between
/// buckets.
fn digest(name: &str, part: &BucketPart) -> u128 {
    let key = hmac::Key::new(hmac::HMAC_SHA256, name.as_bytes());
    let mut digest = hmac::Context::with_key(&key);
    digest.update(part.per.word().as_bytes());
    digest.update(&[0, u8::from(part.who.is_some())]);
    digest.update(&part.origin.to_be_bytes());
    digest.update(&part.who.unwrap_or(0).to_be_bytes());
    let tag = digest.sign();
    tag.as_ref().iter().take(16).fold(0, |digest, byte| digest << 8 | u128::from(*byte))
}

/// Sends requests to a store: with the process's label, and the prefix of its keys.
#[derive(Clone, Copy)]
pub(super) struct Asker<'a> {
    pub(super) prefix: &'a str,
    pub(super) label: &'a str,
}

// === impl Asker ===

impl Asker<'_> {
    /// Sends all requests at once. Returns an answer for each.
    pub(super) async fn ask_all(self, servers: &Servers, asks: &[Ask]) -> Vec<Result<StoreAnswer, Fault>> {
        let by_hash: Vec<_> = asks.iter().map(|ask| self.command("EVALSHA", &HASH, ask)).collect();
        let mut replies = servers.send(&by_hash).await;
        let is_unknown =
            |reply: &Result<Value, Fault>| matches!(reply, Err(Fault::Code { code }) if code == "NOSCRIPT");
        let unknown = asks.iter().zip(&replies).filter(|(_, reply)| is_unknown(reply));
        let by_text: Vec<_> = unknown.map(|(ask, _)| self.command("EVAL", SCRIPT, ask)).collect();
        let again = servers.send(&by_text).await;
        replies.iter_mut().filter(|reply| is_unknown(reply)).zip(again).for_each(|(reply, again)| *reply = again);
        asks.iter().zip(replies).map(|(ask, reply)| answer(ask, reply)).collect()
    }

    /// Sends one request.
    ///
    /// # Errors
    /// The server's error, or the reason why there is no answer.
    pub(super) async fn ask(self, servers: &Servers, ask: &Ask) -> Result<StoreAnswer, Fault> {
        let mut answers = self.ask_all(servers, std::slice::from_ref(ask)).await;
        answers.pop().unwrap_or(Err(Fault::Nonsense))
    }

    /// Removes a bucket from the store.
    ///
    /// # Errors
    /// The server's error, or the reason why there is no reply.
    pub(super) async fn forget(self, servers: &Servers, bucket: &Arc<str>) -> Result<(), Fault> {
        let expire = redis::cmd("PEXPIRE").arg(key(self.prefix, bucket, None)).arg(1).to_owned();
        servers.query::<i64>(bucket, &expire).await.map(drop)
    }

    /// Sends one request, and returns the server's time with the answer.
    #[cfg(test)]
    pub(super) async fn ask_at(
        self,
        redis: &mut MultiplexedConnection,
        ask: &Ask,
    ) -> Result<(u64, StoreAnswer), Fault> {
        let value = self.command("EVAL", SCRIPT, ask).command.query_async::<Value>(redis).await?;
        let Value::Array(values) = &value else { return Err(Fault::Nonsense) };
        let now = values.get(5).and_then(text).and_then(|text| text.parse().ok());
        now.zip(read(&value)).ok_or(Fault::Nonsense)
    }

    fn command(self, name: &str, script: &str, ask: &Ask) -> BucketCommand {
        let Ask { limits, .. } = ask;
        let mut command = redis::cmd(name);
        command.arg(script).arg(1).arg(key(self.prefix, &ask.shared.name, ask.part.as_ref()));
        command.arg(ask.member).arg(limits.weight).arg(ask.wish.need).arg(ask.wish.extra).arg(ask.total).arg(ask.epoch);
        command.arg(ask.ahead).arg(u8::from(ask.away)).arg(micros(ask.wish.within));
        // As texts that read back as the same numbers.
        command.arg(limits.period.to_string()).arg(limits.burst.to_string());
        command.arg(micros(limits.lease)).arg(micros(limits.horizon)).arg(MEMBER);
        match ask.pause.map(|pause| micros(pause.left)) {
            None => command.arg(0),
            Some(0) => command.arg(-1),
            Some(pause) => command.arg(pause),
        };
        command.arg(ask.left.map_or(-1, i64::from)).arg(u8::from(ask.leave)).arg(self.label);
        command.arg(ask.pause.map_or_else(String::new, |pause| quota_text(pause.quota)));
        BucketCommand { bucket: Arc::clone(&ask.shared.name), command }
    }
}

fn answer(ask: &Ask, reply: Result<Value, Fault>) -> Result<StoreAnswer, Fault> {
    read(&reply?).filter(|answer| answer.granted <= ask.wish.most()).ok_or(Fault::Nonsense)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(LONGEST)
}

/// Parses an answer; `None` if anything in it is not as expected.
pub(super) fn read(value: &Value) -> Option<StoreAnswer> {
    let Value::Array(values) = value else { return None };
    let [granted, first, period, level, epoch, _now, members, rivals, pause, quotas] = values.as_slice() else {
        return None;
    };
    let within = |number: f64, least: f64, most: f64| (least..=most).contains(&number).then_some(number);
    let first = within(number(first)?, -1e15, 1e15)?;
    let period = within(number(period)?, 0.1, 1e15)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above, and not below zero")]
    Some(StoreAnswer {
        granted: whole(granted)?,
        first: (first * 1e3) as i64,
        period: Duration::from_nanos((period * 1e3) as u64),
        level: within(number(level)?, -1e15, 1e15)?,
        epoch: text(epoch)?.parse().ok()?,
        members: whole(members)?,
        rivals: whole(rivals)?,
        pause: match within(number(pause)?, -1e15, 1e15)? {
            0.0 => None,
            left => Some(Duration::from_nanos((left * 1e3) as u64)), // `as` makes nothing of less
        },
        quotas: notices(quotas)?,
    })
}

/// Reads the quotas with a pause, each with its time left; `None` if there are too many.
fn notices(value: &Value) -> Option<Vec<PauseNotice>> {
    let Value::Array(values) = value else { return None };
    let notice = |pair: &[Value]| {
        let [quota, left] = pair else { return None };
        let (holder, resource) = text(quota)?.split_once(':')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let quota = QuotaId { holder: number(holder)?, resource: ResourceId(number(resource)?) };
        Some(PauseNotice {
            quota,
            left: Duration::from_micros(text(left)?.parse().ok().filter(|left| *left < LONGEST)?),
        })
    };
    if values.len() > 2 * MOST_PAUSES {
        return None;
    }
    let mut notices: Vec<PauseNotice> = values.chunks(2).map(notice).collect::<Option<_>>()?;
    notices.sort_unstable_by_key(|notice| notice.quota);
    Some(notices)
}

/// Returns a quota as text, as the store has it; empty for the quota of the whole API and of all
/// holders.
fn quota_text(quota: QuotaId) -> String {
    let QuotaId { holder, resource: ResourceId(resource) } = quota;
    if quota == QuotaId::ALL { String::new() } else { format!("{holder:x}:{resource:x}") }
}

fn whole(value: &Value) -> Option<u32> {
    let Value::Int(number) = value else { return None };
    u32::try_from(*number).ok()
}

fn number(value: &Value) -> Option<f64> {
    text(value)?.parse().ok().filter(|number: &f64| number.is_finite())
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// How long a gate sending no request is remembered, in microseconds.
pub(super) const MEMBER: u64 = 60_000_000;
/// The longest time in a request: a year.
const LONGEST: u64 = 365 * 86_400 * 1_000_000;
