//! The terminal while `top` draws on it: keys arrive one by one, and the screen is restored in the
//! end.

use std::io::{self, IsTerminal as _, Read as _, Write as _};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::view::KeyPress;

/// A terminal in raw mode. Dropping it restores the modes and the screen.
#[derive(Debug)]
pub(super) struct Terminal {
    /// The earlier modes of standard input; `None` if it is not a terminal.
    before: Option<Termios>,
}

// === impl Terminal ===

impl Terminal {
    pub(super) fn enter() -> io::Result<Self> {
        let stdin = io::stdin();
        let before = if stdin.is_terminal() { Some(tcgetattr(&stdin)?) } else { None };
        if let Some(before) = &before {
            let mut modes = before.clone();
            // Ctrl-C is a key, not a signal, so that the screen is restored.
            modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
            tcsetattr(&stdin, OptionalActions::Now, &modes)?;
        }
        let terminal = Self { before };
        // The screen that editors use, without a cursor.
        io::stdout().write_all(b"\x1b[?1049h\x1b[?25l")?;
        Ok(terminal)
    }

    /// Returns the keys pressed from now on.
    pub(super) fn keys(&self) -> UnboundedReceiver<KeyPress> {
        let (sender, keys) = unbounded_channel();
        if self.before.is_some() {
            // The thread ends with the process: a read of a terminal cannot be cancelled.
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(length @ 1..) = io::stdin().lock().read(&mut bytes) {
                    let pressed = bytes.get(..length).map(pressed).unwrap_or_default();
                    if pressed.into_iter().any(|key| sender.send(key).is_err()) {
                        return;
                    }
                }
                sender.send(KeyPress::Quit).ok(); // the terminal is gone
            });
        }
        keys
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut out = io::stdout();
        // An error means that the terminal is gone.
        drop(out.write_all(b"\x1b[?25h\x1b[?1049l").and_then(|()| out.flush()));
        if let Some(before) = &self.before {
            tcsetattr(io::stdin(), OptionalActions::Now, before).ok();
        }
    }
}

/// Reads keys from the bytes of a terminal.
fn pressed(mut bytes: &[u8]) -> Vec<KeyPress> {
    let mut keys = Vec::new();
    while let [first, rest @ ..] = bytes {
        // An escape sequence ends with a letter or a tilde.
        let is_end = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'~';
        let length = match rest {
            [_, more @ ..] if *first == b'\x1b' => more.iter().position(is_end).map_or(bytes.len(), |end| end + 3),
            _ => 1,
        };
        let (code, after) = bytes.split_at(length);
        keys.extend(key(code));
        bytes = after;
    }
    keys
}

/// Returns the key of a code, by name as in vi and less, or as terminals send it.
fn key(code: &[u8]) -> Option<KeyPress> {
    Some(match code {
        b"q" | b"Q" | b"\x03" | b"\x04" => KeyPress::Quit,
        b"k" | b"\x1b[A" | b"\x1bOA" => KeyPress::Up,
        b"j" | b"\n" | b"\x1b[B" | b"\x1bOB" => KeyPress::Down,
        b"b" | b"\x1b[5~" => KeyPress::PageUp,
        b" " | b"f" | b"\x1b[6~" => KeyPress::PageDown,
        b"g" | b"\x1b[H" | b"\x1bOH" => KeyPress::First,
        b"G" | b"\x1b[F" | b"\x1bOF" | b"\x1b[4~" => KeyPress::Last,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_terminals_send_them_and_others_mean_nothing() {
        assert_eq!(pressed(b"\x1b[Bj\x1b[A"), [KeyPress::Down, KeyPress::Down, KeyPress::Up]);
        assert_eq!(
            pressed(b" \x1b[5~\x1b[H\x1bOF"),
            [KeyPress::PageDown, KeyPress::PageUp, KeyPress::First, KeyPress::Last]
        );
        // F5, Ctrl-Right, Escape alone, and a letter.
        assert_eq!(pressed(b"\x1b[15~\x1b[1;5Cxq"), [KeyPress::Quit]);
        assert_eq!((pressed(b"\x1b"), pressed(b"\x03")), (vec![], vec![KeyPress::Quit]));
    }
}
