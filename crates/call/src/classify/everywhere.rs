//! Digests of callers: with the salt of this process or, for the parts of shared buckets, the same in
//! every process.
//!
//! The latter contain no secret. No two callers have the same digest by chance, but anyone who can
//! guess a caller (an account's number, not a token) can recognise its digest. So they are used
//! only where gates must agree.

use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _};

use ring::digest::{Context, SHA256};

use super::Salt;

/// A digest of a few words about a caller.
pub(super) enum CallerDigest {
    Salted(DefaultHasher),
    Everywhere(Everywhere),
}

/// A digest of a few words and their lengths.
pub(super) struct Everywhere(Context);

// === impl CallerDigest ===

impl CallerDigest {
    /// Begins a digest: the same in every process without a `salt`.
    pub(super) fn new(kind: &str, salt: Option<&Salt>) -> Self {
        salt.map_or_else(|| Self::Everywhere(Everywhere::new(kind)), |salt| Self::Salted(salt.build_hasher()))
    }

    pub(super) fn add(&mut self, word: &[u8]) {
        match self {
            Self::Salted(hasher) => word.hash(hasher),
            Self::Everywhere(number) => number.add(word),
        }
    }

    /// Returns the digest as a number; never zero.
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Salted(hasher) => hasher.finish().max(1),
            Self::Everywhere(number) => number.number(),
        }
    }
}

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
