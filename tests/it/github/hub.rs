//! A GitHub with the limits that
//! docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api documents.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};

use super::city::Kind;

/// The server.
#[derive(Debug)]
pub(super) struct Hub {
    troubles: Vec<Trouble>,
    /// 403 or 429: GitHub uses both.
    refuses_with: u16,
    used: u64,
    window_ends: Option<Duration>,
    under_way: usize,
    /// The calls of the last minute: the time, the kind, and the time that each took.
    past: VecDeque<(Duration, Kind, Duration)>,
    /// Creations of the last hour.
    creates: VecDeque<Duration>,
    blocked_until: Duration,
    /// A number for each trouble, so that the refusals of one are known from those of another.
    trouble: u32,
}

/// Use of the same token by others.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    /// They use up the quota.
    Exhausted { at: Duration },
    /// They provoke a secondary limit, which the answer shows with Retry-After or only in its text.
    Secondary { at: Duration, lasts: Duration, header: bool },
}

/// The hub's answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: &'static str,
    /// The trouble for which it was refused.
    pub(super) refused: Option<u32>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            troubles: Vec::new(),
            refuses_with: 403,
            used: 0,
            window_ends: None,
            under_way: 0,
            past: VecDeque::new(),
            creates: VecDeque::new(),
            blocked_until: Duration::ZERO,
            trouble: 0,
        }
    }
}

const QUOTA: u64 = 5000;
const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);
/// The time of day at which the test starts: not at a whole second.
const EPOCH: Duration = Duration::from_millis(1_563_325_077_700);
const SECONDARY: &str = r#"{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again.","documentation_url":"https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api#about-secondary-rate-limits"}"#;
const PRIMARY: &str = r#"{"message":"API rate limit exceeded for user ID 1."}"#;

// === impl Hub ===

impl Hub {
    pub(super) fn in_trouble(troubles: Vec<Trouble>, refuses_with: u16) -> Self {
        Self { troubles, refuses_with, ..Self::default() }
    }

    /// Handles a call, and answers it `takes` later.
    pub(super) fn serve(&mut self, kind: Kind, now: Duration, takes: Duration) -> Reply {
        self.roll(now);
        if kind == Kind::Quota {
            return self.reply(200, "", None, now); // costs nothing
        }
        let mut retry_after = false;
        let mut due = std::mem::take(&mut self.troubles);
        due.retain(|trouble| match *trouble {
            Trouble::Exhausted { at } if at <= now => {
                self.used = QUOTA;
                self.trouble += 1;
                false
            }
            Trouble::Secondary { at, lasts, header } if at <= now => {
                if self.blocked_until <= at {
                    self.trouble += 1;
                    self.blocked_until = at.max(now) + lasts;
                }
                retry_after = header;
                now < self.blocked_until // kept, so that all of its refusals look the same
            }
            _ => true,
        });
        self.troubles = due;
        if now >= self.blocked_until && self.breaks_secondary(kind) {
            self.trouble += 1;
            self.blocked_until = now + MINUTE;
        }
        if now < self.blocked_until {
            let mut reply = self.reply(self.refuses_with, SECONDARY, Some(self.trouble), now);
            if retry_after {
                let left = (self.blocked_until - now).as_secs() + 1;
                reply.headers.insert("retry-after", HeaderValue::from(left));
            }
            return reply;
        }
        if self.used >= QUOTA {
            return self.reply(self.refuses_with, PRIMARY, Some(self.trouble), now);
        }
        self.used += 1;
        self.under_way += 1;
        self.past.push_back((now, kind, takes));
        self.creates.extend((kind == Kind::Create).then_some(now));
        self.reply(if kind == Kind::Create { 201 } else { 200 }, "{}", None, now)
    }

    /// An answer that was not a refusal has been sent.
    pub(super) fn done(&mut self) {
        self.under_way -= 1;
    }

    /// A call of another tool; true if it was served.
    pub(super) fn other(&mut self, now: Duration) -> bool {
        self.roll(now);
        let served = self.used < QUOTA && now >= self.blocked_until;
        self.used += u64::from(served);
        served
    }

    /// The quota's window starts with the first call after the previous window is over.
    fn roll(&mut self, now: Duration) {
        if self.window_ends.is_none_or(|ends| now >= ends) {
            (self.window_ends, self.used) = (Some(now + HOUR), 0);
        }
        while self.past.front().is_some_and(|(at, ..)| now - *at >= MINUTE) {
            self.past.pop_front();
        }
        while self.creates.front().is_some_and(|at| now - *at >= HOUR) {
            self.creates.pop_front();
        }
    }

    /// The secondary limits: 100 at once; 900 points a minute (a read is one, a write five); 90 s
    /// of work a minute; 80 creations a minute, 500 an hour.
    fn breaks_secondary(&self, kind: Kind) -> bool {
        let points = |kind: Kind| if kind == Kind::Read { 1 } else { 5 };
        let spent: u32 = self.past.iter().map(|(_, kind, _)| points(*kind)).sum();
        let work: Duration = self.past.iter().map(|(.., took)| *took).sum();
        let new = self.past.iter().filter(|(_, kind, _)| *kind == Kind::Create).count();
        let one_more = usize::from(kind == Kind::Create);
        self.under_way + 1 > 100
            || spent + points(kind) > 900
            || work > Duration::from_secs(90)
            || new + one_more > 80
            || self.creates.len() + one_more > 500
    }

    fn reply(&self, status: u16, body: &'static str, refused: Option<u32>, now: Duration) -> Reply {
        let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + EPOCH + now);
        let reset = (EPOCH + self.window_ends.unwrap_or(now)).as_secs();
        let mut headers = HeaderMap::new();
        headers.insert("date", date.parse().expect("a value"));
        for (name, number) in [
            ("x-ratelimit-limit", QUOTA),
            ("x-ratelimit-remaining", QUOTA - self.used),
            ("x-ratelimit-used", self.used),
            ("x-ratelimit-reset", reset),
        ] {
            headers.insert(name, HeaderValue::from(number));
        }
        headers.insert("x-ratelimit-resource", HeaderValue::from_static("core"));
        Reply { status, headers, body, refused }
    }
}
