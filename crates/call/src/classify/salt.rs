//! The salt under which keys, flows and credentials are hashed.
//!
//! It is secret and random, so that no client can aim for a collision and no hash tells what it is
//! of. A gate that is started again goes on with the salt of the one before: what that one
//! remembered is by hash.

use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};

/// A secret, and the hasher that has taken it in.
#[derive(Clone, derive_more::Debug)]
#[debug("Salt")]
pub struct Salt {
    secret: [u64; 2],
    hasher: DefaultHasher,
}

// === impl Salt ===

impl Salt {
    /// Makes a random salt.
    #[must_use]
    pub fn random() -> Self {
        let random = RandomState::new();
        Self::of([random.hash_one(0_u8), random.hash_one(1_u8)])
    }

    /// Makes the salt with this secret.
    #[must_use]
    pub fn of(secret: [u64; 2]) -> Self {
        let mut hasher = DefaultHasher::new();
        secret.iter().for_each(|half| hasher.write_u64(*half));
        Self { secret, hasher }
    }

    /// Returns its secret, for a file that nobody else can read.
    #[must_use]
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
        let (one, other) = (Salt::random(), Salt::random());
        assert_eq!(one.hash_one("a"), Salt::of(one.secret()).hash_one("a"));
        assert_ne!(one.hash_one("a"), other.hash_one("a"));
        assert!(!format!("{one:?}").contains(&one.secret()[0].to_string()));
    }
}
