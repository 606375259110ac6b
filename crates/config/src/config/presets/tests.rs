//! Holds every file of a preset to its form, and EC2's to its actions.

use std::collections::BTreeSet;

use super::*;

#[test]
fn every_file_is_a_preset_with_figures_and_classes_that_are_right() {
    for name in PresetName::ALL {
        let parsed: Result<Preset, _> = toml::from_str(name.file);
        assert!(parsed.is_ok(), "{}: {parsed:?}", name.word);
        let mut preset = name.load();
        preset.take_share(1.0);
        let buckets = preset.classes.iter().filter_map(|class| class.keys.get("bucket"));
        for bucket in buckets.chain(preset.gate.get("bucket")) {
            let keys: BTreeSet<&str> = bucket.as_table().expect("a table").keys().map(String::as_str).collect();
            assert!(keys.contains("rate") && keys.contains("burst") && !keys.contains("published"), "{bucket}");
        }
    }
}

#[test]
fn no_action_of_ec2_stands_twice() {
    let classes = PresetName::named("aws_ec2").expect("a preset").load().classes;
    let actions = classes.iter().filter_map(|class| class.keys.get("match")?.get("actions")?.as_array());
    let all: Vec<&str> = actions.flatten().filter_map(Value::as_str).filter(|action| !action.ends_with('*')).collect();
    assert_eq!((classes.len(), all.len()), (25, 130));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    assert_eq!(classes.iter().map(|class| class.keys["name"].as_str()).collect::<BTreeSet<_>>().len(), classes.len());
    assert!(all.iter().all(|action| action.bytes().all(|letter| letter.is_ascii_alphanumeric())));
}
