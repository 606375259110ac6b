//! The target of a CONNECT: what is read is one origin, and no text smuggles in an address.
#![no_main]

use std::net::{IpAddr, ToSocketAddrs};

use libfuzzer_sys::fuzz_target;
use tidegate::proxy::{Host, Origin, judge};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(origin) = Origin::read(text, Some(443)) else { return };
    assert_ne!(origin.port, 0);
    // Written out, it is the same origin.
    assert_eq!(Origin::read(&origin.to_string(), None), Ok(origin.clone()));
    match &origin.host {
        Host::Name(name) => {
            assert!(name.len() <= 253 && name.is_ascii() && !name.ends_with('.'), "{name}");
            assert!(**name == *name.to_ascii_lowercase() && name.parse::<IpAddr>().is_err(), "{name}");
            // What ends in a number, the machine's resolver would take for an address.
            let last = name.rsplit('.').next().unwrap_or_default();
            assert!(!last.bytes().all(|byte| byte.is_ascii_digit()), "{name}");
        }
        Host::Address(address) => {
            // Text of an address needs no resolver, so that this asks none.
            let machine = origin.to_string().to_socket_addrs().expect("an address").next().expect("one");
            assert_eq!(machine.ip().to_canonical(), *address);
            let mapped = match address {
                IpAddr::V4(v4) => IpAddr::V6(v4.to_ipv6_mapped()),
                IpAddr::V6(v6) => IpAddr::V6(*v6),
            };
            assert_eq!(judge(*address), judge(mapped));
        }
    }
});
