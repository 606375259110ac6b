//! A relay between a gate and its store, both on Unix sockets, which delays, swallows or cuts what
//! goes through it.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::moment::Moment;

use crate::shared::fleet::wait;

/// The relay's treatment of what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Passes,
    /// Each way takes so long.
    Delays(Duration),
    /// Connections are taken and everything is read, and nothing ever answers.
    Swallows,
    /// Connections are closed.
    Cuts,
}

/// A relay; it goes on until the tests end.
pub(crate) struct Relay {
    how: Arc<Mutex<How>>,
}

// === impl Relay ===

impl Relay {
    /// Listens at a path, before the store at another.
    pub(crate) fn start(at: &Path, store: PathBuf) -> Self {
        let listener = UnixListener::bind(at).expect("the folder is ours");
        let how = Arc::new(Mutex::new(How::Passes));
        let of_relay = Arc::clone(&how);
        thread::spawn(move || {
            for gate in listener.incoming().map_while(Result::ok) {
                let now = *of_relay.lock().expect("unpoisoned");
                let Ok(server) = UnixStream::connect(&store) else { continue };
                if now != How::Cuts {
                    carry(&gate, &server, &of_relay);
                    carry(&server, &gate, &of_relay);
                }
            }
        });
        Self { how }
    }

    pub(crate) fn set(&self, how: How) {
        *self.how.lock().expect("unpoisoned") = how;
    }
}

/// Carries what comes from one side to the other, until either ends.
fn carry(from: &UnixStream, to: &UnixStream, how: &Arc<Mutex<How>>) {
    let (mut from, mut to) = (from.try_clone().expect("a handle"), to.try_clone().expect("a handle"));
    let (how, clock) = (Arc::clone(how), Clock::start());
    let (sender, receiver) = channel::<(Moment, Vec<u8>)>();
    thread::spawn(move || {
        for (due, bytes) in receiver {
            wait(due - clock.now());
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
    });
    thread::spawn(move || {
        let (mut bytes, mut swallowed) = ([0; 4096], false);
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            let delay = match *how.lock().expect("unpoisoned") {
                How::Cuts => break,
                How::Delays(delay) => delay,
                How::Swallows => {
                    // What follows would be the rest of something that is gone.
                    swallowed = true;
                    continue;
                }
                How::Passes => Duration::ZERO,
            };
            if !swallowed && sender.send((clock.now() + delay, bytes[..read].to_vec())).is_err() {
                break;
            }
        }
        from.shutdown(Shutdown::Both).ok();
    });
}
