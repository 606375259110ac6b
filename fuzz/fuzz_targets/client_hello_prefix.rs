//! The beginning of what a client says in a tunnel: what is read of a part holds for the whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::proxy::{First, first};

fuzz_target!(|bytes: &[u8]| {
    let whole = first(bytes);
    let Some((end, of_part)) = (0..=bytes.len()).find_map(|end| Some((end, first(&bytes[..end])?))) else {
        assert_eq!(whole, None);
        return;
    };
    assert_eq!(whole.as_ref(), Some(&of_part), "after {end} of {}", bytes.len());
    assert_eq!(end == 1, bytes[0] != 0x16, "only TLS needs more than a byte");
    if let First::Tls(Some(name)) = of_part {
        assert!(!name.is_empty() && name.is_ascii(), "{name}");
    }
});
