//! Reading and writing the state, and whatever else may lie in its place.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use super::*;
use crate::api::Key;
use crate::limit::quota::{QuotaId, ResourceId};
use crate::limit::snapshot::{FrozenKey, FrozenPart, FrozenPause, Levels};

fn some(keys: u64) -> ProcessState {
    let second = Duration::from_secs(1);
    let key = |object| FrozenKey {
        key: Key { object, collection: u64::MAX - object, facet: 3 },
        name: Box::default(),
        failures: 7,
        status: (object % 2 == 0).then_some(503),
        ready: 60 * second,
        named: Duration::ZERO,
        forget: 600 * second,
    };
    let pause = |quota| FrozenPause { quota, left: 600 * second, grown: second };
    let core = QuotaId { holder: u64::MAX, resource: ResourceId::named("core") };
    let levels = Levels { whole: -2.5, parts: vec![(u64::MAX, 0.25)], members: 3 };
    let frozen = FrozenLimiter {
        keys: (0..keys).map(key).collect(),
        pauses: vec![pause(QuotaId::ALL), pause(core)],
        buckets: vec![(FrozenPart::Class("ec2".into()), levels.clone()), (FrozenPart::Retries, levels)],
    };
    ProcessState {
        stamp: Stamp { boot: "b".into(), uptime: Some(second), wall: 5 * second },
        is_last: true,
        secret: [1, u64::MAX],
        gates: [("github".into(), frozen)].into(),
    }
}

#[test]
fn a_state_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    assert!(read(&path).expect("nothing is there").is_none());
    for (state, is_synced) in [(some(1000), true), (some(3), false)] {
        write(&path, &state, is_synced).expect("there is room");
        assert_eq!(read(&path).expect("it is whole"), Some(state));
    }
    let mode = fs::metadata(&path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(fs::read_dir(folder.path()).expect("ours").count(), 1, "nothing else is left");
}

#[test]
fn times_are_never_shorter_than_they_were() {
    let mut state = some(1);
    state.gates.values_mut().for_each(|gate| gate.pauses[0].left = Duration::from_nanos(1_000_001));
    let again = decode(&encode(&state).expect("numbers")).expect("whole");
    assert_eq!(again.gates["github"].pauses[0].left, Duration::from_millis(2));
}

#[test]
fn a_file_that_is_cut_off_or_changed_anywhere_is_refused() {
    let bytes = encode(&some(2)).expect("numbers");
    for end in 0..bytes.len() {
        assert!(decode(&bytes[..end]).is_err(), "{end}");
    }
    for place in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[place] ^= 1;
        assert!(decode(&changed).is_err(), "{place}");
    }
    for foreign in [&b""[..], b"\n", b"{}", b"tidegate-state-1\n", b"\xff\xfe\n{}", &[b'x'; 4096]] {
        assert!(matches!(decode(foreign), Err(StateError::Foreign)));
    }
    let text = String::from_utf8(bytes).expect("text");
    let other = text.replacen(env!("CARGO_PKG_VERSION"), "99.0.0", 1);
    let error = decode(other.as_bytes()).expect_err("another version").to_string();
    assert_eq!(error, "the state file was written by tidegate 99.0.0, and this version cannot read it");
}

#[test]
fn a_file_that_others_could_have_written_or_read_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, other) = (folder.path().join("state"), folder.path().join("other"));
    write(&other, &some(1), false).expect("there is room");
    symlink(&other, &path).expect("ours");
    assert!(matches!(read(&path), Err(StateError::Unsafe)), "a link");
    fs::remove_file(&path).expect("ours");
    fs::create_dir(&path).expect("ours");
    assert!(matches!(read(&path), Err(StateError::Unsafe)), "a folder");
    fs::remove_dir(&path).expect("ours");
    for mode in [0o640, 0o604, 0o620, 0o666] {
        fs::copy(&other, &path).expect("ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        assert!(matches!(read(&path), Err(StateError::Unsafe)), "{mode:o}");
    }
    // What lies where the next file is written is not followed either.
    symlink(&other, folder.path().join(".state.new")).expect("ours");
    fs::write(&other, "untouched").expect("ours");
    write(&path, &some(1), false).expect("there is room");
    assert_eq!(fs::read(&other).expect("ours"), b"untouched");
}

#[test]
fn a_path_is_free_for_a_state_where_nothing_or_a_state_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    assert!(is_free(&path));
    let whole = encode(&some(1)).expect("numbers");
    for ours in [&whole[..], &whole[..20], &whole[..5], b"", b"tidegate-state-2 99.0.0 00\nx"] {
        fs::write(&path, ours).expect("ours");
        assert!(is_free(&path), "{}", String::from_utf8_lossy(ours));
    }
    for foreign in [&b"\n"[..], b"tidegate is what I write about", b"[gates.api]\n", b"\xff\xfe"] {
        fs::write(&path, foreign).expect("ours");
        assert!(!is_free(&path), "{}", String::from_utf8_lossy(foreign));
    }
    let link = folder.path().join("link");
    symlink(&path, &link).expect("ours");
    assert!(!is_free(&link), "a link to another's file");
    fs::remove_file(&path).expect("ours");
    assert!(!is_free(&link), "a link that leads nowhere");
    fs::create_dir(&path).expect("ours");
    assert!(!is_free(&path), "a folder");
}

#[test]
fn the_largest_file_that_is_read_holds_what_ten_gates_keep() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let (one, mut state) = (some(8000).gates.remove("github").expect("a gate"), some(0));
    for number in 0..10 {
        state.gates.insert(format!("gate{number}").into(), one.clone());
    }
    write(&path, &state, false).expect("there is room");
    assert!(read(&path).expect("it is not too large").is_some());
    fs::OpenOptions::new().write(true).open(&path).expect("ours").set_len(17 << 20).expect("a hole");
    assert!(matches!(read(&path), Err(StateError::TooLarge)));
    assert!(Stamp::new(SystemTime::UNIX_EPOCH).since(&state.stamp) < Duration::from_secs(1 << 40));
}
