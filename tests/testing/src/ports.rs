//! Ports for programs that a test starts: they are given a port, so the system cannot choose one
//! when they listen.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

/// A loopback port on which no program listens, and that no other test of this process gets.
///
/// It lies below the range for outgoing connections (32768 and up): a test with thousands of them
/// would now and then take the port between this probe and its use.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes with neighbouring numbers begin far from each other.
    let start = u16::try_from(u64::from(process::id()) * 7919 % u64::from(COUNT)).expect("less than COUNT");
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (start + step) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port on 127.0.0.1");
}

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;
