//! Any YAML: nothing panics, injecting twice gives the same as injecting once, and the removed
//! sidecar is gone.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::inject::{Mode, Options, inject, uninject};

fuzz_target!(|text: &str| {
    for mode in [Mode::Kubeconfig, Mode::InCluster] {
        let options = Options {
            image: "tidegate:1".to_owned(),
            mode,
            config_map: Some("limits".to_owned()),
            pod_monitor: true,
            replace: true,
            ..Options::default()
        };
        let Ok(once) = inject(text, &options) else { return };
        if once.changed.is_empty() {
            continue;
        }
        let twice = inject(&once.text, &options).expect("what is written can be read");
        assert_eq!(twice.text, once.text, "twice is once");
        let back = uninject(&once.text).expect("what is written can be read");
        assert_eq!(back.changed, once.changed);
        assert!(uninject(&back.text).expect("what is written can be read").changed.is_empty());
    }
});
