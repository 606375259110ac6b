//! The name in a create's body: JSON or protobuf, whole or cut off. What is found in a beginning is never contradicted by more of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::api::names::of_object;

fuzz_target!(|body: &[u8]| {
    let name = of_object(body);
    if let Some(name) = &name {
        assert!(!name.is_empty() && body.len() >= name.len());
    }
    // The same body as Kubernetes protobuf.
    let mut protobuf = b"k8s\0".to_vec();
    protobuf.extend_from_slice(body);
    let name = of_object(&protobuf);
    assert!(name.is_none_or(|name| !name.is_empty()));
});
