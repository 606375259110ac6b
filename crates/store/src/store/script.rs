//! The script that a store runs for a question: how it is asked, and how its answer is read.
//!
//! Its arithmetic is that of `limit::Ledger`, which a test holds against real servers. It is called
//! by its hash; a server that does not know it is sent the text, once.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

#[cfg(test)]
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Script, Value};
use ring::hmac;

use super::fault::Fault;
use super::servers::Servers;
use crate::limit::{Ask, BucketPart, StoreAnswer};

/// The script, which uses the server's clock and one key.
const SCRIPT: &str = include_str!("ask.lua");

/// Its hash, by which servers know it.
static HASH: LazyLock<String> = LazyLock::new(|| Script::new(SCRIPT).get_hash().to_owned());

/// The key of a shared bucket. The braces make a cluster place it by its name; `1` is the layout.
pub(super) fn key(prefix: &str, name: &str, part: Option<&BucketPart>) -> String {
    let whole = format!("{prefix}:1:{{{name}}}");
    match part {
        None => whole,
        Some(part) => format!("{whole}:{:032x}", digest(name, part)),
    }
}

/// Returns the digest of a part, which is the same in every gate and differs between buckets.
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

/// Asks the servers, all at once.
///
/// # Errors
/// The reason why they could not be heard.
pub(super) async fn ask_all(
    servers: &mut Servers,
    (asks, prefix, label): (&[Ask], &str, &str),
) -> Result<Vec<Result<StoreAnswer, Fault>>, Fault> {
    let name = |ask: &Ask| Arc::clone(&ask.shared.name);
    let by_hash = |ask| (name(ask), command("EVALSHA", &HASH, (ask, prefix, label)));
    let mut replies = servers.send(asks.iter().map(by_hash).collect()).await?;
    let is_unknown = |reply: &Result<Value, Fault>| matches!(reply, Err(Fault::Code { code }) if code == "NOSCRIPT");
    let unknown: Vec<usize> = (0..).zip(&replies).filter(|(_, reply)| is_unknown(reply)).map(|(at, _)| at).collect();
    if !unknown.is_empty() {
        // Its text makes it known to those that follow, unless another node has them.
        let knows = |place| place > 0 && matches!(servers, Servers::One(_));
        let again = unknown.iter().enumerate().filter_map(|(place, at)| {
            let ask = asks.get(*at)?;
            let by_text = || (name(ask), command("EVAL", SCRIPT, (ask, prefix, label)));
            Some(if knows(place) { by_hash(ask) } else { by_text() })
        });
        let again = again.collect();
        for (at, reply) in unknown.iter().zip(servers.send(again).await?) {
            replies.get_mut(*at).into_iter().for_each(|place| *place = reply.clone());
        }
    }
    Ok(asks.iter().zip(replies).map(|(ask, reply)| answer(ask, reply)).collect())
}

fn answer(ask: &Ask, reply: Result<Value, Fault>) -> Result<StoreAnswer, Fault> {
    read(&reply?).filter(|answer| answer.granted <= ask.wish.most()).ok_or(Fault::Nonsense)
}

/// Asks one question.
///
/// # Errors
/// The server's answer, or the reason why there is none.
pub(super) async fn ask(
    servers: impl Into<Servers>,
    (ask, prefix, label): (&Ask, &str, &str),
) -> Result<StoreAnswer, Fault> {
    let mut answers = ask_all(&mut servers.into(), (std::slice::from_ref(ask), prefix, label)).await?;
    answers.pop().unwrap_or(Err(Fault::Nonsense))
}

/// Removes a bucket.
///
/// # Errors
/// The server's answer, or the reason why there is none.
pub(super) async fn forget(servers: &mut Servers, (name, prefix): (&Arc<str>, &str)) -> Result<(), Fault> {
    let expire = redis::cmd("PEXPIRE").arg(key(prefix, name, None)).arg(1).to_owned();
    servers.query::<i64>(name, &expire).await.map(drop)
}

/// Asks, and returns the server's time with the answer.
#[cfg(test)]
pub(super) async fn ask_at(
    connection: &mut MultiplexedConnection,
    asked: (&Ask, &str, &str),
) -> Result<(u64, StoreAnswer), Fault> {
    let value = command("EVAL", SCRIPT, asked).query_async::<Value>(connection).await?;
    let Value::Array(values) = &value else { return Err(Fault::Nonsense) };
    let now = values.get(5).and_then(text).and_then(|text| text.parse().ok());
    now.zip(read(&value)).ok_or(Fault::Nonsense)
}

fn command(name: &str, script: &str, (ask, prefix, label): (&Ask, &str, &str)) -> Cmd {
    let Ask { limits, wish, .. } = ask;
    let mut command = redis::cmd(name);
    command.arg(script).arg(1).arg(key(prefix, &ask.shared.name, ask.part.as_ref()));
    command.arg(ask.member).arg(limits.weight).arg(wish.need).arg(wish.extra).arg(ask.total).arg(ask.epoch);
    command.arg(ask.ahead).arg(u8::from(ask.away)).arg(micros(wish.within));
    // As texts that read back as the same numbers.
    command.arg(limits.period.to_string()).arg(limits.burst.to_string());
    command.arg(micros(limits.lease)).arg(micros(limits.horizon)).arg(MEMBER);
    match ask.pause.map(micros) {
        None => command.arg(0),
        Some(0) => command.arg(-1),
        Some(pause) => command.arg(pause),
    };
    command.arg(ask.left.map_or(-1, i64::from)).arg(u8::from(ask.leave)).arg(label);
    command
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(LONGEST)
}

/// Reads an answer. It comes from outside: anything that is not as expected is none.
pub(super) fn read(value: &Value) -> Option<StoreAnswer> {
    let Value::Array(values) = value else { return None };
    let [granted, first, period, level, epoch, _now, members, rivals, pause] = values.as_slice() else { return None };
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
    })
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

/// The microseconds after which a member that does not ask is none any more.
pub(super) const MEMBER: u64 = 60_000_000;
/// The longest time that is told: a year.
const LONGEST: u64 = 365 * 86_400 * 1_000_000;
