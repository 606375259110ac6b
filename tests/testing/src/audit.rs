//! The API server's audit log, which shows what reached it, and when.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// One request as the API server saw it.
#[derive(Clone, Debug)]
pub struct Event {
    /// The time of its arrival, since the epoch.
    pub received: Duration,
    /// The time of its answer (for a watch, of its beginning).
    pub answered: Duration,
    pub verb: String,
    pub uri: String,
    pub user: String,
    pub agent: String,
    pub code: u64,
    pub resource: String,
    pub name: String,
}

impl Event {
    fn parse(line: &str) -> Option<(String, Self)> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let event = Self {
            received: instant(&text("/requestReceivedTimestamp"))?,
            answered: instant(&text("/stageTimestamp"))?,
            verb: text("/verb"),
            uri: text("/requestURI"),
            user: text("/user/username"),
            agent: text("/userAgent"),
            code: value.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default(),
            resource: text("/objectRef/resource"),
            name: text("/objectRef/name"),
        };
        Some((text("/auditID"), event))
    }

    /// A call that a gate with the default classes meters against the manager bucket.
    pub fn is_metered(&self) -> bool {
        let path = self.uri.split('?').next().unwrap_or_default();
        let discovery = ["/api", "/apis", "/version"].contains(&path.trim_end_matches('/'))
            || path.starts_with("/openapi")
            || (self.verb == "get" && self.resource.is_empty());
        self.verb != "watch" && self.resource != "leases" && !discovery
    }
}

/// Events in order of arrival, each request once.
#[derive(Clone, Debug)]
pub struct Audit(pub Vec<Event>);

impl Audit {
    /// Reads the whole file. The first line counts if a request has several (a watch begins and
    /// ends).
    pub fn read(path: &Path) -> Self {
        let text = fs::read(path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let mut seen = HashSet::new();
        let mut events: Vec<Event> = text
            .lines()
            .filter_map(Event::parse)
            .filter_map(|(id, event)| seen.insert((id, event.received)).then_some(event))
            .collect();
        events.sort_by_key(|event| event.received);
        Self(events)
    }

    /// The events that the predicate accepts.
    pub fn only(&self, wanted: impl Fn(&Event) -> bool) -> Self {
        Self(self.0.iter().filter(|event| wanted(event)).cloned().collect())
    }

    /// The events of one user.
    pub fn of(&self, user: &str) -> Self {
        self.only(|event| event.user == user)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The arrival of each.
    pub fn arrivals(&self) -> Vec<Duration> {
        self.0.iter().map(|event| event.received).collect()
    }
}

/// P1 in terms of the audit log.
pub use crate::window::worst_excess;

/// `2026-01-31T12:34:56.123456Z` as time since the epoch.
fn instant(text: &str) -> Option<Duration> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let mut time = time.split(':');
    let (hour, minute) = (time.next()?.parse::<i64>().ok()?, time.next()?.parse::<i64>().ok()?);
    let second = time.next()?;
    // Days since the epoch: months count from March, so that the leap day comes last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let whole = u64::try_from(days * 86_400 + hour * 3_600 + minute * 60).ok()?;
    let (seconds, fraction) = second.split_once('.').unwrap_or((second, "0"));
    let nanos = format!("{fraction:0<9}").parse::<u32>().ok()?;
    Some(Duration::new(whole + seconds.parse::<u64>().ok()?, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_audit_timestamp_is_read_to_the_microsecond() {
        let read = instant("2024-02-29T23:59:58.123456Z");
        assert_eq!(read, Some(Duration::from_micros(1_709_251_198_123_456)));
        assert_eq!(instant("1970-01-01T00:00:00Z"), Some(Duration::ZERO));
    }
}
