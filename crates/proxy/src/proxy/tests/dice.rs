//! Chance from a seed, and writing that depends on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::clock::Clock;

/// Numbers from a seed (splitmix64); every task of a story draws from its own.
#[derive(Clone, Debug)]
pub(super) struct Dice(Arc<AtomicU64>);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed)))
    }

    pub(super) fn roll(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        self.roll() % bound.max(1)
    }

    pub(super) fn one_in(&self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    pub(super) fn pause(&self) -> Duration {
        match self.below(4) {
            0 | 1 => Duration::ZERO,
            2 => Duration::from_millis(self.below(50)),
            _ => Duration::from_millis(self.below(3_000)),
        }
    }

    pub(super) fn child(&self) -> Self {
        Self::new(self.roll())
    }
}

/// Writes in pieces, with pauses, and sometimes not to the end. Says whether it came to the end.
pub(super) async fn dribble<W: AsyncWrite + Unpin>(
    out: &mut W,
    bytes: &[u8],
    cut: Option<usize>,
    dice: &Dice,
    clock: Clock,
) -> bool {
    let mut rest = &bytes[..cut.unwrap_or(bytes.len())];
    while !rest.is_empty() {
        let some = usize::try_from(1 + dice.below(rest.len() as u64)).expect("small");
        if out.write_all(&rest[..some]).await.is_err() {
            return false;
        }
        rest = &rest[some..];
        if dice.one_in(3) {
            clock.sleep(dice.pause()).await;
        }
    }
    cut.is_none()
}

/// True if a head and the body that it announces are there.
pub(super) fn is_whole(message: &[u8]) -> bool {
    let text = String::from_utf8_lossy(message).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    if head.contains("transfer-encoding: chunked") {
        return body.ends_with("0\r\n\r\n");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.trim().parse().expect("a number"))
}
