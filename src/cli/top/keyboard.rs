//! The terminal while `top` draws on it: keys come one by one, and what was on the screen before is
//! there again in the end.

use std::io::{self, IsTerminal as _, Read as _, Write as _};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::view::Key;

/// A terminal that is drawn on. Dropping it puts everything back.
#[derive(Debug)]
pub(super) struct Terminal {
    /// The modes of standard input before; `None` if it is no terminal.
    before: Option<Termios>,
}

// === impl Terminal ===

impl Terminal {
    pub(super) fn enter() -> io::Result<Self> {
        let stdin = io::stdin();
        let before = if stdin.is_terminal() { Some(tcgetattr(&stdin)?) } else { None };
        if let Some(before) = &before {
            let mut modes = before.clone();
            // Without signals from the keyboard: Ctrl-C is a key, so that the screen is put back.
            modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
            tcsetattr(&stdin, OptionalActions::Now, &modes)?;
        }
        let terminal = Self { before };
        // The screen that editors use, without a cursor.
        io::stdout().write_all(b"\x1b[?1049h\x1b[?25l")?;
        Ok(terminal)
    }

    /// Returns the keys that are pressed from now on.
    pub(super) fn keys(&self) -> UnboundedReceiver<Key> {
        let (sender, keys) = unbounded_channel();
        if self.before.is_some() {
            // A thread of its own, which ends with the process: a read of a terminal cannot be
            // given up.
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(length @ 1..) = io::stdin().lock().read(&mut bytes) {
                    let pressed = bytes.get(..length).map(pressed).unwrap_or_default();
                    if pressed.into_iter().any(|key| sender.send(key).is_err()) {
                        return;
                    }
                }
                sender.send(Key::Quit).ok(); // the terminal is gone
            });
        }
        keys
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut out = io::stdout();
        // A terminal that is gone needs nothing.
        drop(out.write_all(b"\x1b[?25h\x1b[?1049l").and_then(|()| out.flush()));
        if let Some(before) = &self.before {
            tcsetattr(io::stdin(), OptionalActions::Now, before).ok();
        }
    }
}

/// Reads keys from what the terminal sent. Other keys mean nothing.
fn pressed(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        let known = KEYS.iter().find(|(code, _)| rest.starts_with(code));
        keys.extend(known.map(|(_, key)| *key));
        rest = match known {
            Some((code, _)) => rest.get(code.len()..).unwrap_or_default(),
            // A sequence for some other key ends with a letter or a tilde.
            None if *first == b'\x1b' => {
                let end = after.iter().skip(1).position(|byte| byte.is_ascii_alphabetic() || *byte == b'~');
                end.and_then(|end| after.get(end + 2..)).unwrap_or_default()
            }
            None => after,
        };
    }
    keys
}

/// The bytes that keys send: by name, as vi and less have them, and as terminals send the others.
const KEYS: [(&[u8], Key); 23] = [
    (b"q", Key::Quit),
    (b"Q", Key::Quit),
    (b"\x03", Key::Quit),
    (b"\x04", Key::Quit),
    (b"k", Key::Up),
    (b"\x1b[A", Key::Up),
    (b"\x1bOA", Key::Up),
    (b"j", Key::Down),
    (b"\n", Key::Down),
    (b"\x1b[B", Key::Down),
    (b"\x1bOB", Key::Down),
    (b"b", Key::PageUp),
    (b"\x1b[5~", Key::PageUp),
    (b" ", Key::PageDown),
    (b"f", Key::PageDown),
    (b"\x1b[6~", Key::PageDown),
    (b"g", Key::First),
    (b"\x1b[H", Key::First),
    (b"\x1bOH", Key::First),
    (b"G", Key::Last),
    (b"\x1b[F", Key::Last),
    (b"\x1bOF", Key::Last),
    (b"\x1b[4~", Key::Last),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_terminals_send_them_and_others_mean_nothing() {
        assert_eq!(pressed(b"\x1b[Bj\x1b[A"), [Key::Down, Key::Down, Key::Up]);
        assert_eq!(pressed(b" \x1b[5~\x1b[H\x1bOF"), [Key::PageDown, Key::PageUp, Key::First, Key::Last]);
        // F5, Ctrl-Right, Escape alone, and a letter.
        assert_eq!(pressed(b"\x1b[15~\x1b[1;5Cxq"), [Key::Quit]);
        assert_eq!((pressed(b"\x1b"), pressed(b"\x03")), (vec![], vec![Key::Quit]));
    }
}
