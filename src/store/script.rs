//! The script that a store runs for a question: how it is asked, and how its answer is read.
//!
//! Its arithmetic is that of `limit::Ledger`, which a test holds against real servers. It is called
//! by its hash; a server that does not know it is sent the text, once.

use std::sync::LazyLock;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Script, Value};

use super::fault::Fault;
use crate::limit::{Answer, Ask};

/// The script, which uses the server's clock and one key.
const SCRIPT: &str = include_str!("ask.lua");

/// Its hash, by which servers know it.
static HASH: LazyLock<String> = LazyLock::new(|| Script::new(SCRIPT).get_hash().to_owned());

/// The key of a shared bucket. The braces make a cluster place it by its name; `1` is the layout.
pub(super) fn key(prefix: &str, name: &str) -> String {
    format!("{prefix}:1:{{{name}}}")
}

/// Asks the server.
///
/// # Errors
/// What the server said, or why it could not be heard.
pub(super) async fn ask(
    connection: &mut MultiplexedConnection,
    (ask, prefix, label): (&Ask, &str, &str),
) -> Result<Answer, Fault> {
    let asked = command("EVALSHA", &HASH, (ask, prefix, label)).query_async::<Value>(connection).await;
    let asked = match asked {
        Err(error) if error.code() == Some("NOSCRIPT") => {
            command("EVAL", SCRIPT, (ask, prefix, label)).query_async(connection).await
        }
        asked => asked,
    };
    read(&asked?).filter(|answer| answer.granted <= ask.need.saturating_add(ask.extra)).ok_or(Fault::Nonsense)
}

/// Asks, and returns the server's time with the answer.
#[cfg(test)]
pub(super) async fn ask_at(
    connection: &mut MultiplexedConnection,
    asked: (&Ask, &str, &str),
) -> Result<(u64, Answer), Fault> {
    let value = command("EVAL", SCRIPT, asked).query_async::<Value>(connection).await?;
    let Value::Array(values) = &value else { return Err(Fault::Nonsense) };
    let now = values.get(5).and_then(text).and_then(|text| text.parse().ok());
    now.zip(read(&value)).ok_or(Fault::Nonsense)
}

fn command(name: &str, script: &str, (ask, prefix, label): (&Ask, &str, &str)) -> Cmd {
    let Ask { limits, .. } = ask;
    let mut command = redis::cmd(name);
    command.arg(script).arg(1).arg(key(prefix, &ask.shared.name));
    command.arg(ask.member).arg(limits.weight).arg(ask.need).arg(ask.extra).arg(ask.total).arg(ask.epoch);
    command.arg(ask.ahead).arg(u8::from(ask.away)).arg(micros(ask.within));
    // As texts that read back as the same numbers.
    command.arg(limits.period.to_string()).arg(limits.burst.to_string());
    command.arg(micros(limits.lease)).arg(micros(limits.horizon)).arg(MEMBER);
    match ask.pause.map(micros) {
        None => command.arg(0),
        Some(0) => command.arg(-1),
        Some(pause) => command.arg(pause),
    };
    // Nothing is said of what is left.
    command.arg(-1).arg(u8::from(ask.leave)).arg(label);
    command
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(LONGEST)
}

/// Reads an answer. It comes from outside: anything that is not as expected is none.
pub(super) fn read(value: &Value) -> Option<Answer> {
    let Value::Array(values) = value else { return None };
    let [granted, first, period, level, epoch, _now, members, rivals, pause] = values.as_slice() else { return None };
    let within = |number: f64, least: f64, most: f64| (least..=most).contains(&number).then_some(number);
    let first = within(number(first)?, -1e15, 1e15)?;
    let period = within(number(period)?, 0.1, 1e15)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above, and not below zero")]
    Some(Answer {
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
