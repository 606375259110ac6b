//! The name in a create's body: JSON or protobuf, whole or cut off. More of a body never
//! contradicts what was found in its beginning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::api::names::of_object;

/// A call gets its key from the part of its body that has come: the rest must not change the key.
fn holds(body: &[u8]) {
    let whole = of_object(body);
    for cut in [body.len() / 3, body.len() / 2, body.len().saturating_sub(1)] {
        let read = of_object(&body[..cut]);
        assert!(read.is_none() || read == whole, "{read:?} of the beginning, {whole:?} of the whole");
    }
}

fuzz_target!(|body: &[u8]| {
    let name = of_object(body);
    if let Some(name) = &name {
        assert!(!name.is_empty() && body.len() >= name.len());
    }
    holds(body);
    // The same body as Kubernetes protobuf.
    let mut protobuf = b"k8s\0".to_vec();
    protobuf.extend_from_slice(body);
    let name = of_object(&protobuf);
    assert!(name.is_none_or(|name| !name.is_empty()));
    holds(&protobuf);
});
