//! A checksum for readable names of keys: eight hexadecimal digits in place of a value that a name
//! may not show.

/// Returns the FNV-1a hash of `bytes`, continued from `from`. Unlike the salted digest it stays the
/// same over a restart, so that people can compare logs.
pub(super) fn checksum(bytes: &[u8], from: u32) -> u32 {
    bytes.iter().fold(from, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The offset basis of FNV-1a.
pub(super) const START: u32 = 0x811c_9dc5;
