//! The salt for hashes of keys, flows and credentials.
//!
//! It is secret and random, so that no client can aim for a collision, and no hash can be guessed.
//! A gate takes over the salt of its state file, so that the hashes in it stay valid.

use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};

/// A secret salt, and a hasher using it.
#[derive(Clone, derive_more::Debug)]
#[debug("Salt")]
pub struct Salt {
    secret: [u64; 2],
    hasher: DefaultHasher,
}

// === impl Salt ===

impl Salt {
    /// Creates a random salt.
    pub fn random() -> Self {
        let random = RandomState::new();
        Self::of([random.hash_one(0_u8), random.hash_one(1_u8)])
    }

    /// Creates the salt with this secret.
    pub fn of(secret: [u64; 2]) -> Self {
        let mut hasher = DefaultHasher::new();
        secret.iter().for_each(|half| hasher.write_u64(*half));
        Self { secret, hasher }
    }

    /// Returns the salt itself, for the state file.
    pub fn secret(&self) -> [u64; 2] {
        self.secret
    }
}

impl Default for Salt {
    fn default() -> Self {
        Self::random()
    }
}

impl BuildHasher for Salt {
    type Hasher = DefaultHasher;

    #[inline]
    fn build_hasher(&self) -> DefaultHasher {
        self.hasher.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_secret_gives_the_same_hashes_and_another_gives_others() {
        let one = Salt::random();
        let other = Salt::random();
        assert_eq!(one.hash_one("a"), Salt::of(one.secret()).hash_one("a"));
        assert_ne!(one.hash_one("a"), other.hash_one("a"));
        assert!(!format!("{one:?}").contains(&one.secret()[0].to_string()));
    }
}
