//! Durations: each that can be read is written so that it reads the same, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::api::duration::{read, write};

fuzz_target!(|text: &str| {
    if let Some(span) = read(text) {
        assert_eq!(read(&write(span)), Some(span), "{text:?} {}", write(span));
    }
});
