//! The head of a CONNECT: it is read alike in whatever pieces it comes, and says one origin.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::proxy::{Origin, connect_in};

fuzz_target!(|bytes: &[u8]| {
    let Some((piece, bytes)) = bytes.split_first() else { return };
    // Only what begins so is read as one.
    let bytes = [b"CONNECT ", bytes].concat();
    let read = connect_in(&bytes, bytes.len());
    let pieces = connect_in(&bytes, usize::from(*piece));
    // Of a head with several faults, the first that comes is told.
    assert!(read == pieces || (read.is_err() && pieces.is_err()), "{read:?} {pieces:?}");
    let Ok(Some((origin, end))) = read else { return };
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    assert!(text.ends_with("\r\n\r\n") && text.matches("\r\n\r\n").count() == 1, "{text}");
    let target = text.split(' ').nth(1).expect("it was read");
    assert_eq!(Origin::read(target, None).as_ref(), Ok(&origin));
    let fields = || text.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    let named = |name: &str| fields().filter(|(field, _)| field.eq_ignore_ascii_case(name)).count();
    assert!(named("host") <= 1 && named("transfer-encoding") == 0, "{text}");
    for (name, value) in fields().filter(|(name, _)| name.eq_ignore_ascii_case("host")) {
        assert_eq!(Origin::read(value.trim(), Some(origin.port)), Ok(origin.clone()), "{name}");
    }
    // What follows is the tunnel's, and changes nothing.
    let more = [&bytes[..end], b"\x16\x03\x01"].concat();
    assert_eq!(connect_in(&more, more.len()), Ok(Some((origin, end))));
});
