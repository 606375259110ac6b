//! The visible part of the status: the first line stays, the rest scrolls.

use crate::status::text::cut;

/// A key with a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyPress {
    Quit,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

/// The scroll position.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The lines above the visible ones.
    above: usize,
    /// The most lines above, when the screen was last drawn.
    most: usize,
}

// === impl View ===

impl View {
    /// Scrolls as a key says, on a screen of this height.
    pub(super) fn press(&mut self, key: KeyPress, height: usize) {
        let page = room(height).saturating_sub(1).max(1);
        let above = match key {
            KeyPress::Quit => self.above,
            KeyPress::Up => self.above.saturating_sub(1),
            KeyPress::Down => self.above.saturating_add(1),
            KeyPress::PageUp => self.above.saturating_sub(page),
            KeyPress::PageDown => self.above.saturating_add(page),
            KeyPress::First => 0,
            KeyPress::Last => self.most,
        };
        self.above = above.min(self.most);
    }

    /// Returns the text of a frame over the last one: clearing the screen would flicker.
    pub(super) fn frame(&mut self, text: &str, width: usize, height: usize) -> String {
        let (head, body) = text.split_once('\n').unwrap_or((text, ""));
        let lines: Vec<&str> = body.trim_start_matches('\n').lines().collect();
        let room = room(height);
        self.most = lines.len().saturating_sub(room);
        self.above = self.above.min(self.most);
        let shown = lines.iter().skip(self.above).take(room);
        let from = self.above + usize::from(!lines.is_empty());
        let to = (self.above + room).min(lines.len());
        let foot = format!("lines {from} to {to} of {}; arrows and page keys scroll, q quits", lines.len());
        let foot = format!("\u{1b}[2m{}\u{1b}[0m", cut(&foot, width, '\u{2026}'));
        let all: Vec<&str> = std::iter::once(&head).chain(shown).copied().chain([foot.as_str()]).collect();
        // A line end after the last line would scroll the screen.
        format!("\u{1b}[H{}\u{1b}[K\u{1b}[J", all.join("\u{1b}[K\n"))
    }
}

/// Returns the lines between the first and the last of a screen.
fn room(height: usize) -> usize {
    height.saturating_sub(2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines on the screen, without control sequences.
    fn screen(view: &mut View, text: &str) -> Vec<String> {
        let frame = view.frame(text, 30, 6);
        assert_eq!(frame.matches('\n').count(), 5, "a line for each of the screen's, and none below");
        let plain = ["\u{1b}[H", "\u{1b}[K", "\u{1b}[J", "\u{1b}[2m", "\u{1b}[0m"];
        let frame = plain.iter().fold(frame, |frame, code| frame.replace(code, ""));
        frame.lines().map(str::to_owned).collect()
    }

    #[test]
    fn it_scrolls_between_a_head_and_a_foot_that_stay_and_not_past_the_ends() {
        let text: String = std::iter::once("head\n\n".to_owned()).chain((1..=10).map(|n| format!("{n}\n"))).collect();
        let mut view = View::default();
        assert_eq!(screen(&mut view, &text), ["head", "1", "2", "3", "4", "lines 1 to 4 of 10; arrows an\u{2026}"]);
        let after = |view: &mut View, keys: &[KeyPress]| {
            keys.iter().for_each(|key| view.press(*key, 6));
            screen(view, &text)[1].clone()
        };
        assert_eq!(after(&mut view, &[KeyPress::Down, KeyPress::Down, KeyPress::Up]), "2");
        assert_eq!(after(&mut view, &[KeyPress::PageDown]), "5", "a line of the page before is still there");
        assert_eq!(after(&mut view, &[KeyPress::Last]), "7");
        assert_eq!(after(&mut view, &[KeyPress::Down, KeyPress::Down, KeyPress::Up]), "6", "past the end is the end");
        assert_eq!(after(&mut view, &[KeyPress::PageUp, KeyPress::PageUp, KeyPress::PageUp]), "1");
        assert_eq!(after(&mut view, &[KeyPress::Last, KeyPress::First]), "1");
        let fewer = "head\n\n1\n2\n3\n4\n5\n";
        view.press(KeyPress::Last, 6);
        assert_eq!(screen(&mut view, fewer)[1], "2", "there is less to see now");
    }

    #[test]
    fn a_screen_of_no_height_is_no_trouble() {
        let mut view = View::default();
        assert!(view.frame("head\n\n1\n2\n", 0, 0).contains("head"));
        assert!(view.frame("", 80, 24).contains("lines 0 to 0 of 0"));
    }
}
