//! A moment for comparison with the time of a later process: how long ago it was, or at least a
//! lower bound.
//!
//! If the machine has not been rebooted since, the difference of uptimes is exact, even if the time
//! of day was changed. Otherwise the difference of the times of day counts; if the clock was turned
//! back, at least the uptime since the reboot has passed.

use std::fs;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// A moment, read from all clocks of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The id of the machine's current boot; empty if unknown.
    pub boot: String,
    /// The time since the boot; `None` if unknown.
    pub uptime: Option<Duration>,
    /// The time of day since 1970.
    pub wall: Duration,
}

// === impl Stamp ===

impl Stamp {
    /// Reads the clocks; `wall` is the time of day.
    #[must_use]
    pub fn new(wall: SystemTime) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let uptime = read("/proc/uptime");
        let seconds = uptime.split(' ').next().and_then(|seconds| seconds.parse().ok());
        Self {
            boot: read("/proc/sys/kernel/random/boot_id").trim().to_owned(),
            uptime: seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            wall: wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        }
    }

    /// Returns the time since `earlier`; if that is uncertain, rather a shorter time.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Duration {
        let wall = self.wall.saturating_sub(earlier.wall);
        match (self.uptime, earlier.uptime) {
            (Some(uptime), Some(then)) if self.boot == earlier.boot && uptime >= then => {
                (uptime - then).saturating_sub(GRAIN)
            }
            (Some(uptime), _) if self.boot != earlier.boot => wall.max(uptime.saturating_sub(GRAIN)),
            _ => wall,
        }
    }
}

/// The resolution of an uptime.
const GRAIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(boot: &str, uptime: Option<u64>, wall: u64) -> Stamp {
        Stamp { boot: boot.to_owned(), uptime: uptime.map(Duration::from_secs), wall: Duration::from_secs(wall) }
    }

    #[test]
    fn on_the_same_boot_the_wall_clock_may_jump() {
        let then = stamp("a", Some(1000), 5000);
        for wall in [0, 5060, 90_000] {
            let passed = stamp("a", Some(1060), wall).since(&then);
            assert_eq!(passed, Duration::from_secs(60) - GRAIN, "{wall}");
        }
    }

    #[test]
    fn after_another_boot_the_wall_clock_tells_and_the_uptime_is_the_least() {
        let then = stamp("a", Some(1000), 5000);
        assert_eq!(stamp("b", Some(20), 5300).since(&then), Duration::from_secs(300));
        assert_eq!(stamp("b", Some(20), 100).since(&then), Duration::from_secs(20) - GRAIN);
        assert_eq!(stamp("a", Some(3), 5300).since(&then), Duration::from_secs(300), "an uptime of a container");
        assert_eq!(stamp("", None, 5300).since(&stamp("", None, 5000)), Duration::from_secs(300));
        assert_eq!(stamp("", None, 4000).since(&stamp("", None, 5000)), Duration::ZERO);
    }

    #[test]
    fn a_later_look_at_the_clocks_is_not_before_an_earlier_one() {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(7);
        let one = Stamp::new(wall);
        let other = Stamp::new(wall);
        assert_eq!(other.since(&one).as_secs(), 0);
        assert!(other.uptime >= one.uptime);
    }
}
