//! Digests of callers, the same in every process, for the parts of shared buckets.
//!
//! The digests contain no secret. No two callers have the same digest by chance, but anyone who can
//! guess a caller (an account's number, not a token) can recognise its digest. So they are used
//! only where gates must agree.

use ring::digest::{Context, SHA256};

/// A digest of a few words and their lengths.
pub(super) struct Everywhere(Context);

// === impl Everywhere ===

impl Everywhere {
    pub(super) fn new(kind: &str) -> Self {
        let mut number = Self(Context::new(&SHA256));
        number.add(kind.as_bytes());
        number
    }

    pub(super) fn add(&mut self, word: &[u8]) {
        self.0.update(&(word.len() as u64).to_be_bytes());
        self.0.update(word);
    }

    /// Returns the digest as a number; never zero.
    pub(super) fn number(self) -> u64 {
        let digest = self.0.finish();
        digest.as_ref().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)).max(1)
    }
}

/// Returns the hash of a host and port, the same in every process.
#[must_use]
pub fn number_of_origin(origin: &str) -> u64 {
    let mut number = Everywhere::new("origin");
    number.add(origin.as_bytes());
    number.number()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_never_changes_because_gates_of_two_releases_share_buckets() {
        assert_eq!(number_of_origin("ec2.eu-central-1.amazonaws.com:443"), 5_316_514_863_414_703_930);
    }

    #[test]
    fn words_do_not_run_together() {
        let number = |words: &[&str]| {
            let mut number = Everywhere::new("account");
            words.iter().for_each(|word| number.add(word.as_bytes()));
            number.number()
        };
        assert_ne!(number(&["ab", "c"]), number(&["a", "bc"]));
        assert_ne!(number(&["ab"]), number(&["ab", ""]));
    }
}
